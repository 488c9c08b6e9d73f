"""Folder of a branch: a new run that begins with the checkpoint and the history of another one."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from trainer.config import Config
from trainer.errors import StorageError, UsageError, cannot_write, storage_error
from trainer.events import (
    Alert,
    BranchedFrom,
    CheckpointSaved,
    DataChanged,
    Evaluation,
    Event,
    HumanEvaluation,
    Iteration,
    RolledBack,
    RunStarted,
    SettingChanged,
)
from trainer.files import JSON_BYTES, PRIVATE, SHARED, is_file, open_file, read_regular, sync, write_whole
from trainer.runs.checkpoint_files import (
    STATE,
    DamagedCheckpointError,
    best_checkpoint,
    check_content,
    checkpoints,
    iteration_of,
    listed_sizes,
    read_best,
    write_best,
)
from trainer.runs.folder import PROMPTS_BYTES, RunFolder, versions, write_config
from trainer.runs.journal import Journal, read_journal

_CHUNK = 1 << 20
_DIGITS = 16  # of a SHA-256
_HISTORY = (Alert, CheckpointSaved, Evaluation, HumanEvaluation, Iteration, RolledBack)


def start_of(folder: RunFolder) -> RunStarted | None:
    """Return how the run in `folder` began, from its journal; None if that cannot be read."""
    with contextlib.suppress(StorageError):
        return next((one for one in read_journal(folder.events, 1).events if isinstance(one, RunStarted)), None)
    return None


def checkpoint_at(folder: RunFolder, iteration: int) -> Path:
    """Return the checkpoint after `iteration`, checked by its SHA-256.

    Raises UsageError, with those that there are, if it is missing; DamagedCheckpointError, StorageError.
    """
    found, path = checkpoints(folder), folder.checkpoint(iteration)
    if path not in found.paths:
        whole = ", ".join(str(iteration_of(each)) for each in found.paths)
        missing = found.problems.get(path) or f"run '{folder.name}' has no checkpoint of iteration {iteration}"
        choose = f"choose from {whole}" if whole else "it has none that is whole"
        raise UsageError(f"{missing}: {choose} (checkpoint.keep = 0 keeps all of a new run)")
    check_content(path)
    return path


def identity(checkpoint: Path) -> str:
    """Return what tells `checkpoint` from others of the same name. Raises StorageError."""
    with storage_error(f"cannot read '{checkpoint / STATE}'", "check your permissions"):
        return hashlib.sha256(read_regular(checkpoint / STATE)).hexdigest()[:_DIGITS]


def create_branch(
    parent: RunFolder,
    past: Sequence[Event],
    name: str,
    config: Config,
    since: BranchedFrom,
    changes: Iterable[SettingChanged],
    *,
    with_best: bool,
) -> RunFolder:
    """Create the run `name` beside `parent`, ready to be resumed from the parent's checkpoint; return its folder.

    It appears whole or not at all. past: the parent's journal, of which the iterations until then become the branch's.
    Samples stay with the parent. changes: reported after them. with_best: whether the parent's best checkpoint, if it
    is not of a later iteration, also becomes the branch's. Raises UsageError for a name in use, StorageError.
    """
    folder = RunFolder(parent.root.with_name(name))
    if os.path.lexists(folder.root):
        raise name_in_use(folder)
    started = [event for event in past if isinstance(event, RunStarted)]
    if not started:
        raise StorageError(
            f"the journal '{parent.events}' does not say how run '{parent.name}' began: use a copy of it"
        )
    begins = dataclasses.replace(
        started[-1],
        name=name,
        folder=str(folder.root),
        iterations=config.ppo.iterations,
        seed=config.run.seed,
        versions=versions(),
        warnings=[],
        resumed_at=None,
        branched_from=since,
    )
    iteration = since.iteration
    changes_data = any(key.startswith("data.") for key in since.changes)
    try:
        with TemporaryDirectory(prefix=f".{name}.", dir=parent.root.parent, ignore_cleanup_errors=True) as temporary:
            made = RunFolder(Path(temporary, name))
            for each in (made.root, made.samples, made.checkpoints):
                each.mkdir()
            copied = {iteration}
            _copy(parent.checkpoint(iteration), made.checkpoint(iteration))
            best = best_checkpoint(parent) if with_best else None
            if best and iteration_of(best) <= iteration and (about := read_best(parent)):
                copied.add(iteration_of(best))
                if best != parent.checkpoint(iteration):
                    _copy(best, made.checkpoints / best.name)
                write_best(made, about)
            if identity(made.checkpoint(iteration)) != since.checkpoint:
                replaced = f"checkpoint {iteration} of run '{parent.name}' was replaced meanwhile"
                raise StorageError(f"{replaced}: branch again")
            write_config(made, config)
            journal = Journal(made.events, shared=config.run.shared)
            with contextlib.closing(journal):
                for event in (begins, *_history(past, iteration, copied), *changes):
                    journal.emit(event)
                if changes_data:
                    message = "the branch changes [data]: evaluations before this cannot be compared"
                    journal.emit(DataChanged(iteration=iteration, message=message))
            sync(made.events)
            if is_file(parent.prompts) and not changes_data:
                mode = SHARED if config.run.shared else PRIVATE
                write_whole(made.prompts, read_regular(parent.prompts, PROMPTS_BYTES), mode=mode)
            made.root.rename(folder.root)  # fails if another process was faster: a run's folder is never empty
            with contextlib.suppress(OSError):  # some file systems refuse to sync a folder
                sync(folder.root.parent)
    except OSError as error:
        if os.path.lexists(folder.root):
            raise name_in_use(folder) from None
        raise cannot_write(f"run '{folder.root}'", error) from None
    return folder


def name_in_use(folder: RunFolder) -> UsageError:
    """Return the error for a branch whose name another run has."""
    return UsageError(f"--name {folder.name}: '{folder.root}' exists and is not this branch; choose another name")


def _history(past: Iterable[Event], iteration: int, copied: set[int]) -> Iterator[Event]:
    """Yield the events of `past` up to `iteration`, with those of the checkpoints `copied` alone."""
    for event in past:
        match event:
            case CheckpointSaved():
                belongs = event.iteration in copied
            case SettingChanged():
                belongs = event.iteration <= iteration + 1  # it applies from that one on
            case _:
                belongs = isinstance(event, _HISTORY) and event.iteration <= iteration
        if belongs:
            yield event


def _copy(checkpoint: Path, target: Path) -> None:
    """Copy the files that state.json lists, and check that the copy is whole: its run may be deleting it.

    No link is followed, and no file is read beyond its size: others may have prepared the checkpoint.
    """
    try:
        sizes = {STATE: JSON_BYTES} | listed_sizes(checkpoint)
    except ValueError as error:
        raise DamagedCheckpointError(checkpoint, str(error)) from None
    for name, size in sizes.items():
        place = target / name
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = open_file(checkpoint / name)
        except OSError as error:
            raise DamagedCheckpointError(checkpoint, f"{name}: {error.strerror}") from None
        with open(descriptor, "rb") as file, place.open("xb") as copy:  # noqa: PTH123  so that no link is followed
            while size > 0 and (part := file.read(min(size, _CHUNK))):
                size -= copy.write(part)
        sync(place)
    check_content(target)
    if target not in checkpoints(RunFolder(target.parent.parent)).paths:
        raise DamagedCheckpointError(checkpoint, "files are missing")
