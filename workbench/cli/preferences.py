"""`ppo-workbench preferences`: import, imports, undo-import, export, card, agreement, check, list."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from trainer.errors import UsageError
from trainer.events import plain
from trainer.files import may_exist
from trainer.plurals import counted
from trainer.preferences.agreement import Agreement, measure_agreement, render_data_card
from trainer.preferences.formats import (
    FORMATS_IN,
    FORMATS_OUT,
    ColumnNames,
    Reading,
    read_preferences,
    write_preferences,
)
from trainer.preferences.records import Preference
from trainer.preferences.rows import preference_values
from trainer.preferences.store import PreferenceStore, check_store, default_store
from workbench.cli.parser import add
from workbench.labelling.plans import labeller_name, login_name
from workbench.numbers import moment, number, percent
from workbench.system import output
from workbench.text import aligned, fit_end, padded, visible

_PROMPT = 60  # columns of a prompt in the list
_IMPORT = f"{output.PROGRAM} preferences import SOURCE"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands and their options."""
    actions = parser.add_subparsers(required=True, title="commands", metavar="")
    _add_import(actions)
    command = actions.add_parser("imports", help="print the imports, the newest first")
    command.set_defaults(execute=imports)
    command = actions.add_parser("undo-import", help="undo all that an import added; the events stay in the store")
    command.set_defaults(execute=undo_import)
    command.add_argument(
        "wanted", metavar="IMPORT", nargs="?", default="newest", help="its number or its source (default: the newest)"
    )
    _add_export(actions)
    command = actions.add_parser("card", help="print a data card in Markdown: counts, lengths, agreement")
    command.set_defaults(execute=card)
    _add_selection(command)
    command = actions.add_parser("agreement", help="print how far labellers agree with each other and with themselves")
    command.set_defaults(execute=agree)
    add(command, "--json")
    command = actions.add_parser("check", help="check the store; exit code 3 if it is damaged")
    command.set_defaults(execute=check)
    command = actions.add_parser("list", help="print the newest preferences")
    command.set_defaults(execute=list_)
    _add_selection(command)
    add(command, "--limit", default=20, help="number of lines (default: %(default)s)")
    add(command, "--json", help="print every field, one JSON object per line")
    for command in actions.choices.values():
        command.add_argument("--store", metavar="FILE", help="the store (default: preferences.db, in this folder)")


def _add_import(actions: Any) -> None:
    command = actions.add_parser("import", help="read preferences from a file or a dataset into the store")
    command.set_defaults(execute=import_)
    command.add_argument(
        "source",
        metavar="SOURCE",
        help="a .jsonl, .jsonl.gz, .json, .csv or .parquet file, the folder of a saved dataset, or a datasets name",
    )
    command.add_argument(
        "--format", choices=("auto", *FORMATS_IN), default="auto", help="default: from the columns of the first row"
    )
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


def _add_export(actions: Any) -> None:
    command = actions.add_parser("export", help="write preferences for other trainers, or all of their fields")
    command.set_defaults(execute=export)
    command.add_argument("file", metavar="FILE", help="a .jsonl or .parquet file, or .csv with --format columns")
    command.add_argument("--format", choices=tuple(FORMATS_OUT), required=True, help="only k-way keeps every field")
    command.add_argument(
        "--ties",
        choices=("keep", "drop"),
        default="keep",
        help="keep ties if the format can hold them (default), or drop them",
    )
    command.add_argument(
        "--provenance", action="store_true", help="add columns with origins, judgement and the source's other columns"
    )
    _add_selection(command)
    command.add_argument("--force", action="store_true", help="overwrite FILE")


def _add_selection(command: argparse.ArgumentParser) -> None:
    command.add_argument("--labeller", metavar="NAME", help="only preferences of this labeller")
    command.add_argument("--source", metavar="SOURCE", help="only preferences imported from this source")


def import_(args: argparse.Namespace) -> int:
    """Import a source into the store, all of it or nothing; a summary goes to stderr."""
    labeller = labeller_name(args.labeller) if args.labeller is not None else ""
    reading = _read(args)
    count = sum(1 for _ in reading)  # checked to its end before any of it is stored; a million fit no memory
    _report(reading)
    if args.dry_run:
        output.note(f"would import {counted(count, 'preference')}; nothing was saved")
        return 0
    path = _path(args)
    with PreferenceStore(path) as store:
        added = store.add_many((_labelled(one, labeller) for one in _read(args)), source=args.source)
    known = f", skipped {counted(added.duplicates, 'duplicate')}" if added.duplicates else ""
    output.note(f"imported {counted(added.count, 'preference')} into '{path}'{known}")
    return 0


def _read(args: argparse.Namespace) -> Reading:
    return read_preferences(
        args.source,
        format=args.format,
        split=args.split,
        columns=ColumnNames.of(args.columns),
        skip_broken=args.skip_broken,
        conversational=args.conversational,
    )


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
    left_out = "".join(f", {counted(count, *_reason(name))} left out" for name, count in written.left_out.items())
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
        output.data(json.dumps(plain(_agreement_values(found)), allow_nan=False))
    else:
        output.data("\n".join(_agreement_lines(found)))
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
        found = list(_some(iter(newest), store.path, _selection(args)))
    for preference in found:
        output.data(
            json.dumps({"id": preference.id} | preference_values(preference)) if args.json else _line(preference)
        )
    return 0


def _reason(name: str) -> tuple[str, ...]:
    """Return what was left out as a noun, with its plural if that is irregular."""
    if name == "both_bad":
        return "pair of bad completions", "pairs of bad completions"
    return (name, name.replace("completion", "completions")) if name.startswith("completion") else (name,)


def _labelled(preference: Preference, labeller: str) -> Preference:
    if not labeller or preference.judgement.labeller:
        return preference
    return replace(preference, judgement=replace(preference.judgement, labeller=labeller))


def _report(reading: Reading) -> None:
    facts = [counted(reading.rows, "row"), f"format {reading.format}"]
    if reading.duplicates:
        facts.append(counted(reading.duplicates, "duplicate"))
    if reading.broken:
        facts.append(f"{counted(reading.broken, 'broken row')} skipped")
    output.note(f"{reading.source}: {', '.join(facts)}")
    for problem in reading.problems:
        output.warning(problem)
    if reading.broken > len(reading.problems):
        output.warning(counted(reading.broken - len(reading.problems), "more broken row"))


def _path(args: argparse.Namespace) -> Path:
    return Path(args.store) if args.store else default_store(Path.cwd())


def _store(args: argparse.Namespace) -> PreferenceStore:
    """Open the store. Raises UsageError if there is none."""
    path = _path(args)
    if not may_exist(path):
        raise UsageError(f"no preferences in '{path}': import some with {_IMPORT}")
    return PreferenceStore(path, create=False)


def _selected(args: argparse.Namespace, store: PreferenceStore) -> Iterator[Preference]:
    """Return the preferences that --labeller and --source select, skips included. Raises UsageError without any."""
    found = store.preferences(labeller=args.labeller, source=args.source, with_skips=True)
    return _some(found, store.path, _selection(args))


def _selection(args: argparse.Namespace) -> str:
    """Return the options that select preferences, as words for an error; empty without any."""
    options = {"--labeller": args.labeller, "--source": args.source}
    return "".join(f" with {name} {value}" for name, value in options.items() if value is not None)


def _some(preferences: Iterator[Preference], path: Path, selection: str = "") -> Iterator[Preference]:
    first = next(preferences, None)
    if first is None:
        way_out = "drop that option" if selection else f"import some with {_IMPORT}"
        raise UsageError(f"no preferences in '{path}'{selection}: {way_out}")
    return chain([first], preferences)


def _line(preference: Preference) -> str:
    """Return one line for a preference: id, time, choice, labeller, and the end of the prompt."""
    judgement = preference.judgement
    day, prompt = moment(judgement.time), preference.comparison.prompt
    text = prompt if isinstance(prompt, str) else prompt[-1]["content"]
    end = fit_end(visible(text[-_PROMPT - 1 :]), _PROMPT)
    choice = judgement.choice or " > ".join("=".join(str(place + 1) for place in group) for group in judgement.ranking)
    labeller = padded(visible(judgement.labeller) or "-", 12)
    return f"{preference.id:>6}  {day:<16}  {choice:<8}  {labeller}  {end}"


def _agreement_lines(found: Agreement) -> Iterator[str]:
    """Yield lines: overall alpha, then a table of the pairs of labellers and one of the repeats, if there are any."""
    labellers, units = counted(len(found.labellers), "labeller"), counted(found.units, "common unit")
    yield f"Krippendorff's alpha {number(found.alpha)}: {labellers}, {units}"
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
    if pairs:
        yield ""
        yield from aligned([("labellers", "units", "agree", "kappa", "95% interval"), *pairs])
    selves = [
        (_name(one.labeller), str(one.units), percent(one.observed, 1), number(one.alpha))
        for one in found.selves
        if one.units
    ]
    if selves:
        yield ""
        yield from aligned([("with oneself", "units", "agree", "alpha"), *selves])


def _agreement_values(found: Agreement) -> dict[str, Any]:
    return {
        "labellers": found.labellers,
        "units": found.units,
        "alpha": found.alpha,
        "pairs": [
            {
                "first": pair.first,
                "second": pair.second,
                "units": pair.kappa.n,
                "observed": pair.kappa.observed,
                "kappa": pair.kappa.value,
                "standard_error": pair.kappa.standard_error,
                "interval": pair.kappa.interval,
            }
            for pair in found.pairs
        ],
        "selves": [
            {"labeller": one.labeller, "units": one.units, "observed": one.observed, "alpha": one.alpha}
            for one in found.selves
        ],
    }


def _name(labeller: str) -> str:
    return visible(labeller, joined=True) or "(no name)"
