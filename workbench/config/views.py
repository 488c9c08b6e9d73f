"""The two views of a configuration: the form, and the TOML beside it or, where there is no room, instead of it."""

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

_BESIDE = 96  # columns from which on both are seen


class ConfigViews(Horizontal):
    """Shows a document twice; tells what was typed into the TOML, and on which line the cursor is there."""

    class TextEdited(Message):
        """Something may have been typed into the TOML: `take_typed` has it."""

    class LineEntered(Message):
        """The cursor of the TOML is on another line, from 1."""

        def __init__(self, line: int) -> None:
            super().__init__()
            self.line = line

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.toml: TomlView | None = None
        """Only there while it is wanted."""
        self._shown_text = ""

    def compose(self) -> ComposeResult:
        yield ConfigForm(id="config-form")

    @property
    def form(self) -> ConfigForm:
        """The form, which may be hidden."""
        return self.query_one(ConfigForm)

    def take_typed(self) -> str | None:
        """The TOML as it was edited since the document was last shown or this was asked; None where it was not."""
        if self.toml is None or self.toml.text == self._shown_text:
            return None
        self._shown_text = self.toml.text
        return self._shown_text

    def show(self, document: ConfigDocument, rows: Sequence[Row], *, read_only: bool) -> None:
        """Show how `document` stands; read_only: the TOML cannot be typed into."""
        self.form.show(rows)
        self._shown_text = document.text
        if self.toml is not None:
            self.toml.read_only = read_only
            self.toml.show_text(document.text)

    def show_toml(self, document: ConfigDocument, key: str, line: int | None, *, read_only: bool) -> None:
        """Go to `line`, from 1, of the TOML; without one, to where `key` is."""
        if self.toml is None:
            from workbench.config.toml_view import TomlView  # only once it is wanted

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
        """Leave the form alone, with the focus."""
        if self.toml is not None:
            self.toml.remove()
            self.toml = None
        self._lay_out()
        self.form.rows.focus()

    def show_form(self) -> None:
        """See to it that the form can be seen."""
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
