"""Reward functions in plain Python, with the calling convention of TRL."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from trainer.errors import RewardError
from trainer.rewards.code import Trust, trust_all
from trainer.rewards.loading import describe_failure, is_file, load_function
from trainer.rewards.records import RewardInput, SourceScores, sequence_name

_WAY_OUT = "or None where there is nothing to say"


class PythonReward:
    """A user's function, called once per batch of B sequences with lists of length B as keywords.

    prompts: strings, or lists of chat messages.
    completions: strings, or `[{"role": "assistant", "content": ...}]` if the prompt is chat messages.
    completion_ids: lists of token ids.
    Every other column of the data is passed under its own name. The function gets only the keywords in its signature,
    or all of them if it takes `**kwargs`.

    It returns B numbers (or None where it does not apply), or B lists with a number for each token.
    The same functions work in TRL: https://huggingface.co/docs/trl/grpo_trainer#using-a-custom-reward-function
    """

    def __init__(self, path: str, modules: dict[str, ModuleType] | None = None, *, trust: Trust = trust_all) -> None:
        """Load the function. path: 'file.py:function' or 'package.module:function'; others as for `load_function`."""
        place, _, function = path.rpartition(":")
        self.name = f"{Path(place).name if is_file(place) else place}:{function}"
        self._path = path
        self._function = load_function(path, {} if modules is None else modules, trust)
        self._signature = self._readable_signature()
        self._file = _source_file(self._function)

    def __call__(self, batch: Sequence[RewardInput]) -> SourceScores:
        """Score `batch`. Raises RewardError if the function fails or returns anything but numbers."""
        values = self._called(batch)
        if any(_is_list(value) for value in values):
            return self._token_scores(values, batch)
        scores = [None if value is None else self._number(value, i, batch) for i, value in enumerate(values)]
        return SourceScores(scores)

    def _called(self, batch: Sequence[RewardInput]) -> list[Any]:
        count, keywords = len(batch), self._accepted(_keywords(batch))
        try:
            returned = self._returned(keywords)
        except (Exception, SystemExit) as error:
            where = self._culprit(batch)
            raise self._error(f"raised {describe_failure(error, self._file)}{where}") from error
        if inspect.iscoroutine(returned):
            returned.close()  # else Python warns that it was never awaited
            raise self._error("returned a coroutine: write a plain function, with asyncio.run in it")
        if not isinstance(returned, list):
            kind = "None" if returned is None else type(returned).__name__
            raise self._error(f"returned {kind}: must return a list of {count} scores, one a completion")
        if len(returned) != count:
            raise self._error(f"returned {len(returned)} scores for {count} completions: must return one each")
        return returned

    def _returned(self, keywords: dict[str, list[Any]]) -> Any:
        returned = self._function(**keywords)
        if isinstance(returned, Iterable) and not isinstance(returned, str | bytes | dict):
            return list(returned)  # here, because a generator fails only when it is read
        return returned

    def _culprit(self, batch: Sequence[RewardInput]) -> str:
        """Find the sample that the function fails on, one call each. The run ends anyway, so time does not matter."""
        for index, row in enumerate(batch):
            try:
                self._returned(self._accepted(_keywords([row])))
            except (Exception, SystemExit):  # noqa: BLE001  a user's function may raise anything
                return f" on {sequence_name(index, row.prompt)}"
        return " on the batch, but on none of its samples alone"

    def _token_scores(self, values: list[Any], batch: Sequence[RewardInput]) -> SourceScores:
        scores: list[float | None] = []
        token_rewards: list[list[float]] = []
        for index, (value, row) in enumerate(zip(values, batch, strict=True)):
            wanted = len(row.completion_ids)
            if value is None:
                scores.append(None)
                token_rewards.append([0.0] * wanted)
                continue
            sample = sequence_name(index, row.prompt)
            if not _is_list(value):
                raise self._error(f"{sample} has {_shown(value)} where others have lists: return only one kind")
            if len(value) != wanted:
                raise self._error(f"{sample} has {len(value)} token rewards for {wanted} tokens: return one each")
            rewards = [self._number(reward, index, batch) for reward in value]
            scores.append(sum(rewards))
            token_rewards.append(rewards)
        return SourceScores(scores, token_rewards)

    def _number(self, value: Any, index: int, batch: Sequence[RewardInput]) -> float:
        sample = sequence_name(index, batch[index].prompt)
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            raise self._error(f"{sample} has score {_shown(value)}: must be a number, {_WAY_OUT}") from None
        if not math.isfinite(number):
            raise self._error(f"{sample} has score {number}: must be finite, {_WAY_OUT}")
        return number

    def _accepted(self, keywords: dict[str, list[Any]]) -> dict[str, list[Any]]:
        parameters = self._signature.parameters.values()
        by_name = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        for parameter in by_name:
            if parameter.default is parameter.empty and parameter.name not in keywords:
                known = ", ".join(keywords)
                raise self._error(f"needs '{parameter.name}', which is no column of the data: there are {known}")
        if any(p.kind is p.VAR_KEYWORD for p in parameters):
            return keywords
        names = {parameter.name for parameter in by_name}
        return {name: values for name, values in keywords.items() if name in names}

    def _readable_signature(self) -> inspect.Signature:
        try:
            signature = inspect.signature(self._function)
        except (TypeError, ValueError):
            raise self._error("has no readable signature: wrap it in a function of your own") from None
        for parameter in signature.parameters.values():
            if parameter.kind is parameter.POSITIONAL_ONLY:
                raise self._error(f"takes '{parameter.name}' by position only: take the '/' out of its signature")
        return signature

    def _error(self, message: str) -> RewardError:
        return RewardError(f"reward source '{self._path}' {message}")


def _keywords(batch: Sequence[RewardInput]) -> dict[str, list[Any]]:
    # Prompts and ids are copied, so that a function cannot change the data or the rollout.
    names = dict.fromkeys(name for row in batch for name in row.columns)
    return {name: [row.columns.get(name) for row in batch] for name in names} | {
        "prompts": [_copied(row.prompt) for row in batch],
        "completions": [_completion(row) for row in batch],
        "completion_ids": [list(row.completion_ids) for row in batch],
    }


def _copied(prompt: str | list[dict[str, str]]) -> str | list[dict[str, str]]:
    return prompt if isinstance(prompt, str) else [dict(message) for message in prompt]


def _completion(row: RewardInput) -> str | list[dict[str, str]]:
    return row.completion if isinstance(row.prompt, str) else [{"role": "assistant", "content": row.completion}]


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple) or getattr(value, "ndim", 0) == 1


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:59] + "…"


def _source_file(function: Callable[..., Any]) -> str | None:
    """Return the file of the function's code, or of its class if it is an instance; None for built-in code."""
    for code in (inspect.unwrap(function), type(function)):
        try:
            return inspect.getsourcefile(code)
        except TypeError:  # not Python code
            continue
    return None
