"""Held-out pairs of a reward model, the most wrong one first: their list, and one of them in full."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import ClassVar

from textual.binding import BindingType

from trainer.errors import counted
from trainer.preferences.records import STRENGTHS, Text
from trainer.reward_model.predictions import PairPrediction, Predictions
from workbench.kit.cursor_list import BlockList, cursor_bindings
from workbench.kit.drawing import ScrolledLines, scroll_bindings, wrapped
from workbench.text import Line, beside, fit_end, fit_start, has_words, number, packed, visible

_LABEL = 18  # columns: name and reward of a completion
_PARTS = ("facts", "prompt", "chosen", "rejected")  # one line each
_BESIDE = 96  # columns from which the completions are side by side
_BETWEEN = " │ "
_SOURCE = 60  # characters
_PREFERENCE = ("prompt", "chosen", "rejected", "is_tie")  # what a row of an export has in the format's own columns
_STRENGTHS = dict(zip(STRENGTHS, ("slightly", "clearly", "strongly"), strict=True))


ORDERS: dict[str, Callable[[PairPrediction], float] | None] = {
    "most wrong first": None,  # as they come
    "least sure first": lambda pair: abs(pair.lead),
    "most unequal lengths first": lambda pair: -abs(pair.chosen_tokens - pair.rejected_tokens),
}
"""Orders of the list; ties always come last."""


def chosen_pairs(pairs: Sequence[PairPrediction], words: str, order: str, *, reverse: bool) -> Sequence[PairPrediction]:
    """Return the pairs whose texts have all `words`, in one of `ORDERS`; `pairs` itself if nothing is asked."""
    found = pairs
    if words.strip():
        texts = ("\n".join(map(plain_text, (pair.prompt, pair.chosen, pair.rejected))) for pair in pairs)
        found = [pair for pair, text in zip(pairs, texts, strict=True) if has_words(text, words)]
    if (key := ORDERS[order]) is not None:
        found = sorted(found, key=lambda pair: (pair.is_tie, key(pair)))
    return found[::-1] if reverse else found


def plain_text(text: Text) -> str:
    """Return a plain text as it is; for messages, the contents in order, each after its role if there are several."""
    if isinstance(text, str):
        return text
    if len(text) == 1:
        return text[0]["content"]
    return "\n".join(f"{message['role']}: {message['content']}" for message in text)


def _sides(pair: PairPrediction) -> list[tuple[str, Text, str, int]]:
    """Return name, text, reward and tokens of both completions; neither side of a tie is called chosen."""
    names = ("one", "other") if pair.is_tie else ("chosen", "rejected")
    rewards = [number(reward, 2, signed=True) for reward in (pair.chosen_reward, pair.rejected_reward)]
    tokens = pair.chosen_tokens, pair.rejected_tokens
    return list(zip(names, (pair.chosen, pair.rejected), rewards, tokens, strict=True))


def copy_text(pair: PairPrediction) -> str:
    """Return prompt and completions for the clipboard, as they are and each after its heading."""
    parts = [("prompt", pair.prompt), *((f"{name}, reward {reward}", text) for name, text, reward, _ in _sides(pair))]
    return "\n\n".join(f"[{heading}]\n{plain_text(text)}" for heading, text in parts)


def pair_facts(pair: PairPrediction, width: int) -> str:
    """Return verdict, lengths, strength of the label and source, as many as fit into `width` columns.

    The verdict: whether the model agrees with the label (✓ or ✗) and by how much reward; ~ for a tie, = if even.
    """
    apart = number(abs(pair.chosen_reward - pair.rejected_reward), 2)
    if pair.is_tie:
        verdict = f"~ tie, rewards {apart} apart"
    elif pair.lead == 0:
        verdict = "= even"
    else:
        verdict = f"✓ right by {apart}" if pair.lead > 0 else f"✗ wrong by {apart}"
    parts = [
        verdict,
        f"{pair.chosen_tokens} and {counted(pair.rejected_tokens, 'token')}",
        "" if pair.is_tie else f"labelled {_STRENGTHS.get(pair.strength, '')} better",
        visible(pair.source[:_SOURCE]),
    ]
    return fit_start("   ".join(packed(filter(None, parts), width, 3)[0]), width)


def pairs_heading(
    found: Predictions, marked: int, *, order: str = next(iter(ORDERS)), filtered: int | None = None
) -> str:
    """Return a heading with the number of pairs and ties, and how many are wrong, listed and marked.

    filtered: number of pairs that the filter leaves; None without one.
    """
    wrong = sum(chosen < rejected for chosen, rejected in zip(found.chosen, found.rejected, strict=True))
    parts = [f"held-out pairs, {order}: ✗ {wrong:,} of {len(found.chosen):,}"]
    if ties := found.total - len(found.chosen):
        parts.append(f"~ {counted(ties, 'tie')}")
    if len(found.pairs) < found.total:
        parts.append(f"first {len(found.pairs):,} listed")
    if filtered is not None:
        parts.append(f"{filtered:,} with these words")
    if marked:
        parts.append(f"◆ {marked:,} marked")
    return "   ".join(parts)


def _in_a_line(text: str) -> str:
    """Return `text` safe to print on one line; a space stands for line ends, and for the spaces around them."""
    return visible(" ".join(text.split()))


def pair_lines(pair: PairPrediction, number: int, width: int, *, marked: bool = False) -> list[str]:
    """Return five lines of at most `width` columns: facts, end of the prompt, start of both completions, blank."""
    lead = f"{number:>4}{' ◆' if marked else ''}   "
    room = max(width - _LABEL, 1)
    return [
        lead + pair_facts(pair, width - len(lead)),
        "prompt".ljust(_LABEL) + fit_end(_in_a_line(plain_text(pair.prompt)[-2 * width :]), room),
        *(
            f"{name:<9}{reward:>6}   " + fit_start(_in_a_line(plain_text(text)[: 2 * width]), room)
            for name, text, reward, _ in _sides(pair)
        ),
        "",
    ]


def export_rows(pairs: Iterable[PairPrediction]) -> Iterator[str]:
    """Yield each pair as a line of JSON in the preference format `columns`, with the model's numbers beside it."""
    for pair in pairs:
        row = {"prompt": pair.prompt, "a": pair.chosen, "b": pair.rejected, "choice": "tie" if pair.is_tie else "a"}
        numbers = {name: value for name, value in pair._asdict().items() if name not in _PREFERENCE}
        yield json.dumps(row | numbers)


class RewardPairList(BlockList[PairPrediction]):
    """List of the pairs of an evaluation, with a cursor."""

    CSS_NAME = "reward-pair-list"
    LINES = (*_PARTS, "")
    ITEM_HEIGHT = len(LINES)
    COMPONENT_CLASSES: ClassVar[set[str]] = {f"reward-pair-list--{part}" for part in (*_PARTS, "bar", "cursor")}
    BINDINGS: ClassVar[list[BindingType]] = cursor_bindings("reward-model", "pair")[:-1]  # no key for the last

    _marked: Collection[str] = ()  # keys of comparisons

    def show(self, pairs: Sequence[PairPrediction], marked: Collection[str], message: str) -> bool:
        """Show `pairs`; return whether the cursor stays on its pair. If not, it goes to the first.

        marked: keys of the comparisons whose pairs have a mark. message: shown if there are none.
        """
        before, self._marked, self._message = self.selected, marked, message
        self.refresh()
        if pairs is self.items and pairs:
            return True  # two pairs of one comparison look the same
        self.items = pairs
        same = [place for place, pair in enumerate(pairs) if before and _texts(pair) == _texts(before)]
        self.put_cursor(same[0] if same else 0)
        return bool(same)

    def block(self, index: int, width: int) -> list[str]:
        pair = self.items[index]
        return pair_lines(pair, index + 1, width, marked=pair.key in self._marked)


def pair_text_lines(pair: PairPrediction, width: int) -> list[Line]:
    """Return the whole pair as lines of at most `width` columns, with the roles facts, heading, text and axis."""

    def lines_of(text: Text, width: int) -> list[Line]:
        return wrapped([(plain_text(text).lstrip("\n"), "text")], width)

    lines: list[Line] = [
        [(pair_facts(pair, width), "facts")],
        [],
        [(fit_start("prompt", width), "heading")],
        *lines_of(pair.prompt, width),
        [],
    ]
    across = width if width < _BESIDE else (width - len(_BETWEEN)) // 2
    blocks = list[list[Line]]()
    for (name, text, reward, tokens), role in zip(_sides(pair), ("better", "worse"), strict=True):
        heading = fit_start(f"{name}   reward {reward}   {counted(tokens, 'token')}", across)
        blocks.append([[(heading, "heading" if pair.is_tie else role)], *lines_of(text, across)])
    if across == width:
        return [*lines, *blocks[0], [], *blocks[1], []]
    return [*lines, *beside(blocks, across, (_BETWEEN, "axis"))]


class RewardPairText(ScrolledLines):
    """Scrollable text of one pair."""

    CSS_NAME = "reward-pair-text"
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        f"reward-pair-text--{role}" for role in ("facts", "heading", "better", "worse", "text", "axis")
    }
    BINDINGS: ClassVar[list[BindingType]] = scroll_bindings(
        "reward-model", "line-up line-down text-up text-down text-start text-end"
    )

    _pair: PairPrediction | None = None

    def show(self, pair: PairPrediction) -> None:
        """Show `pair` from its start, or the numbers of a new evaluation of the same pair where it was scrolled to."""
        before, self._pair = self._pair, pair
        if pair is not before:
            is_other = before is None or _texts(before) != _texts(pair)
            self.show_lines(partial(pair_text_lines, pair), from_start=is_other)


def _texts(pair: PairPrediction) -> tuple[object, ...]:
    """Return what a pair is the same by in every evaluation."""
    return pair.key, pair.chosen, pair.rejected
