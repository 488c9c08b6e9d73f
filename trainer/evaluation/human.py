"""Win rate of the policy against its reference in human preferences, and its report to the run."""

from __future__ import annotations

from collections.abc import Iterable

from trainer.confidence import wilson_interval
from trainer.events import HumanEvaluation
from trainer.preferences.records import Preference


def human_evaluation(preferences: Iterable[Preference], run: str) -> HumanEvaluation | None:
    """Evaluate the policy of `run` against its reference by `preferences`; return None if none compares the two.

    A pair counts if both completions are of `run`, one written by the policy, after any iteration, and one by the
    reference. Both bad counts as a tie; skips are ignored. Only a labeller's last judgement of a pair counts;
    judgements of one pair by several people count as independent. The interval counts a tie as half a success, which
    makes it wider than necessary, never narrower. The iteration is that of the latest policy judged.
    """
    found: dict[tuple[str, str], tuple[float, int]] = {}  # by labeller and pair: the policy's points, its iteration
    for preference in preferences:
        if (result := _result(preference, run)) is not None:
            found[preference.judgement.labeller, preference.comparison.key] = result
    if not found:
        return None
    points = [point for point, _ in found.values()]
    wins, ties = points.count(1.0), points.count(0.5)
    low, high = wilson_interval(wins + ties / 2, len(points))
    return HumanEvaluation(
        iteration=max(iteration for _, iteration in found.values()),
        comparisons=len(points),
        wins=wins,
        ties=ties,
        losses=len(points) - wins - ties,
        win_rate=(wins + ties / 2) / len(points),
        low=low,
        high=high,
        labellers=len({labeller for labeller, _ in found}),
    )


def _result(preference: Preference, run: str) -> tuple[float, int] | None:
    """Return the policy's points (1 if preferred, 0.5 for a tie, else 0) and its iteration; None if not applicable."""
    origins, choice = preference.comparison.origins, preference.judgement.choice
    if len(origins) != 2 or choice in (None, "skip") or any(origin.run != run for origin in origins):
        return None
    writers = [origin.writer for origin in origins]
    if sorted(writers) != ["policy", "reference"]:
        return None
    policy = writers.index("policy")
    point = 0.5 if choice in ("tie", "both_bad") else float(choice == "ab"[policy])
    return point, origins[policy].iteration or 0
