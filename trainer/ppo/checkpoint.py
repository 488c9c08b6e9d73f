"""Checkpoints: everything that a run needs to go on exactly, written whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from mlx.utils import tree_flatten
from pydantic import BaseModel, ConfigDict, NonNegativeInt

from trainer.errors import StorageError
from trainer.files import read_regular
from trainer.models.adapters import ADAPTER_FILE, Parameters, save_adapter
from trainer.ppo.loop import PPO
from trainer.runs.checkpoint_files import (
    DamagedCheckpointError,
    check_all_used,
    check_content,
    damage_of,
    optimizer_tree,
    read_arrays,
    write_arrays,
    write_folder,
)

FORMAT = 1


class Rollback(NamedTuple):
    """That a state is that of an older checkpoint, and the learning rates that go with it."""

    to: int  # the iteration of that checkpoint
    reason: str
    policy_lr: float
    value_lr: float


class _Statistics(BaseModel):
    """Those of the rewards, as far as there are any; `sources` may be anything."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    count: NonNegativeInt = 0
    mean: float = 0.0
    m2: float = 0.0


class _State(BaseModel):
    """What state.json must be."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    format: int
    iteration: NonNegativeInt
    optimizer_steps: NonNegativeInt
    tokens: NonNegativeInt
    rewards: _Statistics
    kl_coef: float | None = None
    kl_coef_start: float | None = None
    rollback: Rollback | None = None


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
    kl_coef: float | None = None  # of the coming iteration; None: that of the configuration
    kl_coef_start: float | None = None  # ppo.kl_coef, at which the controller began
    average: Parameters | None = None  # of the policy's adapter; None: none is kept
    rollback: Rollback | None = None  # by which the run came here from another state after `iteration`


def take_snapshot(iteration: int, ppo: PPO) -> Snapshot:
    """What the run is now."""
    return Snapshot(
        iteration,
        ppo.actor.policy_parameters(),
        ppo.actor.value_parameters(),
        ppo.learner.state(),
        ppo.learner.steps,
        ppo.rewards.state(),
        ppo.tokens,
        ppo.actor.adapter_config,
        ppo.kl_coef,
        ppo.config.ppo.kl_coef,
        ppo.learner.average,
    )


def restore_snapshot(snapshot: Snapshot, ppo: PPO) -> None:
    """Make the run what it was, as far as its configuration has it so.

    The controller of the KL goes on only from the ppo.kl_coef that it began at. An average that the snapshot lacks
    begins as the policy.
    """
    ppo.actor.update_policy(snapshot.policy)
    ppo.actor.update_value(snapshot.value)
    ppo.learner.restore(snapshot.optimizer, snapshot.optimizer_steps)
    if ppo.learner.average is not None:
        average = snapshot.average or snapshot.policy
        ppo.learner.average = {name: average[name] for name in ppo.learner.average}  # in the order that is saved
    ppo.rewards.restore(snapshot.rewards)
    ppo.tokens = snapshot.tokens
    goes_on = ppo.config.ppo.kl_controller == "adaptive" and snapshot.kl_coef_start == ppo.config.ppo.kl_coef
    if goes_on and snapshot.kl_coef is not None:
        ppo.kl_coef = snapshot.kl_coef


def save_checkpoint(folder: Path, snapshot: Snapshot) -> None:
    """Write `snapshot` as `folder` by renaming a finished copy into place; one that is there is replaced.

    policy/ is an adapter in mlx-lm's own format, and so is average/; critic and optimiser lie beside them, for mlx-lm
    refuses tensors that are not an adapter's. Raises StorageError.
    """

    def fill(temporary: Path) -> None:
        save_adapter(snapshot.policy, snapshot.adapter_config, temporary / "policy")
        if snapshot.average is not None:
            save_adapter(snapshot.average, snapshot.adapter_config, temporary / "average")
        write_arrays(temporary / "value" / "value.safetensors", snapshot.value)
        write_arrays(temporary / "optimizer" / "optimizer.safetensors", dict(tree_flatten(snapshot.optimizer)))

    state = {
        "format": FORMAT,
        "iteration": snapshot.iteration,
        "optimizer_steps": snapshot.optimizer_steps,
        "tokens": snapshot.tokens,
        "rewards": snapshot.rewards,
        "kl_coef": snapshot.kl_coef,
        "kl_coef_start": snapshot.kl_coef_start,
        "rollback": snapshot.rollback and snapshot.rollback._asdict(),
    }
    write_folder(folder, fill, state)


def load_checkpoint(folder: Path, adapter_config: dict[str, Any]) -> Snapshot:
    """Read what `save_checkpoint` wrote, to the bit.

    Raises DamagedCheckpointError where something else is there now, StorageError for one that cannot be read, or that a
    newer version wrote.
    """
    try:
        state = json.loads(read_regular(folder / "state.json"))
        if isinstance(state, dict) and isinstance(state.get("format"), int) and state["format"] > FORMAT:
            raise StorageError(f"checkpoint '{folder}' was written by a newer version: update ppo-workbench")
        check_content(folder)
        policy = read_arrays(folder / "policy" / ADAPTER_FILE)
        averaged = folder / "average" / ADAPTER_FILE
        average = read_arrays(averaged) if averaged.exists() else None
        value = read_arrays(folder / "value" / "value.safetensors")
        optimizer = read_arrays(folder / "optimizer" / "optimizer.safetensors")
        _State.model_validate(state)
        tree = {
            side: optimizer_tree(optimizer, parameters, f"{side}.")
            for side, parameters in (("policy", policy), ("value", value))
        }
        check_all_used(optimizer)
    except (OSError, ValueError, RuntimeError, RecursionError) as error:
        raise DamagedCheckpointError(folder, damage_of(error)) from error
    return Snapshot(
        state["iteration"],
        policy,
        value,
        tree,
        state["optimizer_steps"],
        state["rewards"],
        state["tokens"],
        adapter_config,
        state.get("kl_coef"),
        state.get("kl_coef_start"),
        average,
        Rollback(**rollback) if (rollback := state.get("rollback")) else None,
    )
