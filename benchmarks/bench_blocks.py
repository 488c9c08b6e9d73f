"""Compare the estimate of what blocks allocate in one pass with what MLX allocates, without logits.

Run: .venv/bin/python benchmarks/bench_blocks.py

Five shapes of a llama with three blocks and random weights, and sequences that are short or long. Each pass runs once:
forward, with the gradient of the adapters, and the same with gradient checkpointing. The factors of activations in
trainer/memory/passes.py are taken from these sizes, which take a second each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from bench_memory import F32, decoder
from memory_runs import new_backbone

# isort: split
import mlx.core as mx

from trainer.config.loading import load_config, parse_overrides
from trainer.fitting.micro_batches import accumulate
from trainer.memory.passes import MicroBatch, adapted_layers, held_model, scoring, training
from trainer.memory.shape import decoder_shape
from trainer.models.actor_critic import ActorCriticLLM
from trainer.models.trunk import hidden_states

LAYERS = 3
SHAPES = {  # hidden, inner, heads, heads of keys, head size
    "smollm2": (576, 1536, 9, 3, 64),
    "small, no shared heads": (320, 896, 5, 5, 64),
    "qwen2, wide MLP": (896, 4864, 14, 2, 64),
    "narrow MLP": (768, 768, 12, 4, 64),
    "large heads": (576, 1536, 9, 3, 128),
}
BATCHES = ((8, 64), (4, 256), (2, 512), (1, 1016))  # sequences, tokens of each


class _Sum(NamedTuple):
    value: mx.array


def main() -> None:
    """Measure all and print a table."""
    print("| blocks | sequences x tokens | forward, MB | gradient, MB | checkpointed, MB |\n|---|---|---|---|---|")
    for name, sizes in SHAPES.items():
        for rows, length in BATCHES:
            cells = [f"{real / 1e6:.0f} ({guess / real - 1:+.0%})" for real, guess in passes(sizes, rows, length)]
            print(f"| {name} | {rows} x {length} | {' | '.join(cells)} |", flush=True)


def passes(sizes: tuple[int, ...], rows: int, length: int) -> list[tuple[int, int]]:
    """Return measured and estimated bytes of each pass."""
    hidden, inner, heads, kv, head = sizes
    settings = decoder("llama", hidden, inner, LAYERS, heads, kv, 2000, head_dim=head)
    model = load_config("quickstart", parse_overrides([F32])).model
    backbone = new_backbone(settings, model)
    actor = ActorCriticLLM(backbone, model, key=mx.random.key(0))
    parameters, tokens = actor.policy_parameters(), mx.random.randint(0, 2000, (rows, length))
    mx.eval(parameters, tokens)

    def loss(part: mx.array) -> tuple[mx.array, _Sum]:
        value = hidden_states(backbone, part).sum()
        return value, _Sum(value)

    def gradient(*, on: bool) -> Any:
        return accumulate(loss, parameters, [tokens], put=actor.update_policy, backbone=backbone, grad_checkpoint=on)

    real = [
        peak(lambda: hidden_states(backbone, tokens)),
        peak(lambda: gradient(on=False)),
        peak(lambda: gradient(on=True)),
    ]
    held, batch = held_model(model, decoder_shape(settings), gpu=False), MicroBatch(rows, length)
    adapted = adapted_layers(model, held.shape)
    guess = [scoring(held, batch), *(training(held, batch, adapted, grad_checkpoint=on) for on in (False, True))]
    return [(size, sum(parts.values())) for size, parts in zip(real, guess, strict=True)]


def peak(compute: Callable[[], Any]) -> int:
    """Return the bytes that `compute` allocates at once."""
    mx.clear_cache()
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    mx.eval(compute())
    return mx.get_peak_memory() - before


if __name__ == "__main__":
    main()
