"""A judge that runs here: a language model in MLX. This module imports MLX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx

from trainer.arrays import clear_cache
from trainer.config.reward_sources import JudgeSource
from trainer.config.schema import BackboneConfig, DataConfig, RolloutConfig
from trainer.data import Prompt, PromptRow, render_prompt
from trainer.errors import DataError, RewardError
from trainer.models.backbone import load_backbone, load_tokenizer
from trainer.rewards.judge_answers import Messages, Reply
from trainer.rollout.generation import generate_responses

_GREEDY = 0.01  # temperature below which the likeliest token is taken


class LocalJudge:
    """Answers requests with a model that it loads, on the calling thread, which alone may use it.

    between: called after every token; may raise to end the asking. Raises ModelError for a model that cannot be loaded.
    """

    def __init__(self, source: JudgeSource, between: Callable[[], None] = lambda: None) -> None:
        self._source = source
        self._between = between
        self._model = load_backbone(BackboneConfig(path=source.model))

    def body(self, messages: Messages) -> dict[str, Any]:
        """Return what the answer depends on."""
        source = self._source
        settings = {"temperature": source.temperature, "max_tokens": source.max_tokens, "options": source.options}
        return {"model": source.model, "messages": messages, **settings}

    def __call__(self, requests: Sequence[Messages], done: Callable[[int, Reply], None]) -> None:
        """Answer `requests`, `source.concurrency` at a time; `done` gets the place and the reply of each."""
        source, model = self._source, self._model
        is_greedy = source.temperature < _GREEDY
        sampling = RolloutConfig(
            max_new_tokens=source.max_tokens,
            slots=source.concurrency,
            temperature=1.0 if is_greedy else source.temperature,
            top_k=1 if is_greedy else 0,
        )
        fitting = list[tuple[int, Prompt]]()
        for place, messages in enumerate(requests):
            try:
                prompt = render_prompt(
                    PromptRow(place, messages, {}), model.tokenizer, DataConfig(template=source.options)
                )
            except DataError as error:
                raise RewardError(f"reward source 'judge': model '{source.model}': {error}") from error
            needed = len(prompt.tokens) + source.max_tokens
            if model.context and needed > model.context:
                done(place, Reply("", f"request and max_tokens need {needed} tokens; the judge reads {model.context}"))
            else:
                fitting.append((place, prompt))
        for start in range(0, len(fitting), source.concurrency):
            some = fitting[start : start + source.concurrency]
            written = generate_responses(
                model.backbone,
                model.tokenizer,
                [prompt for _, prompt in some],
                sampling,
                key=mx.random.key(0),
                progress=lambda done, total: self._between(),
            )
            for (place, prompt), response in zip(some, written, strict=True):
                done(place, Reply.of(response.text, len(prompt.tokens), len(response.tokens)))
        clear_cache()  # training uses other shapes


def check_local_judge(source: JudgeSource) -> None:
    """Raise RewardError if the model cannot chat, ModelError if there is none; loads its tokenizer alone."""
    tokenizer = load_tokenizer(BackboneConfig(path=source.model)).tokenizer
    if not (getattr(tokenizer, "has_chat_template", False) or tokenizer.chat_template):
        raise RewardError(
            f"reward source 'judge': model '{source.model}' has no chat template: choose one that was trained to chat"
        )
