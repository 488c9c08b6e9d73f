"""Held-out pairs below each other, the one that the model gets most wrong first, drawn line by line."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.geometry import Size
from textual.message import Message
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip

from trainer.preferences.records import Text
from trainer.reward_model.predictions import PairPrediction
from workbench.reward_runs.texts import facts, plain_text
from workbench.text import visible
from workbench.widgets.cells import fit_end

_LINES = 5  # of each pair: facts, prompt, chosen, rejected, an empty one
_GUTTER = 2
_LABEL = 10  # columns
_PARTS = ("facts", "prompt", "chosen", "rejected", "prompt")


def pair_lines(pair: PairPrediction, number: int, width: int, *, marked: bool = False) -> list[str]:
    """Number and facts, the end of the prompt, the start of either completion, each at most `width` columns."""
    lead = f"{number:>4}{' ◆' if marked else ''}   "
    names = ("one", "other") if pair.is_tie else ("chosen", "rejected")
    room = max(width - _LABEL, 1)
    return [
        lead + facts(pair, width - len(lead)),
        "prompt".ljust(_LABEL) + fit_end(visible(plain_text(pair.prompt)[-2 * width :]), room),
        names[0].ljust(_LABEL) + _start(pair.chosen, room),
        names[1].ljust(_LABEL) + _start(pair.rejected, room),
        "",
    ]


def _start(completion: Text, width: int) -> str:
    text = plain_text(completion)
    return Content(visible(text[: 2 * width])).truncate(width, ellipsis=True).plain


class RewardPairList(ScrollView, can_focus=True, inherit_bindings=False):
    """The pairs of an evaluation, with a cursor."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {f"reward-pair-list--{part}" for part in (*_PARTS, "bar", "cursor")}
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", "Up", show=False, id="reward-model.up", tooltip="The pair above"),
        Binding("down", "move(1)", "Down", show=False, id="reward-model.down", tooltip="The pair below"),
        Binding("pageup", "page(-1)", "Page up", show=False, id="reward-model.page-up", tooltip="A screenful up"),
        Binding(
            "pagedown", "page(1)", "Page down", show=False, id="reward-model.page-down", tooltip="A screenful down"
        ),
        Binding("home", "first", "First", show=False, id="reward-model.first", tooltip="The most wrong one"),
    ]

    cursor: reactive[int] = reactive(0)

    class Opened(Message):
        """A pair was clicked twice."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._pairs: Sequence[PairPrediction] = ()
        self._marked: Collection[str] = ()
        self._message = ""

    @property
    def selected(self) -> PairPrediction | None:
        """The pair that the cursor is on."""
        return self._pairs[self.cursor] if self._pairs else None

    def show(self, pairs: Sequence[PairPrediction], *, message: str = "") -> None:
        """Show `pairs`, the cursor on the one that it was on, or else on the first. message: what to say of none."""
        before, self._message = self.selected, message
        if pairs is self._pairs and pairs:
            return
        self._pairs = pairs
        same = (place for place, pair in enumerate(pairs) if before is not None and _are_one(pair, before))
        self.cursor = next(same, 0)
        self._lay_out()

    def mark(self, keys: Collection[str]) -> None:
        """Show a mark at the pairs of these comparisons."""
        self._marked = keys
        self.refresh()

    def validate_cursor(self, cursor: int) -> int:
        return max(min(cursor, len(self._pairs) - 1), 0)

    def watch_cursor(self) -> None:
        self._scroll_to_cursor()
        self.refresh()

    def action_move(self, by: int) -> None:
        self.cursor += by

    def action_page(self, by: int) -> None:
        self.cursor += by * max(self.size.height // _LINES, 1)

    def action_first(self) -> None:
        self.cursor = 0

    def on_resize(self) -> None:
        self._lay_out()

    def on_click(self, event: events.Click) -> None:
        if (index := (event.y + self.scroll_offset.y) // _LINES) < len(self._pairs):
            self.cursor = index
            if event.chain == 2:
                self.post_message(self.Opened())

    def render_line(self, y: int) -> Strip:
        width, style = self.scrollable_content_region.width, self.rich_style
        if not self._pairs:
            lines = Content(self._message).wrap(max(width, 1))
            text = lines[y].plain if y < len(lines) else ""
            return Strip([Segment(text, self._style("prompt"))]).adjust_cell_length(width, style)
        index, line = divmod(y + self.scroll_offset.y, _LINES)
        if index >= len(self._pairs):
            return Strip.blank(width, style)
        pair = self._pairs[index]
        text = pair_lines(pair, index + 1, max(width - _GUTTER, 1), marked=pair.key in self._marked)[line]
        here = index == self.cursor and line < _LINES - 1
        bar = Segment("▌" if here else " ", self._style("bar"))
        part = self._style("cursor" if here and line == 0 else _PARTS[line])
        return Strip([bar, Segment(" ", style), Segment(text, part)]).adjust_cell_length(width, style)

    def _style(self, name: str) -> Style:
        return self.get_component_rich_style(f"reward-pair-list--{name}")

    def _lay_out(self) -> None:
        self.virtual_size = Size(self.scrollable_content_region.width, len(self._pairs) * _LINES)
        self._scroll_to_cursor()
        self.refresh()

    def _scroll_to_cursor(self) -> None:
        seen, top, first = self.size.height, self.scroll_offset.y, self.cursor * _LINES
        if seen < 1:
            return
        wanted = min(max(top, first + _LINES - 1 - seen), first)
        if wanted != top:
            self.scroll_to(y=wanted, animate=False, force=True)


def _are_one(one: PairPrediction, other: PairPrediction) -> bool:
    return (one.key, one.chosen, one.rejected) == (other.key, other.chosen, other.rejected)
