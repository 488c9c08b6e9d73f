"""Loading of a user's function from 'file.py:function' or 'package.module:function'."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import importlib.util
import inspect
import itertools
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from trainer.errors import RewardError
from trainer.rewards.code import Code, CodeLoader, Trust, TrustedFiles, file_code, module_code, trust_all

_numbers = itertools.count()


def load_function(path: str, modules: dict[str, ModuleType], trust: Trust = trust_all) -> Callable[..., Any]:
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
        raise RewardError(f"reward source '{path}' is async: write a plain function, with asyncio.run in it")
    return function  # type: ignore[no-any-return]


def is_file(place: str) -> bool:
    """Return whether the part of a path before the colon is a file rather than a module."""
    return place.endswith(".py") or "/" in place


def describe_failure(error: BaseException, file: str | None) -> str:
    """Describe `error` in one line: `ValueError: message (file.py:3)`.

    The line number is that of the innermost line in `file`, or in any file if None.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return f"{type(error).__name__}: {error.msg} ({Path(error.filename).name}:{error.lineno})"
    message = " ".join(str(error).split())
    text = f"{type(error).__name__}: {message}" if message else type(error).__name__
    text = text if len(text) <= 200 else text[:199] + "…"
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if (frame.filename == file if file else not frame.filename.startswith("<frozen"))
    ]
    return f"{text} ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else text


def code_of(path: str) -> list[Code]:
    """Read the code that a reward source would run, without running it. Raises RewardError if a file cannot be read."""
    place, _, _ = path.rpartition(":")
    if not is_file(place):
        return module_code(path)
    file = Path(place).resolve()
    if not file.is_file():
        raise RewardError(f"reward source '{path}': no file '{place}': paths are relative to {Path.cwd()}")
    try:
        return file_code(file)
    except (OSError, SyntaxError, ValueError) as error:
        raise RewardError(f"reward source '{path}' cannot be read: {describe_failure(error, str(file))}") from error


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
    sys.meta_path.insert(0, beside := TrustedFiles(file.parent, codes[1:]))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise RewardError(f"reward source '{path}' fails to load: {describe_failure(error, str(file))}") from error
    finally:
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(beside)
        if len(codes) > 1:
            sys.meta_path.append(beside)  # for imports inside functions; last, so that no other module is replaced
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
