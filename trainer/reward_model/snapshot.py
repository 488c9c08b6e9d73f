"""Checkpoints of a reward model: what a run needs to resume exactly, and what others need to use the model.

adapter/ is an adapter in mlx-lm's format; head.safetensors, the optimiser and the best parameters lie beside it.
reward_model.json describes how to use the model, state.json how to resume its training.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from mlx.utils import tree_flatten
from pydantic import BaseModel, ConfigDict, NonNegativeInt

from trainer.config.pairs import RewardModelConfig
from trainer.config.problems import validate_as
from trainer.errors import ConfigError, StorageError
from trainer.files import FileFormat, read_json
from trainer.fitting.optimisation import optimizer_trees
from trainer.models.adapters import (
    ADAPTER,
    ADAPTER_FILE,
    Parameters,
    read_adapter_config,
    read_arrays,
    save_adapter,
    write_arrays,
)
from trainer.reward_model.network import Scale
from trainer.reward_model.predictions import Baseline
from trainer.runs.checkpoint_files import REWARD_MODEL, DamagedCheckpointError, check_content, damage_of, write_folder

CARD_FORMAT = FileFormat("format")
STATE_FORMAT = FileFormat("format")
CARD = REWARD_MODEL


class _State(BaseModel):
    """Schema of state.json: what a run continues from, besides arrays."""

    model_config = ConfigDict(strict=True)

    iteration: NonNegativeInt  # steps taken
    fingerprint: str  # of the comparisons
    tokens: NonNegativeInt
    without_better: NonNegativeInt  # evaluations since the best
    best_report: dict[str, Any] | None  # the evaluation with the lowest held-out log-loss so far
    best_iteration: NonNegativeInt  # the step after which it was reached


class _Card(BaseModel):
    """Schema of reward_model.json, without the parts of its configuration."""

    model_config = ConfigDict(strict=True)

    seed: NonNegativeInt
    scale: Scale
    length_slope: float
    untrained: dict[str, float] | None
    evaluation: dict[str, Any] | None
    finished: bool


class RewardModelSnapshot(NamedTuple):
    """State of a run between two steps. MLX arrays never change in place, so keeping one costs only references."""

    iteration: int
    parameters: Parameters
    optimizer: dict[str, Any]
    adapter_config: dict[str, Any]
    scale: Scale
    fingerprint: str
    length_slope: float  # of the length-only baseline
    tokens: int = 0
    untrained: dict[str, Any] | None = None  # the evaluation before the first step
    report: dict[str, Any] | None = None  # the latest evaluation of `parameters`
    best: Parameters | None = None  # those of `best_report`
    best_report: dict[str, Any] | None = None
    best_iteration: int = 0
    without_better: int = 0
    finished: bool = False

    def parts(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the fields that a run continues from: those of plain values, and those of arrays.

        `best` is among the arrays if there is a best evaluation; without its own, it has the shapes of `parameters`.
        """
        arrays = {"parameters": self.parameters, "optimizer": self.optimizer}
        if self.best_report is not None:
            arrays["best"] = self.best or self.parameters
        plain = (*_State.model_fields, "scale", "untrained", "report", "finished")
        return {name: getattr(self, name) for name in plain}, arrays


def save_snapshot(folder: Path, snapshot: RewardModelSnapshot, config: RewardModelConfig) -> None:
    """Write `snapshot` as `folder`, in full or not at all. Raises StorageError."""
    parameters = snapshot.parameters
    adapter = {name.removeprefix(ADAPTER): array for name, array in parameters.items() if name.startswith(ADAPTER)}
    head = {name: array for name, array in parameters.items() if not name.startswith(ADAPTER)}

    def fill(temporary: Path) -> None:
        save_adapter(adapter, snapshot.adapter_config, temporary / "adapter")
        write_arrays(temporary / "head.safetensors", head)
        write_arrays(temporary / "optimizer.safetensors", dict(tree_flatten(snapshot.optimizer)))
        if snapshot.best is not None:
            write_arrays(temporary / "best.safetensors", snapshot.best)
        (temporary / CARD).write_text(json.dumps(card, indent=2) + "\n", encoding="utf-8")

    card = {
        "format": CARD_FORMAT.version,
        "finished": snapshot.finished,
        "iteration": snapshot.iteration,
        "seed": config.run.seed,
        "model": config.model.model_dump(),
        "data": config.data.model_dump(include={"chat", "system", "max_tokens"}),
        "train": config.train.model_dump(include={"states"}),
        "scale": snapshot.scale._asdict(),
        "length_slope": snapshot.length_slope,
        "untrained": snapshot.untrained,
        "evaluation": snapshot.report,
    }
    state = {name: getattr(snapshot, name) for name in _State.model_fields}
    write_folder(folder, fill, {"format": STATE_FORMAT.version, **state})


def load_snapshot(folder: Path) -> RewardModelSnapshot:
    """Read what `save_snapshot` wrote, bit for bit.

    Raises DamagedCheckpointError if the files have changed since then, StorageError if they cannot be read or a newer
    version wrote them.
    """
    card, state = read_card(folder, whole=True), read_state(folder)
    try:
        if card["untrained"]:
            Baseline(**card["untrained"])  # or TypeError
        parameters, optimizer = load_parameters(folder), read_arrays(folder / "optimizer.safetensors")
        tree = optimizer_trees(optimizer, {"": parameters})[""]
        best = read_arrays(folder / "best.safetensors") if state["best_report"] else None
        return RewardModelSnapshot(
            **{name: state[name] for name in _State.model_fields},
            parameters=parameters,
            optimizer=tree,
            adapter_config=read_adapter_config(folder / "adapter"),
            scale=Scale(**card["scale"]),
            length_slope=card["length_slope"],
            untrained=card["untrained"],
            report=card["evaluation"],
            best=best,
            finished=card["finished"],
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise DamagedCheckpointError(folder, damage_of(error)) from error


def read_state(folder: Path) -> dict[str, Any]:
    """Read state.json: the iteration, the fingerprint of the comparisons, the best evaluation. Raises StorageError."""
    try:
        state = STATE_FORMAT.current(read_json(folder / "state.json"), f"checkpoint '{folder}'")
        _State.model_validate(state)
    except (OSError, ValueError) as error:
        raise DamagedCheckpointError(folder, damage_of(error)) from error
    return state


def load_parameters(folder: Path) -> Parameters:
    """Read adapter and head of the checkpoint in `folder`. Raises StorageError."""
    try:
        adapter = read_arrays(folder / "adapter" / ADAPTER_FILE)
        head = read_arrays(folder / "head.safetensors")
    except (OSError, ValueError, RuntimeError) as error:
        raise DamagedCheckpointError(folder, damage_of(error)) from error
    return {f"{ADAPTER}{name}": array for name, array in adapter.items()} | head


def read_card(folder: Path, *, whole: bool = False) -> dict[str, Any]:
    """Read reward_model.json: base model, data settings, scale, evaluation. Raises StorageError.

    whole: check it, and every file of the checkpoint, first. Raises DamagedCheckpointError.
    """
    try:
        card = CARD_FORMAT.current(read_json(folder / CARD), f"reward model '{folder}'")
        if whole:
            check_content(folder)
            _Card.model_validate(card)
    except (OSError, ValueError) as error:
        raise DamagedCheckpointError(folder, damage_of(error)) from error
    return card


def card_config(folder: Path, card: dict[str, Any]) -> RewardModelConfig:
    """Return the settings in the card in `folder`. Raises StorageError if this version has no such."""
    try:
        return validate_as(RewardModelConfig, {table: card.get(table) for table in ("model", "data", "train")})
    except ConfigError as error:
        raise StorageError(
            f"reward model '{folder}' has settings that this version of ppo-workbench cannot use "
            f"({error.problems[0]}): train it again, or use the version that it was trained with"
        ) from None
