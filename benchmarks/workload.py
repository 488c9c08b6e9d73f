"""Workload of bench_iteration.py, and the commands that run it on both sides."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import tomli_w

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
TRL_REQUIREMENTS = HERE / "requirements-trl.txt"
TRL_ENVIRONMENT = HERE / ".venv-trl"
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
    """Work of both sides: one batch of prompts per iteration, the first iteration for warm-up."""

    model: str
    prompts: list[str]
    batch_size: int
    max_new_tokens: int
    epochs: int
    minibatches: int = 1
    lora_rank: int = 8
    lora_scale: float = 2.0
    lora_targets: tuple[str, ...] = ("q_proj", "v_proj")
    learning_rate: float = 1e-5
    temperature: float = 1.0
    kl_coef: float = 0.05
    seed: int = 0

    @property
    def iterations(self) -> int:
        """Return the number of iterations of a run, including warm-up."""
        return len(self.prompts) // self.batch_size

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
    """Return the folder of the model. Raises SystemExit if there is none.

    A child process resolves 'starter': measured processes inherit the memory peak of this one.
    """
    if model != "starter":
        if not Path(model).is_dir():
            raise SystemExit(f"--model {model}: no such folder: use 'starter' or a folder with weights and tokenizer")
        return str(Path(model).resolve())
    command = [sys.executable, "-c", _PRINT_STARTER]
    child = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if child.returncode:
        raise SystemExit(f"--model starter: {last_line(child.stderr)}")
    return child.stdout.strip()


def trl_python() -> Path:
    """Return the interpreter of TRL's environment, creating it on first use and when its requirements change."""
    stamp = TRL_ENVIRONMENT / TRL_REQUIREMENTS.name
    python = TRL_ENVIRONMENT / "bin" / "python"
    requirements = TRL_REQUIREMENTS.read_text(encoding="utf-8")
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == requirements:
        return python
    print(f"creating TRL's environment in {TRL_ENVIRONMENT} (once; about 1.5 GB)", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", "--clear", TRL_ENVIRONMENT], check=True)
    (TRL_ENVIRONMENT / ".gitignore").write_text("*\n", encoding="utf-8")
    pip = subprocess.run([python, "-m", "pip", "install", "--quiet", "-r", TRL_REQUIREMENTS], check=False)
    if pip.returncode:
        raise SystemExit("could not create TRL's environment: see pip's message above, or pass --trl-python")
    stamp.write_text(requirements, encoding="utf-8")
    return python


def our_command(workload: Workload, folder: Path, *, value_model: str) -> list[str]:
    """Write a configuration of the workload to `folder`, and return the command that trains it without a screen."""
    prompts = folder / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": p}) + "\n" for p in workload.prompts), encoding="utf-8")
    config = {
        "model": {
            "path": workload.model,
            "lora_rank": workload.lora_rank,
            "lora_scale": workload.lora_scale,
            "lora_targets": list(workload.lora_targets),
            "value_model": value_model,
        },
        "data": {"prompts": str(prompts), "chat": "never", "eval_fraction": 0.0, "shuffle": False},
        "rollout": {
            "batch_size": workload.batch_size,
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
    path = folder / "config.toml"
    path.write_text(tomli_w.dumps(config), encoding="utf-8")
    return [sys.executable, "-m", "workbench", "--no-ui", "--config", str(path), "--display", "json"]


def trl_command(workload: Workload, folder: Path, *, python: Path, reward_model: bool, value_lora: bool) -> list[str]:
    """Write the workload to `folder`, and return the command that runs trl_ppo.py on it in TRL's environment."""
    path = folder / "workload.json"
    path.write_text(json.dumps(asdict(workload)), encoding="utf-8")
    flags = [*(["--reward-model"] if reward_model else []), *(["--value-lora"] if value_lora else [])]
    return [str(python), str(HERE / "trl_ppo.py"), str(path), *flags]


def last_line(text: str) -> str:
    """Return the last line of a failed program's messages, which says what was wrong."""
    lines = text.strip().splitlines()
    return lines[-1] if lines else "it wrote no message"
