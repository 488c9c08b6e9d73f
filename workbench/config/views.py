"""Two views of a configuration: the form, and the TOML beside it, or instead of it if there is no room."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.message import Message

from workbench.config.document import ConfigDocument
from workbench.config.form import ConfigForm
from workbench.config.row import Row
from workbench.config.toml import line_of

if TYPE_CHECKING:
    from workbench.config.toml_view import TomlView

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
            from workbench.config.toml_view import TomlView  # only when first needed

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
