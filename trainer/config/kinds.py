"""The configurations of all kinds of run."""

from __future__ import annotations

from trainer.config.dpo import DPOConfig
from trainer.config.fields import Section
from trainer.config.reward_model import RewardModelConfig
from trainer.config.schema import Config

AnyConfig = Config | RewardModelConfig | DPOConfig
SCHEMAS: dict[str, type[Section]] = {"ppo": Config, "reward-model": RewardModelConfig, "dpo": DPOConfig}
