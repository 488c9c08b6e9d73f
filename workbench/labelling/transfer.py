"""Dialogs that import preferences from a file, and export those of a store to one: the import shows a preview first."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.events import Mount
from textual.widgets import Input, Select, Static

from trainer.errors import counted
from trainer.files import is_folder, may_exist, unused
from trainer.preferences.records import Preference, Text
from trainer.preferences.store import PreferenceStore
from workbench.kit.dialog import ConfirmScreen
from workbench.kit.keys import bind
from workbench.kit.saving import given_path
from workbench.labelling.dialogs import LabelForm, choice, columns_field, columns_in, path_field, row
from workbench.text import fit_start, visible

if TYPE_CHECKING:
    from trainer.preferences.formats import ExportSummary, Reading

FORMATS_IN = ("auto", "trl", "trl-implicit", "hh", "ultrafeedback", "arena", "columns", "k-way")
PREVIEWED = 3  # rows
_CUT = 300  # columns of a text
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


def reading_of(source: str, format: str, columns: Sequence[str]) -> Reading:
    """Read the preferences of a source without its broken rows. columns: their names, as in "prompt=question".

    For a thread: it imports NumPy, and `datasets` for a source that is not a file. Raises UsageError and DataError.
    """
    from trainer.preferences.formats import ColumnNames, read_preferences

    return read_preferences(source, format=format, columns=ColumnNames.of(columns), skip_broken=True)


class ImportPreferencesScreen(LabelForm[str | None]):
    """Import dialog. Its result is one line on what was imported; None if nothing was.

    It writes nothing before the user has seen the preview.
    """

    AUTO_FOCUS = "#source"
    TITLE = "Import preferences"
    HELP = "Adds preferences from a file. {label-import.go-on} shows what would be added, and once more adds it."
    DOCS = "preferences"
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("ctrl+r", "go_on", "preview, import", "label-import.go-on", "Preview, then import"),
        bind("escape", "close", "close", "label-import.close", "Close, and stop an import"),
    ]

    def __init__(self, store: Path) -> None:
        super().__init__(f"Import preferences into {store.name}")
        self._store = store
        self._source: tuple[str, str, Sequence[str]] | None = None  # that is previewed: source, format and columns
        self._count: int | None = None  # of its preferences, once they were read

    def fields(self) -> ComposeResult:
        source = path_field(
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
        self._forget()

    @on(Input.Submitted)
    def action_go_on(self) -> None:
        """Read the source and show a preview; if that is done, import the preferences."""
        if self.busy:
            return
        source = self.value("source").strip()
        if not source:
            self.show_problem("Name a file, a folder or a dataset")
        elif self._source is None:
            self._read(source, self.value("format"), columns_in(self.value("columns")))
        elif self._count:
            self._write(*self._source)

    @on(Input.Changed)
    @on(Select.Changed)
    def _forget(self) -> None:
        """Drop the preview, because the source or the format has changed."""
        self._source = self._count = None
        self.workers.cancel_group(self, "reading")
        self.query_one("#preview", Static).update("")
        self.show_status(self.hint(("enter", "previews it; nothing is written yet")))

    @work(exclusive=True, group="reading")
    async def _read(self, *source: Any) -> None:
        """Read the whole source on a thread, and show its first preferences and what was counted."""
        self._source = source
        self.show_status("Reading...")

        def read() -> tuple[Reading, list[Preference], int]:
            reading, first, count = reading_of(*source), list[Preference](), 0
            for count, preference in enumerate(reading, 1):
                first += [preference] if count <= PREVIEWED else []
                if self._source is not source or not self.is_attached:
                    break
            return reading, first, count

        found = await self.tried(asyncio.to_thread(read))
        if found is None:
            self._source = None
            return
        reading, first, self._count = found
        self.query_one("#preview", Static).update(preview_text(first, reading))
        facts = [counted(reading.rows, "row"), f"format {reading.format}"]
        if reading.broken:
            facts.append(f"{reading.broken:,} broken")
        does = self.hint(("enter", f"imports {self._count:,}")) if self._count else Content("nothing to import")
        self.show_status(Content("   ").join([Content("   ".join(facts)), does]))

    @work(exclusive=True, group="writing")
    async def _write(self, source: str, format: str, columns: Sequence[str]) -> None:
        def add() -> tuple[int, int]:
            with PreferenceStore(self._store) as store:
                return store.add_many(reading_of(source, format, columns), source=source)

        self.busy = True
        self.show_status("Writing...")
        added = await self.tried(asyncio.to_thread(add), ". Safe to retry; duplicates are skipped.")
        self.busy = False
        if added is not None:
            count, duplicates = added
            known = f", skipped {counted(duplicates, 'duplicate')}" if duplicates else ""
            self.dismiss(f"Imported {counted(count, 'preference')} from {visible(source)}{known}")


def preview_text(first: Sequence[Preference], reading: Reading) -> Content:
    """Return the first rows as they would be saved, and the broken rows with place and reason."""
    parts: list[tuple[str, str]] = []
    for preference in first:
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
            rank = of_place.get(place, ranks[0])
            style = f"${rank}" if rank in ("better", "worse") else "$text-muted"
            parts += [(f"{rank:>9}  ", style), (f"{_line(completion)}\n", "")]
    if reading.problems:
        parts.append(("skipped\n", "$text-warning bold"))
        parts += [(f"{visible(problem)}\n", "$text-warning") for problem in reading.problems]
        if more := reading.broken - len(reading.problems):
            parts.append((f"and {more:,} more\n", "$text-warning"))
    return Content.assemble(*parts)


def _line(text: Text) -> str:
    plain = text if isinstance(text, str) else "  ".join(f"{one['role']}: {one['content']}" for one in text)
    return fit_start(visible(" ".join(plain.split())), _CUT)


class ExportPreferencesScreen(LabelForm[str | None]):
    """Export dialog. Its result is one line on what was written; None if nothing was."""

    AUTO_FOCUS = "#path"
    TITLE = "Export preferences"
    HELP = "Writes the labels to a file that another trainer reads. {label-export.write} writes it from any field."
    DOCS = "preferences"
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("ctrl+r", "write", "write", "label-export.write", "Write the file (from any field)"),
        bind("escape", "close", "close", "label-export.close", "Close without exporting"),
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
        yield row(("to", path_field("path", "The suffix sets the file type: .jsonl, .parquet or .csv")))

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
            self.show_status(self.hint(("enter", what)))

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
