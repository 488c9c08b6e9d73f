"""Weighted sum of all reward sources, normalised, clipped and penalised."""

from __future__ import annotations

import math
from collections.abc import Sequence
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

    def __init__(self, name: str, source: RewardSource | None, ranks: Ranks, *, may_wait: bool = False) -> None:
        """Wrap `source`, which is None on other ranks than the first.

        may_wait: the others wait for it without the limit of `run.rank_timeout`.
        """
        self.name = name
        self.source = source
        self._ranks = ranks
        self._may_wait = may_wait

    def __call__(self, batch: Sequence[RewardInput]) -> SourceScores:
        """Return the first rank's scores of `batch`. Raises its RewardError, and RankError on the others.

        What its function logged for the samples stays there, where they are saved.
        """
        extra: dict[str, list[Any]] = {}
        waited: list[SourceScores] = []
        if self._may_wait and not self._ranks.alone:
            self._ranks.meet(lambda: waited.append(self.source(batch)) if self.source else None)

        def scores() -> list[Any] | None:
            if self.source is None:
                return None
            found = waited[0] if waited else self.source(batch)
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
        names: list[str] = []
        for weighted in sources:
            name, count = weighted.source.name, sum(one.partition("#")[0] == weighted.source.name for one in names)
            names.append(f"{name}#{count + 1}" if count else name)
        self._sources = dict(zip(names, sources, strict=True))
        found = (one.source.source if isinstance(one.source, OnFirstRank) else one.source for one in sources)
        self._functions = [source for source in found if isinstance(source, PythonReward)]
        self._bound = clip or math.inf
        self._normalize = normalize
        self._penalty = missing_stop_penalty
        self._overlong = overlong or Overlong()
        self._moments = RunningMoments()

    def use_micro_batches(self, tokens: int) -> None:
        """Have reward models read at most `tokens` tokens in one pass, padding included, from the next batch on."""
        for weighted in self._sources.values():
            if isinstance(weighted.source, ModelScorer):
                weighted.source.micro_batch_tokens = tokens

    def use_state(self, state: TrainerState) -> None:
        """Pass `state` to the functions that ask for `trainer_state`, from the next batch on."""
        for function in self._functions:
            function.state = state

    @property
    def asks_for_state(self) -> bool:
        """Return whether a function on this rank names `trainer_state`, so that its scores may change."""
        return any(function.asks_for_state for function in self._functions)

    def __call__(self, batch: Sequence[RewardInput], *, update_statistics: bool = True) -> RewardResult:
        """Score `batch`, B sequences.

        update_statistics: False (as in evaluation) normalises by the running statistics without changing them; batch
        statistics are always those of `batch`.

        Raises RewardError if a source fails or a reward does not fit float32; running statistics then stay unchanged.
        """
        if not batch:
            return RewardResult([], None, {name: [] for name in self._sources})
        raw, scores, tokens = self._sums(batch)
        applies = [any(result.scores[row] is not None for result in raw.values()) for row in range(len(batch))]
        scores = self._scaled(np.where(applies, scores, math.nan), update=update_statistics)
        truncated, lengths = zip(*((row.truncated, len(row.completion_ids)) for row in batch), strict=True)
        by_token = any(result.token_rewards is not None for result in raw.values())
        parts: dict[str, list[float]] = {}
        for name, result in raw.items():
            parts[name] = [math.nan if score is None else score for score in result.scores]
            parts |= {f"{name}.{detail}": values for detail, values in result.details.items()}
        return RewardResult(
            (scores - self.penalties(np.array(truncated), np.array(lengths))).tolist(),
            [np.clip(rewards, -self._bound, self._bound).tolist() for rewards in tokens] if by_token else None,
            parts,
            {
                name if column == self._sources[name].source.name else column: values
                for name, result in raw.items()
                for column, values in result.extra.items()
            },
        )

    def penalties(self, truncated: npt.NDArray[Any], lengths: npt.NDArray[Any]) -> Floats:
        """Return what is subtracted from the scores of responses, in step 4."""
        most, tokens = self._overlong.max_tokens, self._overlong.tokens
        excess = lengths.astype(np.float64) - (most - tokens)
        share = np.clip(excess / tokens, 0.0, 1.0) if tokens else np.where(excess >= 0, 1.0, 0.0)
        return np.asarray(self._penalty * truncated + self._overlong.penalty * share)

    def so_far(self, batch: Sequence[RewardInput]) -> list[float]:
        """Score responses that are not complete, on the scale of the newest scores; statistics stay as they are.

        A source that rewards single tokens, or does not apply, counts 0; penalties are for complete responses. Not for
        `normalize = "batch"`. Raises RewardError.
        """
        if not batch:
            return []
        _, scores, _ = self._sums(batch)
        found: list[float] = self._scaled(scores, update=False).tolist()
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

    def _sums(self, batch: Sequence[RewardInput]) -> tuple[dict[str, SourceScores], Floats, list[Floats]]:
        """Return what each source gives, the weighted sums [B] of those that score sequences, and those of each token.

        Raises RewardError, also where one does not fit float32.
        """
        sources = {name: weighted.source for name, weighted in self._sources.items()}
        called = [source for source in sources.values() if isinstance(source, PythonReward)]
        found = iter(scored_together(called, batch))
        raw = {
            name: next(found) if isinstance(source, PythonReward) else source(batch) for name, source in sources.items()
        }
        scores = np.zeros(len(batch))
        tokens = [np.zeros(len(row.completion_ids)) for row in batch]
        with np.errstate(over="ignore", invalid="ignore"):  # the check below names the sequence
            for name, result in raw.items():
                weight = self._sources[name].weight
                if result.token_rewards is None:
                    scores += weight * np.array([score or 0.0 for score in result.scores])
                    continue
                for index, rewards in enumerate(result.token_rewards):
                    tokens[index] += weight * np.array(rewards)
        for index, row in enumerate(batch):
            largest = float(np.abs(np.append(tokens[index], scores[index])).max())
            if not largest <= _LARGEST:  # NaN too
                raise RewardError(
                    f"{sequence_name(index, row.prompt)} has a weighted reward of size {largest:.3g}: must be at "
                    f"most {_LARGEST:.3g}, float32's largest; lower the weights or bound the scores"
                )
        return raw, scores, tokens

    def _scaled(self, scores: Floats, *, update: bool) -> Floats:
        """Return `scores` after steps 2 and 3."""
        if self._normalize != "off":
            moments = RunningMoments() if self._normalize == "batch" else self._moments
            known = scores[~np.isnan(scores)]
            if known.size and (update or self._normalize == "batch"):
                moments.update(known)
            scores = moments.normalize(scores)
        return np.clip(scores, -self._bound, self._bound)
