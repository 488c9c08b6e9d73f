"""Our rollouts against `mlx_lm.batch_generate`: same model, prompts, lengths and sampling, in turns in one process.

Run: .venv/bin/python benchmarks/bench_rollouts.py [--model starter|PATH] [--rounds 3] [--new-tokens 48]
"""

from __future__ import annotations

import argparse
import statistics
import time
from types import SimpleNamespace

import trainer  # noqa: F401  the BLAS first

# isort: split
import mlx.core as mx
from mlx_lm.generate import batch_generate
from mlx_lm.sample_utils import make_sampler

from trainer.config.schema import DataConfig, ModelConfig, RolloutConfig
from trainer.data import encode_prompts, load_prompts
from trainer.models.loading import load_backbone
from trainer.rollout.generation import generate_sequences


def main() -> None:
    """Time both and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="starter")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--new-tokens", type=int, default=48)
    parser.add_argument("--batch-size", type=int, default=8)
    options = parser.parse_args()

    model = load_backbone(ModelConfig(path=options.model))
    data = DataConfig(limit=options.batch_size)
    prompts = encode_prompts(load_prompts(data), model.tokenizer, data).prompts
    sampling = RolloutConfig(batch_size=len(prompts), max_new_tokens=options.new_tokens, ignore_stop=True)
    endless = SimpleNamespace(eos_token_ids=[], decode=model.tokenizer.decode)
    stream = mx.default_stream(mx.default_device())

    def ours(round_: int) -> None:
        generate_sequences(model.backbone, model.tokenizer, prompts, sampling, key=mx.random.key(round_))

    def theirs(round_: int) -> None:
        tokens = [prompt.tokens for prompt in prompts]
        batch_generate(
            model.backbone,
            endless,
            tokens,
            max_tokens=options.new_tokens,
            sampler=make_sampler(temp=1.0),
            return_logprobs=True,
            stream=stream,
        )

    times: dict[str, list[float]] = {"ppo-workbench": [], "mlx_lm.batch_generate": []}
    for round_ in range(options.rounds + 1):
        for name, run in (("ppo-workbench", ours), ("mlx_lm.batch_generate", theirs)):
            start = time.perf_counter()
            run(round_)
            if round_:  # the first is a warm-up
                times[name].append(time.perf_counter() - start)
    count = len(prompts) * options.new_tokens
    print(f"{len(prompts)} prompts x {options.new_tokens} tokens, {options.rounds} rounds, log-probs kept\n")
    print(f"{'rollout':24} {'median s':>9} {'best s':>8} {'tok/s':>7}")
    for name, taken in times.items():
        print(f"{name:24} {statistics.median(taken):9.2f} {min(taken):8.2f} {count / statistics.median(taken):7.1f}")
    ratio = statistics.median(times["mlx_lm.batch_generate"]) / statistics.median(times["ppo-workbench"])
    print(f"\nspeed against batch_generate (medians): {ratio:.2f}x")


if __name__ == "__main__":
    main()
