"""Sections about watching a run: alarms, and the action when it goes wrong or reaches its goal."""

from __future__ import annotations

from typing import Literal

from trainer.config.fields import Section, setting

AlarmCode = Literal[
    "step_nan",
    "not_training",
    "no_signal",
    "kl_high",
    "kl_negative",
    "entropy_collapse",
    "clip_saturation",
    "ratio_spike",
    "gradient_spike",
    "critic_lost",
    "length_exploitation",
    "truncation",
    "repetition",
    "reward_hacking",
    "throughput",
]

Action = Literal["off", "continue", "stop", "rollback"]


class ConvergenceConfig(Section):
    """[convergence]: what is decided when a run has got where it should, or goes where it should not.

    continue: tell it and go on; rollback: go on from the best checkpoint, or else the oldest kept, with lower learning
    rates.
    """

    window: int = setting(
        10, "Iterations that a decision looks at; it is compared with those before them.", unit="iterations", ge=2
    )
    target_score: float = setting(
        0.0, "Mean score over the window (of an evaluation, where there are any) to reach.", ge=-1e6, le=1e6
    )
    on_target: Action = setting("off", "When target_score is reached.")
    plateau: float = setting(
        0.1,
        "Mean scores of two windows that differ by less are a plateau.",
        unit="deviations of the score",
        ge=0,
    )
    on_plateau: Action = setting("off", "When the score moves no more.")
    on_collapse: Action = setting("continue", "When the entropy falls under a fifth of what it was at the start.")
    degradation: float = setting(
        1.0, "A fall below the best so far by more than this is a degradation.", unit="deviations of the score", gt=0
    )
    on_degradation: Action = setting("continue", "When the score falls back.")
    kl_limit: float = setting(
        0.0, "Mean KL over the window that is too much; 0: three times kl_target if adaptive.", unit="nats", ge=0
    )
    on_kl: Action = setting("continue", "When the KL is above kl_limit, or runs away.")
    max_rollbacks: int = setting(2, "Roll back at most so often; then stop.", ge=0)
    rollback_lr: float = setting(0.5, "Factor on both learning rates at each rollback.", gt=0, le=1)


class HealthConfig(Section):
    """[health]: alarms when a run goes wrong."""

    alarms: bool = setting(True, "Watch the run and tell what goes wrong, with evidence and a way out.")
    ignore: list[AlarmCode] = setting([], "Codes of alarms that are not to be told.")
    pause: bool = setting(False, "Pause the run at an alarm of level error, until someone says what to do.")
