"""Pairs that the models of a run are asked to write."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import partial

from trainer.config import load_config
from trainer.control.questions import Question, Writer
from trainer.data import load_prompts
from trainer.errors import ModelError, TrainerError, UsageError
from trainer.preferences.formats.values import plain
from trainer.preferences.queues.context import Ask, Drawn, QueueContext, Tell, Wait, awaited
from trainer.preferences.queues.known import Known
from trainer.preferences.queues.newest_first import newest_first
from trainer.preferences.queues.pairs import Written, comparison_of
from trainer.preferences.queues.run_samples import PromptSamples, SampledIterations, checkpoint_of
from trainer.preferences.records import Origin
from trainer.runs.folder import RunFolder

_REFUSALS = 3  # in a row, after which the model is not asked again
_NOTHING_NEW = 20  # known pairs in a row, after which the queue ends


def written_pairs(
    source: str,
    writers: tuple[Writer, Writer],
    known: Known,
    context: QueueContext,
    rng: random.Random,
    tell: Tell,
) -> Iterator[Drawn]:
    """Yield pairs by two `writers` to the prompts of a run's samples, newest first and again and again, one at a time.

    Ends when the models write nothing new. Raises UsageError if there is no model to ask, DataError if there are no
    prompts, ModelError if the models do not answer.
    """
    folder = SampledIterations(source, tell).folder
    if context.ask is None:
        raise UsageError(f"run '{folder.name}' has no model that could write pairs now: open it in the workbench")
    who = "the policy writes" if writers[0] == writers[1] else "policy and reference write"
    given = refused = stale = 0
    for prompt in _prompts(source, context, rng, tell):
        if isinstance(prompt, Wait):
            yield prompt
            continue
        work = partial(_asked, context.ask, _questions(prompt, writers, rng), folder)
        written = yield from awaited(work, f"{who} pair {given + 1}", context)
        if isinstance(written, str):
            refused += 1
            if refused == _REFUSALS:
                raise ModelError(f"run '{folder.name}' writes no more pairs: {written}")
            continue
        refused = 0
        if known.is_new(comparison := comparison_of(prompt.prompt, written)):
            given, stale = given + 1, 0
            yield comparison
            continue
        stale += 1
        if stale == _NOTHING_NEW:
            tell(f"run '{folder.name}' writes nothing new any more: train it further, or choose another queue")
            return


def _prompts(source: str, context: QueueContext, rng: random.Random, tell: Tell) -> Iterator[PromptSamples | Wait]:
    """Yield the prompts of the run's samples, newest iteration first, or else those of its data.

    Starts again at the end.
    """
    in_random_order = partial(_shuffled, rng)
    while True:
        iterations, found = SampledIterations(source, tell), False
        if iterations.newest() is None:
            of_run = yield from awaited(partial(_prompts_of, iterations.folder), "reads the run's prompts", context)
            yield from in_random_order(of_run)
            continue
        for prompt in newest_first(iterations, in_random_order, context, follow=False):
            found = True
            yield prompt
        if not found:
            return  # none could be read, which was reported


def _prompts_of(folder: RunFolder) -> list[PromptSamples]:
    """Return the prompts that a run was given, without samples. Raises ConfigError and DataError."""
    rows = load_prompts(load_config(folder.config).data)
    return [PromptSamples(0, row.prompt, None, row.columns, None) for row in rows]


def _shuffled(rng: random.Random, prompts: Sequence[PromptSamples]) -> Iterator[PromptSamples]:
    return iter(rng.sample(prompts, len(prompts)))


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


def _asked(ask: Ask, questions: Sequence[Question], folder: RunFolder) -> list[Written] | str:
    """Return what was written to `questions`, or why it was not, in one line."""
    written = []
    for question in questions:
        try:
            answer = ask(question)
        except TrainerError as error:  # for example, a run has just ended: its saved policy may answer the next one
            return " ".join(str(error).split())
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
        written += [Written(one.text, origin, plain(one.score), len(one.tokens)) for one in answer.completions]
    return written
