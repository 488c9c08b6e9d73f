"""Workload of a comparison with TRL, the commands that run it on each side, and the environment of TRL."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tomli_w

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
STORY_OPENINGS = ROOT / "trainer" / "presets" / "prompts" / "story-openings.jsonl"

_PRINT_STARTER = """
import sys
from trainer.errors import TrainerError
from trainer.models.starter import starter_model
try:
    print(starter_model())
except TrainerError as error:
    sys.exit(str(error))
"""


@dataclass(frozen=True)
class Workload:
    """Work of every side: one batch of prompts per iteration, the first iteration for warm-up."""

    model: str
    prompts: list[str]
    batch_size: int  # sequences of an iteration
    max_new_tokens: int
    epochs: int
    samples_per_prompt: int = 1
    minibatches: int = 1
    lora_rank: int = 8
    lora_scale: float = 2.0
    lora_targets: tuple[str, ...] = ("q_proj", "v_proj")
    learning_rate: float = 1e-5
    temperature: float = 1.0
    kl_coef: float = 0.05
    seed: int = 0
    reward: str = "lexicon"  # or "sums", or the folder of a sequence classifier

    @property
    def iterations(self) -> int:
        """Return the number of iterations of a run, including warm-up."""
        return len(self.prompts) * self.samples_per_prompt // self.batch_size

    @property
    def new_tokens(self) -> int:
        """Return the number of tokens that an iteration generates: every response has the full length."""
        return self.batch_size * self.max_new_tokens


def read_prompts(path: Path, count: int) -> list[str]:
    """Return the first `count` prompts of a .jsonl file with a `prompt` in each line.

    Raises SystemExit if there is no such file or it has fewer.
    """
    if not path.is_file():
        raise SystemExit(f"--prompts {path}: no such file: name a .jsonl file with a 'prompt' in each line")
    lines = path.read_text(encoding="utf-8").splitlines()
    prompts = [json.loads(line)["prompt"] for line in lines if line.strip()]
    if len(prompts) < count:
        raise SystemExit(f"--prompts {path} has {len(prompts)} prompts, but {count} are needed: lower --iterations")
    return prompts[:count]


def resolve_model(model: str) -> str:
    """Return the folder of the model. Raises SystemExit if there is none."""
    if model != "starter":
        if not Path(model).is_dir():
            raise SystemExit(f"--model {model}: no such folder: use 'starter' or a folder with weights and tokenizer")
        return str(Path(model).resolve())
    return _printed(_PRINT_STARTER, "--model starter")


def _printed(program: str, name: str) -> str:
    """Return what a Python program prints. Raises SystemExit with `name` if it fails.

    Another process runs it: measured processes inherit the memory peak of this one.
    """
    child = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    if child.returncode:
        raise SystemExit(f"{name}: {last_line(child.stderr)}")
    return child.stdout.strip()


def our_command(workload: Workload, folder: Path, settings: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Write a configuration to `folder`, and return the command that trains it without a screen.

    `settings` holds, by section, what the configuration has beside the workload.
    """
    prompts = folder / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": p}) + "\n" for p in workload.prompts), encoding="utf-8")
    config: dict[str, dict[str, Any]] = {
        "model": {
            "path": workload.model,
            "lora_rank": workload.lora_rank,
            "lora_scale": workload.lora_scale,
            "lora_targets": list(workload.lora_targets),
        },
        "data": {"prompts": str(prompts), "chat": "never", "eval_fraction": 0.0, "shuffle": False},
        "rollout": {
            "batch_size": workload.batch_size,
            "samples_per_prompt": workload.samples_per_prompt,
            "max_new_tokens": workload.max_new_tokens,
            "temperature": workload.temperature,
            "ignore_stop": True,
        },
        "reward": {"sources": ["lexicon"]},
        "ppo": {
            "iterations": workload.iterations,
            "epochs": workload.epochs,
            "minibatches": workload.minibatches,
            "kl_coef": workload.kl_coef,
        },
        "optim": {"policy_lr": workload.learning_rate, "value_lr": workload.learning_rate},
        "eval": {"every": 0},
        "checkpoint": {"every": 0},
        "run": {"dir": str(folder / "runs"), "seed": workload.seed},
    }
    for section, values in settings.items():
        config[section] |= values
    path = folder / "config.toml"
    path.write_text(tomli_w.dumps(config), encoding="utf-8")
    return [sys.executable, "-m", "workbench", "--no-ui", "--config", str(path), "--display", "json"]


def peer_command(workload: Workload, folder: Path, python: Path, script: str, flags: Sequence[str] = ()) -> list[str]:
    """Write the workload to `folder`, and return the command that runs a script of this folder on it."""
    path = folder / "workload.json"
    path.write_text(json.dumps(asdict(workload)), encoding="utf-8")
    return [str(python), str(HERE / script), str(path), *flags]


def last_line(text: str) -> str:
    """Return the last line of a failed program's messages, which says what was wrong."""
    lines = text.strip().splitlines()
    return lines[-1] if lines else "it wrote no message"


def trl_python() -> Path:
    """Return the interpreter of the environment with TRL, creating it on first use and when its requirements change.

    Raises SystemExit if pip fails.
    """
    folder, pinned = HERE / ".venv-trl", HERE / "requirements-trl.txt"
    python, stamp, requirements = folder / "bin" / "python", folder / pinned.name, pinned.read_text(encoding="utf-8")
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == requirements:
        return python
    print(f"creating the environment {folder} (once; about 1.5 GB)", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
    (folder / ".gitignore").write_text("*\n", encoding="utf-8")
    pip = subprocess.run([python, "-m", "pip", "install", "--quiet", "-r", pinned], check=False)
    if pip.returncode:
        raise SystemExit(
            f"could not create the environment {folder}: see pip's message above, or create one from {pinned} and pass "
            "its interpreter with --trl-python"
        )
    stamp.write_text(requirements, encoding="utf-8")
    return python
