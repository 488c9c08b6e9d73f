"""The list of samples: for each score, KL and length, the end of the prompt and the start of the response."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence
from typing import ClassVar

from rich.cells import cell_len
from textual.binding import Binding, BindingType
from textual.content import Content

from workbench.kit.block_list import BlockList
from workbench.kit.cells import fit_end
from workbench.run.sample_records import Sample, SampleKey
from workbench.run.sample_table import SampleTable
from workbench.text import visible

_COMPLETION = 2  # lines
_ROLES = ("facts", "prompt", *[""] * _COMPLETION, "")  # of each sample's lines, the last one empty
_KEPT = 500  # drawn samples in the cache
_TEMPLATE = 200  # characters at the end of a prompt that may come from its chat template
_TEMPLATE_END = re.compile(r"(<\|[^<|>\s]{1,30}\|>\w*\s*)+\Z")  # the same in every prompt, so no use in a list


def sample_facts(sample: Sample, width: int, *, marked: bool = False, iteration: bool = False) -> str:
    """Return number, score, KL, length and whether it was cut, in full if that fits `width` columns, else abbreviated.

    marked: the sample has a bookmark. iteration: include its iteration.
    """
    score = f"{sample.score:+.2f}" if math.isfinite(sample.score) else "-"
    kl = f"{sample.kl:.1f}" if math.isfinite(sample.kl) else "-"
    number = f"{sample.key.row + 1:>3}"
    if iteration:
        number = f"{sample.key.iteration:>5}·{sample.key.row + 1}"
    if marked:
        number += " ★"
    full = [number, f"score {score}", f"KL {kl} nats"]
    short = [number, score, f"KL {kl}"]
    if sample.length is not None:
        full.append(f"{sample.length} tokens")
        short.append(f"{sample.length} tok")
    if sample.truncated:
        full.append("✂ cut short")
        short.append("✂")
    text = "   ".join(full)
    return text if cell_len(text) <= width else "  ".join(short)


def sample_lines(sample: Sample, width: int, *, marked: bool = False, iteration: bool = False) -> list[str]:
    """Return the facts, the end of the prompt and the start of the response, in lines of at most `width` columns."""
    # Only combining characters take less than a column, so text beyond these limits is hardly ever visible.
    tail = _TEMPLATE_END.sub("", sample.prompt[-2 * width - _TEMPLATE :])
    prompt = ("…" if len(sample.prompt) > 2 * width + _TEMPLATE else "") + visible(tail)
    facts = sample_facts(sample, width, marked=marked, iteration=iteration)
    lines = [facts, fit_end(prompt, width)]
    wrapped = Content(visible(sample.completion[: 2 * _COMPLETION * width])).wrap(width)
    shown = [line.plain.rstrip() for line in wrapped[:_COMPLETION]]
    if len(wrapped) > _COMPLETION or len(sample.completion) > 2 * _COMPLETION * width:
        shown[-1] = Content(shown[-1] + " …").truncate(width, ellipsis=True).plain
    return (lines + shown + [""] * len(_ROLES))[: len(_ROLES)]


class SampleList(BlockList[Sample]):
    """List of the samples of one or many iterations, with a cursor."""

    CSS_NAME = "sample-list"
    LINES = _ROLES
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "sample-list--facts",
        "sample-list--prompt",
        "sample-list--bar",
        "sample-list--cursor",
    }
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", "Up", show=False, id="samples.up", tooltip="The sample above"),
        Binding("down", "move(1)", "Down", show=False, id="samples.down", tooltip="The sample below"),
        Binding("pageup", "page(-1)", "Page up", show=False, id="samples.page-up", tooltip="A screenful up"),
        Binding("pagedown", "page(1)", "Page down", show=False, id="samples.page-down", tooltip="A screenful down"),
        Binding("home", "first", "First", show=False, id="samples.first", tooltip="The first sample"),
    ]

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.marked: Collection[SampleKey] = ()  # those with a bookmark
        self._iterations = False
        self._drawn: dict[int, list[str]] = {}

    @property
    def samples(self) -> Sequence[Sample]:
        """The listed samples, in order."""
        return self._items

    def show(self, samples: Sequence[Sample], *, message: str = "", iterations: bool = False) -> None:
        """Show `samples`, with the cursor on the same sample as before if it is listed, else at the same place.

        message: text to show when there are none. iterations: show the iteration of each.
        """
        before = self.selected
        self._items, self._message, self._iterations = samples, message, iterations
        place = samples.position_of(before.key) if before is not None and isinstance(samples, SampleTable) else None
        self.cursor = self.validate_cursor(self.cursor if place is None else place)
        self.lay_out()

    def next_outlier(self, by: int) -> bool:
        """Move to the next outlier (by = 1) or the one before (by = -1); return False if there is none."""
        places = self._items.outliers() if isinstance(self._items, SampleTable) else []
        found = next((place for place in places[::by] if (place - self.cursor) * by > 0), None)
        if found is not None:
            self.cursor = found
        return found is not None

    def redraw(self) -> None:
        """Draw the samples again, after marks have changed."""
        self._drawn.clear()
        self.refresh()

    def lay_out(self) -> None:
        self._drawn.clear()
        super().lay_out()

    def block(self, index: int, width: int) -> list[str]:
        if index not in self._drawn:
            if len(self._drawn) >= _KEPT:
                self._drawn.clear()
            sample = self._items[index]
            marked = sample.key in self.marked
            self._drawn[index] = sample_lines(sample, width, marked=marked, iteration=self._iterations)
        return self._drawn[index]
