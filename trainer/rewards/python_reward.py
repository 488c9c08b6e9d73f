"""Reward functions in plain Python: loaded from 'file.py:function' or 'package.module:function', called as TRL does."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import difflib
import importlib
import importlib.util
import inspect
import itertools
import math
import sys
import threading
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from statistics import fmean
from types import ModuleType
from typing import Any

from trainer.errors import RewardError, counted, shortened
from trainer.reward_types import RewardInput, SourceScores, TrainerState, sequence_name
from trainer.rewards.code import CodeLoader, Trust, TrustedFiles, code_of, describe_failure, is_file

_numbers = itertools.count()
_FAILURES = (Exception, SystemExit, asyncio.CancelledError)
"""Exceptions that a user's function may raise."""


class PythonReward:
    """A user's function, called once per batch of B sequences with lists of length B as keywords.

    prompts: strings, or lists of chat messages.
    completions: strings, or `[{"role": "assistant", "content": ...}]` if the prompt is chat messages.
    completion_ids: lists of token ids.
    Every other column of the data is passed under its own name. Three more keywords are no lists: `trainer_state`, a
    TrainerState; `log_metric(name, value)`; and `log_extra(column, values)`, with a value for each sequence. The
    function gets only the keywords in its signature, or all of them if it takes `**kwargs`.

    It returns B numbers (or None where it does not apply), or B lists with a number for each token. It may be async.
    The same functions work in TRL: https://huggingface.co/docs/trl/grpo_trainer#using-a-custom-reward-function
    """

    def __init__(
        self, path: str, modules: dict[str, ModuleType], trust: Trust, columns: Collection[str] | None = None
    ) -> None:
        """Load the function. path: 'file.py:function' or 'package.module:function'; others as for `load_function`.

        columns: those of the data; None if they are not known. Raises RewardError if the function needs another one.
        """
        place, _, function = path.rpartition(":")
        self.name = f"{Path(place).name if is_file(place) else place}:{function}"
        self.state = TrainerState()
        self._path = path
        self._function = load_function(path, modules, trust)
        try:
            self._parameters = list(inspect.signature(self._function).parameters.values())
        except (TypeError, ValueError):
            raise self._error("has no readable signature: wrap it in a function of your own") from None
        for parameter in self._parameters:
            if parameter.kind is parameter.POSITIONAL_ONLY:
                raise self._error(f"takes '{parameter.name}' by position only: remove the '/' from its signature")
        self.asks_for_state = any(parameter.name == "trainer_state" for parameter in self._parameters)
        self._file: str | None = None  # of its code, or of its class if it is an instance; None for built-in code
        for code in (type(self._function), inspect.unwrap(self._function)):
            with contextlib.suppress(TypeError):
                self._file = inspect.getsourcefile(code)
        self._columns = columns
        if columns is not None:
            self._keywords(_Call([]))

    def __call__(self, batch: Sequence[RewardInput]) -> SourceScores:
        """Score `batch`. Raises RewardError if the function fails or returns anything but numbers."""
        return scored_together([self], batch)[0]

    def begin(self, batch: Sequence[RewardInput]) -> _Call:
        """Call the function. What it raises or, if it is async, still has to do is in the result."""
        call = _Call(batch)
        keywords = self._keywords(call)
        try:
            call.returned = _listed(self._function(**keywords), len(batch))
        except _FAILURES as error:
            call.returned = error
        return call

    def scores(self, call: _Call) -> SourceScores:
        """Return the scores of a call that is done. Raises RewardError."""
        batch, values, count = call.batch, call.returned, len(call.batch)
        if isinstance(values, BaseException):
            raise self._error(f"raised {describe_failure(values, self._file)}{self._culprit(batch)}") from values
        if not isinstance(values, list):
            kind = "None" if values is None else type(values).__name__
            if shape := _shape(values):
                kind += f" of shape {shape}"
            raise self._error(f"returned {kind}: must return a list of {count} scores, one per completion")
        if len(values) != count:
            given, completions = counted(len(values), "score"), counted(count, "completion")
            raise self._error(f"returned {given} for {completions}: must return one each")
        for column, found in call.extra.items():
            if len(found) != count:
                logged, completions = counted(len(found), "value"), counted(count, "completion")
                raise self._error(f"logged {logged} of '{column}' for {completions}: log one each")
        lists = [isinstance(value, list | tuple) or len(_shape(value) or ()) == 1 for value in values]
        by_token = any(lists)
        scores: list[float | None] = []
        tokens: list[list[float]] = []
        for index, (value, row) in enumerate(zip(values, batch, strict=True)):
            sample, wanted = partial(sequence_name, index, row.prompt), len(row.completion_ids)
            if value is None or not by_token:
                scores.append(None if value is None else self._number(value, sample))
                tokens.append([0.0] * wanted)
                continue
            if not lists[index]:
                given = shortened(repr(value))
                raise self._error(f"{sample()} has {given} where others have lists: return only one kind")
            if len(value) != wanted:
                rewards = counted(len(value), "token reward")
                raise self._error(f"{sample()} has {rewards} for {counted(wanted, 'token')}: return one each")
            tokens.append([self._number(reward, sample) for reward in value])
            scores.append(sum(tokens[-1]))
        details = {name: [fmean(numbers)] * count for name, numbers in call.metrics.items()}
        return SourceScores(scores, tokens if by_token else None, details, call.extra)

    def _culprit(self, batch: Sequence[RewardInput]) -> str:
        """Find the sample that the function fails on, one call each. The run ends anyway, so time does not matter."""
        for index, row in enumerate(batch):
            call = self.begin([row])
            _wait([call])
            if isinstance(call.returned, BaseException):
                return f" on {sequence_name(index, row.prompt)}"
        return " on the batch, but on none of its samples alone"

    def _number(self, value: Any, sample: Callable[[], str]) -> float:
        try:
            if isinstance(value, str | bytes) or _shape(value):
                raise TypeError
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            number, problem = math.nan, f"{shortened(repr(value))}: must be a number"
        else:
            problem = "" if math.isfinite(number) else f"{number}: must be finite"
        if problem:
            raise self._error(f"{sample()} has score {problem}, or None if the reward does not apply")
        return number

    def _keywords(self, call: _Call) -> dict[str, Any]:
        """Return the keywords of `call` that the function takes. Raises RewardError if it needs another one."""
        # Prompts and ids are copied, so that a function cannot change the data or the rollout.
        batch = call.batch
        names = dict.fromkeys([*(name for row in batch for name in row.columns), *(self._columns or ())])
        found = {name: [row.columns.get(name) for row in batch] for name in names} | {
            "prompts": [copy.deepcopy(row.prompt) for row in batch],
            "completions": [
                row.completion if isinstance(row.prompt, str) else [{"role": "assistant", "content": row.completion}]
                for row in batch
            ],
            "completion_ids": [list(row.completion_ids) for row in batch],
            "trainer_state": self.state,
            "log_metric": call.log_metric,
            "log_extra": call.log_extra,
        }
        by_name = {p.name: p for p in self._parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        for name, parameter in by_name.items():
            if parameter.default is parameter.empty and name not in found:
                raise self._error(f"needs '{name}', which is not a column of the data; columns: {', '.join(found)}")
        takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in self._parameters)
        return {name: values for name, values in found.items() if takes_all or name in by_name}

    def _error(self, message: str) -> RewardError:
        return RewardError(f"reward source '{self._path}' {message}")


def scored_together(rewards: Sequence[PythonReward], batch: Sequence[RewardInput]) -> list[SourceScores]:
    """Score `batch` by several functions, one after the other, those that are async together. Raises RewardError."""
    calls = [reward.begin(batch) for reward in rewards]
    _wait(calls)
    return [reward.scores(call) for reward, call in zip(rewards, calls, strict=True)]


@dataclass(slots=True)
class _Call:
    """A call of a function: what it was for, what it has logged, and what it returned, raised or is to await."""

    batch: Sequence[RewardInput]
    returned: Any = None
    metrics: dict[str, list[float]] = field(default_factory=dict)
    extra: dict[str, list[Any]] = field(default_factory=dict)

    def log_metric(self, name: str, value: float) -> None:
        self.metrics.setdefault(str(name), []).append(float(value))

    def log_extra(self, column: str, values: Iterable[Any]) -> None:
        self.extra.setdefault(str(column), []).extend(values)


def _wait(calls: Sequence[_Call]) -> None:
    """Await what async functions still have to do, all together."""
    waiting = [call for call in calls if inspect.isawaitable(call.returned)]
    if not waiting:
        return

    async def result(call: _Call) -> Any:
        try:
            return _listed(await call.returned, len(call.batch))
        except _FAILURES as error:
            return error

    async def results() -> list[Any]:
        return await asyncio.gather(*map(result, waiting))

    for call, found in zip(waiting, asyncio.run_coroutine_threadsafe(results(), _loop()).result(), strict=True):
        call.returned = found


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of all async functions, which may keep clients that belong to it, on its own thread."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="async rewards", daemon=True).start()
    return loop


def _listed(returned: Any, count: int) -> Any:
    """Return as a list what a function returned for `count` sequences, if it can be one."""
    match _shape(returned):
        case None if isinstance(returned, Iterable) and not isinstance(returned, str | bytes | dict | set | Awaitable):
            return list(returned)  # here, because a generator fails only when it is read
        case (rows, 1) if rows == count:
            return [row[0] for row in returned]  # a column, as a head with one output gives it
        case (rows,) | (rows, _) if rows == count:
            return list(returned)
    return returned


def _shape(value: Any) -> tuple[int, ...] | None:
    """Return the shape of an array of any library; None for anything else."""
    shape = getattr(value, "shape", None)
    return tuple(shape) if isinstance(shape, tuple) else None


def load_function(path: str, modules: dict[str, ModuleType], trust: Trust) -> Callable[..., Any]:
    """Load the function that `path` names; a file is relative to the working directory.

    modules: files that have already run, by absolute path; this file is added. Two functions of one file thus share its
    globals, while a new dict runs the file again, as it is then.
    trust: called before any of the code runs.
    Raises RewardError if a file, module or function is missing, fails on import, or is an async generator.
    """
    place, _, name = path.rpartition(":")
    if is_file(place):
        module = _from_file(path, place, modules, trust)
    else:
        trust(code_of(path))
        try:
            module = importlib.import_module(place)
        except (Exception, SystemExit) as error:
            if isinstance(error, ModuleNotFoundError) and f"{place}.".startswith(f"{error.name}."):
                raise RewardError(
                    f"reward source '{path}': no module '{error.name}': install it, or name a file, "
                    f"'{place.replace('.', '/')}.py:{name}'"
                ) from None
            raise RewardError(f"reward source '{path}' fails to load: {describe_failure(error, None)}") from error
    if not hasattr(module, name):
        functions = [key for key, value in vars(module).items() if inspect.isfunction(value) and key[0] != "_"]
        close = difflib.get_close_matches(name, functions, n=1)
        offer = f"did you mean '{close[0]}'?" if close else f"it has {', '.join(functions) or 'no functions'}"
        raise RewardError(f"reward source '{path}': {place} has no function '{name}': {offer}")
    function = getattr(module, name)
    if not callable(function):
        raise RewardError(f"reward source '{path}': {name} is {type(function).__name__}, must be a function")
    if inspect.isasyncgenfunction(function) or inspect.isasyncgenfunction(type(function).__call__):
        raise RewardError(f"reward source '{path}' is an async generator: return a list of scores instead of yielding")
    return function  # type: ignore[no-any-return]


def _from_file(path: str, place: str, modules: dict[str, ModuleType], trust: Trust) -> ModuleType:
    file = Path(place).resolve()
    if str(file) in modules:
        return modules[str(file)]
    codes = code_of(path)
    trust(codes)
    # A unique name: a user's random.py must not replace another module.
    name = f"_reward_file_{next(_numbers)}_{file.stem}"
    loader = CodeLoader(codes[0])
    module = importlib.util.module_from_spec(loader.spec(name))
    sys.modules[name] = module  # dataclasses and pickle look up their module there
    beside = TrustedFiles(file.parent, codes[1:])
    beside.forget_others()
    sys.meta_path.insert(0, beside)
    try:
        loader.exec_module(module)
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
