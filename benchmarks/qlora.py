"""Train the task of stories.toml on a backbone in 32, 8 and 4 bits, and print gains, sizes and distances.

On a CPU the weights are rounded as on a GPU but held in float32, so the memory of a run says nothing; the sizes are
of the packed weights. The distance is that of the untrained model from float32: KL(float32 || rounded) in nats a token.

Run: .venv/bin/python benchmarks/qlora.py [--seeds 0 1 2] [--dir runs/qlora] [--set key=value ...]
Finished runs are only read, and interrupted ones resumed. Each takes some six minutes on two cores.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import fmean, stdev

import mlx.core as mx
from quickstart_seeds import iterations
from train_runs import train_ppo

from trainer.arrays import leaves
from trainer.config.schema import BackboneConfig, DataConfig
from trainer.data import load_prompts
from trainer.models.backbone import load_backbone, quantize_backbone

PRECISIONS = {"float32": "off", "8 bits": "8-bit", "4 bits": "4-bit"}
_TOKENS = 512


def megabytes(quantize: str) -> float:
    """Return the size of the starter model's weights, packed, in millions of bytes."""
    backbone = load_backbone(BackboneConfig()).backbone
    if quantize != "off":
        quantize_backbone(backbone, int(quantize.removesuffix("-bit")))
    return sum(array.nbytes for array in leaves(backbone.parameters())) / 1e6


def distances() -> dict[str, float]:
    """Return for each precision the mean KL a token of the untrained model from float32, over the prompts."""
    text = "\n".join(str(row.prompt) for row in load_prompts(DataConfig()))
    logprobs = {}
    for quantize in PRECISIONS.values():
        loaded = load_backbone(BackboneConfig(quantize=quantize))
        logits = loaded.backbone(mx.array([loaded.tokenizer.encode(text)[:_TOKENS]])).astype(mx.float32)
        logprobs[quantize] = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        mx.eval(logprobs[quantize])
    exact = logprobs[PRECISIONS["float32"]]
    return {
        quantize: (mx.exp(exact) * (exact - rounded)).sum(axis=-1).mean().item()
        for quantize, rounded in logprobs.items()
    }


def main() -> None:
    """Train each precision on each seed, then print a row for each precision."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--dir", type=Path, default=Path("runs/qlora"))
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()

    rows = []
    moved = distances()
    for name, quantize in PRECISIONS.items():
        gains, kls = [], []
        for seed in options.seeds:
            run = options.dir / f"{quantize}-{seed}"
            train_ppo(run, *options.set, f"model.quantize={quantize}", f"run.seed={seed}", f"run.dir={options.dir}")
            scores = [iteration.score_mean for iteration in iterations(run)]
            gains.append(fmean(scores[-5:]) - fmean(scores[:5]))
            kls.append(fmean(iteration.kl for iteration in iterations(run)[-5:]))
        deviation = f"{stdev(gains):.2f}" if len(gains) > 1 else "-"
        each = " | ".join(f"{gain:+.2f} at {kl:.1f}" for gain, kl in zip(gains, kls, strict=True))
        size = f"{megabytes(quantize):.0f} MB"
        rows.append(f"| {name} | {each} | {fmean(gains):+.2f} | {deviation} | {size} | {moved[quantize]:.3f} |")
    seeds = " | ".join(f"seed {seed}: gain at KL" for seed in options.seeds)
    print(f"| weights | {seeds} | mean gain | deviation | size | distance |\n|{'---|' * (len(options.seeds) + 5)}")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
