"""The dialog that explains the advantage of a token."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content

from workbench.kit.dialog import Dialog
from workbench.kit.keys import keys_in_force
from workbench.run.sample_records import TokenSample
from workbench.samples.advantage_sum import AdvantageSum
from workbench.samples.explain import explain


class AdvantageScreen(Dialog[int]):
    """Dialog that shows the formulas with a token's numbers; returns the index of the token shown last."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "close", "close", id="advantage.close", tooltip="Back to the sample, at this token"),
        Binding("left", "neighbour(-1)", "earlier token", id="advantage.earlier", tooltip="The token before this one"),
        Binding("right", "neighbour(1)", "later token", id="advantage.later", tooltip="The token after this one"),
        Binding("up", "move('up')", "up", show=False, id="advantage.up", tooltip="A line up"),
        Binding("down", "move('down')", "down", show=False, id="advantage.down", tooltip="A line down"),
        Binding("pageup", "move('page_up')", "page up", show=False, id="advantage.page-up", tooltip="A screenful up"),
        Binding(
            "pagedown",
            "move('page_down')",
            "page down",
            show=False,
            id="advantage.page-down",
            tooltip="A screenful down",
        ),
        Binding("home", "move('home')", "start", show=False, id="advantage.first", tooltip="To the formulas"),
        Binding("end", "move('end')", "end", show=False, id="advantage.last", tooltip="To the end of the sum"),
    ]

    def __init__(self, sample: TokenSample, index: int) -> None:
        """Open at token `index`, counted from 0. Raises IndexError when the sample has no such token."""
        super().__init__()
        explain(sample, index)
        self._sample, self._index = sample, index

    def compose(self) -> ComposeResult:
        yield AdvantageSum(id="advantage")

    def on_mount(self) -> None:
        keys = keys_in_force(self)
        hint = f"{keys['advantage.earlier']}{keys['advantage.later']} token   {keys['advantage.close']} close"
        self.query_one(AdvantageSum).border_subtitle = Content(hint)
        self._show()

    def action_close(self) -> None:
        self.dismiss(self._index)

    def action_neighbour(self, by: int) -> None:
        """Go to another token, if there is one."""
        if 0 <= self._index + by < len(self._sample):
            self._index += by
            self._show()

    def action_move(self, how: str) -> None:
        """Scroll. how: end of the name of one of `ScrollView`'s `scroll_` methods."""
        getattr(self.query_one(AdvantageSum), f"scroll_{how}")(animate=False)

    def _show(self) -> None:
        shown = self.query_one(AdvantageSum)
        facts = explain(self._sample, self._index)
        shown.border_title = Content(f"Advantage of {facts.name}, token {facts.index + 1} of {facts.length}")
        shown.show(self._sample, self._index)
