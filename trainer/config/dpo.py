"""The schema of a DPO run: a separate tree that shares sections with the schemas of reward models and PPO."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from trainer.config.fields import Section, setting
from trainer.config.loading import absolute, resolve_paths
from trainer.config.reward_model import PreferenceDataConfig, RewardOptimConfig, TrackedRunConfig
from trainer.config.reward_sources import RewardSource
from trainer.config.schema import (
    BackboneConfig,
    CheckpointConfig,
    Config,
    RewardConfig,
    RolloutConfig,
)

_DPO = "Rafailov et al. 2023 (DPO)"


class DPODataConfig(PreferenceDataConfig):
    """[data]: the preferences."""

    max_tokens: int = setting(512, "Longest prompt and completion together.", unit="tokens", ge=2)
    end_token: bool = setting(
        True,
        "Let the model's end token follow each completion, to be learnt with it.",
        advice="Set it to false where most completions were cut short.",
    )


class DPOTrainConfig(Section):
    """[train]: the algorithm."""

    loss: Literal["sigmoid", "ipo"] = setting(
        "sigmoid",
        "sigmoid: log-loss of the implicit reward; ipo: squared distance of its lead, a token, from 1 / (2 beta).",
        source=_DPO,
    )
    beta: float = setting(
        0.1,
        "How strongly the policy is held to the reference.",
        gt=0,
        le=100,
        source=_DPO,
        advice="KL too high: raise it. Nothing is learned: lower it.",
    )
    label_smoothing: float = setting(
        0.0, "Share of the labels that are taken to be wrong (conservative DPO); sigmoid only.", ge=0, lt=0.5
    )
    epochs: int = setting(1, "Passes over the comparisons.", ge=1, le=100, advice="More than one soon overfits.")
    batch_size: int = setting(16, "Comparisons of one optimiser step.", unit="comparisons", ge=1, le=65536)

    @field_validator("label_smoothing")
    @classmethod
    def _belongs_to_the_loss(cls, value: float, info: ValidationInfo) -> float:
        if value and info.data.get("loss") == "ipo":
            raise ValueError("goes with train.loss = 'sigmoid' only: leave it at 0, or choose that loss")
        return value


class DPOOptimConfig(RewardOptimConfig):
    """[optim]: learning rate and memory of the update."""

    lr: float = setting(1e-4, "Learning rate of the policy's adapter.", ge=0, le=1)


class DPORewardConfig(RewardConfig):
    """[reward]: what the policy's samples are scored by, as those of a PPO run; nothing is trained on it."""

    sources: list[RewardSource] = setting(
        [], "As in a PPO run's configuration, to be compared with it; empty to sample nothing."
    )


class DPOEvalConfig(Section):
    """[eval]: held-out comparisons, and samples after their prompts where there is a reward."""

    every: int = setting(
        50,
        "Evaluate after every so many steps, besides before the first and after the last; 0 for those only.",
        unit="steps",
        ge=0,
    )
    prompts: int = setting(16, "Held-out prompts that are sampled after, the same ones each time.", ge=1)


class DPOConfig(Section):
    """The configuration of a DPO run: what it does, and all that it does.

    [rollout] is PPO's table, so that one text serves both; what concerns its training batch plays no part.
    """

    kind: Literal["dpo"] = "dpo"
    model: BackboneConfig = Field(default_factory=BackboneConfig)
    data: DPODataConfig = Field(default_factory=DPODataConfig)
    train: DPOTrainConfig = Field(default_factory=DPOTrainConfig)
    optim: DPOOptimConfig = Field(default_factory=DPOOptimConfig)
    rollout: RolloutConfig = Field(default_factory=RolloutConfig)
    reward: DPORewardConfig = Field(default_factory=DPORewardConfig)
    eval: DPOEvalConfig = Field(default_factory=DPOEvalConfig)
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig)
    run: TrackedRunConfig = Field(default_factory=TrackedRunConfig)


def as_ppo(config: DPOConfig) -> Config:
    """Return a PPO configuration with the model, the sampling and the reward of `config`."""
    tables: dict[str, Any] = {
        name: getattr(config, name).model_dump() for name in ("model", "rollout", "run", "reward")
    }
    if not config.reward.sources:
        del tables["reward"]  # PPO needs at least one source
    tables["ppo"] = {"estimator": "reinforce", "kl_coef": 0.0}  # no critic and no penalty
    return Config.model_validate({**tables, "optim": {"micro_batch_tokens": config.optim.micro_batch_tokens}})


def resolve_dpo_paths(config: DPOConfig, base: Path) -> DPOConfig:
    """Return `config` with paths relative to `base` made absolute, so that the run resumes from any folder."""
    resolved = resolve_paths(as_ppo(config), base)
    preferences = absolute(config.data.preferences, base)
    model = {"path": resolved.model.path, "adapter": resolved.model.adapter}
    sources = resolved.reward.sources if config.reward.sources else []
    return config.model_copy(
        update={
            "model": config.model.model_copy(update=model),
            "data": config.data.model_copy(update={"preferences": preferences}),
            "reward": config.reward.model_copy(update={"sources": sources}),
            "run": config.run.model_copy(update={"dir": resolved.run.dir}),
        }
    )
