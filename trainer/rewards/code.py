"""Python code that a reward source would run: read without running it, and run only if the user trusts it."""

from __future__ import annotations

import ast
import hashlib
import importlib.abc
import importlib.util
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import ClassVar, NamedTuple

from trainer.config.reward_sources import JudgeSource
from trainer.errors import RewardError, StorageError, UntrustedCodeError, shortened, storage_error
from trainer.files import PRIVATE, open_file

_MAX_BYTES = 16 * 1024 * 1024  # of the file of trusted code


class Code(NamedTuple):
    """One Python file as it was read. Users trust exactly this content, and it is what runs: no file is read again."""

    name: str  # absolute path, links resolved; or 'package.module:function' for an import by name
    sha256: str  # of the file's bytes, in hexadecimal; empty if no file was found
    source: str  # decoded as Python does, so what is shown is what runs; empty if there is none


Trust = Callable[[Sequence[Code]], None]
"""Callback that raises UntrustedCodeError unless all of the code may run."""


def trust_all(codes: Sequence[Code]) -> None:
    """Allow everything: who passes a configuration to the library has chosen its code."""


def trust_none(codes: Sequence[Code]) -> None:
    """Allow nothing. Raises UntrustedCodeError, naming `codes` and the way out, unless it is empty."""
    if codes:
        named = ", ".join(f"'{code.name}' (SHA-256 {code.sha256[:12] or 'unknown'})" for code in codes)
        raise UntrustedCodeError(
            f"you have not trusted this version of what reward.sources uses: {named}; read it, then trust it "
            "with --trust-code or in the workbench"
        )


class TrustedCode:
    """Trusted code: what `file` lists, one JSON object per line, and what was trusted in this process.

    Deleting a line revokes trust. The file is read each time, because another process may have added to it.
    passed_on: `passed_on` of the process that started this one, which may have failed to write the file.
    """

    def __init__(self, file: Path, passed_on: str = "") -> None:
        self.file = file
        self._here = _pairs(passed_on.encode())

    def untrusted(self, codes: Sequence[Code]) -> list[Code]:
        """Return those of `codes` that may not run, each once. Raises StorageError."""
        unknown = {code.name: code for code in codes if (code.name, code.sha256) not in self._here}
        trusted = self._read() if unknown else set()
        return [code for code in unknown.values() if (code.name, code.sha256) not in trusted]

    def check(self, codes: Sequence[Code]) -> None:
        """Raise UntrustedCodeError unless all of `codes` may run."""
        trust_none(self.untrusted(codes))

    def remember(self, codes: Sequence[Code]) -> None:
        """Trust `codes` from now on; code without a hash is trusted in this process only.

        Raises StorageError if the file cannot be read or written; the code is then trusted in this process only.
        """
        self._here |= {(code.name, code.sha256) for code in codes}
        known = self._read()
        new = {code.name: code.sha256 for code in codes if code.sha256 and (code.name, code.sha256) not in known}
        if not new:
            return
        lines = [json.dumps({"code": name, "sha256": sha256}) for name, sha256 in new.items()]
        with storage_error(f"cannot write '{self.file}'", "the code is trusted in this process only"):
            self.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = open_file(self.file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, PRIVATE)
            try:
                # A single write, so that lines of two processes never mix. It begins with a newline, because the last
                # line may have been left half-written.
                os.write(descriptor, "".join(f"\n{line}" for line in lines).encode() + b"\n")
            finally:
                os.close(descriptor)

    def passed_on(self) -> str:
        """Return what was trusted in this process, path and hash, as lines for processes that it starts."""
        return "\n".join(json.dumps({"code": name, "sha256": sha256}) for name, sha256 in sorted(self._here))

    def _read(self) -> set[tuple[str, str]]:
        with storage_error(f"cannot read '{self.file}'", "fix or remove it"):
            try:
                descriptor = open_file(self.file)
            except (FileNotFoundError, NotADirectoryError):
                return set()
        with open(descriptor, "rb") as file:  # noqa: PTH123  a descriptor, so that no link can be followed
            found = os.fstat(descriptor)
            if found.st_uid != os.geteuid() or found.st_mode & 0o022:
                raise StorageError(f"'{self.file}' must be a file that only you can write: chmod 600, or remove it")
            return {pair for pair in _pairs(file.read(_MAX_BYTES)) if pair[1]}


def endpoint_code(source: JudgeSource) -> list[Code]:
    """Return what to trust before a judge elsewhere gets prompts, responses and a key; nothing if it is here."""
    if source.is_here:
        return []
    key = f"with the key in the environment variable {source.key_env}" if source.key_env else "without a key"
    text = f"All prompts and responses are sent to {source.url}, {key}."
    return [Code(f"judge at {source.url}, {key}", hashlib.sha256(text.encode()).hexdigest(), text)]


def is_file(place: str) -> bool:
    """Return whether the part of a path before the colon is a file rather than a module."""
    return place.endswith(".py") or "/" in place


def code_of(path: str) -> list[Code]:
    """Read the code that a reward source would run, without running it. Raises RewardError if a file cannot be read.

    That is the file, followed by the files of its folder that it imports, directly or through others. Modules of the
    standard library are never taken from that folder.
    """
    place, _, _ = path.rpartition(":")
    if not is_file(place):
        return _module_code(path)
    file = Path(place).resolve()
    if not file.is_file():
        raise RewardError(f"reward source '{path}': no file '{place}': paths are relative to {Path.cwd()}")
    root, found, waiting = file.parent, dict[Path, Code](), [file]
    try:
        while waiting:
            read = waiting.pop(0)
            if read in found:
                continue
            content = read.read_bytes()
            found[read] = Code(str(read), hashlib.sha256(content).hexdigest(), importlib.util.decode_source(content))
            for name in _imports(found[read].source, read, root):
                parts = name.split(".")
                if parts[0] in sys.stdlib_module_names or not all(part.isidentifier() for part in parts):
                    continue
                # What an import of the name runs: the files of its packages and its own.
                whole = [".".join(parts[:end]) for end in range(1, len(parts) + 1)]
                waiting += filter(None, (next(filter(Path.is_file, _candidates(one, root)), None) for one in whole))
    except (OSError, SyntaxError, ValueError) as error:
        raise RewardError(f"reward source '{path}' cannot be read: {describe_failure(error, str(file))}") from error
    return list(found.values())


def _module_code(path: str) -> list[Code]:
    """Return the module of 'package.module:function', found without importing it; an empty list if there is none.

    The name of the function is part of what is trusted, because modules that exist on every machine, such as those of
    the standard library, were not written to score.
    """
    name, *rest = path.rpartition(":")[0].split(".")
    try:
        spec = importlib.util.find_spec(name)
        if spec is None:
            return []
        for part in rest:
            name = f"{name}.{part}"
            spec = PathFinder.find_spec(name, spec.submodule_search_locations if spec is not None else [])
        file = Path(spec.origin) if spec is not None and spec.origin else Path()
        content = file.read_bytes()
        source = importlib.util.decode_source(content) if file.suffix == ".py" else ""
    except (ImportError, ValueError, AttributeError, OSError, SyntaxError):
        return [Code(path, "", "")]  # built into Python, or found by an importer of its own
    return [Code(path, hashlib.sha256(content).hexdigest(), source)]


class TrustedFiles(importlib.abc.MetaPathFinder):
    """Importer of modules of `root` from `codes`, which were read from there.

    What runs is what was trusted, even if the files have changed since. Bytecode beside them is not used.
    """

    _found: ClassVar[set[str]] = set()  # names of modules found for any reward file

    def __init__(self, root: Path, codes: Sequence[Code]) -> None:
        self._root = root
        self._codes = {Path(code.name): code for code in codes}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a module that is among the files, or None."""
        for file in _candidates(fullname, self._root):
            if code := self._codes.get(file):
                self._found.add(fullname)
                return CodeLoader(code).spec(fullname, is_package=file.name == "__init__.py")
        folder = self._root.joinpath(*fullname.split("."))
        if any(folder in file.parents for file in self._codes):
            self._found.add(fullname)
            return ModuleSpec(fullname, None, is_package=True)  # a folder without __init__.py
        return None

    def forget_others(self) -> None:
        """Forget imported modules named like these, if one ran from other code: of an edited or another file."""
        names = [name for name in self._found & sys.modules.keys() if self.find_spec(name, None)]
        loaders = [getattr(sys.modules[name].__spec__, "loader", None) for name in names]
        mine = list(self._codes.values())
        if any(isinstance(loader, CodeLoader) and loader.code not in mine for loader in loaders):
            for name in names:
                del sys.modules[name]


class CodeLoader(importlib.abc.Loader):
    """Loader that runs the source of a `Code` as the module at its path."""

    def __init__(self, code: Code) -> None:
        self.code = code

    def spec(self, name: str, *, is_package: bool = False) -> ModuleSpec:
        """Return the spec of the module `name`, which is loaded so."""
        spec = ModuleSpec(name, self, origin=self.code.name, is_package=is_package)
        spec.has_location = True  # modules may ask for their `__file__`
        return spec

    def exec_module(self, module: ModuleType) -> None:
        """Run the code in `module`."""
        exec(compile(self.code.source, self.code.name, "exec", dont_inherit=True), module.__dict__)  # noqa: S102


def describe_failure(error: BaseException, file: str | None) -> str:
    """Describe `error` in one line: `ValueError: message (file.py:3)`.

    The line number is that of the innermost line in `file`, or in any file if None.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return f"{type(error).__name__}: {error.msg} ({Path(error.filename).name}:{error.lineno})"
    message = " ".join(str(error).split())
    text = f"{type(error).__name__}: {message}" if message else type(error).__name__
    text = shortened(text, 200)
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if (frame.filename == file if file else not frame.filename.startswith("<frozen"))
    ]
    return f"{text} ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else text


def _imports(source: str, path: Path, root: Path) -> Iterator[str]:
    """Yield the dotted names that `source` may import; none if it is not valid Python."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return
    package = path.relative_to(root).parent.parts
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*above, *filter(None, [node.module])])
            yield base
            yield from (f"{base}.{alias.name}".lstrip(".") for alias in node.names)


def _candidates(name: str, root: Path) -> tuple[Path, Path]:
    """Return the possible files of the module `name`, the package first, in Python's order."""
    place = root.joinpath(*name.split("."))
    return place / "__init__.py", place.with_name(f"{place.name}.py")


def _pairs(lines: bytes) -> set[tuple[str, str]]:
    """Return path and hash in each line that has them."""
    found = set()
    for line in lines.splitlines():
        try:
            values = json.loads(line)
            name, sha256 = values["code"], values["sha256"]
        except (ValueError, TypeError, KeyError, RecursionError):
            continue
        if isinstance(name, str) and isinstance(sha256, str):
            found.add((name, sha256))
    return found
