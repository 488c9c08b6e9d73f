"""Python code that a reward source would run, read without running it, and checks that a user trusts it."""

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
    """One Python file as it was read. Users trust exactly this content, and it is what runs: no file is read again."""

    name: str  # absolute path, links resolved; or 'package.module:function' for an import by name
    sha256: str  # of the file's bytes, in hexadecimal; empty if no file was found
    source: str  # decoded as Python does, so what is shown is what runs; empty if there is none


Trust = Callable[[Sequence[Code]], None]
"""Callback that raises UntrustedCodeError unless all of the code may run."""


def trust_all(codes: Sequence[Code]) -> None:
    """Allow everything: who passes a configuration to the library has chosen its code."""


def trust_none(codes: Sequence[Code]) -> None:
    """Allow nothing. Raises UntrustedCodeError if there is any code."""
    refuse(codes)


def refuse(codes: Sequence[Code]) -> None:
    """Raise UntrustedCodeError, naming `codes` and the way out. Does nothing if `codes` is empty."""
    if codes:
        named = ", ".join(f"'{code.name}' (SHA-256 {code.sha256[:12] or 'unknown'})" for code in codes)
        raise UntrustedCodeError(
            f"reward.sources runs Python code that you have not trusted as it is now: {named}; read it, then trust it "
            "with --trust-code, or in the workbench, which asks"
        )


def file_code(file: Path) -> list[Code]:
    """Return `file`, followed by the files of its folder that it imports, directly or through others.

    Modules of the standard library are never taken from that folder. Raises OSError, or SyntaxError or
    UnicodeDecodeError for a file that cannot be decoded.
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

    def __init__(self, root: Path, codes: Sequence[Code]) -> None:
        self._root = root
        self._codes = {Path(code.name): code for code in codes}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a module that is among the files, or None."""
        for file in _candidates(fullname, self._root):
            if code := self._codes.get(file):
                spec = importlib.util.spec_from_loader(fullname, CodeLoader(code))
                if spec is not None and spec.submodule_search_locations is not None:
                    spec.submodule_search_locations = []  # keeps other importers from adding files
                return spec
        folder = self._root.joinpath(*fullname.split("."))
        if any(folder in file.parents for file in self._codes):
            return ModuleSpec(fullname, None, is_package=True)  # a folder without __init__.py
        return None


class CodeLoader(importlib.abc.ExecutionLoader):
    """Loader that runs the source of a `Code` as the module at its path."""

    def __init__(self, code: Code) -> None:
        self._code = code

    def get_filename(self, fullname: str) -> str:
        """Return the path of the code."""
        return self._code.name

    def get_source(self, fullname: str) -> str:
        """Return the source, decoded."""
        return self._code.source

    def is_package(self, fullname: str) -> bool:
        """Return whether the file is the `__init__.py` of a package."""
        return Path(self._code.name).name == "__init__.py"


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


def _files_of(name: str, root: Path) -> list[Path]:
    """Return the files of `root` that an import of `name` runs: those of its packages and its own."""
    parts = name.split(".")
    if parts[0] in sys.stdlib_module_names or not all(part.isidentifier() for part in parts):
        return []
    whole = [".".join(parts[:end]) for end in range(1, len(parts) + 1)]
    found = [next(filter(Path.is_file, _candidates(one, root)), None) for one in whole]
    return [file for file in found if file is not None]


def _candidates(name: str, root: Path) -> tuple[Path, Path]:
    """Return the possible files of the module `name`, the package first, in Python's order."""
    place = root.joinpath(*name.split("."))
    return place / "__init__.py", place.with_name(f"{place.name}.py")
