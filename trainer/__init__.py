"""Reinforcement learning from human feedback on MLX, as a library without a user interface.

from trainer import load_config, train

ended = train(load_config("quickstart"))
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from trainer.models import blas

blas.load_blas()  # before anything imports mlx.core
blas.keep_freed_memory()

if TYPE_CHECKING:
    from trainer.config import Config as Config
    from trainer.config import load_config as load_config
    from trainer.config import parse_overrides as parse_overrides
    from trainer.engine.control import Control as Control
    from trainer.engine.training import release_thread as release_thread
    from trainer.engine.training import train as train
    from trainer.errors import TrainerError as TrainerError
    from trainer.models.actor_critic import ActorCriticLLM as ActorCriticLLM
    from trainer.models.backbone import load_backbone as load_backbone
    from trainer.ppo.loop import PPO as PPO
    from trainer.preferences.store import PreferenceStore as PreferenceStore
    from trainer.reward_model.loaded import load_reward_model as load_reward_model
    from trainer.rewards import build_rewards as build_rewards
    from trainer.rollout.experience import Experience as Experience

_HOMES = {
    "trainer.config": ("Config", "load_config", "parse_overrides"),
    "trainer.engine.control": ("Control",),
    "trainer.errors": ("TrainerError",),
    "trainer.rollout.experience": ("Experience",),
    "trainer.models.actor_critic": ("ActorCriticLLM",),
    "trainer.models.backbone": ("load_backbone",),
    "trainer.ppo.loop": ("PPO",),
    "trainer.preferences.store": ("PreferenceStore",),
    "trainer.reward_model.loaded": ("load_reward_model",),
    "trainer.rewards": ("build_rewards",),
    "trainer.engine.training": ("release_thread", "train"),
}

__all__ = [name for names in _HOMES.values() for name in names]


def __getattr__(name: str) -> Any:
    """Import only what is asked for: a configuration needs no tensors, and importing MLX takes seconds."""
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(home), name)
    raise AttributeError(f"module 'trainer' has no attribute '{name}'")
