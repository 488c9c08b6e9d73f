"""List of held-out pairs, the one that the model gets most wrong first, drawn line by line."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content

from trainer.preferences.records import Text
from trainer.reward_model.predictions import PairPrediction
from workbench.kit.block_list import BlockList
from workbench.kit.cells import fit_end
from workbench.reward_model.texts import facts, plain_text
from workbench.text import visible

_LABEL = 10  # columns
_PARTS = ("facts", "prompt", "chosen", "rejected")  # one line each


def pair_lines(pair: PairPrediction, number: int, width: int, *, marked: bool = False) -> list[str]:
    """Return lines of at most `width` columns: facts, end of the prompt, start of both completions, blank."""
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


class RewardPairList(BlockList[PairPrediction]):
    """List of the pairs of an evaluation, with a cursor."""

    CSS_NAME = "reward-pair-list"
    LINES = (*_PARTS, "")
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

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._marked: Collection[str] = ()

    def show(self, pairs: Sequence[PairPrediction], *, message: str = "") -> None:
        """Show `pairs`; the cursor stays on its pair, or goes to the first. message: shown if there are none."""
        before, self._message = self.selected, message
        if pairs is self._items and pairs:
            return
        self._items = pairs
        same = (place for place, pair in enumerate(pairs) if before is not None and _are_one(pair, before))
        self.cursor = next(same, 0)
        self.lay_out()

    def mark(self, keys: Collection[str]) -> None:
        """Mark the pairs of the comparisons with these keys."""
        self._marked = keys
        self.refresh()

    def block(self, index: int, width: int) -> list[str]:
        pair = self._items[index]
        return pair_lines(pair, index + 1, width, marked=pair.key in self._marked)


def _are_one(one: PairPrediction, other: PairPrediction) -> bool:
    return (one.key, one.chosen, one.rejected) == (other.key, other.chosen, other.rejected)
