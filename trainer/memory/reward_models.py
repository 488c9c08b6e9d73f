"""Memory of the reward models that a configuration names, from their folders."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from trainer.config.dpo import DPOConfig
from trainer.config.loading import load_config_as
from trainer.config.reward_model import RewardModelConfig
from trainer.config.reward_sources import ModelSource
from trainer.config.schema import BackboneConfig, Config
from trainer.errors import TrainerError
from trainer.files import read_json
from trainer.memory.footprint import RewardModels, RewardPass
from trainer.memory.passes import adapter_parameters, held_model
from trainer.memory.shape import ModelShape, decoder_shape, shape_of

_ADAPTERS = 2 * 4  # bytes of a weight: float32, as trained and as before


class _Found(NamedTuple):
    """A reward model: the name and the shape of its backbone, and how it was trained if it is ours."""

    backbone: str
    shape: ModelShape
    model: BackboneConfig
    most: int  # tokens that it reads of a sequence
    is_ours: bool


def reward_models(config: Config | DPOConfig, *, gpu: bool) -> RewardModels:
    """Return the memory of the reward models in `config`. Reads files.

    Those that use the policy's backbone hold an adapter alone; reward models of one backbone share it. One whose folder
    cannot be read counts nothing: the run will refuse it.
    """
    backbones: dict[str, int] = {}
    passes, adapters = [], 0
    for source in config.reward.sources:
        for path in source.paths if isinstance(source, ModelSource) else ():
            found = _found(Path(path).expanduser())
            if found is None:
                continue
            held = held_model(found.model, found.shape, gpu=gpu)
            passes.append(RewardPass(held, found.most))
            if found.is_ours:
                adapters += _ADAPTERS * (adapter_parameters(found.model, found.shape) + found.shape.hidden)
            if not (found.is_ours and _is_the_policys(found.model, config)):
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


def _is_the_policys(model: BackboneConfig, config: Config | DPOConfig) -> bool:
    """Return whether a reward model was trained on the policy's backbone as this run holds it."""
    return all(getattr(model, name) == getattr(config.model, name) for name in ("path", "dtype", "quantize", "adapter"))
