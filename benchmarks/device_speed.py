"""Speed of generation, scoring and update on this device, and their shares of its limits."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import trainer  # noqa: F401  loads the BLAS, before anything imports mlx

# isort: split
import mlx.core as mx
import mlx.nn as nn
from device_models import (
    MICRO_BATCH_TOKENS,
    Tokenizer,
    device_memory,
    estimated_bytes,
    filled_batch,
    matrix_parameters,
    new_actor,
    random_prompts,
    weights_bytes,
)
from mlx_lm.generate import batch_generate
from mlx_lm.sample_utils import make_sampler

from trainer.arrays import filled, leaves
from trainer.config.ppo import PPOConfig
from trainer.config.schema import OptimConfig, RolloutConfig
from trainer.data import Prompt
from trainer.models.actor_critic import ActorCriticLLM
from trainer.ppo import steps
from trainer.ppo.learner import Learner
from trainer.ppo.losses import LossSettings
from trainer.rollout.experience import Experience
from trainer.rollout.generation import generate_responses, lay_out

PROMPT_TOKENS, NEW_TOKENS = 128, 64
BATCHES = (8, 16, 32, 64)
SPEED_COLUMNS = (
    "model",
    "weights",
    *(f"batch {size}" for size in BATCHES),
    "of bandwidth",
    "against mlx-lm",
    "scoring",
    "of flops",
    "update",
    "of flops",
    "GB of weights",
    "generation",
    "scoring",
    "update",
    "sampler - scoring, nats",
)
_PEAKS = ("weights_bytes", "generate_peak", "score_peak", "update_peak")
GAP = 0.05  # nats; largest mean difference of log-probs that passes


class Check(NamedTuple):
    """Measured value with the largest value that passes."""

    name: str
    value: float
    bound: float

    @property
    def holds(self) -> bool:
        """Return whether the value is a number within its bound; NaN is not."""
        return self.value <= self.bound


class Limits(NamedTuple):
    """Measured limits of the device."""

    flops: float  # floating-point operations per second of a large matrix product, in bfloat16 (float32 on a CPU)
    bandwidth: float  # bytes per second, read and written, of a large copy


def measure_limits() -> Limits:
    """Return the limits, measured with a large matrix product and a large copy."""
    on_gpu = mx.default_device() == mx.Device(mx.gpu)
    size, dtype = (8192, mx.bfloat16) if on_gpu else (1024, mx.float32)
    a, b = (mx.random.normal((size, size), key=mx.random.key(seed)).astype(dtype) for seed in (0, 1))
    flops = 2 * size**3 / best_seconds(lambda: a @ b)
    x = mx.random.normal((256 if on_gpu else 32, 1024, 1024), key=mx.random.key(2))
    return Limits(flops, 2 * x.nbytes / best_seconds(lambda: x + 1))


def best_seconds(work: Callable[[], Any], repeats: int = 5, inner: int = 3) -> float:
    """Return the seconds of one call of `work`: the mean of `inner` calls, in the fastest of `repeats` trials."""
    mx.eval(work())
    best = math.inf
    for _ in range(repeats):
        start = time.perf_counter()
        mx.eval([work() for _ in range(inner)])
        mx.synchronize()
        best = min(best, (time.perf_counter() - start) / inner)
    return best


def speed(
    size: str, shape: dict[str, int], kind: str, vocabulary: int, limits: Limits
) -> Iterator[dict[str, Any] | Check]:
    """Measure generation, scoring and update of one shape in one type of weights, and check what they compute.

    Yields the row of the table after each of the three, with what is known until then, and checks between. Keys of the
    row: generate (tokens per second by batch size), score, update (tokens per second), *_of_bandwidth and *_of_flops
    (shares of the limits), *_peak and weights_bytes (bytes), gap_mean and gap_max (nats), against_mlx_lm (our speed of
    generation divided by mlx-lm's). Raises RuntimeError if the device has too little memory.
    """
    needed, most = weights_bytes(shape, kind, vocabulary), device_memory()
    if needed > most:
        raise RuntimeError(f"its weights take at least {needed / 1e9:.1f} GB of {most / 1e9:.1f} GB")
    start = time.perf_counter()
    actor = new_actor(shape, kind, vocabulary=vocabulary)
    weights = sum(leaf.nbytes for leaf in leaves(actor.backbone.parameters()))
    row = {"size": size, "weights": kind, "load_seconds": time.perf_counter() - start, "weights_bytes": weights}
    mx.reset_peak_memory()
    batch, rates = measured_generation(actor, shape, vocabulary, weights, limits)
    yield (row := row | rates | {"generate_peak": mx.get_peak_memory()})
    mx.clear_cache()

    tokens, replies = sum(batch.lengths()), int(batch.response_lengths.sum())
    flops = 2 * (matrix_parameters(shape) * tokens + shape["hidden_size"] * vocabulary * replies)
    mx.reset_peak_memory()
    filled_batch(actor, batch)  # warm-up
    start = time.perf_counter()
    scored = steps.add_policy_logprobs_and_values(actor, batch, temperature=1.0, micro_batch_tokens=MICRO_BATCH_TOKENS)
    mx.eval(scored.logprobs)
    seconds = time.perf_counter() - start
    row |= {"score": tokens / seconds, "score_of_flops": flops / seconds / limits.flops}
    row |= {"score_peak": mx.get_peak_memory()}
    gap = mx.abs(filled(scored.logprobs) - batch.sampler_logprobs) * batch.mask
    row |= {"gap_mean": float(gap.sum() / batch.mask.sum()), "gap_max": float(gap.max())}
    yield row
    yield Check(f"{size}, {kind}: sampler - scoring, nats", row["gap_mean"], GAP)
    mx.clear_cache()

    longest = PROMPT_TOKENS + NEW_TOKENS
    needed = estimated_bytes(
        shape, kind, vocabulary, rows=MICRO_BATCH_TOKENS // longest, prompt=PROMPT_TOKENS, new=NEW_TOKENS
    )
    if needed > most:  # a Mac would begin to swap, or end the program
        raise RuntimeError(f"an update takes about {needed / 1e9:.1f} GB of {most / 1e9:.1f} GB")
    batch = filled_batch(actor, batch)
    learner = Learner(actor, OptimConfig(micro_batch_tokens=MICRO_BATCH_TOKENS), total_steps=4)
    mx.reset_peak_memory()
    first = learner.train(batch, LossSettings(PPOConfig(), 1.0), "joint")
    start = time.perf_counter()
    second = learner.train(batch, LossSettings(PPOConfig(), 1.0), "joint")
    seconds = time.perf_counter() - start
    # The frozen weights need no gradient, so an update is a forward pass and a backward pass through the activations.
    row |= {"update": tokens / seconds, "update_of_flops": 2 * flops / seconds / limits.flops}
    row |= {"update_peak": mx.get_peak_memory()}
    yield row
    off = mx.abs(filled(first.ratios) - 1) * batch.mask  # the policy is still the one that was scored
    yield Check(f"{size}, {kind}: ratio before the first step, from 1", float(off.sum() / batch.mask.sum()), GAP)
    outcomes = [step.metrics.outcome for step in (first, second)]
    skipped = [outcome for outcome in outcomes if outcome != "taken"]
    yield Check(f"{size}, {kind}: steps not taken {' '.join(skipped)}".rstrip(), len(skipped), 0)


def measured_generation(
    actor: ActorCriticLLM, shape: dict[str, int], vocabulary: int, weights: int, limits: Limits
) -> tuple[Experience, dict[str, Any]]:
    """Return a batch that was generated, and what was measured of all batches: a part of the row of `speed`."""
    backbone, tokenizer, row = actor.backbone, Tokenizer(), dict[str, Any]()
    sampling = RolloutConfig(max_new_tokens=NEW_TOKENS, slots=max(BATCHES), ignore_stop=True)
    warm_up = sampling.model_copy(update={"max_new_tokens": 4})
    row["generate"] = {}
    for count in BATCHES:
        prompts = random_prompts(count, PROMPT_TOKENS, vocabulary)
        generate_responses(backbone, tokenizer, prompts, warm_up, key=mx.random.key(0))
        times = [time.perf_counter()]
        responses = generate_responses(
            backbone,
            tokenizer,
            prompts,
            sampling,
            key=mx.random.key(1),
            progress=lambda *_, times=times: times.append(time.perf_counter()),
        )
        row["generate"][count] = count * NEW_TOKENS / (time.perf_counter() - times[0])
        if count == BATCHES[2]:
            batch, rate = lay_out(prompts, responses), row["generate"][count]
            theirs(backbone, prompts, 4)
            start = time.perf_counter()
            theirs(backbone, prompts, NEW_TOKENS)
            row["against_mlx_lm"] = rate * (time.perf_counter() - start) / (count * NEW_TOKENS)
    step_seconds = (times[-1] - times[1]) / (len(times) - 2)  # of the largest batch, without its prefill
    row["generate_of_bandwidth"] = step_bytes(backbone, shape, weights) / step_seconds / limits.bandwidth
    return batch, row


def step_bytes(backbone: nn.Module, shape: dict[str, int], weights: int) -> float:
    """Return what one step of the largest batch reads: each weight and cache once. It writes next to nothing."""
    per_token = 2 * shape["num_hidden_layers"] * min(8, shape["num_attention_heads"]) * 128 * 2
    tied = backbone.args.tie_word_embeddings  # otherwise a step reads one row of the table for each sequence
    unread = 0 if tied else sum(leaf.nbytes for leaf in leaves(backbone.model.embed_tokens.parameters()))
    return weights - unread + max(BATCHES) * (PROMPT_TOKENS + NEW_TOKENS / 2) * per_token


def speed_line(row: dict[str, Any]) -> str:
    """Return one row of the Markdown table; speeds are in tokens per second. Its last cell has the error, if any."""

    def cell(name: str, form: str) -> str:
        return form.format(row[name]) if name in row else ""

    gap = f"{row['gap_mean']:.3f}, at most {row['gap_max']:.2f}" if "gap_mean" in row else ""
    error = f"not measured: {row['error']}" if "error" in row else ""
    cells = [
        row["size"],
        row["weights"],
        *(f"{row['generate'][size]:,.0f}" if "generate" in row else "" for size in BATCHES),
        cell("generate_of_bandwidth", "{:.0%}"),
        cell("against_mlx_lm", "{:.2f}"),
        cell("score", "{:,.0f}"),
        cell("score_of_flops", "{:.0%}"),
        cell("update", "{:,.0f}"),
        cell("update_of_flops", "{:.0%}"),
        *(f"{row[name] / 1e9:.1f}" if name in row else "" for name in _PEAKS),
        "; ".join(filter(None, (gap, error.replace("|", "/")))),
    ]
    return f"| {' | '.join(cells)} |"


def theirs(backbone: nn.Module, prompts: list[Prompt], new_tokens: int) -> None:
    """Generate with mlx-lm's batch_generate, which also keeps the log-probs here."""

    class Endless(Tokenizer):
        eos_token_ids: Any = []  # noqa: RUF012  a list, as mlx-lm's tokenizers have

    batch_generate(
        backbone,
        Endless(),
        [prompt.tokens for prompt in prompts],
        max_tokens=new_tokens,
        sampler=make_sampler(temp=1.0),
        return_logprobs=True,
        completion_batch_size=max(BATCHES),
        stream=mx.default_stream(mx.default_device()),
    )
