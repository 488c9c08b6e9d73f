"""Numbers that compare runs and groups of runs: the last and best iterations, held-out results, cost and trouble."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, NamedTuple

from trainer.runs.listing import RECENT, last_mean
from workbench.compare.compared_run import ComparedRun, RunGroup, mean
from workbench.compare.frontier import batch_points, best
from workbench.text import duration, gigabytes, number

LEVELS = (2, 4, 8, 16)  # nats a sequence
STRETCH = 5  # iterations in a row of a mean
NUMBER = 12  # columns of a number, at most
_LONGEST = 14  # columns of a number


class RunMeasure(NamedTuple):
    """One number of a run, and its format: `field` of `source`, NaN if unknown.

    key: the name in the JSON output. form: decimals, or the format. contrast: how two runs are compared. ends: fields
    of the run's own 95% interval. tested: groups are compared by it, with an interval over their runs; low, high: the
    values that it can have then.
    """

    key: str
    label: str
    unit: str
    source: Callable[[ComparedRun, str], float]
    field: str
    form: int | Callable[[float], str]
    contrast: Literal["difference", "ratio", "none"] = "difference"
    ends: tuple[str, ...] = ()
    tested: bool = False
    low: float = -math.inf
    high: float = math.inf

    def values(self, group: RunGroup) -> list[float]:
        """Return the number of each run; of several, only those of at least five iterations are compared by it."""
        few = self.tested and len(group.runs) > 1
        return [
            math.nan if few and len(run.view.history) < STRETCH else self.source(run, self.field) for run in group.runs
        ]

    def text(self, value: float) -> str:
        """Return `value` as text; - if it is unknown."""
        if not math.isfinite(value):
            return "-"
        if isinstance(self.form, int):
            text = number(value * (100.0 if self.unit == "%" else 1.0), self.form, width=NUMBER)
        else:
            text = self.form(value)
        return text if len(text) <= _LONGEST else f"{value:.1e}"

    def difference(self, value: float, other: float) -> str:
        """Return by how much `other` exceeds `value`, or their ratio; empty if that says nothing."""
        if self.contrast == "none" or not (math.isfinite(value) and math.isfinite(other)):
            return ""
        if self.contrast == "ratio":
            return f"×{other / value:.2f}" if value > 0 else ""
        text = self.text(other - value)
        return text if text.startswith("-") else f"+{text}"


def sections(groups: Sequence[RunGroup]) -> dict[str, tuple[RunMeasure, ...]]:
    """Return the measures for `groups`, by the headings above them.

    With several reward sources, they have the mean raw score of each on held-out prompts; with groups of several runs,
    the measures that are meant for these.
    """
    runs = [run for group in groups for run in group.runs]
    sources = dict.fromkeys(name for run in runs for e in run.view.evaluations[-1:] for name in e.parts)
    part = partial(_of, found=lambda run: run.view.evaluations[-1].parts if run.view.evaluations else {})
    found = {"within a KL": _WITHIN} if len(runs) > len(groups) else {}
    for title, measures in SECTIONS.items():
        found[title] = measures
        if title == _HELD_OUT and len(sources) > 1:  # a single part is the score
            parts = tuple(RunMeasure(f"part:{source}", source, "", part, source, 3) for source in sources)
            found["parts of the score, held out"] = parts
    return found


def tested_measures(groups: Sequence[RunGroup]) -> list[RunMeasure]:
    """Return the measures by which groups are compared over their seeds."""
    return [measure for measures in sections(groups).values() for measure in measures if measure.tested]


def best_within(run: ComparedRun, field: str) -> float:
    """Return the best mean score of five iterations in a row whose mean KL is at most a level; NaN without one.

    field: the level in nats a sequence. Iterations whose score or KL is not finite are left out.
    """
    scores, kls = run.column("score_mean"), run.column("kl")
    known = sum(math.isfinite(score) and math.isfinite(kl) for score, kl in zip(scores, kls, strict=False))
    point = best(batch_points(run.view.history, STRETCH), float(field)) if known >= STRETCH else None
    return math.nan if point is None else point.score


def _over(run: ComparedRun, field: str, *, summary: Callable[[Sequence[float]], float]) -> float:
    return summary(run.column(field))


def _of(run: ComparedRun, field: str, *, found: Callable[[ComparedRun], object | None]) -> float:
    """Return `field` of what is `found` in a run, or its item; NaN without it, or if it lacks this field."""
    values = found(run)
    return float(values.get(field, math.nan) if isinstance(values, dict) else getattr(values, field, math.nan))


_last, _mean = partial(_over, summary=last_mean), partial(_over, summary=mean)
_total = partial(_over, summary=lambda values: sum(known) if (known := [*filter(math.isfinite, values)]) else math.nan)
_second_half = partial(_over, summary=lambda values: mean(values[len(values) // 2 :]))
_greatest = partial(_over, summary=lambda values: max(values, default=math.nan))
_best = partial(_of, found=lambda run: best(batch_points(run.view.history, run.window)))
_best_of = partial(
    _of, found=lambda run: next((e for e in run.view.evaluations[-1:] if math.isfinite(e.best_of_score)), None)
)
_newest = partial(_of, found=lambda run: run.view.evaluations[-1] if run.view.evaluations else None)
_highest = partial(
    _of,
    found=lambda run: max(
        (e for e in run.view.evaluations if math.isfinite(e.score_mean)), key=lambda e: e.score_mean, default=None
    ),
)
_judged = partial(_of, found=lambda run: run.view.judged)
_on_pairs = partial(_of, found=lambda run: run.view.held_out[-1] if run.view.held_out else None)
_run = partial(_of, found=lambda run: run)

_HELD_OUT = "held out, newest"
_WITHIN = (
    *(
        RunMeasure(f"score_within_{n}", f"score within {n} nats", "", best_within, str(n), 3, tested=True)
        for n in LEVELS
    ),
    RunMeasure(
        "explained_variance_second_half",
        "expl. var., 2nd half",
        "",
        _second_half,
        "explained_variance",
        2,
        tested=True,
        high=1,
    ),
)

SECTIONS: dict[str, tuple[RunMeasure, ...]] = {
    f"the last {RECENT} iterations": (
        RunMeasure("score", "score", "", _last, "score_mean", 3, tested=True),
        RunMeasure("reward", "reward", "", _last, "reward_mean", 3),
        RunMeasure("kl", "KL", "nats/seq", _last, "kl", 2, tested=True, low=0),
        RunMeasure("kl_coef", "KL coefficient", "", _last, "kl_coef", 4),
        RunMeasure("entropy", "entropy", "nats/tok", _last, "entropy", 3),
        RunMeasure("length", "length", "tokens", _last, "response_length", 1),
        RunMeasure("truncated", "cut short", "%", _last, "truncated", 1),
        RunMeasure("repetition", "repeated 4-grams", "%", _last, "repetition", 1),
        RunMeasure("clip_fraction", "clip fraction", "%", _last, "clip_fraction", 1),
        RunMeasure("explained_variance", "explained variance", "", _last, "explained_variance", 2),
        RunMeasure("loss", "loss", "", _last, "loss", 3),
        RunMeasure("accuracy", "accuracy on pairs", "%", _last, "accuracy", 1),
    ),
    "the best iterations": (
        RunMeasure("best_score", "best score", "", _best, "score", 3),
        RunMeasure("best_iteration", "  up to iteration", "", _best, "iteration", 0, contrast="none"),
        RunMeasure("best_kl", "  KL there", "nats/seq", _best, "kl", 2),
    ),
    _HELD_OUT: (
        RunMeasure("held_out_iteration", "after iteration", "", _newest, "iteration", 0, contrast="none"),
        RunMeasure("held_out_score", "score", "", _newest, "score_mean", 3, ends=("score_low", "score_high")),
        RunMeasure("held_out_kl", "KL", "nats/seq", _newest, "kl", 2),
        RunMeasure("held_out_length", "length", "tokens", _newest, "response_length", 1),
        RunMeasure("reference_score", "reference score", "", _newest, "reference_score", 3),
        RunMeasure("best_of_score", "reference, best of n", "", _newest, "best_of_score", 3),
        RunMeasure("best_of", "  n", "", _best_of, "best_of", 0, contrast="none"),
        RunMeasure(
            "win_rate", "win rate by score", "%", _newest, "win_rate", 1, ends=("win_rate_low", "win_rate_high")
        ),
        RunMeasure("best_held_out_score", "best score", "", _highest, "score_mean", 3),
        RunMeasure("best_held_out_iteration", "  after iteration", "", _highest, "iteration", 0, contrast="none"),
        RunMeasure("human_win_rate", "human win rate", "%", _judged, "win_rate", 1, ends=("low", "high")),
        RunMeasure(
            "pair_accuracy", "accuracy on pairs", "%", _on_pairs, "accuracy", 1, ends=("accuracy_low", "accuracy_high")
        ),
        RunMeasure("pair_log_loss", "log-loss", "nats", _on_pairs, "log_loss", 3),
        RunMeasure("pair_kl", "KL on pairs", "nats/tok", _on_pairs, "kl", 3),
    ),
    "cost": (
        RunMeasure("iterations", "iterations", "", lambda run, _: len(run.view.history), "", 0, contrast="none"),
        RunMeasure("seconds", "time in iterations", "", _total, "seconds_total", duration, contrast="ratio"),
        RunMeasure(
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
        RunMeasure("tokens", "tokens", "", _greatest, "tokens", "{:,.0f}".format, contrast="ratio"),
        RunMeasure("tokens_per_second", "speed", "tok/s", _mean, "tokens_per_second", 1, contrast="ratio"),
        RunMeasure(
            "memory_bytes",
            "peak memory",
            "",
            _greatest,
            "memory_bytes",
            lambda count: gigabytes(round(count)),
            contrast="ratio",
        ),
    ),
    "trouble": (
        RunMeasure("alarms", "warnings and alarms", "", _run, "alarms", 0, contrast="none"),
        RunMeasure("skipped_steps", "skipped steps", "", _total, "skipped_steps", 0, contrast="none"),
        RunMeasure("rollbacks", "rollbacks", "", _run, "rollbacks", 0, contrast="none"),
    ),
}
