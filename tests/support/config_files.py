"""Configurations written to files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainer.config.fields import Section
from trainer.config.loading import config_text
from trainer.config.problems import located_problems


def save_config(config: Section, path: Path, header: str = "") -> None:
    path.write_text(config_text(config, header), encoding="utf-8")


def config_problems(raw: dict[str, Any]) -> list[str]:
    return [problem.message for problem in located_problems(raw)]
