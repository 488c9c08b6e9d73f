"""Numbers that compare runs and groups of runs: the last and best iterations, held-out results, cost and trouble."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

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
    parts = tuple(_measure(f"part:{source}", source, "", _part, source, 3) for source in sources)
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


def best_within(run: ComparedRun, field: str) -> float:
    """Return the best mean score of five iterations in a row whose mean KL is at most a level; NaN without one.

    field: the level in nats a sequence. Iterations whose score or KL is not finite are left out.
    """
    scores, kls = run.column("score_mean"), run.column("kl")
    known = sum(math.isfinite(score) and math.isfinite(kl) for score, kl in zip(scores, kls, strict=False))
    point = best(batch_points(run.view.history, STRETCH), float(field)) if known >= STRETCH else None
    return math.nan if point is None else point.score


def _part(run: ComparedRun, name: str) -> float:
    return run.view.evaluations[-1].parts.get(name, math.nan) if run.view.evaluations else math.nan


def _over(run: ComparedRun, field: str, *, summary: Callable[[Sequence[float]], float]) -> float:
    return summary(run.column(field))


def _of(run: ComparedRun, field: str, *, found: Callable[[ComparedRun], object | None]) -> float:
    """Return `field` of what is `found` in a run; NaN without it, or if it lacks this field."""
    return float(getattr(found(run), field, math.nan))


def _sum(values: Sequence[float]) -> float:
    known = [value for value in values if math.isfinite(value)]
    return sum(known) if known else math.nan


def _best_evaluation(run: ComparedRun) -> Evaluation | None:
    scored = (e for e in run.view.evaluations if math.isfinite(e.score_mean))
    return max(scored, key=lambda e: e.score_mean, default=None)


def _best_of(run: ComparedRun, _: str) -> float:
    newest = run.view.evaluations[-1] if run.view.evaluations else None
    return float(newest.best_of) if newest and math.isfinite(newest.best_of_score) else math.nan


def _decimals(value: float, *, digits: int, factor: float) -> str:
    return number(value * factor, digits, width=NUMBER)


def _measure(
    key: str,
    label: str,
    unit: str,
    source: Callable[[ComparedRun, str], float],
    field: str,
    text: int | Callable[[float], str],
    *,
    ends: tuple[str, str] | None = None,
    **options: Any,
) -> RunMeasure:
    """Build a measure: `field` of `source`. text: its decimals, or its format; ends: fields of its interval."""
    show = partial(_decimals, digits=text, factor=100.0 if unit == "%" else 1.0) if isinstance(text, int) else text
    if ends:
        options["interval"] = lambda run: (source(run, ends[0]), source(run, ends[1]))
    return RunMeasure(key, label, unit, lambda run: source(run, field), show, **options)


_last, _mean, _total = (partial(_over, summary=summary) for summary in (last_mean, mean, _sum))
_second_half = partial(_over, summary=lambda values: mean(values[len(values) // 2 :]))
_greatest = partial(_over, summary=lambda values: max(values, default=math.nan))
_best = partial(_of, found=lambda run: best(batch_points(run.view.history, run.window)))
_newest = partial(_of, found=lambda run: run.view.evaluations[-1] if run.view.evaluations else None)
_highest = partial(_of, found=_best_evaluation)
_judged = partial(_of, found=lambda run: run.view.judged)
_on_pairs = partial(_of, found=lambda run: run.view.held_out[-1] if run.view.held_out else None)
_run = partial(_of, found=lambda run: run)

_HELD_OUT = MeasureSection(
    "held out, newest",
    (
        _measure("held_out_iteration", "after iteration", "", _newest, "iteration", 0, contrast="none"),
        _measure("held_out_score", "score", "", _newest, "score_mean", 3, ends=("score_low", "score_high")),
        _measure("held_out_kl", "KL", "nats/seq", _newest, "kl", 2),
        _measure("held_out_length", "length", "tokens", _newest, "response_length", 1),
        _measure("reference_score", "reference score", "", _newest, "reference_score", 3),
        _measure("best_of_score", "reference, best of n", "", _newest, "best_of_score", 3),
        _measure("best_of", "  n", "", _best_of, "", 0, contrast="none"),
        _measure("win_rate", "win rate by score", "%", _newest, "win_rate", 1, ends=("win_rate_low", "win_rate_high")),
        _measure("best_held_out_score", "best score", "", _highest, "score_mean", 3),
        _measure("best_held_out_iteration", "  after iteration", "", _highest, "iteration", 0, contrast="none"),
        _measure("human_win_rate", "human win rate", "%", _judged, "win_rate", 1, ends=("low", "high")),
        _measure(
            "pair_accuracy", "accuracy on pairs", "%", _on_pairs, "accuracy", 1, ends=("accuracy_low", "accuracy_high")
        ),
        _measure("pair_log_loss", "log-loss", "nats", _on_pairs, "log_loss", 3),
        _measure("pair_kl", "KL on pairs", "nats/tok", _on_pairs, "kl", 3),
    ),
)

_WITHIN = MeasureSection(
    "within a KL",
    (
        *(
            _measure(f"score_within_{n}", f"score within {n} nats", "", best_within, str(n), 3, tested=True)
            for n in LEVELS
        ),
        _measure(
            "explained_variance_second_half",
            "expl. var., 2nd half",
            "",
            _second_half,
            "explained_variance",
            2,
            tested=True,
            high=1,
        ),
    ),
)

SECTIONS = (
    MeasureSection(
        f"the last {RECENT} iterations",
        (
            _measure("score", "score", "", _last, "score_mean", 3, tested=True),
            _measure("reward", "reward", "", _last, "reward_mean", 3),
            _measure("kl", "KL", "nats/seq", _last, "kl", 2, tested=True, low=0),
            _measure("kl_coef", "KL coefficient", "", _last, "kl_coef", 4),
            _measure("entropy", "entropy", "nats/tok", _last, "entropy", 3),
            _measure("length", "length", "tokens", _last, "response_length", 1),
            _measure("truncated", "cut short", "%", _last, "truncated", 1),
            _measure("repetition", "repeated 4-grams", "%", _last, "repetition", 1),
            _measure("clip_fraction", "clip fraction", "%", _last, "clip_fraction", 1),
            _measure("explained_variance", "explained variance", "", _last, "explained_variance", 2),
            _measure("loss", "loss", "", _last, "loss", 3),
            _measure("accuracy", "accuracy on pairs", "%", _last, "accuracy", 1),
        ),
    ),
    MeasureSection(
        "the best iterations",
        (
            _measure("best_score", "best score", "", _best, "score", 3),
            _measure("best_iteration", "  up to iteration", "", _best, "iteration", 0, contrast="none"),
            _measure("best_kl", "  KL there", "nats/seq", _best, "kl", 2),
        ),
    ),
    _HELD_OUT,
    MeasureSection(
        "cost",
        (
            _measure("iterations", "iterations", "", _run, "iterations", 0, contrast="none"),
            _measure("seconds", "time in iterations", "", _total, "seconds_total", duration, contrast="ratio"),
            _measure(
                "seconds_an_iteration",
                "time an iteration",
                "s",
                _mean,
                "seconds_total",
                2,
                contrast="ratio",
                tested=True,
                low=0,
            ),
            _measure("tokens", "tokens", "", _greatest, "tokens", "{:,.0f}".format, contrast="ratio"),
            _measure("tokens_per_second", "speed", "tok/s", _mean, "tokens_per_second", 1, contrast="ratio"),
            _measure(
                "memory_bytes",
                "peak memory",
                "",
                _greatest,
                "memory_bytes",
                lambda count: gigabytes(round(count)),
                contrast="ratio",
            ),
        ),
    ),
    MeasureSection(
        "trouble",
        (
            _measure("alarms", "warnings and alarms", "", _run, "alarms", 0, contrast="none"),
            _measure("skipped_steps", "skipped steps", "", _total, "skipped_steps", 0, contrast="none"),
            _measure("rollbacks", "rollbacks", "", _run, "rollbacks", 0, contrast="none"),
        ),
    ),
)
