"""Line above the form that shows what is being edited and its state."""

from __future__ import annotations

from textual.content import Content
from textual.widget import Widget

from workbench.config.document import ConfigDocument
from workbench.kit.cells import fit_end
from workbench.text import visible


class ConfigHeading(Widget):
    """Heading with the name of the preset or file, whether it is saved, and the number of changes."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._subject = ""
        self._notes: list[str] = []

    def show(self, document: ConfigDocument, *, running: bool) -> None:
        """Show the state of `document`. running: during a run, only live settings can change."""
        self._subject = visible(document.preset if document.path is None and document.preset else document.name)
        changed = sum(change.from_preset for change in document.changes().values())
        against = "the preset" if document.preset else "the defaults"
        self._notes = [
            *(["preset"] if document.path is None and document.preset else []),
            *(["*unsaved"] if document.dirty else []),
            *(["live settings only"] if running else []),
            *([f"•{changed} unlike {against}"] if changed else []),
        ]
        self.refresh()

    def render(self) -> Content:
        width = self.size.width
        notes = ""
        for note in self._notes:
            if len(notes) + 2 + len(note) < width - 12:
                notes += f"  {note}"
        name = fit_end(self._subject, max(width - len(notes), 1))
        return Content.assemble((name, "bold"), (notes, "$text-muted"))
