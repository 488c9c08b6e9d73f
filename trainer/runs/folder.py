"""Folders of runs on disk, which anyone can read without this program.

    NAME/config.toml  events.jsonl  samples/step-000012.parquet  checkpoints/step-000020/  best.json  lock

While a run trains, there are also progress.json and control/, the requests of other processes.
"""

from __future__ import annotations

import contextlib
import difflib
import fcntl
import itertools
import os
import platform
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from trainer.config import AnyConfig
from trainer.config.fields import CONFIG_FORMAT, PATTERNS, RUN_NAME
from trainer.config.loading import config_text
from trainer.errors import StorageError, UsageError, storage_error, writing
from trainer.files import PRIVATE, is_file, is_folder, lock, open_file, own_folder, read_toml, write_whole

_DISTRIBUTIONS = ("ppo-workbench", "mlx", "mlx-lm", "transformers")
_LOCK = "lock"
_FRESH_SECONDS = 60.0  # progress.json is written several times a second during a phase

_ELSEWHERE = ", or choose another folder with --set run.dir=FOLDER"

PROMPTS_BYTES = 1 << 28
"""Largest prompts.sha256 that is read: that of ten million prompts."""

TRASH = ".trash"
"""Folder of deleted runs, beside the others."""


class _Inside:
    """Path of that name in a run's folder."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, folder: RunFolder, _: type[RunFolder]) -> Path:
        return folder.root / self._name


@dataclass(frozen=True)
class RunFolder:
    """Folder of one run, and the paths in it."""

    root: Path

    config = _Inside("config.toml")
    events = _Inside("events.jsonl")  # the journal
    pairs = _Inside("pairs.sha256")  # fingerprint of the pairs that a DPO run began with
    prompts = _Inside("prompts.sha256")  # a line for each prompt of a PPO run: its side of the split, and its hash
    samples = _Inside("samples")  # folder of the samples files
    checkpoints = _Inside("checkpoints")
    best = _Inside("best.json")  # the best checkpoint and its evaluation
    control = _Inside("control")  # folder of requests to the process that trains the run
    judge = _Inside("judge.jsonl")  # answers of the judges among the rewards
    progress = _Inside("progress.json")  # of the current phase

    @property
    def name(self) -> str:
        """Name of the run: that of its folder."""
        return self.root.name

    def samples_file(self, iteration: int) -> Path:
        """Return the path of the samples file of `iteration`."""
        return self.samples / f"step-{iteration:06d}.parquet"

    def checkpoint(self, iteration: int) -> Path:
        """Return the path of the checkpoint after `iteration`."""
        return self.checkpoints / f"step-{iteration:06d}"

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the run, so that no other process trains it. The lock ends with the process, however that ends.

        Raises UsageError if another process holds the lock, StorageError if the folder cannot be locked.
        """
        file = _locked(self.root)
        try:
            yield
        finally:
            os.close(file)

    def is_live(self) -> bool:
        """Return whether some process, maybe this one, is training the run now.

        Another user's lock may not be readable. Such a run counts as live if its progress.json, which a trainer removes
        at the end, was written within the last minute.
        """
        with contextlib.suppress(OSError):
            try:
                file = open_file(self.root / _LOCK)
            except PermissionError:
                return abs(time.time() - self.progress.lstat().st_mtime) < _FRESH_SECONDS
            try:
                return not _try_lock(file, fcntl.LOCK_SH)
            finally:
                os.close(file)
        return False


def _locked(root: Path) -> int:
    """Open and lock the lock file in `root`. Only its owner may open it, because whoever opens it could lock it."""
    file = -1
    try:
        file = open_file(root / _LOCK, os.O_RDWR | os.O_CREAT, PRIVATE)
        while not _try_lock(file, fcntl.LOCK_EX):
            # `is_live` takes a shared lock for an instant and must not pass for a trainer: that one is exclusive.
            if not _try_lock(file, fcntl.LOCK_SH):
                if not (pid := os.pread(file, 20, 0).decode(errors="replace")):  # not written yet
                    raise UsageError(f"run '{root.name}' is in use by another process: try again")
                raise UsageError(f"run '{root.name}' is being trained by process {pid}: stop it first, or wait")
        with contextlib.suppress(PermissionError):  # a file system without permissions
            os.fchmod(file, PRIVATE)
        os.ftruncate(file, 0)
        os.write(file, str(os.getpid()).encode())
    except (OSError, UsageError) as error:
        if file >= 0:
            os.close(file)
        if isinstance(error, UsageError):
            raise
        way_out = "choose a local, writable folder with --set run.dir=FOLDER"
        if isinstance(error, PermissionError):
            way_out = "only the user who started a run can train it; copy its folder to train it as your own"
        raise StorageError(f"cannot lock run '{root}': {error.strerror}; {way_out}") from None
    return file


def _try_lock(file: int, mode: int) -> bool:
    try:
        lock(file, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def create_run(config: AnyConfig, preset_name: str, *, pairs: str = "") -> RunFolder:
    """Create the folder of a new run under `config.run.dir` and write its config.toml.

    Without `config.run.name`, the run is named after `preset_name`, a preset or the path of the file it came from, and
    the next free number; two processes that start at once get different ones. `config`, already resolved, is saved with
    that name, as the last file. A folder without config.toml is left from a start that was killed or failed, and the
    next start with that name uses it. pairs: the fingerprint of the pairs of a DPO run. Raises UsageError for a name in
    use, StorageError if the folder cannot be written.
    """
    runs_dir = Path(config.run.dir).resolve()
    with writing(f"'{runs_dir}'", _ELSEWHERE):
        runs_dir.mkdir(parents=True, exist_ok=True)
    for name in [config.run.name] if config.run.name else free_names(runs_dir, name_of(preset_name)):
        folder = RunFolder(runs_dir / name)
        with writing(f"'{folder.root}'", _ELSEWHERE), contextlib.suppress(UsageError):  # another process creates it
            with contextlib.suppress(FileExistsError):
                folder.root.mkdir()
            if not _is_unborn(folder):
                continue
            with folder.lock():  # of two processes that start at once, one creates the run
                if _is_unborn(folder):
                    own_folder(folder.samples)
                    own_folder(folder.checkpoints)
                    if pairs:
                        write_whole(folder.pairs, f"{pairs}\n")
                    write_config(folder, config)
                    return folder
    raise _in_use(config)


def write_config(folder: RunFolder, config: AnyConfig) -> None:
    """Write `config` as the configuration of `folder`, with its name and package versions, whole or not at all."""
    config = config.model_copy(update={"run": config.run.model_copy(update={"name": folder.name})})
    header = "\n".join(f"{name} {version}" for name, version in versions().items())
    with writing(f"'{folder.config}'", _ELSEWHERE):
        write_whole(folder.config, config_text(config, header))


def read_config(folder: RunFolder) -> dict[str, Any]:
    """Return the tables of config.toml, valid or not.

    Raises StorageError if the file cannot be read, is not TOML, or was written by a newer version.
    """
    with storage_error(f"cannot read '{folder.config}'", "fix the file"):
        try:
            return CONFIG_FORMAT.current(read_toml(folder.config), f"'{folder.config}'")
        except ValueError as error:
            raise StorageError(f"cannot read '{folder.config}': {error}; fix the file") from None


def check_name_is_free(config: AnyConfig) -> None:
    """Raise UsageError if `config.run.name` is in use, before loading takes minutes.

    Raises StorageError if the folder of that name cannot be looked for.
    """
    path = Path(config.run.dir) / config.run.name
    with writing(f"'{path}'", _ELSEWHERE):
        if config.run.name and path.exists() and not _is_unborn(RunFolder(path)):
            raise _in_use(config)


def open_run(path_or_name: str | Path, runs_dir: Path) -> RunFolder:
    """Return the folder of an existing run: a name in `runs_dir`, or a path.

    Raises UsageError, with similar names, if there is no such run.
    """
    for root in (runs_dir / path_or_name, Path(path_or_name)):
        folder = RunFolder(root.resolve())
        with contextlib.suppress(OSError):  # a name too long, a folder that may not be entered
            if folder.config.is_file() or folder.events.is_file():
                return folder
            if folder.root.parent == runs_dir.resolve() and _is_unborn(folder):
                name = folder.name
                raise UsageError(f"run '{name}' was interrupted before it started: start it with --name {name}")
    names = [folder.name for folder in run_folders(runs_dir)]
    near = difflib.get_close_matches(str(path_or_name), names) or names[-3:]
    hint = f"there is {', '.join(repr(name) for name in near)}" if near else "no run was started there yet"
    raise UsageError(f"no run '{path_or_name}' in '{runs_dir}': {hint}")


def open_to_train(path_or_name: str | Path, runs_dir: Path) -> RunFolder:
    """Return the folder of an existing run, after checking that everything the run writes is in the folder itself.

    Raises UsageError if there is no such run, StorageError if a link, or something else, is in the place of a folder or
    file of the run: what is behind it does not belong to the program.
    """
    folder = open_run(path_or_name, runs_dir)
    folders = (folder.samples, folder.checkpoints, folder.control, folder.control / "answers")
    places = [(path, is_folder, "folder") for path in folders]
    places += [(path, is_file, "file") for path in (folder.events, folder.judge, folder.root / _LOCK)]
    for path, is_right, what in places:
        if os.path.lexists(path) and not is_right(path):
            found = f"a link to '{path.readlink()}'" if path.is_symlink() else "something else"
            raise StorageError(
                f"'{path}' is {found}; the run needs a real {what} there: replace it, then resume (only the run's own "
                "folder may be a link)"
            )
    return folder


def run_folders(runs_dir: Path) -> list[RunFolder]:
    """Return the folders in `runs_dir` by name, without hidden ones; none if there is no such folder."""
    paths: list[Path] = []
    listing = storage_error(f"cannot list runs in '{runs_dir}'", "choose another folder")
    with listing, contextlib.suppress(FileNotFoundError):
        paths = sorted(path for path in runs_dir.iterdir() if path.is_dir() and not path.name.startswith("."))
    return [RunFolder(path) for path in paths]


def free_names(runs_dir: Path, prefix: str) -> Iterator[str]:
    """Yield names for new runs in `runs_dir`: `prefix` and the next free numbers. Raises StorageError.

    A folder that a failed start left does not count, so that `create_run` uses it.
    """
    numbers = [
        int(folder.name.removeprefix(f"{prefix}-"))
        for folder in run_folders(runs_dir)
        if re.fullmatch(rf"{re.escape(prefix)}-[0-9]+", folder.name) and not _is_unborn(folder)
    ]
    for number in itertools.count(max(numbers, default=0) + 1):
        yield f"{prefix}-{number:04d}"


def rename_run(folder: RunFolder, new_name: str) -> RunFolder:
    """Rename a run: its folder, whose name is the run's. When it is resumed, its config.toml says so too.

    Raises UsageError for a name that breaks the rule or is in use and for a run that is being trained, StorageError if
    the folder cannot be renamed.
    """
    if not new_name or not re.fullmatch(RUN_NAME, new_name):
        raise UsageError(f"{new_name!r} is not a name for a run: it {PATTERNS[RUN_NAME]}")
    renamed = RunFolder(folder.root.with_name(new_name))
    with folder.lock(), storage_error(f"cannot rename '{folder.root}' to '{new_name}'"):
        if renamed.root.exists():
            raise UsageError(f"run '{new_name}' exists already: choose another name for '{folder.name}'")
        folder.root.rename(renamed.root)
    return renamed


def trash_run(folder: RunFolder) -> Path:
    """Move a run to `.trash/` beside it, which no list of runs shows, and return its path there.

    Raises UsageError for a run that is being trained, StorageError if it cannot be moved.
    """
    trash = folder.root.with_name(TRASH)
    with folder.lock(), storage_error(f"cannot move '{folder.root}' to '{trash}'", "fix the folder"):
        own_folder(trash)
        names = itertools.chain([folder.name], (f"{folder.name}.{number}" for number in itertools.count(2)))
        path = next(path for name in names if not (path := trash / name).exists())
        folder.root.rename(path)
    return path


def restore_run(folder: RunFolder) -> RunFolder:
    """Move a run out of the trash, to the name that it had, or with a number after it if that is in use again.

    Raises UsageError for a run that is being trained, StorageError if it cannot be moved.
    """
    name = folder.name
    with contextlib.suppress(StorageError, KeyError, TypeError):  # `trash_run` put a number after a second one
        before = str(read_config(folder)["run"]["name"])
        name = before if re.fullmatch(rf"{re.escape(before)}\.[0-9]+", name) else name
    with folder.lock(), storage_error(f"cannot restore '{folder.root}'", "fix the folder"):
        names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
        path = next(path for one in names if not (path := folder.root.parent.parent / one).exists())
        folder.root.rename(path)
    return RunFolder(path)


def versions() -> dict[str, str]:
    """Return the versions of ppo-workbench, MLX, transformers and Python, without importing any of them."""
    found = {}
    for name in _DISTRIBUTIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return {**found, "python": platform.python_version()}


def name_of(preset_name: str) -> str:
    """Return what the names of runs of a preset or file begin with: for a config.toml, the name of its folder."""
    path = Path(preset_name)
    name = path.absolute().parent.name if path.name == "config.toml" else path.name.removesuffix(".toml")
    return re.sub(r"[^\w.-]+", "-", name).strip(".-") or "run"


def _in_use(config: AnyConfig) -> UsageError:
    name = config.run.name
    return UsageError(
        f"run.name = {name!r} is in use in '{config.run.dir}': "
        f"choose another name, or continue that run by --resume {name}"
    )


def _is_unborn(folder: RunFolder) -> bool:
    """Return whether `folder` contains only what a start leaves that is killed before it writes config.toml."""
    lock_file, folders = folder.root / _LOCK, (folder.samples, folder.checkpoints)
    known = {
        lock_file,
        folder.pairs,
        *(path.with_name(f".{path.name}.tmp") for path in (lock_file, folder.config, folder.pairs)),
    }
    with contextlib.suppress(OSError):
        others = [path for path in folder.root.iterdir() if path not in known]
        return all(path in folders and is_folder(path) and not any(path.iterdir()) for path in others)
    return False
