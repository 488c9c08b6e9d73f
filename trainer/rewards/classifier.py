"""Sequence-classification models as reward models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from trainer.errors import DataError
from trainer.models.adapters import reason_of
from trainer.models.classifier import SequenceClassifier
from trainer.preferences.conversations import as_messages
from trainer.preferences.records import Text
from trainer.reward_model.scoring import score_sequences


class ClassifierModel:
    """A checkpoint from `folder`. Only the thread that created it may use it. Its scores are not scaled.

    chat: what goes through the model's chat template: `auto` (messages only), `always` (strings too), or `never`. A
    conversation is rendered to the very end of the template, as in the training of such models. Raises ModelError.
    """

    def __init__(self, folder: Path, chat: str) -> None:
        self._model = SequenceClassifier(folder)
        self._chat = chat

    def encode(self, prompt: Text, completion: Text) -> list[int]:
        """Encode prompt and completion as tokens; only the last ones that fit its context. Raises DataError."""
        tokenizer, limit = self._model.tokenizer, self._model.context
        if isinstance(prompt, str) and isinstance(completion, str) and self._chat != "always":
            tokens = list(tokenizer.encode(prompt + completion))
        else:
            tokens = list(tokenizer.encode(self._rendered(prompt, completion), add_special_tokens=False))
        if not tokens:
            raise DataError("it has no tokens: leave empty prompts out")
        if not limit or len(tokens) <= limit:
            return tokens
        keeps_begin = limit > 1 and tokens[0] == tokenizer.bos_token_id
        return tokens[:1] + tokens[1 - limit :] if keeps_begin else tokens[-limit:]

    def score(
        self,
        sequences: Sequence[Sequence[int]],
        *,
        micro_batch_tokens: int,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> list[float]:
        """Return one score per sequence of tokens."""
        return [float(score) for score in score_sequences(self._model, sequences, micro_batch_tokens, progress)]

    def _rendered(self, prompt: Text, completion: Text) -> str:
        if self._chat == "never":
            raise DataError("it is a list of messages, and chat = 'never': set chat = 'auto'")
        messages, (answer,) = as_messages(prompt, [completion])
        try:
            # The template is code by the model's authors and may raise anything.
            return str(self._model.tokenizer.apply_chat_template([*messages, *answer], tokenize=False))
        except Exception as error:
            raise DataError(f"the model has no chat template that takes it: {reason_of(error)}") from error
