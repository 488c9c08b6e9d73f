"""Configurations written to files."""

from __future__ import annotations

from pathlib import Path

from trainer.config.fields import Section
from trainer.config.loading import config_text


def save_config(config: Section, path: Path, header: str = "") -> None:
    path.write_text(config_text(config, header), encoding="utf-8")
