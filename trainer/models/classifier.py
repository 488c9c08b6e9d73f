"""Sequence-classification checkpoints with one label, a common form of reward models: a trunk and `score.weight`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from trainer.config.schema import BackboneConfig
from trainer.errors import ModelError
from trainer.models.loading import load_backbone
from trainer.models.trunk import hidden_states

_HEAD = "score.weight"


class SequenceClassifier:
    """Score r(sequence) = w . h, with h the hidden state of the last real token after the final norm.

    This is the score of transformers. The checkpoint in `folder` is loaded on the calling thread. Raises ModelError for
    what `load_backbone` refuses, for a checkpoint without `score.weight`, and for one with several labels.
    """

    def __init__(self, folder: Path) -> None:
        loaded = load_backbone(BackboneConfig(path=str(folder)), classes=_classes)
        self.tokenizer = loaded.tokenizer
        self.context = loaded.context  # tokens; 0 for unknown
        self._backbone = loaded.backbone
        self._head: nn.Module = loaded.backbone.score

    def scores(self, sequences: mx.array, lengths: mx.array) -> mx.array:
        """Compute scores [N]. sequences: [N, L] ids, padded on the right with any ids; lengths: [N], at least 1."""
        hidden = hidden_states(self._backbone, sequences)  # [N, L, D]
        last = mx.take_along_axis(hidden, (lengths - 1)[:, None, None], axis=1)[:, 0]
        scores: mx.array = self._head(last.astype(mx.float32))[:, 0]
        return scores


def _classes(config: dict[str, Any]) -> tuple[type[nn.Module], type]:
    """Return the family's classes in mlx-lm, with the classifier's head instead of the language model's."""
    from mlx_lm.utils import _get_classes

    family, arguments = _get_classes(config)
    config["tie_word_embeddings"] = True  # so that mlx-lm does not require the head of a language model

    class Classifier(family):  # type: ignore[misc, valid-type]
        def __init__(self, args: Any) -> None:
            super().__init__(args)
            self.score = nn.Linear(args.hidden_size, 1, bias=False)

        def sanitize(self, weights: dict[str, mx.array]) -> dict[str, mx.array]:
            if _HEAD not in weights:
                raise ModelError(
                    f"the model has no {_HEAD}, so it is not a sequence classifier: name the run of a reward model, "
                    "or a checkpoint of ...ForSequenceClassification"
                )
            if (labels := weights[_HEAD].shape[0]) != 1:
                raise ModelError(f"the model has {labels} labels: a reward model has 1 (num_labels in its config.json)")
            sanitized: dict[str, mx.array] = super().sanitize(weights) if hasattr(family, "sanitize") else weights
            return sanitized

    return Classifier, arguments
