"""The schemas of runs on pairs, reward models and DPO: separate trees that share sections with PPO's."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from trainer.config.fields import TEMPLATE, FilePath, FileSection, Section, TemplateOptions, setting
from trainer.config.reward_sources import RewardSource
from trainer.config.schema import (
    GRAD_CHECKPOINT,
    BackboneConfig,
    CheckpointConfig,
    Config,
    RewardConfig,
    RolloutConfig,
    RunFolderConfig,
    micro_batch_tokens,
)

_DPO = "Rafailov et al. 2023 (DPO)"
_INSTRUCT_GPT = "Ouyang et al. 2022 (InstructGPT)"
_LLAMA_2 = "Touvron et al. 2023 (Llama 2), the smaller margin"


class PreferenceDataConfig(Section):
    """[data]: the preferences."""

    preferences: FilePath = setting(
        "preferences.db",
        "A preferences.db, a .jsonl, .jsonl.gz, .json, .csv or .parquet file, a folder or a datasets name.",
        min_length=1,
    )
    format: str = setting("auto", "Format of a file; auto detects it from the columns of the first row.", min_length=1)
    split: str = setting("train", "Split of a datasets name.", min_length=1)
    skip_broken: bool = setting(
        False, "Skip rows with errors, and rows that the chat template rejects, instead of refusing the file."
    )
    chat: Literal["auto", "always", "never"] = setting(
        "auto", "When to apply the chat template. auto: to lists of messages only; always: to strings too; never."
    )
    system: str = setting("", "System message added to every chat prompt without one.")
    template: TemplateOptions = TEMPLATE
    max_tokens: int = setting(512, "Maximum length of prompt and completion together.", unit="tokens", ge=1)
    too_long: Literal["drop", "truncate"] = setting(
        "truncate", "Handling of longer ones. truncate: keep the last tokens; drop: leave out the comparison."
    )
    eval_fraction: float = setting(0.1, "Share of comparisons held out; those of one prompt stay together.", ge=0, lt=1)
    limit: int = setting(0, "Number of preferences to use, from the first; 0 for all.", unit="preferences", ge=0)


class RewardTrainConfig(Section):
    """[train]: the algorithm."""

    epochs: int = setting(
        1, "Passes over the comparisons.", ge=1, le=100, source=_INSTRUCT_GPT, advice="More than one soon overfits."
    )
    head: Literal["random", "fitted"] = setting(
        "random",
        "Head at the start. fitted: the best one on the untrained states, regularised by cross-validation.",
        source="fitted: Kumar et al. 2022 (linear probing, then fine-tuning)",
        advice="With few comparisons: fitted.",
    )
    states: Literal["last", "last+mean"] = setting(
        "last",
        "States that the head reads: of the last token; or also the mean over the tokens of the completion.",
        advice="With few comparisons: last+mean.",
    )
    batch_size: int = setting(16, "Comparisons per optimiser step.", unit="comparisons", ge=1, le=65536)
    margin: float = setting(
        0.33,
        "Margin by which the preferred completion must lead, per step of strength above the first.",
        unit="logits",
        ge=0,
        le=10,
        source=_LLAMA_2,
    )
    rankings: Literal["pairs", "plackett-luce"] = setting(
        "pairs",
        "Loss of a ranking of three or more. pairs: mean over its pairs; plackett-luce: repeated choice of the best.",
        source=_INSTRUCT_GPT,
    )
    patience: int = setting(
        3,
        "Stop after this many evaluations without a better held-out log-loss and keep the best; 0 for never.",
        unit="evaluations",
        ge=0,
    )
    reference: int = setting(
        256, "Training completions whose rewards are scaled to mean 0, deviation 1.", unit="completions", ge=2
    )


class PairsOptimConfig(Section):
    """[optim]: learning rate and memory of the update."""

    lr: float = setting(1e-4, "Learning rate of the adapter, and of a reward model's head.", ge=0, le=1)
    schedule: Literal["constant", "linear", "cosine"] = setting(
        "cosine", "Schedule of the learning rate after the warm-up; linear and cosine decay to 0."
    )
    warmup: float = setting(0.05, "Share of steps over which the learning rate rises from 0.", ge=0, le=1)
    beta1: float = setting(0.9, "Adam's decay rate of the first moment.", ge=0, lt=1)
    beta2: float = setting(0.999, "Adam's decay rate of the second moment.", ge=0, lt=1)
    eps: float = setting(1e-8, "Adam's epsilon.", gt=0)
    weight_decay: float = setting(0.0, "Decoupled weight decay.", ge=0, le=1)
    max_grad_norm: float = setting(1.0, "Clip the gradient to this global norm.", gt=0)
    micro_batch_tokens: int = micro_batch_tokens()
    grad_checkpoint: bool = GRAD_CHECKPOINT


class PairsEvalConfig(Section):
    """[eval]: the held-out comparisons."""

    every: int = setting(
        50, "Steps between evaluations; 0 for only those before the first step and after the last.", unit="steps", ge=0
    )
    comparisons: int = setting(
        2000, "Held-out comparisons to evaluate on, drawn once if there are more; 0 for all.", unit="comparisons", ge=0
    )


class RewardModelConfig(FileSection):
    """The complete configuration of a reward model's run."""

    kind: Literal["reward-model"] = "reward-model"
    model: BackboneConfig = Field(default_factory=BackboneConfig)
    data: PreferenceDataConfig = Field(default_factory=PreferenceDataConfig)
    train: RewardTrainConfig = Field(default_factory=RewardTrainConfig)
    optim: PairsOptimConfig = Field(default_factory=PairsOptimConfig)
    eval: PairsEvalConfig = Field(default_factory=PairsEvalConfig)
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig)
    run: RunFolderConfig = Field(default_factory=RunFolderConfig)


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


class DPORewardConfig(RewardConfig):
    """[reward]: scores of the policy's samples, to compare with a PPO run; not trained on."""

    sources: list[RewardSource] = setting([], "Sources as in the configuration of a PPO run; empty: no samples.")


class DPOEvalConfig(PairsEvalConfig):
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
    optim: PairsOptimConfig = Field(default_factory=PairsOptimConfig)
    rollout: RolloutConfig = Field(default_factory=RolloutConfig)
    reward: DPORewardConfig = Field(default_factory=DPORewardConfig)
    eval: DPOEvalConfig = Field(default_factory=DPOEvalConfig)
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig)
    run: RunFolderConfig = Field(default_factory=RunFolderConfig)


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
