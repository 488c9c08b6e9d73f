"""A run's samples by prompt, newest iteration first, including those that arrive meanwhile."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from trainer.errors import DataError, StorageError, UsageError
from trainer.preferences.formats.values import plain, text
from trainer.preferences.queues import QueueContext, Report, Wait
from trainer.preferences.records import Origin, Text
from trainer.runs.folder import RunFolder, open_run, read_config
from trainer.runs.samples import kept_iterations, read_samples, sample_schema, sample_settings

T = TypeVar("T")

_COLUMNS = ("row", "prompt", "source_prompt", "prompt_tokens", "columns", "completion", "score", "length")


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
    """The iterations of a run that have samples and are not used up.

    Raises UsageError if there is no such run.
    """

    def __init__(self, source: str, report: Report) -> None:
        path = Path(source).expanduser()
        self.folder = open_run(path.name, path.parent)
        self._report = report
        self.found = 0  # iterations so far, those included that are used up
        self._left: list[int] = []  # ascending
        self._newest = -1  # found so far

    def newest(self) -> int | None:
        """Return the newest iteration left; None if there is none now."""
        if not self._left or self.folder.samples_file(self._newest + 1).exists():  # checks one file, not 2,000
            came = [one for one in kept_iterations(self.folder) if one > self._newest]
            self._left += came
            self.found += len(came)
            self._newest = max([self._newest, *came])
        return self._left[-1] if self._left else None

    def drop(self, iteration: int) -> None:
        """Remove `iteration` from those left."""
        self._left.remove(iteration)

    def read(self, iteration: int) -> list[PromptSamples]:
        """Return the samples of `iteration` by prompt; if its file cannot be read, report why and return none."""
        try:
            temperature, rows = _rows(self.folder.samples_file(iteration))
        except StorageError as error:
            self._report(str(error))
            return []
        checkpoint = checkpoint_of(self.folder, iteration - 1)  # the policy that wrote them
        sampling = {} if temperature is None else {"temperature": temperature}
        found: dict[tuple[Any, Any], PromptSamples] = {}
        for place, row in enumerate(rows):
            key = (row["prompt"], row["source_prompt"])
            if key not in found:
                prompt = _prompt(row["prompt"] or "", row["source_prompt"])
                found[key] = PromptSamples(prompt, row["prompt_tokens"] or None, _columns(row["columns"]))
            origin = Origin(
                source="run",
                run=self.folder.name,
                iteration=iteration,
                row=place if row["row"] is None else row["row"],
                checkpoint=checkpoint,
                writer="policy",
                sampling=sampling,
            )
            written = WrittenSample(row["completion"] or "", origin, plain(row["score"]), row["length"])
            found[key].samples.append(written)
        return list(found.values())

    def are_over(self) -> bool:
        """Return whether none is left and none will come: the run is not under way, or it keeps no samples."""
        more_may_come = self.folder.is_live() and _keeps_samples(self.folder)
        return self.newest() is None and not more_may_come  # in this order, to find what came before the end

    def check_any(self) -> None:
        """Raise UsageError if none were found and none will come."""
        if self.newest() is None and self._newest < 0 and self.are_over():
            raise UsageError(
                f"run '{self.folder.name}' has no samples: train with run.save_samples = true, or choose another run"
            )

    @property
    def awaited(self) -> str:
        """Reason to wait when nothing is left, in words."""
        return f"waiting for the samples of iteration {max(self._newest, 0) + 1}"


def newest_first(
    iterations: SampledIterations,
    parts: Callable[[list[PromptSamples]], Iterator[T]],
    context: QueueContext,
    *,
    follow: bool = True,
) -> Iterator[T | Wait]:
    """Yield the `parts` of each iteration's samples; a newer iteration that arrives goes before what is left.

    follow: wait for more while the run is under way. Raises UsageError if the run has no samples and gets none.
    """
    begun: dict[int, Iterator[T]] = {}
    iterations.check_any()
    while True:
        context.check()
        newest = iterations.newest()
        if newest is None:
            if not follow or iterations.are_over():
                return
            yield Wait(iterations.awaited)
            continue
        if newest not in begun:
            begun[newest] = parts(iterations.read(newest))
        part = next(begun[newest], None)
        if part is None:
            del begun[newest]
            iterations.drop(newest)
        else:
            yield part


def checkpoint_of(folder: RunFolder, trained: int) -> str:
    """Return the name of the checkpoint after `trained` whole iterations; empty if it is not kept."""
    path = folder.checkpoint(trained)
    return path.name if path.is_dir() else ""


def _keeps_samples(folder: RunFolder) -> bool:
    try:
        return read_config(folder)["run"].get("save_samples", True) is not False
    except (StorageError, KeyError, TypeError, AttributeError):
        return True


def _rows(path: Path) -> tuple[float | None, Iterator[dict[str, Any]]]:
    """Return the temperature at which the samples in `path` were written, and their rows. Raises StorageError."""
    import pyarrow as pa

    table = read_samples(path, _COLUMNS)
    settings = sample_settings(table.schema.metadata)
    try:
        table = table.cast(pa.schema([sample_schema().field(name) for name in _COLUMNS]))
        table.validate(full=True)  # texts are UTF-8; the Parquet reader does not check that
    except (OSError, pa.ArrowException) as error:
        raise StorageError(f"samples '{path}' are damaged ({str(error).splitlines()[0]}): delete the file") from None
    return settings.temperature if settings else None, iter(table.to_pylist())


def _prompt(rendered: str, source: str | None) -> Text:
    """Return the prompt as in the data; as rendered if that is the same, or cannot be read."""
    if source is None:
        return rendered
    try:
        return text(json.loads(source), "samples", "source_prompt")
    except (ValueError, RecursionError, DataError):
        return rendered


def _columns(values: str | None) -> dict[str, Any]:
    try:
        columns = json.loads(values or "")
    except (ValueError, RecursionError):
        return {}
    return columns if isinstance(columns, dict) else {}
