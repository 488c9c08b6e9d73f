"""Sections about watching a run: alarms, and actions when it goes wrong or reaches its goal."""

from __future__ import annotations

from typing import Literal

from trainer.config.fields import Section, setting

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
