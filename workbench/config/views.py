"""Widgets around the form: heading, search, problems, TOML, and the layout of form, TOML and help."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, get_args

from rich.cells import cell_len
from rich.style import Style
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.content import Content
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Input, OptionList, TextArea
from textual.widgets.option_list import Option

from trainer.runs.listing import PPO
from workbench.columns import fit_end
from workbench.config.document import ConfigDocument, Problem
from workbench.config.form import ConfigForm, FieldHelp
from workbench.config.rows import Row
from workbench.config.toml import Token, TokenKind, line_of, tokens_by_line
from workbench.text import visible


class ConfigHeading(Widget):
    """Name of the preset or file, and notes on its state as far as there is room."""

    _subject = ""
    _notes: Sequence[str] = ()

    def show(self, subject: str, notes: Sequence[str]) -> None:
        """Show `subject` and `notes`, the most important first."""
        self._subject, self._notes = visible(subject), notes
        self.refresh()

    def render(self) -> Content:
        width, notes = self.size.width, ""
        least = min(cell_len(self._subject), 12)
        for note in self._notes:
            if cell_len(notes) + 2 + cell_len(note) <= width - least:
                notes += f"  {note}"
        name = fit_end(self._subject, max(width - cell_len(notes), 1))
        return Content.assemble((name, "bold"), (notes, "$text-muted"))


class SearchLine(Input):
    """Search input, hidden until requested; enter keeps the matches, escape shows all settings again."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "escape", "clear", "show all", id="config-search.clear", tooltip="End the search and show all settings"
        ),
        Binding("down", "submit", "to the rows", show=False, id="config-search.down", tooltip="Go to the matches"),
    ]

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(placeholder="Search names and descriptions", compact=True, id=id)
        self.display = False

    def allow_focus(self) -> bool:
        return bool(self.display)

    def put(self, query: str) -> None:
        """Show `query` without searching again; hide the line if it is empty."""
        with self.prevent(Input.Changed):
            self.value = query
        self.display = bool(query)

    async def action_clear(self) -> None:
        self.value = ""
        await self.action_submit()
        self.display = False


class ProblemsList(OptionList):
    """List of problems, which lead to their settings, and warnings; hidden while it is empty."""

    class Chosen(Message):
        """Request to show the setting or line of `problem`."""

        def __init__(self, problem: Problem) -> None:
            super().__init__()
            self.problem = problem

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id, compact=True)
        self._problems: Sequence[Problem] = ()
        self._shown: tuple[Sequence[Problem], Sequence[str], str] = ((), (), "")
        self._visited = -1  # index of the problem shown last
        self.display = False

    def allow_focus(self) -> bool:
        return bool(self.display)

    def show(self, problems: Sequence[Problem], warnings: Sequence[str], note: str = "") -> None:
        """Show `note`, problems and warnings."""
        if (problems, warnings, note) == self._shown:
            return
        self._shown, self._problems = (problems, warnings, note), problems
        self.clear_options()
        self.add_options([Option(Content(note), disabled=True)] if note else [])
        self.add_options(Content.assemble(("✖ ", "$text-error"), visible(problem.message)) for problem in problems)
        self.add_options(
            Option(Content.assemble(("⚠ ", "$text-warning"), visible(warning)), disabled=True) for warning in warnings
        )
        self.display = bool(problems or warnings or note)
        self._visited = min(self._visited, len(problems) - 1)

    def next(self, by: int) -> None:
        """Go to the next problem (by 1) or the previous one (-1), with wrap-around."""
        if self._problems:
            self._visited = (self._visited + by) % len(self._problems)
            self.highlighted = self._visited
            self.post_message(self.Chosen(self._problems[self._visited]))

    def point_at(self, key: str) -> None:
        """Highlight the first problem of a setting."""
        places = [place for place, problem in enumerate(self._problems) if problem.setting == key]
        if places:
            self.highlighted = places[0]

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.post_message(self.Chosen(self._problems[event.option_index]))


_APPS = {"f6", "f7", "ctrl+z", "ctrl+y"}  # F-keys choose panes; undo and redo also change the form


def _bindings() -> list[BindingType]:
    """Return TextArea's bindings, each with an id so that users can change its key.

    Leaves out those whose keys mean something else here.
    """
    kept: list[BindingType] = []
    for binding in TextArea.BINDINGS:
        assert isinstance(binding, Binding)
        if not _APPS & set(binding.key.split(",")):
            name = binding.action.replace("_", "-").replace("(True)", "-select")
            kept.append(replace(binding, id=f"toml.{name}", tooltip=binding.description, show=False))
    return kept


class TomlView(TextArea, inherit_bindings=False):
    """TOML editor with our own highlighting: Textual's needs two compiled packages, and we need the tokens anyway."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {f"toml-view--{kind}" for kind in get_args(TokenKind)}
    BINDINGS: ClassVar[list[BindingType]] = _bindings()

    def __init__(self) -> None:
        super().__init__(show_line_numbers=True, soft_wrap=False, tab_behavior="focus", compact=True)
        self.display = False
        self._tokens: list[list[Token]] = []
        self._coloured: str | None = None

    def allow_focus(self) -> bool:
        return bool(self.display)

    def show_text(self, text: str) -> None:
        """Show `text`; the cursor stays where it was."""
        if text != self.text:
            location, scroll = self.cursor_location, self.scroll_offset
            self.load_text(text)
            self.move_cursor(location)
            self.scroll_to(scroll.x, scroll.y, animate=False)

    def go_to_line(self, line: int) -> None:
        """Move the cursor to a line, from 1."""
        self.move_cursor((line - 1, 0), center=True)

    def get_line(self, line_index: int) -> Text:
        """Return a line with its colours; each control character becomes one symbol, so that columns stay."""
        line = Text("".join(map(_shown, self.document.get_line(line_index))), end="", no_wrap=True)
        if self._coloured != self.text:
            self._coloured = self.text
            self._tokens = tokens_by_line("\n".join(self.document.lines))
        for token in self._tokens[line_index]:
            style = self.get_component_rich_style(f"toml-view--{token.kind}")
            # Without the background, which the line or the selection sets.
            ink = Style(color=style.color, bold=style.bold, italic=style.italic, underline=style.underline)
            line.stylize(ink, token.start, token.stop)
        return line


def _shown(character: str) -> str:
    safe = character if character == "\t" else visible(character)
    return safe if len(safe) == 1 else "\ufffd"


_BESIDE = 96  # columns from which the TOML or the help is beside the form
_ALL_BESIDE = 150  # columns from which both are


class ConfigBody(Horizontal):
    """Form, TOML and help, side by side where there is room; otherwise the help is below."""

    toml_shown = False
    """Whether the TOML is shown beside the form, or in its place."""

    def __init__(self, document: ConfigDocument, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._document = document

    def compose(self) -> ComposeResult:
        yield ConfigForm(id="config-form")
        yield TomlView()
        yield FieldHelp(id="config-help")

    @property
    def form(self) -> ConfigForm:
        """Form, which may be hidden."""
        return self.query_one(ConfigForm)

    @property
    def toml(self) -> TomlView:
        """TOML, which may be hidden."""
        return self.query_one(TomlView)

    def take_focus(self) -> None:
        """Focus the form, or the TOML if there is no form."""
        (self.form.rows if self.form.display else self.toml).focus()

    def show(self, rows: Sequence[Row], document: ConfigDocument, *, locked: bool) -> None:
        """Show `document`. rows: its rows in the form; locked: the text cannot be edited."""
        self._document = document
        self.toml.read_only = locked
        self.lay_out()
        self.form.show(rows)

    def show_toml(self, line: int | None = None) -> None:
        """Show and focus the TOML at `line`, from 1; without one, at the line of the form's cursor if it was hidden."""
        row = self.form.rows.selected
        if not self.toml_shown:
            self.toml_shown = True
            self.lay_out()
            line = line or line_of(row.key if row else "", self._document.lines)
        self.toml.focus()
        if line:
            self.call_after_refresh(self.toml.go_to_line, line)

    def hide_toml(self) -> None:
        """Hide the TOML and focus the form."""
        self.toml_shown = False
        self.lay_out()
        self.form.rows.focus()

    def show_form(self) -> None:
        """Show the form; hide the TOML if there is no room for both."""
        if not self.form.display:
            self.hide_toml()

    def on_resize(self) -> None:
        self.lay_out()

    def lay_out(self) -> None:
        """Show the parts for which there is room, and the text of the document if the TOML is one of them."""
        width, has_form, about = self.size.width, self._document.kind == PPO, self.query_one(FieldHelp)
        self.form.display = has_form and (not self.toml_shown or width >= _BESIDE)
        about.display = has_form
        about.set_class(width >= (_ALL_BESIDE if self.toml_shown else _BESIDE), "-beside")
        self.toml.display = self.toml_shown or not has_form
        if self.toml.display:
            self.toml.show_text(self._document.text)
