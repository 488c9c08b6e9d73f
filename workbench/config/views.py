"""Views of a document beside the form: its TOML, and what differs."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, get_args

from rich.style import Style
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.geometry import Region
from textual.reactive import reactive
from textual.strip import Strip
from textual.widgets import Static, TextArea

from workbench.config.controller import ConfigController
from workbench.config.document import ConfigDocument
from workbench.config.fields import fields_by_key
from workbench.config.form import ConfigForm
from workbench.config.rows import SectionRow, Selection, rows_of
from workbench.config.toml import Token, TokenKind, line_of, tokens_by_line
from workbench.config.widgets import FieldHelp
from workbench.kit.guard import GuardedWidget
from workbench.text import visible

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


class TomlView(GuardedWidget, TextArea, inherit_bindings=False):
    """TOML editor with its own highlighting: Textual's needs tree-sitter, which many machines do not have."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {f"toml-view--{kind}" for kind in get_args(TokenKind)}
    BINDINGS: ClassVar[list[BindingType]] = _bindings()

    def __init__(self, text: str, *, read_only: bool) -> None:
        super().__init__(
            text, show_line_numbers=True, soft_wrap=False, tab_behavior="focus", compact=True, read_only=read_only
        )
        self._tokens: list[list[Token]] = []
        self._coloured = ""

    def show_text(self, text: str) -> None:
        """Show `text`; the cursor stays where it was, also below lines that are new at the start."""
        if text == self.text:
            return
        (row, column), scroll = self.cursor_location, self.scroll_offset
        above = text.count("\n") - self.text.count("\n") if text.endswith(self.text) else 0
        self.load_text(text)
        self.move_cursor((row + above, column))
        self.scroll_to(scroll.x, scroll.y, animate=False)

    def go_to_line(self, line: int) -> None:
        """Move the cursor to a line, from 1."""
        self.move_cursor((line - 1, 0), center=True)

    def render_lines(self, crop: Region) -> list[Strip]:
        """Draw nothing after the widget is removed.

        Textual drops the component styles at once, but draws until the next layout. The next repaint would
        fail with "No 'text-area--gutter' key in COMPONENT_CLASSES".
        """
        return super().render_lines(crop) if self.is_attached else [Strip.blank(crop.width)] * crop.height

    def get_line(self, line_index: int) -> Text:
        """Return a line with its colours; each control character becomes one symbol, so that columns stay."""
        raw = self.document.get_line(line_index)
        line = Text("".join(map(_shown, raw)), end="", no_wrap=True)
        if self._coloured != self.text:
            self._coloured = self.text
            self._tokens = tokens_by_line(self.document.lines)
        for token in self._tokens[line_index]:
            style = self.get_component_rich_style(f"toml-view--{token.kind}")
            # Without the background, which the line or the selection sets.
            ink = Style(color=style.color, bold=style.bold, italic=style.italic, underline=style.underline)
            line.stylize(ink, token.start, token.stop)
        return line


def _shown(character: str) -> str:
    if character == "\t":
        return character
    safe = visible(character)
    return safe if len(safe) == 1 else "\ufffd"


_BESIDE = 96  # columns from which the TOML or the help is beside the form
_ALL_BESIDE = 150  # columns from which both are


class ConfigViews(Horizontal):
    """Form, TOML and help, side by side where there is room; otherwise the help is below."""

    shown: reactive[int] = reactive(0, repaint=False)
    """Number of settings in the form, folded or not; all of them during a search."""

    def __init__(self, controller: ConfigController, selection: Selection, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._controller = controller
        self._selection = selection
        self.toml: TomlView | None = None
        """TOML editor; None while it is hidden."""
        self._shown_text = ""

    def compose(self) -> ComposeResult:
        yield ConfigForm(id="config-form")
        yield FieldHelp(id="config-help")

    @property
    def form(self) -> ConfigForm:
        """Form, which may be hidden."""
        return self.query_one(ConfigForm)

    def take_typed(self) -> bool:
        """Change the document as the TOML was edited since the document was last shown; return False if it was not."""
        if self.toml is None or self._controller.read_only or self.toml.text == self._shown_text:
            return False
        self._shown_text = self.toml.text
        self._controller.document.set_text(self.toml.text)
        return True

    def show(self, *, keep: str | None = None) -> None:
        """Show the document as it is now. keep: as for `rows_of`; None for the row under the cursor."""
        controller, row = self._controller, self.form.rows.selected
        document, draft = controller.document, controller.draft
        rows = rows_of(
            document,
            self._selection,
            keep=(row.spot if row else "") if keep is None else keep,
            running=controller.running,
            sent=controller.pending,
            draft={draft.key: draft.value} if draft else {},
        )
        self.form.show(rows)
        shown = sum(row.shown for row in rows if isinstance(row, SectionRow))
        self.shown = len(fields_by_key()) if self._selection.query else shown  # the line above says what is searched
        self._shown_text = document.text
        if self.toml is not None:
            self.toml.read_only = controller.running
            self.toml.show_text(document.text)

    def show_toml(self, line: int | None = None) -> None:
        """Show the TOML at `line`, from 1; without one, at the line of the form's cursor if it was hidden."""
        document, row = self._controller.document, self.form.rows.selected
        if self.toml is None:
            self._shown_text = document.text
            self.toml = TomlView(document.text, read_only=self._controller.running)
            self.mount(self.toml)
            line = line or line_of(row.key if row else "", document.lines)
        self._lay_out()
        self.toml.focus()
        if line:
            self.call_after_refresh(self.toml.go_to_line, line)

    def hide_toml(self) -> None:
        """Hide the TOML and focus the form."""
        if self.toml is not None:
            self.toml.remove()
            self.toml = None
        self._lay_out()
        self.form.rows.focus()

    def show_form(self) -> None:
        """Show the form; hide the TOML if there is no room for both."""
        if not self.form.display:
            self.hide_toml()

    def follow_cursor(self) -> None:
        """Move the form's cursor, and with it the help, to the setting at the cursor of the TOML."""
        if self.toml is None or not self.toml.has_focus:
            return
        for key, line in self._controller.document.lines.items():
            if line == self.toml.cursor_location[0] + 1 and key in fields_by_key():
                self.go_to(key)

    def go_to(self, key: str) -> None:
        """Move the form's cursor to a setting, also if it is hidden or its section is folded."""
        if not self.form.rows.go_to(key):
            self._selection.folded.discard(key.partition(".")[0])
            self.show(keep=key)
            self.form.rows.go_to(key)

    def on_resize(self) -> None:
        self._lay_out()

    def _lay_out(self) -> None:
        width = self.size.width
        self.form.display = self.toml is None or width >= _BESIDE
        beside = width >= (_BESIDE if self.toml is None else _ALL_BESIDE)
        about = self.query_one(FieldHelp)
        if about.has_class("-beside") != beside:
            about.set_class(beside, "-beside", update=False)
            self.app.stylesheet.apply(about)


class ConfigReading(Vertical):
    """Read-only view instead of the form, which only has fields for PPO's settings."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._toml: TomlView | None = None
        self.display = False

    def compose(self) -> ComposeResult:
        about = Static(markup=False)
        about.styles.padding = (0, 1)
        yield about

    def show(self, document: ConfigDocument) -> None:
        """Show `document`."""
        self.query_one(Static).update(Content.styled(document.about_kind, "$text-muted"))
        if self._toml is None:
            self._toml = TomlView(document.text, read_only=True)
            self.mount(self._toml)
        self._toml.show_text(document.text)

    def take_focus(self) -> None:
        """Focus the text, so that the arrow keys scroll it."""
        if self._toml is not None:
            self._toml.focus()
