"""Compare the gradient of every family in mlx-lm with and without gradient checkpointing.

Run: .venv/bin/python benchmarks/grad_checkpoint_families.py [FAMILY ...]

Each family is a tiny random model in float32 whose adapter is as in mid-training. The table has the largest difference
of an array of the adapter's gradient, over its norm; how many arrays get no gradient; and the peak of memory with
checkpointing over that without. A tiny model has two to four blocks, so it saves little.
"""

from __future__ import annotations

import argparse

import trainer  # noqa: F401  loads the BLAS, before anything imports mlx

# isort: split
import mlx.core as mx
import mlx.nn as nn
from tiny_families import families, tiny_backbone

from trainer.config.schema import ModelConfig
from trainer.errors import ModelError, shortened
from trainer.fitting.micro_batches import accumulate
from trainer.models.actor_critic import ActorCriticLLM
from trainer.models.adapters import Parameters
from trainer.models.cpu.substitutes import use_faster_functions
from trainer.models.grad_checkpoint import check_grad_checkpoint
from trainer.models.trunk import hidden_states

SHAPE = (2, 150)  # sequences, tokens


def main() -> None:
    """Check the named families, or all, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", help="default: all")
    options = parser.parse_args()
    print("| family | difference | no gradient | memory |\n|---|---|---|---|")
    for family in options.families or families():
        print(f"| {family} | {cells(family)} |", flush=True)


def cells(family: str) -> str:
    """Return the cells of a family's line, or the error."""
    try:
        backbone = tiny_backbone(family, mx.float32)
        use_faster_functions(backbone)
        actor = ActorCriticLLM(backbone, ModelConfig(lora_rank=4), key=mx.random.key(1))
        check_grad_checkpoint(backbone)
    except (ModelError, SystemExit) as error:  # mlx-lm leaves the program where a package is missing
        return f"{shortened(str(error), 160)} | | "
    actor.update_policy({name: array + 0.05 * noise(array, name) for name, array in actor.policy_parameters().items()})
    kept, most = gradient(actor, grad_checkpoint=False)
    again, least = gradient(actor, grad_checkpoint=True)
    norms = {name: float(mx.linalg.norm(array)) for name, array in kept.items()}
    off = max(float(mx.linalg.norm(again[name] - kept[name])) / (norm or 1) for name, norm in norms.items())
    missing = sum(norm == 0 for norm in norms.values())
    return f"{off:.1g} | {missing} of {len(norms)} | {least / most:.0%}"


def noise(array: mx.array, name: str) -> mx.array:
    """Return noise in the shape of `array`, the same for a name each time."""
    return mx.random.normal(array.shape, key=mx.random.key(sum(name.encode())))


def gradient(actor: ActorCriticLLM, *, grad_checkpoint: bool) -> tuple[Parameters, int]:
    """Return the gradient of a random sum over hidden states, and the peak of memory in bytes above what is held."""
    backbone: nn.Module = actor.backbone
    tokens = mx.random.randint(0, 256, SHAPE, key=mx.random.key(9))
    weights = noise(hidden_states(backbone, tokens), "weights")

    def loss(tokens: mx.array) -> tuple[mx.array, mx.array]:
        return (hidden_states(backbone, tokens).astype(mx.float32) * weights).sum(), mx.zeros(())

    found = None
    for _ in range(2):  # the first pass compiles
        mx.clear_cache()
        mx.reset_peak_memory()
        held = mx.get_active_memory()
        found, _ = accumulate(
            loss,
            actor.policy_parameters(),
            [tokens],
            put=actor.update_policy,
            backbone=backbone,
            grad_checkpoint=grad_checkpoint,
            join=mx.add,
        )
    return found, mx.get_peak_memory() - held


if __name__ == "__main__":
    main()
