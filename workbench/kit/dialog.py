"""The base class of dialogs: keys for help and for leaving, and hints that show the keys as the user has set them."""

from __future__ import annotations

from typing import ClassVar, TypeVar, cast

from textual.await_complete import AwaitComplete
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

    _answer: tuple[T | None] | None = None  # to be given once no other screen lies over this one

    def dismiss(self, result: T | None = None) -> AwaitComplete:
        """Close this dialog with `result`, or as soon as it is on top; once it is closed, do nothing.

        Textual would close whatever screen is on top: two quick keys would take the screen below as well.
        """
        if self.is_active:
            return super().dismiss(result)
        if self in self.app.screen_stack:
            self._answer = (result,)
        return cast("AwaitComplete", AwaitComplete.nothing())

    def on_screen_resume(self) -> None:
        if self._answer is not None:
            (result,), self._answer = self._answer, None
            super().dismiss(result)

    def hint(self, *parts: tuple[str, str]) -> Content:
        """Return a line about keys. parts: pairs of a key, or the id of a binding, and what it does."""
        keys = keys_of(self)
        pieces: list[str | tuple[str, str]] = []
        for key, does in parts:
            pieces += ["   " if pieces else "", (keys.get(key, key), "bold"), f" {does}"]
        return Content.assemble(*pieces)
