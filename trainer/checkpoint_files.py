"""How a checkpoint gets to disk, whatever is in it: whole or not at all, its arrays in an order of their own."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import mlx.core as mx

from trainer.errors import StorageError
from trainer.models.adapters import Parameters


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


def write_arrays(path: Path, arrays: Parameters) -> None:
    """As safetensors, in a fixed order: a resumed run writes the same bytes as one that was never stopped."""
    path.parent.mkdir(exist_ok=True)
    mx.save_safetensors(str(path), dict(sorted(arrays.items())))


def read_arrays(path: Path) -> Parameters:
    """What `write_arrays` wrote, read now: the folder may be pruned later."""
    arrays = cast("Parameters", mx.load(str(path)))
    mx.eval(arrays)
    return arrays


def write_json(path: Path, values: dict[str, Any]) -> None:
    """Indented, for readers."""
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def _sync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
