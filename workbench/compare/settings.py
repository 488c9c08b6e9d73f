"""Differences between the configurations of runs, and the changes made while they trained."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rich.cells import cell_len

from trainer.control.live_settings import in_words
from trainer.plurals import counted
from workbench.columns import fit
from workbench.compare.compared_run import ComparedRun, run_columns
from workbench.compare.lines import notes, role_of, wrapped
from workbench.kit.lines import TABLE_GAP, Line, table_line
from workbench.run.config_differences import MOST, Difference, config_differences, difference_rows
from workbench.text import visible

_LONGEST = 1000  # characters of a value, at most
_VALUE_LINES = 4
_CHANGES = 5  # shown of each run
_WHERE = "run.dir"
_CAUTIONS = (
    (("reward.",), "different rewards: the scores are not comparable"),
    (("model.path", "model.revision", "model.adapter"), "different references: the KLs are not comparable"),
    (("data.prompts", "data.column", "data.preferences"), "different prompts"),
)


class Settings(NamedTuple):
    """Settings that differ between runs.

    differences: values by the runs' letters, for settings of every kind of run. only: keys of the others, by kind.
    """

    differences: list[Difference]
    only: dict[str, list[str]]


def compared_settings(runs: Sequence[ComparedRun]) -> Settings:
    """Return the differences between those of `runs` whose config.toml could be read.

    The folder of the runs (`run.dir`) is left out. Settings that only some kinds of run have are listed apart.
    """
    configs = {run.letter: run.config for run in runs if run.config is not None}
    kinds = {run.letter: run.kind for run in runs if run.config is not None}
    differences: list[Difference] = []
    only: dict[str, list[str]] = {}
    for difference in config_differences(configs):
        if difference.key == _WHERE:
            continue
        having = {kinds[letter] for letter, value in difference.values.items() if value is not None}
        if having == {*kinds.values()}:
            differences.append(difference)
        elif difference.key != "kind":
            for kind in sorted(having):
                only.setdefault(kind, []).append(difference.key)
    return Settings(differences, only)


def cautions(settings: Settings) -> list[str]:
    """Return why the numbers of the runs do not measure the same thing; empty if no reason is known."""
    found = []
    for sections, caution in _CAUTIONS:
        keys = [
            key
            for key, values in settings.differences
            if key.startswith(sections) and None not in values.values()  # older runs lack newer settings
        ]
        if keys:
            found.append(f"{caution} ({', '.join(keys)})")
    return found


def setting_lines(runs: Sequence[ComparedRun], settings: Settings, width: int) -> Iterator[Line]:
    """Yield lines of at most `width` columns: a table of short values, the long ones, and changes during training."""
    there = [run for run in runs if run.config is not None]
    rows = difference_rows(settings.differences, _LONGEST)
    if not rows and len(there) > 1:
        yield from notes("no difference in the settings that the runs share", width)
    yield from _rows(there, rows, width)
    if (more := len(settings.differences) - MOST) > 0:
        yield from notes(f"and {counted(more, 'more setting')}", width)
    for kind, keys in settings.only.items():
        sections = dict.fromkeys(key.partition(".")[0] for key in keys)
        named = ", ".join(f"[{section}]" for section in sections)
        yield from notes(visible(f"only in {kind} runs: {counted(len(keys), 'setting')}, in {named}"), width)
    for run in there:
        yield from _changes(run, width)


def _rows(runs: Sequence[ComparedRun], rows: Sequence[tuple[str, list[str]]], width: int) -> Iterator[Line]:
    if not rows:
        return
    keys = min(max(cell_len(key) for key, _ in rows), width // 2)
    room = max((width - keys) // len(runs) - TABLE_GAP, 0)
    short = [row for row in rows if max(map(cell_len, row[1])) <= room]
    if short:
        keys = min(max(cell_len(key) for key, _ in short), keys)
        widest = max(cell_len(text) for _, texts in short for text in texts)
        cells = max(widest, min(max(cell_len(visible(run.name)) for run in runs) + 2, room))
        yield table_line([(" " * keys, "text")], run_columns(runs), cells)
        for key, texts in short:
            yield table_line([(fit(key, keys), "text")], ((text, "text") for text in texts), cells)
    for key, texts in rows:
        if (key, texts) not in short:
            yield [(fit(key, width).rstrip(), "text")]
            for text in dict.fromkeys(texts):
                letters = [run.letter for run, other in zip(runs, texts, strict=True) if other == text]
                yield from _value_lines(letters, text, width)


def _value_lines(letters: Sequence[str], text: str, width: int) -> Iterator[Line]:
    """Yield `text`, already made safe to print, in a few lines after the letters of its runs."""
    head = f"  {' '.join(letters)} "
    for number, line in enumerate(wrapped(text, width - len(head), _VALUE_LINES)):
        yield [(" " * len(head) if number else head, role_of(letters[0])), (line, "text")]


def _changes(run: ComparedRun, width: int) -> Iterator[Line]:
    changes = run.view.settings
    for change in changes[-_CHANGES:]:
        text = f"{change.key} {in_words(change.old)} → {in_words(change.value)} before iteration {change.iteration}"
        yield from _value_lines([run.letter], visible(text[:_LONGEST]), width)
    if (more := len(changes) - _CHANGES) > 0:
        yield [
            (f"  {run.letter} ", role_of(run.letter)),
            (f"and {counted(more, 'earlier change')} during training", "muted"),
        ]
