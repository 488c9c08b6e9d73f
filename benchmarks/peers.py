"""Environments of the libraries that the benchmarks compare with, each with its pinned requirements."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Peer:
    """Library with an environment of its own, `.venv-NAME`, from `requirements-NAME.txt`."""

    name: str
    size: str  # of the environment on disk

    @property
    def environment(self) -> Path:
        """Return the environment's folder."""
        return HERE / f".venv-{self.name}"

    @property
    def requirements(self) -> Path:
        """Return the file of the pinned requirements."""
        return HERE / f"requirements-{self.name}.txt"

    def python(self) -> Path:
        """Return the environment's interpreter, creating it on first use and when its requirements change.

        Raises SystemExit if pip fails.
        """
        folder, python = self.environment, self.environment / "bin" / "python"
        stamp = folder / self.requirements.name
        requirements = self.requirements.read_text(encoding="utf-8")
        if stamp.is_file() and stamp.read_text(encoding="utf-8") == requirements:
            return python
        print(f"creating the environment {folder} (once; about {self.size})", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        (folder / ".gitignore").write_text("*\n", encoding="utf-8")
        pip = subprocess.run([python, "-m", "pip", "install", "--quiet", "-r", self.requirements], check=False)
        if pip.returncode:
            option = f"--{self.name}-python"
            raise SystemExit(
                f"could not create the environment {folder}: see pip's message above, or create one from "
                f"{self.requirements} and pass its interpreter with {option}"
            )
        stamp.write_text(requirements, encoding="utf-8")
        return python


TRL = Peer("trl", size="1.5 GB")
MLX_LM_LORA = Peer("mlx-lm-lora", size="700 MB")
