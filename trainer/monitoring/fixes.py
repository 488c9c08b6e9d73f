"""Fixes for an alarm, each applied with one key and computed from the configuration; None if nothing would change.

Step sizes follow the tuning guide of the PPO concepts reference: half or double (kl_coef 0.05 to 0.1).
"""

from __future__ import annotations

from typing import Any

from trainer.config.ppo import PPOConfig
from trainer.config.schema import Config, OptimConfig
from trainer.events import Fix
from trainer.monitoring.history import History
from trainer.plurals import counted

_SMALLEST_CLIP = 0.05


def raise_kl_coef(config: Config, now: float) -> Fix | None:
    """Double the KL coefficient; now: that of the newest iteration, which a controller may have moved."""
    strongest = max(config.ppo.kl_coef, now)
    return _set("ppo.kl_coef", config.ppo.kl_coef, strongest * 2 or _default(PPOConfig, "kl_coef"), most=100)


def lower_policy_lr(config: Config) -> Fix | None:
    """Halve the policy's learning rate."""
    return _set("optim.policy_lr", config.optim.policy_lr, config.optim.policy_lr / 2)


def raise_policy_lr(config: Config) -> Fix | None:
    """Multiply the policy's learning rate by ten, or set its default if it is 0."""
    rate = config.optim.policy_lr
    return _set("optim.policy_lr", rate, rate * 10 or _default(OptimConfig, "policy_lr"), most=1)


def lower_value_lr(config: Config) -> Fix | None:
    """Divide the critic's learning rate by ten."""
    return _set("optim.value_lr", config.optim.value_lr, config.optim.value_lr / 10)


def raise_value_lr(config: Config) -> Fix | None:
    """Multiply the critic's learning rate by three, or set its default if it is 0."""
    rate = config.optim.value_lr
    return _set("optim.value_lr", rate, rate * 3 or _default(OptimConfig, "value_lr"), most=1)


def lower_value_coef(config: Config) -> Fix | None:
    """Divide the weight of the value loss by ten."""
    return _set("ppo.value_coef", config.ppo.value_coef, config.ppo.value_coef / 10)


def lower_clip(config: Config) -> Fix | None:
    """Halve the clip."""
    clip = config.ppo.clip
    return _set("ppo.clip", clip, clip / 2) if clip > _SMALLEST_CLIP else None


def fewer_epochs(config: Config) -> Fix | None:
    """Halve the passes over each batch."""
    return _set("ppo.epochs", config.ppo.epochs, max(config.ppo.epochs // 2, 1))


def entropy_bonus(config: Config) -> Fix | None:
    """Start or double the entropy bonus."""
    return _set("ppo.entropy_coef", config.ppo.entropy_coef, config.ppo.entropy_coef * 2 or 0.01)


def sample_everything(config: Config) -> list[Fix | None]:
    """Sample from all tokens, as the KL assumes."""
    rollout = config.rollout
    return [_set("rollout.top_p", rollout.top_p, 1.0), _set("rollout.top_k", rollout.top_k, 0)]


def reward_length(config: Config, target: float, deviation: float) -> Fix | None:
    """Also reward a length: 16 tokens off cost one deviation of the score."""
    if not (target >= 1 and deviation > 0):
        return None
    sources = [source.model_dump() for source in config.reward.sources]
    length = {"kind": "length", "target": round(target), "tolerance": 16, "weight": _rounded(2 * deviation)}
    return Fix(
        label=f"also reward a length of {counted(round(target), 'token')}",
        action="set",
        key="reward.sources",
        value=[*sources, length],
    )


def roll_back(history: History) -> Fix | None:
    """Roll back to the best checkpoint, if there is one."""
    return Fix(label="roll back to the best checkpoint", action="rollback") if history.has_checkpoint else None


def pause() -> Fix:
    """Pause the run, so that someone can look."""
    return Fix(label="pause and look at the samples", action="pause")


def _set(key: str, old: float, value: float, *, most: float = float("inf")) -> Fix | None:
    value = value if isinstance(value, int) else _rounded(min(value, most))
    if value == old:
        return None
    verb = "raise" if value > old else "lower"
    return Fix(label=f"{verb} {key.partition('.')[2]} to {value:g}", action="set", key=key, value=value)


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


def _default(section: Any, name: str) -> float:
    return float(section.model_fields[name].default)
