"""The schema: every table and field of a configuration, with its rule, help and source of the default."""

from __future__ import annotations

import math
from typing import Any, Literal

from pydantic import Field, field_validator

from trainer.config.fields import RUN_NAME, TEMPLATE, FilePath, FileSection, Section, TemplateOptions, Text, setting
from trainer.config.ppo import PPOConfig
from trainer.config.reward_sources import CHEAP, RewardSource

_TUNING = "PPO concepts reference, hyperparameter guide"
_N_DETAILS = "The N Implementation Details of RLHF with PPO"
_DAPO = "Yu et al. 2025 (DAPO)"

PREFIXES = 64
"""Prefix scores of a response, at most, where the trainer chooses."""
_COLDEST = 0.01  # lowest temperature; below it, log-probs are thousands of nats and their gradients diverge


AlarmCode = Literal[
    "step_nan",
    "not_training",
    "no_signal",
    "kl_high",
    "kl_negative",
    "sampling_bias",
    "entropy_collapse",
    "clip_saturation",
    "ratio_spike",
    "gradient_spike",
    "critic_lost",
    "critic_pull",
    "length_exploitation",
    "truncation",
    "repetition",
    "reward_hacking",
    "throughput",
    "straggler",
]

Action = Literal["off", "continue", "stop", "rollback"]


class BackboneConfig(Section):
    """[model]: the backbone and the adapter trained on it."""

    path: FilePath = setting(
        "starter",
        "'starter' (SmolLM2-135M-Instruct, no download), a folder in mlx-lm's format, or a hub name.",
        min_length=1,
    )
    revision: str = setting("", "Branch, tag or commit of a hub model; empty for the newest.")
    adapter: FilePath = setting(
        "",
        "Folder of an SFT adapter in mlx-lm's or PEFT's format. It is fused into the backbone of policy and reference.",
    )
    dtype: Literal["auto", "float32", "bfloat16"] = setting(
        "auto",
        "Data type of the backbone's weights. auto: bfloat16 on a GPU; float32 on a CPU, where half precision is slow.",
    )

    lora_rank: int = setting(8, "Rank of the LoRA adapter.", ge=1, le=1024)
    lora_scale: float = setting(
        20.0, "Factor on the adapter's output (alpha / rank in other trainers).", gt=0, le=1000, source="mlx-lm"
    )
    lora_targets: list[Text] = setting(
        ["auto"],
        "Linear layers with an adapter, by the end of their names. auto: queries and values, or their equivalents; "
        "experts: those of a mixture of experts.",
        min_length=1,
    )
    lora_layers: int = setting(0, "Number of blocks with an adapter, counted from the last; 0 for all.", ge=0)
    quantize: Literal["off", "8-bit", "4-bit"] = setting(
        "off", "Quantise the backbone after loading. Saves memory on a GPU; on a CPU it only rounds the weights."
    )
    memory_limit: float = setting(0.0, "Memory limit for MLX; 0 uses the device's limit.", unit="GB", ge=0)


class ModelConfig(BackboneConfig):
    """[model]: the backbone and the adapters trained on it."""

    policy_init: FilePath = setting(
        "",
        "Folder of an adapter that the policy begins as, in mlx-lm's or PEFT's format; the reference has none. Empty: "
        "the policy begins as the reference.",
    )
    value_model: Literal["fitted", "head", "adapter"] = setting(
        "fitted",
        "The critic. fitted: least squares on the reference's states; head: a linear head on the policy's; adapter: "
        "a LoRA adapter and head of its own.",
        advice="fitted learns from the fewest sequences.",
    )
    value_init: FilePath = setting(
        "",
        "Reward model that the value model begins as: a run, a checkpoint, or a classifier's PEFT adapter. Needs "
        "value_model = 'adapter'. Empty: the head starts at 0.",
    )


class DataConfig(Section):
    """[data]: the prompts."""

    prompts: FilePath = setting(
        "story-openings",
        "A .jsonl, .json, .csv, .parquet or .txt file, a shipped set ('story-openings'), or a datasets name.",
        min_length=1,
    )
    column: str = setting("prompt", "Column that holds the prompt: a string, or a list of chat messages.", min_length=1)
    split: str = setting("train", "Split of a datasets name.", min_length=1)
    skip_broken: bool = setting(
        False, "Skip rows with errors, and rows that the chat template rejects, instead of refusing the file."
    )
    chat: Literal["auto", "always", "never"] = setting(
        "auto", "When to apply the chat template. auto: to lists of messages only; always: to strings too; never."
    )
    system: str = setting("", "System message added to every chat prompt without one.")
    template: TemplateOptions = TEMPLATE
    max_prompt_tokens: int = setting(512, "Longest prompt.", unit="tokens", ge=1)
    too_long: Literal["drop", "truncate", "error"] = setting(
        "drop", "Handling of longer prompts. drop: leave out; truncate: keep the last tokens; error: refuse the file."
    )
    eval_fraction: float = setting(0.1, "Share of prompts held out for evaluation.", ge=0, lt=1)
    eval_seed: int = setting(-1, "Seed of the choice of held-out prompts; -1 for run.seed.", ge=-1, lt=2**32)
    limit: int = setting(0, "Number of prompts to use, from the first; 0 for all.", unit="prompts", ge=0)
    shuffle: bool = setting(True, "Shuffle the prompts in each pass, with run.seed.")
    curriculum: bool = setting(
        False,
        "Rest a prompt whose responses all score alike: for one pass, for two if that happens again, up to 8.",
        advice="For prompts that are much too easy or too hard, with rloo or grpo.",
    )


class RolloutConfig(Section):
    """[rollout]: sampling of responses."""

    batch_size: int = setting(
        8,
        "Sequences per iteration.",
        unit="sequences",
        ge=1,
        le=65536,
        source=_TUNING,
        advice="4 to 32, depending on the size of the model.",
    )
    samples_per_prompt: int = setting(1, "Responses sampled for each prompt.", ge=1)
    dynamic: int = setting(
        0,
        "Draw other prompts in place of those whose responses all score alike, up to so many times an iteration; 0 for "
        "never.",
        ge=0,
        le=100,
        source=f"{_DAPO}, dynamic sampling",
        advice="1 to 4, with rloo or grpo, if many groups are dead.",
    )
    max_new_tokens: int = setting(48, "Maximum length of a response.", unit="tokens", ge=1)
    temperature: float = setting(
        1.0, "Sampling temperature. Also applied to the log-probs in training.", ge=_COLDEST, le=10, live=True
    )
    top_p: float = setting(1.0, "Nucleus sampling; below 1 the KL estimate is biased.", gt=0, le=1, live=True)
    top_k: int = setting(
        0, "Sample from the k most likely tokens; 0 for all. Above 0 the KL estimate is biased.", ge=0, live=True
    )
    stop: list[Text] = setting([], "Texts that end a response, in addition to the model's end tokens.")
    ignore_stop: bool = setting(False, "Ignore stop tokens and always write max_new_tokens tokens; for benchmarks.")
    slots: int = setting(
        32, "Sequences generated in parallel; others follow as they finish.", unit="sequences", ge=1, live=True
    )

    @field_validator("temperature", mode="before")
    @classmethod
    def _is_no_greedy_choice(cls, value: Any) -> Any:
        if isinstance(value, int | float) and not isinstance(value, bool) and value < _COLDEST:
            way_out = "for greedy decoding, leave it at 1 and set rollout.top_k = 1"
            raise ValueError(f"must be at least {_COLDEST}; {way_out}")
        return value


class RewardConfig(Section):
    """[reward]: the score of a response."""

    sources: list[RewardSource] = setting(
        ["lexicon"],
        "Sources whose weighted sum is the score: 'file.py:function', 'package.module:function', 'lexicon', or tables "
        "with a kind, a weight and the options of that kind.",
        min_length=1,
        live=True,
    )
    clip: float = setting(0.0, "Clip the score to -clip..clip; 0 for no clipping.", ge=0)
    normalize: Literal["off", "batch", "running"] = setting(
        "off", "Normalise scores to mean 0 and standard deviation 1, over the batch or over the run so far."
    )
    missing_stop_penalty: float = setting(
        0.0, "Subtracted from the score of a truncated response.", ge=0, source=_N_DETAILS
    )
    overlong_penalty: float = setting(
        0.0,
        "Subtracted from the score of a response of max_new_tokens tokens; rises linearly from 0 over the last "
        "overlong_tokens.",
        ge=0,
        source=_DAPO,
    )
    overlong_tokens: int = setting(
        0, "Tokens before max_new_tokens over which overlong_penalty rises from 0.", unit="tokens", ge=0
    )


def micro_batch_tokens(*, live: bool = False) -> Any:
    """Declare the size of a micro-batch. live: whether this kind of run can change it while it trains."""
    help_line = "Maximum number of tokens in one forward and backward pass, with padding."
    return setting(2048, help_line, unit="tokens", ge=1, live=live)


GRAD_CHECKPOINT: Any = setting(
    False,
    "Gradient checkpointing: compute each block again in the backward pass instead of keeping its activations.",
    source="Chen et al. 2016 (arXiv 1604.06174)",
    advice="For long sequences and large models: much less memory, slower updates.",
)


class OptimConfig(Section):
    """[optim]: learning rates and memory of the update."""

    policy_lr: float = setting(1e-5, "Learning rate of the policy's adapter.", ge=0, le=1, live=True)
    value_lr: float = setting(1e-4, "Learning rate of the critic; unused by a fitted one.", ge=0, le=1, live=True)
    schedule: Literal["constant", "linear", "cosine"] = setting(
        "constant", "Schedule of both learning rates after the warm-up; linear and cosine decay to 0."
    )
    warmup_steps: int = setting(0, "Optimiser steps over which both learning rates rise from 0.", ge=0)
    beta1: float = setting(0.9, "Adam's decay rate of the first moment.", ge=0, lt=1)
    beta2: float = setting(0.999, "Adam's decay rate of the second moment.", ge=0, lt=1)
    eps: float = setting(1e-5, "Adam's epsilon.", gt=0, source="The 37 Implementation Details of PPO, no. 3")
    weight_decay: float = setting(0.0, "Decoupled weight decay.", ge=0, le=1)
    max_grad_norm: float = setting(1.0, "Clip the gradient to this global norm.", gt=0, live=True)
    ema_decay: float = setting(
        0.0,
        "Decay of a moving average of the adapter, over about 1 / (1 - ema_decay) steps. Evaluations use the average, "
        "checkpoints save it too; 0 for none.",
        ge=0,
        lt=1,
    )
    micro_batch_tokens: int = micro_batch_tokens(live=True)
    grad_checkpoint: bool = GRAD_CHECKPOINT
    buffer_tokens: int = setting(
        1_000_000, "Maximum number of tokens in the experience buffer, with padding.", unit="tokens", ge=1
    )


class EvalConfig(Section):
    """[eval]: scores on held-out prompts."""

    every: int = setting(
        0,
        "Iterations between evaluations; also before the first and after the last. 0 for never.",
        unit="iterations",
        ge=0,
    )
    prompts: int = setting(16, "Number of held-out prompts, the same each time.", ge=1)
    reference: bool = setting(
        True, "Report the win rate against responses of the reference to the same prompts, sampled once."
    )
    best_of: int = setting(
        1,
        "Responses of the reference per prompt, for the best-of-n baseline: the mean score of each prompt's best. "
        "1 for none.",
        unit="responses",
        ge=1,
        le=1024,
    )


class CheckpointConfig(Section):
    """[checkpoint]: checkpoints to resume from."""

    every: int = setting(1, "Iterations between checkpoints; 0 for one at the end only.", unit="iterations", ge=0)
    keep: int = setting(3, "Number of newest checkpoints to keep; 0 for all.", ge=0)


class PolicyCheckpointConfig(CheckpointConfig):
    """[checkpoint]: checkpoints to resume from, and the best policy."""

    best: Literal["score", "reward", "off"] = setting(
        "score", "Also keep the checkpoint of the best evaluation, by its mean score, or by that minus the KL penalty."
    )


class ConvergenceConfig(Section):
    """[convergence]: actions when a run reaches its goal or degrades.

    continue: report it and continue; rollback: continue from the best checkpoint, or else the oldest kept, with lower
    learning rates.
    """

    window: int = setting(
        10,
        "Iterations of the window that a decision uses; it is compared with the window before.",
        unit="iterations",
        ge=2,
    )
    target_score: float = setting(
        0.0, "Goal for the mean score over the window; for that of an evaluation, if there are any.", ge=-1e6, le=1e6
    )
    on_target: Action = setting("off", "Action when target_score is reached.")
    plateau: float = setting(
        0.1,
        "Mean scores of two windows that differ by less than this are a plateau.",
        unit="deviations of the score",
        ge=0,
    )
    on_plateau: Action = setting("off", "Action when the score stops changing.")
    on_collapse: Action = setting("continue", "Action when the entropy falls below a fifth of its initial value.")
    degradation: float = setting(
        1.0,
        "A fall below the best score so far by more than this is a degradation.",
        unit="deviations of the score",
        gt=0,
    )
    on_degradation: Action = setting("continue", "Action when the score degrades.")
    kl_limit: float = setting(
        0.0, "Limit of the mean KL over the window; 0: three times kl_target if adaptive.", unit="nats", ge=0
    )
    on_kl: Action = setting("continue", "Action when the KL exceeds kl_limit or diverges.")
    max_rollbacks: int = setting(2, "Maximum number of rollbacks; then the run stops.", ge=0)
    rollback_lr: float = setting(0.5, "Factor on both learning rates at each rollback.", gt=0, le=1)


class HealthConfig(Section):
    """[health]: alarms when a run goes wrong."""

    alarms: bool = setting(True, "Report problems of the run, with evidence and fixes.")
    ignore: list[AlarmCode] = setting([], "Alarm codes to silence.")
    pause: bool = setting(False, "Pause the run at an alarm of level error until you decide.")


class RunFolderConfig(Section):
    """[run]: name, folder, seed."""

    name: str = setting(
        "", "Name of the run's folder in run.dir; empty: the preset's name and a number.", pattern=RUN_NAME
    )
    dir: FilePath = setting("runs", "Folder of the runs.", min_length=1)
    seed: int = setting(0, "Random seed; -1 draws one and saves it.", ge=-1, lt=2**32)
    shared: bool = setting(False, "Let other users of this machine read the run's journal, samples and progress.")
    rank_timeout: float = setting(
        1800.0,
        "A run on several ranks ends if one of them does not answer for this long.",
        unit="s",
        gt=0,
        advice="Raise it if a reward on the first rank takes longer.",
    )
    trackers: list[Literal["tensorboard", "wandb", "trackio"]] = setting([], "Trackers to send the metrics to.")


class RunConfig(RunFolderConfig):
    """[run]: name, folder, seed."""

    save_samples: bool = setting(True, "Save every sequence with its per-token arrays as Parquet.")
    alternatives: int = setting(
        5, "Number of most likely tokens to save at each position of a sample; 0 for none.", unit="tokens", ge=0, le=50
    )
    final_ratios: bool = setting(
        False, "Also save each token's policy ratio after the last epoch; takes one more pass over the batch."
    )


class Config(FileSection):
    """The complete configuration of a PPO run."""

    model: ModelConfig = Field(default_factory=ModelConfig)
    data: DataConfig = Field(default_factory=DataConfig)
    rollout: RolloutConfig = Field(default_factory=RolloutConfig)
    reward: RewardConfig = Field(default_factory=RewardConfig)
    ppo: PPOConfig = Field(default_factory=PPOConfig)
    optim: OptimConfig = Field(default_factory=OptimConfig)
    eval: EvalConfig = Field(default_factory=EvalConfig)
    checkpoint: PolicyCheckpointConfig = Field(default_factory=PolicyCheckpointConfig)
    convergence: ConvergenceConfig = Field(default_factory=ConvergenceConfig)
    health: HealthConfig = Field(default_factory=HealthConfig)
    run: RunConfig = Field(default_factory=RunConfig)

    @property
    def prefix_stride(self) -> int:
        """Return the tokens from one prefix score to the next; 0 without them.

        `ppo.prefix_scores` = -1 is off where they may be slow or on another scale than the rewards.
        """
        every, reward, longest = self.ppo.prefix_scores, self.reward, self.rollout.max_new_tokens
        if every < 0:
            is_cheap = all(isinstance(source, CHEAP) for source in reward.sources)
            scaled = reward.normalize == "batch" or self.ppo.whiten_rewards
            every = math.ceil(longest / PREFIXES) if is_cheap and not scaled else 0
        return every if self.ppo.estimator == "gae" else 0
