"""Plan of a sweep on disk, `NAME.sweep.json` beside its runs, so that a later command knows what is missing."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from trainer.config import load_config, validate
from trainer.config.fields import CONFIG_FORMAT, PATTERNS, RUN_NAME, Section
from trainer.config.loading import differences, with_overrides
from trainer.config.problems import shown
from trainer.config.reference import reference_rows
from trainer.errors import ConfigError, StorageError, UsageError, cannot_write
from trainer.files import lock, open_file, read_json, whole_file
from trainer.format_versions import FileFormat
from trainer.plurals import counted
from trainer.ppo_run.sweeping import SUFFIX, Sweep, as_tables, named_run
from trainer.runs.checkpoint_files import damage_of
from trainer.runs.folder import check_name_is_free

_FORMAT = FileFormat("sweep")
# Settings in which the configuration of a run may have come to differ from the plan, besides the live ones.
_FREE = ("ppo.iterations", "checkpoint.every", "eval.every", "run.trackers", "run.name", "run.dir")


def saved_sweep(name: str, runs_dir: Path) -> Sweep | None:
    """Read the plan of the sweep `name`; None if there is none.

    Raises UsageError for a name that none can have, ConfigError if this version has other rules than the one that
    planned it, StorageError if the file is damaged.
    """
    if not name or not re.fullmatch(RUN_NAME, name):
        raise UsageError(f"{name!r} is not the name of a sweep: it must not be empty, and {PATTERNS[RUN_NAME]}")
    runs_dir = Path(os.path.realpath(runs_dir))
    path = runs_dir / f"{name}{SUFFIX}"
    try:
        raw = _FORMAT.current(read_json(path), f"'{path}'")
        saved = _SavedSweep.model_validate(raw)
        base = validate(CONFIG_FORMAT.current(saved.config, f"'{path}'"))
        configs = [with_overrides(base, as_tables({**one.settings, "run.seed": one.seed})) for one in saved.runs]
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _damaged(path, error.strerror or str(error)) from None
    except ConfigError as error:
        raise ConfigError(error.problems, str(path)) from None
    except (ValidationError, ValueError) as error:
        raise _damaged(path, damage_of(error)) from None
    runs = [
        named_run(name, runs_dir, one.combination, one.settings, config)
        for one, config in zip(saved.runs, configs, strict=True)
    ]
    return Sweep(name, runs_dir, saved.jobs, runs)


def sweep_names(runs_dir: Path) -> list[str]:
    """Return the names of the sweeps whose plans are in `runs_dir`."""
    with contextlib.suppress(OSError):
        return sorted(path.name.removesuffix(SUFFIX) for path in runs_dir.glob(f"*{SUFFIX}"))
    return []


def check_same(wanted: Sweep, saved: Sweep) -> None:
    """Raise UsageError, with the first difference, unless both plans train the same. jobs may differ."""
    if difference := _difference(wanted, saved):
        raise UsageError(
            f"sweep '{saved.name}' in '{saved.runs_dir}' is another one: {difference}; use another --name, or finish "
            f"that one with --resume {saved.name}"
        )


def check_folders(sweep: Sweep) -> None:
    """Raise UsageError if the name of a run is in use by one that is not of this sweep. Raises StorageError."""
    live = {row.key for row in reference_rows() if row.live}
    for run in sweep.runs:
        folder = sweep.folder(run)
        if not folder.config.is_file():
            check_name_is_free(run.config)
            continue
        for key, (planned, found) in differences(run.config, load_config(folder.config)):
            if key not in live and key not in _FREE:
                raise UsageError(
                    f"run '{run.name}' in '{sweep.runs_dir}' is not of this sweep: {key} = {shown(found)}, not "
                    f"{shown(planned)}; use another --name, or rename that run"
                )


def save_sweep(sweep: Sweep) -> None:
    """Write the plan, whole or not at all. Raises StorageError."""
    config = sweep.runs[0].config
    tables = {"run": config.run.model_copy(update={"name": "", "dir": "runs"})}  # where the file is, and as it is named
    content = {
        _FORMAT.key: _FORMAT.version,
        "jobs": sweep.jobs,
        "runs": [
            {"combination": run.combination, "seed": run.config.run.seed, "settings": run.settings}
            for run in sweep.runs
        ],
        "config": {CONFIG_FORMAT.key: CONFIG_FORMAT.version, **config.model_copy(update=tables).model_dump()},
    }
    try:
        sweep.runs_dir.mkdir(parents=True, exist_ok=True)
        with whole_file(sweep.file, sync=True) as file:
            file.write(f"{json.dumps(content, indent=1)}\n".encode())
    except OSError as error:
        raise cannot_write(f"'{sweep.file}'", error, ", or choose another folder with --dir") from None


@contextlib.contextmanager
def held(sweep: Sweep) -> Iterator[None]:
    """Lock the saved plan within the block, so that no other process trains the sweep. The lock ends with the process.

    Raises UsageError if another process holds it, StorageError if the file cannot be locked.
    """
    try:
        file = open_file(sweep.file, os.O_RDWR)  # some file systems lock only what may be written
    except OSError as error:
        raise _damaged(sweep.file, error.strerror or str(error)) from None
    try:
        _lock(file, sweep)
        yield
    finally:
        os.close(file)


def _lock(file: int, sweep: Sweep) -> None:
    try:
        lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UsageError(f"sweep '{sweep.name}' is being trained by another process: stop it first, or wait") from None
    except OSError as error:
        way_out = "choose a local folder with --dir"
        raise StorageError(f"cannot lock '{sweep.file}': {error.strerror}; {way_out}") from None


class _SavedRun(Section):
    """A run in the file of a plan."""

    combination: Annotated[str, Field(pattern=r"^[\w.\-]+$")]
    seed: Annotated[int, Field(ge=0, lt=2**32)]
    settings: dict[str, Any]


class _SavedSweep(Section):
    """The file of a plan. config: the tables of config.toml, of the first run."""

    sweep: int
    jobs: Annotated[int, Field(ge=1)]
    runs: Annotated[list[_SavedRun], Field(min_length=1)]
    config: dict[str, Any]


def _difference(wanted: Sweep, saved: Sweep) -> str:
    """Return the first difference between two plans in words; empty if there is none."""
    ours, theirs = list(wanted.runs[0].settings), list(saved.runs[0].settings)
    if {*ours} != {*theirs}:
        return f"it varies {', '.join(theirs)}, not {', '.join(ours)}"
    for key in ours:
        new, old = ({json.dumps(run.settings[key]): None for run in sweep.runs} for sweep in (wanted, saved))
        if {*new} != {*old}:
            return f"{key} has the values {', '.join(old)}, not {', '.join(new)}"
    new_seeds, old_seeds = (f"{counted(len(one.seeds), 'seed')} from {one.seeds[0]}" for one in (wanted, saved))
    if new_seeds != old_seeds:
        more = (
            f" (sweep --resume {saved.name} --seeds {len(wanted.seeds)} adds some)"
            if _adds_seeds(wanted, saved)
            else ""
        )
        return f"it has {old_seeds}, not {new_seeds}{more}"
    first = wanted.runs[0]
    for run in saved.runs:
        if all(json.dumps(run.settings[key]) == json.dumps(first.settings[key]) for key in ours):
            for key, (new_value, old_value) in differences(first.config, run.config):
                if key not in ("run.name", "run.dir"):
                    return f"{key} is {shown(old_value)}, not {shown(new_value)}"
            return ""
    return "it has other combinations"


def _adds_seeds(wanted: Sweep, saved: Sweep) -> bool:
    return wanted.seeds[0] == saved.seeds[0] and len(wanted.seeds) > len(saved.seeds)


def _damaged(path: Path, reason: str) -> StorageError:
    return StorageError(f"cannot read the plan '{path}': {reason}; remove it, and the same command plans again")
