"""Screen that exports the preferences of a store to a file: it counts them first and writes when the user agrees."""

from __future__ import annotations

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, cast

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.content import Content
from textual.widgets import Input, Select, Static

from trainer.errors import TrainerError
from trainer.preferences.store import PreferenceStore
from workbench.kit.confirm import ConfirmScreen
from workbench.kit.dialog import Dialog
from workbench.kit.file_names import path_problem, unused
from workbench.kit.key_footer import KeyFooter
from workbench.kit.plain_input import PlainInput
from workbench.labelling.formats import FORMATS_OUT
from workbench.text import visible

if TYPE_CHECKING:
    from trainer.preferences.formats_out import Written

_SUFFIX = ".jsonl"  # works for every format
_FIRST = "trl"
_FORMATS = {
    "trl": "prompt, chosen and rejected",
    "trl-implicit": "chosen and rejected, the prompt in both",
    "trl-conversational": "chat messages throughout",
    "kto": "single completions, good or bad",
    "kto-conversational": "the same as chat messages",
    "columns": "prompt, a, b and choice",
    "k-way": "everything that is known, to keep or to move",
}


class Export(NamedTuple):
    """Options of an export, as in the fields of the screen."""

    path: Path
    format: str
    ties: Literal["keep", "drop"]
    provenance: bool


def write_export(store: Path, export: Export, *, overwrite: bool = False) -> Written:
    """Write the preferences in `store` to a file. Raises TrainerError, as `write_preferences` does."""
    from trainer.preferences.formats_out import write_preferences

    with PreferenceStore(store, create=False) as opened:
        return write_preferences(
            opened.preferences(with_skips=True),
            export.path,
            format=export.format,
            ties=export.ties,
            provenance=export.provenance,
            overwrite=overwrite,
        )


def try_export(store: Path, export: Export) -> Written:
    """Count what `write_export` would write, by writing a temporary file.

    Raises TrainerError for the preferences and options, as `write_export` does.
    """
    with TemporaryDirectory(prefix="ppo-workbench-") as folder:
        tried = Path(folder, f"export{export.path.suffix}")
        try:
            return write_export(store, export._replace(path=tried))
        except TrainerError as error:
            raise type(error)(str(error).replace(str(tried), str(export.path))) from None


class ExportScreen(Dialog[str | None]):
    """Export dialog. Its result is one line on what was written; None if nothing was."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+r", "write", "write", id="label-export.write", tooltip="Write the file, from any field"),
        Binding("escape", "close", "close", id="label-export.close", tooltip="Close this and write nothing"),
    ]
    DEFAULT_CLASSES = "label-form"

    def __init__(self, store: Path) -> None:
        super().__init__()
        self._store = store
        self._tried: tuple[object, ...] = ()  # the options that the count belongs to
        self._count: Written | None = None
        self._proposed = ""  # the last path filled in automatically
        self._writing = False

    def compose(self) -> ComposeResult:
        yield Static(f"Export the preferences in {visible(self._store.name)}", markup=False, classes="title one-line")
        with Horizontal(classes="fields"):
            yield Static("format", classes="label")
            yield Select(
                [(f"{name:18} {_FORMATS[name]}", name) for name in FORMATS_OUT],
                value=_FIRST,
                allow_blank=False,
                compact=True,
                id="format",
                tooltip="Who is to read it: k-way alone loses nothing",
            )
        with Horizontal(classes="fields"):
            yield Static("ties", classes="label")
            yield Select(
                [("keep where the format can hold them", "keep"), ("leave out", "drop")],
                value="keep",
                allow_blank=False,
                compact=True,
                id="ties",
                tooltip="What becomes of completions that are as good as each other",
            )
        with Horizontal(classes="fields"):
            yield Static("with", classes="label")
            yield Select(
                [("prompt, completions and choice alone", "no"), ("origins, judgements and other columns too", "yes")],
                value="no",
                allow_blank=False,
                compact=True,
                id="provenance",
                tooltip="Whether columns come along with all else that is known; k-way always has them",
            )
        with Horizontal(classes="fields"):
            yield Static("to", classes="label")
            yield PlainInput(compact=True, id="path", tooltip="The suffix tells how: .jsonl or .parquet, or .csv")
        yield Static(id="status", markup=False)
        yield KeyFooter(palette=False)

    def on_mount(self) -> None:
        path = self.query_one("#path", Input)
        self._propose()
        path.focus()

    def action_close(self) -> None:
        if self._writing:
            self._tell(Content.styled("writing: it is done in a moment", "$text-warning"))
        else:
            self.dismiss(None)

    @on(Select.Changed, "#format")
    def _propose(self) -> None:
        """Fill in a path for the format, unless the user has typed one."""
        path = self.query_one("#path", Input)
        if path.value == self._proposed:
            name = f"preferences-{self.query_one('#format', Select).value}{_SUFFIX}"
            self._proposed = path.value = str(unused(Path.cwd() / name))
            path.cursor_position = len(path.value)

    @on(Select.Changed)
    @on(Input.Changed)
    def _follow(self) -> None:
        export = self._asked()
        if export is None:
            self._tried = ()
            self._fail(path_problem(self.query_one("#path", Input).value))
        elif self._tried == (tried := (export._replace(path=Path()), export.path.suffix)):
            self._tell_count()
        else:
            self._tried, self._count = tried, None
            self._try(export)

    @work(exclusive=True, group="counting")
    async def _try(self, export: Export) -> None:
        self._tell(Content.styled("counting…", "$text-accent"))
        try:
            self._count = await asyncio.to_thread(try_export, self._store, export)
        except TrainerError as error:
            self._fail(str(error))
            return
        self._tell_count()

    @on(Input.Submitted)
    def action_write(self) -> None:
        """Write the file; overwrite an existing one only if the user agrees."""
        export = self._asked()
        if export is None or self._count is None or self._writing:
            return
        if not export.path.exists():
            self._write(export, overwrite=False)
            return

        def answered(agreed: bool | None) -> None:
            if agreed:
                self._write(export, overwrite=True)

        question, detail = f"{export.path.name} is there already.", f"In {export.path.parent.absolute()}."
        self.app.push_screen(ConfirmScreen(question, detail, "Overwrite", "Keep it"), answered)

    @work(exclusive=True, group="writing")
    async def _write(self, export: Export, *, overwrite: bool) -> None:
        self._writing = True
        self._tell(Content.styled("writing…", "$text-accent"))
        try:
            written = await asyncio.to_thread(write_export, self._store, export, overwrite=overwrite)
        except TrainerError as error:
            self._fail(str(error))
            return
        finally:
            self._writing = False
        self.dismiss(f"wrote {visible(str(written.path))} as {export.format}: {_counts(written)}")

    def _asked(self) -> Export | None:
        """Return the options in the fields; None if the path is not valid."""
        text = self.query_one("#path", Input).value
        if path_problem(text):
            return None
        return Export(
            Path(text).expanduser(),
            str(self.query_one("#format", Select).value),
            cast("Literal['keep', 'drop']", self.query_one("#ties", Select).value),
            self.query_one("#provenance", Select).value == "yes",
        )

    # Status line

    def _tell_count(self) -> None:
        export = self._asked()
        if self._count is None or export is None:
            return
        there = "   asks before it overwrites" if export.path.exists() else " writes it"
        self._tell(
            Content.assemble((f"{_counts(self._count)}   ", "$text-accent"), ("enter", "bold"), (there, "$text-muted"))
        )

    def _fail(self, problem: str) -> None:
        self._tell(Content.styled(f"✖ {visible(problem)}", "$text-error"))

    def _tell(self, told: Content) -> None:
        self.query_one("#status", Static).update(told)


def _counts(written: Written) -> str:
    left_out = ", ".join(f"{count:,} {reason.replace('_', ' ')}" for reason, count in written.left_out.items())
    rows = f"{written.rows:,} {'row' if written.rows == 1 else 'rows'}"
    return f"{rows}, left out: {left_out}" if left_out else rows
