"""Screen that exports the preferences of a store to a file: it counts them first and writes when the user agrees."""

from __future__ import annotations

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, cast

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widgets import Input, Select

from trainer.errors import TrainerError, cannot_write
from trainer.plurals import counted
from trainer.preferences.store import PreferenceStore
from workbench.kit.dialog import ConfirmScreen
from workbench.kit.file_names import path_problem, unused
from workbench.labelling.label_form import LabelForm, choice, row, text_field
from workbench.text import visible

if TYPE_CHECKING:
    from trainer.preferences.formats import ExportSummary

_SUFFIX = ".jsonl"  # works for every format
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


class Export(NamedTuple):
    """Options of an export, as in the fields of the screen."""

    path: Path
    format: str
    ties: Literal["keep", "drop"]
    provenance: bool


def write_export(store: Path, export: Export, *, overwrite: bool = False) -> ExportSummary:
    """Write the preferences in `store` to a file. Raises TrainerError, as `write_preferences` does."""
    from trainer.preferences.formats import write_preferences

    with PreferenceStore(store, create=False) as opened:
        return write_preferences(
            opened.preferences(with_skips=True),
            export.path,
            format=export.format,
            ties=export.ties,
            provenance=export.provenance,
            overwrite=overwrite,
        )


def try_export(store: Path, export: Export) -> ExportSummary:
    """Count what `write_export` would write, by writing a temporary file.

    Raises TrainerError for the preferences and options, as `write_export` does.
    """
    try:
        with TemporaryDirectory(prefix="ppo-workbench-") as folder:
            tried = Path(folder, f"export{export.path.suffix}")
            try:
                return write_export(store, export._replace(path=tried))
            except TrainerError as error:
                raise type(error)(str(error).replace(str(tried), str(export.path))) from None
    except OSError as error:
        raise cannot_write("to the temporary folder", error) from None


class ExportPreferencesScreen(LabelForm[str | None]):
    """Export dialog. Its result is one line on what was written; None if nothing was."""

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
        self._tried: tuple[object, ...] = ()  # the options that the count belongs to
        self._count: ExportSummary | None = None
        self._proposed = ""  # the last path filled in automatically

    def fields(self) -> ComposeResult:
        formats = [(f"{name:18} {text}", name) for name, text in FORMATS_OUT.items()]
        ties = [("keep where the format can hold them", "keep"), ("leave out", "drop")]
        columns = [("prompt, completions and choice only", "no"), ("origins, judgements and other columns too", "yes")]
        yield row(("format", choice("format", formats, "Format that the reader needs; only k-way loses nothing")))
        yield row(("ties", choice("ties", ties, "What to do with equally good completions")))
        yield row(("with", choice("provenance", columns, "Whether to add all other columns; k-way always has them")))
        yield row(("to", text_field("path", "The suffix sets the file type: .jsonl, .parquet or .csv")))

    def on_mount(self) -> None:
        path = self.query_one("#path", Input)
        self._propose()
        path.focus()

    @on(Select.Changed, "#format")
    @work(exclusive=True, group="proposing")
    async def _propose(self) -> None:
        """Fill in a path for the format, unless the user has typed one."""
        path = self.query_one("#path", Input)
        if path.value == self._proposed:
            name = f"preferences-{self.query_one('#format', Select).value}{_SUFFIX}"
            proposed = await asyncio.to_thread(unused, Path.cwd() / name)
            if path.value == self._proposed:
                self._proposed = path.value = str(proposed)
                path.cursor_position = len(path.value)

    @on(Select.Changed)
    @on(Input.Changed)
    @work(exclusive=True, group="counting")
    async def _follow(self) -> None:
        """Count what would be written, or say why nothing can be."""
        if (export := await self._checked()) is None:
            self._tried = ()
            return
        tried = export._replace(path=Path()), export.path.suffix
        if self._count is None or self._tried != tried:
            self._tried, self._count = tried, None
            self.show_work("Counting...")
            self._count = await self.tried(asyncio.to_thread(try_export, self._store, export))
        if self._count is not None:
            what = " asks before it overwrites" if await asyncio.to_thread(export.path.exists) else " writes it"
            counts = (f"{_counts(self._count)}   ", "$text-accent")
            self.show_status(Content.assemble(counts, ("enter", "bold"), (what, "$text-muted")))

    @on(Input.Submitted)
    @work(exclusive=True, group="asking")
    async def action_write(self) -> None:
        """Write the file; overwrite an existing one only if the user agrees."""
        if self._count is None or self.busy or (export := await self._checked()) is None:
            return
        exists = await asyncio.to_thread(export.path.exists)
        question, detail = f"Overwrite {export.path.name}?", f"It is in {export.path.parent.absolute()}."
        if not exists or await self.app.push_screen_wait(ConfirmScreen(question, detail, "Overwrite", "Keep file")):
            self._write(export, overwrite=exists)

    @work(exclusive=True, group="writing")
    async def _write(self, export: Export, *, overwrite: bool) -> None:
        self.busy = True
        self.show_work("Writing...")
        written = await self.tried(asyncio.to_thread(write_export, self._store, export, overwrite=overwrite))
        self.busy = False
        if written is not None:
            self.dismiss(f"Exported {visible(str(written.path))} as {export.format}: {_counts(written)}")

    async def _checked(self) -> Export | None:
        """Return the options in the fields; None, and the problem on the screen, if the path is not valid."""
        text = self.query_one("#path", Input).value
        if problem := await asyncio.to_thread(path_problem, text):
            self.show_problem(problem)
            return None
        return Export(
            Path(text).expanduser(),
            str(self.query_one("#format", Select).value),
            cast("Literal['keep', 'drop']", self.query_one("#ties", Select).value),
            self.query_one("#provenance", Select).value == "yes",
        )


def _counts(written: ExportSummary) -> str:
    reasons = ((count, reason.replace("_", " ")) for reason, count in written.left_out.items())
    left_out = ", ".join(counted(count, reason, reason if " " in reason else "") for count, reason in reasons)
    rows = counted(written.rows, "row")
    return f"{rows}, left out: {left_out}" if left_out else rows
