"""Sequence classifiers with one label, a common form of reward models: a trunk and the head `score.weight`."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import mlx.nn as nn

from trainer.errors import ModelError
from trainer.models.peft_adapters import CLASSIFIER

HEAD = f"{CLASSIFIER}.weight"


class ScalarHead(NamedTuple):
    """Head of a classifier: score = (weight . h - mean) / std, with h the last real token's hidden state [D].

    mean, std: those in config.json, as OpenRLHF writes them, and as our own export does; elsewhere 0 and 1.
    """

    weight: mx.array  # [D], float32
    mean: float = 0.0
    std: float = 1.0


def weight_names(folder: Path) -> set[str]:
    """Return the names of the weights of the model in `folder`, without those in files that cannot be read."""
    names: set[str] = set()
    for file in folder.glob("model*.safetensors"):
        with contextlib.suppress(OSError, RuntimeError, ValueError):  # loading reports it
            names.update(dict(mx.load(str(file))))  # type: ignore[arg-type]  # reads the names alone
    return names


class ClassifierLoading:
    """Loading of a classifier by mlx-lm as the language model of its family, with the head kept apart."""

    def __init__(self) -> None:
        self._weight: mx.array | None = None

    def classes(self, config: dict[str, Any]) -> tuple[type[nn.Module], type]:
        """Return the family's classes, as mlx-lm's `get_model_classes`, for a model that takes its head away."""
        from mlx_lm.utils import _get_classes

        family, arguments = _get_classes(config)
        config["tie_word_embeddings"] = True  # so that mlx-lm does not require the head of a language model
        kept = self

        class Headless(family):  # type: ignore[misc, valid-type]
            def sanitize(self, weights: dict[str, mx.array]) -> dict[str, mx.array]:
                kept._weight = weights.pop(HEAD)
                sanitized: dict[str, mx.array] = super().sanitize(weights) if hasattr(family, "sanitize") else weights
                return sanitized

        Headless.__module__ = family.__module__  # which names the family
        return Headless, arguments

    def head(self, settings: dict[str, Any]) -> ScalarHead:
        """Return the head of the loaded model. settings: its config.json. Raises ModelError for several labels."""
        assert self._weight is not None
        if (labels := self._weight.shape[0]) != 1:
            raise ModelError(f"the model has {labels} labels: a reward model has 1 (num_labels in its config.json)")
        mean, std, weight = settings.get("mean"), settings.get("std"), self._weight[0].astype(mx.float32)
        if isinstance(mean, int | float) and isinstance(std, int | float) and std > 0:
            return ScalarHead(weight, float(mean), float(std))
        return ScalarHead(weight)
