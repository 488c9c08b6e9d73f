"""One-line editor that is shown over a value of the form."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.message import Message
from textual.suggester import Suggester
from textual.widgets import Input

from workbench.config.fields import FormField


class FieldEditor(Input):
    """Input for the text of a setting: enter submits it, escape cancels."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "cancel", id="config-editor.cancel", tooltip="Leave the value as it was"),
        Binding("tab", "take_suggestion", "complete", id="config-editor.complete", tooltip="Take the suggested path"),
    ]

    class Cancelled(Message):
        """The user cancelled; the value stays as it was."""

    def __init__(self, field: FormField, text: str) -> None:
        suggester = PathSuggester() if field.kind == "path" else None
        super().__init__(text, compact=True, suggester=suggester, select_on_focus=field.kind in ("number", "integer"))
        self.field = field

    def action_leave(self) -> None:
        self.post_message(self.Cancelled())

    def action_take_suggestion(self) -> None:
        self.cursor_position = len(self.value)
        self.action_cursor_right()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "take_suggestion":
            return self.suggester is not None
        return True


class PathSuggester(Suggester):
    """Suggester of the first file or folder that begins with the typed text."""

    def __init__(self) -> None:
        super().__init__(use_cache=False, case_sensitive=True)

    async def get_suggestion(self, value: str) -> str | None:
        return completed(value)


def completed(text: str, listing: Callable[[Path], list[Path]] | None = None) -> str | None:
    """Complete `text` to the first existing path, folders with a slash; None if there is none."""
    if not text or "\0" in text:
        return None
    head, slash, tail = text.rpartition("/")
    try:
        folder = Path(head + slash).expanduser() if slash else Path()
        names = sorted(
            f"{path.name}/" if path.is_dir() else path.name
            for path in (listing or _listing)(folder)
            if path.name.startswith(tail) and path.name.isprintable() and (tail or not path.name.startswith("."))
        )
    except (OSError, RuntimeError):  # no such folder, or unknown home
        return None
    return f"{head}{slash}{names[0]}" if names else None


def _listing(folder: Path) -> list[Path]:
    return list(folder.iterdir())
