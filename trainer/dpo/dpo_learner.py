"""Update of DPO: pairs as arrays, their loss and implicit reward, and one optimiser step of the policy's adapter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import mlx.core as mx

from trainer import maths
from trainer.arrays import pad
from trainer.config.dpo import DPOConfig, DPOTrainConfig
from trainer.distributed.ranks import ALONE, Ranks
from trainer.fitting.micro_batches import accumulate, shared_gradient
from trainer.fitting.optimizer import StepOptimizer
from trainer.models.actor_critic import ActorCriticLLM
from trainer.models.adapters import Parameters
from trainer.preference_data.groups import Group, Progress, micro_batches

_MEANS = (
    "lead",
    "chosen_reward",
    "rejected_reward",
    "chosen_logprob",
    "rejected_logprob",
)  # of DPOLossSums and DPOStep


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
        (batch.weights * losses(lead, config)).sum(),
        right.sum(),
        lead.sum(),
        chosen.sum(),
        rejected.sum(),
        logprobs[batch.better].sum(),
        logprobs[batch.worse].sum(),
        mx.array(float(lead.size)),
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
