"""One sequence whole, with a scroll bar; drawn line by line, so that a long one scrolls as a short one does."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

from rich.segment import Segment
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from workbench.samples_reader import Sample
from workbench.text import visible
from workbench.widgets.sample_list import sample_facts

_LONGEST = 32_000  # characters of a text: 7 ms to wrap, and more than any of our models writes


class Line(NamedTuple):
    """A line of the screen; part is facts, heading, prompt or completion."""

    part: str
    text: str


def sample_text(number: int, sample: Sample, width: int) -> list[Line]:
    """The sample in lines of at most `width` columns; texts beyond 32,000 characters are cut, and that is told."""
    lines = [Line("facts", sample_facts(number, sample, width).strip())]
    for part, text in (("prompt", sample.prompt), ("completion", sample.completion)):
        lines += [Line(part, ""), Line("heading", part)]
        shown = Content(visible(text[:_LONGEST], keep_newlines=True))
        for paragraph in shown.split("\n", allow_blank=True):
            lines += [Line(part, line.plain.rstrip()) for line in paragraph.wrap(width)]
        if len(text) > _LONGEST:
            lines.append(Line("heading", f"… and {len(text) - _LONGEST:,} more characters"))
    return lines


class SampleText(ScrollView, can_focus=True, inherit_bindings=False):
    """A sequence to read."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "sample-text--facts",
        "sample-text--heading",
        "sample-text--prompt",
        "sample-text--completion",
    }
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "scroll_up", "Up", show=False, id="sample.up", tooltip="A line up"),
        Binding("down", "scroll_down", "Down", show=False, id="sample.down", tooltip="A line down"),
        Binding("pageup", "page_up", "Page up", show=False, id="sample.page-up", tooltip="A screenful up"),
        Binding("pagedown", "page_down", "Page down", show=False, id="sample.page-down", tooltip="A screenful down"),
        Binding("home", "scroll_home", "Start", show=False, id="sample.start", tooltip="The start of the sample"),
    ]

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._shown: tuple[int, Sample] | None = None
        self._lines: list[Line] = []

    def show(self, number: int, sample: Sample) -> None:
        """Show `sample`, the one with this number in its batch, from its start."""
        self._shown = (number, sample)
        self._lay_out()
        self.scroll_to(y=0, animate=False, force=True)

    def on_resize(self) -> None:
        self._lay_out()

    def render_line(self, y: int) -> Strip:
        width, index = self.scrollable_content_region.width, y + self.scroll_offset.y
        if index >= len(self._lines):
            return Strip.blank(width, self.rich_style)
        part, text = self._lines[index]
        style = self.get_component_rich_style(f"sample-text--{part}")
        return Strip([Segment(text, style)]).adjust_cell_length(width, self.rich_style)

    def _lay_out(self) -> None:
        width = self.scrollable_content_region.width
        if self._shown is not None and width > 0:
            self._lines = sample_text(*self._shown, width)
            self.virtual_size = Size(width, len(self._lines))
            self.refresh()
