"""Index of the checkpoints of a run: the whole ones, the newest, the best, and those to delete."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any, NamedTuple

from trainer.errors import StorageError, shortened, writing
from trainer.files import is_folder, open_file, read_json, remove, write_whole
from trainer.runs.folder import RunFolder


class Checkpoints(NamedTuple):
    """Whole checkpoints of a run, oldest first, and why others are ignored."""

    paths: list[Path]
    problems: dict[Path, str]


def checkpoints(folder: RunFolder) -> Checkpoints:
    """Return the checkpoints in `folder`. One is whole if every file has the size that state.json gives."""
    found = list(filter(_is_checkpoint, folder.checkpoints.glob("step-*")))
    found.sort(key=iteration_of)
    damages = [(path, _damage(path)) for path in found]
    problems = {path: f"checkpoint '{path.name}' ignored: {damage}" for path, damage in damages if damage}
    return Checkpoints([path for path, damage in damages if not damage], problems)


def iteration_of(checkpoint: Path) -> int:
    """Return the number of iterations after which `checkpoint` was saved, from its name."""
    return int(checkpoint.name.removeprefix("step-"))


class Best(NamedTuple):
    """Best evaluation so far, whose checkpoint is kept."""

    iteration: int
    metric: str  # as checkpoint.best names it
    value: float  # in the scale of the reward's sources, without normalisation
    sources: Any = None  # of the reward that gave it; values of other sources are not comparable


def read_best(folder: RunFolder) -> Best | None:
    """Return the content of best.json in `folder`; None if it cannot be read."""
    try:
        values = read_json(folder.best)
        return Best(int(values["iteration"]), str(values["metric"]), float(values["value"]), values["sources"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return None


def write_best(folder: RunFolder, best: Best) -> None:
    """Write best.json, whole or not at all. Raises StorageError."""
    with writing(f"'{folder.best}'", ", or choose another folder with --set run.dir=FOLDER"):
        write_whole(folder.best, json.dumps(best._asdict(), indent=2) + "\n")


def best_checkpoint(folder: RunFolder) -> Path | None:
    """Return the checkpoint in `folder` of the best evaluation; None if there is none, or it is not whole."""
    best = read_best(folder)
    path = folder.checkpoint(best.iteration) if best else None
    return path if path and not _damage(path) else None


def prune_checkpoints(folder: RunFolder, keep: int) -> list[Path]:
    """Delete old whole checkpoints, but keep the newest `keep`, the best, and those that other runs use.

    Deletes none if `keep` is 0. Returns the deleted ones. Raises StorageError if one cannot be deleted.
    """
    best = best_checkpoint(folder)
    old = checkpoints(folder).paths[:-keep] if keep else []
    old = [path for path in old if path != best and not _mark(path).exists()]
    try:
        for path in left_behind(folder.checkpoints, "removed"):
            remove(path)
        for path in old:
            # Renamed first: after a kill half-way it no longer counts as a checkpoint, and the next call removes it.
            path.rename(removed := path.with_name(f".{path.name}.removed"))
            remove(removed)
    except OSError as error:
        raise StorageError(f"cannot delete old checkpoints: {error}; delete them by hand") from None
    return old


def keep_for_others(checkpoint: Path) -> str:
    """Mark `checkpoint`, which another run uses, so that its own run never deletes it when it is continued.

    Returns a warning if it cannot be marked, otherwise an empty string. Other paths than checkpoints stay as they are.
    """
    mark = _mark(checkpoint)
    try:
        if _is_checkpoint(checkpoint) and checkpoint.is_dir() and not mark.exists():
            os.close(open_file(mark, os.O_RDONLY | os.O_CREAT))
    except OSError as error:
        reason = f"cannot mark '{checkpoint}' as used ({error.strerror})"
        return f"{reason}: its own run may delete it when it is resumed; use a copy of that folder instead"
    return ""


def _mark(checkpoint: Path) -> Path:
    return checkpoint.with_name(f".{checkpoint.name}.used")


def _is_checkpoint(path: Path) -> bool:
    return bool(re.fullmatch(r"step-[0-9]{6,}", path.name))


def left_behind(checkpoints: Path, why: str) -> list[Path]:
    """Return what a killed process left in the folder `checkpoints`. why: the ending it was given, tmp or removed.

    Other hidden files belong to other programs.
    """
    if not is_folder(checkpoints):
        return []
    return [path for path in checkpoints.iterdir() if re.fullmatch(rf"\.step-[0-9]{{6,}}\.{why}", path.name)]


def listed_sizes(checkpoint: Path) -> dict[str, int]:
    """Return the size in bytes of each file that state.json of `checkpoint` lists, by its path in the checkpoint.

    Raises OSError, and ValueError for a list that cannot be read, or that names a file outside of the checkpoint or
    behind a link.
    """
    try:
        files = read_json(checkpoint / "state.json")["files"]
        sizes = {name: int(about["bytes"]) for name, about in files.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"state.json cannot be read ({type(error).__name__})") from None
    for name in sizes:
        path = Path(name)
        if path.is_absolute() or ".." in path.parts or not all(is_folder(checkpoint / part) for part in path.parents):
            raise ValueError(f"state.json lists '{shortened(name)}', which is not in the checkpoint")
    return sizes


def _damage(checkpoint: Path) -> str:
    """Return why the checkpoint cannot be used; empty if it is whole."""
    try:
        for name, size in listed_sizes(checkpoint).items():
            if (actual := (checkpoint / name).stat().st_size) != size:
                return f"{name} has {actual} bytes instead of {size}"
    except FileNotFoundError as error:
        return f"{os.path.relpath(error.filename, checkpoint)} is missing"
    except OSError as error:
        return f"state.json cannot be read ({type(error).__name__})"
    except ValueError as error:
        return str(error)
    return ""
