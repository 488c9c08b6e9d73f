"""The Python that a reward source would run, read without running any of it, and whether a user has trusted it."""

from __future__ import annotations

import ast
import hashlib
import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from trainer.errors import UntrustedCodeError


class Code(NamedTuple):
    """One file of Python as it was read. What is trusted is its content: nothing is read again to be run."""

    name: str  # absolute path, links resolved; 'package.module:function' of a module that is imported by its name
    sha256: str  # of the bytes of the file, in hexadecimal; empty where no file can be found
    source: str  # decoded as Python decodes it, so what is shown is what runs; empty where there is none


Trust = Callable[[Sequence[Code]], None]
"""Raises UntrustedCodeError unless all of this code may run."""


def trust_all(codes: Sequence[Code]) -> None:
    """Let everything run: who hands a configuration to the library has chosen its code."""


def trust_none(codes: Sequence[Code]) -> None:
    """Let nothing run. Raises UntrustedCodeError."""
    refuse(codes)


def refuse(codes: Sequence[Code]) -> None:
    """Raise UntrustedCodeError, which names `codes` and the way out; nothing where there are none."""
    if codes:
        named = ", ".join(f"'{code.name}' (SHA-256 {code.sha256[:12] or 'unknown'})" for code in codes)
        raise UntrustedCodeError(
            f"reward.sources runs Python code that you have not trusted as it is now: {named}; read it, then trust it "
            "with --trust-code, or in the workbench, which asks"
        )


def file_code(file: Path) -> list[Code]:
    """Return `file`, and after it the files of its folder that it imports, and that those import.

    A module of the standard library is never taken from that folder. Raises OSError, and what cannot be decoded
    raises SyntaxError or UnicodeDecodeError.
    """
    root, found, waiting = file.parent, dict[Path, Code](), [file]
    while waiting:
        path = waiting.pop(0)
        if path not in found:
            content = path.read_bytes()
            code = Code(str(path), hashlib.sha256(content).hexdigest(), importlib.util.decode_source(content))
            found[path] = code
            waiting += [beside for name in _imports(code.source, path, root) for beside in _files_of(name, root)]
    return list(found.values())


def module_code(path: str) -> list[Code]:
    """Return the module of 'package.module:function', found without importing it; nothing where there is none.

    Trusted with the function: a module of the standard library is on every machine, and not made to score.
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
        return [Code(path, "", "")]  # built into Python, or found in some way of its own
    return [Code(path, hashlib.sha256(content).hexdigest(), source)]


class TrustedFiles(importlib.abc.MetaPathFinder):
    """Imports modules of `root` from `codes`, which were read from there, and from nowhere else.

    So what runs is what was trusted, whatever happened to the files since; bytecode that lies beside them is not used.
    """

    def __init__(self, root: Path, codes: Sequence[Code]) -> None:
        self._root = root
        self._codes = {Path(code.name): code for code in codes}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return how to import a module that is among the files, or None."""
        for file in _candidates(fullname, self._root):
            if code := self._codes.get(file):
                spec = importlib.util.spec_from_loader(fullname, CodeLoader(code))
                if spec is not None and spec.submodule_search_locations is not None:
                    spec.submodule_search_locations = []  # else others would find what is not among the files
                return spec
        folder = self._root.joinpath(*fullname.split("."))
        if any(folder in file.parents for file in self._codes):
            return ModuleSpec(fullname, None, is_package=True)  # a folder without __init__.py
        return None


class CodeLoader(importlib.abc.ExecutionLoader):
    """Runs the source of a `Code` as the module that lies at its path."""

    def __init__(self, code: Code) -> None:
        self._code = code

    def get_filename(self, fullname: str) -> str:
        """Return the path."""
        return self._code.name

    def get_source(self, fullname: str) -> str:
        """Return the source, decoded."""
        return self._code.source

    def is_package(self, fullname: str) -> bool:
        """Return whether the file is a package's."""
        return Path(self._code.name).name == "__init__.py"


def _imports(source: str, path: Path, root: Path) -> Iterator[str]:
    """Dotted names of all that `source` may import; what is no Python imports nothing."""
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


def _files_of(name: str, root: Path) -> list[Path]:
    """Files of `root` that an import of `name` runs: its packages' and its own."""
    parts = name.split(".")
    if parts[0] in sys.stdlib_module_names or not all(part.isidentifier() for part in parts):
        return []
    whole = [".".join(parts[:end]) for end in range(1, len(parts) + 1)]
    found = [next(filter(Path.is_file, _candidates(one, root)), None) for one in whole]
    return [file for file in found if file is not None]


def _candidates(name: str, root: Path) -> tuple[Path, Path]:
    """Where a module of this dotted name may lie, a package first, as Python looks."""
    place = root.joinpath(*name.split("."))
    return place / "__init__.py", place.with_name(f"{place.name}.py")
