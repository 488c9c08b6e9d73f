"""All rules, by the code of their alarm."""

from __future__ import annotations

from trainer.config.watching import AlarmCode
from trainer.monitoring.policy_rules import entropy_collapse, kl_high, kl_negative, not_training
from trainer.monitoring.reward_rules import reward_hacking
from trainer.monitoring.rule import Rule
from trainer.monitoring.speed_rules import throughput
from trainer.monitoring.text_rules import length_exploitation, repetition, truncation
from trainer.monitoring.update_rules import (
    clip_saturation,
    critic_lost,
    gradient_spike,
    no_signal,
    ratio_spike,
    step_nan,
)

RULES: dict[AlarmCode, Rule] = {
    "step_nan": step_nan,
    "not_training": not_training,
    "no_signal": no_signal,
    "kl_high": kl_high,
    "kl_negative": kl_negative,
    "entropy_collapse": entropy_collapse,
    "clip_saturation": clip_saturation,
    "ratio_spike": ratio_spike,
    "gradient_spike": gradient_spike,
    "critic_lost": critic_lost,
    "length_exploitation": length_exploitation,
    "truncation": truncation,
    "repetition": repetition,
    "reward_hacking": reward_hacking,
    "throughput": throughput,
}
"""Most urgent first."""
