"""Check of this machine's device: whether training is right on it, and how fast against the device's own limits.

Correctness first: sampling against the exact distribution, generation against scoring, gradients against float32 on the
CPU, and PPO iterations of tiny models of many families. Then tokens a second of generation, scoring and update for
models of 0.6B, 1.7B and 8B parameters with random weights, in bfloat16 and 4 bits, beside what the device could do.

Run: .venv/bin/python benchmarks/device_check.py [--only limits sampling gradients families speed] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import trainer  # noqa: F401  the BLAS first

# isort: split
import mlx.core as mx
import mlx.nn as nn
import numpy as np
from families import GAPS, PRECISIONS, check_family
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.generate import batch_generate
from mlx_lm.sample_utils import make_sampler
from mlx_lm.utils import _get_classes
from tiny_families import MUST_TRAIN

from trainer.arrays import leaves
from trainer.config.schema import ModelConfig, OptimConfig, PPOConfig, RolloutConfig
from trainer.data import Prompt
from trainer.models.actor_critic import ActorCriticLLM
from trainer.models.loading import quantize_backbone
from trainer.ppo import steps
from trainer.ppo.learner import Learner
from trainer.rollout.experience import Experience
from trainer.rollout.generation import Response, generate_responses, lay_out
from trainer.rollout.sampling import sample_tokens

SHAPES = {  # of Qwen3
    "0.6B": {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16},
    "1.7B": {"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28, "num_attention_heads": 16},
    "8B": {"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32},
}
TRY = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4}
VOCABULARY = 151_936
PROMPT_TOKENS, NEW_TOKENS = 128, 64
BATCHES = (8, 16, 32, 64)
MICRO_BATCH_TOKENS = 8192
DTYPES = {"float32": mx.float32, "bfloat16": mx.bfloat16, "float16": mx.float16}


class Tokenizer:
    """Substitute for a tokenizer: nothing ends a response, and its text is its ids."""

    eos_token_ids: frozenset[int] = frozenset()

    def decode(self, tokens: list[int], **_: Any) -> str:
        """Return the ids as text."""
        return " ".join(map(str, tokens))


class Check(NamedTuple):
    """One figure with the bound that it must keep."""

    name: str
    value: float
    bound: float

    @property
    def holds(self) -> bool:
        """Whether the value is a number within its bound."""
        return self.value <= self.bound


@dataclass
class Limits:
    """What the device can do, measured."""

    flops: float  # floating-point operations a second of a large matrix product, in bfloat16 (float32 on a CPU)
    bandwidth: float  # bytes a second, read and written, of a large copy


def main() -> None:
    """Run the chosen parts and print their tables; the exit status is 1 if a check failed."""
    parts: dict[str, Callable[[], Iterator[Check]]] = {
        "sampling": sampling_checks,
        "gradients": gradient_checks,
        "families": family_checks,
    }
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=["limits", *parts, "speed"], default=["limits", *parts, "speed"])
    parser.add_argument("--sizes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--types", nargs="+", choices=["bfloat16", "4-bit"], default=["bfloat16", "4-bit"])
    parser.add_argument("--try", dest="small", action="store_true", help="a small shape in place of all sizes")
    parser.add_argument("--json", type=Path, help="file for all figures")
    options = parser.parse_args()
    started = time.perf_counter()
    on_gpu = mx.default_device() == mx.Device(mx.gpu)
    device = dict(mx.device_info()) if on_gpu else {"device_name": platform.processor()}
    print(f"device: {device}\n{platform.platform()}, mlx {mx.__version__}\n", flush=True)
    found: dict[str, Any] = {"device": {key: str(value) for key, value in device.items()}}

    limits = measure_limits()
    found["limits"] = asdict(limits)
    print(f"matrix product {limits.flops / 1e12:.2f} TFLOP/s, copy {limits.bandwidth / 1e9:.0f} GB/s\n", flush=True)

    failed = 0
    checks: list[Check] = []
    for name, part in parts.items():
        if name in options.only:
            print(f"{name:58} {'measured':>10} {'at most':>9}")
            for check in part():
                checks.append(check)
                failed += not check.holds
                print(
                    f"  {check.name:56} {check.value:10.2g} {check.bound:9.2g}{'' if check.holds else '  FAILED'}",
                    flush=True,
                )
            print(f"  {time.perf_counter() - started:.0f} s\n")
    found["checks"] = [check._asdict() for check in checks]
    if "speed" in options.only:
        shapes = {"try": TRY} if options.small else {size: SHAPES[size] for size in options.sizes}
        found["speed"] = []
        print(f"| {' | '.join(SPEED_COLUMNS)} |\n|{'---|' * len(SPEED_COLUMNS)}")
        for size, shape in shapes.items():
            for kind in options.types:
                row = speed(size, shape, kind, limits)
                found["speed"].append(row)
                print(speed_line(row), flush=True)
                save(options.json, found)
    found["seconds"] = time.perf_counter() - started
    print(f"\n{failed} checks failed, {found['seconds']:.0f} s")
    save(options.json, found)
    raise SystemExit(1 if failed else 0)


def save(file: Path | None, found: dict[str, Any]) -> None:
    """Write what was found so far, if a file is named."""
    if file:
        file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


# The device's own limits


def measure_limits() -> Limits:
    """Measure a large matrix product and a large copy."""
    on_gpu = mx.default_device() == mx.Device(mx.gpu)
    size, dtype = (8192, mx.bfloat16) if on_gpu else (1024, mx.float32)
    a, b = (mx.random.normal((size, size), key=mx.random.key(seed)).astype(dtype) for seed in (0, 1))
    flops = 2 * size**3 / best_seconds(lambda: a @ b)
    x = mx.random.normal((256 if on_gpu else 32, 1024, 1024), key=mx.random.key(2))
    return Limits(flops, 2 * x.nbytes / best_seconds(lambda: x + 1))


def best_seconds(work: Callable[[], Any], repeats: int = 5, inner: int = 3) -> float:
    """Return the shortest time of `work`, in seconds, after a warm-up."""
    mx.eval(work())
    best = math.inf
    for _ in range(repeats):
        start = time.perf_counter()
        mx.eval([work() for _ in range(inner)])
        mx.synchronize()
        best = min(best, (time.perf_counter() - start) / inner)
    return best


# Correctness


def sampling_checks() -> Iterator[Check]:
    """Hold what is drawn against the exact distribution, in each type and from three sizes of vocabulary."""
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
    """Hold the gradient of the PPO loss against float32 on the CPU."""
    exact = gradient("float32", mx.cpu)
    # On CUDA a float32 matrix product takes TF32, with a mantissa of ten bits.
    for kind, bound in (("float32", 5e-3 if mx.cuda.is_available() else 1e-3), ("bfloat16", 0.1)):
        here = gradient(kind, mx.default_device())
        for side in ("policy", "value"):
            names = sorted(exact[side])
            a, b = (np.concatenate([one[side][name].ravel() for name in names]) for one in (here, exact))
            off = float(np.linalg.norm(a - b) / np.linalg.norm(b))
            yield Check(f"{kind}: gradient of the {side}, relative error", off, bound)


def gradient(kind: str, device: Any) -> dict[str, dict[str, np.ndarray]]:
    """Return the gradient of one minibatch of a small model on a device, as NumPy arrays."""
    before = mx.default_device()
    mx.set_default_device(device)
    try:
        actor = new_actor(TRY, kind, vocabulary=2048)
        random = np.random.default_rng(3)
        prompts = random_prompts(8, 24, 2048)
        replies = [random.integers(0, 2048, size=int(count)).tolist() for count in random.integers(8, 32, size=8)]
        batch = lay_out(prompts, [Response(tokens, [0.0] * len(tokens), "", True) for tokens in replies])
        for name, array in actor.policy_parameters().items():  # B is 0 in a new adapter, and so A's gradient
            noise = np.random.default_rng(len(name)).normal(size=array.shape).astype(np.float32) * 0.02
            actor.update_policy(actor.policy_parameters() | {name: mx.array(noise)})
        batch = filled_batch(actor, batch)
        learner = Learner(actor, OptimConfig(micro_batch_tokens=MICRO_BATCH_TOKENS), total_steps=4)
        found = learner.gradients(batch, PPOConfig(), "joint", temperature=1.0)
        return {
            side: {name: np.array(array.astype(mx.float32)) for name, array in arrays.items()}
            for side, arrays in found.of.items()
        }
    finally:
        mx.set_default_device(before)


def family_checks() -> Iterator[Check]:
    """Run two PPO iterations of a tiny model of each family that must train, in bfloat16, and of two in 4 bits."""
    for family in MUST_TRAIN:
        for kind in ("bfloat16", "4-bit") if family in ("llama", "qwen3_moe") else ("bfloat16",):
            report = check_family(family, *PRECISIONS[kind])
            trouble = "" if report["outcome"] in ("trains", "off") else f" ({report.get('error', '')[:60]})"
            yield Check(
                f"{family}, {kind}: sampler - scoring, nats{trouble}", report.get("gap_mean", math.nan), GAPS["other"]
            )


# Speed

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


def speed(size: str, shape: dict[str, int], kind: str, limits: Limits) -> dict[str, Any]:
    """Measure generation, scoring and update of one shape in one type of weights."""
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
    # The frozen weights need no gradient: forward, and backward through the activations.
    row |= {"update": tokens / seconds, "update_of_flops": 2 * flops / seconds / limits.flops}
    row |= {"update_peak": mx.get_peak_memory(), "outcome": step.metrics.outcome}
    del actor, backbone, learner, batch, scored
    mx.clear_cache()
    return row


def speed_line(row: dict[str, Any]) -> str:
    """Format one row of the table of speeds, which are tokens a second."""
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
    """Generate with mlx-lm's batch_generate, log-probs kept."""

    class Endless(Tokenizer):
        eos_token_ids: Any = []  # noqa: RUF012  as mlx-lm's

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


# Models and batches


def new_actor(shape: dict[str, int], kind: str, *, vocabulary: int) -> ActorCriticLLM:
    """Make a Qwen3 with random weights and a new adapter on q and v."""
    dtype = DTYPES.get(kind, mx.bfloat16)
    config = shape | {
        "model_type": "qwen3",
        "num_key_value_heads": min(8, shape["num_attention_heads"]),
        "head_dim": 128,
        "rms_norm_eps": 1e-6,
        "vocab_size": vocabulary,
        "max_position_embeddings": 40_960,
        "rope_theta": 1e6,
        "tie_word_embeddings": shape["hidden_size"] < 4096,
    }
    model_class, arguments = _get_classes(config)
    backbone: nn.Module = model_class(arguments.from_dict(config))
    weights = []
    for number, (name, array) in enumerate(tree_flatten(backbone.parameters())):
        noise = mx.random.normal(array.shape, key=mx.random.key(number)) * 1.2 / math.sqrt(array.shape[-1])
        weights.append((name, (noise if array.ndim > 1 else mx.ones(array.shape)).astype(dtype)))
        mx.eval(weights[-1][1])
    backbone.update(tree_unflatten(weights))
    if kind == "4-bit":
        quantize_backbone(backbone, 4)
    mx.eval(backbone)
    mx.clear_cache()
    return ActorCriticLLM(backbone, ModelConfig(), key=mx.random.key(0))


def matrix_parameters(shape: dict[str, int]) -> int:
    """Count the weights of a Qwen3 that every token is multiplied with, without the head."""
    hidden, heads, head = shape["hidden_size"], shape["num_attention_heads"], 128
    attention = hidden * head * (2 * heads + 2 * min(8, heads))
    return shape["num_hidden_layers"] * (attention + 3 * hidden * shape["intermediate_size"])


def random_prompts(count: int, length: int, vocabulary: int) -> list[Prompt]:
    """Draw prompts of about `length` tokens."""
    random = np.random.default_rng(count)
    lengths = random.integers(length - length // 8, length + 1, size=count)
    return [
        Prompt(place, "", "", random.integers(0, vocabulary, size=size).tolist(), {})
        for place, size in enumerate(lengths)
    ]


def filled_batch(actor: ActorCriticLLM, batch: Experience) -> Experience:
    """Score a batch, and fill in advantages and returns of a given random reward."""
    batch = steps.add_policy_logprobs_and_values(actor, batch, temperature=1.0, micro_batch_tokens=MICRO_BATCH_TOKENS)
    noise = np.random.default_rng(5).normal(size=batch.mask.shape).astype(np.float32)
    return batch._replace(advantages=mx.array(noise), returns=mx.array(noise[::-1].copy()))


if __name__ == "__main__":
    main()
