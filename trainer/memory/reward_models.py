"""Memory of the reward models that a configuration names, from their folders."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from trainer.config.reward_sources import ModelSource
from trainer.config.schema import Config
from trainer.files import read_regular
from trainer.memory.footprint import precision_of, weights_bytes
from trainer.memory.shape import ModelShape, decoder_shape, shape_of


def reward_model_bytes(config: Config, *, gpu: bool) -> int:
    """Return the bytes of the weights of all reward models that do not use the policy's backbone. Reads files.

    Reward models of one backbone share it. One whose folder cannot be read counts 0: the run will refuse it.
    """
    found: dict[str, int] = {}
    for source in config.reward.sources:
        for path in source.paths if isinstance(source, ModelSource) else ():
            name, shape, model = _backbone(Path(path).expanduser())
            if shape is None or (model is not None and _is_the_policys(model, config)):
                continue
            own = config.model.model_copy(update={"dtype": "auto", "quantize": "off"} | (model or {}))
            precision = precision_of(config.model_copy(update={"model": own}), shape, gpu=gpu)
            found[name] = weights_bytes(shape, precision)
    return sum(found.values())


def _backbone(folder: Path) -> tuple[str, ModelShape | None, dict[str, Any] | None]:
    """Return the backbone of a reward model: its name, its shape if that is known, and its settings if it is ours."""
    try:
        if (folder / "config.json").is_file():  # a sequence classifier, which has no head for the vocabulary
            settings = json.loads(read_regular(folder / "config.json"))
            return str(folder), decoder_shape(settings | {"tie_word_embeddings": True}), None
        run = folder.parent.parent if folder.parent.name == "checkpoints" else folder
        model = tomllib.loads(read_regular(run / "config.toml").decode("utf-8")).get("model", {})
        known = {name: str(model[name]) for name in ("path", "dtype", "quantize", "adapter") if name in model}
        path = known.get("path", "starter")
        return path, shape_of(path)[0], known
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
        return "", None, None


def _is_the_policys(model: dict[str, Any], config: Config) -> bool:
    """Return whether the reward model was trained on the policy's backbone as this run holds it."""
    own = config.model
    mine = {"path": own.path, "dtype": own.dtype, "quantize": own.quantize, "adapter": own.adapter}
    usual = {"path": "starter", "dtype": "auto", "quantize": "off", "adapter": ""}
    return usual | model == mine
