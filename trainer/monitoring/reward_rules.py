"""Rule on reward hacking: whether measures that are not trained on agree that the policy gets better."""

from __future__ import annotations

import math
from itertools import pairwise
from statistics import fmean
from typing import NamedTuple

from trainer.config.schema import Config
from trainer.events import Evaluation
from trainer.monitoring import fixes
from trainer.monitoring.history import History
from trainer.monitoring.rule import Sign
from trainer.monitoring.scores import source_parts, standard_errors, trained_scores

WINDOW = 10
"""Iterations compared: the first with the newest."""
SURE = 4.0
"""Standard errors beyond which a difference is not chance: with 50 evaluations, chance alone causes such a fall after
the best two once in 3,000 runs."""
SMALLEST_FALL = 0.1
"""Fall of a watched part, as a share of its start; a smaller one is not worth an alarm, however sure."""
FEWEST_JUDGEMENTS = 20


class Fall(NamedTuple):
    """A measure that is not trained on and gets worse."""

    message: str
    evidence: dict[str, float]


def reward_hacking(history: History, config: Config) -> Sign | None:
    """Check whether the trained score rises while held-out prompts, a watched source or people disagree."""
    fall = _watched(history, config) or _judged(history, config) or _held_out(history, config)
    if fall is None:
        return None
    last = history.run.newest(1)
    return Sign(
        "error",
        fall.message,
        fall.evidence,
        "The policy has found what the reward overrates. Label samples of now, retrain the reward model and go on with "
        "it; until then a higher kl_coef, fewer epochs and more diverse prompts slow it down.",
        [
            fixes.pause(),
            fixes.roll_back(history),
            fixes.raise_kl_coef(config, last[0].kl_coef if last else 0.0),
            fixes.fewer_epochs(config),
        ],
    )


def _watched(history: History, config: Config) -> Fall | None:
    """Check whether a source of weight 0 has fallen and the trained score has risen, both by more than chance."""
    windows = history.scores.early_and_late(WINDOW, WINDOW)
    if windows is None:
        return None
    early, late = (trained_scores(rows, config) for rows in windows)
    if not standard_errors(late, early) > SURE:
        return None
    sources = config.reward.sources
    for name, source in zip(source_parts(windows[1][-1].parts, len(sources)), sources, strict=False):
        if source.weight:
            continue
        before, after = ([row.parts.get(name, math.nan) for row in rows] for rows in windows)
        if standard_errors(before, after) > SURE and fmean(before) - fmean(after) > SMALLEST_FALL * abs(fmean(before)):
            return Fall(
                f"the trained score has risen from {fmean(early):.3g} to {fmean(late):.3g} while {name}, which is "
                f"only watched, has fallen from {fmean(before):.3g} to {fmean(after):.3g}",
                {
                    "score": fmean(late),
                    "early_score": fmean(early),
                    name: fmean(after),
                    f"early_{name}": fmean(before),
                },
            )
    return None


def _judged(history: History, config: Config) -> Fall | None:
    """Check whether people prefer the reference, or the policy less than before, though the trained score rose."""
    windows = history.scores.early_and_late(WINDOW, WINDOW)
    if windows is None or not history.human:
        return None
    early, late = (trained_scores(rows, config) for rows in windows)
    *earlier, now = history.human
    best = max((event.low for event in earlier if event.comparisons >= FEWEST_JUDGEMENTS), default=0.5)
    if now.comparisons < FEWEST_JUDGEMENTS or not now.high < max(best, 0.5) or not standard_errors(late, early) > SURE:
        return None
    return Fall(
        f"the trained score has risen from {fmean(early):.3g} to {fmean(late):.3g}, and people prefer the policy in "
        f"{100 * now.win_rate:.0f} % of {now.comparisons} pairs, at most {100 * now.high:.0f} %, where it was at least "
        f"{100 * max(best, 0.5):.0f} %",
        {"score": fmean(late), "early_score": fmean(early), "win_rate": now.win_rate, "win_rate_high": now.high},
    )


def _held_out(history: History, config: Config) -> Fall | None:
    """Check whether the last two evaluations are below the best two by more than chance, without a fall in training."""
    held = list(history.evaluations)
    if len(held) < 4 or config.reward.normalize == "batch":  # its mean score is always 0
        return None
    pairs = list(pairwise(held))
    best = max(pairs[:-2], key=lambda pair: _mean_score(*pair), default=pairs[0])
    before, now = _mean_score(*best), _mean_score(*pairs[-1])
    error = math.sqrt((_error(*best) ** 2 + _error(*pairs[-1]) ** 2) / 2)
    trained_before, trained_now = best[1].training_score, held[-1].training_score
    if not (before - now > SURE * error and trained_now >= trained_before):
        return None
    return Fall(
        f"the score on held-out prompts has fallen from {before:.3g} to {now:.3g}, and in training it has gone from "
        f"{trained_before:.3g} to {trained_now:.3g}",
        {"held_out": now, "best_held_out": before, "score": trained_now, "score_then": trained_before},
    )


def _mean_score(*held: tuple[Evaluation, float]) -> float:
    return fmean(evaluation.score_mean for evaluation, _ in held)


def _error(*held: tuple[Evaluation, float]) -> float:
    """Return the standard error of one evaluation, averaged over `held`."""
    return fmean(evaluation.score_std / math.sqrt(max(evaluation.prompts, 1)) for evaluation, _ in held)
