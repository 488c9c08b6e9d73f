"""Alarms and evaluations in words, for the screen and for headless displays.

Only `state_text` is made safe to print.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from trainer.events import Alarm, Alert, DPOEvaluation, Evaluation, HumanEvaluation, RewardModelEvaluation, RolledBack
from trainer.monitoring.alarms import severity
from trainer.runs.listing import RunSummary
from workbench.numbers import number, percent
from workbench.run.metrics import METRICS
from workbench.text import visible

SIGNS = {"info": "·", "warning": "⚠", "error": "✖"}
_LONGEST = 100  # characters of a state that are shown
_SPELT = {"kl": "KL", "nan": "NaN"}


def level_sign(level: str) -> str:
    """Return the sign of alerts of this level, which only a newer version may know."""
    return SIGNS.get(level, SIGNS["warning"])


def title(code: str) -> str:
    """Return the title of alarms with this code: `KL high` for `kl_high`."""
    return " ".join(_SPELT.get(word, word) for word in code.split("_"))


def alert_text(alert: Alert | RolledBack) -> str:
    """Return what an alert says, without its iteration and level."""
    if isinstance(alert, RolledBack):
        return f"rolled back to iteration {alert.to}: {alert.reason}"
    return f"{title(alert.code)}: {alert.message}" if isinstance(alert, Alarm) else alert.message


def evidence(alarm: Alarm) -> list[tuple[str, str]]:
    """Return the numbers that the alarm is based on: the label of each, and its value with its unit."""
    return [_written(name, value) for name, value in alarm.evidence.items()]


def urgent_first(alarms: Sequence[Alarm]) -> list[Alarm]:
    """Sort the most severe first, and within one level the newest first. alarms: newest last."""
    newest_first = alarms[::-1]
    return sorted(newest_first, key=lambda alarm: -severity(alarm.level))


def errors(alarms: Mapping[str, str]) -> str:
    """Name the errors among the active alarms (code -> level) in few words: `KL high +1`; empty without an error."""
    codes = [code for code, level in alarms.items() if level == "error"]
    return f"{title(codes[0])}{f' +{len(codes) - 1}' if len(codes) > 1 else ''}" if codes else ""


def state_text(run: RunSummary) -> str:
    """Return the state of a run and what is wrong with it: `done, KL high`. An unknown state is shown as it is."""
    damaged = "damaged" if run.damaged else ""
    return ", ".join(filter(None, (visible(run.state[:_LONGEST]), visible(errors(run.alarms)), damaged)))


def _written(name: str, value: float) -> tuple[str, str]:
    metric = next((metric for metric in METRICS if metric.field == name), None)
    if metric is None:
        return name.replace("_", " "), f"{value:.4g}" if math.isfinite(value) else str(value)
    shown = value * metric.factor
    text = metric.text(shown) if math.isfinite(shown) else str(value)
    return metric.label, f"{text} {metric.unit}".rstrip()


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


def _share(value: float, low: float, high: float) -> str:
    return f"{percent(value)} ({number(100 * low, 0)} to {number(100 * high, 0)})"
