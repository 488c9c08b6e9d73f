"""Checks that sampling, gradients, training and memory are right on this device, for device_check.py."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import trainer  # noqa: F401  loads the BLAS, before anything imports mlx

# isort: split
import mlx.core as mx
import numpy as np
from device_models import (
    DTYPES,
    MICRO_BATCH_TOKENS,
    TRY,
    Tokenizer,
    estimated_bytes,
    filled_batch,
    new_actor,
    random_prompts,
)
from device_speed import GAP, Check
from families import GAPS, PRECISIONS, check_family, tiny_backbone
from family_values import VOCABULARY as TINY_VOCABULARY

from trainer.arrays import filled
from trainer.config.ppo import PPOConfig
from trainer.config.schema import ModelConfig, OptimConfig, RolloutConfig
from trainer.models.actor_critic import ActorCriticLLM
from trainer.ppo.learner import Learner
from trainer.ppo.losses import LossSettings
from trainer.rollout.generation import Response, generate_responses, lay_out, sample_tokens

GRADIENTS = ("qwen3_5", "nemotron_h", "gpt_oss", "gemma3")
"""Families with other layers than attention: linear attention, a recurrence, experts, sliding windows."""
ESTIMATE = 1.3
"""Largest peak of an update over its estimate. On an H100 it was 1.17 for 0.6B, 1.06 for 1.7B and 1.01 for 8B."""

Gradient = tuple[
    np.ndarray, dict[str, dict[str, np.ndarray]]
]  # log-probs of the real tokens; gradients by side and name


def sampling_checks() -> Iterator[Check]:
    """Yield checks of sampled tokens against the exact distribution, in each type and for three sizes of vocabulary."""
    count = 20_000
    for vocabulary in (1000, 50_000, 150_000):
        for name, dtype in DTYPES.items():
            logits = np.random.default_rng(0).normal(size=vocabulary) * 2.5
            logits[:20] += 10 if vocabulary > 1000 else 3
            row = mx.array(logits.astype(np.float32)).astype(dtype)
            exact = np.array(row.astype(mx.float32)).astype(np.float64)
            logprobs = exact - np.log(np.exp(exact).sum())
            probabilities = np.exp(logprobs)
            drawn, said = [], []
            for keys in mx.random.split(mx.random.key(0), count).reshape(-1, 500, 2):
                sampled = sample_tokens(mx.broadcast_to(row, (keys.shape[0], vocabulary)), keys, RolloutConfig())
                drawn.append(np.array(sampled.tokens))
                said.append(np.array(sampled.logprobs))
            tokens, told = np.concatenate(drawn), np.concatenate(said)
            entropy = -(probabilities * logprobs).sum()
            deviation = math.sqrt((probabilities * (logprobs + entropy) ** 2).sum() / count)
            surprise = -logprobs[tokens].mean()
            yield Check(
                f"{name}, {vocabulary} tokens: surprise - entropy, deviations", abs(surprise - entropy) / deviation, 4
            )
            likely = np.argsort(-logprobs)[:50]
            mass = probabilities[likely].sum()
            off = abs(np.isin(tokens, likely).mean() - mass) / math.sqrt(mass * (1 - mass) / count)
            yield Check(f"{name}, {vocabulary} tokens: mass of the likeliest 50, deviations", off, 4)
            yield Check(
                f"{name}, {vocabulary} tokens: log-probs, nats", float(abs(told - logprobs[tokens]).max()), 1e-3
            )


def gradient_checks() -> Iterator[Check]:
    """Yield checks of the gradient of a dense model of two layers, in two types, against float32 on the CPU."""

    def make(kind: str) -> Callable[[], ActorCriticLLM]:
        return lambda: new_actor(TRY, kind, vocabulary=2048)

    exact = gradient(make("float32"), mx.cpu, vocabulary=2048)
    # On CUDA, a float32 matrix product uses TF32, whose mantissa has ten bits. Of weights with ten bits, a CPU gives
    # errors up to 0.003, and of bfloat16 up to 0.07.
    for kind, bound in (("float32", 0.01 if mx.cuda.is_available() else 1e-3), ("bfloat16", 0.2)):
        yield from compared(f"qwen3, {kind}", gradient(make(kind), mx.default_device(), vocabulary=2048), exact, bound)


def family_gradient_checks(family: str) -> Iterator[Check]:
    """Yield checks of the gradient of a tiny model of `family` in float32 against the CPU.

    Rounding to bfloat16 would send tokens to other experts, and so tell nothing. The old log-probs are scored outside
    the gradient, where Metal has kernels of its own for linear attention and recurrences.
    """

    def make() -> ActorCriticLLM:
        return ActorCriticLLM(tiny_backbone(family, mx.float32), ModelConfig(value_model="head"), key=mx.random.key(0))

    exact, here = (gradient(make, device, vocabulary=TINY_VOCABULARY) for device in (mx.cpu, mx.default_device()))
    # Of weights with ten bits, a CPU gives errors up to 0.04, in the linear attention of qwen3_5.
    yield from compared(f"{family}, float32", here, exact, 0.1 if mx.cuda.is_available() else 5e-3)


def gradient(make: Callable[[], ActorCriticLLM], device: Any, *, vocabulary: int) -> Gradient:
    """Return log-probs and gradient of one minibatch of a small model on `device`."""
    before = mx.default_device()
    mx.set_default_device(device)
    try:
        actor = make()
        random = np.random.default_rng(3)
        prompts = random_prompts(8, 24, vocabulary)
        replies = [random.integers(0, vocabulary, size=int(count)).tolist() for count in random.integers(8, 32, size=8)]
        batch = lay_out(prompts, [Response(tokens, [0.0] * len(tokens), "", True) for tokens in replies])
        for name, array in actor.policy_parameters().items():  # B is 0 in a new adapter, which makes A's gradient 0
            noise = np.random.default_rng(len(name)).normal(size=array.shape).astype(np.float32) * 0.02
            actor.update_policy(actor.policy_parameters() | {name: mx.array(noise)})
        batch = filled_batch(actor, batch)
        learner = Learner(actor, OptimConfig(micro_batch_tokens=MICRO_BATCH_TOKENS), total_steps=4)
        found, *_ = learner.gradients(batch, LossSettings(PPOConfig(), 1.0), "joint")
        gradients = {
            side: {name: np.array(array.astype(mx.float32)) for name, array in arrays.items()}
            for side, arrays in found.items()
        }
        return np.array(filled(batch.logprobs))[np.array(batch.mask) > 0], gradients
    finally:
        mx.set_default_device(before)


def compared(title: str, here: Gradient, exact: Gradient, bound: float) -> Iterator[Check]:
    """Yield checks of log-probs and of the worst gradient of each side, which is NaN where an array has none."""
    yield Check(f"{title}: log-probs, nats in the mean", float(np.abs(here[0] - exact[0]).mean()), GAP)
    for side, arrays in exact[1].items():
        errors = {
            name: float(np.linalg.norm(here[1][side][name] - array) / (np.linalg.norm(array) or math.nan))
            for name, array in arrays.items()
        }
        worst = max(errors, key=lambda name: (math.isnan(errors[name]), errors[name]))
        place = ".".join(worst.split(".")[-4:])
        yield Check(f"{title}: gradient of the {side}, relative error, worst: {place}", errors[worst], bound)


def family_checks(family: str, kind: str) -> Iterator[Check]:
    """Yield a check of two PPO iterations of a tiny model of `family`."""
    report = check_family(family, *PRECISIONS[kind])
    trained = report["outcome"] in ("trains", "off")
    trouble = "" if trained else f" ({report['error'][:60]})"
    gap = report["gap_mean"] if trained else math.nan
    yield Check(f"{family}, {kind}: sampler - scoring, nats{trouble}", gap, GAPS["other"])


def memory_checks(shape: dict[str, int], kind: str, vocabulary: int) -> Iterator[Check]:
    """Yield checks of the memory that one PPO iteration takes and returns."""
    mx.clear_cache()
    others = mx.get_active_memory()
    actor = new_actor(shape, kind, vocabulary=vocabulary)
    before = mx.get_active_memory()
    prompts = random_prompts(8, 128, vocabulary)
    sampling = RolloutConfig(max_new_tokens=32, ignore_stop=True)
    responses = generate_responses(actor.backbone, Tokenizer(), prompts, sampling, key=mx.random.key(0))
    batch = filled_batch(actor, lay_out(prompts, responses))
    learner = Learner(actor, OptimConfig(micro_batch_tokens=MICRO_BATCH_TOKENS), total_steps=4)
    mx.reset_peak_memory()
    learner.train(batch, LossSettings(PPOConfig(), 1.0), "joint")
    estimated = estimated_bytes(shape, kind, vocabulary, rows=8, prompt=128, new=32)
    peak = mx.get_peak_memory() - others
    yield Check("peak of an update, share of the workbench's estimate", peak / estimated, ESTIMATE)
    del responses, batch, learner
    mx.clear_cache()
    yield Check("memory kept after it, share of that before", mx.get_active_memory() / before, 1.1)
