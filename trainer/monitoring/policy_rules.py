"""Rules on where the policy goes: its KL and entropy, and what the reward makes of its responses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean

from trainer.config.schema import Config
from trainer.errors import counted
from trainer.events import Fix, Iteration
from trainer.monitoring.history import History, Sign, mean, source_parts, standard_errors, trained_scores

WINDOW = 5
"""Iterations averaged: the KL of a batch of 8 varies by a third from one iteration to the next. Also for length, ends
and repetition, at the start and now."""

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
    start = mean(row.entropy for row in history.texts.rows[:ENTROPY_WINDOW])
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
    kept = history.texts.rows
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


HACKING_WINDOW = 10
"""Iterations compared: the first with the newest."""
SURE = 4.0
"""Standard errors beyond which a difference is not chance: with 50 evaluations, chance alone causes such a fall after
the best two once in 3,000 runs."""
SMALLEST_FALL = 0.1
"""Fall of a watched part, as a share of its start; a smaller one is not worth an alarm, however sure."""
FEWEST_JUDGEMENTS = 20

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
    errors = [
        fmean(one.evaluation.score_std / math.sqrt(max(one.evaluation.prompts, 1)) for one in pair) for pair in pairs
    ]
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


def length_exploitation(history: History, config: Config) -> Sign | None:
    """Check whether longer responses score higher and responses have become longer, though no length is rewarded."""
    if any(source.kind == "length" and source.weight for source in config.reward.sources):
        return None
    start, now = history.scores.start_and_now("response_length", WINDOW)
    known = [
        row.length_correlation
        for row in history.scores.rows[-CORRELATION_ITERATIONS:]
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
