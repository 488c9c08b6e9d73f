"""The dialog that asks what to export, in which format and to which file."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from workbench.kit.dialog import Dialog
from workbench.kit.file_names import about_path, path_problem, unused
from workbench.text import visible

What = Literal["this", "shown", "marked"]
Format = Literal["jsonl", "markdown", "svg", "html"]

_SUFFIXES: dict[Format, str] = {"jsonl": ".jsonl", "markdown": ".md", "svg": ".svg", "html": ".html"}
_FORMATS: dict[Format, str] = {
    "jsonl": "JSON lines: all numbers, and state-action pairs",
    "markdown": "Markdown: texts, scores, table of tokens",
    "svg": "SVG picture of the coloured text",
    "html": "HTML page of the coloured text",
}
_CHOICES: tuple[tuple[What, Format], ...] = (
    ("this", "jsonl"),
    ("this", "markdown"),
    ("this", "svg"),
    ("this", "html"),
    ("shown", "jsonl"),
    ("shown", "markdown"),
    ("marked", "jsonl"),
    ("marked", "markdown"),
)


class ExportChoice(NamedTuple):
    """The samples to write, the format and the file."""

    what: What
    format: Format
    path: Path


class SampleExportScreen(Dialog[ExportChoice | None]):
    """Dialog that returns the choice, None when cancelled. It stays open until the file is written.

    counts: number of samples behind "this", "shown" and "marked"; one with 0 cannot be chosen. name: of the proposed
    file in `default_folder`, without suffix. write: carries out the choice and returns the problem, empty for none.
    """

    TITLE = "Export samples"
    HELP = "Writes samples to a file. Choose which in the list; ⏎ in the field of the path writes it."
    DOCS = "samples"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "close", "close", id="export.close", tooltip="Close without exporting"),
        Binding("up", "list", "to the list", show=False, id="export.list", tooltip="Return to the list"),
    ]

    def __init__(
        self,
        counts: Mapping[What, int],
        default_folder: Path,
        name: str,
        write: Callable[[ExportChoice], Awaitable[str]] | None = None,
    ) -> None:
        super().__init__()
        self._write, self._writing = write, False
        self._counts, self._folder, self._name = counts, default_folder, name
        self._proposed = ""  # the path last filled in

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static("Export samples", markup=False, classes="question")
            yield OptionList(*self._options(), markup=False)
            yield Input(compact=True)
            yield Static(self._keys(), classes="detail")

    def on_mount(self) -> None:
        rows = self.query_one(OptionList)
        rows.focus()
        rows.highlighted = 0

    def action_close(self) -> None:
        if self._writing:
            self._show_note("Writing…")
        else:
            self.dismiss(None)

    def action_list(self) -> None:
        self.query_one(OptionList).focus()

    @on(OptionList.OptionHighlighted)
    @work(exclusive=True, group="propose")
    async def _propose(self) -> None:
        """Fill in a path for the choice; of a path that the user edited, change only the suffix."""
        what, format_ = self._choice()
        path = self.query_one(Input)
        if path.value == self._proposed:
            name = self._name if what == "this" else f"{self._name}-{what}"
            proposed = await asyncio.to_thread(unused, self._folder / f"{name}{_SUFFIXES[format_]}")
            if path.value == self._proposed:
                path.value = self._proposed = str(proposed)
        else:
            written = Path(path.value)
            path.value = str(written.with_suffix("") if written.suffix in _SUFFIXES.values() else written)
            path.value += _SUFFIXES[format_]

    @on(OptionList.OptionSelected)
    def _edit_path(self) -> None:
        path = self.query_one(Input)
        path.focus()
        path.cursor_position = len(path.value)

    @on(Input.Changed)
    @work(exclusive=True, group="look")
    async def _look(self, event: Input.Changed) -> None:
        """Say what is wrong with the path, or which file will be written."""
        problem, note = await asyncio.to_thread(about_path, event.value)
        self._show_note(f"✖ {problem}" if problem else note)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if not self._writing:
            self._writing = True
            self._export(*self._choice(), event.value)

    @work
    async def _export(self, what: What, format_: Format, typed: str) -> None:
        try:
            problem = await asyncio.to_thread(path_problem, typed)
            if not problem:
                choice = ExportChoice(what, format_, Path(typed).expanduser())
                problem = await self._write(choice) if self._write else ""
        finally:
            self._writing = False
        if problem:
            self._show_note(f"✖ {problem}")
        else:
            self.dismiss(choice)

    def _show_note(self, text: str) -> None:
        """Show `text`, or the keys where it is empty."""
        self.query_one(".detail", Static).update(Content(visible(text)) if text else self._keys())

    def _keys(self) -> Content:
        return self.hint(("enter", "edit the path, then export"), ("export.close", "close"))

    def _options(self) -> Iterator[Option]:
        counts = {what: self._counts.get(what, 0) for what, _ in _CHOICES}
        titles = {
            "this": "this sample",
            "shown": f"all {counts['shown']:,} listed",
            "marked": f"all {counts['marked']:,} marked",
        }
        width = max(map(len, titles.values()))
        for what, format_ in _CHOICES:
            label = Content.assemble((f"{titles[what]:{width}}  ", "bold"), _FORMATS[format_])
            yield Option(label, disabled=not counts[what])

    def _choice(self) -> tuple[What, Format]:
        return _CHOICES[self.query_one(OptionList).highlighted or 0]
