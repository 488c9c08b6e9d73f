"""Checkpoints: everything that a run needs to go on exactly, written whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
from mlx.utils import tree_flatten

from trainer.checkpoint_files import read_arrays, write_arrays, write_folder
from trainer.errors import StorageError
from trainer.learner import Learner
from trainer.models.actor_critic import ActorCriticLLM
from trainer.models.adapters import ADAPTER_FILE, Parameters, save_adapter
from trainer.rewards import Rewards

FORMAT = 1


class Snapshot(NamedTuple):
    """The state of a run between two iterations. MLX arrays never change in place, so keeping one costs references."""

    iteration: int  # whole iterations done
    policy: Parameters
    value: Parameters
    optimizer: dict[str, Any]
    optimizer_steps: int
    rewards: dict[str, Any]
    tokens: int  # response tokens so far
    adapter_config: dict[str, Any]


def take_snapshot(iteration: int, tokens: int, actor: ActorCriticLLM, learner: Learner, rewards: Rewards) -> Snapshot:
    """What the run is now."""
    return Snapshot(
        iteration,
        actor.policy_parameters(),
        actor.value_parameters(),
        learner.state(),
        learner.steps,
        rewards.state(),
        tokens,
        actor.adapter_config,
    )


def restore_snapshot(snapshot: Snapshot, actor: ActorCriticLLM, learner: Learner, rewards: Rewards) -> None:
    """Make the run what it was."""
    actor.update_policy(snapshot.policy)
    actor.update_value(snapshot.value)
    learner.restore(snapshot.optimizer, snapshot.optimizer_steps)
    rewards.restore(snapshot.rewards)


def save_checkpoint(folder: Path, snapshot: Snapshot) -> None:
    """Write `snapshot` as `folder` by renaming a finished copy into place; one that is there is replaced.

    policy/ is an adapter in mlx-lm's own format; critic and optimiser lie beside it, for mlx-lm refuses tensors that
    are not an adapter's. Raises StorageError.
    """

    def fill(temporary: Path) -> None:
        save_adapter(snapshot.policy, snapshot.adapter_config, temporary / "policy")
        write_arrays(temporary / "value" / "value.safetensors", snapshot.value)
        write_arrays(temporary / "optimizer" / "optimizer.safetensors", dict(tree_flatten(snapshot.optimizer)))

    state = {
        "format": FORMAT,
        "iteration": snapshot.iteration,
        "optimizer_steps": snapshot.optimizer_steps,
        "tokens": snapshot.tokens,
        "rewards": snapshot.rewards,
    }
    write_folder(folder, fill, state)


def load_checkpoint(folder: Path, adapter_config: dict[str, Any]) -> Snapshot:
    """Read what `save_checkpoint` wrote. Raises StorageError for one that is damaged or of a newer version."""
    try:
        state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        if state["format"] > FORMAT:
            raise StorageError(f"checkpoint '{folder}' was written by a newer version: update ppo-workbench")
        policy = read_arrays(folder / "policy" / ADAPTER_FILE)
        value = read_arrays(folder / "value" / "value.safetensors")
        optimizer = read_arrays(folder / "optimizer" / "optimizer.safetensors")
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise StorageError(
            f"checkpoint '{folder}' is damaged ({str(error).splitlines()[0]}): remove it to resume from an older one"
        ) from error
    return Snapshot(
        state["iteration"],
        policy,
        value,
        _optimizer_tree(optimizer),
        state["optimizer_steps"],
        state["rewards"],
        state["tokens"],
        adapter_config,
    )


def _optimizer_tree(flat: dict[str, mx.array]) -> dict[str, Any]:
    """Back from `policy.<parameter name>.m` to a tree; parameter names have dots themselves, so cut by the ends."""
    tree: dict[str, Any] = {"policy": {}, "value": {}}
    for name, array in flat.items():
        side, _, rest = name.partition(".")
        parameter, _, leaf = rest.rpartition(".")
        if parameter:
            tree[side].setdefault(parameter, {})[leaf] = array
        else:
            tree[side][leaf] = array
    return tree
