"""Base classes of what outlives a bug in its own code: the application, and widgets that draw or read."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

from textual.geometry import Region
from textual.message import Message
from textual.message_pump import MessagePump
from textual.screen import Screen
from textual.strip import Strip

if TYPE_CHECKING:
    from textual.widget import Widget
else:
    Widget = object  # Textual takes the styles of the first base that is a widget: not of GuardedWidget

_LOOP = MessagePump._process_messages_loop.__code__
_ENDS_A_WIDGET = {_LOOP, MessagePump._pre_process.__code__, Screen._refresh_layout.__code__}
"""Where Textual catches an exception, and then handles no more messages of the widget, or lays out no screen."""


def is_outlived(error: Exception) -> bool:
    """Return whether the widget that raised `error` still works. Called where Textual handles the exception."""
    traceback = error.__traceback__
    if traceback is None:
        return True
    inner = traceback.tb_next
    if traceback.tb_frame.f_code is _LOOP and inner is not None:
        return inner.tb_frame.f_code is not MessagePump._dispatch_message.__code__  # the loop outlives its callbacks
    return traceback.tb_frame.f_code not in _ENDS_A_WIDGET


class Guarded(MessagePump):
    """Handles further messages after one that fails; Textual would end it, and with it the application."""

    async def _dispatch_message(self, message: Message) -> None:
        try:
            await super()._dispatch_message(message)
        except Exception as bug:  # noqa: BLE001  the application reports it
            self.app._handle_exception(bug)


class GuardedWidget(Guarded, Widget):
    """A guarded widget, which stays blank while its drawing fails."""

    def render_lines(self, crop: Region) -> list[Strip]:
        try:
            return super().render_lines(crop)
        except Exception as bug:  # noqa: BLE001  the application reports it
            self.app._handle_exception(bug)
            return [Strip.blank(crop.width)] * crop.height


def guard(widget: Any) -> None:
    """Let a widget of any class outlive its bugs: its handlers, its drawing, and its part in the layout.

    Textual's own widgets are among them: their handlers and drawing call our validators, suggesters and styles. What
    fails to draw stays blank; what fails to measure itself gets one cell.
    """

    def outlive(name: str, otherwise: Callable[..., object]) -> None:
        method = getattr(widget, name)

        @wraps(method)
        def guarded(*arguments: Any, **options: Any) -> Any:
            try:
                return method(*arguments, **options)
            except Exception as bug:  # noqa: BLE001  the application reports it
                widget.app._handle_exception(bug)
                return otherwise(*arguments, **options)

        setattr(widget, name, guarded)

    dispatch = widget._dispatch_message

    async def dispatch_guarded(message: Message) -> None:
        try:
            await dispatch(message)
        except Exception as bug:  # noqa: BLE001  the application reports it
            widget.app._handle_exception(bug)

    widget._dispatch_message = dispatch_guarded
    outlive("render_lines", lambda crop: [Strip.blank(crop.width)] * crop.height)
    outlive("get_content_width", lambda *_, **__: 1)
    outlive("get_content_height", lambda *_, **__: 1)
    outlive("_size_updated", lambda *_, **__: True)
