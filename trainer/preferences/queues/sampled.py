"""The queue of a run's samples: pairs of the policy's responses to one prompt."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial

from trainer.errors import UsageError
from trainer.preferences.queues.context import Drawn, QueueContext, Tell, Wait
from trainer.preferences.queues.known import Known
from trainer.preferences.queues.new_ones import new_ones
from trainer.preferences.queues.newest_first import newest_first
from trainer.preferences.queues.pairs import has_pairs, sampled_pairs
from trainer.preferences.queues.run_samples import SampledIterations
from trainer.preferences.queues.written import written_pairs


def samples(source: str, known: Known, context: QueueContext, rng: random.Random, tell: Tell) -> Iterator[Drawn]:
    """Yield pairs of the samples of one prompt in one iteration, newest iteration first.

    If the newest iteration has one sample of each prompt, the policy is asked to write pairs. Raises UsageError if
    there are no samples, or no model to ask.
    """
    iterations = SampledIterations(source, tell)
    pairs = partial(sampled_pairs, folder=iterations.folder, rng=rng)
    while (compares := _compares(iterations)) is None:
        context.heed()
        iterations.check_any()
        if iterations.are_over():
            return  # none could be read, which was reported
        yield Wait(iterations.what_comes)
    if compares:
        yield from new_ones(newest_first(iterations, pairs, context), known, context)
    elif context.ask is None:
        raise UsageError(one_sample_each(iterations))
    else:
        yield from written_pairs(source, ("policy", "policy"), known, context, rng, tell)


def one_sample_each(iterations: SampledIterations) -> str:
    """Return the message that a run's samples cannot be compared, and the way out."""
    return (
        f"run '{iterations.folder.name}' has one sample of each prompt, and no two to compare: "
        "train with rollout.samples_per_prompt = 2 or more, or let its model write pairs: open it in the workbench"
    )


def _compares(iterations: SampledIterations) -> bool | None:
    """Return whether the newest iteration that can be read has two samples of a prompt; None if there is none."""
    while (newest := iterations.newest()) is not None:
        if prompts := iterations.read(newest):
            return has_pairs(prompts)
        iterations.leave_out(newest)
    return None
