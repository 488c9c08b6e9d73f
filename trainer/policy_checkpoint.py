"""Checkpoints: everything that a run needs to resume exactly, written whole or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from mlx.utils import tree_flatten
from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt

from trainer.config.schema import RewardConfig
from trainer.files import FileFormat, read_json
from trainer.fitting.optimisation import optimizer_trees
from trainer.models.actor_critic import ActorCriticLLM, check_fit
from trainer.models.adapters import (
    ADAPTER_FILE,
    Parameters,
    read_adapter_config,
    read_arrays,
    save_adapter,
    write_arrays,
)
from trainer.ppo.loop import PPO
from trainer.ppo.potentials import FEATURES
from trainer.runs.checkpoint_files import DamagedCheckpointError, check_content, damage_of, write_folder

STATE_FORMAT = FileFormat("format")
_PLAIN = (
    *("iteration", "optimizer_steps", "tokens", "rewards", "kl_coef", "kl_coef_start"),
    *("prefix_values", "value_scale", "walk"),
)  # fields of a snapshot that are plain values
_Features = Annotated[list[float], Field(min_length=FEATURES, max_length=FEATURES)]


class Rollback(NamedTuple):
    """Record of a rollback: the older checkpoint, the reason, and the learning rates to continue with."""

    to: int  # the iteration of that checkpoint
    reason: str
    policy_lr: float
    value_lr: float


class _Statistics(BaseModel):
    """Statistics of the rewards, as far as there are any; `sources` may be anything."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    count: NonNegativeInt = 0
    mean: float = 0.0
    m2: float = 0.0


class _PrefixValues(BaseModel):
    """State of `PotentialValues`."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    known: Literal["score", "fitted"] = "score"
    moments: Annotated[list[_Features], Field(min_length=FEATURES, max_length=FEATURES)]
    products: _Features


class _Walk(BaseModel):
    """State of `PromptWalk`."""

    model_config = ConfigDict(strict=True)

    further: NonNegativeInt
    resting: list[Annotated[list[NonNegativeInt], Field(min_length=3, max_length=3)]]


class _State(BaseModel):
    """Schema of state.json."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    format: int
    iteration: NonNegativeInt
    optimizer_steps: NonNegativeInt
    tokens: NonNegativeInt
    rewards: _Statistics
    kl_coef: float | None = None
    kl_coef_start: float | None = None
    prefix_values: _PrefixValues | None = None
    value_scale: Annotated[float, Field(gt=0)] | None = None
    walk: _Walk | None = None
    rollback: Rollback | None = None


class Snapshot(NamedTuple):
    """State of a run between two iterations. Keeping one is cheap: MLX arrays never change in place."""

    iteration: int  # completed iterations
    policy: Parameters
    value: Parameters
    optimizer: dict[str, Any]
    optimizer_steps: int
    rewards: dict[str, Any]
    tokens: int  # response tokens so far
    adapter_config: dict[str, Any]
    kl_coef: float | None = None  # of the next iteration; None: that of the configuration
    kl_coef_start: float | None = None  # ppo.kl_coef when the controller began
    average: Parameters | None = None  # of the policy's adapter; None: disabled
    prefix_values: dict[str, Any] | None = None  # state of `PotentialValues`; None if they are off
    value_scale: float | None = None  # of the critic's head; None: no returns have set it yet
    walk: dict[str, Any] | None = None  # state of `PromptWalk`; None: nothing was drawn but the batches
    rollback: Rollback | None = None  # that replaced another state after `iteration`

    def parts(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the fields that a run continues from: those of plain values, and those of arrays."""
        names = ("policy", "value", "optimizer", *(("average",) if self.average is not None else ()))
        plain, arrays = ({name: getattr(self, name) for name in fields} for fields in (_PLAIN, names))
        return plain, arrays

    def has_statistics_of(self, reward: RewardConfig) -> bool:
        """Return whether `rewards` are statistics of the sources of `reward`; those of others would mean nothing."""
        sources = _sources(reward)
        return bool(self.rewards) and self.rewards.get("sources", sources) == sources


def take_snapshot(iteration: int, ppo: PPO) -> Snapshot:
    """Return the run's current state."""
    return Snapshot(
        iteration,
        ppo.actor.policy_parameters(),
        ppo.actor.fitted.arrays() if ppo.actor.fitted else ppo.actor.value_parameters(),
        ppo.learner.state(),
        ppo.learner.steps,
        {**ppo.rewards.state(), "sources": _sources(ppo.config.reward)},
        ppo.tokens,
        ppo.actor.adapter_config,
        ppo.kl_coef,
        ppo.config.ppo.kl_coef,
        ppo.learner.average,
        ppo.potential_values.state() if ppo.uses_potentials else None,
        ppo.actor.value_scale,
        ppo.walk.state(),
    )


def restore_snapshot(snapshot: Snapshot, ppo: PPO) -> None:
    """Restore the run's state from `snapshot`, as far as its configuration allows.

    Statistics of other rewards are left out. The KL controller resumes only if ppo.kl_coef is still the value that it
    began with. If the snapshot has no average, the average begins as a copy of the policy.
    """
    ppo.actor.update_policy(snapshot.policy)
    restore_critic(snapshot, ppo.actor)
    ppo.learner.restore(snapshot.optimizer, snapshot.optimizer_steps)
    if ppo.learner.average is not None:
        average = snapshot.average or snapshot.policy
        ppo.learner.average = {name: average[name] for name in ppo.learner.average}  # in the order in which it is saved
    if snapshot.has_statistics_of(ppo.config.reward):
        ppo.rewards.restore(snapshot.rewards)
    ppo.potential_values.restore(snapshot.prefix_values)
    ppo.tokens = snapshot.tokens
    ppo.walk.restore(snapshot.walk)
    goes_on = ppo.config.ppo.kl_controller == "adaptive" and snapshot.kl_coef_start == ppo.config.ppo.kl_coef
    if goes_on and snapshot.kl_coef is not None:
        ppo.kl_coef = snapshot.kl_coef


def restore_critic(snapshot: Snapshot, actor: ActorCriticLLM) -> None:
    """Restore the critic. Raises ModelError if it is of another kind or another model."""
    if actor.fitted:
        check_fit(snapshot.value, actor.fitted.arrays(), "critic")
        actor.fitted.restore(snapshot.value)
    else:
        actor.update_value(snapshot.value)
    actor.value_scale = snapshot.value_scale


def _sources(reward: RewardConfig) -> list[dict[str, Any]]:
    return [source.model_dump() for source in reward.sources]


def save_checkpoint(folder: Path, snapshot: Snapshot) -> None:
    """Write `snapshot` to `folder` by renaming a finished copy into place, replacing an existing checkpoint.

    policy/ and average/ are adapters in mlx-lm's own format. Critic and optimiser are beside them, because mlx-lm
    refuses tensors that are not an adapter's. Raises StorageError.
    """

    def fill(temporary: Path) -> None:
        save_adapter(snapshot.policy, snapshot.adapter_config, temporary / "policy")
        if snapshot.average is not None:
            save_adapter(snapshot.average, snapshot.adapter_config, temporary / "average")
        write_arrays(temporary / "value" / "value.safetensors", snapshot.value)
        write_arrays(temporary / "optimizer" / "optimizer.safetensors", dict(tree_flatten(snapshot.optimizer)))

    rollback = snapshot.rollback and snapshot.rollback._asdict()
    write_folder(folder, fill, {"format": STATE_FORMAT.version, **snapshot.parts()[0], "rollback": rollback})


def load_checkpoint(folder: Path, adapter_config: dict[str, Any]) -> Snapshot:
    """Read what `save_checkpoint` wrote, to the bit.

    Raises DamagedCheckpointError if the content differs from what was written, StorageError if it cannot be read or if
    a newer version wrote it.
    """
    try:
        state = STATE_FORMAT.current(read_json(folder / "state.json"), f"checkpoint '{folder}'")
        check_content(folder)
        read_adapter_config(folder / "policy")
        policy = read_arrays(folder / "policy" / ADAPTER_FILE)
        averaged = folder / "average" / ADAPTER_FILE
        average = read_arrays(averaged) if averaged.exists() else None
        value = read_arrays(folder / "value" / "value.safetensors")
        optimizer = read_arrays(folder / "optimizer" / "optimizer.safetensors")
        checked = _State.model_validate(state)
        trained = {"policy": policy} if value.keys() == {"moments"} else {"policy": policy, "value": value}
        tree = optimizer_trees(optimizer, trained)  # least squares has no optimiser
    except (OSError, ValueError, RuntimeError) as error:
        raise DamagedCheckpointError(folder, damage_of(error)) from error
    plain: dict[str, Any] = {name: state.get(name) for name in _PLAIN}
    return Snapshot(
        **plain,
        policy=policy,
        value=value,
        optimizer=tree,
        adapter_config=adapter_config,
        average=average,
        rollback=checked.rollback,
    )
