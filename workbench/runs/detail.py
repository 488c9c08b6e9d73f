"""Details of one run, beyond its line in the table, as text."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from textual.content import Content

from trainer.runs.listing import RunSummary
from workbench.runs.reader import Detail
from workbench.text import visible

_LONGEST = 500  # characters of a problem, at most


def detail_content(run: RunSummary, detail: Detail | None, left_out: Sequence[tuple[str, str]]) -> Content:
    """Return what the table does not show of a run.

    detail: what was read of the run, None while it is being read. left_out: columns for which the table has no room.
    """
    parts: list[str | Content | tuple[str, str]] = [(visible(run.name), "bold")]
    if run.started is not None:
        parts.append(f"   started {datetime.fromtimestamp(run.started).astimezone():%F %R}")
    if detail is not None:
        if detail.seed is not None:
            parts.append(f"   seed {visible(str(detail.seed)[:20])}")
        count = detail.checkpoints
        words = f"{count} checkpoint{'s' if count > 1 else ''}, newest {detail.newest}" if count else "no checkpoint"
        parts.append(f"   {words}{f', best {detail.best}' if detail.best else ''}")
    if left_out:
        parts.append("\n" + "   ".join(f"{heading} {text}" for heading, text in left_out))
    parts.append((f"\n{visible(str(run.folder.root))}", "$text-muted"))
    problems = [run.problem, *(detail.problems if detail else [])]
    for problem in problems:
        if problem:
            shown = visible(problem[:_LONGEST]) + ("…" if len(problem) > _LONGEST else "")
            parts.append((f"\n✖ {shown}", "$text-error"))
    return Content.assemble(*parts)
