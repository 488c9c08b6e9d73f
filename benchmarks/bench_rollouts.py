"""Compare rollouts with `mlx_lm.batch_generate`: same model, prompts, lengths and sampling, alternating in one process.

Run: .venv/bin/python benchmarks/bench_rollouts.py [--model starter|PATH] [--rounds 3] [--batch-sizes 8 16 32 64]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from types import SimpleNamespace

import trainer  # noqa: F401  loads the BLAS, before anything imports mlx

# isort: split
import mlx.core as mx
from mlx_lm.generate import batch_generate
from mlx_lm.sample_utils import make_sampler

from trainer.config.schema import DataConfig, ModelConfig, RolloutConfig
from trainer.data import Prompt, encode_prompts, load_prompts
from trainer.models.backbone import LoadedModel, load_backbone
from trainer.rollout.generation import generate_responses


def main() -> None:
    """Time both at each batch size and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="starter")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--new-tokens", type=int, default=48)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[8, 16, 32, 64])
    options = parser.parse_args()

    model = load_backbone(ModelConfig(path=options.model))
    data = DataConfig(limit=max(options.batch_sizes))
    prompts = encode_prompts(load_prompts(data), model.tokenizer, data).prompts
    print(f"{options.new_tokens} new tokens, log-probs kept, medians of {options.rounds} alternating rounds\n")
    print("| batch | ppo-workbench, tokens/s | mlx_lm.batch_generate, tokens/s | ratio |\n|---|---|---|---|")
    ratios = []
    for size in options.batch_sizes:
        ours, theirs = measure(model, prompts[:size], options.new_tokens, options.rounds)
        ratios.append(theirs / ours)
        tokens = size * options.new_tokens
        print(f"| {size} | {tokens / ours:.1f} | {tokens / theirs:.1f} | {ratios[-1]:.2f} |", flush=True)
    print(f"\ngeometric mean of the ratios: {statistics.geometric_mean(ratios):.2f}")


def measure(model: LoadedModel, prompts: list[Prompt], new_tokens: int, rounds: int) -> tuple[float, float]:
    """Return the median seconds of our rollout and of mlx-lm's, each after a warm-up."""
    sampling = RolloutConfig(batch_size=len(prompts), slots=len(prompts), max_new_tokens=new_tokens, ignore_stop=True)
    endless = SimpleNamespace(eos_token_ids=[], decode=model.tokenizer.decode)
    stream = mx.default_stream(mx.default_device())

    def ours(round_: int) -> None:
        generate_responses(model.backbone, model.tokenizer, prompts, sampling, key=mx.random.key(round_))

    def theirs(_: int) -> None:
        batch_generate(
            model.backbone,
            endless,
            [prompt.tokens for prompt in prompts],
            max_tokens=new_tokens,
            sampler=make_sampler(temp=1.0),
            return_logprobs=True,
            completion_batch_size=len(prompts),
            stream=stream,
        )

    times: dict[Callable[[int], None], list[float]] = {ours: [], theirs: []}
    for round_ in range(rounds + 1):
        for run, taken in times.items():
            start = time.perf_counter()
            run(round_)
            if round_:
                taken.append(time.perf_counter() - start)
    return statistics.median(times[ours]), statistics.median(times[theirs])


if __name__ == "__main__":
    main()
