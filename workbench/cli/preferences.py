"""`ppo-workbench preferences`: import, export, card, agreement, check, list."""

from __future__ import annotations

import argparse
import json
from collections import deque
from collections.abc import Iterator
from dataclasses import fields, replace
from datetime import datetime
from itertools import chain
from pathlib import Path

from trainer.errors import UsageError
from trainer.preferences.agreement import agreement
from trainer.preferences.data_card import data_card
from trainer.preferences.formats.k_way import k_way_row
from trainer.preferences.formats_in import ColumnNames, Reading, read_preferences
from trainer.preferences.formats_out import write_preferences
from trainer.preferences.records import Preference, Text
from trainer.preferences.store import PreferenceStore, default_store
from workbench.cli.agreement_tables import plain, tables
from workbench.kit.cells import fit_end
from workbench.system import output
from workbench.text import visible

_PROMPT = 60  # columns of a prompt in the list


def import_(args: argparse.Namespace) -> int:
    """Import a source into the store, all of it or nothing; a summary goes to stderr."""
    reading = read_preferences(
        args.source,
        format=args.format,
        split=args.split,
        columns=_columns(args.columns),
        skip_broken=args.skip_broken,
        conversational=args.conversational,
    )
    preferences = [_labelled(preference, args.labeller) for preference in reading]
    _tell(reading)
    if args.dry_run:
        output.note(f"would import {len(preferences)} preferences: nothing is kept")
        return 0
    path = _path(args)
    with PreferenceStore(path) as store:
        added = store.add_many(preferences, source=args.source)
    known = f", {added.duplicates} were there already" if added.duplicates else ""
    output.note(f"imported {added.count} preferences into '{path}'{known}")
    return 0


def export(args: argparse.Namespace) -> int:
    """Write the preferences to a file and print its path; what was left out goes to stderr."""
    with _store(args) as store:
        written = write_preferences(
            _chosen(args, store, with_skips=True),
            Path(args.file),
            format=args.format,
            ties=args.ties,
            provenance=args.provenance,
            overwrite=args.force,
        )
    output.data(visible(str(written.path)))
    left_out = "".join(f", {count} {reason} left out" for reason, count in written.left_out.items())
    output.note(f"{written.rows} rows of {args.format}{left_out}")
    return 0


def card(args: argparse.Namespace) -> int:
    """Print the data card."""
    with _store(args) as store:
        output.data(data_card(_chosen(args, store, with_skips=True)).rstrip())
    return 0


def agree(args: argparse.Namespace) -> int:
    """Print the agreement of labellers, as tables or one JSON object."""
    with _store(args) as store:
        found = agreement(_some(store.preferences(), store.path))
    output.data(json.dumps(plain(found), allow_nan=False) if args.json else "\n".join(tables(found)))
    if not found.units and not any(one.units for one in found.selves):
        output.note("no comparison was judged twice, so there is nothing to compare")
    return 0


def check(args: argparse.Namespace) -> int:
    """Print ok, or each problem of the store on stderr; return 3 if there are any."""
    with _store(args) as store:
        problems = store.check()
        counts = store.counts()
    for problem in problems:
        output.error(problem)
    if not problems:
        output.data("ok")
        output.note(f"{counts.labels} preferences on {counts.comparisons} comparisons, {counts.undone} undone")
    return 3 if problems else 0


def list_(args: argparse.Namespace) -> int:
    """Print the newest preferences, the last one first."""
    if args.limit < 1:
        raise UsageError(f"--limit {args.limit}: give a number from 1 on")
    with _store(args) as store:
        newest = deque(_chosen(args, store, with_skips=True), maxlen=args.limit)
    for preference in reversed(newest):
        output.data(json.dumps({"id": preference.id} | k_way_row(preference)) if args.json else _line(preference))
    return 0


def _columns(assignments: list[str]) -> ColumnNames:
    """Return the column names that --column gives. Raises UsageError."""
    roles = [field.name for field in fields(ColumnNames)]
    given: dict[str, str] = {}
    for assignment in assignments:
        role, equals, name = assignment.partition("=")
        if role not in roles or not equals or not name:
            raise UsageError(f"--column {assignment}: must be ROLE=NAME with one of {', '.join(roles)}")
        given[role] = name
    return ColumnNames(**given)


def _labelled(preference: Preference, labeller: str | None) -> Preference:
    if not labeller or preference.judgement.labeller:
        return preference
    return replace(preference, judgement=replace(preference.judgement, labeller=labeller))


def _tell(reading: Reading) -> None:
    facts = [f"{reading.rows} rows", f"format {reading.format}"]
    if reading.duplicates:
        facts.append(f"{reading.duplicates} say what an earlier one says")
    if reading.broken:
        facts.append(f"{reading.broken} broken and left out")
    output.note(f"{reading.source}: {', '.join(facts)}")
    for problem in reading.problems:
        output.warning(problem)
    if reading.broken > len(reading.problems):
        output.warning(f"{reading.broken - len(reading.problems)} more broken rows")


def _path(args: argparse.Namespace) -> Path:
    return Path(args.store) if args.store else default_store(Path.cwd())


def _store(args: argparse.Namespace) -> PreferenceStore:
    """Open the store. Raises UsageError if there is none."""
    path = _path(args)
    if not path.exists():
        raise UsageError(f"no preferences in '{path}': import some with ppo-workbench preferences import SOURCE")
    return PreferenceStore(path, create=False)


def _chosen(args: argparse.Namespace, store: PreferenceStore, *, with_skips: bool) -> Iterator[Preference]:
    """Return the preferences that --labeller and --source select. Raises UsageError if there are none."""
    found = store.preferences(labeller=args.labeller, source=args.source, with_skips=with_skips)
    asked = {"--labeller": args.labeller, "--source": args.source}
    told = "".join(f" with {option} {value}" for option, value in asked.items() if value is not None)
    return _some(found, store.path, told)


def _some(preferences: Iterator[Preference], path: Path, told: str = "") -> Iterator[Preference]:
    first = next(preferences, None)
    if first is None:
        way_out = "leave that out" if told else "import some with ppo-workbench preferences import SOURCE"
        raise UsageError(f"no preferences in '{path}'{told}: {way_out}")
    return chain([first], preferences)


def _line(preference: Preference) -> str:
    """Return one line for a preference: id, time, choice, labeller, and the end of the prompt."""
    judgement = preference.judgement
    day = "-" if judgement.time is None else f"{datetime.fromtimestamp(judgement.time).astimezone():%F %R}"
    prompt = fit_end(visible(_text(preference.comparison.prompt)[-_PROMPT - 1 :]), _PROMPT)
    choice = judgement.choice or " > ".join("=".join(str(place + 1) for place in group) for group in judgement.ranking)
    return f"{preference.id:>6}  {day:<16}  {choice:<8}  {visible(judgement.labeller) or '-':<12}  {prompt}"


def _text(text: Text) -> str:
    return text if isinstance(text, str) else text[-1]["content"]


ACTIONS = {"import": import_, "export": export, "card": card, "agreement": agree, "check": check, "list": list_}
