"""The schema of a reward model's run: a separate tree that shares sections with PPO's."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from trainer.config.fields import FilePath, Section, setting
from trainer.config.schema import BackboneConfig, CheckpointConfig, RunFolderConfig

_INSTRUCT_GPT = "Ouyang et al. 2022 (InstructGPT)"
_LLAMA_2 = "Touvron et al. 2023 (Llama 2), the smaller margin"


class PreferenceDataConfig(Section):
    """[data]: the preferences."""

    preferences: FilePath = setting(
        "preferences.db",
        "A preferences.db, a .jsonl, .jsonl.gz, .json, .csv or .parquet file, a folder or a datasets name.",
        min_length=1,
    )
    format: str = setting("auto", "Format of a file; auto tells it by the columns of the first row.", min_length=1)
    split: str = setting("train", "Split of a datasets name.", min_length=1)
    skip_broken: bool = setting(False, "Leave out rows that break the format, instead of refusing the file.")
    chat: Literal["auto", "always", "never"] = setting(
        "auto",
        "Render prompts by the chat template: auto for messages only, always for strings too, or never.",
    )
    system: str = setting("", "System message put before every chat prompt that has none.")
    max_tokens: int = setting(512, "Longest prompt and completion together.", unit="tokens", ge=1)
    too_long: Literal["drop", "truncate"] = setting(
        "truncate", "What happens to a longer one: keep its last tokens, or drop the whole comparison."
    )
    eval_fraction: float = setting(
        0.1, "Share of the comparisons held out; those of a prompt stay together.", ge=0, lt=1
    )
    limit: int = setting(0, "Use the first so many preferences; 0 for all.", unit="preferences", ge=0)


class RewardTrainConfig(Section):
    """[train]: the algorithm."""

    epochs: int = setting(
        1, "Passes over the comparisons.", ge=1, le=100, source=_INSTRUCT_GPT, advice="More than one soon overfits."
    )
    batch_size: int = setting(16, "Comparisons of one optimiser step.", unit="comparisons", ge=1, le=65536)
    margin: float = setting(
        0.33,
        "By how much the better one is to lead, for each step of strength above the first.",
        unit="logits",
        ge=0,
        le=10,
        source=_LLAMA_2,
    )
    rankings: Literal["pairs", "plackett-luce"] = setting(
        "pairs",
        "Loss of a ranking of three or more: the mean over its pairs, or the choice of the best, again and again.",
        source=_INSTRUCT_GPT,
    )
    patience: int = setting(
        3,
        "End the run after so many evaluations without a better held-out log-loss, at the best; 0 for never.",
        unit="evaluations",
        ge=0,
    )
    reference: int = setting(
        256, "Training completions whose rewards are brought to mean 0, deviation 1.", unit="completions", ge=2
    )


class RewardOptimConfig(Section):
    """[optim]: learning rate and memory of the update."""

    lr: float = setting(1e-4, "Learning rate of adapter and head.", ge=0, le=1)
    schedule: Literal["constant", "linear", "cosine"] = setting(
        "cosine", "Course of the learning rate after the warm-up; linear and cosine end at 0."
    )
    warmup: float = setting(0.05, "Share of the steps over which the learning rate rises from 0.", ge=0, le=1)
    beta1: float = setting(0.9, "Adam's first moment.", ge=0, lt=1)
    beta2: float = setting(0.999, "Adam's second moment.", ge=0, lt=1)
    eps: float = setting(1e-8, "Adam's epsilon.", gt=0)
    weight_decay: float = setting(0.0, "Decoupled weight decay.", ge=0, le=1)
    max_grad_norm: float = setting(1.0, "The gradient is scaled down to this global norm.", gt=0)
    micro_batch_tokens: int = setting(
        2048, "Most tokens, padding counted, in one forward and backward pass.", unit="tokens", ge=1
    )


class RewardEvalConfig(Section):
    """[eval]: the held-out comparisons."""

    every: int = setting(
        50,
        "Evaluate after every so many steps, besides before the first and after the last; 0 for those only.",
        unit="steps",
        ge=0,
    )


class TrackedRunConfig(RunFolderConfig):
    """[run]: name, place, seed."""

    trackers: list[Literal["tensorboard", "wandb", "trackio"]] = setting([], "Trackers that get the metrics too.")


class RewardModelConfig(Section):
    """The configuration of a reward model: what its training does, and all that it does."""

    kind: Literal["reward-model"] = "reward-model"
    model: BackboneConfig = Field(default_factory=BackboneConfig)
    data: PreferenceDataConfig = Field(default_factory=PreferenceDataConfig)
    train: RewardTrainConfig = Field(default_factory=RewardTrainConfig)
    optim: RewardOptimConfig = Field(default_factory=RewardOptimConfig)
    eval: RewardEvalConfig = Field(default_factory=RewardEvalConfig)
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig)
    run: TrackedRunConfig = Field(default_factory=TrackedRunConfig)


def resolve_reward_model_paths(config: RewardModelConfig, base: Path) -> RewardModelConfig:
    """Return `config` with paths relative to `base` made absolute, so that the run resumes from any folder."""

    def absolute(path: str) -> str:
        return str((base / path).resolve()) if path and (base / path).exists() else path

    model = {"adapter": absolute(config.model.adapter)}
    if config.model.path != "starter":  # a name, even beside a folder called so
        model["path"] = absolute(config.model.path)
    return config.model_copy(
        update={
            "model": config.model.model_copy(update=model),
            "data": config.data.model_copy(update={"preferences": absolute(config.data.preferences)}),
            "run": config.run.model_copy(update={"dir": str((base / config.run.dir).resolve())}),
        }
    )
