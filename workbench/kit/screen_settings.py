"""Settings of the screen that last between two starts, theme and charts, in one small TOML file."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import tomli_w

from trainer.files import read_toml, write_whole

FILE = "workbench.toml"
LATEST = 2**36  # bound of times that have a date, unix seconds
_VISITS = 50


@dataclass
class ScreenSettings:
    """The saved settings. Unknown or unusable entries of the file are ignored."""

    theme: str = ""
    metrics: list[str] = field(default_factory=list)  # shown, in order; empty for the default ones
    label_facts: bool = True  # the Label pane shows authors, scores and lengths after the choice
    all_settings: bool = False  # the Config pane shows all settings, not only the basic ones
    visits: dict[str, float] = field(default_factory=dict)  # when it was last closed, unix seconds, by workspace

    @classmethod
    def load(cls, folder: Path) -> ScreenSettings:
        """Read the file in `folder`; missing settings have their defaults."""
        try:
            raw = read_toml(folder / FILE)
        except (OSError, ValueError):
            return cls()
        settings = cls()
        for name, kind in (("theme", str), ("label_facts", bool), ("all_settings", bool)):
            if isinstance(raw.get(name), kind):
                setattr(settings, name, raw[name])
        if isinstance(metrics := raw.get("metrics"), list) and all(isinstance(name, str) for name in metrics):
            settings.metrics = metrics
        if isinstance(visits := raw.get("visits"), dict):
            settings.visits = {
                folder: float(at) for folder, at in visits.items() if isinstance(at, int | float) and 0 <= at < LATEST
            }
        return settings

    def visit(self, workspace: Path) -> None:
        """Note that the workbench closes in this workspace now; only the newest visits are kept."""
        self.visits.pop(str(workspace), None)
        self.visits[str(workspace)] = time.time()
        self.visits = dict(list(self.visits.items())[-_VISITS:])

    def save(self, folder: Path) -> None:
        """Write the file, whole or not at all; do nothing if the folder cannot be written."""
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(folder / FILE, tomli_w.dumps(asdict(self)))
