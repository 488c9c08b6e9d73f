"""Comparison as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.cells import cell_len

from trainer.runs.listing import RECENT
from workbench.compare.curves import curve_lines
from workbench.compare.frontier import Frontier, best, frontier, levels
from workbench.compare.lines import Line, notes, number, padded, role_of, rule
from workbench.compare.measures import difference_text, sections, signed, value_text
from workbench.compare.plot import SEVERAL, Mark, scatter
from workbench.compare.run import ComparedRun
from workbench.compare.same_prompts import SharedPrompt, prompt_lines, shared_prompts
from workbench.compare.settings import cautions, compared_settings, setting_lines
from workbench.compare.table import Column, Row, table
from workbench.kit.cells import fit
from workbench.text import duration, visible

PROMPTS = 3
_LABEL = 24  # columns of a number's name
_KIND = 12
_TIME = 8
_LEAST = 4  # columns of a name
_PLOT_LINES = 18
_PLOT_WIDTH = 110  # columns at most: a wider one is no clearer


def report(runs: Sequence[ComparedRun], width: int) -> Iterator[Line]:
    """Yield lines of at most `width` columns (60 or more): runs, numbers, frontier, curves, settings and responses."""
    settings = compared_settings(runs)
    yield from _runs(runs, width)
    for caution in cautions(settings):
        yield from notes(visible(f"! {caution}"), width)
    yield []
    yield from _numbers(runs, width)
    yield []
    yield from _frontier(runs, frontier(runs), width)
    yield []
    yield rule("curves", width, "on one scale; at the right the means of the first and the last five")
    yield from curve_lines(runs, width)
    yield []
    yield rule("settings", width, "that differ, by config.toml")
    yield from setting_lines(runs, settings, width)
    yield []
    yield rule("the same prompts", width, "each run's newest answer")
    yield from _texts(runs, shared_prompts([run.samples for run in runs], PROMPTS), width)


def _runs(runs: Sequence[ComparedRun], width: int) -> Iterator[Line]:
    yield rule("runs", width)
    rows = [_facts(run) for run in runs]
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    room = width - 3 - sum(widths) - 2 * len(widths)
    names = max(min(max(cell_len(visible(run.name)) for run in runs), room), _LEAST)
    for run, row in zip(runs, rows, strict=True):
        cells = "".join(f"  {padded(cell, size)}" for cell, size in zip(row, widths, strict=True))
        model = visible(run.view.started.model) if run.view.started else ""
        told = f"  {fit(model, room - names - 2).rstrip()}" if room - names - 2 >= _LEAST else ""
        yield [(f" {run.letter} {fit(visible(run.name), names)}", role_of(run.letter)), (cells + told, "text")]


def _facts(run: ComparedRun) -> tuple[str, ...]:
    view = run.view
    state = visible(f"{run.state}, damaged" if run.problems else run.state)
    time = fit(duration(sum(run.column("seconds_total"))), _TIME).rstrip() if view.history else "-"
    return fit(visible(run.kind), _KIND).rstrip(), state, f"{view.iteration}/{view.total}", time


def _numbers(runs: Sequence[ComparedRun], width: int) -> Iterator[Line]:
    yield rule("numbers", width, f"means of iterations: the last {RECENT}, the best {_windows(runs)}")
    rows = []
    for section in sections(runs):
        found = []
        for measure in section.measures:
            values = [measure.of(run) for run in runs]
            cells = [value_text(measure, value) for value in values]
            if any(cell != "-" for cell in cells):
                if len(runs) == 2:
                    cells.append(difference_text(measure, *values))
                found.append(Row(f"  {fit(visible(measure.label), _LABEL).rstrip()}", measure.unit, cells))
        if found:
            rows += [Row(section.title), *found]
    yield from table(_columns(runs), rows, width)


def _frontier(runs: Sequence[ComparedRun], found: Frontier, width: int) -> Iterator[Line]:
    yield rule("score against KL", width, "up and to the left is better")
    if not found:
        yield from notes("no run has both a score and a KL in nats a sequence", width)
        return
    yield from scatter(_marks(runs, found), min(width, _PLOT_WIDTH), _PLOT_LINES)
    yield from notes(_legend(runs, found), width)
    if kls := levels(point for points in found.compared for point in points):
        yield []
        yield from notes(_compared_by(runs, found), width)
        yield from table(_columns(runs), [_level_row(found, kl) for kl in kls], width)


def _marks(runs: Sequence[ComparedRun], found: Frontier) -> list[Mark]:
    """Return the marks of all runs, evaluations last so that they stay visible."""
    small = [
        Mark(point.kl, point.score, run.letter, run.letter.lower())
        for run, points in zip(runs, found.training, strict=True)
        for point in points
    ]
    return small + [
        Mark(point.kl, point.score, run.letter, run.letter)
        for run, points in zip(runs, found.evaluations, strict=True)
        for point in points
    ]


def _legend(runs: Sequence[ComparedRun], found: Frontier) -> str:
    told = ["KL to the right, nats a sequence"]
    if any(found.training):
        size = _windows([run for run, points in zip(runs, found.training, strict=True) if points])
        told.append(f"small letters: training batches, each point the mean of {size} iterations")
    if any(found.evaluations):
        told.append("capitals: held-out prompts")
    told.append(f"{SEVERAL}: several runs")
    return "; ".join(told)


def _compared_by(runs: Sequence[ComparedRun], found: Frontier) -> str:
    """Return the line above the table of KLs: which scores it compares."""
    on_held_out = [run.letter for run, held_out in zip(runs, found.held_out, strict=True) if held_out]
    if not on_held_out:
        return "best score of the training batches at a KL of at most"
    if all(held_out or not points for held_out, points in zip(found.held_out, found.compared, strict=True)):
        return "best score on held-out prompts at a KL of at most"
    return f"best score of the training batches, of {', '.join(on_held_out)} on held-out prompts, at a KL of at most"


def _windows(runs: Sequence[ComparedRun]) -> str:
    windows = sorted({run.window for run in runs})
    return str(windows[0]) if len(windows) == 1 else f"{windows[0]} to {windows[-1]}"


def _level_row(found: Frontier, kl: float) -> Row:
    reached = [best(points, kl) for points in found.compared]
    cells = ["-" if point is None else number(point.score, 3) for point in reached]
    if len(reached) == 2:
        first, second = reached
        cells.append(signed(number(second.score - first.score, 3)) if first and second else "")
    return Row(f"  {kl:g}", "nats/seq", cells)


def _texts(runs: Sequence[ComparedRun], shared: Sequence[SharedPrompt], width: int) -> Iterator[Line]:
    without = [run.letter for run in runs if not run.samples]
    if without:
        yield from notes(f"no samples of {', '.join(without)} are kept", width)
    if not shared and len(runs) - len(without) > 1:
        yield from notes("no prompt was answered by two of the runs in their newest samples", width)
    for place, one in enumerate(shared):
        if place:
            yield []
        yield from prompt_lines(runs, one, width)


def _columns(runs: Sequence[ComparedRun]) -> list[Column]:
    columns = [Column(f"{run.letter} {visible(run.name)}", role_of(run.letter)) for run in runs]
    return [*columns, Column("B - A", "muted")] if len(runs) == 2 else columns
