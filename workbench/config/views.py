"""Views of a document beside the form: its TOML, and what differs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.style import Style
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip
from textual.widgets import Static, TextArea

from workbench.config.document import ConfigDocument
from workbench.config.form import ConfigForm
from workbench.config.rows import Row
from workbench.config.toml import Token, line_of, tokens_by_line
from workbench.text import visible

_KINDS = ("table", "key", "string", "number", "boolean", "comment", "invalid")
_APPS = {"f6", "f7", "ctrl+z", "ctrl+y"}  # F-keys choose panes; undo and redo also change the form


def _bindings() -> list[BindingType]:
    """Return TextArea's bindings, each with an id so that users can change its key.

    Leaves out those whose keys mean something else here.
    """
    kept = []
    for binding in TextArea.BINDINGS:
        assert isinstance(binding, Binding)
        if not _APPS & set(binding.key.split(",")):
            name = binding.action.replace("_", "-").replace("(True)", "-select")
            about = {"id": f"toml.{name}", "tooltip": binding.description, "show": False}
            kept.append(Binding(binding.key, binding.action, binding.description, **about))  # type: ignore[arg-type]
    return list(kept)


class TomlView(TextArea, inherit_bindings=False):
    """TOML editor with its own highlighting: Textual's needs tree-sitter, which many machines do not have."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {f"toml-view--{kind}" for kind in _KINDS}
    BINDINGS: ClassVar[list[BindingType]] = _bindings()

    def __init__(self, text: str) -> None:
        super().__init__(text, show_line_numbers=True, soft_wrap=False, tab_behavior="focus", compact=True)
        self._tokens: list[list[Token]] = []
        self._coloured = ""

    def show_text(self, text: str) -> None:
        """Show `text`; the cursor stays where it was."""
        if text == self.text:
            return
        cursor, scroll = self.cursor_location, self.scroll_offset
        self.load_text(text)
        self.move_cursor(cursor)
        self.scroll_to(scroll.x, scroll.y, animate=False)

    def go_to_line(self, line: int) -> None:
        """Move the cursor to a line, from 1."""
        self.move_cursor((line - 1, 0), center=True)

    def render_lines(self, crop: Region) -> list[Strip]:
        """Draw nothing after the widget is removed.

        Textual drops the component styles at once, but draws until the next layout. The next repaint would end the
        application with "No 'text-area--gutter' key in COMPONENT_CLASSES".
        """
        return super().render_lines(crop) if self.is_attached else [Strip.blank(crop.width)] * crop.height

    def get_line(self, line_index: int) -> Text:
        """Return a line with its colours; each control character becomes one symbol, so that columns stay."""
        raw = self.document.get_line(line_index)
        line = Text("".join(map(_shown, raw)), end="", no_wrap=True)
        tokens = self._line_tokens()
        for token in tokens[line_index] if line_index < len(tokens) else ():
            line.stylize(self._ink(token.kind), token.start, token.stop)
        return line

    def _ink(self, kind: str) -> Style:
        """Return the style of a token without its background, which the line or the selection sets."""
        style = self.get_component_rich_style(f"toml-view--{kind}")
        return Style(color=style.color, bold=style.bold, italic=style.italic, underline=style.underline)

    def _line_tokens(self) -> list[list[Token]]:
        if self._coloured != self.text:
            self._coloured = self.text
            self._tokens = tokens_by_line(self.document.lines)
        return self._tokens


def _shown(character: str) -> str:
    if character == "\t":
        return character
    safe = visible(character)
    return safe if len(safe) == 1 else "\ufffd"


_BESIDE = 96  # columns from which both are shown


class ConfigViews(Horizontal):
    """Container of form and TOML; reports text typed into the TOML and the line of its cursor."""

    class TextEdited(Message):
        """The TOML may have been edited; `take_typed` returns the text."""

    class LineEntered(Message):
        """The cursor of the TOML has moved to `line`, from 1."""

        def __init__(self, line: int) -> None:
            super().__init__()
            self.line = line

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.toml: TomlView | None = None
        """TOML editor; None while it is hidden."""
        self._shown_text = ""

    def compose(self) -> ComposeResult:
        yield ConfigForm(id="config-form")

    @property
    def form(self) -> ConfigForm:
        """Form, which may be hidden."""
        return self.query_one(ConfigForm)

    def take_typed(self) -> str | None:
        """Return the TOML if it was edited since the document was last shown or this was last called, or else None."""
        if self.toml is None or self.toml.text == self._shown_text:
            return None
        self._shown_text = self.toml.text
        return self._shown_text

    def show(self, document: ConfigDocument, rows: Sequence[Row], *, read_only: bool) -> None:
        """Show the current `document`. read_only: the TOML cannot be edited."""
        self.form.show(rows)
        self._shown_text = document.text
        if self.toml is not None:
            self.toml.read_only = read_only
            self.toml.show_text(document.text)

    def show_toml(self, document: ConfigDocument, key: str, line: int | None, *, read_only: bool) -> None:
        """Show the TOML at `line`, from 1; without one, at the line of `key` if it was hidden."""
        if self.toml is None:
            from workbench.config.views import TomlView  # only when first needed

            self._shown_text = document.text
            self.toml = TomlView(document.text)
            self.toml.read_only = read_only
            self.mount(self.toml)
            line = line or line_of(key, document.lines)
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

    def on_resize(self) -> None:
        self._lay_out()

    def on_text_area_changed(self, event: Message) -> None:
        event.stop()
        self.post_message(self.TextEdited())

    def on_text_area_selection_changed(self, event: Message) -> None:
        event.stop()
        if self.toml is not None and self.toml.has_focus:
            self.post_message(self.LineEntered(self.toml.cursor_location[0] + 1))

    def _lay_out(self) -> None:
        self.form.display = self.toml is None or self.size.width >= _BESIDE


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
            from workbench.config.views import TomlView  # only when first needed

            self._toml = TomlView(document.text)
            self._toml.read_only = True
            self.mount(self._toml)
        self._toml.show_text(document.text)

    def take_focus(self) -> None:
        """Focus the text, so that the arrow keys scroll it."""
        if self._toml is not None:
            self._toml.focus()
