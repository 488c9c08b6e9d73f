"""Speed of generation, scoring and update on this device, and their shares of its limits."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import trainer  # noqa: F401  loads the BLAS, before anything imports mlx

# isort: split
import mlx.core as mx
import mlx.nn as nn
from device_models import MICRO_BATCH_TOKENS, Tokenizer, device_memory, filled_batch, new_actor, random_prompts
from mlx_lm.generate import batch_generate
from mlx_lm.sample_utils import make_sampler

from trainer.arrays import leaves
from trainer.config.schema import OptimConfig, PPOConfig, RolloutConfig
from trainer.data import Prompt
from trainer.ppo import steps
from trainer.ppo.learner import Learner
from trainer.rollout.generation import generate_responses, lay_out

VOCABULARY = 151_936
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


def speed(size: str, shape: dict[str, int], kind: str, limits: Limits) -> dict[str, Any]:
    """Measure generation, scoring and update of one shape in one type of weights.

    Keys of the row: generate (tokens per second by batch size), score, update (tokens per second), *_of_bandwidth and
    *_of_flops (shares of the limits), *_peak and weights_bytes (bytes), gap_mean and gap_max (nats), against_mlx_lm
    (our speed of generation divided by mlx-lm's). Raises RuntimeError if the device has too little memory.
    """
    made = 2 * (matrix_parameters(shape) + shape["hidden_size"] * VOCABULARY)  # in bfloat16, before it is quantised
    if made > device_memory():
        raise RuntimeError(f"its weights take at least {made / 1e9:.1f} GB of {device_memory() / 1e9:.1f} GB")
    start = time.perf_counter()
    actor = new_actor(shape, kind, vocabulary=VOCABULARY)
    backbone, tokenizer = actor.backbone, Tokenizer()
    weights = sum(leaf.nbytes for leaf in leaves(backbone.parameters()))
    row: dict[str, Any] = {
        "size": size,
        "weights": kind,
        "load_seconds": time.perf_counter() - start,
        "weights_bytes": weights,
    }
    sampling = RolloutConfig(max_new_tokens=NEW_TOKENS, slots=max(BATCHES), ignore_stop=True)
    warm_up = sampling.model_copy(update={"max_new_tokens": 4})
    mx.reset_peak_memory()
    row["generate"] = {}
    for count in BATCHES:
        prompts = random_prompts(count, PROMPT_TOKENS, VOCABULARY)
        generate_responses(backbone, tokenizer, prompts, warm_up, key=mx.random.key(0))
        start = time.perf_counter()
        responses = generate_responses(backbone, tokenizer, prompts, sampling, key=mx.random.key(1))
        row["generate"][count] = count * NEW_TOKENS / (time.perf_counter() - start)
        if count == BATCHES[2]:
            batch, rate = lay_out(prompts, responses), row["generate"][count]
            theirs(backbone, prompts, 4)
            start = time.perf_counter()
            theirs(backbone, prompts, NEW_TOKENS)
            row["against_mlx_lm"] = rate * (time.perf_counter() - start) / (count * NEW_TOKENS)
    row["generate_peak"] = mx.get_peak_memory()
    # One step of the largest batch reads every weight and cache once, and writes next to nothing.
    per_token = 2 * shape["num_hidden_layers"] * 8 * 128 * 2
    step_bytes = weights + max(BATCHES) * (PROMPT_TOKENS + NEW_TOKENS / 2) * per_token
    row["generate_of_bandwidth"] = row["generate"][max(BATCHES)] / max(BATCHES) * step_bytes / limits.bandwidth
    mx.clear_cache()

    tokens, replies = sum(batch.lengths()), int(batch.response_lengths.sum())
    trunk = matrix_parameters(shape)
    head = shape["hidden_size"] * VOCABULARY
    flops = 2 * (trunk * tokens + head * replies)
    mx.reset_peak_memory()
    filled_batch(actor, batch)  # warm-up
    start = time.perf_counter()
    scored = steps.add_policy_logprobs_and_values(actor, batch, temperature=1.0, micro_batch_tokens=MICRO_BATCH_TOKENS)
    mx.eval(scored.logprobs)
    seconds = time.perf_counter() - start
    row |= {
        "score": tokens / seconds,
        "score_of_flops": flops / seconds / limits.flops,
        "score_peak": mx.get_peak_memory(),
    }
    gap = mx.abs(scored.logprobs - batch.sampler_logprobs) * batch.mask
    row |= {"gap_mean": float(gap.sum() / batch.mask.sum()), "gap_max": float(gap.max())}
    mx.clear_cache()

    batch = filled_batch(actor, batch)
    learner = Learner(actor, OptimConfig(micro_batch_tokens=MICRO_BATCH_TOKENS), total_steps=4)
    mx.reset_peak_memory()
    learner.train_joint(batch, PPOConfig(), temperature=1.0, progress=steps.silent)
    start = time.perf_counter()
    step = learner.train_joint(batch, PPOConfig(), temperature=1.0, progress=steps.silent)
    seconds = time.perf_counter() - start
    # The frozen weights need no gradient, so an update is a forward pass and a backward pass through the activations.
    row |= {"update": tokens / seconds, "update_of_flops": 2 * flops / seconds / limits.flops}
    row |= {"update_peak": mx.get_peak_memory(), "outcome": step.metrics.outcome}
    del actor, backbone, learner, batch, scored
    mx.clear_cache()
    return row


def speed_line(row: dict[str, Any]) -> str:
    """Return one row of the Markdown table; speeds are in tokens per second."""
    if "error" in row:
        return f"| {row['size']} | {row['weights']} | not measured: {row['error']} {'|' * (len(SPEED_COLUMNS) - 2)}"
    names = ("weights_bytes", "generate_peak", "score_peak", "update_peak")
    cells = [
        row["size"],
        row["weights"],
        *(f"{rate:,.0f}" for rate in row["generate"].values()),
        f"{row['generate_of_bandwidth']:.0%}",
        f"{row['against_mlx_lm']:.2f}",
        f"{row['score']:,.0f}",
        f"{row['score_of_flops']:.0%}",
        f"{row['update']:,.0f}",
        f"{row['update_of_flops']:.0%}",
        *(f"{row[name] / 1e9:.1f}" for name in names),
        f"{row['gap_mean']:.3f}, at most {row['gap_max']:.2f}",
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


def matrix_parameters(shape: dict[str, int]) -> int:
    """Return the number of a Qwen3's weights that every token is multiplied with, without the head."""
    hidden, heads, head = shape["hidden_size"], shape["num_attention_heads"], 128
    attention = hidden * head * (2 * heads + 2 * min(8, heads))
    return shape["num_hidden_layers"] * (attention + 3 * hidden * shape["intermediate_size"])
