"""Numbers that compare runs: their last and best iterations, held-out results, cost and trouble."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, NamedTuple

from trainer.events import Evaluation
from trainer.runs.listing import RECENT, last_mean
from workbench.compare.compared_run import ComparedRun, mean
from workbench.compare.frontier import best, training_points
from workbench.compare.lines import NUMBER
from workbench.numbers import duration, gigabytes, number

Value = float | tuple[float, float]  # a number, or the ends of an interval; NaN if unknown

_LONGEST = 14  # columns of a number


class RunMeasure(NamedTuple):
    """One number of a run, and its format.

    key: the name in the JSON output, which has the value as `of` returns it. contrast: how two runs are compared.
    """

    key: str
    label: str
    unit: str
    of: Callable[[ComparedRun], Value]
    text: Callable[[float], str]
    contrast: Literal["difference", "ratio", "none"] = "difference"


class Section(NamedTuple):
    """Measures of one kind under a heading."""

    title: str
    measures: tuple[RunMeasure, ...]


def sections(runs: Sequence[ComparedRun]) -> list[Section]:
    """Return all sections and, with several reward sources, the mean raw score of each on held-out prompts."""
    sources = dict.fromkeys(name for run in runs for e in run.view.evaluations[-1:] for name in e.parts)
    parts = tuple(
        RunMeasure(f"part:{source}", source, "", partial(_part, source=source), _number(3)) for source in sources
    )
    found = [*SECTIONS]
    if len(parts) > 1:  # a single part is the score
        found.insert(found.index(_HELD_OUT) + 1, Section("parts of the score, held out", parts))
    return found


def value_text(measure: RunMeasure, value: Value) -> str:
    """Return `value` as text; - if it is unknown."""
    if isinstance(value, tuple):
        low, high = value
        return f"{measure.text(low)} to {measure.text(high)}" if known(value) else "-"
    text = measure.text(value) if known(value) else "-"
    return text if len(text) <= _LONGEST else f"{value:.1e}"


def difference_text(measure: RunMeasure, value: Value, other: Value) -> str:
    """Return by how much `other` exceeds `value`, or their ratio; empty if that says nothing."""
    if isinstance(value, tuple) or isinstance(other, tuple) or not (known(value) and known(other)):
        return ""
    if measure.contrast == "none":
        return ""
    if measure.contrast == "ratio":
        return f"×{other / value:.2f}" if value > 0 else ""
    text = measure.text(other - value)
    return text if text.startswith("-") else f"+{text}"


def known(value: Value) -> bool:
    """Return whether `value`, or each end of an interval, is finite."""
    return all(map(math.isfinite, value)) if isinstance(value, tuple) else math.isfinite(value)


def _number(digits: int, factor: float = 1.0) -> Callable[[float], str]:
    return lambda value: number(value * factor, digits, width=NUMBER)


def _over(summary: Callable[[Sequence[float]], float], name: str) -> Callable[[ComparedRun], float]:
    """Build the measure that summarises the metric `name` over all iterations."""
    return lambda run: summary(run.column(name))


def _sum(values: Sequence[float]) -> float:
    known = [value for value in values if math.isfinite(value)]
    return sum(known) if known else math.nan


def _field(found: Callable[[ComparedRun], object | None], name: str) -> Callable[[ComparedRun], float]:
    """Build the measure `name` of what is `found` in a run; NaN without it, or if it lacks this measure."""
    return lambda run: float(getattr(found(run), name, math.nan))


def _newest(run: ComparedRun) -> Evaluation | None:
    """Return the newest evaluation on held-out prompts."""
    return run.view.evaluations[-1] if run.view.evaluations else None


def _best_evaluation(run: ComparedRun) -> Evaluation | None:
    scored = (e for e in run.view.evaluations if math.isfinite(e.score_mean))
    return max(scored, key=lambda e: e.score_mean, default=None)


_last, _mean, _total = partial(_over, last_mean), partial(_over, mean), partial(_over, _sum)
_greatest = partial(_over, lambda values: max(values, default=math.nan))
_best = partial(_field, lambda run: best(training_points(run)))
_evaluated, _best_evaluated = partial(_field, _newest), partial(_field, _best_evaluation)
_judged = partial(_field, lambda run: run.view.judged)
_on_pairs = partial(_field, lambda run: run.view.held_out[-1] if run.view.held_out else None)


def _part(run: ComparedRun, source: str) -> float:
    return newest.parts.get(source, math.nan) if (newest := _newest(run)) else math.nan


def _with_interval(
    measure: RunMeasure,
    low: Callable[[ComparedRun], float],
    high: Callable[[ComparedRun], float],
    text: Callable[[float], str],
) -> tuple[RunMeasure, RunMeasure]:
    """Return `measure` and its 95% interval, from `low` to `high`."""
    interval = RunMeasure(
        f"{measure.key}_interval", "  95% interval", measure.unit, lambda run: (low(run), high(run)), text
    )
    return measure, interval


def _best_of(run: ComparedRun) -> float:
    newest = _newest(run)
    return float(newest.best_of) if newest and math.isfinite(newest.best_of_score) else math.nan


_PERCENT = _number(1, 100)
_WHOLE_PERCENT = _number(0, 100)
_COUNT = _number(0)

_HELD_OUT = Section(
    "held out, newest",
    (
        RunMeasure("held_out_iteration", "after iteration", "", _evaluated("iteration"), _COUNT, "none"),
        *_with_interval(
            RunMeasure("held_out_score", "score", "", _evaluated("score_mean"), _number(3)),
            _evaluated("score_low"),
            _evaluated("score_high"),
            _number(2),
        ),
        RunMeasure("held_out_kl", "KL", "nats/seq", _evaluated("kl"), _number(2)),
        RunMeasure("held_out_length", "length", "tokens", _evaluated("response_length"), _number(1)),
        RunMeasure("reference_score", "reference score", "", _evaluated("reference_score"), _number(3)),
        RunMeasure("best_of_score", "reference, best of n", "", _evaluated("best_of_score"), _number(3)),
        RunMeasure("best_of", "  n", "", _best_of, _COUNT, "none"),
        *_with_interval(
            RunMeasure("win_rate", "win rate by score", "%", _evaluated("win_rate"), _PERCENT),
            _evaluated("win_rate_low"),
            _evaluated("win_rate_high"),
            _WHOLE_PERCENT,
        ),
        RunMeasure("best_held_out_score", "best score", "", _best_evaluated("score_mean"), _number(3)),
        RunMeasure("best_held_out_iteration", "  after iteration", "", _best_evaluated("iteration"), _COUNT, "none"),
        *_with_interval(
            RunMeasure("human_win_rate", "human win rate", "%", _judged("win_rate"), _PERCENT),
            _judged("low"),
            _judged("high"),
            _WHOLE_PERCENT,
        ),
        *_with_interval(
            RunMeasure("pair_accuracy", "accuracy on pairs", "%", _on_pairs("accuracy"), _PERCENT),
            _on_pairs("accuracy_low"),
            _on_pairs("accuracy_high"),
            _WHOLE_PERCENT,
        ),
        RunMeasure("pair_log_loss", "log-loss", "nats", _on_pairs("log_loss"), _number(3)),
        RunMeasure("pair_kl", "KL on pairs", "nats/tok", _on_pairs("kl"), _number(3)),
    ),
)

SECTIONS = (
    Section(
        f"the last {RECENT} iterations",
        (
            RunMeasure("score", "score", "", _last("score_mean"), _number(3)),
            RunMeasure("reward", "reward", "", _last("reward_mean"), _number(3)),
            RunMeasure("kl", "KL", "nats/seq", _last("kl"), _number(2)),
            RunMeasure("kl_coef", "KL coefficient", "", _last("kl_coef"), _number(4)),
            RunMeasure("entropy", "entropy", "nats/tok", _last("entropy"), _number(3)),
            RunMeasure("length", "length", "tokens", _last("response_length"), _number(1)),
            RunMeasure("truncated", "cut short", "%", _last("truncated"), _PERCENT),
            RunMeasure("repetition", "repeated 4-grams", "%", _last("repetition"), _PERCENT),
            RunMeasure("clip_fraction", "clip fraction", "%", _last("clip_fraction"), _PERCENT),
            RunMeasure("explained_variance", "explained variance", "", _last("explained_variance"), _number(2)),
            RunMeasure("loss", "loss", "", _last("loss"), _number(3)),
            RunMeasure("accuracy", "accuracy on pairs", "%", _last("accuracy"), _PERCENT),
        ),
    ),
    Section(
        "the best iterations",
        (
            RunMeasure("best_score", "best score", "", _best("score"), _number(3)),
            RunMeasure("best_iteration", "  up to iteration", "", _best("iteration"), _COUNT, "none"),
            RunMeasure("best_kl", "  KL there", "nats/seq", _best("kl"), _number(2)),
        ),
    ),
    _HELD_OUT,
    Section(
        "cost",
        (
            RunMeasure("iterations", "iterations", "", lambda run: float(len(run.view.history)), _COUNT, "none"),
            RunMeasure("seconds", "time in iterations", "", _total("seconds_total"), duration, "ratio"),
            RunMeasure("seconds_an_iteration", "time an iteration", "s", _mean("seconds_total"), _number(2), "ratio"),
            RunMeasure("tokens", "tokens", "", _greatest("tokens"), lambda count: f"{count:,.0f}", "ratio"),
            RunMeasure("tokens_per_second", "speed", "tok/s", _mean("tokens_per_second"), _number(1), "ratio"),
            RunMeasure(
                "memory_bytes", "peak memory", "", _greatest("memory_bytes"), lambda n: gigabytes(round(n)), "ratio"
            ),
        ),
    ),
    Section(
        "trouble",
        (
            RunMeasure("alarms", "warnings and alarms", "", lambda run: float(run.alarms), _COUNT, "none"),
            RunMeasure("skipped_steps", "skipped steps", "", _total("skipped_steps"), _COUNT, "none"),
            RunMeasure("rollbacks", "rollbacks", "", lambda run: float(run.rollbacks), _COUNT, "none"),
        ),
    ),
)
