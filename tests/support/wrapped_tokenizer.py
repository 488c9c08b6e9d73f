"""A tokenizer as mlx-lm wraps it, with a chat template."""

from __future__ import annotations

from typing import Any

from tiny import make_tokenizer

TEMPLATE = (
    "{% for m in messages %}<special0>{{ m['role'] }}: {{ m['content'] }}<end>{% endfor %}"
    "{% if add_generation_prompt %}<special0>assistant: {% endif %}"
)


class Wrapper:
    """Stand-in for mlx-lm's wrapper around a tokenizer, as far as it is used here."""

    def __init__(self, template: str = "") -> None:
        self._tokenizer = make_tokenizer(pad_is_end=True)
        if template:
            self._tokenizer.chat_template = template
        self.eos_token_ids = {256}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)
