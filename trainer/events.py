"""Events of a trainer: frozen, typed records of plain Python values.

Every reader (journal, headless display, workbench, trackers) sees the same stream; nothing else leaves the trainer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, ClassVar, Literal

SCHEMA_VERSION = 1

State = Literal["loading", "training", "evaluating", "saving", "paused", "done", "stopped", "failed"]
EndState = Literal["done", "stopped", "failed"]
Phase = Literal["generate", "score", "reward", "update", "evaluate", "checkpoint"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Base of all events. `kind` names the event on disk; a transient one is shown but not kept in the journal."""

    kind: ClassVar[str] = ""
    transient: ClassVar[bool] = False

    def as_dict(self) -> dict[str, Any]:
        """Return plain values by `event` and field name; numbers that are not finite become None (JSON has none)."""
        return {"event": self.kind, **plain(self)}


Progress = Callable[[int, int], None]
"""Receiver of (done, total), called after each small step of some work; may raise Interrupted to end the run."""
Report = Callable[[Event], None]
"""Receiver of the progress and the alerts of an algorithm; may raise Interrupted to end the run."""


def silent(done: int, total: int) -> None:
    """Ignore progress."""


def ignored(event: Event) -> None:
    """Ignore an event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchedFrom:
    """Checkpoint of another run that a branch began with, and what is different in the branch."""

    run: str  # its name
    iteration: int
    changes: dict[str, Any] = field(default_factory=dict)  # new values of settings, by dotted key
    checkpoint: str = ""  # beginning of the SHA-256 of its state.json


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted(Event):
    """First event of a run, and of each time it is resumed."""

    kind: ClassVar[str] = "run"
    name: str
    folder: str
    model: str
    device: str
    dtype: str
    parameters: int
    trainable: int
    prompts: int
    eval_prompts: int
    iterations: int
    seed: int
    versions: dict[str, str]
    warnings: list[str] = field(default_factory=list)
    resumed_at: int | None = None  # the iteration of the checkpoint that the run continues from; -1: it had none
    run_kind: str = "ppo"  # or "reward-model" or "dpo": its iterations are optimiser steps, its prompts comparisons
    branched_from: BranchedFrom | None = None
    schema: int = SCHEMA_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class StateChanged(Event):
    """Change of the run's state to `state`."""

    kind: ClassVar[str] = "state"
    state: State


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseProgress(Event):
    """Progress of the current phase: `done` of `total` units."""

    kind: ClassVar[str] = "phase"
    transient: ClassVar[bool] = True
    iteration: int
    phase: Phase
    done: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Iteration(Event):
    """Metrics of one iteration, over real response tokens or sequences, never over padding; means by default."""

    kind: ClassVar[str] = "iteration"
    iteration: int  # from 1
    score_mean: float  # mean score of the batch, before the KL penalty
    score_std: float
    score_max: float
    score_min: float
    reward_mean: float  # mean of score minus KL penalty, summed over each sequence
    kl: float  # nats; mean over sequences of the summed k1
    entropy: float  # nats per token
    policy_loss: float
    value_loss: float
    clip_fraction: float
    approx_kl: float  # new against old policy, nats per token
    ratio_mean: float
    ratio_max: float
    explained_variance: float
    grad_norm: float  # before clipping, mean over the steps
    value_mean: float
    return_mean: float
    response_length: float  # tokens
    truncated: float  # share of responses that were cut short
    sampler_mismatch: float  # mean |log-prob of the sampler - teacher-forced one|, nats
    steps: int  # optimiser steps taken
    skipped_steps: int  # not taken: NaN, inf, or too large a ratio
    kl_coef: float
    policy_lr: float
    value_lr: float
    tokens_per_second: float  # response tokens over the whole iteration
    seconds: dict[str, float]  # by phase
    memory_bytes: int  # peak of MLX's own allocations in this iteration
    tokens: int  # response tokens so far in the run
    parts: dict[str, float] = field(default_factory=dict)  # mean raw score by reward source
    kl_std: float = math.nan  # of the sequences' summed k1
    advantage_std: float = math.nan  # of the raw advantages
    log_ratio_max: float = math.nan  # largest |log pi - log pi_old| of a real token in any step
    grad_norm_max: float = math.nan  # of the steps, before clipping
    critic_share: float = math.nan  # of the norms of both gradients on a shared trunk; in every twentieth iteration
    spiked_steps: int = 0  # of skipped_steps, those with too large a ratio
    epochs_done: float = math.nan  # passes over the batch; fewer than configured after an early stop
    length_correlation: float = math.nan  # Pearson's, of score and response length; NaN where one does not vary
    repetition: float = math.nan  # mean share of a response's 4-grams that occurred in it before
    unique: float = math.nan  # distinct responses over all of the batch
    unscored: float = 0.0  # share of responses that no reward source applies to: in no number of scores, no training
    dead_groups: float = math.nan  # share of the groups written, replaced ones too, whose scores are all equal
    difficulty: list[list[float]] = field(default_factory=list)  # of these groups: index of the prompt, mean score
    surprise: float = math.nan  # -log-prob of the sampler, nats per token; equals the entropy but for chance
    surprise_error: float = math.nan  # standard error of surprise - entropy
    calibration: list[list[float]] = field(default_factory=list)  # of the critic: mean value, mean outcome and number
    # of tokens of each fifth of the tokens, by value
    memory: dict[str, int] = field(default_factory=dict)  # memory_bytes by phase
    ranks: list[dict[str, Any]] = field(default_factory=list)  # of each rank, if there are several: host, seconds,
    # those of them in exchanges and waiting, bytes sent, memory_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplePreview:
    """A sequence, short enough for an event."""

    prompt: str
    completion: str
    score: float
    kl: float
    truncated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplesWritten(Event):
    """Sequences of an iteration, on disk in `path` (relative to the run), or not saved if it is empty."""

    kind: ClassVar[str] = "samples"
    iteration: int
    path: str
    rows: int
    previews: list[SamplePreview]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation(Event):
    """Scores on held-out prompts under the policy of `iteration`."""

    kind: ClassVar[str] = "evaluation"
    iteration: int
    prompts: int
    score_mean: float
    score_std: float
    kl: float
    response_length: float
    truncated: float
    seconds: float
    parts: dict[str, float] = field(default_factory=dict)  # mean raw score by reward source
    score_low: float = math.nan  # 95% interval of the mean score
    score_high: float = math.nan
    reward_mean: float = math.nan  # mean of score minus KL penalty, at the kl_coef of the iteration
    win_rate: float = math.nan  # share of prompts on which the policy's score beats the reference's; a tie counts half
    win_rate_low: float = math.nan  # Wilson's 95% interval
    win_rate_high: float = math.nan
    reference_score: float = math.nan  # mean score of the reference's responses to the same prompts
    best_of: int = 1  # n of best_of_score
    best_of_score: float = math.nan  # mean of the best of n responses of the reference
    explained_variance: float = math.nan  # of these rollouts' returns by the critic, which has not seen them
    value_error: float = math.nan  # root of the mean squared error of the critic on them
    averaged: bool = False  # the evaluated policy is the moving average
    unscored: float = 0.0  # share of responses that no reward source applies to, which are in no number of scores
    memory_bytes: int = 0  # peak of MLX's own allocations in this evaluation


@dataclass(frozen=True, slots=True, kw_only=True)
class HumanEvaluation(Event):
    """Share of judgements so far in which people prefer the policy's completions to the reference's."""

    kind: ClassVar[str] = "human_evaluation"
    iteration: int  # of the newest policy that was judged
    comparisons: int  # judgements; wins, ties and losses together
    wins: int  # the policy's completion was preferred
    ties: int  # neither was, or both were bad
    losses: int
    win_rate: float  # a tie counts half
    low: float  # Wilson's 95% interval
    high: float
    labellers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardModelStep(Event):
    """Metrics of one optimiser step of a reward model, over its comparisons, measured before the step."""

    kind: ClassVar[str] = "reward_model_step"
    iteration: int  # from 1
    comparisons: int
    loss: float  # mean over the comparisons
    accuracy: float  # share of the decided pairs whose better completion is ahead
    lead: float  # of the better completion, logits, mean over the decided pairs
    grad_norm: float  # before clipping
    skipped: bool  # not taken: NaN or inf
    learning_rate: float
    tokens: int  # real tokens so far in the run
    tokens_per_second: float  # real tokens over the whole step
    seconds: float
    memory_bytes: int  # peak of MLX's own allocations in this step
    ranks: list[dict[str, Any]] = field(default_factory=list)  # as in an Iteration


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardModelEvaluation(Event):
    """Evaluation of a reward model on held-out comparisons after `iteration` steps, beside simpler models.

    Log-loss and calibration are of the decided pairs; unknown numbers are NaN.
    """

    kind: ClassVar[str] = "reward_model_evaluation"
    iteration: int  # 0: untrained
    pairs: int  # decided ones
    ties: int
    accuracy: float
    accuracy_low: float  # Wilson's 95% interval
    accuracy_high: float
    log_loss: float  # nats per pair
    calibration_error: float
    length_accuracy: float  # of the model that sees only lengths
    untrained_accuracy: float
    seconds: float
    memory_bytes: int = 0  # as in an Evaluation


@dataclass(frozen=True, slots=True, kw_only=True)
class DPOStep(RewardModelStep):
    """Metrics of one optimiser step of DPO: those of its implicit reward, and these, which are means over its pairs."""

    kind: ClassVar[str] = "dpo_step"
    chosen_reward: float  # implicit: beta (log pi - log pi_ref); the lead is the difference of the two
    rejected_reward: float
    chosen_logprob: float  # nats per sequence
    rejected_logprob: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DPOEvaluation(RewardModelEvaluation):
    """Evaluation of a policy's implicit reward on held-out comparisons after step `iteration`, 0 before the first."""

    kind: ClassVar[str] = "dpo_evaluation"
    loss: float  # the one that is trained
    lead: float  # of the better one's implicit reward, mean over the decided pairs; so are the next four
    chosen_reward: float
    rejected_reward: float
    chosen_logprob: float  # nats per sequence
    rejected_logprob: float
    kl: float  # of policy against reference, over the vocabulary at each completion position, nats per token


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSaved(Event):
    """A whole checkpoint on disk in `path` (relative to the run)."""

    kind: ClassVar[str] = "checkpoint"
    iteration: int
    path: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingChanged(Event):
    """Change of a live setting from `iteration` on; config.toml contains it already."""

    kind: ClassVar[str] = "setting"
    iteration: int
    key: str  # dotted, `ppo.kl_coef`
    old: Any  # plain TOML values
    value: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert(Event):
    """Something a user should know; `code` is stable, `message` says what to do."""

    kind: ClassVar[str] = "alert"
    iteration: int
    level: Literal["info", "warning", "error"]
    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DataChanged(Alert):
    """The run goes on with other prompts: evaluations before and after it cannot be compared."""

    kind: ClassVar[str] = "data_changed"
    level: Literal["info", "warning", "error"] = "warning"
    code: str = "data_changed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fix:
    """Remedy for an alarm that takes one key."""

    label: str  # what it does, for example "lower policy_lr to 5e-05"
    action: Literal["set", "rollback", "pause"]
    key: str = ""  # of set, dotted
    value: Any = None  # of set


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm(Alert):
    """Sign that the run goes wrong; `message` says what, and which numbers show it."""

    kind: ClassVar[str] = "alarm"
    evidence: dict[str, float]  # the numbers behind it, by name
    advice: str  # what to do about it, in plain words
    fixes: list[Fix] = field(default_factory=list)  # likeliest first


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision(Alert):
    """Decision of the convergence check, with the reason in `message`; `code` is `convergence_` and the rule."""

    kind: ClassVar[str] = "decision"
    rule: Literal["target", "plateau", "collapse", "degradation", "kl"]
    action: Literal["continue", "stop", "rollback"]
    evidence: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class RolledBack(Event):
    """Rollback of the policy after `iteration` to that after iteration `to`; the next iteration continues from it."""

    kind: ClassVar[str] = "rollback"
    iteration: int
    to: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded(Event):
    """Last event of a run: why it ended, the process's exit code, and its final state."""

    kind: ClassVar[str] = "end"
    state: EndState
    exit_code: int
    reason: str
    iteration: int
    checkpoint: str = ""  # newest whole checkpoint, relative to the run
    seconds: float = 0.0
    alarms: dict[str, str] = field(default_factory=dict)  # code and level of the unresolved ones: their sign persists


_PARENTS: tuple[type[Event], ...] = (Event, *Event.__subclasses__())
EVENT_TYPES: dict[str, type[Event]] = {cls.kind: cls for parent in _PARENTS for cls in parent.__subclasses__()}


def plain(value: Any) -> Any:
    """Return `value` as JSON has it: records become dicts, numbers that are not finite None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if hasattr(value, "_asdict"):
        return plain(value._asdict())
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value
