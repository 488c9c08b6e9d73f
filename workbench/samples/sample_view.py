"""The view of one sample: its coloured text, a legend, and everything known about the token under the cursor."""

from __future__ import annotations

from textual import events, on
from textual.app import ComposeResult
from textual.containers import Container, Vertical
from textual.strip import Strip
from textual.widgets import Static

from workbench.run.sample_records import Sample, TokenSample
from workbench.samples.sample_list import sample_facts
from workbench.samples.token_inspector import TokenInspector
from workbench.samples.token_legend import TokenLegend
from workbench.samples.token_text import TokenText

_BESIDE = 96  # columns from which the inspector is beside the text
_TALL = 30  # lines from which it gets more room below the text
_WIDEST = 200


class SampleView(Vertical):
    """Text, legend and inspector; the inspector is beside the text where there is room, else below."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._marked = False

    def compose(self) -> ComposeResult:
        yield Static(id="sample-facts", markup=False)
        with Container(id="sample-body"):
            with Vertical(id="sample-text"):
                yield TokenText()
                yield TokenLegend()
            yield TokenInspector()

    @property
    def text(self) -> TokenText:
        """The coloured text."""
        return self.query_one(TokenText)

    def show(self, sample: TokenSample, *, marked: bool, cursor: int = 0) -> None:
        """Show `sample` with the cursor on a token. marked: the sample has a bookmark."""
        self.text.show(sample, cursor)
        self.mark(marked)

    def mark(self, marked: bool) -> None:
        """Show whether the sample has a bookmark."""
        self._marked = marked
        if (sample := self.text.sample) is not None:
            self.query_one("#sample-facts", Static).update(self.facts(sample, marked=marked))

    def facts(self, sample: TokenSample, *, marked: bool = False) -> str:
        """Return the sample's iteration and number, its score, KL and length."""
        logprobs, ref_logprobs = (sample.numbers.get(name, ()) for name in ("logprobs", "ref_logprobs"))
        kl = sum(logprobs) - sum(ref_logprobs) if logprobs and ref_logprobs else float("nan")
        listed = Sample(
            key=sample.key,
            prompt=sample.prompt,
            completion=sample.completion,
            score=sample.score,
            kl=kl,
            length=len(sample),
            truncated=sample.truncated,
        )
        room = max(self.size.width, 1)
        return sample_facts(listed, room, marked=marked, iteration=True).strip()

    def picture(self) -> list[Strip]:
        """Return the lines of the coloured text and of its legend."""
        legend = self.query_one(TokenLegend)
        return [*self.text.picture(), Strip([]), *(legend.render_line(y) for y in range(legend.size.height))]

    def on_resize(self, event: events.Resize) -> None:
        self.set_class(event.size.width >= _BESIDE, "-beside")
        self.set_class(event.size.height >= _TALL, "-tall")
        self.mark(self._marked)

    @on(TokenText.Moved)
    def _show_token(self) -> None:
        self.query_one(TokenInspector).show(self.text.sample, self.text.cursor)

    @on(TokenText.ChannelChanged)
    def _show_legend(self) -> None:
        self.query_one(TokenLegend).show(self.text)
