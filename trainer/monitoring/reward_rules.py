"""Rules on what the reward makes of the responses: their length, their ends, repetition, and reward hacking."""

from __future__ import annotations

import math
from itertools import pairwise
from statistics import fmean

from trainer.config.schema import Config
from trainer.events import Evaluation, Fix
from trainer.monitoring.history import History, Sign, source_parts, standard_errors, trained_scores
from trainer.plurals import counted

HACKING_WINDOW = 10
"""Iterations compared: the first with the newest."""
SURE = 4.0
"""Standard errors beyond which a difference is not chance: with 50 evaluations, chance alone causes such a fall after
the best two once in 3,000 runs."""
SMALLEST_FALL = 0.1
"""Fall of a watched part, as a share of its start; a smaller one is not worth an alarm, however sure."""
FEWEST_JUDGEMENTS = 20


WINDOW = 5
"""Iterations averaged, at the start and now, for length, ends and repetition."""

CORRELATION_ITERATIONS = 10
KNOWN_CORRELATIONS = 5
"""Fewest of CORRELATION_ITERATIONS in which scores and lengths both vary. The correlation of one batch of 8 is noise;
the mean of five is above 0.75 by chance less than once in a million."""
CORRELATION = 0.75
LENGTH_GROWTH = 1.4
"""Correlation of score and length, and length over that of the start: as in rlprobe."""

TRUNCATED = 0.15
"""Share of responses cut short, for a warning. As in rldoctor."""
MOSTLY_TRUNCATED = 0.5
"""The same, for an error. As in rlprobe."""
CHANCE = 4.0
"""Deviations beyond which a difference of two shares is not chance."""

REPEATED = 0.3
"""Share of a response's 4-grams that repeat earlier ones, for a warning. As in rlprobe."""
MOSTLY_REPEATED = 0.6
"""The same, for an error."""
REPEATED_MORE = 0.15
"""Least rise of this share since the start: small models repeat themselves from the beginning."""


def reward_hacking(history: History, config: Config) -> Sign | None:
    """Check whether the trained score rises while held-out prompts, a watched source or people disagree."""
    sign = _watched(history, config) or _judged(history, config) or _held_out(history, config)
    if sign is None:
        return None
    return sign._replace(
        advice="The policy exploits what the reward overrates. Label current samples, retrain the reward model and "
        "continue with it; until then a higher kl_coef, fewer epochs and more diverse prompts slow this down.",
        fixes=["pause", "roll_back", "raise_kl_coef", "fewer_epochs"],
    )


def _watched(history: History, config: Config) -> Sign | None:
    """Check whether a source of weight 0 has fallen and the trained score has risen, both by more than chance."""
    windows = history.scores.early_and_late(HACKING_WINDOW)
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
            numbers = {"score": fmean(late), "early_score": fmean(early)}
            return Sign(
                "error",
                f"the trained score has risen from {fmean(early):.3g} to {fmean(late):.3g} while {name}, which is "
                f"only watched, has fallen from {fmean(before):.3g} to {fmean(after):.3g}",
                numbers | {name: fmean(after), f"early_{name}": fmean(before)},
            )
    return None


def _judged(history: History, config: Config) -> Sign | None:
    """Check whether people prefer the reference, or the policy less than before, though the trained score rose."""
    windows = history.scores.early_and_late(HACKING_WINDOW)
    if windows is None or not history.human:
        return None
    early, late = (trained_scores(rows, config) for rows in windows)
    *earlier, now = history.human
    best = max((event.low for event in earlier if event.comparisons >= FEWEST_JUDGEMENTS), default=0.5)
    if now.comparisons < FEWEST_JUDGEMENTS or not now.high < max(best, 0.5) or not standard_errors(late, early) > SURE:
        return None
    return Sign(
        "error",
        f"the trained score has risen from {fmean(early):.3g} to {fmean(late):.3g}, and people prefer the policy in "
        f"{100 * now.win_rate:.0f}% of {counted(now.comparisons, 'pair')}, at most {100 * now.high:.0f}%, where it was "
        f"at least {100 * max(best, 0.5):.0f}%",
        {"score": fmean(late), "early_score": fmean(early), "win_rate": now.win_rate, "win_rate_high": now.high},
    )


def _held_out(history: History, config: Config) -> Sign | None:
    """Check whether the last two evaluations are below the best two by more than chance, without a fall in training."""
    held = list(history.evaluations)
    if len(held) < 4 or config.reward.normalize == "batch":  # its mean score is always 0
        return None
    pairs = list(pairwise(held))
    scores = [fmean(one.evaluation.score_mean for one in pair) for pair in pairs]
    errors = [fmean(_error(one.evaluation) for one in pair) for pair in pairs]
    place = max(range(len(pairs) - 2), key=scores.__getitem__, default=0)
    best, before, now = pairs[place], scores[place], scores[-1]
    error = math.sqrt((errors[place] ** 2 + errors[-1] ** 2) / 2)
    trained_before, trained_now = best[1].training_score, held[-1].training_score
    if not (before - now > SURE * error and trained_now >= trained_before):
        return None
    return Sign(
        "error",
        f"the score on held-out prompts has fallen from {before:.3g} to {now:.3g}, and in training it has gone from "
        f"{trained_before:.3g} to {trained_now:.3g}",
        {"held_out": now, "best_held_out": before, "score": trained_now, "score_then": trained_before},
    )


def _error(evaluation: Evaluation) -> float:
    """Return the standard error of the mean score."""
    return evaluation.score_std / math.sqrt(max(evaluation.prompts, 1))


def length_exploitation(history: History, config: Config) -> Sign | None:
    """Check whether longer responses score higher and responses have become longer, though no length is rewarded."""
    if any(source.kind == "length" and source.weight for source in config.reward.sources):
        return None
    start, now = history.scores.start_and_now("response_length", WINDOW)
    known = [
        row.length_correlation
        for row in history.scores.all_kept()[-CORRELATION_ITERATIONS:]
        if math.isfinite(row.length_correlation)
    ]
    if len(known) < KNOWN_CORRELATIONS or not now > LENGTH_GROWTH * start:
        return None
    correlation = sum(known) / len(known)
    if not correlation > CORRELATION:
        return None
    deviation, _ = history.scores.start_and_now("score_std", WINDOW)
    return Sign(
        "warning",
        f"responses are {now / start:.2g} times as long as at the start ({start:.0f} to {now:.0f} tokens), and longer "
        f"ones score higher: correlation {correlation:.2f}",
        {"length_correlation": correlation, "response_length": now, "early_response_length": start},
        "The policy is paid for length. Look at the samples: if the longer ones are not better, reward a length too, "
        "or set reward.overlong_penalty in a new run.",
        [_reward_length(config, start, deviation), "pause", "roll_back"],
    )


def truncation(history: History, config: Config) -> Sign | None:
    """Check whether more responses are cut short than at the start; a task that ignores stops by design is exempt."""
    if config.rollout.ignore_stop:
        return None
    start, now = history.texts.start_and_now("truncated", WINDOW)
    both = (start + now) / 2
    sequences = WINDOW * config.rollout.batch_size
    chance = math.sqrt(2 * max(both * (1 - both), 0.0) / sequences)
    if not (now > TRUNCATED and now - start > CHANCE * chance):
        return None
    length, deviation = (history.texts.start_and_now(name, WINDOW)[0] for name in ("response_length", "score_std"))
    return Sign(
        "error" if now > MOSTLY_TRUNCATED else "warning",
        f"{100 * now:.0f}% of the responses are cut at {config.rollout.max_new_tokens} tokens, {100 * start:.0f}% "
        "were at the start",
        {"truncated": now, "early_truncated": start, "max_new_tokens": config.rollout.max_new_tokens},
        "The policy forgets to end its responses. Reward a length too, or begin a new run with a longer "
        "rollout.max_new_tokens, reward.missing_stop_penalty or reward.overlong_penalty.",
        [_reward_length(config, length, deviation), "roll_back", "pause"],
    )


def repetition(history: History, config: Config) -> Sign | None:
    """Check whether responses repeat themselves, and more than at the start."""
    start, now = history.texts.start_and_now("repetition", WINDOW)
    if not (now > REPEATED and now > start + REPEATED_MORE):
        return None
    last = history.texts.newest(1)[0]
    return Sign(
        "error" if now > MOSTLY_REPEATED else "warning",
        f"{100 * now:.0f}% of the 4-grams in a response are repeats, {100 * start:.0f}% were at the start",
        {"repetition": now, "early_repetition": start, "unique": last.unique},
        "The reward pays for repetition. Look at the samples; a higher kl_coef keeps the policy close to the "
        "reference's language, and a reward that reads the whole response does not pay for loops.",
        ["raise_kl_coef", "roll_back", "pause"],
    )


def _reward_length(config: Config, target: float, deviation: float) -> Fix | None:
    """Also reward a length: 16 tokens off cost one deviation of the score."""
    if not (target >= 1 and deviation > 0):
        return None
    sources = [source.model_dump() for source in config.reward.sources]
    length = {"kind": "length", "target": round(target), "tolerance": 16, "weight": float(f"{2 * deviation:.3g}")}
    return Fix(
        label=f"also reward a length of {counted(round(target), 'token')}",
        action="set",
        key="reward.sources",
        value=[*sources, length],
    )
