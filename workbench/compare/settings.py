"""Differences between the configurations of runs, and the changes made while they trained."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

from rich.cells import cell_len

from trainer.engine.live_settings import in_words
from trainer.errors import counted
from trainer.files import flat
from workbench.compare.compared_run import RunGroup, columns
from workbench.text import TABLE_GAP, Line, fit, notes, padded, table_line, text_lines, visible

_MOST = 100  # differences that are shown; configurations have fewer settings
_NAME = "run.name"  # differs between any two runs
_LONGEST = 1000  # characters of a value, at most
_VALUE_LINES = 4
_LEAST_WRAPPED = 16  # columns from which a value is wrapped within its column
_CHANGES = 5  # shown of each run
_WHERE = "run.dir"
_SEED = "run.seed"
_CAUTIONS = (
    (("reward.",), "different rewards: the scores are not comparable"),
    (("model.path", "model.revision", "model.adapter"), "different references: the KLs are not comparable"),
    (("data.prompts", "data.column", "data.preferences"), "different prompts"),
)


class Difference(NamedTuple):
    """A setting that differs between runs."""

    key: str  # dotted, such as ppo.kl_coef
    values: dict[str, Any]  # by run; None if the run does not have it, since TOML has no null


def config_differences(configs: Mapping[str, Mapping[str, Any]]) -> list[Difference]:
    """Return the settings that differ between `configs` (run -> its config.toml), in the order of the files.

    Lists are compared as a whole; 1 and 1.0 are the same, 1 and true are not. The runs' names are left out.
    """
    settings = {name: dict(flat(config)) for name, config in configs.items()}
    keys = dict.fromkeys(key for values in settings.values() for key in values)
    differences = []
    for key in keys:
        values = {name: of_run.get(key) for name, of_run in settings.items()}
        if key != _NAME and len(set(map(_canonical, values.values()))) > 1:
            differences.append(Difference(key, values))
    return differences


def _cell(value: Any) -> str:
    """Format a setting almost as in the file, reward sources in words, - for None; or the tuple of those of a group."""
    if value is None:
        return "-"
    if isinstance(value, tuple):
        return " | ".join(map(_cell, value))
    is_sources = isinstance(value, list) and any(isinstance(item, dict) for item in value)
    return in_words(value) if is_sources else json.dumps(value, ensure_ascii=False, default=str)


def _canonical(value: Any) -> str:
    """Return `value` as text that is the same where TOML means the same: for 1 and 1.0, but not for 1 and true."""
    plain = json.dumps(value, default=str)
    return json.dumps(json.loads(plain, parse_float=lambda text: int(n) if (n := float(text)).is_integer() else n))


class ComparedSettings(NamedTuple):
    """Settings that differ.

    between: those that differ between groups, by their letters; a group whose runs differ has a tuple of values.
    within: keys that differ between the runs of a group, by its letter. only: keys that one kind of run has, by kind.
    """

    between: list[Difference]
    within: dict[str, list[str]]
    only: dict[str, list[str]]


def compared_settings(groups: Sequence[RunGroup]) -> ComparedSettings:
    """Return the differences between the runs whose config.toml could be read.

    The folder of the runs is left out, and so are seeds if a group has several. Groups whose runs have the same values
    of a setting, each seed its own, do not differ in it.
    """
    runs = {f"{group.letter} {place}": run for group in groups for place, run in enumerate(group.runs)}
    configs = {name: run.config for name, run in runs.items() if run.config is not None}
    kinds = {runs[name].kind for name in configs}
    ignored = (_WHERE, _SEED) if len(runs) > len(groups) else (_WHERE,)
    settings = ComparedSettings([], {}, {})
    for key, values in config_differences(configs):
        if key in ignored:
            continue
        having = {runs[name].kind for name, value in values.items() if value is not None}
        if having != kinds:
            for kind in sorted(having if key != "kind" else ()):
                settings.only.setdefault(kind, []).append(key)
            continue
        of_groups: dict[str, dict[str, Any]] = {}
        for name, value in values.items():
            of_groups.setdefault(name[0], {}).setdefault(_canonical(value), value)
        for letter, found in of_groups.items():
            if len(found) > 1:
                settings.within.setdefault(letter, []).append(key)
        if len({frozenset(found) for found in of_groups.values()}) > 1:
            shown = {letter: (*found.values(),) for letter, found in of_groups.items()}
            settings.between.append(Difference(key, {k: v if len(v) > 1 else v[0] for k, v in shown.items()}))
    return settings


def cautions(differences: Sequence[Difference]) -> list[str]:
    """Return why the numbers of the runs do not measure the same thing; empty if no reason is known."""
    found = []
    for sections, caution in _CAUTIONS:
        keys = [
            key
            for key, values in differences
            if key.startswith(sections) and None not in values.values()  # older runs lack newer settings
        ]
        if keys:
            found.append(f"{caution} ({', '.join(keys)})")
    return found


def setting_lines(groups: Sequence[RunGroup], settings: ComparedSettings, width: int) -> Iterator[Line]:
    """Yield lines of at most `width` columns: a table of short values, the long ones, and changes during training."""
    there = [group for group in groups if any(run.config is not None for run in group.runs)]
    if not settings.between and len(there) > 1:
        yield from notes("No shared setting differs", width)
    yield from _difference_lines(there, settings.between, width)
    for kind, keys in settings.only.items():
        sections = dict.fromkeys(key.partition(".")[0] for key in keys)
        named = ", ".join(f"[{section}]" for section in sections)
        yield from notes(visible(f"only in {kind} runs: {counted(len(keys), 'setting')}, in {named}"), width)
    for group in groups:
        for run in group.runs:
            name = f"{visible(run.name)}: " if len(group.runs) > 1 else ""
            changes = [
                f"{change.key} {in_words(change.old)} → {in_words(change.value)} before iteration {change.iteration}"
                for change in run.view.settings[-_CHANGES:]
            ]
            if (more := len(run.view.settings) - _CHANGES) > 0:
                changes.append(f"and {counted(more, 'earlier change')} during training")
            for text in changes:
                yield from _value_lines([group], name + visible(text[:_LONGEST]), width)


def _difference_lines(groups: Sequence[RunGroup], differences: Sequence[Difference], width: int) -> Iterator[Line]:
    """Yield a table with a column for each group, then the values that are too long for it, after their letters.

    groups: those that `differences` have values of, in order.
    """
    rows = [
        (visible(key[:_LONGEST]), [visible(_cell(value)[:_LONGEST]) for value in values.values()])
        for key, values in differences[:_MOST]
    ]
    if not rows:
        return
    keys = min(max(cell_len(key) for key, _ in rows), width // 2)
    room = max((width - keys) // len(groups) - TABLE_GAP, 1)
    lines = 1 if room < _LEAST_WRAPPED else _VALUE_LINES
    if short := [row for row in rows if max(len(text_lines(text, room)) for text in row[1]) <= lines]:
        headings = columns(groups)
        keys = min(max(cell_len(key) for key, _ in short), keys)
        widest = min(max(cell_len(text) for _, texts in short for text in texts), room)
        cells = max(widest, min(max(cell_len(name) for name, _ in headings), room))
        yield table_line([(padded("setting", keys), "muted")], headings, cells)
        for key, texts in short:
            wrapped = zip_longest(*(text_lines(text, cells) for text in texts), fillvalue="")
            for place, parts in enumerate(wrapped):
                yield table_line([(fit("" if place else key, keys), "text")], ((part, "text") for part in parts), cells)
    for key, texts in rows:
        if (key, texts) not in short:
            yield [(fit(key, width).rstrip(), "text")]
            for text in dict.fromkeys(texts):
                having = [group for group, other in zip(groups, texts, strict=True) if other == text]
                yield from _value_lines(having, text, width)
    if (more := len(differences) - _MOST) > 0:
        yield from notes(f"and {counted(more, 'more setting')}", width)


def _value_lines(groups: Sequence[RunGroup], text: str, width: int) -> Iterator[Line]:
    """Yield `text`, already made safe to print, in a few lines after the letters of its groups."""
    head = " ".join(["", *(group.letter for group in groups)])
    head = f" {fit(head, min(cell_len(head), width // 2))} "
    for number, line in enumerate(text_lines(text, width - cell_len(head), _VALUE_LINES)):
        yield [(" " * cell_len(head) if number else head, groups[0].role), (line, "text")]
