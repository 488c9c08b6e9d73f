"""Encoding of prompt and completion for the policy: the prompt's tokens as in PPO, then the completion's own."""

from __future__ import annotations

from typing import Any

from trainer.config.dpo import DPODataConfig
from trainer.config.fields import LARGEST_INT
from trainer.config.schema import DataConfig
from trainer.data import Prompt, PromptRow, encode_prompts
from trainer.errors import DataError
from trainer.preferences.conversations import as_messages
from trainer.preferences.records import Messages, Text
from trainer.reward_model.encoding import Encoder, Sequenced

_UNLIMITED = LARGEST_INT


class PolicyEncoder(Encoder):
    """Encoder that renders prompts as PPO does.

    A completion is tokenised by itself, because that is how a policy writes it. The end token follows if
    `data.end_token` is set. A sequence that is too long loses its first tokens; the first one left always counts as
    prompt.
    """

    def __init__(self, tokenizer: Any, config: DPODataConfig) -> None:
        super().__init__(tokenizer, config)
        self._wrapper = tokenizer
        self._always_chat = config.chat == "always"
        self._data = DataConfig(chat=config.chat, system=config.system, max_prompt_tokens=_UNLIMITED)
        end = tokenizer.eos_token_id
        self._end = [min(tokenizer.eos_token_ids) if end is None else end] if config.end_token else []
        self._last: tuple[Text, Prompt] | None = None

    def sequence(self, prompt: Text, completion: Text, number: int = 0) -> Sequenced:
        """Encode `completion` to `prompt`; the result's `completion` is the number of tokens that the policy writes.

        Raises DataError if they cannot be rendered, or the prompt has no tokens.
        """
        if isinstance(prompt, str) and isinstance(completion, str) and not self._always_chat:
            start, text = self._start(prompt, number), completion
        else:
            messages, (answer,) = as_messages(prompt, [completion])
            rendered = self._rendered(messages, number)
            start, text = rendered.tokens, self._answer(rendered.text, messages, answer, number)
        written = list(self._wrapper.encode(text, add_special_tokens=False))
        if written[-1:] != self._end:
            written += self._end
        limited = self._limited([*start, *written], len(written))
        return limited._replace(completion=min(len(written), len(limited.tokens) - 1))

    def _start(self, prompt: str, number: int) -> list[int]:
        if prompt:
            return self._rendered(prompt, number).tokens
        begin = self._wrapper.bos_token_id
        if begin is None:
            raise DataError(
                f"preference {number} (counted from 0) has an empty prompt, and the model's tokenizer has no begin "
                "token to go on from: take it out, or set data.chat = 'always'"
            )
        return [begin]

    def _answer(self, start: str, messages: Messages, answer: Messages, number: int) -> str:
        """Return what the chat template writes for `answer` after `start`, without closing the last message."""
        text = self._rendered([*messages, *answer], number, keep=False).text
        if text.startswith(start):
            return text.removeprefix(start)
        if len(answer) == 1:  # the template writes past turns differently from the next one
            return answer[0]["content"]
        raise DataError(
            f"preference {number} (counted from 0) goes on for {len(answer)} messages, and the chat template writes "
            "the prompt otherwise once it is answered: keep only the first message of the completions"
        )

    def _rendered(self, prompt: Text, number: int, *, keep: bool = True) -> Prompt:
        if self._last is not None and self._last[0] == prompt:  # the completions of one prompt follow each other
            return self._last[1]
        rendered = encode_prompts([PromptRow(number, prompt, {})], self._wrapper, self._data).prompts[0]
        if keep:
            self._last = prompt, rendered
        return rendered
