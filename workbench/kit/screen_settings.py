"""Settings of the screen that last between two starts, theme and charts, in one small TOML file."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import tomli_w

from trainer.files import read_toml, write_whole

FILE = "workbench.toml"


@dataclass
class ScreenSettings:
    """The saved settings. Unknown or unusable entries of the file are ignored."""

    theme: str = ""
    metrics: list[str] = field(default_factory=list)  # shown, in order; empty for the default ones
    label_facts: bool = True  # the Label pane shows authors, scores and lengths after the choice

    @classmethod
    def load(cls, folder: Path) -> ScreenSettings:
        """Read the file in `folder`; missing settings have their defaults."""
        try:
            raw = read_toml(folder / FILE)
        except (OSError, ValueError):
            return cls()
        settings = cls()
        if isinstance(theme := raw.get("theme"), str):
            settings.theme = theme
        if isinstance(label_facts := raw.get("label_facts"), bool):
            settings.label_facts = label_facts
        if isinstance(metrics := raw.get("metrics"), list) and all(isinstance(name, str) for name in metrics):
            settings.metrics = metrics
        return settings

    def save(self, folder: Path) -> None:
        """Write the file, whole or not at all; do nothing if the folder cannot be written."""
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(folder / FILE, tomli_w.dumps(asdict(self)))
