"""Queues of existing comparisons: those of a dataset, and those of the store that are asked again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from trainer.data.files import SourceRow
from trainer.errors import DataError
from trainer.preferences.formats.values import check_encodable, others, prompt_cell, shortened, text
from trainer.preferences.formats_in import read_preferences
from trainer.preferences.queues.context import Drawn, QueueContext, Tell, awaited
from trainer.preferences.queues.known import Known
from trainer.preferences.queues.new_ones import new_ones
from trainer.preferences.records import Comparison, Origin
from trainer.preferences.sources import source_rows

_SPLIT = "train"


def dataset(source: str, known: Known, context: QueueContext, tell: Tell) -> Iterator[Drawn]:
    """Yield the comparisons of a file, a folder or a dataset, in its order; its judgements are ignored.

    The source has preferences in any format that can be imported, or rows that are yet to be judged: prompt and
    completions, or prompt, a and b. Broken rows are left out and reported. Raises DataError for what cannot be read.
    """
    # Loading a dataset by its name imports the library, which takes seconds.
    comparisons = yield from awaited(partial(_opened, source, tell), f"reads '{source}'", context)
    yield from new_ones(comparisons, known, context)


def again(keys: Sequence[str], known: Known, tell: Tell) -> Iterator[Comparison]:
    """Yield the comparisons of the store with these keys, judged or not."""
    missing = {}
    for key in dict.fromkeys(keys):
        if key in known.served:
            continue
        if labels := known.labels_of(key):
            yield labels[-1].comparison
        else:
            missing[key] = True
    for comparison in known.comparisons() if missing else ():
        if missing.pop(comparison.key, False) and comparison.key not in known.served:
            yield comparison
        if not missing:
            return
    if missing:
        tell(f"{len(missing)} of {len(keys)} comparisons are not in '{known.path}': import what they are of first")


def _opened(source: str, tell: Tell) -> Iterator[Comparison]:
    broken: list[str] = []
    first = next(source_rows(source, _SPLIT, lambda error: broken.append(str(error))), None)
    if first is not None and _is_unjudged(first):
        return _unjudged(source, tell)
    reading = read_preferences(source, split=_SPLIT, skip_broken=True)

    def comparisons() -> Iterator[Comparison]:
        for preference in reading:
            yield preference.comparison
        _tell_broken(source, reading.broken, reading.problems, tell)

    return comparisons()


def _is_unjudged(row: SourceRow) -> bool:
    columns = row.columns
    completions = columns.get("completions")
    if isinstance(completions, list):
        judged = {"ranking", "verdict"} & columns.keys() or any(isinstance(one, dict) for one in completions)
        return "prompt" in columns and not judged
    return {"prompt", "a", "b"} <= columns.keys() and "choice" not in columns


def _unjudged(source: str, tell: Tell) -> Iterator[Comparison]:
    broken: list[str] = []
    for row in source_rows(source, _SPLIT, lambda error: broken.append(str(error))):
        try:
            yield _comparison(row, source)
        except (DataError, RecursionError) as error:
            broken.append(str(error) if isinstance(error, DataError) else f"{row.place}: nested too deeply")
    _tell_broken(source, len(broken), broken, tell)


def _comparison(row: SourceRow, source: str) -> Comparison:
    check_encodable(row)
    columns = row.columns
    given = columns.get("completions", [columns.get(name) for name in ("a", "b")])
    if not isinstance(given, list) or len(given) < 2:
        raise DataError(f"{row.place}: completions is {shortened(given)}: must be a list of two or more")
    completions = tuple(text(one, row.place, f"completion {number}") for number, one in enumerate(given, 1))
    return Comparison(
        prompt=prompt_cell(row, "prompt"),
        completions=completions,
        origins=tuple(Origin(source=source) for _ in completions),
        columns=others(row, "prompt", "completions", "a", "b"),
    )


def _tell_broken(source: str, count: int, problems: Sequence[str], tell: Tell) -> None:
    if count:
        tell(f"{count} rows of '{source}' are broken and were left out: {problems[0]}")
