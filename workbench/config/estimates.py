"""Cost of a configuration before a model is loaded: tokens and memory; and the files that it lacks."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from trainer.config import PRESETS, AnyConfig, Config
from trainer.config.pairs import DPOConfig, PreferenceDataConfig
from trainer.config.reward_sources import JudgeSource, ModelSource, PythonSource, VerifiedSource
from trainer.config.schema import DataConfig
from trainer.errors import TrainerError
from trainer.files import open_regular
from trainer.memory.estimate import footprint_of as estimate_of_memory
from trainer.memory.footprint import Footprint, held_model
from trainer.memory.shape import SIZES, ModelShape, decoder_shape, shape_of
from trainer.preferences.records import Preference, length_in_characters
from workbench.config.document import Problem

_CHARACTERS_A_TOKEN = 4
_READ = 64 * 1024  # bytes of a prompt file that are read
_PREFERENCES = 256  # that are read, from the first


class Estimate(NamedTuple):
    """Tokens and memory of one iteration of PPO, or of one step on preferences; the tokens are upper bounds."""

    tokens_per_iteration: int
    """Tokens of the responses; on preferences, of the pairs."""
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


def estimate(config: AnyConfig) -> Estimate:
    """Estimate the cost of one iteration or step.

    Reads only config.json of the models, and the start of the prompts or the first preferences.
    """
    longest = longest_tokens(config)
    if isinstance(config, Config):
        rollout, joint = config.rollout, config.model.value_model != "adapter"
        passes = 1 + (2 if joint else 3) + config.ppo.epochs * (1 if joint else 2)
        tokens = rollout.batch_size * rollout.max_new_tokens
        forward = rollout.batch_size * (longest + rollout.max_new_tokens) * passes
    else:
        tokens = 2 * config.train.batch_size * longest
        forward = tokens * (2 if isinstance(config, DPOConfig) else 1)  # the reference reads them too
    basis = f"{'prompts' if isinstance(config, Config) else 'comparisons'} of up to {longest} tokens"
    shape, why_not = shape_of(config.model.path)
    if shape is None:
        return Estimate(tokens, forward, None, f"{basis}; {why_not}")
    count, precision = shape.parameters, held_model(config.model, shape, gpu=has_gpu()).precision
    size = f"{count / 1e9:.1f}B" if count >= 1e9 else f"{count / 1e6:.0f}M"
    memory = footprint_of(config, shape)
    return Estimate(tokens, forward, memory, f"{size} parameters in {precision}, {basis}")


def footprint_of(config: AnyConfig, shape: ModelShape) -> Footprint:
    """Return the memory of `config` on this machine. Reads the start of its data, and about reward models."""
    return estimate_of_memory(config, shape, longest_tokens(config), gpu=has_gpu())


def largest_fitting(config: Config, room: int) -> str:
    """Return the size of the largest model that `config` could train in `room` bytes, as in `1.7B in float32`.

    Sizes are those of the starter model and of Qwen3. Empty if none fits. Reads the start of a prompt file.
    """
    fitting = ""
    for name, settings in SIZES.items():
        shape = decoder_shape(settings)
        if footprint_of(config, shape).peak <= room:
            fitting = f"{name} in {held_model(config.model, shape, gpu=has_gpu()).precision}"
    return fitting


def longest_tokens(config: AnyConfig) -> int:
    """Estimate the longest prompt of PPO, or the longest prompt with a completion of a run on preferences, in tokens.

    Reads the start of the data. The longest allowed if it cannot be read, and for a dataset.
    """
    allowed = config.data.max_prompt_tokens if isinstance(config, Config) else config.data.max_tokens
    try:
        if isinstance(config, Config):
            longest = max(map(len, _prompts(config.data)), default=0)
        else:
            read = [one.comparison for one in islice(_preferences(config.data), _PREFERENCES)]
            size = length_in_characters
            longest = max((size(one.prompt) + max(map(size, one.completions)) for one in read), default=0)
    # A name too long or with a null byte, an unknown home folder, or what the run reports when it reads the data.
    except (OSError, ValueError, RuntimeError, TrainerError):
        return allowed
    return min(math.ceil(longest / _CHARACTERS_A_TOKEN) or allowed, allowed)


def file_problems(config: Config) -> list[Problem]:
    """Return what is wrong with model, prompts and reward files of `config`, by the trainer's own checks; for a thread.

    Nothing is fetched and no code is run, so names on the hub and what is inside a reward's file are not checked.
    """
    from trainer.data import check_prompts
    from trainer.rewards import verified_reward
    from trainer.rewards.code import code_of
    from trainer.rewards.judge_rubric import read_rubric

    model, sources = config.model, config.reward.sources
    checks: list[tuple[str, Callable[[], object]]] = []
    if model.path != "starter" or model.adapter:
        from trainer.models.backbone import check_local  # loads mlx

        checks.append(("model.path", partial(check_local, model)))
    if model.policy_init or model.value_init:
        from trainer.engine.initial import check_init

        for key, other in (("policy_init", "value_init"), ("value_init", "policy_init")):
            if getattr(model, key):
                checks.append((f"model.{key}", partial(check_init, model.model_copy(update={other: ""}))))
    checks.append(("data.prompts", partial(check_prompts, config.data)))
    checks += [("reward.sources", partial(code_of, one.path)) for one in sources if isinstance(one, PythonSource)]
    checks += [("reward.sources", partial(verified_reward, one)) for one in sources if isinstance(one, VerifiedSource)]
    checks += [("reward.sources", partial(read_rubric, one)) for one in sources if isinstance(one, JudgeSource)]
    if any(isinstance(source, ModelSource) for source in sources):
        from trainer.rewards.model_reward import unfinished_models

        checks.append(("reward.sources", partial(unfinished_models, config)))
    found = []
    for key, check in checks:
        try:
            check()
        except TrainerError as error:
            found.append(Problem(key, str(error), None))
    return found


def _preferences(data: PreferenceDataConfig) -> Iterator[Preference]:
    """Yield preferences, read as they are needed; none from a source that can only be read as a whole."""
    from trainer.preferences.formats import read_preferences  # 0.1 s
    from trainer.preferences.store import PreferenceStore

    path = Path(data.preferences).expanduser()
    if path.suffix.lower() in (".db", ".sqlite", ".sqlite3"):
        with PreferenceStore(path, create=False) as store:
            yield from store.preferences()
    elif path.is_file() and path.name.lower().endswith((".jsonl", ".jsonl.gz", ".csv", ".parquet")):
        yield from read_preferences(str(path), format=data.format, skip_broken=data.skip_broken)


def _prompts(data: DataConfig) -> Iterator[str]:
    """Yield the prompts in the first lines of a .txt or .jsonl file, or of a shipped set."""
    shipped = PRESETS / "prompts" / f"{data.prompts}.jsonl"
    path = shipped if shipped.parent == PRESETS / "prompts" and shipped.exists() else Path(data.prompts).expanduser()
    kind = path.suffix.lower()
    if kind not in (".jsonl", ".txt"):
        return
    with open_regular(path) as file:
        lines = file.read(_READ).decode("utf-8", "replace").splitlines()
    for line in lines:
        if kind == ".txt":
            yield line
            continue
        with contextlib.suppress(ValueError, RecursionError):
            row = json.loads(line)
            yield str(row.get(data.column, "")) if isinstance(row, dict) else ""


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
