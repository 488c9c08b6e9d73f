"""Comparisons of what the models of a run wrote."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from trainer.preferences.conversations import as_messages
from trainer.preferences.queues.run_samples import PromptSamples, Sample, checkpoint_of
from trainer.preferences.records import Comparison, Messages, Origin, Text
from trainer.runs.folder import RunFolder


class Written(NamedTuple):
    """A completion, with what is shown of it once it is judged."""

    text: str
    origin: Origin
    score: float | None  # by the run's reward
    length: int | None  # tokens


def comparison_of(prompt: Text, written: Sequence[Written]) -> Comparison:
    """Build a comparison of `written` to `prompt`, as messages where the prompt is; scores and lengths are columns.

    The completions are in the order of their texts. A store that has them already has them in this order too, and the
    columns match it.
    """
    ordered = sorted(written, key=lambda one: one.text)
    completions: tuple[str | Messages, ...] = tuple(one.text for one in ordered)
    if not isinstance(prompt, str):
        prompt, completions = as_messages(prompt, completions)
    return Comparison(
        prompt=prompt,
        completions=completions,
        origins=tuple(one.origin for one in ordered),
        columns={"scores": [one.score for one in ordered], "lengths": [one.length for one in ordered]},
    )


def has_pairs(prompts: Sequence[PromptSamples]) -> bool:
    """Return whether any of `prompts` has two samples."""
    return any(len(one.samples) > 1 for one in prompts)


def sampled_pairs(prompts: Sequence[PromptSamples], folder: RunFolder, rng: random.Random) -> Iterator[Comparison]:
    """Yield every two samples of a prompt once, in random order: one pair of each prompt before the second of any."""
    waiting = deque(_pairs_of(one, folder, rng) for one in rng.sample(prompts, len(prompts)))
    while waiting:
        pairs = waiting.popleft()
        if (pair := next(pairs, None)) is not None:
            yield pair
            waiting.append(pairs)


def _pairs_of(prompt: PromptSamples, folder: RunFolder, rng: random.Random) -> Iterator[Comparison]:
    samples = rng.sample(prompt.samples, len(prompt.samples))
    for first, second in _every_two(len(samples)):
        yield comparison_of(prompt.prompt, [_written(prompt, samples[place], folder) for place in (first, second)])


def _every_two(count: int) -> Iterator[tuple[int, int]]:
    """Yield every two of `count` places once; from the beginning on, all places come about equally often."""
    for distance in range(1, count // 2 + 1):
        for place in range(distance if 2 * distance == count else count):
            yield place, (place + distance) % count


def _written(prompt: PromptSamples, sample: Sample, folder: RunFolder) -> Written:
    origin = Origin(
        source="run",
        run=folder.name,
        iteration=prompt.iteration,
        row=sample.row,
        checkpoint=checkpoint_of(folder, prompt.iteration - 1),  # the policy that wrote it
        writer="policy",
        sampling={} if prompt.temperature is None else {"temperature": prompt.temperature},
    )
    return Written(sample.text, origin, sample.score, sample.length)
