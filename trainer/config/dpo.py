"""The schema of a DPO run: a separate tree that shares sections with the schemas of reward models and PPO."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from trainer.config.fields import FileSection, Section, setting
from trainer.config.reward_model import PreferenceDataConfig, RewardEvalConfig, RewardOptimConfig, TrackedRunConfig
from trainer.config.reward_sources import RewardSource
from trainer.config.schema import BackboneConfig, CheckpointConfig, Config, RewardConfig, RolloutConfig

_DPO = "Rafailov et al. 2023 (DPO)"


class DPODataConfig(PreferenceDataConfig):
    """[data]: the preferences."""

    max_tokens: int = setting(512, "Maximum length of prompt and completion together.", unit="tokens", ge=2)
    end_token: bool = setting(
        True,
        "Append the model's end token to each completion, and train on it.",
        advice="Set it to false if most completions are truncated.",
    )


class DPOTrainConfig(Section):
    """[train]: the algorithm."""

    loss: Literal["sigmoid", "ipo"] = setting(
        "sigmoid",
        "sigmoid: log-loss of the implicit reward; ipo: squared distance of its lead per token from 1 / (2 beta).",
        source=_DPO,
    )
    beta: float = setting(
        0.1,
        "Strength of the pull towards the reference.",
        gt=0,
        le=100,
        source=_DPO,
        advice="KL too high: raise it. Nothing is learned: lower it.",
    )
    label_smoothing: float = setting(
        0.0, "Assumed share of wrong labels (conservative DPO); sigmoid only.", ge=0, lt=0.5
    )
    epochs: int = setting(1, "Passes over the comparisons.", ge=1, le=100, advice="More than one soon overfits.")
    batch_size: int = setting(16, "Comparisons per optimiser step.", unit="comparisons", ge=1, le=65536)

    @field_validator("label_smoothing")
    @classmethod
    def _belongs_to_the_loss(cls, value: float, info: ValidationInfo) -> float:
        if value and info.data.get("loss") == "ipo":
            raise ValueError("needs train.loss = 'sigmoid': use 0, or choose that loss")
        return value


class DPOOptimConfig(RewardOptimConfig):
    """[optim]: learning rate and memory of the update."""

    lr: float = setting(1e-4, "Learning rate of the policy's adapter.", ge=0, le=1)


class DPORewardConfig(RewardConfig):
    """[reward]: scores of the policy's samples, to compare with a PPO run; not trained on."""

    sources: list[RewardSource] = setting([], "Sources as in the configuration of a PPO run; empty: no samples.")


class DPOEvalConfig(RewardEvalConfig):
    """[eval]: held-out comparisons, and samples of their prompts if there is a reward."""

    prompts: int = setting(16, "Number of held-out prompts to sample, the same each time.", ge=1)


class DPOConfig(FileSection):
    """The complete configuration of a DPO run.

    [rollout] is PPO's table, so that one text serves both; its training batch has no effect.
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
    tables["data"] = {name: getattr(config.data, name) for name in ("chat", "system", "template")}
    tables["ppo"] = {"estimator": "reinforce", "kl_coef": 0.0}  # no critic and no penalty
    return Config.model_validate({**tables, "optim": {"micro_batch_tokens": config.optim.micro_batch_tokens}})
