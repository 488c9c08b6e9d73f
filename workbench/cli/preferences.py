"""`ppo-workbench preferences`: import, imports, undo-import, export, card, agreement, check, list."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path

from trainer.errors import UsageError, counted
from trainer.events import plain
from trainer.files import may_exist
from trainer.preferences.agreement import measure_agreement, render_data_card
from trainer.preferences.formats import FORMATS_IN, FORMATS_OUT, ColumnNames, read_preferences, write_preferences
from trainer.preferences.records import Preference
from trainer.preferences.rows import preference_values
from trainer.preferences.store import STORE, PreferenceStore, check_store
from workbench.cli.parser import add
from workbench.labelling.plans import labeller_name, login_name
from workbench.system import output
from workbench.text import aligned, fit_end, moment, number, padded, percent, visible

_PROMPT = 60  # columns of a prompt in the list
_LEFT_OUT = {  # as nouns, with their plurals; else the name itself
    "both_bad": ("pair of bad completions", "pairs of bad completions"),
    "completion between the best and the worst": (
        "completion between the best and the worst",
        "completions between the best and the worst",
    ),
}
_IMPORT = f"{output.PROGRAM} preferences import SOURCE"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands and their options."""
    actions = parser.add_subparsers(required=True, title="commands", metavar="")

    def add_command(name: str, execute: Callable[[argparse.Namespace], int], help_text: str) -> argparse.ArgumentParser:
        command: argparse.ArgumentParser = actions.add_parser(name, help=help_text)
        command.set_defaults(execute=execute)
        command.add_argument("--store", metavar="FILE", help="the store (default: preferences.db, in this folder)")
        return command

    command = add_command("import", import_, "read preferences from a file or a dataset into the store")
    source = "a .jsonl, .jsonl.gz, .json, .csv or .parquet file, the folder of a saved dataset, or a datasets name"
    command.add_argument("source", metavar="SOURCE", help=source)
    formats = "default: from the columns of the first row"
    command.add_argument("--format", choices=("auto", *FORMATS_IN), default="auto", help=formats)
    command.add_argument("--split", default="train", help="split of a dataset (default: %(default)s)")
    command.add_argument(
        "--column",
        dest="columns",
        metavar="ROLE=NAME",
        action="append",
        default=[],
        help="name of a column, as in prompt=question; roles: prompt, chosen, rejected, a, b, choice, strength, "
        "labeller, note; first=0 or first=1: which choice means a",
    )
    command.add_argument("--conversational", action="store_true", help="turn text and transcripts into chat messages")
    command.add_argument("--labeller", metavar="NAME", help="labeller of rows that name none")
    command.add_argument("--skip-broken", action="store_true", help="skip broken rows, and count them")
    command.add_argument("--dry-run", action="store_true", help="read and report, but save nothing")

    add_command("imports", imports, "print the imports, the newest first")
    command = add_command("undo-import", undo_import, "undo all that an import added; the events stay in the store")
    wanted = "its number or its source (default: the newest)"
    command.add_argument("wanted", metavar="IMPORT", nargs="?", default="newest", help=wanted)

    command = add_command("export", export, "write preferences for other trainers, or all of their fields")
    command.add_argument("file", metavar="FILE", help="a .jsonl or .parquet file, or .csv with --format columns")
    keeps = "only k-way keeps every field"
    command.add_argument("--format", choices=tuple(FORMATS_OUT), required=True, help=keeps)
    ties = "keep ties if the format can hold them (default), or drop them"
    command.add_argument("--ties", choices=("keep", "drop"), default="keep", help=ties)
    provenance = "add columns with origins, judgement and the source's other columns"
    command.add_argument("--provenance", action="store_true", help=provenance)
    command.add_argument("--force", action="store_true", help="overwrite FILE")

    add_command("card", card, "print a data card in Markdown: counts, lengths, agreement")
    agreement = "print how far labellers agree with each other and with themselves"
    add(add_command("agreement", agree, agreement), "--json")
    add_command("check", check, "check the store; exit code 3 if it is damaged")
    command = add_command("list", list_, "print the newest preferences")
    add(command, "--limit", default=20, help="number of lines (default: %(default)s)")
    add(command, "--json", help="print every field, one JSON object per line")
    for name in ("export", "card", "list"):
        actions.choices[name].add_argument("--labeller", metavar="NAME", help="only preferences of this labeller")
        actions.choices[name].add_argument("--source", metavar="SOURCE", help="only preferences from this source")


def import_(args: argparse.Namespace) -> int:
    """Import a source into the store, all of it or nothing; a summary goes to stderr."""
    labeller = labeller_name(args.labeller) if args.labeller is not None else ""
    how = {
        "format": args.format,
        "split": args.split,
        "columns": ColumnNames.of(args.columns),
        "skip_broken": args.skip_broken,
        "conversational": args.conversational,
    }
    reading = read_preferences(args.source, **how)
    count = sum(1 for _ in reading)  # checked to its end before any of it is stored; a million fit no memory
    facts = [counted(reading.rows, "row"), f"format {reading.format}"]
    if reading.broken:
        facts.append(f"{counted(reading.broken, 'broken row')} skipped")
    output.note(f"{reading.source}: {', '.join(facts)}")
    more = reading.broken - len(reading.problems)
    for problem in [*reading.problems, *([counted(more, "more broken row")] if more > 0 else [])]:
        output.warning(problem)
    if args.dry_run:
        output.note(f"would import {counted(count, 'preference')}; nothing was saved")
        return 0
    path = _path(args)
    with PreferenceStore(path) as store:
        preferences: Iterable[Preference] = read_preferences(args.source, **how)
        if labeller:
            preferences = (
                one if one.judgement.labeller else replace(one, judgement=replace(one.judgement, labeller=labeller))
                for one in preferences
            )
        added, duplicates = store.add_many(preferences, source=args.source)
    known = f", skipped {counted(duplicates, 'duplicate')}" if duplicates else ""
    output.note(f"imported {counted(added, 'preference')} into '{path}'{known}")
    return 0


def imports(args: argparse.Namespace) -> int:
    """Print the imports with their date, how many preferences each added, and how many of these are undone."""
    with _store(args) as store:
        found = store.imports()
    rows = [(str(one.id), moment(one.time), f"{one.labels:,}", f"{one.undone:,}", visible(one.source)) for one in found]
    output.data("\n".join(aligned([("import", "date", "added", "undone", "source"), *rows], left=(0, 1, 4))))
    return 0


def undo_import(args: argparse.Namespace) -> int:
    """Undo an import: the newest with labels left of those that IMPORT means. Raises UsageError if there is none."""
    with _store(args) as store:
        found = [
            one
            for one in store.imports()
            if one.labels > one.undone and args.wanted in ("newest", str(one.id), one.source, Path(one.source).name)
        ]
        if not found:
            wanted = "import" if args.wanted == "newest" else f"import '{args.wanted}'"
            raise UsageError(
                f"no {wanted} in '{store.path}' has preferences left to undo: "
                f"{output.PROGRAM} preferences imports lists them"
            )
        count = store.undo_import(found[0], login_name())
    output.note(
        f"undid {counted(count, 'preference')} of import {found[0].id} from '{found[0].source}', made "
        f"{moment(found[0].time)}; to have them again, import the source again"
    )
    return 0


def export(args: argparse.Namespace) -> int:
    """Write the preferences to a file and print its path; what was left out goes to stderr."""
    with _store(args) as store:
        written = write_preferences(
            _selected(args, store),
            Path(args.file),
            format=args.format,
            ties=args.ties,
            provenance=args.provenance,
            overwrite=args.force,
        )
    output.data(visible(str(written.path), joined=True))
    counts = [counted(count, *_LEFT_OUT.get(name, (name,))) for name, count in written.left_out.items()]
    left_out = "".join(f", {count} left out" for count in counts)
    output.note(f"{counted(written.rows, 'row')} of {args.format}{left_out}")
    return 0


def card(args: argparse.Namespace) -> int:
    """Print the data card."""
    with _store(args) as store:
        output.data(render_data_card(_selected(args, store)).rstrip())
    return 0


def agree(args: argparse.Namespace) -> int:
    """Print the agreement of labellers, as tables or one JSON object."""
    with _store(args) as store:
        found = measure_agreement(_some(store.preferences(), store.path))
    if args.json:
        values = {"pairs": [plain(pair) | {"interval": plain(pair.kappa.interval)} for pair in found.pairs]}
        output.data(json.dumps(plain(found) | values, allow_nan=False))
    else:
        labellers, units = counted(len(found.labellers), "labeller"), counted(found.units, "common unit")
        output.data(f"Krippendorff's alpha {number(found.alpha)}: {labellers}, {units}")
        pairs = [
            (
                f"{_name(pair.first)}, {_name(pair.second)}",
                str(pair.kappa.n),
                percent(pair.kappa.observed, 1),
                number(pair.kappa.value),
                " to ".join(map(number, pair.kappa.interval)),
            )
            for pair in found.pairs
            if pair.kappa.n
        ]
        selves = [
            (_name(one.labeller), str(one.units), percent(one.observed, 1), number(one.alpha))
            for one in found.selves
            if one.units
        ]
        pair_heads, self_heads = (
            ("labellers", "units", "agree", "kappa", "95% interval"),
            ("with oneself", "units", "agree", "alpha"),
        )
        if pairs:
            output.data("\n".join(["", *aligned([pair_heads, *pairs])]))
        if selves:
            output.data("\n".join(["", *aligned([self_heads, *selves])]))
    if not found.units and not any(one.units for one in found.selves):
        output.note("no agreement: no comparison was judged twice")
    return 0


def check(args: argparse.Namespace) -> int:
    """Print ok, or each problem of the store on stderr; return 3 if there are any."""
    with _store(args) as store:
        problems = check_store(store)
        counts = None if problems else store.counts()  # which may not be readable
    for problem in problems:
        output.error(problem)
    if counts is not None:
        output.data("ok")
        comparisons = counted(counts.comparisons, "comparison")
        output.note(f"{counted(counts.labels, 'preference')} on {comparisons}, {counts.undone} undone")
    return 3 if problems else 0


def list_(args: argparse.Namespace) -> int:
    """Print the newest preferences, the last one first."""
    with _store(args) as store:
        newest = store.newest(args.limit, labeller=args.labeller, source=args.source)
        found = list(_some(iter(newest), store.path, args))
    for preference in found:
        if args.json:
            output.data(json.dumps({"id": preference.id} | preference_values(preference)))
            continue
        judgement, prompt = preference.judgement, preference.comparison.prompt
        text = prompt if isinstance(prompt, str) else prompt[-1]["content"]
        end = fit_end(visible(text[-_PROMPT - 1 :]), _PROMPT)
        choice = judgement.choice or " > ".join(
            "=".join(str(place + 1) for place in group) for group in judgement.ranking
        )
        labeller = padded(visible(judgement.labeller) or "-", 12)
        output.data(f"{preference.id:>6}  {moment(judgement.time):<16}  {choice:<8}  {labeller}  {end}")
    return 0


def _path(args: argparse.Namespace) -> Path:
    return Path(args.store) if args.store else Path.cwd() / STORE


def _store(args: argparse.Namespace) -> PreferenceStore:
    """Open the store. Raises UsageError if there is none."""
    path = _path(args)
    if not may_exist(path):
        raise UsageError(f"no preferences in '{path}': import some with {_IMPORT}")
    return PreferenceStore(path, create=False)


def _selected(args: argparse.Namespace, store: PreferenceStore) -> Iterator[Preference]:
    """Return the preferences that --labeller and --source select, skips included. Raises UsageError without any."""
    found = store.preferences(labeller=args.labeller, source=args.source, with_skips=True)
    return _some(found, store.path, args)


def _some(
    preferences: Iterator[Preference], path: Path, selection: argparse.Namespace | None = None
) -> Iterator[Preference]:
    """Return the preferences. Raises UsageError if there is none. selection: the options that select them."""
    first = next(preferences, None)
    if first is None:
        given = {"--labeller": selection.labeller, "--source": selection.source} if selection else {}
        options = "".join(f" with {name} {value}" for name, value in given.items() if value is not None)
        way_out = "drop that option" if options else f"import some with {_IMPORT}"
        raise UsageError(f"no preferences in '{path}'{options}: {way_out}")
    return chain([first], preferences)


def _name(labeller: str) -> str:
    return visible(labeller, joined=True) or "(no name)"
