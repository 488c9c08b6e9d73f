"""Rules on the updates: how far steps go, what drives them, whether the critic helps, and how fast iterations are."""

from __future__ import annotations

import math
from statistics import fmean, median, quantiles

from trainer.confidence import ROUNDING
from trainer.config.schema import Config
from trainer.errors import counted
from trainer.events import Iteration
from trainer.monitoring.history import FIRST, History, Sign, mean

CLIP_ITERATIONS = 3
"""Consecutive iterations above the threshold."""
CLIP_START = 5
"""First iterations, not counted: Adam's first steps clip 0.15 to 0.22 of the quickstart's tokens, others more."""
CLIPPED = 0.2
"""Clip fraction, for a warning. As in rldoctor."""
MUCH_CLIPPED = 0.4
"""The same, for an error. As in rldoctor."""

MEAN_RATIO = 10.0
"""Mean ratio of the steps: TRL's threshold, and the default of ppo.ratio_threshold."""
LOG_RATIO = 20.0
"""|log pi - log pi_old| of one token; healthy runs of the quickstart reach 2.3."""
SPIKE_ITERATIONS = 5
OFTEN_SPIKED = 3
"""Spikes among SPIKE_ITERATIONS, for an error."""

SILENT_ITERATIONS = 3
LONG_SILENT_ITERATIONS = 10

CRITIC_ITERATIONS = 10
"""Consecutive iterations with an explained variance below 0: rlprobe's sign."""
CRITIC_START = 10
"""First iterations, in which a critic that began at zero may be worse than a constant."""
WORSE_THAN_A_CONSTANT = -0.25
"""Mean explained variance, for a warning, where each batch counts by the variance of its scores over that of the run:
returns that hardly vary give large negative numbers. Over ten iterations, heads reached -0.25 in 28 healthy runs, a
fitted critic -0.06."""
LOST = -1.0
"""The same, for an error: the critic's error is about twice the variance of the returns."""
GROWN_VALUE_LOSS = 3.0
"""Value loss over that of the start at which the critic runs away. As in rlprobe."""

CRITIC_SHARE = 0.5
"""Share of the critic in the norms of both gradients on the policy's adapter: above, it moves the policy more than the
reward does. The quickstart's stays below 0.1."""

GRADIENT_ITERATIONS = 10
GRADIENT_WINDOW = 50
GRADIENT_OVER_MEDIAN = 10.0
"""Gradient norm over the median of earlier ones, for a warning. As in rlprobe."""
GRADIENT_FAR_OVER_MEDIAN = 100.0
"""The same, for an error."""

SLOWER = 1.4
"""Tokens a second of the run's first tenth over the current ones. As in rlprobe."""
BASELINE_FEWEST, BASELINE_MOST = 5, 10
"""Bounds on the iterations at the start whose median is the baseline."""
SPEED_ITERATIONS = 10
"""Newest iterations; their fastest quarter counts, because other programs that come and go do not matter. On two shared
cores healthy runs had up to 6 slow iterations in a row."""
SLOW_SECONDS = 120.0
"""Seconds that those take at least: shorter slowdowns do not matter, and short runs are fast enough."""
SIMILAR_WORK = 1.25
"""Factor within which lengths and passes must agree for speeds to be comparable: short texts cost more a token."""
GROWN_MEMORY = 1.2

STRAGGLER_ITERATIONS = 10
"""Consecutive iterations with the same slowest rank: with random lengths, each of two ranks of one speed is the slowest
in all of them once in 512 times."""
LOST_SHARE = 0.2
"""Share of each iteration that every other rank waits longer than the slowest."""
LOST_SECONDS = 10.0
"""Time that the others lose in these iterations together; less does not matter."""
assert FIRST > BASELINE_MOST  # so that the history keeps the whole baseline

_UNSTABLE = (
    "Training is unstable: lower the policy's learning rate or the clip, take smaller steps (more minibatches) or "
    "whiten the rewards."
)


def clip_saturation(history: History, config: Config) -> Sign | None:
    """Check whether so much of the batch is clipped that more passes over it teach nothing."""
    rows = history.run.newest(CLIP_ITERATIONS)
    if not rows or rows[0].iteration <= CLIP_START or not all(row.clip_fraction > CLIPPED for row in rows):
        return None
    fraction = mean(row.clip_fraction for row in rows)
    return Sign(
        "error" if all(row.clip_fraction > MUCH_CLIPPED for row in rows) else "warning",
        f"{100 * fraction:.0f}% of the tokens are clipped, {len(rows)} iterations in a row",
        {"clip_fraction": fraction, "approx_kl": rows[-1].approx_kl, "epochs": config.ppo.epochs},
        "The policy moves further in one iteration than the batch supports: use fewer epochs or a lower learning rate.",
        ["fewer_epochs", "lower_policy_lr", "roll_back"],
    )


def ratio_spike(history: History, config: Config) -> Sign | None:
    """Check for a step that found the policy far from the one that wrote the batch."""
    last = history.run.newest(1)
    if not last or not _spiked(last[0]):
        return None
    row = last[0]
    spiked = sum(map(_spiked, history.run.newest(SPIKE_ITERATIONS)))
    steps = row.spiked_steps + row.steps
    skipped = f"{row.spiked_steps} of {steps} steps were skipped because of this" if row.spiked_steps else ""
    ratio = f"the largest log-ratio is {row.log_ratio_max:.3g}" if math.isfinite(row.log_ratio_max) else ""
    reason = ", ".join(filter(None, (ratio, skipped))) or f"the mean ratio is {row.ratio_mean:.3g}"
    return Sign(
        "error" if spiked >= OFTEN_SPIKED else "warning",
        f"the policy has moved far from the one that wrote the batch: {reason}",
        {"log_ratio_max": row.log_ratio_max, "ratio_mean": row.ratio_mean, "spiked_steps": row.spiked_steps},
        f"{_UNSTABLE} Fewer epochs help as well.",
        ["lower_policy_lr", "fewer_epochs", "lower_clip", "roll_back"],
    )


def _spiked(row: Iteration) -> bool:
    return row.spiked_steps > 0 or row.log_ratio_max > LOG_RATIO or row.ratio_mean > MEAN_RATIO


def no_signal(history: History, config: Config) -> Sign | None:
    """Check for a reward that does not distinguish responses; a solved task does not count."""
    rows = history.run.newest(SILENT_ITERATIONS)
    if not rows or not all(map(_silent, rows)):
        return None
    known = history.scores.rows
    best = max((row.score_max for row in known), default=math.inf)
    if known and known[-1].score_min >= best and not all(map(_no_spread, known)):
        return None  # solved: all get the best score of the run, after some iteration in which they differed
    long = history.run.newest(LONG_SILENT_ITERATIONS)
    lasts = bool(long) and all(map(_silent, long))
    rows = long if lasts else rows
    last = rows[-1]
    constant = all(map(_no_spread, rows))
    what = f"every response scores {last.score_mean:.3g}" if constant else "the advantages do not differ"
    if all(row.unscored == 1 for row in rows):
        what = "no reward source applies to any response"
    return Sign(
        "error" if lasts else "warning",
        f"nothing to learn from in {len(rows)} iterations: {what}",
        {"score_std": last.score_std, "advantage_std": last.advantage_std, "steps": last.steps},
        "The reward is constant, or does not apply: check reward.sources. If it is only rare, use a larger batch, more "
        "samples per prompt, or a reward that gives partial credit.",
        ["pause"],
    )


def _no_spread(row: Iteration) -> bool:
    return row.score_max - row.score_min <= ROUNDING * max(1.0, abs(row.score_mean))


def _silent(row: Iteration) -> bool:
    return _no_spread(row) or row.advantage_std <= ROUNDING or (row.steps == 0 and row.skipped_steps == 0)


def critic_lost(history: History, config: Config) -> Sign | None:
    """Check for a critic whose values have long explained the returns worse than a constant would."""
    rows = history.scores.newest(CRITIC_ITERATIONS)
    if not rows or rows[0].iteration <= max(CRITIC_START, config.ppo.critic_warmup):
        return None
    if all(map(_silent, rows)) or not all(row.explained_variance < 0 for row in rows):
        return None  # returns that do not vary cannot be explained
    usual = mean(row.score_std**2 for row in history.scores.rows)
    lost = fmean(row.explained_variance * row.score_std**2 for row in rows)
    explained = lost / usual if usual > 0 else math.nan
    if not explained < WORSE_THAN_A_CONSTANT:
        return None
    start = mean(row.value_loss for row in history.scores.rows[:CRITIC_ITERATIONS])
    loss = mean(row.value_loss for row in rows)
    fitted, runs_away = config.model.value_model == "fitted", loss > GROWN_VALUE_LOSS * start
    # Values worse than a constant vary more than they explain: mostly noise of steps on few sequences.
    if fitted:
        advice = (
            "It is fitted to the batches so far, so either the returns change faster than it follows, or the batches "
            "are very small. Begin a new run with a larger rollout.batch_size, or without a critic (ppo.estimator)."
        )
    else:
        advice = (
            "Begin a new run with model.value_model = 'fitted', which learns from the fewest sequences, or without a "
            "critic (ppo.estimator). In this run, "
        ) + (
            "the critic's steps are too large: lower value_lr."
            if runs_away
            else "either the critic's steps are too large for so few sequences: lower value_lr. Or the policy or its "
            "reward changes faster than it learns: raise value_lr."
        )
    return Sign(
        "error" if explained < LOST else "warning",
        f"explained variance has been below 0 for {len(rows)} iterations, on average {explained:.2g} of the "
        "scores' usual variance"
        + (f", and the value loss has grown from {start:.3g} to {loss:.3g}" if runs_away else ""),
        {"explained_variance": explained, "value_loss": loss, "early_value_loss": start}
        | ({} if fitted else {"value_lr": rows[-1].value_lr}),
        f"The advantages rest on a critic that predicts worse than a constant. {advice}",
        ["pause"] if fitted else ["lower_value_lr", "roll_back" if runs_away else "raise_value_lr", "pause"],
    )


def critic_pull(history: History, config: Config) -> Sign | None:
    """Check for a value loss that moves the policy more than the policy's own loss does."""
    last = history.run.newest(1)
    if not last or not last[0].critic_share > CRITIC_SHARE:
        return None
    share = last[0].critic_share
    return Sign(
        "warning",
        f"the value loss has {100 * share:.0f}% of the gradient on the policy's adapter",
        {"critic_share": share, "value_coef": config.ppo.value_coef, "value_loss": last[0].value_loss},
        "The critic, a head on the policy's own states, moves the policy more than the reward does: lower "
        "ppo.value_coef, or begin a new run with model.value_model = 'fitted', which moves no adapter.",
        ["lower_value_coef", "pause"],
    )


def gradient_spike(history: History, config: Config) -> Sign | None:
    """Check for a gradient that stands out from earlier ones and is large enough to be scaled down."""
    newest = history.scores.rows[-GRADIENT_WINDOW:]
    rows = [row for row in newest if row.iteration > config.ppo.critic_warmup]
    norms = [row.grad_norm_max if math.isfinite(row.grad_norm_max) else row.grad_norm for row in rows]
    known = [norm for norm in norms[:-1] if math.isfinite(norm)]
    if len(known) < GRADIENT_ITERATIONS or not (middle := median(known)) > 0:
        return None
    norm = norms[-1]
    if not (norm > GRADIENT_OVER_MEDIAN * middle and norm > config.optim.max_grad_norm):
        return None
    return Sign(
        "error" if norm > GRADIENT_FAR_OVER_MEDIAN * middle else "warning",
        f"the gradient's norm is {norm:.3g}, {norm / middle:.0f} times the earlier median of {middle:.3g}",
        {"grad_norm_max": norm, "median": middle, "max_grad_norm": config.optim.max_grad_norm},
        f"{_UNSTABLE} If the samples have become worse since, roll back.",
        ["lower_policy_lr", "roll_back", "lower_clip"],
    )


def step_nan(history: History, config: Config) -> Sign | None:
    """Check for a step that was skipped because a loss or gradient was NaN or inf."""
    last = history.run.newest(1)
    lost = history.lost_steps or (last[0].skipped_steps - last[0].spiked_steps if last else 0)
    if lost <= 0:
        return None
    return Sign(
        "error",
        f"{counted(lost, 'step was', 'steps were')} skipped in iteration {history.iteration}: loss or "
        "gradient was NaN or infinite",
        {"lost_steps": lost, "policy_lr": config.optim.policy_lr},
        "The weights are as before the step, but the cause remains: roll back to the last good checkpoint and lower "
        "the learning rate. Likely causes are half precision and unbounded rewards.",
        ["roll_back", "lower_policy_lr", "pause"],
    )


def throughput(history: History, config: Config) -> Sign | None:
    """Check whether the run has become slow at the same work; the first iteration compiles kernels and is ignored."""
    count = min(max(config.ppo.iterations // 10, BASELINE_FEWEST), BASELINE_MOST)
    rows = [row for row in history.speed.rows if row.iteration > config.ppo.critic_warmup]
    if len(rows) < 1 + count + SPEED_ITERATIONS:
        return None
    early, late = rows[1 : 1 + count], rows[-SPEED_ITERATIONS:]
    before = median(row.tokens_per_second for row in early)
    now = quantiles((row.tokens_per_second for row in late), n=4)[2]
    took = sum(sum(row.seconds.values()) for row in late)
    if not before > SLOWER * now or took < SLOW_SECONDS:
        return None
    for metric in ("response_length", "epochs_done"):
        a, b = (mean(getattr(row, metric) for row in rows) for rows in (early, late))
        if a > SIMILAR_WORK * b or b > SIMILAR_WORK * a:  # NaN, as in older journals, counts as similar
            return None
    memory = [mean(row.memory_bytes for row in rows) / 2**20 for rows in (early, late)]
    grown = memory[1] > GROWN_MEMORY * memory[0]
    more_memory = f", and memory has grown from {memory[0]:.0f} to {memory[1]:.0f} MiB" if grown else ""
    spent = [
        (name, [median(row.seconds.get(name, 0.0) for row in rows) for rows in (early, late)])
        for name in late[-1].seconds
    ]
    longest = max(spent, key=lambda one: one[1][1] - one[1][0], default=("an iteration", [1.0, SLOWER]))
    phase, (took_before, takes) = longest
    factor = takes / took_before if took_before else SLOWER
    return Sign(
        "warning",
        f"at most {now:.3g} tokens/s in {SPEED_ITERATIONS} iterations, {before:.3g} at the start: {phase} takes "
        f"{factor:.2g} times as long{more_memory}",
        {"tokens_per_second": now, "early_tokens_per_second": before, "memory_mib": memory[1]},
        (
            "Memory grows, so the machine may be swapping: lower optim.micro_batch_tokens, or set "
            "optim.grad_checkpoint in a new run."
            if grown
            else "The same work takes longer: look for other programs on this machine, for heat, and for a reward "
            "function that gets slower."
        ),
        ["pause"],
    )


def straggler(history: History, config: Config) -> Sign | None:
    """Check for a rank that all others wait for, iteration after iteration; it waits least itself."""
    rows = history.speed.newest(STRAGGLER_ITERATIONS)
    waiting = [[float(rank.get("waiting", math.nan)) for rank in row.ranks] for row in rows]
    if not waiting or len(waiting[-1]) < 2 or any(len(row) != len(waiting[-1]) for row in waiting):
        return None
    slowest = waiting[-1].index(min(waiting[-1]))
    lost = [min(row[:slowest] + row[slowest + 1 :]) - row[slowest] for row in waiting]
    seconds = [max(float(rank.get("seconds", math.nan)) for rank in row.ranks) for row in rows]
    if sum(lost) < LOST_SECONDS or not all(a > LOST_SHARE * b for a, b in zip(lost, seconds, strict=True)):
        return None
    return Sign(
        "warning",
        f"{rows[-1].ranks[slowest].get('host', f'rank {slowest}')} is slower than the other ranks: they wait "
        f"{mean(lost):.3g} s of each iteration ({mean(seconds):.3g} s) for it, {len(rows)} iterations in a row",
        {"seconds_lost": mean(lost), "seconds": mean(seconds)},
        "On that host, check for other programs, overheating, swapping and slower hardware; rank 0 also runs the "
        "Python functions of the reward.",
        ["pause"],
    )
