"""Outcomes of a model on held-out pairs: the leads that all numbers of an evaluation are computed from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trainer.reward_model.checkpoint import Scale
from trainer.reward_model.pairs import Group
from trainer.reward_model.predictions import PairPrediction
from trainer.reward_model.scoring import Scores

Leads = npt.NDArray[np.float64]


class Outcomes(NamedTuple):
    """P labelled pairs, and the lead of the better completion in each; in a tie, the lead of the first one."""

    leads: Leads  # [P] logits
    longer_by: Leads  # [P] tokens by which the better completion is longer
    lengths: Leads  # [P] tokens of the longer completion of the two
    is_tie: npt.NDArray[np.bool_]  # [P]
    sources: list[str]  # [P]

    def decided(self) -> Outcomes:
        """Return the pairs that are not ties."""
        return self.where(~self.is_tie)

    def where(self, chosen: npt.NDArray[np.bool_]) -> Outcomes:
        """Return the pairs for which `chosen` is true."""
        sources = [source for source, is_chosen in zip(self.sources, chosen, strict=True) if is_chosen]
        return Outcomes(self.leads[chosen], self.longer_by[chosen], self.lengths[chosen], self.is_tie[chosen], sources)


def outcomes(groups: Sequence[Group], scores: Scores, logit_std: float) -> Outcomes:
    """Compute the outcomes of all pairs of `groups`.

    scores: raw scores of their sequences, one group after the other.
    """
    leads, longer_by, lengths, ties, sources = [], [], [], [], []
    first = 0
    for group in groups:
        for pair in group.pairs:
            better, worse = group.completions[pair.better], group.completions[pair.worse]
            leads.append((scores[first + pair.better] - scores[first + pair.worse]) / logit_std)
            longer_by.append(better - worse)
            lengths.append(max(better, worse))
            ties.append(pair.is_tie)
            sources.append(pair.source)
        first += len(group.sequences)
    return Outcomes(
        np.array(leads, dtype=np.float64),
        np.array(longer_by, dtype=np.float64),
        np.array(lengths, dtype=np.float64),
        np.array(ties, dtype=np.bool_),
        sources,
    )


def pair_predictions(groups: Sequence[Group], scores: Scores, scale: Scale) -> list[PairPrediction]:
    """Build the prediction of each pair of `groups` from `scores`, which are as for `outcomes`."""
    found, first = [], 0
    for group in groups:
        rewards = ((scores[first : first + len(group.sequences)] - scale.mean) / scale.std).tolist()
        for better, worse, is_tie, strength, source, key in group.pairs:
            pair = PairPrediction(
                key=key,
                source=source,
                strength=strength,
                is_tie=is_tie,
                prompt=group.prompt_text,
                chosen=group.texts[better],
                rejected=group.texts[worse],
                chosen_reward=rewards[better],
                rejected_reward=rewards[worse],
                lead=float(scores[first + better] - scores[first + worse]) / scale.logit_std,
                chosen_tokens=group.completions[better],
                rejected_tokens=group.completions[worse],
            )
            found.append(pair)
        first += len(group.sequences)
    return found


def accuracy_of(leads: Leads) -> float:
    """Return the share of positive leads; a lead of 0 counts half. NaN without leads."""
    return float(((leads > 0) + 0.5 * (leads == 0)).mean()) if leads.size else float("nan")


def log_loss_of(leads: Leads) -> float:
    """Return the mean of -log sigmoid(lead) in nats; guessing gives log 2. NaN without leads."""
    return float(np.logaddexp(0.0, -leads).mean()) if leads.size else float("nan")
