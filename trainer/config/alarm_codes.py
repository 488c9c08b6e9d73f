"""The codes of the alarms, for settings that name them."""

from typing import Literal

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
