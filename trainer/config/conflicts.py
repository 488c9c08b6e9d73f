"""Rules between settings: combinations that contradict each other, and those that are likely to disappoint."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from trainer.config.fields import FileSection, Section
from trainer.config.schema import Config
from trainer.plurals import counted

_SMALL_BATCH = 16  # sequences; statistics of a smaller batch are noise: PPO concepts reference, "Whitening"
_SMALLEST_BATCH = 8  # sequences, for advantages: each token has its own


class Conflict(NamedTuple):
    """A broken rule between fields."""

    keys: tuple[str, ...]
    """The one to change comes first."""
    message: str


def conflicts(config: Section) -> Iterator[Conflict]:
    """Yield the broken rules between settings; only PPO has any."""
    if isinstance(config, Config):
        yield from _sizes(config)
        yield from _algorithm(config)
        yield from _bounds(config)


def config_warnings(config: FileSection) -> list[str]:
    """Return a warning for each combination of settings that is allowed but likely to disappoint."""
    if not isinstance(config, Config):
        return []
    return [*_sampling_warnings(config), *_estimator_warnings(config), *_course_warnings(config)]


def _sizes(config: Config) -> Iterator[Conflict]:
    rollout, ppo, optim = config.rollout, config.ppo, config.optim
    for key, value in (
        ("rollout.samples_per_prompt", rollout.samples_per_prompt),
        ("ppo.minibatches", ppo.minibatches),
    ):
        if rollout.batch_size % value:
            divisors = [str(n) for n in range(1, rollout.batch_size + 1) if rollout.batch_size % n == 0]
            yield Conflict(
                (key, "rollout.batch_size"),
                f"{key} = {value} does not divide rollout.batch_size = {rollout.batch_size}; use "
                + " or ".join(filter(None, (", ".join(divisors[:-1]), divisors[-1]))),
            )
    longest = config.data.max_prompt_tokens + rollout.max_new_tokens
    if rollout.batch_size * longest > optim.buffer_tokens:
        smaller = (
            f"lower rollout.batch_size to at most {optim.buffer_tokens // longest}"
            if optim.buffer_tokens >= longest
            else "shorten data.max_prompt_tokens and rollout.max_new_tokens"
        )
        yield Conflict(
            ("optim.buffer_tokens", "rollout.batch_size", "rollout.max_new_tokens", "data.max_prompt_tokens"),
            f"optim.buffer_tokens = {optim.buffer_tokens} does not hold rollout.batch_size = "
            f"{rollout.batch_size} sequences of up to {longest} tokens: raise it to "
            f"{rollout.batch_size * longest} or {smaller}",
        )


def _algorithm(config: Config) -> Iterator[Conflict]:
    rollout, ppo = config.rollout, config.ppo
    if ppo.estimator in ("rloo", "grpo") and rollout.samples_per_prompt < 2:
        yield Conflict(
            ("rollout.samples_per_prompt", "ppo.estimator"),
            f"rollout.samples_per_prompt = {rollout.samples_per_prompt} leaves ppo.estimator = '{ppo.estimator}' "
            "nothing to compare a response with; use at least 2 (4 to 8 are usual), or 'reinforce' or 'remax'",
        )
    if ppo.estimator == "reinforce" and rollout.batch_size < 2:
        yield Conflict(
            ("rollout.batch_size", "ppo.estimator"),
            f"rollout.batch_size = {rollout.batch_size} leaves ppo.estimator = 'reinforce' no other sequence for its "
            "baseline; use at least 2",
        )
    if ppo.estimator == "remax" and config.reward.normalize == "batch":
        yield Conflict(
            ("reward.normalize", "ppo.estimator"),
            "reward.normalize = 'batch' scales the greedy responses of ppo.estimator = 'remax' by themselves, and they "
            "cannot serve as a baseline; use 'off' or 'running'",
        )
    if ppo.estimator == "remax" and ppo.whiten_rewards:
        yield Conflict(
            ("ppo.whiten_rewards", "ppo.estimator"),
            "ppo.whiten_rewards = true changes the scale of the rewards but not of the greedy responses' scores, which "
            "ppo.estimator = 'remax' subtracts; leave it off and use reward.normalize = 'running'",
        )
    if ppo.kl_in == "loss" and ppo.kl_estimator not in ("k2", "k3", "full"):
        yield Conflict(
            ("ppo.kl_estimator", "ppo.kl_in"),
            f"ppo.kl_estimator = '{ppo.kl_estimator}' has no gradient that lowers the KL when ppo.kl_in = 'loss'; use "
            "'full', 'k3' or 'k2'",
        )
    if ppo.kl_in == "reward" and ppo.kl_estimator == "full":
        yield Conflict(
            ("ppo.kl_estimator", "ppo.kl_in"),
            "ppo.kl_estimator = 'full' does not depend on the token that was drawn, so as a reward it teaches nothing "
            "about it; use ppo.kl_in = 'loss', or 'k1'",
        )
    if config.uses_prefix_scores and config.reward.normalize == "batch":
        yield Conflict(
            ("reward.normalize", "ppo.prefix_scores"),
            "reward.normalize = 'batch' scales scores by their own batch, and those of ppo.prefix_scores belong to "
            "none; use 'off' or 'running'",
        )
    if config.uses_prefix_scores and ppo.whiten_rewards:
        yield Conflict(
            ("ppo.whiten_rewards", "ppo.prefix_scores"),
            "ppo.whiten_rewards = true changes the scale of the rewards but not of ppo.prefix_scores; leave it off and "
            "use reward.normalize = 'running'",
        )
    if ppo.kl_controller == "adaptive" and ppo.kl_coef == 0:
        yield Conflict(
            ("ppo.kl_coef", "ppo.kl_controller"),
            "ppo.kl_coef = 0 disables ppo.kl_controller = 'adaptive', which only multiplies it; use 0.05, for example",
        )
    if config.model.value_init and config.model.value_model != "adapter":
        yield Conflict(
            ("model.value_model", "model.value_init"),
            f"model.value_model = '{config.model.value_model}' has no adapter to initialise from model.value_init: "
            "use 'adapter'",
        )


def _bounds(config: Config) -> Iterator[Conflict]:
    """Check settings that 0 switches off and that small positive numbers would break."""
    ppo, reward, rollout = config.ppo, config.reward, config.rollout
    for name, value, why in (
        ("dual_clip", ppo.dual_clip, "would bound losses that clipping leaves alone"),
        ("ratio_threshold", ppo.ratio_threshold, "would skip every minibatch: ratios start at 1"),
        ("importance_cap", ppo.importance_cap, "would cut weights, which start at 1"),
    ):
        if value and not (value > 1 or (name == "importance_cap" and value == 1)):
            yield Conflict(
                (f"ppo.{name}",), f"ppo.{name} = {value:g} {why}; use a number above 1, or 0 to switch it off"
            )
    if reward.overlong_tokens >= rollout.max_new_tokens:
        yield Conflict(
            ("reward.overlong_tokens", "rollout.max_new_tokens"),
            f"reward.overlong_tokens = {reward.overlong_tokens} leaves no length without a penalty; use less than "
            f"rollout.max_new_tokens = {rollout.max_new_tokens}",
        )


def _sampling_warnings(config: Config) -> Iterator[str]:
    rollout, ppo, optim = config.rollout, config.ppo, config.optim
    if ppo.kl_coef > 0 and (rollout.top_p < 1 or rollout.top_k > 0):
        yield (
            "rollout.top_p or rollout.top_k filters the sampled distribution, but the KL is computed over "
            "the whole distribution, so it is biased and may be negative"
        )
    for name, is_on, least in (
        ("whiten_rewards", ppo.whiten_rewards, _SMALL_BATCH),
        ("whiten_advantages", ppo.whiten_advantages, _SMALLEST_BATCH),
    ):
        if is_on and rollout.batch_size < least:
            yield (
                f"ppo.{name} with rollout.batch_size = {rollout.batch_size}: statistics of fewer than {least} "
                "sequences are noise"
            )
    longest = config.data.max_prompt_tokens + rollout.max_new_tokens
    if optim.micro_batch_tokens < longest:
        yield (
            f"optim.micro_batch_tokens = {optim.micro_batch_tokens} is less than the longest sequence of "
            f"{longest} tokens: a micro-batch of one such sequence exceeds it"
        )


def _estimator_warnings(config: Config) -> Iterator[str]:
    ppo, model = config.ppo, config.model
    if ppo.estimator == "grpo" and ppo.whiten_advantages:
        yield (
            "ppo.whiten_advantages scales the advantages of ppo.estimator = 'grpo' once more, over the whole batch: "
            "set it to false for GRPO as published"
        )
    if ppo.estimator != "gae":
        unused = [
            name
            for name, is_set in (
                ("model.value_model", model.value_model != "head"),
                ("model.value_init", bool(model.value_init)),
                ("ppo.critic_warmup", ppo.critic_warmup > 0),
                ("ppo.bootstrap_truncated", ppo.bootstrap_truncated),
            )
            if is_set
        ]
        if unused:
            yield f"{' and '.join(unused)} have no effect: ppo.estimator = '{ppo.estimator}' has no critic"
        return
    if ppo.critic_warmup >= ppo.iterations:
        yield (
            f"ppo.critic_warmup = {ppo.critic_warmup} takes all ppo.iterations = {ppo.iterations}: the policy does not "
            "learn"
        )
    if ppo.prefix_scores < 0 and not config.uses_prefix_scores:
        yield (
            "ppo.prefix_scores = -1 is off, because a reward source is a Python function or a model, which may be slow "
            f"or fail on half a text: set it to a number of tokens to use them, or else ppo.lam = {ppo.lam:g} to 0.95"
        )


def _course_warnings(config: Config) -> Iterator[str]:
    convergence, checkpoint = config.convergence, config.checkpoint
    rolls_back = "rollback" in (
        convergence.on_target,
        convergence.on_plateau,
        convergence.on_collapse,
        convergence.on_degradation,
        convergence.on_kl,
    )
    if config.eval.every and config.reward.normalize == "batch" and not config.eval.reference:
        yield (
            "reward.normalize = 'batch' gives every evaluation without the reference a mean score of 0: "
            "set eval.reference to true"
        )
    keeps_best = checkpoint.best != "off" and config.eval.every > 0
    if rolls_back and not keeps_best:
        kept = f"only {counted(checkpoint.keep, 'checkpoint')}" if checkpoint.keep else "no best checkpoint"
        yield f"[convergence] may roll back, but the run keeps {kept}: set eval.every, and checkpoint.best to 'score'"
