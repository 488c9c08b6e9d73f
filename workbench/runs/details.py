"""Details of the selected run, the differences of marked ones, their picture, and their report as a file."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import NamedTuple

from rich.cells import cell_len
from textual.content import Content

from trainer.errors import StorageError, counted
from trainer.runs.checkpoint_files import best_checkpoint, checkpoints
from trainer.runs.folder import RunFolder, read_config
from trainer.runs.listing import RunSummary
from workbench.compare.compared_run import LETTERS, RunGroup, mean_of, read_runs, short_names
from workbench.compare.frontier import Curve, Point, evaluation_points, means, plot
from workbench.compare.report import report_lines
from workbench.compare.settings import cautions, compared_settings, setting_lines
from workbench.kit.drawing import OVERLAYS
from workbench.kit.saving import write_lines
from workbench.run.run_listing import Glance
from workbench.run.sentences import branched, errors
from workbench.text import Line, fit_start, moment, plain, visible

_LONGEST_PROBLEM = 500  # characters, at most
_LONGEST = 200  # characters of the origin, at most
_LEAST_PLOT = 20, 6  # columns and lines
_REPORT = 120  # columns of the report
_STYLES = {"text": "", "strong": "bold"} | {f"run-{letter}": f"$chart-{n}" for n, letter in enumerate("ABCDE", 2)}
"""Styles of the roles, as in the picture beside; else muted."""


def score_against_kl(glances: Sequence[Glance], width: int, height: int) -> list[Line]:
    """Return the score of runs against their KL below their names; nothing where there is no room or no point."""
    curves, names = [], short_names([visible(glance.run.name) for glance in glances[:OVERLAYS]])
    for place, (glance, letter, name) in enumerate(zip(glances[:OVERLAYS], LETTERS, names, strict=False), 1):
        points = list(map(Point, count(glance.first), glance.kls, glance.scores))
        batches = means(points, mean_of(len(points)))
        held_out = evaluation_points(glance.evaluations)
        curves.append(Curve(f"{letter} {name}", batches, held_out, letter.lower(), letter, f"run-{place}", not batches))
    if not any(curve.compared for curve in curves) or height < _LEAST_PLOT[1] or width < _LEAST_PLOT[0]:
        return []
    line: Line = [("score against KL, nats  ", "muted")]
    room = max((width - len(plain(line))) // len(curves) - 2, 1)
    line += [(f"{fit_start(curve.name, room)}  ", curve.role) for curve in curves]
    line.append((fit_start("top left is better", width - cell_len(plain(line))), "muted"))
    alone = curves[0].compared[-1] if len(curves) == 1 else None  # has iterations beside its points
    return [line, *plot(curves, width, height - 1, cursor=alone)]


class Detail(NamedTuple):
    """Details of one run for which the table has no room. text: safe to print. problems: of its checkpoints."""

    folder: RunFolder
    text: str
    problems: list[str]


def read_detail(folder: RunFolder) -> Detail:
    """Read the seed and the checkpoints of a run; a configuration that cannot be read has no seed."""
    found = []
    with contextlib.suppress(StorageError):  # the listing reports it
        section = read_config(folder).get("run")
        if isinstance(section, dict) and "seed" in section:
            found.append(f"seed {visible(str(section['seed'])[:20])}")
    whole, problems = checkpoints(folder)
    saved = f"{counted(len(whole), 'checkpoint')}, newest {whole[-1].name}" if whole else "no checkpoint"
    best = best_checkpoint(folder)
    return Detail(folder, "   ".join([*found, f"{saved}, best {best.name}" if best else saved]), [*problems.values()])


def detail_content(run: RunSummary, detail: Detail | None, left_out: Sequence[tuple[str, str]]) -> Content:
    """Return what the table does not show of a run.

    detail: what was read of the run, None while it is being read. left_out: columns for which the table has no room.
    """
    parts: list[str | Content | tuple[str, str]] = [(visible(run.name), "bold")]
    if run.started is not None:
        parts.append(f"   started {moment(run.started)}")
    if detail is not None:
        parts.append(f"   {detail.text}")
    if run.branched_from is not None:
        parts.append(f"\n{visible(branched(run.branched_from)[:_LONGEST])}")
    if known := [f"{heading} {text}" for heading, text in left_out if text.strip()]:
        parts.append("\n" + "   ".join(known))
    parts.append((f"\n{visible(str(run.folder.root))}", "$text-muted"))
    problems = [run.problem, *(detail.problems if detail else [])]
    parts += [(f"\n✖ {visible(problem[:_LONGEST_PROBLEM])}", "$text-error") for problem in problems if problem]
    if run.state == "done" and (wrong := errors(run.alarms)):
        parts.append((f"\n⚠ {visible(wrong)} when it ended", "$text-warning"))
    return Content.assemble(*parts)


def differences_content(groups: Sequence[RunGroup], width: int) -> Content:
    """Return how the configurations of runs differ, problems and warnings first."""
    settings = compared_settings(groups)
    problems = [problem for group in groups for problem in group.runs[0].problems]
    lines = [Content.styled(f"✖ {visible(problem)}", "$text-error") for problem in problems]
    lines += [Content.styled(f"! {visible(caution)}", "$text-warning") for caution in cautions(settings.between)]
    for line in setting_lines(groups, settings, width):
        lines.append(Content.assemble(*((text, _STYLES.get(role, "$text-muted")) for text, role in line)).rstrip())
    return Content("\n").join(lines)


def write_comparison(folders: Sequence[RunFolder], path: Path) -> Path:
    """Write the report of `ppo-workbench compare` on two or more runs to a new file; return its path.

    Raises StorageError if there is nothing to compare or the file cannot be written.
    """
    if len(folders) > len(LETTERS):
        raise StorageError(f"{len(folders)} runs are too many to compare at once: mark at most {len(LETTERS)}")
    groups = read_runs(folders)
    runs = [run for group in groups for run in group.runs]
    if not any(run.view.started or run.view.history for run in runs):
        raise StorageError("the journals of these runs are still empty: compare them later")
    names = ", ".join(visible(one.name).replace("`", "'") for one in runs)
    report = "\n".join(plain(line).rstrip() for line in report_lines(groups, _REPORT))
    problems = [
        f"- {group.letter} {visible(one.name)}: {visible(problem)}"
        for group in groups
        for one in group.runs
        for problem in one.problems
    ]
    # A fence longer than any run of backquotes in a response, so that no response ends it.
    fence = "`" * (3 + max(map(len, re.findall("`+", report)), default=0))
    parts = [f"# {names}", f"{fence}text\n{report}\n{fence}", "\n".join(problems)]
    write_lines(path, ["\n\n".join(filter(None, parts))])
    return path
