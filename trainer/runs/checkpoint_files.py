"""Checkpoints of a run: their files, written whole or not at all, whatever is in them, and which of them are kept.

state.json lists every other file with its size and SHA-256, and has a SHA-256 of its own. A checkpoint whose bytes are
not those that were written is never loaded. Imports no tensor library.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pydantic import ValidationError

from trainer.config.problems import short
from trainer.errors import StorageError, UsageError, cannot_write, shortened, storage_error, writing
from trainer.events import CheckpointSaved, Event, StateChanged
from trainer.files import (
    is_folder,
    open_file,
    open_regular,
    own_folder,
    read_json,
    read_regular,
    remove,
    replace_folder,
    sync,
    write_whole,
)
from trainer.runs.folder import RunFolder, read_config

STATE, REWARD_MODEL = "state.json", "reward_model.json"
LAST, BEST = "last", "best"
_NAME = re.compile(r"step-[0-9]{6,}")
_REPLACED = "replaced"  # ending of a checkpoint that is being replaced
_UNSIGNED = "0" * 64  # in place of state.json's own SHA-256 while that is computed

Loaded = TypeVar("Loaded")


class DamagedCheckpointError(StorageError):
    """A checkpoint whose content is not what was written. `damage` says what differs."""

    def __init__(self, folder: Path, damage: str) -> None:
        self.damage = damage
        super().__init__(f"checkpoint '{folder}' is damaged ({damage}): use an older one, or a copy of this one")


def write_folder(folder: Path, fill: Callable[[Path], None], state: dict[str, Any]) -> None:
    """Write `folder` by renaming a finished copy into place, replacing an existing one.

    fill: writes the files into the folder it is given. state.json contains `state` and every file with its size and
    SHA-256, and is written last. The parent of `folder` is created if only it is missing. Raises StorageError.
    """
    temporary = folder.with_name(f".{folder.name}.tmp")
    with writing(f"checkpoint '{folder}'", ", then continue with --resume"):
        own_folder(folder.parent)
        for left in left_behind(folder.parent, "tmp"):  # by a killed process
            remove(left)
        temporary.mkdir()
    try:
        fill(temporary)
        for path in (*write_state(temporary, state), temporary / STATE):
            sync(path)  # the rename must not reach the disk before the content
        replace_folder(folder, temporary, folder.with_name(f".{folder.name}.{_REPLACED}"))
    except (OSError, RuntimeError) as error:  # mlx reports a failed write as RuntimeError
        with contextlib.suppress(OSError):
            remove(temporary)
        raise cannot_write(f"checkpoint '{folder}'", error, ", then continue with --resume") from error


def write_state(folder: Path, state: dict[str, Any]) -> list[Path]:
    """Write `state` as state.json beside the other files of a checkpoint in `folder`; return their paths."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / STATE)
    about = {str(path.relative_to(folder)): {"bytes": path.stat().st_size, "sha256": _hash(path)} for path in files}
    unsigned = json.dumps(state | {"files": about, "sha256": _UNSIGNED}, indent=2) + "\n"
    signature = hashlib.sha256(unsigned.encode()).hexdigest()
    (folder / STATE).write_text(unsigned.replace(f'"{_UNSIGNED}"', f'"{signature}"'), encoding="utf-8")
    return files


def check_content(folder: Path) -> Path:
    """Return `folder`. Raise DamagedCheckpointError if the checkpoint there is not what was written, by its SHA-256.

    A missing file is left to its reader: for a reward model, a user may have kept only what scoring needs. Raises
    StorageError for a file that cannot be read now.
    """
    name = STATE
    try:
        content = read_regular(folder / STATE)
        state = json.loads(content)
        files = {name: about["sha256"] for name, about in state["files"].items()}
        signature = state["sha256"].encode()
        if hashlib.sha256(content.replace(signature, _UNSIGNED.encode())).hexdigest().encode() != signature:
            raise DamagedCheckpointError(folder, f"{STATE} is not what was written")
        for name, expected in files.items():
            with contextlib.suppress(FileNotFoundError):
                if _hash(folder / name) != expected:
                    raise DamagedCheckpointError(folder, f"{name} is not what was written")
    except FileNotFoundError:
        pass
    except OSError as error:
        raise StorageError(
            f"cannot read '{folder / name}': {error.strerror}; check the disk and your permissions"
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedCheckpointError(folder, f"{STATE} cannot be read ({type(error).__name__})") from None
    return folder


def load_newest(
    folder: RunFolder, load: Callable[[Path], Loaded], *, is_own: bool = True
) -> tuple[Loaded | None, list[str]]:
    """Return the newest checkpoint of a run that `load` can load, None if there is none, and why newer ones cannot.

    is_own: whether the caller trains the run. A damaged checkpoint is then renamed to `.step-000012.damaged`, so that
    it does not count as one of those that are kept, and a checkpoint that a killed process was replacing is put back
    first. Raises StorageError for one of a newer version, or if renaming fails.
    """
    for old in left_behind(folder.checkpoints, _REPLACED) if is_own else ():
        place = old.with_name(old.name.removeprefix(".").removesuffix(f".{_REPLACED}"))
        with writing(f"checkpoint '{place}'", ", then resume again"):
            if os.path.lexists(place):
                remove(old)
            else:
                old.rename(place)
    found = checkpoints(folder)
    ignored = list[str]()
    for path in sorted([*found.paths, *found.problems], key=iteration_of, reverse=True):
        if path in found.problems:
            ignored.append(found.problems[path])
            continue
        try:
            return load(path), ignored
        except DamagedCheckpointError as error:
            ignored.append(f"checkpoint '{path.name}' ignored: {error.damage}")
            if is_own:
                aside = path.with_name(f".{path.name}.damaged")
                with storage_error(f"cannot rename the damaged '{path}'", "remove it, then resume"):
                    remove(aside)
                    path.rename(aside)
                ignored[-1] += f"; it is kept as '{aside.name}'"
    return None, ignored


def newest_checkpoint(folder: RunFolder) -> tuple[Path | None, list[str]]:
    """Return the newest checkpoint in `folder` that is what was written, None if there is none, and why newer are not.

    Whoever uses it reports the newer ones. Raises StorageError for a file that cannot be read now.
    """
    return load_newest(folder, check_content, is_own=False)


def read_newest(folder: RunFolder, load: Callable[[Path], Loaded]) -> tuple[Loaded, list[str]]:
    """Return what `load_newest` does, from a run that another process may be training: nothing is renamed.

    Raises StorageError also if there is none that `load` can load.
    """
    loaded, problems = load_newest(folder, load, is_own=False)
    if loaded is None:
        why = "; ".join(problems) or "there is none"
        raise StorageError(f"no checkpoint of run '{folder.name}' can be used ({why}): restore a copy, or train again")
    return loaded, problems


def find_checkpoint(folder: RunFolder, which: str) -> tuple[Path, list[str]]:
    """Return the complete checkpoint that `which` names, LAST, BEST or a number, and why newer ones are not the last.

    Raises UsageError, with the available ones, if there is none, StorageError if all are damaged.
    """
    paths, damages = checkpoints(folder)
    if not (paths or damages):
        raise UsageError(
            f"run '{folder.name}' has no complete checkpoint yet; it saves one every checkpoint.every iterations"
        )
    part = REWARD_MODEL if read_config(folder).get("kind") == "reward-model" else "policy/adapter_config.json"

    def whole(path: Path) -> Path:
        if not (path / part).is_file():  # of a run of another kind
            raise DamagedCheckpointError(path, f"{part} is missing")
        return check_content(path)

    newest, ignored = read_newest(folder, whole)
    if which == LAST:
        return newest, ignored
    numbers = {iteration_of(path): path for path in paths}
    there = f"last ({newest.name}), or one of {', '.join(map(str, numbers))}"
    if which == BEST:
        if path := best_checkpoint(folder):
            return path, []
        best = read_best(folder)
        if best is None and os.path.lexists(folder.best):
            raise UsageError(f"'{folder.best}' is damaged: choose {there}")
        if best and (damage := damages.get(folder.checkpoint(best.iteration))):
            raise UsageError(f"best {damage}: choose {there}")
        raise UsageError(
            f"run '{folder.name}' keeps no best checkpoint (set eval.every and checkpoint.best); choose {there}"
        )
    if not re.fullmatch("[0-9]{1,18}", which):
        raise UsageError(f"--checkpoint {short(which)}: choose best, {there}")
    if int(which) not in numbers:
        raise UsageError(f"run '{folder.name}' has no complete checkpoint {which}: choose best, {there}")
    return numbers[int(which)], []


class CheckpointWriter:
    """Writer of checkpoints into a run's folder, the newest `keep` of which stay.

    saved_at: iteration of the newest checkpoint; -1 for none.
    """

    def __init__(self, folder: RunFolder, keep: int, emit: Callable[[Event], None]) -> None:
        self.folder = folder
        self.keep = keep
        self.saved_at = -1
        self._emit = emit

    def save(self, iteration: int, write: Callable[[Path], None]) -> None:
        """Let `write` fill the checkpoint of `iteration`, unless the newest is of that one, and delete old ones."""
        if iteration == self.saved_at:
            return
        self._emit(StateChanged(state="saving"))
        started = time.perf_counter()
        path = self.folder.checkpoint(iteration)
        write(path)
        self.saved_at = iteration
        where, seconds = str(path.relative_to(self.folder.root)), time.perf_counter() - started
        self._emit(CheckpointSaved(iteration=iteration, path=where, seconds=seconds))
        prune_checkpoints(self.folder, self.keep)


class Checkpoints(NamedTuple):
    """Whole checkpoints of a run, oldest first, and why others are ignored."""

    paths: list[Path]
    problems: dict[Path, str]


def checkpoints(folder: RunFolder) -> Checkpoints:
    """Return the checkpoints in `folder`. One is whole if every file has the size that state.json gives."""
    found = [path for path in folder.checkpoints.glob("step-*") if _NAME.fullmatch(path.name)]
    damages = [(path, _damage(path)) for path in sorted(found, key=iteration_of)]
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


def remove_best(folder: RunFolder) -> None:
    """Delete best.json in `folder`, if it is there. Raises StorageError."""
    with storage_error(f"cannot delete '{folder.best}'", "fix the folder"):
        remove(folder.best)


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
    old = [path for path in old if path != best and not path.with_name(f".{path.name}.used").exists()]
    with storage_error("cannot delete old checkpoints", "delete them by hand"):
        for path in left_behind(folder.checkpoints, "removed"):
            remove(path)
        for path in old:
            # Renamed first: after a kill half-way it no longer counts as a checkpoint, and the next call removes it.
            path.rename(removed := path.with_name(f".{path.name}.removed"))
            remove(removed)
    return old


def keep_for_others(checkpoint: Path) -> str:
    """Mark `checkpoint`, which another run uses, so that its own run never deletes it when it is continued.

    Returns a warning if it cannot be marked, otherwise an empty string. Other paths than checkpoints stay as they are.
    """
    mark = checkpoint.with_name(f".{checkpoint.name}.used")
    try:
        if _NAME.fullmatch(checkpoint.name) and checkpoint.is_dir() and not mark.exists():
            os.close(open_file(mark, os.O_RDONLY | os.O_CREAT))
    except OSError as error:
        reason = f"cannot mark '{checkpoint}' as used ({error.strerror})"
        return f"{reason}: its own run may delete it when it is resumed; use a copy of that folder instead"
    return ""


def left_behind(checkpoints: Path, why: str) -> list[Path]:
    """Return what a killed process left in the folder `checkpoints`. why: the ending it was given, tmp or removed.

    Other hidden files belong to other programs.
    """
    if not is_folder(checkpoints):
        return []
    return [path for path in checkpoints.iterdir() if re.fullmatch(rf"\.step-[0-9]{{6,}}\.{why}", path.name)]


def listed_sizes(checkpoint: Path) -> dict[str, int]:
    """Return the size in bytes of each file that state.json of `checkpoint` lists, by its path in the checkpoint.

    Raises ValueError for a list that cannot be read, or that names a file outside of the checkpoint or behind a link.
    """
    try:
        files = read_json(checkpoint / STATE)["files"]
        sizes = {name: int(about["bytes"]) for name, about in files.items()}
    except FileNotFoundError:
        raise ValueError("state.json is missing") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"state.json cannot be read ({type(error).__name__})") from None
    for name in sizes:
        path = Path(name)
        if path.is_absolute() or ".." in path.parts or not all(is_folder(checkpoint / part) for part in path.parents):
            raise ValueError(f"state.json lists '{shortened(name)}', which is not in the checkpoint")
    return sizes


def _damage(checkpoint: Path) -> str:
    """Return why the checkpoint cannot be used; empty if it is whole."""
    try:
        sizes = listed_sizes(checkpoint)
    except ValueError as error:
        return str(error)
    for name, size in sizes.items():
        try:
            actual = (checkpoint / name).stat().st_size
        except (OSError, ValueError):  # also one that was deleted a moment ago, and a name that no file can have
            return f"{shortened(name)} is missing"
        if actual != size:
            return f"{name} has {actual} bytes instead of {size}"
    return ""


def damage_of(error: Exception) -> str:
    """Return one line that says what is wrong with a checkpoint, from the error that reading it raised."""
    if isinstance(error, ValidationError):
        problem = error.errors(include_url=False)[0]
        return f"{'.'.join(map(str, problem['loc'])) or STATE}: {problem['msg']}"
    return (str(error).splitlines() or [type(error).__name__])[0]


def _hash(path: Path) -> str:
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
