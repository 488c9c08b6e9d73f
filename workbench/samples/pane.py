"""The samples pane: what the policy wrote, token by token, and why each token was pushed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import Input, Static

from workbench.kit.cut_text import CutText
from workbench.run.sample_query import EXAMPLES, Order, parse_query
from workbench.run.sample_records import Sample, SampleKey
from workbench.samples.asked import Asked
from workbench.samples.channels import CHANNELS
from workbench.samples.opening import SamplesOpening
from workbench.samples.prompt_history import PromptHistoryScreen
from workbench.samples.sample_filter import SampleFilter
from workbench.samples.sample_list import SampleList
from workbench.samples.sample_view import SampleView
from workbench.text import visible

_NONE_YET = "no samples yet: they come with the first iteration"
_ORDERS: tuple[Literal["batch", "score", "kl", "length"], ...] = ("batch", "score", "kl", "length")
_HELP = """\
What the policy wrote. The newest iteration is followed until you go to an earlier one; w lists the whole run. Enter \
opens a sample: its tokens are coloured by the channel that you choose, and the panel tells all that is known of the \
token under the cursor. Enter there lays out the sum of its advantage.

The search takes words and conditions: {examples}.

{channels}"""


class SamplesPane(SamplesOpening):
    """Pane with a list of samples, or one of them open."""

    TITLE = "Samples"
    HELP = _HELP.format(
        examples="   ".join(EXAMPLES),
        channels="\n".join(f"{channel.label}: {channel.help}" for channel in CHANNELS.values()),
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "open", id="samples.open", tooltip="Show the selected sample token by token"),
        Binding("escape", "close", "back", id="samples.close", tooltip="Back to the list"),
        Binding("left", "go(-1)", "earlier", id="samples.earlier", tooltip="Samples of the iteration before"),
        Binding("right", "go(1)", "later", id="samples.later", tooltip="Samples of the iteration after"),
        Binding("end", "follow", "newest", id="samples.follow", tooltip="Follow the newest iteration again"),
        Binding("slash", "filter", "search", id="samples.filter", tooltip="Search texts, filter by numbers"),
        Binding("o", "order", "order", id="samples.order", tooltip="Sort by score, KL, length, or not at all"),
        Binding("O", "reverse", "reverse", show=False, id="samples.reverse", tooltip="Sort the other way round"),
        Binding("w", "whole_run", "whole run", id="samples.whole-run", tooltip="All iterations, or one again"),
        Binding(
            "right_square_bracket",
            "outlier(1)",
            "next outlier",
            show=False,
            id="samples.next-outlier",
            tooltip="The next sample whose score, KL or length lies far off its iteration's",
        ),
        Binding(
            "left_square_bracket",
            "outlier(-1)",
            "outlier before",
            show=False,
            id="samples.outlier-before",
            tooltip="The sample before whose score, KL or length lies far off its iteration's",
        ),
        Binding("n", "next(1)", "next sample", id="samples.next", tooltip="Open the next sample of the list"),
        Binding("N", "next(-1)", "sample before", show=False, id="samples.before", tooltip="Open the one before it"),
        Binding("b", "bookmark", "mark", id="samples.bookmark", tooltip="Mark the sample, or take its mark away"),
        Binding("h", "history", "history", id="samples.history", tooltip="The same prompt through training"),
        Binding("p", "ask", "ask", id="samples.ask", tooltip="What do policy and reference say to a prompt now?"),
        Binding("f", "try_from_here", "try", id="samples.try", tooltip="Go on from the cursor with another token"),
        Binding("x", "export", "export", id="samples.export", tooltip="JSONL, Markdown, or a picture of the text"),
        Binding("y", "copy", "copy", show=False, id="samples.copy", tooltip="Prompt and completion to the clipboard"),
    ]

    class AskRequested(Message):
        """Message sent when the user wants the models of the run to write."""

        def __init__(self, asked: Asked) -> None:
            super().__init__()
            self.asked = asked

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._count = ""  # samples listed, and out of how many
        self._heading = ""

    def compose(self) -> ComposeResult:
        yield CutText(most=3, id="samples-heading")
        yield SampleFilter()
        yield Static(id="samples-problem", markup=False)
        yield SampleList()
        yield SampleView()

    def on_mount(self) -> None:
        self.query_one(SampleView).display = False
        self.query_one("#samples-problem").display = False
        self.query_one(SampleList).show([], message=_NONE_YET)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        match action:
            case "open" | "filter" | "order" | "reverse" | "whole_run" | "outlier":
                return self.opened is None and (action != "open" or self.selected is not None)
            case "go":
                return self.opened is None and self.newest is not None and not self.whole_run
            case "follow":
                return self.opened is None and not self.follows
            case "close" | "next" | "try_from_here" | "copy":
                return self.opened is not None
            case "bookmark" | "history" | "export":
                return self.table is not None and self.selected is not None
            case "ask":
                return self.folder is not None
        return True

    def take_focus(self) -> None:
        (self.query_one(SampleView).text if self.opened else self.query_one(SampleList)).focus()

    # The list

    @property
    def selected(self) -> Sample | None:
        """The sample under the list's cursor."""
        return self.query_one(SampleList).selected

    def list_samples(self, samples: Sequence[Sample], count: str, message: str) -> None:
        self._count = count
        listed = self.query_one(SampleList)
        listed.marked = self.bookmarks or ()
        listed.show(samples, message=visible(message), iterations=self.whole_run)
        self.show_heading()
        self.refresh_keys()

    def show_heading(self) -> None:
        newest, heading = self.newest, ""
        if self.whole_run:
            heading = f"whole run   {self._count}"
        elif newest is not None and (iteration := self.iteration) is not None:
            place = "newest" if iteration == newest.iteration else f"newest is {newest.iteration}"
            heading = f"iteration {iteration} · {place}" + (f"   {self._count}" if iteration == self._shown else "")
        if self.order != Order():
            heading += f"   by {self.order.by} {'↓' if self.order.descending else '↑'}"
        if heading != self._heading:
            self._heading = heading
            self.query_one("#samples-heading", Static).update(heading)

    def complain(self, problem: str) -> None:
        self.notify(visible(problem), severity="warning", markup=False)

    def forget(self) -> None:
        super().forget()
        self._count = ""
        self.query_one(SampleList).show([], message=_NONE_YET)

    def action_go(self, by: int) -> None:
        self.go(by)

    def action_follow(self) -> None:
        self.show_iteration(None)

    def action_whole_run(self) -> None:
        self.toggle_whole_run()

    def action_order(self) -> None:
        by = _ORDERS[(_ORDERS.index(self.order.by) + 1) % len(_ORDERS)]
        self.choose(self.filter, Order(by, descending=by != "batch"))

    def action_reverse(self) -> None:
        self.choose(self.filter, Order(self.order.by, descending=not self.order.descending))

    def action_outlier(self, by: int) -> None:
        if not self.query_one(SampleList).next_outlier(by):
            self.notify("no outlier that way: score, KL and length lie close together")

    # The search

    def action_filter(self) -> None:
        line = self.query_one(SampleFilter)
        line.display = True
        line.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        told, problem = self.query_one("#samples-problem", Static), ""
        try:
            query = parse_query(event.value)
        except ValueError as error:
            problem = str(error)
        else:
            if query != self.filter:
                self.choose(query, self.order)
        told.display = bool(problem)
        told.update(visible(problem))

    def on_input_submitted(self) -> None:
        line = self.query_one(SampleFilter)
        self.query_one(SampleList).focus()
        line.display = bool(line.value.strip())

    def on_sample_filter_cleared(self) -> None:
        line = self.query_one(SampleFilter)
        line.value = ""
        line.display = False
        self.query_one(SampleList).focus()

    # Its samples

    @on(SampleList.Opened)
    def action_open(self) -> None:
        if (selected := self.selected) is not None:
            self.open_sample(selected.key)

    def action_close(self) -> None:
        self.close_sample()

    def action_next(self, by: int) -> None:
        listed = self.query_one(SampleList)
        before, listed.cursor = listed.cursor, listed.cursor + by
        if listed.cursor != before:
            self.action_open()

    def action_bookmark(self) -> None:
        self.toggle_bookmark()

    def action_history(self) -> None:
        opened, selected = self.opened, self.selected
        sample = opened if opened is not None else selected
        if self.folder is None or sample is None:
            return

        def chosen(key: SampleKey | None) -> None:
            if key is not None:
                self.open_sample(key)

        self.app.push_screen(PromptHistoryScreen(self.folder, sample), chosen)

    def action_ask(self) -> None:
        if (opened := self.opened) is not None:
            self.post_message(self.AskRequested(Asked.about_prompt(opened)))
        elif self.table is not None and (selected := self.selected) is not None:
            self.read_then(
                selected.key, lambda sample: self.post_message(self.AskRequested(Asked.about_prompt(sample)))
            )
        else:
            self.post_message(self.AskRequested(Asked()))

    def action_try_from_here(self) -> None:
        if (opened := self.opened) is not None and len(opened):
            index = self.query_one(SampleView).text.cursor
            self.post_message(self.AskRequested(Asked.from_token(opened, index)))

    def action_export(self) -> None:
        self.export()

    def action_copy(self) -> None:
        self.copy()
