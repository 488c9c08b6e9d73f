"""Editor for the configuration's TOML, with syntax colours."""

from __future__ import annotations

from typing import ClassVar

from rich.style import Style
from rich.text import Text
from textual.binding import Binding, BindingType
from textual.geometry import Region
from textual.strip import Strip
from textual.widgets import TextArea

from workbench.config.toml import Token, tokens_by_line
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
