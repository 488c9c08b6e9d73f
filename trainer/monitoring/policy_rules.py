"""Rules on where the policy goes: its KL, its entropy, and whether it moves at all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from trainer.config.schema import Config
from trainer.events import Iteration
from trainer.monitoring.history import History, Sign, mean, standard_errors, trained_scores

WINDOW = 5
"""Iterations averaged: the KL of a batch of 8 varies by a third from one iteration to the next."""

KL_OVER_TARGET = 3.0
"""KL over the controller's target, for a warning."""
KL_FAR_OVER_TARGET = 8.0
"""The same, for an error."""
KL_COST = 1.5
"""Penalty less gain in score, in deviations of a score, for a warning. Six healthy runs of the starter model had 0.67
at most. rlprobe's sign, a KL that has grown eightfold, says nothing here: it begins at 0 and grew 8 to 17 times in
those runs."""
KL_HIGH_COST = 3.0
"""The same, for an error."""
KL_OF_ENTROPY = 0.5
"""KL a token over the policy's first entropy, for an error if the score has not risen. Those runs had 0.17 at most."""
RISEN = 3.0
"""Standard errors by which a score must rise to count as a gain."""

STILL_ITERATIONS = 5
"""Iterations without any movement."""

NEGATIVE_KL = -0.05
"""Nats a sequence; a KL closer to 0 earns too little reward to matter."""
NEGATIVE_ITERATIONS = 12
"""Consecutive iterations with a negative KL. Near the reference, k1 is below 0 in up to 45% of the batches by chance,
and 0.45^12 is one in 14,000."""
MISMATCH = 0.05
"""Nats a token between sampler and trainer above which this is the cause; in float32 they differ by 1e-5."""

SAMPLED_ITERATIONS = 10
"""Newest iterations whose tokens are counted together, for a bias that begins late. All that are kept are counted
together too: their smaller error shows a smaller bias, which the whole run has."""
SAMPLING_ERRORS = 5.0
"""Standard errors between surprise and entropy; by chance, once in two million batches."""
RARE_NATS = 32.0
"""Added to the standard error of the summed surprise, in quadrature, so that the tokens suffice for the error. A policy
that is sure of its tokens seldom draws a rare one, of about 10 nats, and without any the measured error is nearly 0.
The term adds an eighth to the error of 1,000 tokens of a language model, and a thousandth to that of 131,072."""
SAMPLING_GAP = 0.05
"""Nats a token between them, for a warning. Rounding to bfloat16 between decoding and scoring stays below."""
FLOAT32_SAMPLING_GAP = 0.002
"""The same in float32, or the mean difference of the log-probs of sampler and trainer if that is larger: it is 1e-5 on
a CPU, but CUDA rounds the factors of its products to ten bits."""
LARGE_SAMPLING_GAP = 0.25
"""The same, for an error. Sums over a vocabulary of 49,152 in bfloat16 gave 0.44."""
LARGE_MISMATCH = 0.1
"""Mean nats a token between the log-probs of sampler and trainer; in bfloat16 they differ by 0.03 at most."""

_BIASED = (
    "Tokens are drawn from another distribution than the one that is scored, so every gradient is biased. Start a run "
    "with model.dtype = 'float32'; if that does not help, decoding and scoring of this model differ: choose another."
)

ENTROPY_WINDOW = 3
"""Iterations averaged, at the start and now, for the entropy."""
ENTROPY_LEFT = 0.2
"""Entropy over that of the start, for a warning; earlier than rldoctor's 0.1."""
ENTROPY_GONE = 0.05
"""The same, for an error."""
SMALL_ENTROPY = 0.1
"""Nats a token; a policy that begins below has no entropy to lose."""


def kl_high(history: History, config: Config) -> Sign | None:
    """Check for a KL that is far above the controller's target or costs more than the score has gained."""
    sign = _over_target(history, config) or _unpaid(history, config) or _for_nothing(history, config)
    if sign is None:
        return None
    last = history.run.newest(1)[0]
    return sign._replace(
        evidence=sign.evidence | {"kl_coef": last.kl_coef, "policy_lr": last.policy_lr},
        advice="The policy moves away from the reference by more than the reward is worth. Raise kl_coef, lower the "
        "clip or the policy's learning rate; if the text is already broken, roll back first.",
        fixes=["raise_kl_coef", "lower_policy_lr", "lower_clip", "roll_back"],
    )


def _over_target(history: History, config: Config) -> Sign | None:
    kl, target = mean(row.kl for row in history.run.newest(WINDOW)), config.ppo.kl_target
    if config.ppo.kl_controller != "adaptive" or not kl > KL_OVER_TARGET * target:
        return None
    return Sign(
        "error" if kl > KL_FAR_OVER_TARGET * target else "warning",
        f"KL is {kl:.3g} nats a sequence, {kl / target:.2g} times kl_target = {target:g}",
        {"kl": kl, "kl_target": target},
    )


def _unpaid(history: History, config: Config) -> Sign | None:
    """Check whether the penalty takes more than the score has gained, if both have the same unit and scale."""
    windows = history.scores.early_and_late(WINDOW)
    ppo, scaled = config.ppo, config.reward.normalize != "off"
    if windows is None or scaled or ppo.kl_controller == "adaptive" or ppo.kl_in == "loss":
        return None
    before, now = (mean(row.score_mean for row in rows) for rows in windows)
    deviation = max(mean(row.score_std for row in rows) for rows in windows)
    kl, cost = mean(row.kl for row in windows[1]), mean(row.kl_coef * row.kl for row in windows[1])
    gain = now - before
    if not cost - gain > KL_COST * deviation:
        return None
    return Sign(
        "error" if cost - gain > KL_HIGH_COST * deviation else "warning",
        f"KL is {kl:.3g} nats a sequence: the penalty takes {cost:.3g} off a score that has gained {gain:.3g}",
        {"kl": kl, "penalty": cost, "gain": gain, "score_std": deviation},
    )


def _for_nothing(history: History, config: Config) -> Sign | None:
    """Check whether the policy is far from the reference without a higher score, whatever the penalty."""
    windows = history.scores.early_and_late(WINDOW)
    if windows is None:
        return None
    before, now = (trained_scores(rows, config) for rows in windows)
    kl, length = mean(row.kl for row in windows[1]), mean(row.response_length for row in windows[1])
    start = mean(row.entropy for row in history.texts.all_kept()[:ENTROPY_WINDOW])
    if not (kl > KL_OF_ENTROPY * start * length and standard_errors(now, before) < RISEN):
        return None
    gain = fmean(now) - fmean(before)
    return Sign(
        "error",
        f"KL is {kl / length:.3g} nats a token where the policy's entropy began at {start:.3g}: it writes what the "
        f"reference hardly ever writes, for a gain of {gain:.3g} in score",
        {"kl": kl, "kl_a_token": kl / length, "early_entropy": start, "gain": gain},
    )


def not_training(history: History, config: Config) -> Sign | None:
    """Check for a policy that equals the reference exactly after steps that should move it, or gets no gradient."""
    rows = history.run.newest(STILL_ITERATIONS)
    if not rows or rows[0].iteration <= config.ppo.critic_warmup or any(row.steps == 0 for row in rows):
        return None
    no_gradient = all(row.grad_norm == 0 for row in rows)
    if not no_gradient and any(row.kl != 0 for row in rows):
        return None
    rate = rows[-1].policy_lr
    cause = "the gradient is 0" if no_gradient else f"its learning rate is {rate:g}"
    return Sign(
        "error",
        f"the policy has not moved in {len(rows)} iterations: KL is {rows[-1].kl:g}, and {cause}",
        {"kl": rows[-1].kl, "grad_norm": rows[-1].grad_norm, "policy_lr": rate},
        "Check optim.policy_lr, model.lora_targets (layers that the model has), and that the reward tells one response "
        "from another. If it does, lower kl_coef, raise the clip or raise the learning rate.",
        ["raise_policy_lr", "pause"],
    )


def kl_negative(history: History, config: Config) -> Sign | None:
    """Check for a k1 estimate that stays below 0, which is impossible for the KL of the sampled distribution."""
    rows = history.run.newest(NEGATIVE_ITERATIONS)
    kl = mean(row.kl for row in rows)
    if not rows or not all(row.kl < 0 for row in rows) or not kl < NEGATIVE_KL:
        return None
    rollout = config.rollout
    mismatch = mean(row.sampler_mismatch for row in rows)
    if rollout.top_p < 1 or rollout.top_k > 0:
        names = [name for name, on in (("top_p", rollout.top_p < 1), ("top_k", rollout.top_k > 0)) if on]
        restrict = "restrict" if len(names) > 1 else "restricts"
        cause = (
            f"{' and '.join(names)} {restrict} sampling to the likeliest tokens, and the policy earns reward by "
            "spreading probability over the rest"
        )
        advice = f"Sample from the whole distribution: turn {' and '.join(names)} off."
    elif mismatch > MISMATCH:
        cause = f"sampler and trainer differ by {mismatch:.2g} nats a token"
        advice = "The trainer does not score what was sampled: compare temperatures, dtypes and adapters."
    else:
        cause = "sampler and trainer agree, so suspect masks and stop tokens"
        advice = "Look at the samples: a token after the end or a missing end token must not count."
    return Sign(
        "warning",
        f"KL has been below 0 for {len(rows)} iterations, {kl:.3g} nats a sequence on average: {cause}",
        {"kl": kl, "sampler_mismatch": mismatch, "top_p": rollout.top_p, "top_k": rollout.top_k},
        advice,
        ["sample_all_p", "sample_all_k", "pause"],
    )


def sampling_bias(history: History, config: Config) -> Sign | None:
    """Check for tokens that are drawn from another distribution than the one that is scored."""
    kept = history.texts.all_kept()
    newest = kept[-SAMPLED_ITERATIONS:]
    mismatch = mean(row.sampler_mismatch for row in newest)
    if mismatch > LARGE_MISMATCH:
        message = f"the log-probs of sampler and trainer differ by {mismatch:.2g} nats a token"
        evidence = {"sampler_mismatch": mismatch, "kl": newest[-1].kl}
        return Sign("warning", message, evidence, _BIASED, ["pause"])
    if config.rollout.top_p < 1 or config.rollout.top_k > 0:
        return None
    is_float32 = history.dtype == "float32"
    least = min(max(FLOAT32_SAMPLING_GAP, mismatch), SAMPLING_GAP) if is_float32 else SAMPLING_GAP
    return _surprise_off(newest, config, least) or _surprise_off(kept, config, least)


def _surprise_off(rows: Sequence[Iteration], config: Config, least: float) -> Sign | None:
    """Check whether the sampled tokens are as surprising as their distributions say, but for chance and `least`."""
    rows = [row for row in rows if math.isfinite(row.surprise)]  # earlier versions did not record it
    if not rows:
        return None
    counts = [config.rollout.batch_size * row.response_length for row in rows]
    tokens = sum(counts)
    gap = sum(count * (row.surprise - row.entropy) for count, row in zip(counts, rows, strict=True)) / tokens
    errors = (count * row.surprise_error for count, row in zip(counts, rows, strict=True))
    error = math.hypot(RARE_NATS, *errors) / tokens
    if not (abs(gap) > least and abs(gap) > SAMPLING_ERRORS * error):
        return None
    surprise, entropy = (mean(values) for values in ((row.surprise for row in rows), (row.entropy for row in rows)))
    return Sign(
        "error" if abs(gap) > LARGE_SAMPLING_GAP else "warning",
        f"the sampled tokens have a surprise of {surprise:.3g} nats for an entropy of {entropy:.3g}, "
        f"{abs(gap) / error:.2g} standard errors apart",
        {"surprise": surprise, "entropy": entropy, "standard_error": error},
        _BIASED,
        ["pause"],
    )


def entropy_collapse(history: History, config: Config) -> Sign | None:
    """Check for a policy that is nearly sure of every token and so no longer explores."""
    start, now = history.texts.start_and_now("entropy", ENTROPY_WINDOW)
    if not (start > SMALL_ENTROPY and now < ENTROPY_LEFT * start):
        return None
    last = history.texts.newest(1)[0]
    return Sign(
        "error" if now < ENTROPY_GONE * start else "warning",
        f"entropy is {now:.3g} nats a token, {100 * now / start:.0f}% of what it was at the start",
        {"entropy": now, "early_entropy": start, "unique": last.unique, "kl": last.kl},
        "The policy writes nearly the same text each time and stops exploring. An entropy bonus, a lower learning "
        "rate or a higher kl_coef prevents this; a policy that has collapsed recovers only by rolling back.",
        ["roll_back", "entropy_bonus", "lower_policy_lr", "raise_kl_coef"],
    )
