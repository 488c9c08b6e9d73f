"""How a checkpoint gets to disk, whatever is in it: whole or not at all, its arrays in an order of their own."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import mlx.core as mx
from pydantic import ValidationError

from trainer import runs
from trainer.errors import StorageError
from trainer.files import remove
from trainer.models.adapters import Parameters
from trainer.runs import RunFolder

STATE = "state.json"

Loaded = TypeVar("Loaded")


class DamagedCheckpointError(StorageError):
    """A checkpoint with content that is not what was written. `damage` says which."""

    def __init__(self, folder: Path, damage: str) -> None:
        self.damage = damage
        super().__init__(f"checkpoint '{folder}' is damaged ({damage}): use an older one, or a copy of this one")


def write_folder(folder: Path, fill: Callable[[Path], None], state: dict[str, Any]) -> None:
    """Write `folder` by renaming a finished copy, which `fill` is given, into place; one that is there is replaced.

    state.json has `state` and every file with its size, and comes last. Raises StorageError.
    """
    temporary = folder.with_name(f".{folder.name}.tmp")
    try:
        for left in folder.parent.glob(".*.tmp"):  # by a process that was killed here
            shutil.rmtree(left)
        temporary.mkdir(parents=True)
        fill(temporary)
        files = sorted(path for path in temporary.rglob("*") if path.is_file())
        sizes = {str(path.relative_to(temporary)): path.stat().st_size for path in files}
        write_json(temporary / "state.json", state | {"files": sizes})
        for path in (*files, temporary / "state.json"):
            _sync(path)  # a rename must not become durable before what it names
        shutil.rmtree(folder, ignore_errors=True)
        temporary.rename(folder)
        with contextlib.suppress(OSError):  # some file systems refuse to sync a folder
            _sync(folder.parent)
    except (OSError, RuntimeError) as error:  # mlx reports a failed write as RuntimeError
        shutil.rmtree(temporary, ignore_errors=True)
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise StorageError(
            f"cannot write checkpoint '{folder}': {reason}; free space or mend the folder's rights, then --resume"
        ) from error


def load_newest(folder: RunFolder, load: Callable[[Path], Loaded]) -> tuple[Loaded | None, list[str]]:
    """Return the newest checkpoint of a run that `load` can load, None where there is none, and why others are not.

    A damaged one is put aside, renamed to `.step-000012.damaged`: it must not count as one of those that are kept.
    Raises StorageError for one of a newer version, or that cannot be put aside.
    """
    found = runs.checkpoints(folder)
    problems = found.problems
    for path in reversed(found.paths):
        try:
            return load(path), problems
        except DamagedCheckpointError as error:
            aside = path.with_name(f".{path.name}.damaged")
            _put_aside(path, aside)
            problems.append(f"checkpoint '{path.name}' left out: {error.damage}; it is kept as '{aside.name}'")
    return None, problems


def write_arrays(path: Path, arrays: Parameters) -> None:
    """As safetensors, in a fixed order: a resumed run writes the same bytes as one that was never stopped."""
    path.parent.mkdir(exist_ok=True)
    mx.save_safetensors(str(path), dict(sorted(arrays.items())))


def read_arrays(path: Path) -> Parameters:
    """What `write_arrays` wrote, read now: the folder may be pruned later."""
    arrays = cast("Parameters", mx.load(str(path)))
    mx.eval(arrays)
    return arrays


def optimizer_tree(flat: Parameters, parameters: Parameters, prefix: str = "") -> dict[str, Any]:
    """Take the state of Adam for `parameters` out of `flat`, whose names are as in `policy.<parameter name>.m`.

    Raises ValueError where an array of it is missing or has another shape.
    """
    tree: dict[str, Any] = {}
    for name, parameter in parameters.items():
        tree[name] = {leaf: flat.pop(f"{prefix}{name}.{leaf}", None) for leaf in ("m", "v")}
        if any(moment is None or moment.shape != parameter.shape for moment in tree[name].values()):
            raise ValueError(f"the optimiser lacks the moments {list(parameter.shape)} of '{prefix}{name}'")
    for name in ("step", "learning_rate"):
        if f"{prefix}{name}" in flat:
            tree[name] = flat.pop(f"{prefix}{name}")
        if parameters and (name not in tree or tree[name].size != 1):
            raise ValueError(f"the optimiser lacks the number '{prefix}{name}'")
    return tree


def check_all_used(flat: Parameters) -> None:
    """Raise ValueError for an array that `optimizer_tree` has not taken."""
    if flat:
        raise ValueError(f"the optimiser has an array of nothing that is trained, '{min(flat)}'")


def damage_of(error: Exception) -> str:
    """Return what is wrong with a checkpoint in one line, from what reading it raised."""
    if isinstance(error, ValidationError):
        problem = error.errors(include_url=False)[0]
        return f"{'.'.join(map(str, problem['loc'])) or STATE}: {problem['msg']}"
    return (str(error).splitlines() or [type(error).__name__])[0]


def write_json(path: Path, values: dict[str, Any]) -> None:
    """Indented, for readers."""
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def _put_aside(path: Path, aside: Path) -> None:
    try:
        remove(aside)
        path.rename(aside)
    except OSError as error:
        raise StorageError(f"cannot rename the damaged '{path}': {error.strerror}; remove it, then resume") from None


def _sync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
