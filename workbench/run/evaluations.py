"""Results of evaluations in a few words, for a mark on a timeline or a line above it."""

from __future__ import annotations

import math
from collections.abc import Mapping

from trainer.events import DPOEvaluation, Evaluation, HumanEvaluation, RewardModelEvaluation

AnyEvaluation = Evaluation | RewardModelEvaluation | HumanEvaluation


def in_brief(evaluation: AnyEvaluation) -> str:
    """Return the main result of an evaluation, and how certain it is. Not made safe to print."""
    match evaluation:
        case HumanEvaluation():
            return f"{win_rate(evaluation)} of {evaluation.comparisons}"
        case DPOEvaluation():
            return f"{held_out(evaluation, 2)} of {evaluation.pairs}, KL {number(evaluation.kl)}"
        case RewardModelEvaluation():
            return f"{held_out(evaluation, 2)} of {evaluation.pairs}"
        case Evaluation():
            against = f", {reference_win_rate(evaluation)}" if math.isfinite(evaluation.win_rate) else ""
            return f"score {number(evaluation.score_mean)}{parts(evaluation.parts)}{against}"


def win_rate(evaluation: HumanEvaluation) -> str:
    """Return how often people prefer the policy, with its interval."""
    return f"human win rate {_share(evaluation.win_rate, evaluation.low, evaluation.high)}"


def reference_win_rate(evaluation: Evaluation) -> str:
    """Return how often the policy's score beats the reference's, with its interval."""
    return f"win rate {_share(evaluation.win_rate, evaluation.win_rate_low, evaluation.win_rate_high)}"


def held_out(evaluation: RewardModelEvaluation, digits: int = 3) -> str:
    """Return the accuracy on held-out comparisons, with its interval."""
    shares = (evaluation.accuracy, evaluation.accuracy_low, evaluation.accuracy_high)
    value, low, high = (number(share, digits) for share in shares)
    return f"held-out accuracy {value} ({low} to {high})"


def parts(scores: Mapping[str, float]) -> str:
    """Return raw scores by reward source, in brackets after a space; empty for a single one, which is the score."""
    if len(scores) < 2:
        return ""
    return f" ({', '.join(f'{name} {number(score)}' for name, score in scores.items())})"


def number(value: float, digits: int = 3) -> str:
    """Format `value` with `digits` decimals; - when it is not finite."""
    return f"{value:.{digits}f}" if math.isfinite(value) else "-"


def _share(value: float, low: float, high: float) -> str:
    return f"{_percent(value)} % ({_percent(low)} to {_percent(high)})"


def _percent(share: float) -> str:
    return number(100 * share, 0)
