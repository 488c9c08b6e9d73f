"""Check that training is right on this machine's device, and measure its speed against the device's own limits.

Correctness first: sampling against the exact distribution, generation against scoring, gradients against float32 on the
CPU, PPO iterations of tiny models of many families, and the memory that training takes and returns. Then tokens per
second of generation, scoring and update for models of 0.6B, 1.7B and 8B parameters with random weights, in bfloat16 and
4 bits, with their shares of the limits.

Run: .venv/bin/python benchmarks/device_check.py [--only PART ...] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import trainer  # noqa: F401  loads the BLAS, before anything imports mlx

# isort: split
import mlx.core as mx
import numpy as np
from device_models import (
    DTYPES,
    MICRO_BATCH_TOKENS,
    TRY,
    Tokenizer,
    device_memory,
    filled_batch,
    new_actor,
    random_prompts,
)
from device_speed import SPEED_COLUMNS, VOCABULARY, measure_limits, speed, speed_line
from families import GAPS, PRECISIONS, check_family
from family_values import MUST_TRAIN

from trainer.config.schema import OptimConfig, PPOConfig, RolloutConfig
from trainer.models.adapters import reason_of
from trainer.ppo import steps
from trainer.ppo.learner import Learner
from trainer.rollout.generation import Response, generate_responses, lay_out
from trainer.rollout.sampling import sample_tokens

SHAPES = {  # of Qwen3
    "0.6B": {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16},
    "1.7B": {"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28, "num_attention_heads": 16},
    "8B": {"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32},
}


class Check(NamedTuple):
    """Measured value with the largest value that passes."""

    name: str
    value: float
    bound: float

    @property
    def holds(self) -> bool:
        """Return whether the value is a number within its bound; NaN is not."""
        return self.value <= self.bound


def main() -> None:
    """Run the chosen parts and print their tables; exit with 1 if a check failed."""
    parts: dict[str, Callable[[], Iterator[Check]]] = {
        "sampling": sampling_checks,
        "gradients": gradient_checks,
        "families": family_checks,
        "memory": memory_checks,
    }
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=["limits", *parts, "speed"], default=["limits", *parts, "speed"])
    parser.add_argument("--sizes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--types", nargs="+", choices=["bfloat16", "4-bit"], default=["bfloat16", "4-bit"])
    parser.add_argument("--try", dest="small", action="store_true", help="measure one small shape instead of all sizes")
    parser.add_argument("--json", type=Path, help="file to write all results to")
    options = parser.parse_args()
    started = time.perf_counter()
    on_gpu = mx.default_device() == mx.Device(mx.gpu)
    device = dict(mx.device_info()) if on_gpu else {"device_name": platform.processor()}
    print(f"device: {device}\n{platform.platform()}, mlx {mx.__version__}\n", flush=True)
    found: dict[str, Any] = {"device": {key: str(value) for key, value in device.items()}}

    limits = measure_limits()
    found["limits"] = limits._asdict()
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
                try:
                    row = speed(size, shape, kind, limits)
                except RuntimeError as error:
                    row = {"size": size, "weights": kind, "error": reason_of(error)}
                mx.clear_cache()
                found["speed"].append(row)
                print(speed_line(row), flush=True)
                save(options.json, found)
    found["seconds"] = time.perf_counter() - started
    print(f"\n{failed} checks failed, {found['seconds']:.0f} s")
    save(options.json, found)
    raise SystemExit(1 if failed else 0)


def save(file: Path | None, found: dict[str, Any]) -> None:
    """Write the results so far to `file`, if there is one."""
    if file:
        file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


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
    """Yield checks of the gradient of the PPO loss against float32 on the CPU."""
    exact = gradient("float32", mx.cpu)
    # On CUDA, a float32 matrix product uses TF32, whose mantissa has ten bits.
    for kind, bound in (("float32", 5e-3 if mx.cuda.is_available() else 1e-3), ("bfloat16", 0.1)):
        here = gradient(kind, mx.default_device())
        for side in ("policy", "value"):
            names = sorted(exact[side])
            a, b = (np.concatenate([one[side][name].ravel() for name in names]) for one in (here, exact))
            off = float(np.linalg.norm(a - b) / np.linalg.norm(b))
            yield Check(f"{kind}: gradient of the {side}, relative error", off, bound)


def gradient(kind: str, device: Any) -> dict[str, dict[str, np.ndarray]]:
    """Return the gradient of one minibatch of a small model on `device`: NumPy arrays by side and name."""
    before = mx.default_device()
    mx.set_default_device(device)
    try:
        actor = new_actor(TRY, kind, vocabulary=2048)
        random = np.random.default_rng(3)
        prompts = random_prompts(8, 24, 2048)
        replies = [random.integers(0, 2048, size=int(count)).tolist() for count in random.integers(8, 32, size=8)]
        batch = lay_out(prompts, [Response(tokens, [0.0] * len(tokens), "", True) for tokens in replies])
        for name, array in actor.policy_parameters().items():  # B is 0 in a new adapter, which makes A's gradient 0
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
    """Yield checks of two PPO iterations of each family that must train, in bfloat16, and of two families in 4 bits."""
    for family in MUST_TRAIN:
        for kind in ("bfloat16", "4-bit") if family in ("llama", "qwen3_moe") else ("bfloat16",):
            report = check_family(family, *PRECISIONS[kind])
            trained = report["outcome"] in ("trains", "off")
            trouble = "" if trained else f" ({report['error'][:60]})"
            gap = report["gap_mean"] if trained else math.nan
            yield Check(f"{family}, {kind}: sampler - scoring, nats{trouble}", gap, GAPS["other"])


def memory_checks(
    shape: dict[str, int] = SHAPES["0.6B"], kind: str = "bfloat16", vocabulary: int = VOCABULARY
) -> Iterator[Check]:
    """Yield checks of the memory that one PPO iteration takes and returns, and of the limit that it sets on a Mac."""
    wired = mx.set_wired_limit(0)
    mx.set_wired_limit(wired)
    mx.clear_cache()
    mx.reset_peak_memory()
    actor = new_actor(shape, kind, vocabulary=vocabulary)
    before = mx.get_active_memory()
    prompts = random_prompts(8, 128, vocabulary)
    sampling = RolloutConfig(max_new_tokens=32, ignore_stop=True)
    responses = generate_responses(actor.backbone, Tokenizer(), prompts, sampling, key=mx.random.key(0))
    batch = filled_batch(actor, lay_out(prompts, responses))
    learner = Learner(actor, OptimConfig(micro_batch_tokens=MICRO_BATCH_TOKENS), total_steps=4)
    learner.train_joint(batch, PPOConfig(), temperature=1.0, progress=steps.silent)
    yield Check("peak of a PPO iteration, share of the device's memory", mx.get_peak_memory() / device_memory(), 1)
    after = mx.set_wired_limit(wired)
    yield Check("wired limit after it, bytes from the one before", abs(after - wired), 0)
    del responses, batch, learner
    mx.clear_cache()
    yield Check("memory kept after it, share of that before", mx.get_active_memory() / before, 1.1)


if __name__ == "__main__":
    main()
