"""Label pane: the user decides with one key which of two completions is better."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import ClassVar, Literal

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.events import Resize
from textual.message import Message
from textual.widgets import Static

from workbench.kit.keys import keys_of
from workbench.labelling.judging import LabelJudging
from workbench.labelling.layout import SIDE_BY_SIDE, Style
from workbench.labelling.messages import Keys, all_judged, hints, last_line, nothing_under_way, waiting
from workbench.labelling.progress_lines import LabelProgress, figures
from workbench.labelling.shown import MOST, Groups, Ranking, ranked, set_aside
from workbench.labelling.view import LabelView

_HELP = """\
Which completion is better? A key decides, is on disk at once, and shows the next item. What wrote them, their scores \
and their lengths stay hidden until you have decided; a line at the bottom tells it then.

Both sides scroll together. Three or more completions are ranked: type their digits in order of preference, = between \
those that are as good as each other; the last digit decides."""


def _key(key: str, action: str, description: str, name: str, tooltip: str, *, show: bool = False) -> Binding:
    return Binding(key, action, description, show=show, id=f"label.{name}", tooltip=tooltip)


class LabelPane(LabelJudging):
    """Pane that shows one item of a labelling session at a time, with a key for each decision."""

    TITLE = "Label"
    HELP = _HELP
    BINDINGS: ClassVar[list[BindingType]] = [
        _key("enter", "start", "label", "start", "Begin a session, or go on with one", show=True),
        _key("enter", "keep", "keep it", "keep", "Leave the label as it was, back to the next item", show=True),
        _key("1,left", "better(1)", "first", "first", "The first, left or above, is better", show=True),
        _key("2,right", "better(2)", "second", "second", "The second, right or below, is better", show=True),
        _key("exclamation_mark,shift+left", "better(1, 3)", "first, strongly", "first-strongly", "It is much better"),
        _key("at,shift+right", "better(2, 3)", "second, strongly", "second-strongly", "It is much better"),
        *(
            _key(str(n), f"better({n})", f"number {n}", f"number-{n}", "Next in the ranking")
            for n in range(3, MOST + 1)
        ),
        _key("equals_sign", "tie", "tie", "tie", "As good as each other; joins two of a ranking", show=True),
        _key("0", "set_aside('both_bad')", "both bad", "both-bad", "None of them is acceptable", show=True),
        _key("space", "set_aside('skip')", "skip", "skip", "Say nothing of this one", show=True),
        _key("backspace", "take_back", "take back", "take-back", "The last digit of the ranking", show=True),
        _key("r", "rank", "rank anew", "rank", "Type the ranking from its start again", show=True),
        _key("u", "undo", "undo", "undo", "Take the last label back; again, the one before", show=True),
        _key("f", "flag", "flag", "flag", "Mark the item, to look at it again later", show=True),
        _key("n", "note", "note", "note", "Write down why; kept with the label", show=True),
        _key("d", "diff", "diff", "diff", "Mark the words that the two do not share", show=True),
        _key("g", "guidelines", "guidelines", "guidelines", "What the labels go by", show=True),
        _key("m", "markdown", "Markdown", "markdown", "Draw Markdown, or the text as it is"),
        _key("h", "history", "history", "history", "Your labels, to change one"),
        _key("p", "progress", "figures", "progress", "All figures of the session, or a line of them"),
        _key("l", "leave", "leave", "leave", "End here; you come back at the same item"),
        _key("t", "train", "train", "train", "Train a reward model on the labels"),
        _key("T", "use", "use", "use", "Let the run use that model from its next iteration on"),
        _key("i", "import", "import", "import", "Take preferences from a file"),
        _key("e", "export", "export", "export", "Write preferences to a file"),
    ]

    class StartRequested(Message):
        """Request to begin or resume a session."""

    class LeaveRequested(Message):
        """Request to leave the session; call `end` when it is left."""

    class TrainRequested(Message):
        """Request to train a reward model on the labels."""

    class UseRequested(Message):
        """Request that the run uses that reward model."""

    class GuidelinesRequested(Message):
        """Request to show the guidelines."""

    class NoteRequested(Message):
        """Request to edit the item's note; pass the result to `set_note`."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    class HistoryRequested(Message):
        """Request to list the session's labels; pass the position of the one to change to `go_to`."""

    class ImportRequested(Message):
        """Request to import preferences from a file."""

    class ExportRequested(Message):
        """Request to export preferences to a file."""

    def __init__(self, *, id: str | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(id=id, clock=clock)
        self._style = Style()
        self._all_figures = False
        self._keys: Keys = {}

    def compose(self) -> ComposeResult:
        yield LabelProgress(id="label-progress")
        yield LabelView(id="label-view")
        yield Static(id="label-problem", markup=False)
        yield Static(id="label-hint", markup=False)
        yield Static(id="label-last", markup=False)

    def on_mount(self) -> None:
        self._read_keys()
        self.show_item()

    def on_show(self) -> None:
        self._read_keys()

    def on_resize(self, event: Resize) -> None:
        self.set_class(event.size.width < SIDE_BY_SIDE, "-narrow")
        self.call_after_refresh(self.show_lines)  # once the lines have their new size

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        count = len(self.shown.completions) if self.shown else 0
        match action:
            case "start":
                return self.desk is None
            case "keep":
                return self.changes
            case "better" if parameters and parameters[0] not in (1, 2):
                return count >= int(str(parameters[0]))
            case "rank" | "take_back":
                return count > 2
            case "diff":
                return count == 2
            case "flag" | "note" | "markdown":
                return self.item is not None
            case "better" | "tie" | "set_aside" | "undo" | "guidelines" | "history" | "progress" | "leave":
                return self.desk is not None  # also without an item: otherwise space would pause the run
        return True

    # Display

    def show_item(self) -> None:
        view = self.query_one(LabelView)
        if self.shown is not None:
            view.show(self.shown, self._style)
        elif self.state is None:
            view.say(nothing_under_way(self._keys))
        elif self.state.exhausted:
            view.say(all_judged(self.state.progress.done, self.supply.problem if self.supply else "", self._keys))
        else:
            supply = self.supply
            what = "another session shows it" if self.state.ahead else supply.waiting if supply else ""
            view.say(waiting(what, supply.problem if supply else ""))
        self.show_lines()
        self.refresh_keys()

    def show_lines(self) -> None:
        state, item = self.state, self.item
        told = figures(state.record.labeller, state.progress) if state else []
        guidelines = f"guidelines {self._keys['guidelines']}" if state and state.record.guidelines else ""
        self.query_one(LabelProgress).show(told, guidelines, whole=self._all_figures)
        hint = ""
        if item is not None and self.shown is not None:
            hint = hints(item, self.shown, self._style, self.ranking, self._keys, flagged=self.flagged, note=self.note)
        self.query_one("#label-hint", Static).update(hint, layout=False)
        last = self.query_one("#label-last", Static)
        last.update(last_line(state.last if state else None, item, *last.size), layout=False)
        problem = self.query_one("#label-problem", Static)
        if self.problem or problem.display:
            problem.display = bool(self.problem)
            problem.update(self.problem)

    def _read_keys(self) -> None:
        """Read the keys of the bindings, as the user has set them."""
        self._keys = {name.removeprefix("label."): key for name, key in keys_of(self).items()}

    def _restyle(self, style: Style) -> None:
        self._style = style
        self.query_one(LabelView).restyle(style)
        self.show_lines()

    # Decisions

    async def action_better(self, number: int, strength: int = 1) -> None:
        """Choose `number` as the better of two; with more completions, put it next in the ranking."""
        if self.item is None or self.shown is None:
            return
        if len(self.shown.completions) > 2:
            await self._type(str(number))
        else:
            first = number - 1
            await self._judge([[first], [1 - first]], strength)

    async def action_tie(self) -> None:
        count = len(self.shown.completions) if self.shown else 0
        if self.ranking.marks:
            await self._type("=")
        elif count:
            await self._judge([list(range(count))])

    async def action_set_aside(self, verdict: Literal["both_bad", "skip"]) -> None:
        if self.item is not None:
            await self.judge(set_aside(self.item.item, verdict))

    async def _type(self, mark: str) -> None:
        count = len(self.shown.completions) if self.shown else 0
        if count > MOST:
            return
        self.ranking = self.ranking.typed(mark, count)
        if self.ranking.is_whole(count):
            groups = self.ranking.groups
            self.ranking = Ranking()  # the user types it again if the desk refuses it
            await self._judge(groups)
        else:
            self.show_lines()

    async def _judge(self, groups: Groups, strength: int = 1) -> None:
        if self.item is not None:
            await self.judge(ranked(self.item.item, groups, strength=strength))

    def action_take_back(self) -> None:
        self._rank(self.ranking.taken_back())

    def action_rank(self) -> None:
        self._rank(Ranking())

    def _rank(self, ranking: Ranking) -> None:
        self.ranking = ranking
        self.show_lines()

    async def action_undo(self) -> None:
        await self.undo()

    def action_keep(self) -> None:
        self.keep()

    def action_flag(self) -> None:
        self.flagged = not self.flagged
        self.show_lines()

    # Style

    def action_diff(self) -> None:
        self._restyle(self._style._replace(diff=not self._style.diff))

    def action_markdown(self) -> None:
        self._restyle(self._style._replace(markdown=not self._style.markdown))

    def action_progress(self) -> None:
        self._all_figures = not self._all_figures
        self.show_lines()

    # Requests to the screen

    def action_start(self) -> None:
        self.post_message(self.StartRequested())

    def action_leave(self) -> None:
        self.post_message(self.LeaveRequested())

    def action_note(self) -> None:
        self.post_message(self.NoteRequested(self.note))

    def action_guidelines(self) -> None:
        self.post_message(self.GuidelinesRequested())

    def action_history(self) -> None:
        self.post_message(self.HistoryRequested())

    def action_train(self) -> None:
        self.post_message(self.TrainRequested())

    def action_use(self) -> None:
        self.post_message(self.UseRequested())

    def action_import(self) -> None:
        self.post_message(self.ImportRequested())

    def action_export(self) -> None:
        self.post_message(self.ExportRequested())
