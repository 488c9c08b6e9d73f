"""Queues of pairs of what the models of a run wrote, or are asked to write, and of pairs in the order of scores."""

from __future__ import annotations

import contextlib
import json
import math
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from trainer.config import load_config
from trainer.data import load_prompts
from trainer.errors import DataError, ModelError, StorageError, TrainerError, UsageError, one_line
from trainer.preferences.formats.columns import plain
from trainer.preferences.queues import Ask, Drawn, OpenQueue, Score, Wait, awaited, in_background
from trainer.preferences.records import Comparison, Messages, Origin, Text, as_messages
from trainer.preferences.rows import text
from trainer.questions import Question, Writer
from trainer.runs.folder import RunFolder, open_run, read_config
from trainer.runs.samples import kept_iterations, read_samples, sample_schema, sample_settings

T = TypeVar("T")

_COLUMNS = ("row", "prompt", "source_prompt", "prompt_tokens", "columns", "completion", "score", "length")
_REFUSALS = 3  # in a row, after which the model is not asked again
_NOTHING_NEW = 20  # known pairs in a row, after which the queue ends
_COMPLETIONS = 128  # scored at once, about: a minute of a small model on two cores
_PAIRS = 512  # of these, at most
_LEAST = 16  # pairs in order; when fewer are left, the next ones are scored
_IN_ADVANCE = 6  # random pairs that may come early, so that nobody waits for the first scores
_ONE_SAMPLE = (
    "run '{}' has one sample of each prompt, and no two to compare: train with rollout.samples_per_prompt = 2 or more, "
    "or let its model write pairs: open it in the workbench"
)


class WrittenSample(NamedTuple):
    """A completion, with what is shown of it once it is judged. None where a file does not say."""

    text: str
    origin: Origin
    score: float | None  # by the run's reward
    length: int | None  # tokens


@dataclass(slots=True)
class PromptSamples:
    """Responses of the policy of one iteration to one prompt.

    tokens: what the model read; None where the file does not say. columns: the others of the prompt's row.
    """

    prompt: Text
    tokens: list[int] | None
    columns: dict[str, Any]
    samples: list[WrittenSample] = field(default_factory=list)


class SampledIterations:
    """The iterations of a queue's run that have samples. Raises UsageError if there is no such run."""

    def __init__(self, queue: OpenQueue) -> None:
        path = Path(queue.plan.source).expanduser()
        self.folder = open_run(path.name, path.parent)
        self.left: list[int] = []  # those that are not used up, ascending
        self._report = queue.report
        self._newest = -1  # found so far

    def newest(self) -> int | None:
        """Return the newest iteration left; None if there is none now."""
        if not self.left or self.folder.samples_file(self._newest + 1).exists():  # checks one file, not 2,000
            came = [one for one in kept_iterations(self.folder) if one > self._newest]
            self.left += came
            self._newest = max([self._newest, *came])
        return self.left[-1] if self.left else None

    def read(self, iteration: int) -> list[PromptSamples]:
        """Return the samples of `iteration` by prompt; if its file cannot be read, report why and return none."""
        import pyarrow as pa

        path = self.folder.samples_file(iteration)
        try:
            table = read_samples(path, _COLUMNS)
            settings = sample_settings(table.schema.metadata)
            table = table.cast(pa.schema([sample_schema().field(name) for name in _COLUMNS]))
            table.validate(full=True)  # texts are UTF-8; the Parquet reader does not check that
        except StorageError as error:
            self._report(str(error))
            return []
        except (OSError, pa.ArrowException) as error:
            self._report(f"samples '{path}' are damaged ({str(error).splitlines()[0]}): delete the file")
            return []
        checkpoint = self.folder.checkpoint(iteration - 1)  # the policy that wrote them
        sampling = {"temperature": settings.temperature} if settings else {}
        found: dict[tuple[Any, Any], PromptSamples] = {}
        for place, row in enumerate(table.to_pylist()):
            key = (row["prompt"], row["source_prompt"])
            if key not in found:
                prompt: Text = row["prompt"] or ""  # as rendered
                columns: dict[str, Any] = {}
                with contextlib.suppress(ValueError, RecursionError, DataError):
                    columns = {**json.loads(row["columns"] or "{}")}
                with contextlib.suppress(ValueError, RecursionError, DataError):
                    prompt = text(json.loads(row["source_prompt"] or ""), "samples", "source_prompt")
                found[key] = PromptSamples(prompt, row["prompt_tokens"] or None, columns)
            origin = Origin(
                source="run",
                run=self.folder.name,
                iteration=iteration,
                row=place if row["row"] is None else row["row"],
                checkpoint=checkpoint.name if checkpoint.is_dir() else "",
                writer="policy",
                sampling=sampling,
            )
            written = WrittenSample(row["completion"] or "", origin, plain(row["score"]), row["length"])
            found[key].samples.append(written)
        return list(found.values())

    def has_pairs(self) -> bool | None:
        """Return whether prompts have two samples in the newest iteration that can be read; None without one.

        Raises UsageError if the run has no samples and gets none.
        """
        while (newest := self.newest()) is not None:
            if prompts := self.read(newest):
                return any(len(one.samples) > 1 for one in prompts)
            self.left.remove(newest)
        if self._newest < 0 and self.are_over():
            raise UsageError(
                f"run '{self.folder.name}' has no samples: train with run.save_samples = true, or choose another run"
            )
        return None

    def are_over(self) -> bool:
        """Return whether none is left and none will come: the run is not under way, or it keeps no samples."""
        more_may_come = self.folder.is_live()
        if more_may_come:
            with contextlib.suppress(StorageError, KeyError, TypeError, AttributeError):
                more_may_come = read_config(self.folder)["run"].get("save_samples", True) is not False
        return self.newest() is None and not more_may_come  # in this order, to find what came before the end

    def wait(self) -> Wait:
        """Return the Wait for the next iteration."""
        return Wait(f"waiting for the samples of iteration {max(self._newest, 0) + 1}")


def newest_first(
    iterations: SampledIterations,
    parts: Callable[[list[PromptSamples]], Iterator[T]],
    *,
    follow: bool = True,
) -> Iterator[T | Wait]:
    """Yield the `parts` of each iteration's samples; a newer iteration that arrives goes before what is left.

    follow: wait for more while the run is under way.
    """
    begun: dict[int, Iterator[T]] = {}
    while True:
        newest = iterations.newest()
        if newest is None:
            if not follow or iterations.are_over():
                return
            yield iterations.wait()
            continue
        if newest not in begun:
            begun[newest] = parts(iterations.read(newest))
        part = next(begun[newest], None)
        if part is None:
            del begun[newest]
            iterations.left.remove(newest)
        else:
            yield part


def samples(queue: OpenQueue) -> Iterator[Drawn]:
    """Yield pairs of the samples of one prompt in one iteration, newest iteration first.

    If the newest iteration has one sample of each prompt, the policy is asked to write pairs. Raises UsageError if
    there are no samples, or no model to ask.
    """
    iterations = SampledIterations(queue)
    while (has_pairs := iterations.has_pairs()) is None:
        if iterations.are_over():
            return  # none could be read, which was reported
        yield iterations.wait()
    if has_pairs:
        yield from newest_first(iterations, partial(sampled_pairs, rng=queue.rng))
    elif queue.context.ask is None:
        raise UsageError(_ONE_SAMPLE.format(iterations.folder.name))
    else:
        yield from written_pairs(queue, writers=("policy", "policy"))


def sampled_pairs(prompts: Sequence[PromptSamples], rng: random.Random) -> Iterator[Comparison]:
    """Yield every two samples of a prompt once, in random order: one pair of each prompt before the second of any.

    From the beginning on, all samples of a prompt come about equally often.
    """

    def of_prompt(prompt: PromptSamples) -> Iterator[Comparison]:
        samples = rng.sample(prompt.samples, len(prompt.samples))
        count = len(samples)
        for distance in range(1, count // 2 + 1):
            for place in range(distance if 2 * distance == count else count):
                yield _comparison(prompt.prompt, (samples[place], samples[(place + distance) % count]))

    waiting = deque(map(of_prompt, rng.sample(prompts, len(prompts))))
    while waiting:
        pairs = waiting.popleft()
        if (pair := next(pairs, None)) is not None:
            yield pair
            waiting.append(pairs)


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


def written_pairs(queue: OpenQueue, *, writers: tuple[Writer, Writer]) -> Iterator[Drawn]:
    """Yield pairs by two `writers` to the prompts of a run's samples, newest first and again and again, one at a time.

    Ends when the models write nothing new. Raises UsageError if there is no model to ask, DataError if there are no
    prompts, ModelError if the models do not answer.
    """
    context, folder = queue.context, SampledIterations(queue).folder
    if context.ask is None:
        raise UsageError(f"run '{folder.name}' has no model that could write pairs now: open it in the workbench")
    who = "the policy is" if writers[0] == writers[1] else "policy and reference are"
    # Each has its own seed, because similar models write the same from one seed.
    asked = [(writers[0], 2)] if writers[0] == writers[1] else [(writer, 1) for writer in writers]
    given = refused = known = 0
    for prompt in _prompts(queue):
        if isinstance(prompt, Wait):
            yield prompt
            continue
        questions = [
            Question(
                prompt=prompt.prompt,
                prompt_tokens=prompt.tokens,
                columns=prompt.columns,
                writer=writer,
                count=count,
                seed=queue.rng.randrange(2**32),
            )
            for writer, count in asked
        ]
        work = partial(_write, context.ask, questions, folder)
        written = yield from awaited(work, f"{who} writing pair {given + 1}", context)
        if isinstance(written, str):
            refused += 1
            if refused == _REFUSALS:
                raise ModelError(f"run '{folder.name}' writes no more pairs: {written}")
            continue
        refused, known = 0, known + 1
        if context.is_new(comparison := _comparison(prompt.prompt, written)):
            given, known = given + 1, 0
            yield comparison
        elif known == _NOTHING_NEW:
            queue.report(f"run '{folder.name}' writes nothing new: train it further, or choose another queue")
            return


def _prompts(queue: OpenQueue) -> Iterator[PromptSamples | Wait]:
    """Yield the prompts of the run's samples, newest iteration first, or else those of its data.

    Starts again at the end.
    """
    found = True  # else none could be read, which was reported
    while found:
        iterations = SampledIterations(queue)
        if iterations.newest() is None:
            data = load_config(iterations.folder.config).data
            rows = yield from awaited(partial(load_prompts, data), "reading the run's prompts", queue.context)
            yield from queue.rng.sample([PromptSamples(row.prompt, None, row.columns) for row in rows], len(rows))
            continue
        found = False
        for prompt in newest_first(iterations, lambda some: iter(queue.rng.sample(some, len(some))), follow=False):
            found = True
            yield prompt


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
        checkpoint = folder.checkpoint(answer.iteration)
        origin = Origin(
            source="run",
            run=folder.name,
            iteration=answer.iteration,
            checkpoint=checkpoint.name if checkpoint.is_dir() else "",
            writer=answer.writer,
            sampling={"seed": question.seed},
        )
        written += [WrittenSample(one.text, origin, plain(one.score), len(one.tokens)) for one in answer.completions]
    return written


def uncertain(queue: OpenQueue) -> Iterator[Drawn]:
    """Yield pairs of the samples of one prompt, each once: by |r(a) - r(b)|, smallest first, and random ones.

    The plan's reward model is least sure of those that come first. Some completions of the newest iterations are scored
    at once, in the background: newer iterations when they have come, older ones when these are used up. At least the
    queue's `random_share` of the pairs are random. Raises UsageError if there are no pairs, or no model that scores.
    """
    context, share, rng, model = queue.context, queue.random_share, queue.rng, queue.plan.model
    if not model:
        raise UsageError("the queue of uncertain pairs needs a reward model: name one")
    if context.score is None:
        raise UsageError("nothing can score pairs here: choose another queue")
    iterations = SampledIterations(queue)
    iterations.has_pairs()  # refuse a run without samples
    why = f"scoring samples with {Path(model).name}"
    everything: list[Comparison] = []  # not drawn yet, scored or not
    in_order: list[tuple[float, Comparison]] = []  # the smallest difference is last
    scoring: Future[list[tuple[float, Comparison]]] | None = None
    read, drawn, at_random = -1, 0, 0

    def take(*, randomly: bool) -> Comparison | None:
        """Take pairs until one is new; None if there are no more."""
        while everything if randomly else in_order:
            if randomly:
                place = rng.randrange(len(everything))
                everything[place], everything[-1] = everything[-1], everything[place]
            pair = everything.pop() if randomly else in_order.pop()[1]
            if context.is_new(pair):
                return pair
        return None

    while True:
        if scoring is not None and scoring.done():
            in_order = sorted([*in_order, *scoring.result()], key=lambda one: -one[0])
            scoring = None
        newest = iterations.newest()
        if scoring is None and newest is not None and (newest > read or len(in_order) < _LEAST):
            found: list[Comparison] = []
            completions = 0
            while completions < _COMPLETIONS and (place := iterations.newest()) is not None:
                prompts = iterations.read(place)
                iterations.left.remove(place)
                completions += sum(len(one.samples) for one in prompts)
                found += islice(sampled_pairs(prompts, rng), _PAIRS - len(found))
            if not found and read < 0 and not everything:
                raise UsageError(_ONE_SAMPLE.format(iterations.folder.name))
            read = max(newest, read)
            everything.extend(found)
            scoring = in_background(partial(_measured, model, context.score, found), why, context.wake)
        randomly = at_random < share * (drawn + 1)
        pair = None if randomly else take(randomly=False)
        if pair is None and (randomly or at_random < share * drawn + _IN_ADVANCE or scoring is None):
            pair, randomly = take(randomly=True), True
        if pair is not None:
            drawn, at_random = drawn + 1, at_random + randomly
            yield pair
        elif scoring is not None:
            yield Wait(why)
        elif iterations.are_over():
            return
        elif iterations.newest() is None:
            yield iterations.wait()


def _measured(model: str, score: Score, pairs: Sequence[Comparison]) -> list[tuple[float, Comparison]]:
    """Return `pairs` with their |r(a) - r(b)|, the scores in their columns; without those that cannot be scored."""
    texts = [(pair.prompt, completion) for pair in pairs for completion in pair.completions]
    places = {str(one): place for place, one in enumerate(texts)}  # a completion is in several pairs
    asked = sorted(places.values())
    values = score(model, [texts[place] for place in asked])
    if len(values) != len(asked):
        raise ModelError(f"reward model '{model}' gave {len(values)} scores to {len(asked)} completions: update it")
    scores = dict(zip(asked, values, strict=True))
    found = []
    for pair in pairs:
        two = [scores[places[str((pair.prompt, completion))]] for completion in pair.completions]
        if math.isfinite(difference := abs(two[0] - two[1])):
            columns = {**pair.columns, "reward_models": {Path(model).name: two}}
            found.append((difference, replace(pair, columns=columns)))
    return found
