"""`ppo-workbench runs`, `samples` and `export`: the runs, what one has written, and the forms for other trainers."""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import textwrap
from dataclasses import fields
from pathlib import Path

from rich.cells import chop_cells

from trainer.config.problems import short
from trainer.errors import StorageError, UsageError, counted
from trainer.events import plain
from trainer.runs.folder import RunFolder, open_run
from trainer.runs.listing import RECENT, RunSummary, list_runs
from trainer.runs.samples import kept_iterations
from workbench.cli.config import runs_dir
from workbench.cli.parser import add
from workbench.run.bookmarks import Bookmarks
from workbench.run.sample_query import Order, parse_query
from workbench.run.sample_reader import read_token_sample, scan
from workbench.run.sample_table import Sample, SampleTable
from workbench.run.sentences import state_text
from workbench.samples.export import export_samples, exported
from workbench.system import output
from workbench.text import aligned, fit_end, moment, number, score_text, visible

_HEADINGS = ("run", "state", "iteration", "score", "KL", "started", "model", "branched from")
_UNITS = ("", "", "", f"last {RECENT}", f"nats/seq, last {RECENT}", "", "", "run, iteration")
_TEXTS = (0, 1, 5, 6, 7)  # columns aligned to the left
_PRINTED = 20  # samples without --limit
_COMPLETION = 3  # lines
_PROMPT = 2000  # last characters of a prompt that are considered
_LABEL = 10  # columns


def add_runs(parser: argparse.ArgumentParser) -> None:
    """Add the options of `runs`."""
    parser.set_defaults(execute=run_runs)
    add(parser, "--json", help="print one JSON object per line")
    add(parser, "--dir")


def run_runs(args: argparse.Namespace) -> int:
    """List the runs by name, as a table with problems on stderr, or as one JSON object per line, see `RunSummary`."""
    folder = runs_dir(args)
    runs = list_runs(folder)
    if args.json:
        for summary in runs:
            values = {field.name: plain(getattr(summary, field.name)) for field in fields(summary)}
            values |= {"name": summary.name, "folder": str(summary.folder.root)}
            output.data(json.dumps(values, allow_nan=False))
        return 0
    if runs:
        rows = [_HEADINGS, _UNITS, *map(_cells, runs)]
        columns = len(_HEADINGS) if any(summary.branched_from for summary in runs) else -1
        output.data("\n".join(aligned([row[:columns] for row in rows], left=_TEXTS)))
    else:
        output.note(f"no runs in '{folder}' yet: start one with {output.PROGRAM} --no-ui")
    for summary in runs:
        if summary.problem:
            output.warning(f"{summary.name}: {summary.problem}")
    return 0


def _cells(summary: RunSummary) -> tuple[str, ...]:
    origin = summary.branched_from
    return (
        visible(summary.name),
        state_text(summary),
        f"{summary.iteration}/{summary.iterations}",
        number(summary.score),
        number(summary.kl, 2),
        moment(summary.started),
        visible(summary.model),
        f"{visible(origin.run)}, {origin.iteration}" if origin else "",
    )


def add_samples(parser: argparse.ArgumentParser) -> None:
    """Add the options of `samples`."""
    parser.set_defaults(execute=run_samples)
    add(parser, "run", "--dir")
    parser.add_argument(
        "--iteration", metavar="N", default="newest", help="number of an iteration, newest, or all (default: newest)"
    )
    parser.add_argument(
        "--filter",
        metavar="QUERY",
        help="words and conditions that must all hold, as in 'joy score>0.5 kl<=10 len>20 stop:length is:marked'",
    )
    parser.add_argument("--sort", choices=("score", "kl", "length"), help="highest first (default: order of the batch)")
    add(parser, "--limit", help="number of samples (default: 20 printed, all exported)")
    files = parser.add_mutually_exclusive_group()
    files.add_argument("--jsonl", metavar="FILE", help="write all fields, one JSON object per line; - for stdout")
    files.add_argument("--markdown", metavar="FILE", help="write texts, scores and tables of the tokens")


def run_samples(args: argparse.Namespace) -> int:
    """Print samples of a run, or write them to a file and print its path; problems go to stderr."""
    try:
        query = parse_query(args.filter or "")
    except ValueError as problem:
        raise UsageError(f"--filter {args.filter}: {problem}") from None
    order = Order(args.sort, descending=True) if args.sort else Order()
    folder = open_run(args.run, runs_dir(args))
    table = _read(folder, _iterations(folder, args.iteration))
    bookmarks = Bookmarks(folder)
    if bookmarks.problem:
        output.warning(bookmarks.problem)
    chosen = table.select(query, order, bookmarks)
    target = args.jsonl or args.markdown
    limit = args.limit or (len(chosen) if target else _PRINTED)
    shown = chosen[:limit]
    samples = (read_token_sample(folder, key) for key in shown.keys)
    if target == "-":
        sys.stdout.writelines(piece for sample in samples for piece in exported(sample, markdown=not args.jsonl))
    elif target:
        written = export_samples(samples, Path(target), markdown=not args.jsonl)
        output.data(visible(str(written), joined=True))
    else:
        width = shutil.get_terminal_size().columns
        for sample in shown:
            output.data("\n".join(sample_card(sample, width)) + "\n")
    more = "; see more with --limit" * (not target and limit < len(chosen))
    output.note(f"{len(shown)} of {table.summary()}{more}")
    return 0


def sample_card(sample: Sample, width: int) -> list[str]:
    """Return a sample's facts, the end of its prompt and the start of its response, in lines of `width` columns."""
    facts = [
        f"{sample.key.iteration}·{sample.key.row + 1}",
        score_text(sample.score, 3),
        f"KL {number(sample.kl, 2)} nats",
    ]
    if sample.length is not None:
        facts.append(counted(sample.length, "token"))
    if sample.truncated:
        facts.append("cut short")
    room = max(width - _LABEL, 2)
    prompt = fit_end(visible(sample.prompt[-_PROMPT:]), room)
    start = visible(sample.completion[: (_COMPLETION + 1) * room])
    lines = [piece for line in textwrap.wrap(start, room) for piece in chop_cells(line, room)]
    shown = lines[:_COMPLETION]
    if len(lines) > _COMPLETION or len(sample.completion) > (_COMPLETION + 1) * room:
        shown.append("…")
    labels = ("  prompt", "  text", *[""] * len(shown))
    texts = (f"{label:{_LABEL}}{text}".rstrip() for label, text in zip(labels, [prompt, *shown], strict=False))
    return ["   ".join(facts), *texts]


def _iterations(folder: RunFolder, which: str) -> list[int]:
    """Return the iterations of --iteration, newest first. Raises UsageError and StorageError."""
    kept = kept_iterations(folder)
    if not kept:
        raise StorageError(f"no samples in '{folder.samples}': a run saves them with run.save_samples = true")
    if which in ("newest", "all"):
        return kept[-1:] if which == "newest" else kept[::-1]
    if not re.fullmatch("[0-9]{1,18}", which):
        raise UsageError(f"--iteration {short(which)}: must be a number, newest, or all")
    if int(which) not in kept:
        raise UsageError(f"--iteration {which}: no samples saved; the saved ones are from {kept[0]} to {kept[-1]}")
    return [int(which)]


def _read(folder: RunFolder, iterations: list[int]) -> SampleTable:
    """Read the samples and warn of unreadable files. Raises StorageError if no file can be read."""
    tables: list[SampleTable] = []
    problems: list[str] = []
    for part in scan(folder, iterations):
        tables.append(part.table)
        problems.extend(part.problems)
    if len(problems) == len(iterations):
        raise StorageError(problems[0])
    for problem in problems:
        output.warning(problem)
    return SampleTable.joined(tables)


def add_export(parser: argparse.ArgumentParser) -> None:
    """Add the options of `export`."""
    parser.set_defaults(execute=run_export)
    add(parser, "run", "--dir", "--checkpoint")
    parser.add_argument("--output", metavar="FOLDER", help="folder to write (default: exports and the run's name)")
    add(parser, "--average", help="export the moving average of the policy")
    parser.add_argument("--base", metavar="MODEL", default="", help="name of the base model, for another machine")
    parser.add_argument("--copy-base", action="store_true", help="write the base model too, for another machine")
    parser.add_argument("--force", action="store_true", help="replace FOLDER if an earlier export wrote all of it")


def run_export(args: argparse.Namespace) -> int:
    """Write the export and print its folder; what is lost goes to stderr."""
    folder = open_run(args.run, runs_dir(args))
    # Imported here, because this imports mlx: mistakes in the command line are reported first.
    from trainer.exchange.run_export import ExportOptions, export_run

    options = ExportOptions(
        checkpoint=args.checkpoint, average=args.average, base=args.base, copy_base=args.copy_base, overwrite=args.force
    )
    written = Path(args.output or Path("exports") / folder.name)
    found = export_run(folder, written, options)
    output.data(visible(str(written), joined=True))
    output.note(f"exported {visible(found.source)}")
    for warning in found.warnings:
        output.warning(warning)
    if found.settings is None:
        output.note("TRL has no trainer for this run's estimator")
    elif found.settings:
        lost = [row.key for row in found.settings if row.kind == "lost"]
        there = sum(len(row.there) for row in found.settings)
        output.note(f"{there} settings for TRL; lost: {', '.join(lost) or 'none'}")
    output.note(f"what went over and what did not: {visible(str(written / 'README.md'))}")
    return 0
