"""Where a command's configuration comes from: a preset or file with --set on top, or the run that is resumed."""

from __future__ import annotations

import argparse
from pathlib import Path

from trainer.config import Config, load_config, parse_overrides
from trainer.config.schema import RunConfig
from trainer.errors import UsageError
from workbench.text import visible

# Besides the fields that may change while a run is under way.
_RESUMABLE = ("ppo.iterations", "checkpoint.every", "eval.every", "run.trackers")
_NAMED = 5  # runs that an error lists


def configuration(args: argparse.Namespace) -> Config:
    """The configuration of --config with every --set and --name on top. Raises UsageError and ConfigError."""
    overrides = parse_overrides(args.overrides)
    if getattr(args, "name", None) is not None:
        overrides["run"] = {**overrides.get("run", {}), "name": args.name}
    return load_config(args.config, overrides)


def resumed(args: argparse.Namespace) -> tuple[Config, Path]:
    """Configuration and folder of the run that --resume names, as a path or by its name under the runs' folder.

    Raises UsageError when there is no such run, or when an option would change what a run cannot change under way.
    """
    for option, value in (("--config", args.config_given), ("--name", args.name)):
        if value is not None:
            raise UsageError(f"{option} {value} cannot go with --resume: the run's own config.toml says it; leave it out")
    folder = find_run(args.resume)
    check_resumable(args.overrides)
    return load_config(folder / "config.toml", parse_overrides(args.overrides)), folder


def find_run(name: str) -> Path:
    """The folder of the run `name`: a path, or a name under run.dir. Raises UsageError, naming the newest runs."""
    runs = Path(RunConfig().dir)
    for folder in (Path(name), runs / name):
        if (folder / "config.toml").is_file():
            return folder
    found = sorted(runs.glob("*/config.toml"), key=lambda path: path.stat().st_mtime, reverse=True)
    names = ", ".join(visible(path.parent.name) for path in found[:_NAMED])
    known = f"the newest in '{runs}' are {names}" if names else f"there are none in '{runs}'; give the run's folder"
    raise UsageError(f"no run '{name}': {known}")


def check_resumable(assignments: list[str]) -> None:
    """Raise UsageError if a --set would change a field that shapes the run from its first iteration on."""
    from trainer.config.reference import reference_rows

    allowed = [row.key for row in reference_rows() if row.live or row.key in _RESUMABLE]
    for assignment in assignments:
        key = assignment.partition("=")[0].strip()
        if key not in allowed:
            raise UsageError(f"--set {key} cannot change in a resumed run; what can: {', '.join(allowed)}")
