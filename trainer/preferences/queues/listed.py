"""Queues of existing comparisons: those of a dataset, and those of the store that are asked again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from trainer.data.readers import SourceRow
from trainer.errors import DataError
from trainer.preferences.formats import read_preferences
from trainer.preferences.formats.files import source_rows
from trainer.preferences.formats.values import check_encodable, other_columns, prompt_cell, text, two_or_more
from trainer.preferences.items import QueuePlan
from trainer.preferences.queues import Drawn, QueueInputs, Report, awaited, only_new
from trainer.preferences.records import Comparison, Origin

_SPLIT = "train"


def dataset(plan: QueuePlan, inputs: QueueInputs) -> Iterator[Drawn]:
    """Yield the comparisons of a file, a folder or a dataset, in its order; its judgements are ignored.

    The source has preferences in any format that can be imported, or rows that are yet to be judged: prompt and
    completions, or prompt, a and b. Broken rows are left out and reported. Raises DataError for what cannot be read.
    """
    # Loading a dataset by its name imports the library, which takes seconds.
    work = partial(_opened, plan.source, inputs.report)
    comparisons = yield from awaited(work, f"reading '{plan.source}'", inputs.context)
    yield from only_new(comparisons, inputs)


def again(plan: QueuePlan, inputs: QueueInputs) -> Iterator[Comparison]:
    """Yield the comparisons of the store with the plan's keys, judged or not."""
    history, missing = inputs.history, {}
    for key in dict.fromkeys(plan.keys):
        if key in history.served:
            continue
        if labels := history.labels_of(key):
            yield labels[-1].comparison
        else:
            missing[key] = True
    for comparison in history.comparisons() if missing else ():
        if missing.pop(comparison.key, False) and comparison.key not in history.served:
            yield comparison
        if not missing:
            return
    if missing:
        inputs.report(
            f"{len(missing)} of {len(plan.keys)} comparisons are not in '{history.path}': import their source first"
        )


def _opened(source: str, report: Report) -> Iterator[Comparison]:
    broken: list[str] = []
    first = next(source_rows(source, _SPLIT, lambda error: broken.append(str(error))), None)
    if first is not None and _is_unjudged(first):
        return _unjudged(source, report)
    reading = read_preferences(source, split=_SPLIT, skip_broken=True)

    def comparisons() -> Iterator[Comparison]:
        for preference in reading:
            yield preference.comparison
        _report_broken(source, reading.broken, reading.problems, report)

    return comparisons()


def _is_unjudged(row: SourceRow) -> bool:
    columns = row.columns
    completions = columns.get("completions")
    if isinstance(completions, list):
        judged = {"ranking", "verdict"} & columns.keys() or any(isinstance(one, dict) for one in completions)
        return "prompt" in columns and not judged
    return {"prompt", "a", "b"} <= columns.keys() and "choice" not in columns


def _unjudged(source: str, report: Report) -> Iterator[Comparison]:
    broken: list[str] = []
    for row in source_rows(source, _SPLIT, lambda error: broken.append(str(error))):
        try:
            yield _comparison(row, source)
        except (DataError, RecursionError) as error:
            broken.append(str(error) if isinstance(error, DataError) else f"{row.place}: nested too deeply")
    _report_broken(source, len(broken), broken, report)


def _comparison(row: SourceRow, source: str) -> Comparison:
    check_encodable(row)
    columns = row.columns
    given = columns.get("completions", [columns.get(name) for name in ("a", "b")])
    completions = tuple(
        text(one, row.place, f"completion {number}") for number, one in enumerate(two_or_more(given, row.place), 1)
    )
    return Comparison(
        prompt=prompt_cell(row, "prompt"),
        completions=completions,
        origins=tuple(Origin(source=source) for _ in completions),
        columns=other_columns(row, "prompt", "completions", "a", "b"),
    )


def _report_broken(source: str, count: int, problems: Sequence[str], report: Report) -> None:
    if count:
        report(f"{count} rows of '{source}' are broken and left out, the first: {problems[0]}")
