"""Encoders of prompt and completion as one sequence of tokens: what a reward model reads, what a policy writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from trainer.config.pairs import DPODataConfig, PreferenceDataConfig
from trainer.data import Prompt, PromptRow, last_tokens, render_prompt
from trainer.data.encoding import COLUMNS, NO_COLUMNS
from trainer.errors import DataError
from trainer.preferences.records import Text, answered, as_messages


def start_of(length: int, completion: int) -> int:
    """Return the place where a completion begins in a sequence of `length` tokens, which may have been cut."""
    return min(max(length - completion, 0), length - 1)


class Sequenced(NamedTuple):
    """A prompt with a completion."""

    tokens: list[int]  # the last data.max_tokens at most
    completion: int  # tokens of the completion before cutting
    is_cut: bool

    @property
    def start(self) -> int:
        """Place of the completion's first token, or of the last token if it has none."""
        return start_of(len(self.tokens), self.completion)


class Encoder:
    """Renderer and tokeniser that treats prompts as PPO does, with mlx-lm's tokenizer wrapper.

    A plain-text completion is appended to the prompt as it is; one of a conversation goes through the chat template.
    For a reward model, sequences end with the last token of the text, without an end token: a response that was cut
    short has none.

    For a policy (the data of DPO), a completion is tokenised by itself, because that is how a policy writes it. The end
    token follows if `data.end_token` is set. A sequence that is too long loses its first tokens; the first one left
    always counts as prompt.
    """

    def __init__(self, tokenizer: Any, config: PreferenceDataConfig) -> None:
        self._tokenizer = tokenizer
        self._config = config
        self._for_policy = isinstance(config, DPODataConfig)
        self._end: list[int] = []
        if isinstance(config, DPODataConfig) and config.end_token:
            end = tokenizer.eos_token_id
            self._end = [min(tokenizer.eos_token_ids) if end is None else end]
        self._last: tuple[Text, list[Any], Prompt] | None = None
        self.notes: set[str] = set()  # on how messages were rendered, for the user

    def sequence(
        self, prompt: Text, completion: Text, columns: Mapping[str, Any] = NO_COLUMNS, place: str = "the preference"
    ) -> Sequenced:
        """Encode `prompt` and `completion` as one sequence.

        columns: of the preference's row, which may have options of the chat template. place: names it in errors. For a
        policy, the result's `completion` is the number of tokens that it writes. Raises DataError if the two cannot be
        rendered or have no tokens.
        """
        row = PromptRow(0, prompt, dict(columns), place)
        if isinstance(prompt, str) and isinstance(completion, str) and self._config.chat != "always":
            begin, text = self._tokenizer.bos_token_id, completion
            if prompt:
                start = self._rendered(row).tokens
            elif not self._for_policy:
                if not completion:
                    raise DataError(f"{place} has neither a prompt nor a completion")
                tokens = render_prompt(row._replace(prompt=completion), self._tokenizer, self._config).tokens
                return self._limited(tokens, len(tokens))
            elif begin is None:
                raise DataError(
                    f"{place} has an empty prompt, and the model's tokenizer has no begin token: remove it, or set "
                    "data.chat = 'always'"
                )
            else:
                start = [begin]
        else:
            messages, (answer,) = as_messages(prompt, [completion])
            rendered = self._rendered(row._replace(prompt=messages))
            whole = self._rendered(row._replace(prompt=answered(messages, answer)), keep=False)
            start, text = rendered.tokens, whole.text.removeprefix(rendered.text)
            if not self._for_policy:
                return self._limited(whole.tokens, max(len(whole.tokens) - len(start), 0))
            if not whole.text.startswith(rendered.text):  # the template writes past turns differently from the next one
                if len(answer) > 1:
                    raise DataError(
                        f"{place} has completions of {len(answer)} messages, and the chat template renders the prompt "
                        "differently once it is answered: keep only the first message of the completions"
                    )
                text = answer[0]["content"]
        written = list(self._tokenizer.encode(text, add_special_tokens=False))
        if written[-1:] != self._end:
            written += self._end
        found = self._limited([*start, *written], len(written))
        return found._replace(completion=min(len(written), len(found.tokens) - 1)) if self._for_policy else found

    def _rendered(self, row: PromptRow, *, keep: bool = True) -> Prompt:
        options = [row.columns.get(name) for name in COLUMNS]
        # The completions of one prompt follow each other.
        if self._last is not None and self._last[0] == row.prompt and self._last[1] == options:
            return self._last[2]
        rendered = render_prompt(row, self._tokenizer, self._config, self.notes)
        if keep:
            self._last = row.prompt, options, rendered
        return rendered

    def _limited(self, tokens: list[int], completion: int) -> Sequenced:
        limit = self._config.max_tokens
        if len(tokens) <= limit:
            return Sequenced(tokens, completion, is_cut=False)
        return Sequenced(last_tokens(tokens, limit, self._tokenizer.bos_token_id), completion, is_cut=True)
