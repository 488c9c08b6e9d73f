"""How often people prefer the policy to its reference, and how a run, under way or ended, is told of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

from trainer.control import inbox
from trainer.errors import UsageError
from trainer.events import HumanEvaluation
from trainer.preferences.records import Preference
from trainer.preferences.reliability import wilson_interval
from trainer.runs.folder import RunFolder
from trainer.runs.journal import Journal


def human_evaluation(
    preferences: Iterable[Preference], run: str, iteration: int | None = None
) -> HumanEvaluation | None:
    """What `preferences` say of the policy of `run` against its reference; None where they compare the two nowhere.

    Pairs count of which both completions are of `run`, one written by the policy, after whichever iteration, and one by
    the reference. Both bad is a tie, a skip says nothing. Of each labeller the last word on a pair counts; judgements
    of one pair by several people count as independent. The interval takes a tie for half a success, which makes it
    wider than it need be, never narrower. iteration: that the event is of; None for that of the newest policy judged.
    """
    found: dict[tuple[str, str], tuple[float, int]] = {}  # by labeller and pair: what the policy got, its iteration
    for preference in preferences:
        if (result := _result(preference, run)) is not None:
            found[preference.judgement.labeller, preference.comparison.key] = result
    if not found:
        return None
    points = [point for point, _ in found.values()]
    wins, ties = points.count(1.0), points.count(0.5)
    low, high = wilson_interval(wins + ties / 2, len(points))
    return HumanEvaluation(
        iteration=max(of for _, of in found.values()) if iteration is None else iteration,
        comparisons=len(points),
        wins=wins,
        ties=ties,
        losses=len(points) - wins - ties,
        win_rate=(wins + ties / 2) / len(points),
        low=low,
        high=high,
        labellers=len({labeller for labeller, _ in found}),
    )


def tell_run(folder: Path, event: HumanEvaluation) -> None:
    """Let `event` stand among the events of the run in `folder`.

    The process that trains the run, whichever it is, emits it soon; of a run that has ended it is appended to the
    journal. Raises UsageError where there is no run, or it begins or ends at this moment, StorageError where the event
    cannot be written.
    """
    run = RunFolder(folder)
    if not run.events.is_file():
        raise UsageError(f"no run in '{folder}': name the folder of a run that was started")
    if run.is_live():
        inbox.send(folder, "tell", event=event.as_dict())
        return
    with run.lock(), contextlib.closing(Journal(run.events)) as journal:
        journal.emit(event)


def _result(preference: Preference, run: str) -> tuple[float, int] | None:
    """1 where the policy's completion was preferred, 0.5 for a tie, 0; and after which iteration it was written."""
    origins, choice = preference.comparison.origins, preference.judgement.choice
    if len(origins) != 2 or choice in (None, "skip") or any(origin.run != run for origin in origins):
        return None
    writers = [origin.writer for origin in origins]
    if sorted(writers) != ["policy", "reference"]:
        return None
    policy = writers.index("policy")
    point = 0.5 if choice in ("tie", "both_bad") else float(choice == "ab"[policy])
    return point, origins[policy].iteration or 0
