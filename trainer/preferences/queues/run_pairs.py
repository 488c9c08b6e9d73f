"""Queues of pairs of what the models of a run wrote, or are asked to write."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from math import comb

from trainer.config import load_config
from trainer.data import load_prompts
from trainer.errors import ModelError, TrainerError, UsageError, one_line
from trainer.preferences.conversations import as_messages
from trainer.preferences.formats.values import plain
from trainer.preferences.items import QueuePlan
from trainer.preferences.queues import Ask, Drawn, QueueInputs, Wait, awaited, only_new
from trainer.preferences.queues.run_samples import (
    PromptSamples,
    SampledIterations,
    WrittenSample,
    checkpoint_of,
    newest_first,
)
from trainer.preferences.records import Comparison, Messages, Origin, Text
from trainer.questions import Question, Writer
from trainer.runs.folder import RunFolder

_REFUSALS = 3  # in a row, after which the model is not asked again
_NOTHING_NEW = 20  # known pairs in a row, after which the queue ends


def samples(plan: QueuePlan, inputs: QueueInputs) -> Iterator[Drawn]:
    """Yield pairs of the samples of one prompt in one iteration, newest iteration first.

    If the newest iteration has one sample of each prompt, the policy is asked to write pairs. Raises UsageError if
    there are no samples, or no model to ask.
    """
    iterations = SampledIterations(plan.source, inputs.report)
    pairs = partial(sampled_pairs, rng=inputs.rng)
    while (each := pairs_each(iterations)) is None:
        inputs.context.check()
        iterations.check_any()
        if iterations.are_over():
            return  # none could be read, which was reported
        yield Wait(iterations.awaited)
    if each:
        inputs.supply.total = lambda: each * iterations.found
        yield from only_new(newest_first(iterations, pairs, inputs.context), inputs)
    elif inputs.context.ask is None:
        raise UsageError(one_sample_each(iterations))
    else:
        yield from _written_pairs(plan.source, ("policy", "policy"), inputs)


def policy_and_reference(plan: QueuePlan, inputs: QueueInputs) -> Iterator[Drawn]:
    """Yield pairs of what the policy and the reference write to the prompts of a run, as `_written_pairs` does."""
    return _written_pairs(plan.source, ("policy", "reference"), inputs)


def sampled_pairs(prompts: Sequence[PromptSamples], rng: random.Random) -> Iterator[Comparison]:
    """Yield every two samples of a prompt once, in random order: one pair of each prompt before the second of any."""
    waiting = deque(_pairs_of(one, rng) for one in rng.sample(prompts, len(prompts)))
    while waiting:
        pairs = waiting.popleft()
        if (pair := next(pairs, None)) is not None:
            yield pair
            waiting.append(pairs)


def one_sample_each(iterations: SampledIterations) -> str:
    """Return the message that a run's samples cannot be compared, and the way out."""
    return (
        f"run '{iterations.folder.name}' has one sample of each prompt, and no two to compare: "
        "train with rollout.samples_per_prompt = 2 or more, or let its model write pairs: open it in the workbench"
    )


def pairs_each(iterations: SampledIterations) -> int | None:
    """Return how many pairs the newest iteration that can be read has, as the others will; None if there is none."""
    while (newest := iterations.newest()) is not None:
        if prompts := iterations.read(newest):
            return sum(comb(len(one.samples), 2) for one in prompts)
        iterations.drop(newest)
    return None


def _pairs_of(prompt: PromptSamples, rng: random.Random) -> Iterator[Comparison]:
    """Yield every two samples of `prompt` once; from the beginning on, all of them come about equally often."""
    samples = rng.sample(prompt.samples, len(prompt.samples))
    count = len(samples)
    for distance in range(1, count // 2 + 1):
        for place in range(distance if 2 * distance == count else count):
            yield _comparison(prompt.prompt, (samples[place], samples[(place + distance) % count]))


def _comparison(prompt: Text, written: Sequence[WrittenSample]) -> Comparison:
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


def _written_pairs(source: str, writers: tuple[Writer, Writer], inputs: QueueInputs) -> Iterator[Drawn]:
    """Yield pairs by two `writers` to the prompts of a run's samples, newest first and again and again, one at a time.

    Ends when the models write nothing new. Raises UsageError if there is no model to ask, DataError if there are no
    prompts, ModelError if the models do not answer.
    """
    context, folder = inputs.context, SampledIterations(source, inputs.report).folder
    if context.ask is None:
        raise UsageError(f"run '{folder.name}' has no model that could write pairs now: open it in the workbench")
    who = "the policy is" if writers[0] == writers[1] else "policy and reference are"
    given = refused = known = 0
    for prompt in _prompts(source, inputs):
        if isinstance(prompt, Wait):
            yield prompt
            continue
        work = partial(_write, context.ask, _questions(prompt, writers, inputs.rng), folder)
        written = yield from awaited(work, f"{who} writing pair {given + 1}", context)
        if isinstance(written, str):
            refused += 1
            if refused == _REFUSALS:
                raise ModelError(f"run '{folder.name}' writes no more pairs: {written}")
            continue
        refused = 0
        if inputs.history.is_new(comparison := _comparison(prompt.prompt, written)):
            given, known = given + 1, 0
            yield comparison
            continue
        known += 1
        if known == _NOTHING_NEW:
            inputs.report(f"run '{folder.name}' writes nothing new: train it further, or choose another queue")
            return


def _prompts(source: str, inputs: QueueInputs) -> Iterator[PromptSamples | Wait]:
    """Yield the prompts of the run's samples, newest iteration first, or else those of its data.

    Starts again at the end.
    """

    def in_random_order(prompts: Sequence[PromptSamples]) -> Iterator[PromptSamples]:
        return iter(inputs.rng.sample(prompts, len(prompts)))

    while True:
        iterations, found = SampledIterations(source, inputs.report), False
        if iterations.newest() is None:
            of_run = yield from awaited(
                partial(_prompts_of, iterations.folder), "reading the run's prompts", inputs.context
            )
            yield from in_random_order(of_run)
            continue
        for prompt in newest_first(iterations, in_random_order, inputs.context, follow=False):
            found = True
            yield prompt
        if not found:
            return  # none could be read, which was reported


def _prompts_of(folder: RunFolder) -> list[PromptSamples]:
    """Return the prompts that a run was given, without samples. Raises ConfigError and DataError."""
    rows = load_prompts(load_config(folder.config).data)
    return [PromptSamples(row.prompt, None, row.columns) for row in rows]


def _questions(prompt: PromptSamples, writers: tuple[Writer, Writer], rng: random.Random) -> list[Question]:
    """Return one question per writer, or one for two completions if both writers are the same.

    Each has its own seed, because similar models write the same from one seed.
    """
    first, second = writers
    asked = [(first, 2)] if first == second else [(first, 1), (second, 1)]
    return [
        Question(
            prompt=prompt.prompt,
            prompt_tokens=prompt.tokens,
            columns=prompt.columns,
            writer=writer,
            count=count,
            seed=rng.randrange(2**32),
        )
        for writer, count in asked
    ]


def _write(ask: Ask, questions: Sequence[Question], folder: RunFolder) -> list[WrittenSample] | str:
    """Return what was written to `questions`, or why it was not, in one line."""
    written = []
    for question in questions:
        try:
            answer = ask(question)
        except TrainerError as error:  # for example, a run has just ended: its saved policy may answer the next one
            return one_line(error)
        if len(answer.completions) < question.count:
            return answer.problem or "the model wrote nothing"
        origin = Origin(
            source="run",
            run=folder.name,
            iteration=answer.iteration,
            checkpoint=checkpoint_of(folder, answer.iteration),
            writer=answer.writer,
            sampling={"seed": question.seed},
        )
        written += [WrittenSample(one.text, origin, plain(one.score), len(one.tokens)) for one in answer.completions]
    return written
