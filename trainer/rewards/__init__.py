"""What a reward is: sources that score completions, and their weighted sum. Imports no tensor library."""

from __future__ import annotations

from types import ModuleType
from typing import assert_never

from trainer.config.reward_sources import AnySource, LengthSource, LexiconSource, PythonSource, RegexSource
from trainer.config.schema import RewardConfig
from trainer.rewards.length import LengthReward
from trainer.rewards.lexicon import LexiconReward
from trainer.rewards.mixture import Rewards, WeightedSource
from trainer.rewards.python import PythonReward
from trainer.rewards.records import RewardInput, RewardResult, RewardSource, SourceScores
from trainer.rewards.regex import RegexReward

__all__ = [
    "LengthReward",
    "LexiconReward",
    "PythonReward",
    "RegexReward",
    "RewardInput",
    "RewardResult",
    "RewardSource",
    "Rewards",
    "SourceScores",
    "WeightedSource",
    "build_rewards",
]


def build_rewards(config: RewardConfig) -> Rewards:
    """The rewards that `config` describes. Runs Python files once, as they are now. Raises RewardError."""
    modules: dict[str, ModuleType] = {}
    return Rewards(
        [WeightedSource(_source(source, modules), source.weight) for source in config.sources],
        clip=config.clip,
        normalize=config.normalize,
        missing_stop_penalty=config.missing_stop_penalty,
    )


def _source(source: AnySource, modules: dict[str, ModuleType]) -> RewardSource:
    match source:
        case PythonSource():
            return PythonReward(source.path, modules)
        case LexiconSource():
            return LexiconReward()
        case LengthSource():
            return LengthReward(source.target, source.tolerance)
        case RegexSource():
            return RegexReward(source.pattern, count=source.count, ignore_case=source.ignore_case)
        case _:
            assert_never(source)
