"""Runs and reward models on disk, as far as the search for things to label reads them."""

from __future__ import annotations

from pathlib import Path

from scripted_run import make_run

from trainer.runs.checkpoint_files import write_state
from trainer.runs.folder import RunFolder


def run_with_samples(name: str) -> Path:
    """Make a finished run in runs/ that kept the samples of an iteration."""
    folder = RunFolder(make_run(name).resolve())
    folder.samples.mkdir()
    folder.samples_file(2).touch()
    return folder.root


def add_checkpoint(run: Path, **files: str) -> None:
    """Give a run a whole checkpoint."""
    checkpoint = RunFolder(run).checkpoint(2)
    checkpoint.mkdir(parents=True)
    for name, text in files.items():
        (checkpoint / f"{name}.json").write_text(text)
    write_state(checkpoint, {})


def reward_model(name: str) -> Path:
    """Make a trained reward model in runs/."""
    folder = make_run(name, run_kind="reward-model").resolve()
    config = folder / "config.toml"
    config.write_text(f'kind = "reward-model"\n{config.read_text()}')
    add_checkpoint(folder, reward_model="{}")
    return folder
