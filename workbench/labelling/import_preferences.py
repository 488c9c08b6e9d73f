"""Screen that imports preferences from a file or dataset: it shows a preview and writes when the user agrees."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Input, Select, Static

from trainer.plurals import counted
from trainer.preferences.records import Preference, Text
from trainer.preferences.spool import Spool
from trainer.preferences.store import Added, PreferenceStore
from workbench.columns import fit_start
from workbench.labelling.label_form import LabelForm, choice, columns_field, columns_in, row, text_field
from workbench.text import visible

FORMATS_IN = ("auto", "trl", "trl-implicit", "hh", "ultrafeedback", "arena", "columns", "k-way")
PREVIEWED = 3  # rows
_EVERY = 500  # rows between updates of the count on the screen
_CUT = 300  # columns of a text
_LOOK = Content.assemble(("enter", "bold"), (" previews it; nothing is written yet", "$text-muted"))


@dataclass(frozen=True, slots=True)
class Preview:
    """Content of a source, as far as it is read. problems: place and broken rule of the first broken rows."""

    source: str
    format: str
    rows: int = 0
    broken: int = 0
    duplicates: int = 0
    problems: tuple[str, ...] = ()
    first: tuple[Preference, ...] = ()  # to be shown
    preferences: Spool | None = None  # all of them, once they are read


def read_preview(
    source: str,
    format: str,
    folder: Path,
    report: Callable[[Preview], None],
    closing: Event,
    columns: Sequence[str] = (),
) -> Preview:
    """Read all of `source` and report progress through `report`. Broken rows are left out.

    folder: of a temporary file for many preferences. columns: their names, as in "prompt=question". Imports numpy, and
    `datasets` for a source that is not a file.
    Ends early when `closing` is set. Raises UsageError, DataError and StorageError.
    """
    from trainer.preferences.formats import ColumnNames, read_preferences

    reading = read_preferences(source, format=format, columns=ColumnNames.of(columns), skip_broken=True)
    first: list[Preference] = []
    preferences = Spool(folder)

    def so_far() -> Preview:
        return Preview(
            source=source,
            format=reading.format,
            rows=reading.rows,
            broken=reading.broken,
            duplicates=reading.duplicates,
            problems=tuple(reading.problems),
            first=tuple(first),
        )

    for preference in itertools.takewhile(lambda _: not closing.is_set(), reading):
        preferences.append(preference)
        if len(preferences) <= PREVIEWED:
            first.append(preference)
        if len(preferences) == PREVIEWED or len(preferences) % _EVERY == 0:
            report(so_far())
    return replace(so_far(), preferences=preferences)


class ImportPreferencesScreen(LabelForm[str | None]):
    """Import dialog. Its result is one line on what was imported; None if nothing was.

    It writes nothing before the user has seen the preview.
    """

    TITLE = "Import preferences"
    HELP = "Adds preferences from a file. {label-import.go-on} shows what would be added, and once more adds it."
    DOCS = "preferences"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+r", "go_on", "preview, import", id="label-import.go-on", tooltip="Preview, then import"),
        Binding("escape", "close", "close", id="label-import.close", tooltip="Close, and stop an import"),
    ]

    def __init__(self, store: Path) -> None:
        super().__init__(f"Import preferences into {store.name}")
        self._store = store
        self._preview: Preview | None = None  # of the source in the fields
        self._superseded = Event()  # set: stop the current reading

    def fields(self) -> ComposeResult:
        source = text_field(
            "source",
            "A path, relative to where the workbench was started, or the name of a dataset",
            placeholder=".jsonl, .json, .csv or .parquet file, folder or datasets name",
        )
        formats = [("detect from the first row" if name == "auto" else name, name) for name in FORMATS_IN]
        yield row(("from", source))
        yield row(("format", choice("format", formats, "What the columns mean")))
        yield row(("columns", columns_field()))
        with VerticalScroll():
            yield Static(id="preview", markup=False)

    def on_mount(self) -> None:
        self.query_one("#source").focus()
        self.show_status(_LOOK)

    def on_unmount(self) -> None:
        self._superseded.set()

    @on(Input.Submitted)
    def action_go_on(self) -> None:
        """Read the source and show a preview; if that is done, import the preferences."""
        if self.busy:
            return
        source = self.query_one("#source", Input).value.strip()
        if not source:
            self.show_problem("Name a file, a folder or a dataset")
        elif self._preview is None:
            self._read(source, str(self.query_one("#format", Select).value))
        elif self._preview.preferences:
            self._write(self._preview, self._preview.preferences)

    @on(Input.Changed)
    @on(Select.Changed)
    def _forget(self) -> None:
        """Drop the preview, because the source or the format has changed."""
        self._superseded.set()
        self.workers.cancel_group(self, "reading")
        self._preview = None
        self.query_one("#preview", Static).update("")
        self.show_status(_LOOK)

    @work(exclusive=True, group="reading")
    async def _read(self, source: str, format: str) -> None:
        self._superseded = closing = Event()
        self.show_work("Reading...")

        def report(preview: Preview) -> None:
            self.call_later(self._show_if_read, preview, closing)

        self._preview = Preview(source, format)
        columns = columns_in(self.query_one("#columns", Input).value)
        reading = asyncio.to_thread(read_preview, source, format, self._store.parent, report, closing, columns)
        self._preview = await self.tried(reading)
        closing.set()  # reports that arrive later are out of date
        if self._preview is not None:
            self._show(self._preview)

    def _show_if_read(self, preview: Preview, closing: Event) -> None:
        if not closing.is_set():
            self._show(preview)

    @work(exclusive=True, group="writing")
    async def _write(self, preview: Preview, preferences: Spool) -> None:
        self.busy = True
        adding = asyncio.to_thread(self._add, preferences, preview.source)
        added = await self.tried(adding, ". Safe to retry; duplicates are skipped.")
        self.busy = False
        if added is None:
            return
        known = f", skipped {counted(added.duplicates, 'duplicate')}" if added.duplicates else ""
        self.dismiss(f"Imported {counted(added.count, 'preference')} from {visible(preview.source)}{known}")

    def _add(self, preferences: Spool, source: str) -> Added:
        def shown() -> Iterator[Preference]:
            for count, preference in enumerate(preferences):
                if count % _EVERY == 0:
                    self.call_later(self._show_written, count, len(preferences))
                yield preference

        with PreferenceStore(self._store) as store:
            return store.add_many(shown(), source=source)

    def _show(self, preview: Preview) -> None:
        self._preview = preview
        self.query_one("#preview", Static).update(preview_text(preview))
        rows = counted(preview.rows, "row")
        is_read = preview.preferences is not None
        facts = [rows if is_read else f"Reading, {rows} so far...", f"format {preview.format}"]
        if preview.duplicates:
            facts.append(counted(preview.duplicates, "duplicate"))
        if preview.broken:
            facts.append(f"{preview.broken:,} broken")
        status = Content.styled("   ".join(facts), "$text-accent")
        if preview.preferences is not None:
            count = len(preview.preferences)
            what = (("   enter", "bold"), f" imports {count:,}") if count else ("   nothing to import",)
            status = Content.assemble(status, *what)
        self.show_status(status)

    def _show_written(self, count: int, total: int) -> None:
        if self.busy:
            self.show_work(f"Writing, {count:,} of {total:,}...")


def preview_text(preview: Preview) -> Content:
    """Return the first rows as they would be saved, and the broken rows with place and reason."""
    parts: list[tuple[str, str]] = []
    for preference in preview.first:
        comparison, ranking = preference.comparison, preference.judgement.ranking
        ranks = {place: rank for rank, group in enumerate(ranking, 1) for place in group}
        parts.append((f"{_line(comparison.prompt)}\n", "bold"))
        for place, completion in enumerate(comparison.completions):
            parts += [(f"{_rank(preference, ranks.get(place)):>9}  ", "$text-muted"), (f"{_line(completion)}\n", "")]
    if preview.problems:
        parts.append(("skipped\n", "$text-warning bold"))
        parts += [(f"{visible(problem)}\n", "$text-warning") for problem in preview.problems]
        if more := preview.broken - len(preview.problems):
            parts.append((f"and {more:,} more\n", "$text-warning"))
    return Content.assemble(*parts)


def _rank(preference: Preference, rank: int | None) -> str:
    if rank is None:
        return "both bad" if preference.judgement.verdict == "both_bad" else "skipped"
    ranking = preference.judgement.ranking
    if len(ranking) == 1:
        return "tie"
    if len(preference.comparison.completions) == 2:
        return "better" if rank == 1 else "worse"
    return f"{rank}."


def _line(text: Text) -> str:
    plain = text if isinstance(text, str) else "  ".join(f"{one['role']}: {one['content']}" for one in text)
    return fit_start(visible(plain), _CUT)
