"""Encoding of prompt and completion as one sequence of tokens, which the reward model reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from trainer.config.fields import LARGEST_INT
from trainer.config.reward_model import PreferenceDataConfig
from trainer.config.schema import DataConfig
from trainer.data import PromptRow, encode_prompts
from trainer.errors import DataError
from trainer.preferences.conversations import as_messages
from trainer.preferences.records import Text

_UNLIMITED = LARGEST_INT


class Sequenced(NamedTuple):
    """A prompt with a completion."""

    tokens: list[int]  # the last data.max_tokens at most
    completion: int  # tokens of the completion before cutting
    is_cut: bool


class Encoder:
    """Renderer and tokeniser that treats prompts as PPO does, with mlx-lm's tokenizer wrapper.

    A plain-text completion is appended to the prompt as it is; one of a conversation goes through the chat template.
    Sequences end with the last token of the text, without an end token: a response that was cut short has none.
    """

    def __init__(self, tokenizer: Any, config: PreferenceDataConfig) -> None:
        self._tokenizer = tokenizer
        self._config = config
        # `encode_prompts` only renders: the limit here is on prompt and completion together.
        self._rendering = DataConfig(chat=config.chat, system=config.system, max_prompt_tokens=_UNLIMITED)
        self._as_it_is = DataConfig(max_prompt_tokens=_UNLIMITED)
        self._prompt: Text | None = None
        self._prompt_tokens: list[int] = []

    def sequence(self, prompt: Text, completion: Text, number: int = 0) -> Sequenced:
        """Encode `prompt` and `completion` as one sequence.

        number: the preference's number in error messages, counted from 0. Raises DataError if the two cannot be
        rendered or have no tokens.
        """
        if isinstance(prompt, str) and isinstance(completion, str) and self._config.chat != "always":
            if not prompt:
                tokens = self._plain(completion)
                if not tokens:
                    raise DataError(f"preference {number} (counted from 0) has neither a prompt nor a completion")
                return self._limited(tokens, len(tokens))
            added = list(self._tokenizer.encode(completion, add_special_tokens=False))
            return self._limited(self._encoded_prompt(prompt, number) + added, len(added))
        messages, (answer,) = as_messages(prompt, [completion])
        start = self._encoded_prompt(messages, number)
        tokens = self._encoded([*messages, *answer], number)
        return self._limited(tokens, max(len(tokens) - len(start), 0))

    def text(self, text: str) -> list[int]:
        """Encode a whole text, prompt and completion in one, as it is."""
        return self._limited(self._plain(text), 0).tokens

    def tokens(self, tokens: Sequence[int]) -> list[int]:
        """Return tokens of a policy with this tokenizer, without end tokens at their end."""
        ends = self._tokenizer.eos_token_ids
        end = next((place for place in range(len(tokens), 1, -1) if tokens[place - 1] not in ends), 1)
        return self._limited(list(tokens[:end]), 0).tokens

    def _encoded_prompt(self, prompt: Text, number: int) -> list[int]:
        if prompt != self._prompt:  # cached: the completions of one prompt follow each other
            self._prompt, self._prompt_tokens = prompt, self._encoded(prompt, number)
        return self._prompt_tokens

    def _encoded(self, prompt: Text, number: int) -> list[int]:
        return encode_prompts([PromptRow(number, prompt, {})], self._tokenizer, self._rendering).prompts[0].tokens

    def _plain(self, text: str) -> list[int]:
        if not text:
            return []
        return encode_prompts([PromptRow(0, text, {})], self._tokenizer, self._as_it_is).prompts[0].tokens

    def _limited(self, tokens: list[int], completion: int) -> Sequenced:
        limit, begin = self._config.max_tokens, self._tokenizer.bos_token_id
        if len(tokens) <= limit:
            return Sequenced(tokens, completion, is_cut=False)
        # As in `encode_prompts`: models that were trained with a begin token perform badly without it.
        kept = tokens[:1] + tokens[1 - limit :] if limit > 1 and tokens[0] == begin else tokens[-limit:]
        return Sequenced(kept, completion, is_cut=True)
