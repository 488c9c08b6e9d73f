"""Checkpoints: everything that a run needs to go on exactly, written whole or not at all."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from pathlib import Path
from typing import Any, NamedTuple, cast

import mlx.core as mx
from mlx.utils import tree_flatten

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
    are not an adapter's. state.json comes last and lists every file with its size. Raises StorageError.
    """
    temporary = folder.with_name(f".{folder.name}.tmp")
    try:
        for left in folder.parent.glob(".*.tmp"):  # by a process that was killed here
            shutil.rmtree(left)
        for part in ("value", "optimizer"):
            (temporary / part).mkdir(parents=True)
        save_adapter(snapshot.policy, snapshot.adapter_config, temporary / "policy")
        _write(temporary / "value" / "value.safetensors", snapshot.value)
        _write(temporary / "optimizer" / "optimizer.safetensors", dict(tree_flatten(snapshot.optimizer)))
        files = sorted(path for path in temporary.rglob("*") if path.is_file())
        state = {
            "format": FORMAT,
            "iteration": snapshot.iteration,
            "optimizer_steps": snapshot.optimizer_steps,
            "tokens": snapshot.tokens,
            "rewards": snapshot.rewards,
            "files": {str(path.relative_to(temporary)): path.stat().st_size for path in files},
        }
        (temporary / "state.json").write_text(json.dumps(state, indent=2) + "\n", encoding="utf-8")
        for path in (*files, temporary / "state.json"):
            _sync(path)  # a rename must not become durable before what it names
        shutil.rmtree(folder, ignore_errors=True)
        temporary.rename(folder)
        with contextlib.suppress(OSError):  # some file systems refuse to sync a folder
            _sync(folder.parent)
    except (OSError, RuntimeError) as error:  # mlx reports a failed write as RuntimeError
        shutil.rmtree(temporary, ignore_errors=True)
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise StorageError(
            f"cannot write checkpoint '{folder}': {reason}; free space or mend the folder's rights, then --resume"
        ) from error


def load_checkpoint(folder: Path, adapter_config: dict[str, Any]) -> Snapshot:
    """Read what `save_checkpoint` wrote. Raises StorageError for one that is damaged or of a newer version."""
    try:
        state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        if state["format"] > FORMAT:
            raise StorageError(f"checkpoint '{folder}' was written by a newer version: update ppo-workbench")
        policy = _arrays(folder / "policy" / ADAPTER_FILE)
        value = _arrays(folder / "value" / "value.safetensors")
        optimizer = _arrays(folder / "optimizer" / "optimizer.safetensors")
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


def _arrays(path: Path) -> Parameters:
    arrays = cast("Parameters", mx.load(str(path)))
    mx.eval(arrays)  # read now: the folder may be pruned later
    return arrays


def _write(path: Path, arrays: Parameters) -> None:
    # In a fixed order, so that a resumed run writes the same bytes as one that was never stopped.
    mx.save_safetensors(str(path), dict(sorted(arrays.items())))


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


def _sync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
