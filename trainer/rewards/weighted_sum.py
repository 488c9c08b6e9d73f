"""Weighted sum of all reward sources, normalised, clipped and penalised."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from trainer.errors import RewardError
from trainer.reward_types import (
    ModelScorer,
    RewardInput,
    RewardResult,
    RewardSource,
    SourceScores,
    TrainerState,
    sequence_name,
)
from trainer.rewards.python_reward import PythonReward, scored_together

if TYPE_CHECKING:
    from trainer.distributed.ranks import Ranks

_LARGEST = float(np.finfo(np.float32).max)  # training keeps rewards in float32
SMALLEST_DEVIATION = 1e-8  # below it, scores differ by rounding alone and are only centred
Floats = npt.NDArray[np.float64]


class WeightedSource(NamedTuple):
    """A source and the factor on its scores."""

    source: RewardSource
    weight: float = 1.0


class Overlong(NamedTuple):
    """Penalty on responses whose length comes near the maximum, max_tokens.

        penalty clip((length - (max_tokens - tokens)) / tokens, 0, 1)

    Yu et al. 2025 (DAPO, arXiv 2503.14476), eq. 13. The quality of a response that was cut short is unknown, and a soft
    bound lets the policy learn to stop before that. With tokens = 0, only the maximum length itself is penalised.
    """

    penalty: float = 0.0
    tokens: int = 0
    max_tokens: int = 0

    def __call__(self, lengths: Floats) -> Floats:
        """Return the penalties to subtract from the scores of responses of `lengths` tokens."""
        excess = lengths - (self.max_tokens - self.tokens)
        share = np.clip(excess / self.tokens, 0.0, 1.0) if self.tokens else np.where(excess >= 0, 1.0, 0.0)
        return np.asarray(self.penalty * share)


@dataclass(slots=True)
class RunningMoments:
    """Count, mean and sum of squared deviations of a stream of numbers, in float64.

    A batch b is merged into the statistics so far, a, by

        mean = mean_a + d n_b / n,   m2 = m2_a + m2_b + d^2 n_a n_b / n,   d = mean_b - mean_a, n = n_a + n_b

    Chan, Golub and LeVeque 1979, Updating formulae and a pairwise algorithm for computing sample variances.
    """

    count: int = 0
    mean: float = 0.0
    m2: float = 0.0

    @property
    def deviation(self) -> float:
        """Population standard deviation; 0 before the first number."""
        return math.sqrt(self.m2 / self.count) if self.count else 0.0

    def update(self, batch: Floats) -> None:
        """Add a batch of finite numbers, at least one."""
        batch_mean = float(batch.mean())
        batch_m2 = float(np.square(batch - batch_mean).sum())
        count = self.count + batch.size
        difference = batch_mean - self.mean
        self.mean += difference * batch.size / count
        self.m2 += batch_m2 + difference * difference * self.count * batch.size / count
        self.count = count

    def normalize(self, values: Floats) -> Floats:
        """Return `values` minus the mean, divided by the deviation if that is at least 1e-8; unchanged at first."""
        centred = values - self.mean
        return centred / self.deviation if self.deviation >= SMALLEST_DEVIATION else centred


class OnFirstRank:
    """A source that sees the whole batch on the first rank, and of which the others get the scores.

    So a user's function runs once for each batch, as on one machine, and other machines run no code of it.
    """

    def __init__(self, name: str, source: RewardSource | None, ranks: Ranks) -> None:
        """Wrap `source`, which is None on other ranks than the first."""
        self.name = name
        self.source = source
        self._ranks = ranks

    def __call__(self, batch: Sequence[RewardInput]) -> SourceScores:
        """Return the first rank's scores of `batch`. Raises its RewardError, and RankError on the others.

        What its function logged for the samples stays there, where they are saved.
        """
        extra: dict[str, list[Any]] = {}

        def scores() -> list[Any] | None:
            if self.source is None:
                return None
            found = self.source(batch)
            extra.update(found.extra)
            return [found.scores, found.token_rewards, dict(found.details)]

        found = self._ranks.together(scores)[0]
        assert found is not None
        return SourceScores(*found)._replace(extra=extra)


class Rewards:
    """Scorer of sequences by several sources, in four steps.

    1. Sum the weighted scores of the sources that apply to a sequence. If none does, it has no score, NaN, and is in no
       statistic of the next step.
    2. `normalize`: scale to mean 0 and deviation 1, over the batch, or over all scores of the run and this batch.
    3. `clip`: bound to -clip..clip, if clip > 0. This follows step 2, so it bounds outliers, in deviations.
    4. Subtract `missing_stop_penalty` if the response was cut short, and `overlong` for its length. This is last, so
       that neither step 2 nor step 3 undoes the penalty. It follows the EOS trick of The N+ Implementation Details of
       RLHF with PPO (Huang et al. 2024, arXiv 2403.17031), which replaces the score by -1. Subtracting, as TRL does,
       keeps the order of unfinished responses.

    Token rewards are weighted, summed and clipped one by one. They are not normalised: subtracting a mean from every
    token would reward or punish length.
    """

    def __init__(
        self,
        sources: Sequence[WeightedSource],
        *,
        clip: float = 0.0,
        normalize: Literal["off", "batch", "running"] = "off",
        missing_stop_penalty: float = 0.0,
        overlong: Overlong | None = None,
    ) -> None:
        names = _unique([weighted.source.name for weighted in sources])
        self._sources = dict(zip(names, sources, strict=True))
        self._clip = clip
        self._normalize = normalize
        self._penalty = missing_stop_penalty
        self._overlong = overlong or Overlong()
        self._moments = RunningMoments()

    def use_micro_batches(self, tokens: int) -> None:
        """Have reward models read at most `tokens` tokens in one pass, padding included, from the next batch on."""
        for model in self._models:
            model.micro_batch_tokens = tokens

    def use_state(self, state: TrainerState) -> None:
        """Pass `state` to the functions that ask for `trainer_state`, from the next batch on."""
        for function in self._functions():
            function.state = state

    @property
    def asks_for_state(self) -> bool:
        """Return whether a function on this rank names `trainer_state`, so that its scores may change."""
        return any(function.asks_for_state for function in self._functions())

    @property
    def _models(self) -> list[ModelScorer]:
        return [weighted.source for weighted in self._sources.values() if isinstance(weighted.source, ModelScorer)]

    def __call__(self, batch: Sequence[RewardInput], *, update_statistics: bool = True) -> RewardResult:
        """Score `batch`, B sequences.

        update_statistics: False (as in evaluation) normalises by the running statistics without changing them; batch
        statistics are always those of `batch`.

        Raises RewardError if a source fails or a reward does not fit float32; running statistics then stay unchanged.
        """
        if not batch:
            return RewardResult([], None, {name: [] for name in self._sources})
        raw = self._raw(batch)
        scores, tokens = self._sums(raw, batch)
        _check_range(scores, tokens, batch)
        applies = [any(result.scores[row] is not None for result in raw.values()) for row in range(len(batch))]
        scores = np.where(applies, scores, math.nan)
        scores = self._clipped(self._normalized(scores, update_statistics))
        scores = scores - self.penalties(
            np.array([row.truncated for row in batch]), np.array([len(row.completion_ids) for row in batch])
        )
        by_token = any(result.token_rewards is not None for result in raw.values())
        return RewardResult(
            scores.tolist(),
            [self._clipped(rewards).tolist() for rewards in tokens] if by_token else None,
            _parts(raw),
            {column: values for result in raw.values() for column, values in result.extra.items()},
        )

    def penalties(self, truncated: npt.NDArray[Any], lengths: npt.NDArray[Any]) -> Floats:
        """Return what is subtracted from the scores of responses, in step 4."""
        return self._penalty * truncated + self._overlong(lengths.astype(np.float64))

    def so_far(self, batch: Sequence[RewardInput]) -> list[float]:
        """Score responses that are not complete, on the scale of the newest scores; statistics stay as they are.

        A source that rewards single tokens, or does not apply, counts 0; penalties are for complete responses. Not for
        `normalize = "batch"`. Raises RewardError.
        """
        if not batch:
            return []
        raw = self._raw(batch)
        scores, _ = self._sums({name: found for name, found in raw.items() if found.token_rewards is None}, batch)
        _check_range(scores, [np.zeros(0)] * len(batch), batch)
        found: list[float] = self._clipped(self._normalized(scores, update=False)).tolist()
        return found

    def state(self) -> dict[str, Any]:
        """Return the running statistics as plain values, which JSON keeps exactly."""
        return asdict(self._moments)

    def restore(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned. Raises RewardError for anything else."""
        try:
            self._moments = RunningMoments(int(state["count"]), float(state["mean"]), float(state["m2"]))
        except (KeyError, TypeError, ValueError):
            raise RewardError(
                f"reward statistics {state!r}: must be the numbers count, mean, m2; use another checkpoint"
            ) from None

    def _functions(self) -> Iterator[PythonReward]:
        for weighted in self._sources.values():
            source = weighted.source.source if isinstance(weighted.source, OnFirstRank) else weighted.source
            if isinstance(source, PythonReward):
                yield source

    def _raw(self, batch: Sequence[RewardInput]) -> dict[str, SourceScores]:
        sources = {name: weighted.source for name, weighted in self._sources.items()}
        functions = [source for source in sources.values() if isinstance(source, PythonReward)]
        found = iter(scored_together(functions, batch))
        return {
            name: next(found) if isinstance(source, PythonReward) else source(batch) for name, source in sources.items()
        }

    def _sums(self, raw: Mapping[str, SourceScores], batch: Sequence[RewardInput]) -> tuple[Floats, list[Floats]]:
        scores = np.zeros(len(batch))
        tokens = [np.zeros(len(row.completion_ids)) for row in batch]
        with np.errstate(over="ignore", invalid="ignore"):  # _check_range names the sequence
            for name, result in raw.items():
                weight = self._sources[name].weight
                if result.token_rewards is None:
                    scores += weight * np.array([score or 0.0 for score in result.scores])
                    continue
                for index, rewards in enumerate(result.token_rewards):
                    tokens[index] += weight * np.array(rewards)
        return scores, tokens

    def _normalized(self, scores: Floats, update: bool) -> Floats:
        if self._normalize == "off":
            return scores
        moments = RunningMoments() if self._normalize == "batch" else self._moments
        known = scores[~np.isnan(scores)]
        if known.size and (update or self._normalize == "batch"):
            moments.update(known)
        return moments.normalize(scores)

    def _clipped(self, values: Floats) -> Floats:
        return np.clip(values, -self._clip, self._clip) if self._clip > 0 else values


def _unique(names: list[str]) -> list[str]:
    """Make names unique: the second 'regex' becomes 'regex#2'."""
    counts = [names[: position + 1].count(name) for position, name in enumerate(names)]
    return [name if count == 1 else f"{name}#{count}" for name, count in zip(names, counts, strict=True)]


def _parts(raw: Mapping[str, SourceScores]) -> dict[str, list[float]]:
    parts: dict[str, list[float]] = {}
    for name, result in raw.items():
        parts[name] = [math.nan if score is None else score for score in result.scores]
        parts |= {f"{name}.{detail}": values for detail, values in result.details.items()}
    return parts


def _check_range(scores: Floats, tokens: Sequence[Floats], batch: Sequence[RewardInput]) -> None:
    for index, row in enumerate(batch):
        largest = float(np.abs(np.append(tokens[index], scores[index])).max())
        if not largest <= _LARGEST:  # NaN too
            raise RewardError(
                f"{sequence_name(index, row.prompt)} has a weighted reward of size {largest:.3g}: must be at "
                f"most {_LARGEST:.3g}, float32's largest; lower the weights or bound the scores"
            )
