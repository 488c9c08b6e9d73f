"""Reward functions in plain Python: loaded from 'file.py:function' or 'package.module:function', called as TRL does."""

from __future__ import annotations

import contextlib
import copy
import difflib
import importlib
import importlib.util
import inspect
import itertools
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from trainer.errors import RewardError, shortened
from trainer.rewards.code import (
    CodeLoader,
    Trust,
    TrustedFiles,
    code_of,
    describe_failure,
    is_file,
    module_code,
)
from trainer.rewards.protocol import RewardInput, SourceScores, sequence_name

_numbers = itertools.count()
_WAY_OUT = "or None if the reward does not apply"


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

    def __init__(self, path: str, modules: dict[str, ModuleType], trust: Trust) -> None:
        """Load the function. path: 'file.py:function' or 'package.module:function'; others as for `load_function`."""
        place, _, function = path.rpartition(":")
        self.name = f"{Path(place).name if is_file(place) else place}:{function}"
        self._path = path
        self._function = load_function(path, modules, trust)
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
            returned = self._returned(keywords, count)
        except (Exception, SystemExit) as error:
            where = self._culprit(batch)
            raise self._error(f"raised {describe_failure(error, self._file)}{where}") from error
        if inspect.iscoroutine(returned):
            returned.close()  # else Python warns that it was never awaited
            raise self._error("returned a coroutine: write a plain function that calls asyncio.run")
        if not isinstance(returned, list):
            kind = "None" if returned is None else type(returned).__name__
            if shape := _shape(returned):
                kind += f" of shape {shape}"
            raise self._error(f"returned {kind}: must return a list of {count} scores, one per completion")
        if len(returned) != count:
            raise self._error(f"returned {len(returned)} scores for {count} completions: must return one each")
        return returned

    def _returned(self, keywords: dict[str, list[Any]], count: int) -> Any:
        returned = self._function(**keywords)
        match _shape(returned):
            case None if isinstance(returned, Iterable) and not isinstance(returned, str | bytes | dict):
                return list(returned)  # here, because a generator fails only when it is read
            case (rows, 1) if rows == count:
                return [row[0] for row in returned]  # a column, as a head with one output gives it
            case (rows,) | (rows, _) if rows == count:
                return list(returned)
        return returned

    def _culprit(self, batch: Sequence[RewardInput]) -> str:
        """Find the sample that the function fails on, one call each. The run ends anyway, so time does not matter."""
        for index, row in enumerate(batch):
            try:
                self._returned(self._accepted(_keywords([row])), 1)
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
                raise self._error(
                    f"{sample} has {shortened(repr(value))} where others have lists: return only one kind"
                )
            if len(value) != wanted:
                raise self._error(f"{sample} has {len(value)} token rewards for {wanted} tokens: return one each")
            rewards = [self._number(reward, index, batch) for reward in value]
            scores.append(sum(rewards))
            token_rewards.append(rewards)
        return SourceScores(scores, token_rewards)

    def _number(self, value: Any, index: int, batch: Sequence[RewardInput]) -> float:
        sample = sequence_name(index, batch[index].prompt)
        try:
            if isinstance(value, str | bytes) or _shape(value):
                raise TypeError
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            raise self._error(f"{sample} has score {shortened(repr(value))}: must be a number, {_WAY_OUT}") from None
        if not math.isfinite(number):
            raise self._error(f"{sample} has score {number}: must be finite, {_WAY_OUT}")
        return number

    def _accepted(self, keywords: dict[str, list[Any]]) -> dict[str, list[Any]]:
        parameters = self._signature.parameters.values()
        by_name = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        for parameter in by_name:
            if parameter.default is parameter.empty and parameter.name not in keywords:
                known = ", ".join(keywords)
                raise self._error(f"needs '{parameter.name}', which is not a column of the data; columns: {known}")
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
                raise self._error(f"takes '{parameter.name}' by position only: remove the '/' from its signature")
        return signature

    def _error(self, message: str) -> RewardError:
        return RewardError(f"reward source '{self._path}' {message}")


def _keywords(batch: Sequence[RewardInput]) -> dict[str, list[Any]]:
    # Prompts and ids are copied, so that a function cannot change the data or the rollout.
    names = dict.fromkeys(name for row in batch for name in row.columns)
    return {name: [row.columns.get(name) for row in batch] for name in names} | {
        "prompts": [copy.deepcopy(row.prompt) for row in batch],
        "completions": [
            row.completion if isinstance(row.prompt, str) else [{"role": "assistant", "content": row.completion}]
            for row in batch
        ],
        "completion_ids": [list(row.completion_ids) for row in batch],
    }


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple) or len(_shape(value) or ()) == 1


def _shape(value: Any) -> tuple[int, ...] | None:
    """Return the shape of an array of any library; None for anything else."""
    shape = getattr(value, "shape", None)
    return tuple(shape) if isinstance(shape, tuple) else None


def _source_file(function: Callable[..., Any]) -> str | None:
    """Return the file of the function's code, or of its class if it is an instance; None for built-in code."""
    for code in (inspect.unwrap(function), type(function)):
        try:
            return inspect.getsourcefile(code)
        except TypeError:  # not Python code
            continue
    return None


def load_function(path: str, modules: dict[str, ModuleType], trust: Trust) -> Callable[..., Any]:
    """Load the function that `path` names; a file is relative to the working directory.

    modules: files that have already run, by absolute path; this file is added. Two functions of one file thus share its
    globals, while a new dict runs the file again, as it is then.
    trust: called before any of the code runs.
    Raises RewardError if a file, module or function is missing, fails on import, or is async.
    """
    place, _, name = path.rpartition(":")
    module = _from_file(path, place, modules, trust) if is_file(place) else _from_import(path, place, trust)
    if not hasattr(module, name):
        raise RewardError(f"reward source '{path}': {place} has no function '{name}'{_offer(module, name)}")
    function = getattr(module, name)
    if not callable(function):
        raise RewardError(f"reward source '{path}': {name} is {type(function).__name__}, must be a function")
    if _is_async(function) or _is_async(type(function).__call__):
        raise RewardError(f"reward source '{path}' is async: write a plain function that calls asyncio.run")
    return function  # type: ignore[no-any-return]


def _from_file(path: str, place: str, modules: dict[str, ModuleType], trust: Trust) -> ModuleType:
    file = Path(place).resolve()
    if str(file) in modules:
        return modules[str(file)]
    codes = code_of(path)
    trust(codes)
    # A unique name: a user's random.py must not replace another module.
    name = f"_reward_file_{next(_numbers)}_{file.stem}"
    spec = importlib.util.spec_from_loader(name, CodeLoader(codes[0]), is_package=False)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look up their module there
    beside = TrustedFiles(file.parent, codes[1:])
    beside.forget_others()
    sys.meta_path.insert(0, beside)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise RewardError(f"reward source '{path}' fails to load: {describe_failure(error, str(file))}") from error
    finally:
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(beside)
        if len(codes) > 1:
            # For imports inside functions: after other importers, so that no other module is replaced, and before those
            # of reward files that were loaded earlier.
            earlier = (place for place, one in enumerate(sys.meta_path) if isinstance(one, TrustedFiles))
            sys.meta_path.insert(next(earlier, len(sys.meta_path)), beside)
    modules[str(file)] = module
    return module


def _from_import(path: str, place: str, trust: Trust) -> ModuleType:
    trust(module_code(path))
    try:
        return importlib.import_module(place)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and f"{place}.".startswith(f"{error.name}."):
            file = f"{place.replace('.', '/')}.py:{path.rpartition(':')[2]}"
            raise RewardError(
                f"reward source '{path}': no module '{error.name}': install it, or name a file, '{file}'"
            ) from None
        raise RewardError(f"reward source '{path}' fails to load: {describe_failure(error, None)}") from error


def _offer(module: ModuleType, name: str) -> str:
    functions = [key for key, value in vars(module).items() if inspect.isfunction(value) and key[0] != "_"]
    if close := difflib.get_close_matches(name, functions, n=1):
        return f": did you mean '{close[0]}'?"
    return f": it has {', '.join(functions)}" if functions else ": it has no functions"


def _is_async(function: Any) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
