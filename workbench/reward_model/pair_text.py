"""Full text of one held-out pair: the prompt, and both completions beside or below each other."""

from __future__ import annotations

from itertools import zip_longest
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content

from trainer.preferences.records import Text
from trainer.reward_model.predictions import PairPrediction
from workbench.kit.cells import fit
from workbench.kit.drawing import Line
from workbench.kit.scrolled_lines import ScrolledLines
from workbench.reward_model.texts import facts, plain_text
from workbench.text import visible

_BESIDE = 96  # columns from which the completions are side by side
_BETWEEN = " │ "


def pair_text_lines(pair: PairPrediction, width: int) -> list[Line]:
    """Return the whole pair as lines of at most `width` columns, with the roles facts, heading, text and axis."""
    names = ("one", "other") if pair.is_tie else ("chosen", "rejected")
    headings = [
        f"{name}   reward {reward:+.2f}   {tokens} tokens"
        for name, reward, tokens in zip(
            names,
            (pair.chosen_reward, pair.rejected_reward),
            (pair.chosen_tokens, pair.rejected_tokens),
            strict=True,
        )
    ]
    lines: list[Line] = [
        [(facts(pair, width), "facts")],
        [],
        [("prompt"[:width], "heading")],
        *([(line, "text")] for line in _wrapped(pair.prompt, width)),
        [],
    ]
    if width < _BESIDE:
        for heading, completion in zip(headings, (pair.chosen, pair.rejected), strict=True):
            lines += [[(heading[:width], "heading")], *([(line, "text")] for line in _wrapped(completion, width)), []]
        return lines
    left = (width - len(_BETWEEN)) // 2
    right = width - len(_BETWEEN) - left
    lines.append([(fit(headings[0], left), "heading"), (_BETWEEN, "axis"), (headings[1][:right], "heading")])
    sides = zip_longest(_wrapped(pair.chosen, left), _wrapped(pair.rejected, right), fillvalue="")
    lines += [[(fit(one, left), "text"), (_BETWEEN, "axis"), (other, "text")] for one, other in sides]
    return lines


def _wrapped(text: Text, width: int) -> list[str]:
    shown = Content(visible(plain_text(text), keep_newlines=True))
    return [line.plain for part in shown.split("\n", allow_blank=True) for line in part.wrap(max(width, 1))]


class RewardPairText(ScrolledLines):
    """Scrollable text of one pair."""

    CSS_NAME = "reward-pair-text"
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        f"reward-pair-text--{role}" for role in ("facts", "heading", "text", "axis")
    }
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "scroll_up", "Up", show=False, id="reward-model.line-up", tooltip="A line up"),
        Binding("down", "scroll_down", "Down", show=False, id="reward-model.line-down", tooltip="A line down"),
        Binding("pageup", "page_up", "Page up", show=False, id="reward-model.text-up", tooltip="A screenful up"),
        Binding("pagedown", "page_down", "Page down", show=False, id="reward-model.text-down", tooltip="And down"),
        Binding("home", "scroll_home", "Start", show=False, id="reward-model.text-start", tooltip="The start"),
        Binding("end", "scroll_end", "End", show=False, id="reward-model.text-end", tooltip="The end"),
    ]

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._pair: PairPrediction | None = None

    def show(self, pair: PairPrediction) -> None:
        """Show `pair` from its start."""
        self._pair = pair
        self.lay_out()
        self.scroll_to(y=0, animate=False, force=True)

    def wrap(self, width: int) -> list[Line]:
        return pair_text_lines(self._pair, width) if self._pair is not None else []
