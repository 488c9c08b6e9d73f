"""What a reward is: sources that score completions, and their weighted sum. Imports no tensor library."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, assert_never

from trainer.config.reward_sources import AnySource, LengthSource, LexiconSource, ModelSource, PythonSource, RegexSource
from trainer.config.schema import RewardConfig
from trainer.rewards.code import Trust, trust_all
from trainer.rewards.length import LengthReward
from trainer.rewards.lexicon import LexiconReward
from trainer.rewards.mixture import Overlong, Rewards, WeightedSource
from trainer.rewards.python import PythonReward
from trainer.rewards.records import RewardInput, RewardResult, RewardSource, SourceScores
from trainer.rewards.regex import RegexReward

if TYPE_CHECKING:
    from trainer.models.loading import LoadedModel

__all__ = [
    "LengthReward",
    "LexiconReward",
    "Overlong",
    "PythonReward",
    "RegexReward",
    "RewardInput",
    "RewardResult",
    "RewardSource",
    "Rewards",
    "SourceScores",
    "Trust",
    "WeightedSource",
    "build_rewards",
    "load_functions",
    "trust_all",
]


def build_rewards(
    config: RewardConfig,
    *,
    backbone: LoadedModel | None = None,
    max_new_tokens: int = 0,
    micro_batch_tokens: int = 2048,
    heed: Callable[[], None] = lambda: None,
    trust: Trust = trust_all,
    modules: dict[str, ModuleType] | None = None,
) -> Rewards:
    """The rewards that `config` describes. Runs Python files once, as they are now. Raises RewardError.

    Reward models are loaded on the calling thread, which alone may use them. backbone: stands under those that were
    trained on it, with whatever adapter it has; the others load their own. max_new_tokens: the longest that a response
    can be, for `overlong_penalty`; micro_batch_tokens: of one pass of reward models, padding counted; heed: called
    after each, and may raise to end the scoring; trust: raises UntrustedCodeError for Python that must not run;
    modules: files that `load_functions` has run.
    """
    modules = {} if modules is None else modules

    def python(source: PythonSource) -> RewardSource:
        return PythonReward(source.path, modules, trust=trust)

    backbones = [] if backbone is None else [backbone]

    def model(source: ModelSource) -> RewardSource:
        from trainer.rewards.model import load_model_reward  # imports MLX

        return load_model_reward(source, backbones, micro_batch_tokens=micro_batch_tokens, heed=heed)

    return Rewards(
        [WeightedSource(_source(source, python, model), source.weight) for source in config.sources],
        clip=config.clip,
        normalize=config.normalize,
        missing_stop_penalty=config.missing_stop_penalty,
        overlong=Overlong(config.overlong_penalty, config.overlong_tokens, max_new_tokens),
    )


def load_functions(config: RewardConfig, *, trust: Trust = trust_all) -> dict[str, ModuleType]:
    """Find the Python functions of `config`, before minutes go into loading a model; returns the files that were run.

    trust: as of `build_rewards`, which takes what is returned. Raises RewardError as that does.
    """
    modules: dict[str, ModuleType] = {}
    for source in config.sources:
        if isinstance(source, PythonSource):
            PythonReward(source.path, modules, trust=trust)
    return modules


def _source(
    source: AnySource,
    python: Callable[[PythonSource], RewardSource],
    model: Callable[[ModelSource], RewardSource],
) -> RewardSource:
    match source:
        case PythonSource():
            return python(source)
        case LexiconSource():
            return LexiconReward()
        case LengthSource():
            return LengthReward(source.target, source.tolerance)
        case RegexSource():
            return RegexReward(source.pattern, count=source.count, ignore_case=source.ignore_case)
        case ModelSource():
            return model(source)
        case _:
            assert_never(source)
