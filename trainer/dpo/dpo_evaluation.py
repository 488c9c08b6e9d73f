"""Evaluation of the implicit reward on held-out pairs, by the same measures as a reward model."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import mlx.core as mx
import numpy as np

from trainer import maths
from trainer.arrays import filled
from trainer.config.dpo import DPOConfig
from trainer.distributed.ranks import ALONE, Ranks
from trainer.dpo.dpo_learner import implicit_rewards, losses, to_completions
from trainer.events import DPOEvaluation
from trainer.fitting.micro_batches import micro_batch_rows
from trainer.models.actor_critic import ActorCriticLLM
from trainer.models.logprobs import token_logprobs
from trainer.models.vocabulary import Head
from trainer.preference_data.groups import Group
from trainer.reward_model.pair_evaluation import Leads, outcomes_of, report_on
from trainer.reward_model.predictions import Baseline

# Before the first step, policy and reference are the same, so every pair is even.
_UNTRAINED = Baseline(accuracy=0.5, log_loss=math.log(2))


class Read(NamedTuple):
    """Implicit rewards, log-probs and KL of the policy on N completions."""

    rewards: Leads  # [N] implicit
    logprobs: Leads  # [N] nats per sequence
    kl: float  # of policy against reference, mean over all tokens of all completions


def evaluate_pairs(
    actor: ActorCriticLLM,
    groups: Sequence[Group],
    config: DPOConfig,
    *,
    iteration: int,
    length_slope: float,
    clock: Callable[[], float],
    progress: Callable[[int, int], None] = lambda done, total: None,
    ranks: Ranks = ALONE,
) -> DPOEvaluation:
    """Evaluate the policy on held-out `groups`, after `iteration` steps. length_slope: as for `report_on`.

    ranks: each reads a share of the completions.
    """
    started = clock()
    mx.reset_peak_memory()
    read = read_completions(actor, groups, config, progress, ranks)
    outcomes = outcomes_of(groups, read.rewards, 1.0)
    found = report_on(outcomes, length_slope=length_slope, untrained=_UNTRAINED)
    decided = outcomes.decided()
    chosen, rejected = decided.rows.T
    return DPOEvaluation(
        iteration=iteration,
        pairs=found.accuracy.pairs,
        ties=int(outcomes.is_tie.sum()),
        accuracy=found.accuracy.value,
        accuracy_low=found.accuracy.low,
        accuracy_high=found.accuracy.high,
        log_loss=found.log_loss,
        calibration_error=found.calibration_error,
        length_accuracy=found.length.accuracy,
        untrained_accuracy=_UNTRAINED.accuracy,
        loss=_mean(np.array(losses(mx.array(decided.leads.astype(np.float32)), config.train))),
        lead=_mean(decided.leads),
        chosen_reward=_mean(read.rewards[chosen]),
        rejected_reward=_mean(read.rewards[rejected]),
        chosen_logprob=_mean(read.logprobs[chosen]),
        rejected_logprob=_mean(read.logprobs[rejected]),
        kl=read.kl,
        seconds=clock() - started,
        memory_bytes=mx.get_peak_memory(),
    )


def read_completions(
    actor: ActorCriticLLM,
    groups: Sequence[Group],
    config: DPOConfig,
    progress: Callable[[int, int], None] = lambda done, total: None,
    ranks: Ranks = ALONE,
) -> Read:
    """Run policy and reference on all completions of `groups`; the results are in the order of the groups."""
    sequences = [tokens for group in groups for tokens in group.sequences]
    counts = [count for group in groups for count in group.completions]
    lengths, budget = list(map(len, sequences)), config.optim.micro_batch_tokens

    def read(share: list[int]) -> Leads:
        """Return implicit reward, log-prob and KL of each completion of a share: [n, 3]."""
        found = np.empty((len(share), 3))
        for places in micro_batch_rows([lengths[row] for row in share], budget, progress=progress):
            rows = [share[place] for place in places]
            part = to_completions([sequences[row] for row in rows], [counts[row] for row in rows])
            where = (part.sequences, part.prompt_lengths, part.tokens.shape[1])
            policy = actor(*where, want="logits")
            with actor.reference():
                reference = actor(*where, want="logits")
            columns = {"tokens": part.tokens, "ref_states": filled(reference.states)}
            by_token = policy.at_positions(part.mask, partial(_scores, head=reference.head), columns)
            written, expected, divergence = (values.sum(axis=1) for values in by_token)
            rewards = implicit_rewards(written, expected, part.mask, config.train)
            found[places] = np.array(mx.stack([rewards, written, divergence], axis=1))
        return found

    rewards, logprobs, kl = ranks.by_row(lengths, read).T
    return Read(rewards, logprobs, float(kl.sum()) / max(sum(counts), 1))


def _scores(
    logits: mx.array, tokens: mx.array, ref_states: mx.array, *, head: Head
) -> tuple[mx.array, mx.array, mx.array]:
    """Return the log-probs of n tokens under policy and reference, and the KL of the two: [n] each."""
    ref_logits = head(ref_states[None])[0]
    kl = maths.kl_divergence(logits, ref_logits)
    return token_logprobs(logits, tokens), token_logprobs(ref_logits, tokens), kl


def _mean(values: Leads) -> float:
    return float(values.mean()) if values.size else math.nan
