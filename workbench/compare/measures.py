"""Numbers that compare runs and groups of runs: the last and best iterations, held-out results, cost and trouble."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, NamedTuple

from trainer.events import Evaluation
from trainer.runs.listing import RECENT, last_mean
from workbench.compare.compared_run import ComparedRun, RunGroup, mean
from workbench.compare.frontier import batch_points, best
from workbench.compare.lines import NUMBER
from workbench.numbers import duration, gigabytes, number

LEVELS = (2, 4, 8, 16)  # nats a sequence
STRETCH = 5  # iterations in a row of a mean
_LONGEST = 14  # columns of a number


class RunMeasure(NamedTuple):
    """One number of a run, and its format.

    key: the name in the JSON output, which has the value as `of` returns it; NaN if unknown. contrast: how two runs are
    compared. interval: the ends of the run's own 95% interval. tested: groups are compared by it, with an interval over
    their runs; low, high: the values that it can have then.
    """

    key: str
    label: str
    unit: str
    of: Callable[[ComparedRun], float]
    text: Callable[[float], str]
    contrast: Literal["difference", "ratio", "none"] = "difference"
    interval: Callable[[ComparedRun], tuple[float, float]] | None = None
    tested: bool = False
    low: float = -math.inf
    high: float = math.inf

    def values(self, group: RunGroup) -> list[float]:
        """Return the number of each run; of several, only those of at least five iterations are compared by it."""
        few = self.tested and len(group.runs) > 1
        return [math.nan if few and len(run.view.history) < STRETCH else self.of(run) for run in group.runs]


class MeasureSection(NamedTuple):
    """Measures of one kind under a heading."""

    title: str
    measures: tuple[RunMeasure, ...]


def sections(groups: Sequence[RunGroup]) -> list[MeasureSection]:
    """Return the sections for `groups`.

    With several reward sources, they have the mean raw score of each on held-out prompts; with groups of several runs,
    the measures that are meant for these.
    """
    runs = [run for group in groups for run in group.runs]
    sources = dict.fromkeys(name for run in runs for e in run.view.evaluations[-1:] for name in e.parts)
    parts = tuple(
        RunMeasure(f"part:{source}", source, "", partial(_part, source=source), _number(3)) for source in sources
    )
    found = [*([_WITHIN] if len(runs) > len(groups) else []), *SECTIONS]
    if len(parts) > 1:  # a single part is the score
        found.insert(found.index(_HELD_OUT) + 1, MeasureSection("parts of the score, held out", parts))
    return found


def value_text(measure: RunMeasure, value: float) -> str:
    """Return `value` as text; - if it is unknown."""
    text = measure.text(value) if math.isfinite(value) else "-"
    return text if len(text) <= _LONGEST else f"{value:.1e}"


def difference_text(measure: RunMeasure, value: float, other: float) -> str:
    """Return by how much `other` exceeds `value`, or their ratio; empty if that says nothing."""
    if measure.contrast == "none" or not (math.isfinite(value) and math.isfinite(other)):
        return ""
    if measure.contrast == "ratio":
        return f"×{other / value:.2f}" if value > 0 else ""
    text = measure.text(other - value)
    return text if text.startswith("-") else f"+{text}"


def best_within(run: ComparedRun, level: float) -> float:
    """Return the best mean score of five iterations in a row whose mean KL is at most `level`; NaN without one.

    level: nats a sequence. Iterations whose score or KL is not finite are left out.
    """
    scores, kls = run.column("score_mean"), run.column("kl")
    known = sum(math.isfinite(score) and math.isfinite(kl) for score, kl in zip(scores, kls, strict=False))
    point = best(batch_points(run.view.history, STRETCH), level) if known >= STRETCH else None
    return math.nan if point is None else point.score


def _second_half(run: ComparedRun) -> float:
    return mean(run.column("explained_variance")[len(run.view.history) // 2 :])


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
_best = partial(_field, lambda run: best(batch_points(run.view.history, run.window)))
_evaluated, _best_evaluated = partial(_field, _newest), partial(_field, _best_evaluation)
_judged = partial(_field, lambda run: run.view.judged)
_on_pairs = partial(_field, lambda run: run.view.held_out[-1] if run.view.held_out else None)


def _part(run: ComparedRun, source: str) -> float:
    return newest.parts.get(source, math.nan) if (newest := _newest(run)) else math.nan


def _ends(
    of: Callable[[str], Callable[[ComparedRun], float]], low: str, high: str
) -> Callable[[ComparedRun], tuple[float, float]]:
    return lambda run: (of(low)(run), of(high)(run))


def _best_of(run: ComparedRun) -> float:
    newest = _newest(run)
    return float(newest.best_of) if newest and math.isfinite(newest.best_of_score) else math.nan


_PERCENT = _number(1, 100)
_COUNT = _number(0)

_HELD_OUT = MeasureSection(
    "held out, newest",
    (
        RunMeasure("held_out_iteration", "after iteration", "", _evaluated("iteration"), _COUNT, "none"),
        RunMeasure(
            "held_out_score",
            "score",
            "",
            _evaluated("score_mean"),
            _number(3),
            interval=_ends(_evaluated, "score_low", "score_high"),
        ),
        RunMeasure("held_out_kl", "KL", "nats/seq", _evaluated("kl"), _number(2)),
        RunMeasure("held_out_length", "length", "tokens", _evaluated("response_length"), _number(1)),
        RunMeasure("reference_score", "reference score", "", _evaluated("reference_score"), _number(3)),
        RunMeasure("best_of_score", "reference, best of n", "", _evaluated("best_of_score"), _number(3)),
        RunMeasure("best_of", "  n", "", _best_of, _COUNT, "none"),
        RunMeasure(
            "win_rate",
            "win rate by score",
            "%",
            _evaluated("win_rate"),
            _PERCENT,
            interval=_ends(_evaluated, "win_rate_low", "win_rate_high"),
        ),
        RunMeasure("best_held_out_score", "best score", "", _best_evaluated("score_mean"), _number(3)),
        RunMeasure("best_held_out_iteration", "  after iteration", "", _best_evaluated("iteration"), _COUNT, "none"),
        RunMeasure(
            "human_win_rate",
            "human win rate",
            "%",
            _judged("win_rate"),
            _PERCENT,
            interval=_ends(_judged, "low", "high"),
        ),
        RunMeasure(
            "pair_accuracy",
            "accuracy on pairs",
            "%",
            _on_pairs("accuracy"),
            _PERCENT,
            interval=_ends(_on_pairs, "accuracy_low", "accuracy_high"),
        ),
        RunMeasure("pair_log_loss", "log-loss", "nats", _on_pairs("log_loss"), _number(3)),
        RunMeasure("pair_kl", "KL on pairs", "nats/tok", _on_pairs("kl"), _number(3)),
    ),
)

_WITHIN = MeasureSection(
    "within a KL",
    (
        *(
            RunMeasure(
                f"score_within_{level}",
                f"score within {level} nats",
                "",
                partial(best_within, level=level),
                _number(3),
                tested=True,
            )
            for level in LEVELS
        ),
        RunMeasure(
            "explained_variance_second_half",
            "expl. var., 2nd half",
            "",
            _second_half,
            _number(2),
            tested=True,
            high=1,
        ),
    ),
)

SECTIONS = (
    MeasureSection(
        f"the last {RECENT} iterations",
        (
            RunMeasure("score", "score", "", _last("score_mean"), _number(3), tested=True),
            RunMeasure("reward", "reward", "", _last("reward_mean"), _number(3)),
            RunMeasure("kl", "KL", "nats/seq", _last("kl"), _number(2), tested=True, low=0),
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
    MeasureSection(
        "the best iterations",
        (
            RunMeasure("best_score", "best score", "", _best("score"), _number(3)),
            RunMeasure("best_iteration", "  up to iteration", "", _best("iteration"), _COUNT, "none"),
            RunMeasure("best_kl", "  KL there", "nats/seq", _best("kl"), _number(2)),
        ),
    ),
    _HELD_OUT,
    MeasureSection(
        "cost",
        (
            RunMeasure("iterations", "iterations", "", lambda run: float(len(run.view.history)), _COUNT, "none"),
            RunMeasure("seconds", "time in iterations", "", _total("seconds_total"), duration, "ratio"),
            RunMeasure(
                "seconds_an_iteration",
                "time an iteration",
                "s",
                _mean("seconds_total"),
                _number(2),
                "ratio",
                tested=True,
                low=0,
            ),
            RunMeasure("tokens", "tokens", "", _greatest("tokens"), lambda count: f"{count:,.0f}", "ratio"),
            RunMeasure("tokens_per_second", "speed", "tok/s", _mean("tokens_per_second"), _number(1), "ratio"),
            RunMeasure(
                "memory_bytes", "peak memory", "", _greatest("memory_bytes"), lambda n: gigabytes(round(n)), "ratio"
            ),
        ),
    ),
    MeasureSection(
        "trouble",
        (
            RunMeasure("alarms", "warnings and alarms", "", lambda run: float(run.alarms), _COUNT, "none"),
            RunMeasure("skipped_steps", "skipped steps", "", _total("skipped_steps"), _COUNT, "none"),
            RunMeasure("rollbacks", "rollbacks", "", lambda run: float(run.rollbacks), _COUNT, "none"),
        ),
    ),
)
