"""Active alarms of a run: a line each above its metrics, and the dialogs with their evidence, advice and fixes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from rich.cells import cell_len
from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from trainer.events import Alarm, Fix
from workbench.kit.dialog import Dialog
from workbench.kit.keys import bind, hidden_key, keys_of
from workbench.run.sentences import evidence, level_sign, title, urgent_first
from workbench.text import Line, fit_start, padded, visible

_ROLES = {"info": "muted", "error": "missing"}  # other levels: warning


def alarm_line(alarms: Sequence[Alarm], width: int, key: str) -> Line:
    """Return the most severe of `alarms` in `width` columns, with the number of the others and the `key` that opens."""
    if not alarms:
        return [(fit_start(" no alarms", width), "muted")]
    alarm = urgent_first(alarms)[0]
    more = f"and {len(alarms) - 1} more   " if len(alarms) > 1 else ""
    end = fit_start(f"  {more}{key} opens ", width)
    head = f" {level_sign(alarm.level)} {alarm.iteration} {visible(title(alarm.code))}  {visible(alarm.message)}"
    room = width - cell_len(end)
    return [(padded(fit_start(head, room), room), _ROLES.get(alarm.level, "warning")), (end, "muted")]


_AROUND = 13  # lines of the screen that are neither text nor fixes
_MOST_FIXES = 5  # fixes visible at once


class AlarmScreen(Dialog[tuple[Alarm, Fix | None] | None]):
    """Dialog that asks what to do about one of `alarms`, shown in the order given.

    fixes: returns the fixes that can be applied to an alarm now. The result is an alarm and the fix to apply, or the
    alarm and None to dismiss it; None means to do nothing.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        bind("escape", "dismiss", "close", "alarm.close", "Close without a change"),
        bind("delete,D", "choose", "dismiss", "alarm.put-away", "Dismiss this alarm"),
        bind("y", "copy", "copy", "alarm.copy", "Copy the text of this alarm"),
        # With priority, because the list of fixes would handle these keys itself.
        bind(
            "left", "go(-1)", "previous", "alarm.newer", "Show the previous alarm (the worst is first)", priority=True
        ),
        bind("right", "go(1)", "next", "alarm.older", "Show the next alarm", priority=True),
        hidden_key("pageup", "page(-1)", "page up", "alarm.page-up", "Scroll the text a page up", priority=True),
        hidden_key("pagedown", "page(1)", "page down", "alarm.page-down", "Scroll the text a page down", priority=True),
        hidden_key("up", "move(-1)", "up", "alarm.up", "Select the fix above, or scroll up"),
        hidden_key("down", "move(1)", "down", "alarm.down", "Select the fix below, or scroll down"),
    ]

    def __init__(self, alarms: Sequence[Alarm], fixes: Callable[[Alarm], Sequence[Fix]]) -> None:
        super().__init__()
        self._alarms, self._fixes_of = alarms, fixes
        self._at = 0
        self._fixes: Sequence[Fix] = ()  # in the order listed

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(id="alarm-title", markup=False, classes="question")
            with VerticalScroll(id="alarm-text", can_focus=False):
                yield Static(id="alarm-body", markup=False)
            yield Static(id="alarm-fixes", markup=False, classes="detail")
            yield OptionList(markup=False)
            yield Static(id="alarm-keys", markup=False, classes="detail")

    def action_go(self, by: int) -> None:
        if 0 <= self._at + by < len(self._alarms):
            self._at += by
            self._show()

    def action_copy(self) -> None:
        alarm = self._alarms[self._at]
        heading = f"{level_sign(alarm.level)} {visible(title(alarm.code))}, iteration {alarm.iteration}"
        self.copy(f"{heading}\n{alarm_text(alarm).plain}", "the alarm")

    def action_move(self, lines: int) -> None:
        fixes = self.query_one(OptionList)
        if not self._fixes:
            self.query_one("#alarm-text").scroll_relative(y=lines, animate=False)
        else:
            (fixes.action_cursor_down if lines > 0 else fixes.action_cursor_up)()

    def action_page(self, pages: int) -> None:
        text = self.query_one("#alarm-text")
        text.scroll_relative(y=pages * text.size.height, animate=False)

    @on(OptionList.OptionSelected)
    def action_choose(self, event: OptionList.OptionSelected | None = None) -> None:
        """Close with the fix that was chosen, or dismiss the alarm."""
        self.dismiss((self._alarms[self._at], self._fixes[event.option_index] if event else None))

    def _show(self) -> None:
        alarm = self._alarms[self._at]
        self._fixes = self._fixes_of(alarm)
        of_all = f"   {self._at + 1} of {len(self._alarms)}" if len(self._alarms) > 1 else ""
        self.query_one("#alarm-title", Static).update(
            Content.assemble(
                f"{level_sign(alarm.level)} {visible(title(alarm.code))}",
                (f"   iteration {alarm.iteration}{of_all}", "$text-muted"),
            )
        )
        self.query_one("#alarm-body", Static).update(alarm_text(alarm))
        text = self.query_one("#alarm-text", VerticalScroll)  # gets the lines that title, fixes and keys leave
        text.styles.max_height = max(self.app.size.height - _AROUND - min(len(self._fixes), _MOST_FIXES), 3)
        text.scroll_home(animate=False)
        heading = "Available fixes:" if self._fixes else "No fix can be applied from here."
        self.query_one("#alarm-fixes", Static).update(heading)
        choices = self.query_one(OptionList)
        choices.clear_options()
        choices.add_options(Option(Content(visible(fix.label))) for fix in self._fixes)
        choices.display = bool(self._fixes)
        if self._fixes:
            choices.highlighted = 0
            choices.focus()
        keys = keys_of(self)
        hints = [("enter", "applies it")] if self._fixes else []
        if len(self._alarms) > 1:
            hints.append((f"{keys['alarm.newer']} {keys['alarm.older']}", "other alarms"))
        hints += [("alarm.put-away", "dismisses it"), ("alarm.copy", "copies"), ("alarm.close", "closes")]
        self.query_one("#alarm-keys", Static).update(self.hint(*hints))

    on_resize = _show


def alarm_text(alarm: Alarm) -> Content:
    """Return the alarm's message, its evidence with one number per line, and its advice."""
    numbers = [(visible(name), visible(value)) for name, value in evidence(alarm)]
    names = max((cell_len(name) for name, _ in numbers), default=0)
    parts: list[str | tuple[str, str]] = [visible(alarm.message), "\n"]
    for name, value in numbers:
        parts += [(f"\n{name}{' ' * (names - cell_len(name))}  ", "$text-muted"), (value, "bold")]
    parts += ["\n\n" if numbers else "\n", visible(alarm.advice, keep_newlines=True)]
    return Content.assemble(*parts)
