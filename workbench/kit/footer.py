"""The keys that apply now, in one line at the bottom of a screen."""

from __future__ import annotations

from rich.style import Style as RichStyle
from textual import events
from textual.content import Content
from textual.style import Style
from textual.widgets import Static

_PINNED = ("command_palette", "app.help", "app.leave")
_FIRST = ("enter", "space", "X")  # what most users want most often, and how a run is stopped
_LAST = "app.jump"  # there is another key for whatever it leads to
_MORE = " … "


class Links(Static):
    """Text whose parts are links, which keep their look and have tooltips of their own."""

    ALLOW_SELECT = False
    link_style = RichStyle.null()

    def on_mouse_move(self, event: events.MouseMove) -> None:
        self.tooltip = event.style.meta.get("tooltip")


class KeyFooter(Links):
    """A line of the keys that are active now. A click on one presses it.

    Escape, the palette, help and quit are at the right end whatever the width. Of the others, enter, space and X come
    first, then the keys of the widget with the focus and those around it; … stands for those that do not fit.

    Textual's own footer has a widget for every key, and makes all of them again whenever one changes: switching to
    another pane takes 150 ms with it, and 70 ms without.
    """

    def __init__(self) -> None:
        super().__init__(markup=False)

    def on_mount(self) -> None:
        self.screen.bindings_updated_signal.subscribe(self, lambda _: self._show())

    def _show(self) -> None:
        """Show the first key of each action; of help and quit, the first that is a character, as long as none types."""
        keys, pinned = dict[str, Content](), dict[str, Content]()
        first: list[str] = []  # actions
        escapes = ""  # the action of escape, which other keys may have as well
        for _, binding, enabled, tooltip in self.screen.active_bindings.values():
            name, action = self.app.get_key_display(binding), binding.action
            description = "commands" if action == _PINNED[0] else binding.description
            if not binding.show:
                description = description.lower()  # of Textual's own widgets
            meta = {"tooltip": tooltip or description, "@click": f"app.simulate_key({binding.key!r})"}
            style = Style.from_meta(meta if enabled else {"tooltip": meta["tooltip"]})
            styles = ("bold $footer-key-foreground", "") if enabled else ("$text-muted", "$text-muted")
            shown = Content.assemble((f" {name} ", styles[0]), (f"{description} ", styles[1])).stylize(style)
            if action in _PINNED:
                if action not in pinned or len(name) == 1 < pinned[action].plain.index(" ", 1) - 1:
                    pinned[action] = shown
            elif binding.show and binding.key == "escape":
                pinned.setdefault("", shown)
                escapes = escapes or action
            elif (binding.show or binding.key == "enter") and action not in keys:
                keys[action] = shown
                if binding.key in _FIRST:
                    first.append(action)
        keys.pop(escapes, None)
        end = Content("").join(pinned[action] for action in ("", *_PINNED) if action in pinned)
        last = [keys.pop(_LAST)] if _LAST in keys else []
        ordered = [keys.pop(action) for action in first if action in keys] + [*keys.values(), *last]
        room = self.size.width - end.cell_length
        line = Content("").join(ordered)
        if line.cell_length > room:
            while ordered and line.cell_length > room - len(_MORE):
                ordered.pop()
                line = Content("").join(ordered)
            line += _MORE
        if end and line:
            end = Content.assemble(("▏", "$text-muted"), end[1:])
        self.update(line.pad_right(max(room - line.cell_length, 0)) + end)

    on_resize = _show
