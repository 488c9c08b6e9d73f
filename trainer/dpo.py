"""Direct preference optimisation (DPO): a policy from preferences, without a reward model and without samples.

Rafailov et al. 2023 (arXiv 2305.18290): pairs as arrays, their loss and implicit reward, steps, and held-out pairs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

from trainer import maths
from trainer.arrays import filled, pad
from trainer.config.pairs import DPOConfig, DPOTrainConfig
from trainer.distributed.ranks import ALONE, Ranks
from trainer.events import DPOEvaluation
from trainer.fitting.optimisation import StepOptimizer, accumulate, micro_batch_rows, shared_gradient
from trainer.models.actor_critic import ActorCriticLLM
from trainer.models.adapters import Parameters
from trainer.models.forward import Head, token_logprobs
from trainer.pairs.groups import Group, Progress, micro_batches
from trainer.reward_model.pair_evaluation import Leads, outcomes_of, report_on
from trainer.reward_model.predictions import Baseline

_MEANS = ("lead", "chosen_reward", "rejected_reward", "chosen_logprob", "rejected_logprob")  # of sums and DPOStep


class Completions(NamedTuple):
    """N sequences of up to L tokens, right-padded; their completions have up to T tokens."""

    sequences: mx.array  # [N, L] ids of prompt and completion
    prompt_lengths: mx.array  # [N]
    tokens: mx.array  # [N, T] ids of the completion
    mask: mx.array  # [N, T] 1.0 on real tokens of the completion; made from the lengths, never from ids


class DPOBatch(NamedTuple):
    """P pairs of N completions."""

    completions: Completions
    better: mx.array  # [P] rows
    worse: mx.array  # [P] rows
    weights: mx.array  # [P] in the loss; those of a group sum to 1


class DPOLossSums(NamedTuple):
    """Sums over the pairs of a micro-batch; in the loss, a group counts once."""

    loss: mx.array
    right: mx.array  # pairs whose better completion is ahead; equal ones count half
    lead: mx.array
    chosen_reward: mx.array
    rejected_reward: mx.array
    chosen_logprob: mx.array
    rejected_logprob: mx.array
    pairs: mx.array


class DPOLearner:
    """Gradients of the loss on pairs, and steps of the policy's adapter."""

    def __init__(self, actor: ActorCriticLLM, config: DPOConfig, *, total_steps: int, ranks: Ranks = ALONE) -> None:
        self.actor = actor
        self.ranks = ranks
        self.config = config
        self.optimizer = StepOptimizer(config.optim, actor.policy_parameters(), total_steps=total_steps)

    def train(self, groups: Sequence[Group], number: int, progress: Progress) -> dict[str, Any]:
        """Take step `number`, counted from 1, down the gradient of the mean loss over `groups`.

        Returns the fields of `DPOStep` that were measured before the step; means over its pairs.
        """
        gradients, sums = self.gradients(groups, progress)
        loss, actor = float(sums.loss), self.actor
        step = self.optimizer.step(number, gradients, loss, actor.policy_parameters(), actor.update_policy)
        means = {name: float(getattr(sums, name) / sums.pairs) for name in _MEANS}
        accuracy = float(sums.right / sums.pairs)
        return {"loss": loss / len(groups), "accuracy": accuracy, **means, **step}

    def gradients(
        self, groups: Sequence[Group], progress: Progress = lambda done, total: None
    ) -> tuple[Parameters, DPOLossSums]:
        """Return the gradient of the mean loss over `groups`, and the sums over all of them.

        The split into ranks and micro-batches does not change the result. The reference reads each micro-batch just
        before the policy does: in one epoch every pair comes once, so this costs what reading all in advance would, and
        at the start the two agree to the bit.
        """

        def parts(share: Sequence[Group]) -> Iterator[tuple[DPOBatch, mx.array]]:
            for part in micro_batches(share, self.config.optim.micro_batch_tokens, progress):
                batch = to_batch(part)
                with self.actor.reference():
                    reference = completion_logprobs(self.actor, batch.completions)
                    mx.eval(reference)  # frees the reference's states
                yield batch, reference

        def loss(part: tuple[DPOBatch, mx.array]) -> tuple[mx.array, DPOLossSums]:
            found = pair_loss(self.actor, *part, self.config.train)
            return found.loss / len(groups), found

        def gradient(share: Sequence[Group]) -> tuple[Parameters, DPOLossSums]:
            return accumulate(
                loss,
                self.actor.policy_parameters(),
                parts(share),
                put=self.actor.update_policy,
                backbone=self.actor.backbone,
                grad_checkpoint=self.config.optim.grad_checkpoint,
            )

        return shared_gradient(self.ranks, groups, [group.tokens for group in groups], gradient)


def to_completions(sequences: Sequence[Sequence[int]], counts: Sequence[int]) -> Completions:
    """Build arrays of `sequences`.

    counts: number of tokens of each completion, which are the last of its sequence.
    """
    starts = [len(tokens) - count for tokens, count in zip(sequences, counts, strict=True)]
    written = [tokens[start:] for tokens, start in zip(sequences, starts, strict=True)]
    width = max(1, *counts)
    return Completions(
        sequences=mx.array(pad(sequences)),
        prompt_lengths=mx.array(starts),
        tokens=mx.array(pad([*written, [0] * width])[:-1]),
        mask=(mx.arange(width)[None] < mx.array(list(counts))[:, None]).astype(mx.float32),
    )


def to_batch(groups: Sequence[Group]) -> DPOBatch:
    """Build a batch of `groups`, none of them with ties. A ranking counts as its pairs."""
    sequences: list[Sequence[int]] = []
    counts: list[int] = []
    better, worse, weights = [], [], []
    for group in groups:
        pairs = group.pairs
        better += [len(sequences) + pair.better for pair in pairs]
        worse += [len(sequences) + pair.worse for pair in pairs]
        # A group counts once, however many pairs it has (Ouyang et al. 2022, section 3.4).
        weights += [1 / len(pairs)] * len(pairs)
        sequences += group.sequences
        counts += group.completions
    return DPOBatch(to_completions(sequences, counts), mx.array(better), mx.array(worse), mx.array(weights))


def pair_loss(actor: ActorCriticLLM, batch: DPOBatch, reference: mx.array, config: DPOTrainConfig) -> DPOLossSums:
    """Compute DPO's or IPO's loss of the current policy.

    reference: [N] log-probs of the completions under the reference.
    """
    logprobs = completion_logprobs(actor, batch.completions, gradient=True)
    rewards = implicit_rewards(logprobs, reference, batch.completions.mask, config)
    chosen, rejected = rewards[batch.better], rewards[batch.worse]
    lead = chosen - rejected
    right = (lead > 0).astype(mx.float32) + 0.5 * (lead == 0)
    return DPOLossSums(
        loss=(batch.weights * losses(lead, config)).sum(),
        right=right.sum(),
        lead=lead.sum(),
        chosen_reward=chosen.sum(),
        rejected_reward=rejected.sum(),
        chosen_logprob=logprobs[batch.better].sum(),
        rejected_logprob=logprobs[batch.worse].sum(),
        pairs=mx.array(float(lead.size)),
    )


def completion_logprobs(actor: ActorCriticLLM, completions: Completions, *, gradient: bool = False) -> mx.array:
    """Return log pi(completion | prompt), summed over the completion's own tokens: [N]."""
    width = completions.tokens.shape[1]
    forward = actor(completions.sequences, completions.prompt_lengths, width, want="logits")
    return forward.logprobs(completions.tokens, completions.mask, gradient=gradient).sum(axis=1)


def implicit_rewards(logprobs: mx.array, reference: mx.array, mask: mx.array, config: DPOTrainConfig) -> mx.array:
    """Return beta (log pi - log pi_ref) of each completion; for IPO a mean over its tokens.

    [N], [N], [N, T] -> [N].
    """
    log_ratios = logprobs - reference
    if config.loss == "ipo":
        log_ratios = log_ratios / mx.maximum(mask.sum(axis=1), 1)
    return config.beta * log_ratios


def losses(lead: mx.array, config: DPOTrainConfig) -> mx.array:
    """Return the losses of pairs whose better completion has `lead` more implicit reward. [P] -> [P]."""
    beta = config.beta
    if config.loss == "ipo":
        return maths.ipo_loss(lead / beta, beta=beta)
    return maths.dpo_loss(lead / beta, beta=beta, label_smoothing=config.label_smoothing)


# Before the first step, policy and reference are the same, so every pair is even.
_UNTRAINED = Baseline(accuracy=0.5, log_loss=math.log(2))


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
    rewards, logprobs, kl = read_completions(actor, groups, config, progress, ranks)
    outcomes = outcomes_of(groups, rewards, 1.0)
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
        chosen_reward=_mean(rewards[chosen]),
        rejected_reward=_mean(rewards[rejected]),
        chosen_logprob=_mean(logprobs[chosen]),
        rejected_logprob=_mean(logprobs[rejected]),
        kl=kl,
        seconds=clock() - started,
        memory_bytes=mx.get_peak_memory(),
    )


def read_completions(
    actor: ActorCriticLLM,
    groups: Sequence[Group],
    config: DPOConfig,
    progress: Callable[[int, int], None] = lambda done, total: None,
    ranks: Ranks = ALONE,
) -> tuple[Leads, Leads, float]:
    """Run policy and reference on all N completions of `groups`, in their order.

    Returns the implicit rewards [N], the policy's log-probs [N], nats per sequence, and the KL of policy against
    reference, the mean over all tokens of all completions.
    """
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
    return rewards, logprobs, float(kl.sum()) / max(sum(counts), 1)


def _scores(logits: mx.array, tokens: mx.array, ref_states: mx.array, *, head: Head) -> tuple[mx.array, ...]:
    """Return the log-probs of n tokens under policy and reference, and the KL of the two: [n] each."""
    ref_logits = head(ref_states[None])[0]
    return (
        token_logprobs(logits, tokens),
        token_logprobs(ref_logits, tokens),
        maths.kl_divergence(logits, ref_logits),
    )


def _mean(values: Leads) -> float:
    return float(values.mean()) if values.size else math.nan
