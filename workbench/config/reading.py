"""Read-only TOML of a configuration for another kind of run than PPO."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Static

from workbench.config.document import ConfigDocument

if TYPE_CHECKING:
    from workbench.config.toml_view import TomlView


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
            from workbench.config.toml_view import TomlView  # only when first needed

            self._toml = TomlView(document.text)
            self._toml.read_only = True
            self.mount(self._toml)
        self._toml.show_text(document.text)

    def take_focus(self) -> None:
        """Focus the text, so that the arrow keys scroll it."""
        if self._toml is not None:
            self._toml.focus()
