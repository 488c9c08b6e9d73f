"""Estimate of a run's memory before its model is loaded, and the cheapest setting that makes it fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

from trainer.config import AnyConfig, Config
from trainer.config.loading import load_config_as
from trainer.config.pairs import DPOConfig, RewardModelConfig
from trainer.config.reward_sources import JudgeSource, ModelSource
from trainer.config.schema import BackboneConfig
from trainer.errors import TrainerError
from trainer.files import read_json
from trainer.memory.footprint import Footprint, RewardModels, RewardPass, adapter_parameters, footprint, held_model
from trainer.memory.shape import ModelShape, decoder_shape, shape_of

Configured = TypeVar("Configured", bound=AnyConfig)

_OF_A_BACKBONE = ("path", "dtype", "quantize", "adapter")
_ADAPTERS = 2 * 4  # bytes of a weight: float32, as trained and as before


class Saving(NamedTuple):
    """A setting that makes a run fit."""

    key: str  # dotted
    value: Any
    peak: int  # bytes, with it
    price: str  # what the change costs besides


def footprint_of(config: AnyConfig, shape: ModelShape, longest: int, *, gpu: bool) -> Footprint:
    """Estimate the memory of `config`, reward models included. Reads files about those. Arguments as of `footprint`."""
    scorers = RewardModels() if isinstance(config, RewardModelConfig) else reward_models(config, gpu=gpu)
    return footprint(config, shape, longest, gpu=gpu, reward_models=scorers)


def cheapest_saving(config: AnyConfig, peak: Callable[[AnyConfig], int], room: int, *, gpu: bool) -> Saving | None:
    """Return the cheapest change of one setting with which `peak`, the bytes of a configuration, is at most `room`.

    gpu: whether it runs on one, where packed weights take less memory. None if no single setting is enough.
    """
    if isinstance(config, Config):
        slots = min(config.rollout.slots, config.rollout.batch_size)
        last = ("rollout.max_new_tokens", _halved(config.rollout.max_new_tokens, 16), "shorter responses")
    else:
        slots = 0
        last = ("data.max_tokens", _halved(config.data.max_tokens, 16), "only the end of long comparisons")
    model, parts = config.model, _halved(config.optim.micro_batch_tokens, 64)
    checkpointing = [] if config.optim.grad_checkpoint else [True]
    halves = ["bfloat16"] if model.dtype == "float32" or (model.dtype == "auto" and not gpu) else []
    bits = ["8-bit", "4-bit"][model.quantize != "off" :] if gpu and model.quantize != "4-bit" else []
    ladder: list[tuple[str, Sequence[Any], str]] = [
        ("optim.micro_batch_tokens", parts, "the same numbers, in smaller parts"),
        ("rollout.slots", _halved(slots, 1), "fewer responses at a time: slower generation"),
        ("optim.grad_checkpoint", checkpointing, "the same numbers, updates half as long again"),
        ("model.dtype", halves, "rounded weights" if gpu else "rounded weights, and slow on a CPU"),
        ("model.quantize", bits, "weights of fewer bits"),
        last,
    ]
    for name, values, price in ladder:
        for value in values:
            if (size := peak(changed(config, name, value))) <= room:
                return Saving(name, value, size, price)
    return None


def changed(config: Configured, key: str, value: Any) -> Configured:
    """Return `config` with another value of the dotted `key`, unchecked."""
    section, _, name = key.partition(".")
    table = getattr(config, section).model_copy(update={name: value})
    return cast("Configured", config.model_copy(update={section: table}))


def _halved(value: int, least: int) -> list[int]:
    """Return the halves of `value`, ever smaller, down to `least`."""
    values = []
    while (value := value // 2) >= least:
        values.append(value)
    return values


class _Found(NamedTuple):
    """A reward model: the name and the shape of its backbone, and how it was trained if it is ours."""

    backbone: str
    shape: ModelShape
    model: BackboneConfig
    most: int  # tokens that it reads of a sequence
    is_ours: bool


def reward_models(config: Config | DPOConfig, *, gpu: bool) -> RewardModels:
    """Return the memory of the reward models in `config`, and of judges that run here. Reads files.

    Those that use the policy's backbone hold an adapter alone; reward models of one backbone share it. One whose folder
    cannot be read counts nothing: the run will refuse it.
    """
    backbones: dict[str, int] = {}
    passes, adapters = [], 0
    for source in config.reward.sources:
        if isinstance(source, JudgeSource) and not source.url and (judge := shape_of(source.model)[0]):
            backbones[f"judge {source.model}"] = held_model(BackboneConfig(path=source.model), judge, gpu=gpu).weights
        for path in source.paths if isinstance(source, ModelSource) else ():
            found = _found(Path(path).expanduser())
            if found is None:
                continue
            held = held_model(found.model, found.shape, gpu=gpu)
            passes.append(RewardPass(held, found.most))
            if found.is_ours:
                adapters += _ADAPTERS * (adapter_parameters(found.model, found.shape) + found.shape.hidden)
            same = (getattr(found.model, name) == getattr(config.model, name) for name in _OF_A_BACKBONE)
            if not (found.is_ours and all(same)):  # else it uses the policy's
                backbones[found.backbone] = held.weights
    return RewardModels(sum(backbones.values()) + adapters, tuple(passes))


def _found(folder: Path) -> _Found | None:
    """Return the reward model in `folder`: a sequence classifier, a run, or a checkpoint of one."""
    try:
        if (folder / "config.json").is_file():  # a sequence classifier, which has no head for the vocabulary
            settings = read_json(folder / "config.json")
            shape = decoder_shape(settings | {"tie_word_embeddings": True})
            most = int(settings.get("max_position_embeddings") or 2**31)
            return _Found(str(folder), shape, BackboneConfig(path=str(folder)), most, is_ours=False)
        if (folder / "adapter_config.json").is_file():  # a classifier's PEFT adapter
            base = str(read_json(folder / "adapter_config.json")["base_model_name_or_path"])
            own, _ = shape_of(base)
            return own and _Found(base, own, BackboneConfig(path=base), 2**31, is_ours=False)
        run = folder.parent.parent if folder.parent.name == "checkpoints" else folder
        trained = load_config_as(RewardModelConfig, run / "config.toml")
        own, _ = shape_of(trained.model.path)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError, TrainerError):
        return None
    return own and _Found(trained.model.path, own, trained.model, trained.data.max_tokens, is_ours=True)
