"""`ppo-workbench samples`: what a run has written, printed or exported."""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import textwrap
from pathlib import Path

from rich.cells import chop_cells

from trainer.config.problems import short
from trainer.errors import StorageError, UsageError
from trainer.plurals import counted
from trainer.runs.folder import RunFolder, open_run
from trainer.runs.samples import kept_iterations
from workbench.cli.config import runs_dir
from workbench.cli.parser import add
from workbench.numbers import number, score_text
from workbench.run.bookmarks import Bookmarks
from workbench.run.sample_query import Order, parse_query
from workbench.run.sample_reader import read_token_sample, scan
from workbench.run.sample_table import Sample, SampleTable
from workbench.samples.export import export_samples, exported
from workbench.system import output
from workbench.text import fit_end, visible

_PRINTED = 20  # samples without --limit
_COMPLETION = 3  # lines
_PROMPT = 2000  # last characters of a prompt that are considered
_LABEL = 10  # columns


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.set_defaults(execute=run)
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
    parser.add_argument("--limit", metavar="N", type=int, help="number of samples (default: 20 printed, all exported)")
    files = parser.add_mutually_exclusive_group()
    files.add_argument("--jsonl", metavar="FILE", help="write all fields, one JSON object per line; - for stdout")
    files.add_argument("--markdown", metavar="FILE", help="write texts, scores and tables of the tokens")


def run(args: argparse.Namespace) -> int:
    """Print samples of a run, or write them to a file and print its path; problems go to stderr."""
    try:
        query = parse_query(args.filter or "")
    except ValueError as problem:
        raise UsageError(f"--filter {args.filter}: {problem}") from None
    order = Order(args.sort, descending=True) if args.sort else Order()
    if args.limit is not None and args.limit < 1:
        raise UsageError(f"--limit {args.limit}: must be at least 1")
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
