"""Estimates of an iteration's tokens and memory from the configuration, before a model is loaded."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import sys
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from trainer.config import PRESETS, Config
from trainer.files import open_regular
from trainer.memory.footprint import Footprint, footprint, precision_of
from trainer.memory.reward_models import reward_model_bytes
from trainer.memory.shape import SIZES, ModelShape, decoder_shape, folder_of, shape_of

_CHARACTERS_A_TOKEN = 4
_READ = 64 * 1024  # bytes of a prompt file that are read


class Estimate(NamedTuple):
    """Tokens and memory of one iteration; the tokens are upper bounds."""

    tokens_per_iteration: int
    """Tokens of the responses."""
    forward_tokens: int
    """Tokens, with prompts, that pass through a model: generated, scored by policy and reference, and trained on."""
    memory: Footprint | None
    """Memory of the tensors; None if the model's size is not known."""
    basis: str
    """Short description of what the figures are based on."""

    @property
    def memory_bytes(self) -> int | None:
        """Peak memory of the tensors; None if the model's size is not known."""
        return self.memory and self.memory.peak


def estimate(config: Config) -> Estimate:
    """Estimate the cost of one iteration. Reads only config.json of the models and the start of a prompt file."""
    rollout, ppo = config.rollout, config.ppo
    prompt = prompt_tokens(config)
    length = prompt + rollout.max_new_tokens
    written = rollout.batch_size * rollout.max_new_tokens
    joint = config.model.value_model == "head"
    passes = 1 + (2 if joint else 3) + ppo.epochs * (1 if joint else 2)
    forward = rollout.batch_size * length * passes
    shape, why_not = shape_of(config.model.path)
    basis = f"prompts of up to {prompt} tokens"
    if shape is None:
        return Estimate(written, forward, None, f"{basis}; {why_not}")
    memory = footprint_of(config, shape)
    return Estimate(written, forward, memory, f"{_in_words(config, shape)}, {basis}")


def footprint_of(config: Config, shape: ModelShape) -> Footprint:
    """Return the memory of `config` on this machine. Reads the start of a prompt file, and about reward models."""
    gpu = has_gpu()
    reward_models = reward_model_bytes(config, gpu=gpu)
    return footprint(config, shape, prompt_tokens(config), gpu=gpu, reward_models=reward_models)


def largest_fitting(config: Config, room: int) -> str:
    """Return the size of the largest model that `config` could train in `room` bytes, as in `1.7B in float32`.

    Sizes are those of the starter model and of Qwen3. Empty if none fits. Reads the start of a prompt file.
    """
    fitting = ""
    for name, settings in SIZES.items():
        shape = decoder_shape(settings)
        if footprint_of(config, shape).peak <= room:
            fitting = f"{name} in {precision_of(config, shape, gpu=has_gpu()).name}"
    return fitting


def model_is_here(path: str) -> bool:
    """Return whether the model at `path`, a folder or a name on the hub, is on this machine."""
    return folder_of(path) is not None


def prompt_tokens(config: Config) -> int:
    """Estimate the longest prompt from the start of the file; the longest allowed if the file cannot be read."""
    name, allowed = config.data.prompts, config.data.max_prompt_tokens
    try:
        shipped = PRESETS / "prompts" / f"{name}.jsonl"
        path = shipped if shipped.parent == PRESETS / "prompts" and shipped.exists() else Path(name).expanduser()
        about = path.stat()
        longest = _longest_prompt(path, config.data.column, (about.st_mtime_ns, about.st_size))
    except (OSError, ValueError, RuntimeError):  # name too long or with a null byte, unknown home folder
        return allowed
    return min(longest or allowed, allowed)


def _in_words(config: Config, shape: ModelShape) -> str:
    """Return the number of weights and how they are held, as in `596M parameters in bfloat16`."""
    count = shape.parameters
    size = f"{count / 1e9:.1f}B" if count >= 1e9 else f"{count / 1e6:.0f}M"
    return f"{size} parameters in {precision_of(config, shape, gpu=has_gpu()).name}"


@functools.lru_cache(maxsize=16)
def _longest_prompt(path: Path, column: str, stamp: tuple[int, int]) -> int:
    """Return the longest prompt in the first lines of a .txt or .jsonl file, in tokens; 0 if there is none.

    stamp: the file's modification time and size, so that the cache notices a change.
    """
    if path.suffix.lower() not in (".jsonl", ".txt"):
        return 0
    with open_regular(path) as file:
        lines = file.read(_READ).decode("utf-8", "replace").splitlines() or [""]
    if path.suffix.lower() == ".jsonl":
        lines = [_column(line, column) for line in lines]
    return math.ceil(max(map(len, lines)) / _CHARACTERS_A_TOKEN)


def _column(line: str, column: str) -> str:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return ""
    return str(row.get(column, "")) if isinstance(row, dict) else ""


@functools.cache
def has_gpu() -> bool:
    """Return whether MLX is installed with GPU support, without loading MLX."""
    if sys.platform == "darwin":
        return True
    for name in ("mlx-cuda-13", "mlx-cuda-12", "mlx-cuda"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            metadata.distribution(name)
            return True
    return False
