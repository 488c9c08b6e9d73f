"""The base class of dialogs: keys for help and for leaving, and hints that show the keys as the user has set them."""

from __future__ import annotations

from typing import ClassVar, TypeVar

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.screen import ModalScreen

from workbench.kit.keys import keys_of
from workbench.kit.whole import MountedWhole

T = TypeVar("T")


class Dialog(MountedWhole, ModalScreen[T]):
    """A modal screen. Textual hides the application's keys from it, so it binds those that apply everywhere itself."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f1,question_mark", "app.help", "help", id="app.help", tooltip="What this pane is for, and its keys"),
        Binding(
            "q,ctrl+q",
            "app.leave",
            "quit",
            show=False,
            id="app.leave",
            tooltip="Leave; a run may stop, or go on headless",
        ),
    ]

    def key(self, name: str) -> str:
        """Return the key of one of this dialog's bindings, by its id."""
        return keys_of(self)[name]

    def hint(self, *parts: tuple[str, str]) -> Content:
        """Return a line about keys. parts: pairs of a key, or the id of a binding, and what it does."""
        keys = keys_of(self)
        pieces: list[str | tuple[str, str]] = []
        for key, does in parts:
            pieces += ["   " if pieces else "", (keys.get(key, key), "bold"), f" {does}"]
        return Content.assemble(*pieces)
