"""The schema: every table and field of a configuration, with its rule, help and source of the default."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator

from trainer.config.fields import RUN_NAME, FilePath, Section, Text, setting
from trainer.config.reward_sources import RewardSource
from trainer.config.watching import ConvergenceConfig, HealthConfig

_TUNING = "PPO concepts reference, hyperparameter guide"
_N_DETAILS = "The N Implementation Details of RLHF with PPO"
_ZIEGLER = "Ziegler et al. 2019, section 2.2"
_DAPO = "Yu et al. 2025 (DAPO)"

_COLDEST = 0.01  # lowest temperature; below it, log-probs are thousands of nats and their gradients diverge


class BackboneConfig(Section):
    """[model]: the backbone and the adapter trained on it."""

    path: FilePath = setting(
        "starter",
        "'starter' (SmolLM2-135M-Instruct, no download), a folder in mlx-lm's format, or a hub name.",
        min_length=1,
    )
    revision: str = setting("", "Branch, tag or commit of a hub model; empty for the newest.")
    adapter: FilePath = setting(
        "", "Folder of an SFT adapter in mlx-lm's format, fused into the backbone of policy and reference."
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = setting(
        "auto",
        "Weights of the backbone; auto: float32 on CPU, where half precision is slow, bfloat16 on a GPU.",
    )
    lora_rank: int = setting(8, "Rank of the LoRA adapter.", ge=1, le=1024)
    lora_scale: float = setting(
        20.0, "Factor on the adapter's output (alpha / rank in other trainers).", gt=0, le=1000, source="mlx-lm"
    )
    lora_targets: list[Text] = setting(
        ["q_proj", "v_proj"], "Linear layers that get an adapter, by the end of their name.", min_length=1
    )
    lora_layers: int = setting(0, "How many blocks get an adapter, counted from the last; 0 for all.", ge=0)
    quantize: Literal["off", "8-bit", "4-bit"] = setting(
        "off", "Quantise the backbone once it is loaded: it takes less memory, and on a CPU much more time."
    )


class ModelConfig(BackboneConfig):
    """[model]: the backbone and the adapters trained on it."""

    value_model: Literal["head", "adapter"] = setting(
        "head",
        "head: a linear head on the policy's hidden states; adapter: its own LoRA adapter and head.",
    )
    value_init: FilePath = setting(
        "",
        "Run or checkpoint of a reward model that the value model begins as, with value_model = 'adapter'; empty: its "
        "head begins at zero.",
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
    chat: Literal["auto", "always", "never"] = setting(
        "auto",
        "Render prompts by the chat template: auto for messages only, always for strings too, or never.",
    )
    system: str = setting("", "System message put before every chat prompt that has none.")
    max_prompt_tokens: int = setting(512, "Longest prompt.", unit="tokens", ge=1)
    too_long: Literal["drop", "truncate", "error"] = setting(
        "drop", "What happens to a longer prompt: drop it, keep its last tokens, or refuse the file."
    )
    eval_fraction: float = setting(0.1, "Share of the prompts held out for evaluation.", ge=0, lt=1)
    limit: int = setting(0, "Use the first so many prompts; 0 for all.", unit="prompts", ge=0)
    shuffle: bool = setting(True, "Visit the prompts in a new order each pass, drawn from run.seed.")


class RolloutConfig(Section):
    """[rollout]: how sequences are sampled."""

    batch_size: int = setting(
        8,
        "Sequences an iteration.",
        unit="sequences",
        ge=1,
        le=65536,
        source=_TUNING,
        advice="4 to 32, by the size of the model.",
    )
    samples_per_prompt: int = setting(1, "Sequences sampled from each prompt.", ge=1)
    max_new_tokens: int = setting(48, "Longest response.", unit="tokens", ge=1)
    temperature: float = setting(
        1.0,
        "Sampling temperature; the same one scales the log-probs that are trained.",
        ge=_COLDEST,
        le=10,
        live=True,
    )
    top_p: float = setting(1.0, "Nucleus sampling; below 1 the KL estimate is biased.", gt=0, le=1, live=True)
    top_k: int = setting(0, "Keep the k likeliest tokens; 0 for all. Above 0 the KL is biased.", ge=0, live=True)
    stop: list[Text] = setting([], "Texts that end a response, besides the model's own end tokens.")
    ignore_stop: bool = setting(False, "Write max_new_tokens whatever the model says; for benchmarks.")
    slots: int = setting(32, "Sequences generated side by side; a finished one frees its slot.", unit="sequences", ge=1)

    @field_validator("temperature", mode="before")
    @classmethod
    def _is_no_greedy_choice(cls, value: Any) -> Any:
        if isinstance(value, int | float) and not isinstance(value, bool) and value < _COLDEST:
            way_out = "for the likeliest token each time leave it at 1 and set rollout.top_k = 1"
            raise ValueError(f"must be at least {_COLDEST}; {way_out}")
        return value


class RewardConfig(Section):
    """[reward]: what is rewarded."""

    sources: list[RewardSource] = setting(
        ["lexicon"],
        "Weighted sum of sources: 'file.py:function', 'package.module:function', 'lexicon', or tables with "
        "kind, weight and the kind's own settings.",
        min_length=1,
        live=True,
    )
    clip: float = setting(0.0, "Clip the score to -clip..clip; 0 for no clipping.", ge=0)
    normalize: Literal["off", "batch", "running"] = setting(
        "off", "Scale scores to mean 0, deviation 1: over the batch, or over the whole run so far."
    )
    missing_stop_penalty: float = setting(
        0.0, "Taken from the score of a response that was cut short.", ge=0, source=_N_DETAILS
    )
    overlong_penalty: float = setting(
        0.0,
        "Taken from the score of a response as long as max_new_tokens, and in proportion over the last "
        "overlong_tokens before it.",
        ge=0,
        source=_DAPO,
    )
    overlong_tokens: int = setting(
        0, "Tokens before max_new_tokens over which overlong_penalty rises from 0.", unit="tokens", ge=0
    )


class PPOConfig(Section):
    """[ppo]: the algorithm."""

    iterations: int = setting(100, "Iterations of the run.", ge=1)
    estimator: Literal["gae", "reinforce", "rloo", "remax", "grpo"] = setting(
        "gae",
        "Estimator of the advantages: gae by the critic; else a baseline: the batch's (reinforce), the "
        "prompt's (rloo, grpo), the greedy response's (remax).",
        source="Schulman et al. 2015",
        advice="Without a critic an iteration takes less time; rloo and grpo need several samples a prompt.",
    )
    group_std: bool = setting(
        True, "Divide the advantages of grpo by the deviation of the prompt's scores; false is Dr. GRPO's way."
    )
    epochs: int = setting(4, "Passes over each batch.", ge=1, le=100, source=_TUNING, live=True)
    minibatches: int = setting(
        1,
        "Optimiser steps an epoch; divides the batch.",
        ge=1,
        advice="More minibatches make steps smaller and training steadier.",
    )
    kl_coef: float = setting(
        0.05,
        "KL penalty strength.",
        unit="score per nat",
        ge=0,
        le=100,
        live=True,
        source=_TUNING,
        advice="KL too high: raise it. Nothing is learned: lower it.",
    )
    kl_estimator: Literal["k1", "k2", "k3", "abs"] = setting(
        "k1", "Estimator of the KL in the penalty.", source="Schulman 2020, Approximating KL divergence"
    )
    kl_in: Literal["reward", "loss"] = setting(
        "reward",
        "Where the KL penalty goes: off each token's reward, or onto the loss (k2 or k3), as in GRPO.",
        source=_ZIEGLER,
    )
    kl_controller: Literal["fixed", "adaptive"] = setting(
        "fixed", "adaptive: kl_coef moves after each iteration so that the KL nears kl_target.", source=_ZIEGLER
    )
    kl_target: float = setting(
        6.0, "KL that the adaptive controller aims at.", unit="nats a sequence", gt=0, live=True, source=_ZIEGLER
    )
    kl_horizon: int = setting(
        10_000,
        "kl_coef changes by at most a fifth in so many sequences.",
        unit="sequences",
        ge=1,
        live=True,
        source=_ZIEGLER,
        advice="Short runs need a short one: a tenth of all their sequences.",
    )
    clip: float = setting(
        0.2,
        "The policy ratio is clipped to 1 - clip .. 1 + clip.",
        gt=0,
        live=True,
        source="Schulman et al. 2017",
        advice="Unstable: lower it (0.1). Nothing is learned: raise it (0.3).",
    )
    clip_high: float = setting(
        0.0,
        "Clip the ratio to at most 1 + clip_high, where that is to be another bound; 0: 1 + clip.",
        ge=0,
        live=True,
        source=_DAPO,
    )
    dual_clip: float = setting(
        0.0,
        "Bound a loss whose advantage is negative by this times the advantage, above 1; 0 for no bound.",
        ge=0,
        live=True,
        source="Ye et al. 2020 (dual-clip PPO): 3",
    )
    loss_aggregation: Literal["token", "sequence", "constant"] = setting(
        "token",
        "Mean of the losses over all tokens; over sequences, of each one's mean; or their sum over a constant, "
        "max_new_tokens times the sequences.",
        source=f"token: {_DAPO}; sequence: GRPO; constant: Dr. GRPO",
    )
    target_approx_kl: float = setting(
        0.0,
        "End the epochs of an iteration before a step whose minibatch is further than this from the policy that "
        "wrote; 0 for never.",
        unit="nats a token",
        ge=0,
        live=True,
        advice="0.01 to 0.05.",
    )
    ratio_threshold: float = setting(
        10.0,
        "Take no step on a minibatch whose mean ratio is above this; 0 for no such rule.",
        ge=0,
        live=True,
        source="TRL 0.11",
    )
    importance_cap: float = setting(
        0.0,
        "Weigh each token's loss by its probability by the trainer over that by the sampler, at most this; 0: not.",
        ge=0,
        live=True,
        source="Yao et al. 2025 (truncated importance sampling): 2",
    )
    value_clip: float = setting(
        0.2, "Values move at most this far from the old ones in the loss; 0 for no clipping.", ge=0, live=True
    )
    value_coef: float = setting(0.1, "Weight c1 of the value loss.", ge=0, live=True, source=_TUNING)
    critic_warmup: int = setting(
        0, "Iterations at the start in which the critic alone learns.", unit="iterations", ge=0
    )
    entropy_coef: float = setting(0.0, "Weight c2 of the entropy bonus.", ge=0, live=True)
    gamma: float = setting(1.0, "Discount.", ge=0, le=1, live=True, source=_TUNING)
    lam: float = setting(0.95, "Lambda of GAE: 0 is one-step TD, 1 is Monte Carlo.", ge=0, le=1, live=True)
    whiten_advantages: bool = setting(True, "Scale advantages to mean 0, deviation 1 over the batch's tokens.")
    whiten_rewards: bool = setting(
        False, "Scale rewards to deviation 1, keeping their mean; not under 16 sequences.", source=_TUNING
    )
    bootstrap_truncated: bool = setting(
        False, "Count the critic's value after the last token of a response that was cut short as its future."
    )


class OptimConfig(Section):
    """[optim]: learning rates and memory of the update."""

    policy_lr: float = setting(1e-5, "Learning rate of the policy's adapter.", ge=0, le=1, live=True)
    value_lr: float = setting(1e-4, "Learning rate of the value model.", ge=0, le=1, live=True)
    schedule: Literal["constant", "linear", "cosine"] = setting(
        "constant", "Course of both learning rates after the warm-up; linear and cosine end at 0."
    )
    warmup_steps: int = setting(0, "Optimiser steps over which both learning rates rise from 0.", ge=0)
    beta1: float = setting(0.9, "Adam's first moment.", ge=0, lt=1)
    beta2: float = setting(0.999, "Adam's second moment.", ge=0, lt=1)
    eps: float = setting(1e-5, "Adam's epsilon.", gt=0, source="The 37 Implementation Details of PPO, no. 3")
    weight_decay: float = setting(0.0, "Decoupled weight decay.", ge=0, le=1)
    max_grad_norm: float = setting(1.0, "The gradient is scaled down to this global norm.", gt=0, live=True)
    ema_decay: float = setting(
        0.0,
        "Moving average of the adapter over about 1 / (1 - ema_decay) steps, which evaluations judge and checkpoints "
        "keep beside the policy; 0 for none.",
        ge=0,
        lt=1,
    )
    micro_batch_tokens: int = setting(
        2048, "Most tokens, padding counted, in one forward and backward pass.", unit="tokens", ge=1
    )
    buffer_tokens: int = setting(
        1_000_000, "Most tokens, padding counted, that the experience buffer holds.", unit="tokens", ge=1
    )


class EvalConfig(Section):
    """[eval]: scores on held-out prompts."""

    every: int = setting(
        0,
        "Evaluate after every so many iterations, besides before the first and after the last; 0 for never.",
        unit="iterations",
        ge=0,
    )
    prompts: int = setting(16, "Held-out prompts, the same ones each time.", ge=1)
    reference: bool = setting(
        True, "Compare with what the reference writes to the same prompts, sampled once: the win rate."
    )
    best_of: int = setting(
        1,
        "Responses of the reference to each prompt; the mean score of each prompt's best is the best-of-n baseline. "
        "1 for none.",
        unit="responses",
        ge=1,
        le=1024,
    )


class CheckpointConfig(Section):
    """[checkpoint]: what a run can be resumed from."""

    every: int = setting(1, "Checkpoint after every so many iterations; 0 for the end only.", unit="iterations", ge=0)
    keep: int = setting(3, "Newest checkpoints kept; 0 for all.", ge=0)


class PolicyCheckpointConfig(CheckpointConfig):
    """[checkpoint]: what a run can be resumed from, and the best policy."""

    best: Literal["score", "reward", "off"] = setting(
        "score",
        "Keep the checkpoint of the best evaluation too, by its mean score, or by that less the KL penalty.",
    )


class RunFolderConfig(Section):
    """[run]: name, place, seed."""

    name: str = setting(
        "", "Folder of the run inside run.dir; empty for the preset's name and a number.", pattern=RUN_NAME
    )
    dir: FilePath = setting("runs", "Folder that holds the runs.", min_length=1)
    seed: int = setting(0, "Seed of everything random; -1 draws one and saves it.", ge=-1, lt=2**32)
    shared: bool = setting(
        False, "Let other users of this machine read the journal, the samples and the progress of the run."
    )


class RunConfig(RunFolderConfig):
    """[run]: name, place, seed."""

    save_samples: bool = setting(True, "Write every sequence with its per-token arrays as Parquet.")
    alternatives: int = setting(
        5, "The policy's likeliest tokens kept at each place of a sample; 0 for none.", unit="tokens", ge=0, le=50
    )
    final_ratios: bool = setting(
        False, "Keep each token's policy ratio after the last epoch in the samples too: one more pass over the batch."
    )
    trackers: list[Literal["tensorboard", "wandb", "trackio"]] = setting([], "Trackers that get the metrics too.")


class Config(Section):
    """A whole configuration: what ppo-workbench does, and all that it does."""

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
