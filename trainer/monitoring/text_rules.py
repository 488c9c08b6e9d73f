"""Rules on the responses: their length, whether they end, whether they repeat themselves."""

from __future__ import annotations

import math

from trainer.config.schema import Config
from trainer.monitoring import fixes
from trainer.monitoring.history import History, mean_of
from trainer.monitoring.rule import Sign

WINDOW = 5
"""Iterations averaged, at the start and now."""

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


def length_exploitation(history: History, config: Config) -> Sign | None:
    """Check whether longer responses score higher and responses have become longer, though no length is rewarded."""
    windows = history.scores.early_and_late(WINDOW, WINDOW)
    if windows is None or any(source.kind == "length" and source.weight for source in config.reward.sources):
        return None
    start, now = (mean_of(rows, lambda row: row.response_length) for rows in windows)
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
    deviation = mean_of(windows[0], lambda row: row.score_std)
    return Sign(
        "warning",
        f"responses are {now / start:.2g} times as long as at the start ({start:.0f} to {now:.0f} tokens), and longer "
        f"ones score higher: correlation {correlation:.2f}",
        {"length_correlation": correlation, "response_length": now, "early_response_length": start},
        "The policy is paid for length. Look at the samples: if the longer ones are not better, reward a length too, "
        "or set reward.overlong_penalty in a new run.",
        [fixes.wish_length(config, start, deviation), fixes.pause(), fixes.roll_back(history)],
    )


def truncation(history: History, config: Config) -> Sign | None:
    """Check whether more responses are cut short than at the start; a task that ignores stops by design is exempt."""
    windows = history.texts.early_and_late(WINDOW, WINDOW)
    if windows is None or config.rollout.ignore_stop:
        return None
    start, now = (mean_of(rows, lambda row: row.truncated) for rows in windows)
    both = (start + now) / 2
    sequences = WINDOW * config.rollout.batch_size
    chance = math.sqrt(2 * max(both * (1 - both), 0.0) / sequences)
    if not (now > TRUNCATED and now - start > CHANCE * chance):
        return None
    length = mean_of(windows[0], lambda row: row.response_length)
    deviation = mean_of(windows[0], lambda row: row.score_std)
    return Sign(
        "error" if now > MOSTLY_TRUNCATED else "warning",
        f"{100 * now:.0f} % of the responses are cut at {config.rollout.max_new_tokens} tokens, {100 * start:.0f} % "
        "were at the start",
        {"truncated": now, "early_truncated": start, "max_new_tokens": config.rollout.max_new_tokens},
        "The policy forgets to end. Reward a length too, or begin a new run with a longer rollout.max_new_tokens, "
        "reward.missing_stop_penalty or reward.overlong_penalty.",
        [fixes.wish_length(config, length, deviation), fixes.roll_back(history), fixes.pause()],
    )


def repetition(history: History, config: Config) -> Sign | None:
    """Check whether responses repeat themselves, and more than at the start."""
    windows = history.texts.early_and_late(WINDOW, WINDOW)
    if windows is None:
        return None
    start, now = (mean_of(rows, lambda row: row.repetition) for rows in windows)
    if not (now > REPEATED and now > start + REPEATED_MORE):
        return None
    last = windows[1][-1]
    return Sign(
        "error" if now > MOSTLY_REPEATED else "warning",
        f"{100 * now:.0f} % of the 4-grams in a response are repeats, {100 * start:.0f} % were at the start",
        {"repetition": now, "early_repetition": start, "unique": last.unique},
        "The reward pays for saying the same again. Look at the samples; a higher kl_coef holds the policy to the "
        "reference's language, and a reward that reads the whole response does not pay for loops.",
        [fixes.raise_kl_coef(config, last.kl_coef), fixes.roll_back(history), fixes.pause()],
    )
