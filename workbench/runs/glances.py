"""The newest runs of a workspace at a glance: state, curves, and what happened in them since a time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from trainer.plurals import counted
from trainer.runs.listing import RunSummary
from workbench.run.run_listing import Glance, Stamp, glance_at, read_runs, state_sign
from workbench.run.sentences import errors, title
from workbench.text import visible

MOST = 50  # runs whose curves are read, the newest
_NAMED = 3  # runs that the news name, at most


class Workspace(NamedTuple):
    """The runs of a folder, the newest first; those beyond the newest `MOST` without curves."""

    glances: list[Glance]
    problem: str  # why the folder cannot be read; empty if it can
    stamp: Stamp = ()  # of the listing


class GlanceReader:
    """Reader of the runs of a folder. It reads a journal again only if that has changed.

    On several threads at once, it may read one twice.
    """

    def __init__(self) -> None:
        self._known: dict[Path, tuple[object, Glance]] = {}

    def read(self, folder: Path, shown: Workspace | None = None) -> Workspace | None:
        """Return the runs of `folder`; None if nothing has changed since `shown` was read."""
        listing = read_runs(folder, shown.stamp if shown else ())
        if listing is None:
            return None
        runs = sorted(listing.runs, key=lambda run: (run.started or 0.0, run.name), reverse=True)
        found: dict[Path, tuple[object, Glance]] = {}
        for run in runs[:MOST]:
            before = self._known.get(run.folder.root)
            stamp = _journal_stamp(run)
            unchanged = before is not None and before[0] == stamp
            glance = before[1]._replace(run=run) if before and unchanged else glance_at(run)
            found[run.folder.root] = (stamp, glance)
        self._known = found
        glances = [glance for _, glance in found.values()] + [Glance(run) for run in runs[MOST:]]
        return Workspace(glances, listing.problem, listing.stamp)


def _journal_stamp(run: RunSummary) -> object:
    try:
        status = run.folder.events.stat()
    except OSError:
        return run.state
    return run.state, status.st_mtime_ns, status.st_size


def news(glances: Sequence[Glance], labels: int, since: float) -> list[str]:
    """Return what happened since a time, unix seconds: runs that ended, alarms, labels. Safe to print."""
    found = []
    ended = [glance.run for glance in glances if glance.ended is not None and glance.ended > since]
    found += [f"{state_sign(run)} {visible(run.name)} {_end(run)}" for run in ended[:_NAMED]]
    if len(ended) > _NAMED:
        found.append(f"{counted(len(ended) - _NAMED, 'more run')} ended")
    raised = [(glance.run, [code for at, code in glance.alarms if at > since]) for glance in glances]
    alarmed = [(run, codes) for run, codes in raised if codes and (run not in ended or not errors(run.alarms))]
    for run, codes in alarmed[:_NAMED]:
        names = ", ".join(dict.fromkeys(visible(title(code)) for code in reversed(codes)))
        found.append(f"⚠ {visible(run.name)}: {names}")
    if labels:
        found.append(f"{counted(labels, 'label')} added")
    return found


def _end(run: RunSummary) -> str:
    wrong = errors(run.alarms)
    return f"{visible(run.state)} at {run.iteration}/{run.iterations}" + (f", {visible(wrong)}" if wrong else "")


def since_text(since: float, now: float) -> str:
    """Return when the workspace was last open, as the news call it."""
    if now - since < 86_400:
        return f"Since {time.strftime('%H:%M', time.localtime(since))}"
    return f"Since {time.strftime('%d %b', time.localtime(since))}"
