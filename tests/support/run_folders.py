"""Run folders as the trainer leaves them."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trainer.config import Config, validate
from trainer.runs.checkpoint_files import write_state
from trainer.runs.folder import RunFolder


def config(runs_dir: Path, name: str = "", iterations: int = 10) -> Config:
    return validate({"run": {"dir": str(runs_dir), "name": name, "seed": 5}, "ppo": {"iterations": iterations}})


def checkpoint(folder: RunFolder, iteration: int) -> Path:
    """Make a whole checkpoint, as the trainer leaves it."""
    path = folder.checkpoint(iteration)
    (path / "policy").mkdir(parents=True)
    (path / "policy" / "adapters.safetensors").write_bytes(b"x" * 100)
    write_state(path, {})
    return path


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Let writes beyond `size` bytes fail as on a full disk: after the bytes that still fit."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
