"""Rewards: sources that score completions, and their weighted sum. Imports no tensor library."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, assert_never

from trainer.config.reward_sources import (
    AnySource,
    ChoiceSource,
    CodeSource,
    FormatSource,
    JsonSource,
    JudgeSource,
    LengthSource,
    LexiconSource,
    MathSource,
    ModelSource,
    PythonSource,
    RegexSource,
    VerifiedSource,
)
from trainer.config.schema import RewardConfig
from trainer.errors import RewardError, shortened
from trainer.reward_types import (
    RewardInput,
    RewardResult,
    RewardSource,
    SourceScores,
    TrainerState,
    Verdict,
    Wait,
    refuse_to_wait,
)
from trainer.rewards.choice_reward import choice_verdict
from trainer.rewards.code import Trust, trust_all
from trainer.rewards.code_reward import code_verdict
from trainer.rewards.format_reward import format_verdict
from trainer.rewards.json_reward import json_verdict
from trainer.rewards.judge_answers import Answers
from trainer.rewards.math_reward import math_verdict
from trainer.rewards.python_reward import PythonReward
from trainer.rewards.weighted_sum import OnFirstRank, Overlong, Rewards, WeightedSource

if TYPE_CHECKING:
    from trainer.distributed.ranks import Ranks
    from trainer.models.backbone import LoadedModel

__all__ = [
    "Overlong",
    "PythonReward",
    "RewardInput",
    "RewardResult",
    "RewardSource",
    "Rewards",
    "SourceScores",
    "TrainerState",
    "Trust",
    "WeightedSource",
    "build_rewards",
    "load_functions",
    "trust_all",
    "verified_reward",
]


_REASON = 200  # characters of a reason


@dataclass(slots=True)
class EachReward:
    """A source that scores each completion by itself."""

    name: str
    score: Callable[[RewardInput], float]

    def __call__(self, batch: Sequence[RewardInput]) -> SourceScores:
        """Return one score per sequence."""
        return SourceScores([float(self.score(row)) for row in batch])


@dataclass(slots=True)
class VerifiedReward:
    """A source that checks each completion by itself, and says why it scores as it does in a column of its name."""

    name: str
    verdict: Callable[[RewardInput], Verdict]
    between: Callable[[], None]  # called after each completion; may raise to end the scoring
    workers: int = 1  # completions checked at a time

    def __call__(self, batch: Sequence[RewardInput]) -> SourceScores:
        """Return one score and one reason per sequence."""
        verdicts = []
        with ThreadPoolExecutor(self.workers) as pool:
            try:
                for verdict in pool.map(self.verdict, batch):
                    verdicts.append(verdict)
                    self.between()
            finally:
                pool.shutdown(cancel_futures=True)
        reasons = [shortened(" ".join(verdict.reason.split()), _REASON) for verdict in verdicts]
        return SourceScores([verdict.score for verdict in verdicts], extra={self.name: reasons})


def verified_reward(
    source: VerifiedSource,
    columns: Collection[str] | None = None,
    trust: Trust = trust_all,
    between: Callable[[], None] = lambda: None,
) -> RewardSource:
    """Return the source that checks answers. Raises RewardError if it cannot check.

    columns, trust: as for `build_rewards`. between: called after each response; may raise to end the scoring.
    """
    if columns is not None and source.column and source.column not in columns:
        raise RewardError(
            f"reward source '{source.kind}' needs '{source.column}', which is not a column of the data; "
            f"columns: {', '.join(columns) or 'none'}"
        )
    match source:
        case MathSource():
            return VerifiedReward("math", math_verdict(source), between)
        case ChoiceSource():
            return VerifiedReward("choice", choice_verdict(source), between)
        case JsonSource():
            return VerifiedReward("json", json_verdict(source), between)
        case FormatSource():
            return VerifiedReward("format", format_verdict(source), between)
        case CodeSource():
            return VerifiedReward("code", code_verdict(source, trust), between, os.cpu_count() or 1)
        case _:
            assert_never(source)


def build_rewards(
    config: RewardConfig,
    *,
    backbone: LoadedModel | None = None,
    max_new_tokens: int = 0,
    micro_batch_tokens: int = 2048,
    between_passes: Callable[[], None] = lambda: None,
    trust: Trust = trust_all,
    modules: dict[str, ModuleType] | None = None,
    ranks: Ranks | None = None,
    columns: Collection[str] | None = None,
    answers: Answers | None = None,
    wait: Wait = refuse_to_wait,
) -> Rewards:
    """Build the rewards that `config` describes. Runs Python files once, as they are now. Raises RewardError.

    Reward models are loaded on the calling thread, and only that thread may use them.

    backbone: shared by the reward models that were trained on it, whatever adapter it has; the others load their own.
    max_new_tokens: the maximum length of a response, for `overlong_penalty`.
    micro_batch_tokens: tokens of one pass of reward models, padding included.
    between_passes: called after each pass of a reward model and each answer checked; may raise to end the scoring.
    trust: raises UntrustedCodeError for Python that must not run.
    modules: files that `load_functions` has run.
    ranks: those of the run, if there are several: reward models score a share of each batch on each, and functions
    run on the first alone.
    columns: as for `PythonReward`.
    answers: those that judges have given, and will give.
    wait: called while a judge is down.
    """
    modules = {} if modules is None else modules
    backbones = [] if backbone is None else [backbone]

    def built(source: AnySource) -> RewardSource:
        match source:
            case PythonSource() if ranks is not None and not ranks.alone:
                function = PythonReward(source.path, modules, trust, columns) if ranks.leads else None
                return OnFirstRank(function.name if function else source.path, function, ranks)
            case PythonSource():
                return PythonReward(source.path, modules, trust, columns)
            case MathSource() | CodeSource() if ranks is not None and not ranks.alone:
                first = verified_reward(source, columns, trust, between_passes) if ranks.leads else None
                return OnFirstRank(source.kind, first, ranks)
            case MathSource() | ChoiceSource() | JsonSource() | FormatSource() | CodeSource():
                return verified_reward(source, columns, trust, between_passes)
            case JudgeSource():
                from trainer.rewards.judge_reward import judge_reward  # imports an HTTP client

                if ranks is not None and not ranks.leads:
                    return OnFirstRank("judge", None, ranks, may_wait=True)
                kept = Answers() if answers is None else answers
                judge = judge_reward(source, kept, trust=trust, between=between_passes, wait=wait)
                return judge if ranks is None or ranks.alone else OnFirstRank("judge", judge, ranks, may_wait=True)
            case LexiconSource():
                from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer

                # -1 (sad) to 1 (cheerful). Hutto and Gilbert 2014, VADER: A Parsimonious Rule-based Model for Sentiment
                # Analysis of Social Media Text.
                polarity = SentimentIntensityAnalyzer().polarity_scores
                return EachReward("lexicon", lambda row: polarity(row.completion)["compound"])
            case LengthSource(target=target, tolerance=tolerance):
                # 0 to -1, -0.5 at the tolerance. It is smooth away from the target and never flat, so that the policy
                # learns from responses of any length.
                def score(row: RewardInput) -> float:
                    distance = abs(len(row.completion_ids) - target)
                    return -distance / (distance + tolerance)

                return EachReward("length", score)
            case RegexSource():
                pattern = re.compile(source.pattern, re.IGNORECASE if source.ignore_case else re.NOFLAG)
                if source.count:
                    return EachReward("regex", lambda row: sum(1 for _ in pattern.finditer(row.completion)))
                return EachReward("regex", lambda row: pattern.search(row.completion) is not None)
            case ModelSource():
                from trainer.rewards.model_reward import load_model_reward  # imports MLX

                return load_model_reward(
                    source, backbones, micro_batch_tokens=micro_batch_tokens, between_passes=between_passes, ranks=ranks
                )
            case _:
                assert_never(source)

    return Rewards(
        [WeightedSource(built(source), source.weight) for source in config.sources],
        clip=config.clip,
        normalize=config.normalize,
        missing_stop_penalty=config.missing_stop_penalty,
        overlong=Overlong(config.overlong_penalty, config.overlong_tokens, max_new_tokens),
    )


def load_functions(
    config: RewardConfig, *, trust: Trust = trust_all, columns: Collection[str] | None = None
) -> dict[str, ModuleType]:
    """Load the Python functions of `config`, and return the files that were run; check what checks or judges answers.

    Called before a model is loaded, so that errors do not wait for that. `build_rewards` takes the result as `modules`.
    trust, columns: as for `build_rewards`. Raises RewardError.
    """
    modules: dict[str, ModuleType] = {}
    for source in config.sources:
        if isinstance(source, PythonSource):
            PythonReward(source.path, modules, trust, columns)
        elif isinstance(source, VerifiedSource):
            verified_reward(source, columns, trust)
        elif isinstance(source, JudgeSource):
            from trainer.rewards.judge_reward import check_judge  # imports an HTTP client

            check_judge(source, trust)
    return modules
