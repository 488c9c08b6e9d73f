"""Dialogs that import preferences from a file, and export those of a store to one: the import shows a preview first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.events import Mount
from textual.widgets import Input, Select, Static

from trainer.errors import counted
from trainer.files import is_folder, may_exist, unused
from trainer.preferences.records import Preference, Text
from trainer.preferences.store import PreferenceStore
from workbench.kit.dialog import ConfirmScreen
from workbench.kit.saving import given_path
from workbench.labelling.dialogs import LabelForm, choice, columns_field, columns_in, row, text_field
from workbench.text import fit_start, visible

if TYPE_CHECKING:
    from trainer.preferences.formats import ExportSummary, Reading

FORMATS_IN = ("auto", "trl", "trl-implicit", "hh", "ultrafeedback", "arena", "columns", "k-way")
PREVIEWED = 3  # rows
_EVERY = 0.2  # seconds between updates of the count on the screen
_CUT = 300  # columns of a text
_LOOK = Content.assemble(("enter", "bold"), (" previews it; nothing is written yet", "$text-muted"))
FORMATS_OUT = {
    "trl": "prompt, chosen and rejected",
    "trl-implicit": "chosen and rejected, the prompt in both",
    "trl-conversational": "chat messages throughout",
    "kto": "single completions, good or bad",
    "kto-conversational": "single completions as chat messages",
    "columns": "prompt, a, b and choice",
    "k-way": "everything, lossless: to keep or to move",
}
"""Formats in which preferences are written, each with a description."""


@dataclass(slots=True)
class Preview:
    """Content of a source, as far as a thread has read it.

    columns: their names, as in "prompt=question". first: preferences to be shown. count: of preferences read; total:
    of all, once they were read.
    """

    source: str
    format: str
    columns: Sequence[str] = ()
    reading: Reading | None = None  # counts the rows
    first: list[Preference] = field(default_factory=list)
    count: int = 0
    total: int | None = None

    def preferences(self, wanted: Callable[[], bool] = lambda: True) -> Iterator[Preference]:
        """Read the source from its start to its end, or until it is no longer `wanted`.

        Imports NumPy, and `datasets` for a source that is not a file. Raises UsageError, DataError and StorageError.
        """
        from trainer.preferences.formats import ColumnNames, read_preferences

        self.first, self.count, columns = [], 0, ColumnNames.of(self.columns)
        self.reading = read_preferences(self.source, format=self.format, columns=columns, skip_broken=True)
        for preference in self.reading:
            self.count += 1
            if self.count <= PREVIEWED:
                self.first.append(preference)
            if not wanted():
                return
            yield preference
        self.total = self.count

    def write(self, store: Path) -> tuple[int, int]:
        """Read the source again and add its preferences to `store`."""
        with PreferenceStore(store) as opened:
            return opened.add_many(self.preferences(), source=self.source)


class ImportPreferencesScreen(LabelForm[str | None]):
    """Import dialog. Its result is one line on what was imported; None if nothing was.

    It writes nothing before the user has seen the preview.
    """

    AUTO_FOCUS = "#source"
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
        self.show_status(_LOOK)
        self.set_interval(_EVERY, self._show_progress)

    @on(Input.Submitted)
    def action_go_on(self) -> None:
        """Read the source and show a preview; if that is done, import the preferences."""
        if self.busy:
            return
        source = self.value("source").strip()
        if not source:
            self.show_problem("Name a file, a folder or a dataset")
        elif self._preview is None:
            self._read(Preview(source, self.value("format"), columns_in(self.value("columns"))))
        elif self._preview.total:
            self._write(self._preview)

    @on(Input.Changed)
    @on(Select.Changed)
    def _forget(self) -> None:
        """Drop the preview, because the source or the format has changed."""
        self._preview = None
        self.workers.cancel_group(self, "reading")
        self.query_one("#preview", Static).update("")
        self.show_status(_LOOK)

    @work(exclusive=True, group="reading")
    async def _read(self, preview: Preview) -> None:
        self._preview = preview
        self.show_status("Reading...")
        read = preview.preferences(lambda: preview is self._preview and self.is_attached)
        if await self.tried(asyncio.to_thread(lambda: sum(1 for _ in read))) is None:
            self._preview = None
        else:
            self._show(preview)

    @work(exclusive=True, group="writing")
    async def _write(self, preview: Preview) -> None:
        self.busy = True
        writing = asyncio.to_thread(preview.write, self._store)
        found = await self.tried(writing, ". Safe to retry; duplicates are skipped.")
        self.busy = False
        if found is not None:
            added, duplicates = found
            known = f", skipped {counted(duplicates, 'duplicate')}" if duplicates else ""
            self.dismiss(f"Imported {counted(added, 'preference')} from {visible(preview.source)}{known}")

    def _show_progress(self) -> None:
        if (preview := self._preview) is not None:
            if self.busy:
                self.show_status(f"Writing, {preview.count:,} of {preview.total:,}...")
            elif preview.total is None:
                self._show(preview)

    def _show(self, preview: Preview) -> None:
        if (reading := preview.reading) is None:
            return
        self.query_one("#preview", Static).update(preview_text(preview))
        rows = counted(reading.rows, "row")
        facts = [f"Reading, {rows} so far..." if preview.total is None else rows, f"format {reading.format}"]
        if reading.broken:
            facts.append(f"{reading.broken:,} broken")
        ends: list[tuple[str, str] | str] = []
        if preview.total is not None:
            ends = [("   enter", "bold"), f" imports {preview.total:,}"] if preview.total else ["   nothing to import"]
        self.show_status(Content.assemble(("   ".join(facts), "$text-accent"), *ends))


def preview_text(preview: Preview) -> Content:
    """Return the first rows as they would be saved, and the broken rows with place and reason."""
    parts: list[tuple[str, str]] = []
    for preference in preview.first:
        comparison, judgement = preference.comparison, preference.judgement
        if not judgement.ranking:
            ranks = ["both bad" if judgement.verdict == "both_bad" else "skipped"]
        elif len(judgement.ranking) == 1:
            ranks = ["tie"]
        elif len(comparison.completions) == 2:
            ranks = ["better", "worse"]
        else:
            ranks = [f"{rank}." for rank in range(1, len(judgement.ranking) + 1)]
        of_place = {place: rank for rank, group in zip(ranks, judgement.ranking, strict=False) for place in group}
        parts.append((f"{_line(comparison.prompt)}\n", "bold"))
        for place, completion in enumerate(comparison.completions):
            parts += [(f"{of_place.get(place, ranks[0]):>9}  ", "$text-muted"), (f"{_line(completion)}\n", "")]
    if preview.reading is not None and (problems := preview.reading.problems):
        parts.append(("skipped\n", "$text-warning bold"))
        parts += [(f"{visible(problem)}\n", "$text-warning") for problem in problems]
        if more := preview.reading.broken - len(problems):
            parts.append((f"and {more:,} more\n", "$text-warning"))
    return Content.assemble(*parts)


def _line(text: Text) -> str:
    plain = text if isinstance(text, str) else "  ".join(f"{one['role']}: {one['content']}" for one in text)
    return fit_start(visible(plain), _CUT)


class ExportPreferencesScreen(LabelForm[str | None]):
    """Export dialog. Its result is one line on what was written; None if nothing was."""

    AUTO_FOCUS = "#path"
    TITLE = "Export preferences"
    HELP = "Writes the labels to a file that another trainer reads. {label-export.write} writes it from any field."
    DOCS = "preferences"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+r", "write", "write", id="label-export.write", tooltip="Write the file (from any field)"),
        Binding("escape", "close", "close", id="label-export.close", tooltip="Close without exporting"),
    ]

    def __init__(self, store: Path) -> None:
        super().__init__(f"Export the preferences in {store.name}")
        self._store = store
        self._proposed = ""  # the last path filled in automatically

    def fields(self) -> ComposeResult:
        formats = [(f"{name:18} {text}", name) for name, text in FORMATS_OUT.items()]
        ties = [("keep where the format can hold them", "keep"), ("leave out", "drop")]
        columns = [("prompt, completions and choice only", "no"), ("origins, judgements and other columns too", "yes")]
        yield row(("format", choice("format", formats, "Format that the reader needs; only k-way loses nothing")))
        yield row(("ties", choice("ties", ties, "What to do with equally good completions")))
        yield row(("with", choice("provenance", columns, "Whether to add all other columns; k-way always has them")))
        yield row(("to", text_field("path", "The suffix sets the file type: .jsonl, .parquet or .csv")))

    @on(Mount)
    @on(Select.Changed)
    @on(Input.Changed)
    @work(exclusive=True, group="looking")
    async def _follow(self) -> None:
        """Fill in a path for the format, unless the user has typed one, and show what enter does."""
        path = self.query_one("#path", Input)
        name = f"preferences-{self.value('format')}.jsonl"
        if path.value == self._proposed:
            proposed = await asyncio.to_thread(lambda: str(unused(Path.cwd() / name)))
            if path.value == self._proposed:  # nothing was typed meanwhile
                self._proposed = path.value = proposed
                path.cursor_position = len(path.value)
        problem, exists = await asyncio.to_thread(_target, path.value)
        if problem:
            self.show_problem(problem)
        else:
            what = "asks before it overwrites" if exists else "writes it"
            self.show_status(Content.assemble(("enter", "bold"), (f" {what}", "$text-muted")))

    @on(Input.Submitted)
    @work(exclusive=True, group="writing")
    async def action_write(self) -> None:
        """Write the file; overwrite an existing one only if the user agrees."""
        text = self.query_one("#path", Input).value
        problem, exists = await asyncio.to_thread(_target, text)
        if self.busy or problem:
            return
        path = given_path(text)
        question, detail = f"Overwrite {path.name}?", f"It is in {path.parent.absolute()}."
        if exists and not await self.app.push_screen_wait(ConfirmScreen(question, detail, "Overwrite", "Keep file")):
            return
        format, ties, provenance = map(self.value, ("format", "ties", "provenance"))

        def write() -> ExportSummary:
            from trainer.preferences.formats import write_preferences

            with PreferenceStore(self._store, create=False) as opened:
                return write_preferences(
                    opened.preferences(with_skips=True),
                    path,
                    format=format,
                    ties="drop" if ties == "drop" else "keep",
                    provenance=provenance == "yes",
                    overwrite=exists,
                )

        self.busy = True
        self.show_status("Writing...")
        written = await self.tried(asyncio.to_thread(write))
        self.busy = False
        if written is not None:
            reasons = ((count, reason.replace("_", " ")) for reason, count in written.left_out.items())
            left_out = ", ".join(counted(count, reason, reason if " " in reason else "") for count, reason in reasons)
            counts = counted(written.rows, "row") + (f", left out: {left_out}" if left_out else "")
            self.dismiss(f"Exported {visible(str(written.path))} as {format}: {counts}")


def _target(text: str) -> tuple[str, bool]:
    """Return why the path `text` cannot be written, empty if it can, and whether there is a file."""
    path = given_path(text)
    problem = f"{path} is a folder: enter a file name" if is_folder(path) else ""
    return problem if text.strip() else "Enter a file name", may_exist(path)
