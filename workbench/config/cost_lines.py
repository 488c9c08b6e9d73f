"""Cost of an iteration below the form: its memory against the machine's as a bar, its tokens, and the problems."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from rich.cells import cell_len
from textual import work
from textual.content import Content
from textual.widget import Widget

from trainer.config import Config
from trainer.memory.footprint import Footprint, Part
from trainer.plurals import counted
from workbench.columns import packed
from workbench.config.estimates import Estimate, estimate
from workbench.numbers import gigabytes
from workbench.system.machine import room_for

_LEAST, _MOST = 10, 60  # columns of the bar; with fewer it says nothing
_WORDED = 40  # columns; on a narrower line the problems are a sign and a number
_FREE = "─"


class CostLines(Widget):
    """Two lines that are always in view: memory and number of problems, then what the memory and time go into."""

    _needed: Estimate | None = None
    _room = 0
    _problems = 0
    _broken = False

    def show(self, config: Config | None, problems: int) -> None:
        """Estimate `config` in a thread, as it reads files, and show it with the count of problems.

        config: None while it has problems.
        """
        self._problems, self._broken = problems, config is None
        self.refresh()
        if config is not None:
            self._estimate(config)
        else:
            self.workers.cancel_group(self, "estimate")  # of what was valid a moment ago

    @work(exclusive=True, group="estimate")
    async def _estimate(self, config: Config) -> None:
        self._needed, self._room = await asyncio.to_thread(_measured, config)
        self.refresh()

    def render(self) -> Content:
        needed = None if self._broken else self._needed
        width = self.size.width
        sign, style = ("✖", "$text-error") if self._problems else ("✓", "$text-success")
        count = counted(self._problems, "problem") if self._problems else "no problems"
        if width < _WORDED:
            count = str(self._problems or "")
        state = f"{sign} {count}".rstrip()
        room = width - cell_len(state) - 2
        memory = Content()
        if self._broken:
            memory = Content("No estimate until the problems are fixed" if room >= 40 else "No estimate")
        elif needed is not None:
            memory = memory_line(needed.memory, self._room, room)
        gap = " " * max(width - memory.cell_length - cell_len(state), 1)
        below = " · ".join(packed(cost_pieces(needed), width, 3)[0])
        return memory + Content.assemble(gap, (state, style), f"\n{below}")


def _measured(config: Config) -> tuple[Estimate, int]:
    return estimate(config), room_for(config.model)


def memory_line(memory: Footprint | None, total: int, width: int) -> Content:
    """Draw `memory` as a bar of a machine with `total` bytes, and in numbers, in at most `width` columns."""
    if memory is None:
        return Content("memory unknown")
    too_much = memory.peak > total
    words = f"≈ {gigabytes(memory.peak)} of {gigabytes(total)}"
    long = f"{words}: does not fit"
    if too_much and len(long) <= width:
        words = long
    columns = min(width - len(words) - 1, _MOST)
    text = Content.styled(words, "$text-error" if too_much else "")
    if columns < _LEAST:
        return text
    bar, drawn = Content(), 0
    reached = 0
    for (_, sign, style), size in zip(_PARTS, _sizes(memory), strict=True):
        reached += size
        end = min(round(reached / max(total, memory.peak) * columns), columns)
        bar += Content.styled(sign * (end - drawn), style)
        drawn = end
    return bar + Content.styled(_FREE * (columns - drawn), "$text-muted") + " " + text


_PARTS = (  # of which the bar consists: name, sign, colour; signs differ, so that the bar can be read without colours
    ("weights", "█", "$text-primary"),
    ("adapters", "▆", "$text-accent"),
    ("", "▃", "$text-success"),  # of the phase
)
_OF_ADAPTERS: tuple[Part, ...] = ("adapters", "optimiser", "gradients")


def _sizes(memory: Footprint) -> tuple[int, int, int]:
    """Return the bytes at the peak: of the weights, of all that belongs to the adapters, and of the phase."""
    weights, adapters = memory.parts["weights"], sum(memory.parts.get(part, 0) for part in _OF_ADAPTERS)
    return weights, adapters, memory.peak - weights - adapters


def cost_pieces(needed: Estimate | None) -> Sequence[str]:
    """Return the pieces of the second line, the most important first."""
    if needed is None:
        return []
    parts = []
    if memory := needed.memory:
        names = [name or memory.phase for name, _, _ in _PARTS]
        signs = [sign for _, sign, _ in _PARTS]
        parts = [f"{s} {name} {gigabytes(size)}" for s, name, size in zip(signs, names, _sizes(memory), strict=True)]
    tokens = f"≤ {needed.tokens_per_iteration:,} tokens/it"
    return [tokens, *parts, needed.basis, f"≤ {needed.forward_tokens:,} through a model"]
