"""Label pane: the user decides with one key which of two completions is better."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, ClassVar, Literal

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.events import Resize
from textual.message import Message
from textual.message_pump import MessagePump
from textual.widgets import Static
from textual.worker import Worker, WorkerError

from workbench.kit.keys import keys_of
from workbench.kit.pane import Badge, Pane
from workbench.kit.wait_screen import WaitScreen
from workbench.labelling.item_texts import MOST, Ranking, copy_text
from workbench.labelling.item_view import SIDE_BY_SIDE, LabelView, Style
from workbench.labelling.pane_text import (
    Keys,
    all_judged,
    figures,
    fitting,
    hints,
    in_lines,
    last_line,
    no_item_yet,
    no_session,
)
from workbench.labelling.session_controller import SLOW, SessionController
from workbench.labelling.session_thread import SessionThread

LabelRequest = Literal["start", "leave", "train", "use", "import", "export"]
"""Request by a key of the pane that goes beyond the open session."""

_TALL = 36  # lines of the pane from which all figures are shown
_LOOK = 0.25  # seconds between checks for the next item, while there is none
_HELP = """\
Which completion is better? A key decides, saves the label at once, and shows the next item. Who wrote the \
completions, their scores and their lengths stay hidden until you have decided; a line then shows them, unless \
{label.blind} has hidden it.

Both sides scroll together. Three or more completions are ranked: type their digits in order of preference, with \
{label.tie} between equally good ones; the last digit decides."""


def _key(key: str, action: str, description: str, name: str, tooltip: str, *, show: bool = False) -> Binding:
    return Binding(key, action, description, show=show, id=f"label.{name}", tooltip=tooltip)


class LabelPane(Pane):
    """Pane that shows one item of a labelling session at a time, with a key for each decision.

    request: does what a key asks for beyond the session; returns at once. facts_shown: whether authors, scores and
    lengths of an item are shown once it is judged.
    """

    TITLE = "Label"
    patience = SLOW  # seconds that a key waits for the disk before the keys after it are handled
    HELP = _HELP
    DOCS = "labelling"
    BINDINGS: ClassVar[list[BindingType]] = [
        _key("enter", "request('start')", "label", "start", "Begin or resume a session", show=True),
        _key("enter", "keep", "keep label", "keep", "Keep the label, and return to the next item", show=True),
        _key("1,left", "better(1)", "first", "first", "The first (left or above) is better", show=True),
        _key("2,right", "better(2)", "second", "second", "The second (right or below) is better", show=True),
        _key(
            "less_than_sign,exclamation_mark,shift+left",
            "better(1, 3)",
            "first, strongly",
            "first-strongly",
            "The first is strongly better",
        ),
        _key(
            "greater_than_sign,at,shift+right",
            "better(2, 3)",
            "second, strongly",
            "second-strongly",
            "The second is strongly better",
        ),
        *(
            _key(str(n), f"better({n})", f"number {n}", f"number-{n}", f"Rank number {n} next")
            for n in range(3, MOST + 1)
        ),
        _key("equals_sign,e", "tie", "tie", "tie", "Both are equally good; joins two of a ranking", show=True),
        _key("0", "set_aside('both_bad')", "both bad", "both-bad", "None of them is acceptable", show=True),
        _key("space", "set_aside('skip')", "skip", "skip", "Skip this item without a choice", show=True),
        _key("backspace", "take_back", "delete", "take-back", "Delete the last digit of the ranking", show=True),
        _key("r", "rank", "rank again", "rank", "Type the ranking again from its start", show=True),
        _key("u", "undo", "undo", "undo", "Undo the last label; again, the one before", show=True),
        _key("f", "flag", "flag", "flag", "Flag the item for a second look", show=True),
        _key("a", "note", "note", "note", "Write a note, saved with the label", show=True),
        _key("d", "diff", "diff", "diff", "Mark the words that differ", show=True),
        _key("g", "guidelines", "guidelines", "guidelines", "Show the session's guidelines", show=True),
        _key("v", "markdown", "Markdown", "markdown", "Switch between Markdown and plain text"),
        _key("y", "copy", "copy", "copy", "Copy prompt and completions, without what is hidden"),
        _key("b", "blind", "hide facts", "blind", "Hide authors and scores after the choice too, or show them"),
        _key("h", "history", "history", "history", "List your labels, to change one"),
        _key("p", "progress", "figures", "progress", "Show all figures of the session, or one line"),
        _key("l", "request('leave')", "leave", "leave", "Leave the session; it resumes at the same item"),
        _key("t", "request('train')", "train", "train", "Train a reward model on the labels"),
        _key("T", "request('use')", "use model", "use", "Use the newest reward model as the run's reward"),
        _key("i", "request('import')", "import", "import", "Import preferences from a file"),
        _key("x", "request('export')", "export", "export", "Export preferences to a file"),
    ]

    class LabelsChanged(Message):
        """A label was made, changed or undone."""

    def __init__(
        self,
        request: Callable[[LabelRequest], None],
        *,
        id: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(id=id)
        self.session = SessionController(self, clock)
        self._request = request
        self._style = Style()
        self.facts_shown = True
        self._all_figures = False
        self._left: int | None = None  # items to judge, as shown
        self._work: Worker[None] | None = None  # the last change of the session
        self._works_for: SessionThread | None = None
        self._keys: Keys = {}

    def compose(self) -> ComposeResult:
        yield Static(id="label-progress", markup=False)
        yield LabelView(id="label-view")
        yield Static(id="label-last", markup=False)
        yield Static(id="label-problem", markup=False)
        yield Static(id="label-hint", markup=False)

    def on_mount(self) -> None:
        self._read_keys()
        self.show_item()
        self.set_interval(_LOOK, self._look)

    def on_show(self) -> None:
        self._read_keys()
        self.session.come_into_view()

    def on_resize(self, event: Resize) -> None:
        self.set_class(event.size.width < SIDE_BY_SIDE, "-narrow")
        self.call_after_refresh(self.show_lines)  # once the lines have their new size

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        session = self.session
        match action:
            case "request" if parameters[0] == "start":
                return session.thread is None
            case "request" if parameters[0] == "leave":
                return session.thread is not None
            case "keep":
                return session.changes
            case "better" if parameters and parameters[0] not in (1, 2):
                return session.count >= int(str(parameters[0]))
            case "rank" | "take_back":
                return session.count > 2
            case "diff":
                return session.count == 2
            case "flag" | "note" | "markdown" | "copy":
                return session.item is not None
            case "better" | "tie" | "set_aside" | "undo" | "guidelines" | "history" | "progress":
                return session.thread is not None  # also without an item: otherwise space would pause the run
        return True

    def action_request(self, what: LabelRequest) -> None:
        self._request(what)

    def show_item(self) -> None:
        """Show the session's item and its lines, or say that there is none."""
        view, session = self.query_one(LabelView), self.session
        waiting, problem = (session.prefetcher.waiting, session.prefetcher.problem) if session.prefetcher else ("", "")
        if session.texts is not None:
            view.show(session.texts, self._style)
        elif session.state is None:
            meanings = {str(one.id).removeprefix("label."): one.tooltip for one in Binding.make_bindings(self.BINDINGS)}
            view.say(no_session(self._keys, meanings))
        elif session.state.exhausted:
            view.say(all_judged(session.state.progress.done, problem, self._keys))
        else:
            view.say(no_item_yet("another session shows it" if session.state.ahead else waiting, problem))
        self.show_lines()
        self.refresh_keys()

    def show_lines(self) -> None:
        """Show the lines around the item."""
        session, state = self.session, self.session.state
        known = session.progress
        found = figures(state.record.labeller, known) if state and known else []
        self._left = known.left if known else None
        waits = self._left if self._left is not None else state.record.left if state else 0
        self.badge = Badge(str(waits) if waits else "")
        guidelines = [f"guidelines {self._keys['guidelines']}"] if state and state.record.guidelines else []
        progress = self.query_one("#label-progress", Static)
        width, height = progress.size
        all_figures = self._all_figures or self.size.height >= _TALL
        lines = in_lines([*found, *guidelines], width) if all_figures else [fitting(found, guidelines, width)]
        progress.update("\n".join(lines), layout=len(lines) != height)
        self.query_one("#label-hint", Static).update(hints(session, self._style, self._keys), layout=False)
        last = self.query_one("#label-last", Static)
        judged = state.last if state else None
        last.update(last_line(judged, session.item, *last.size, facts=self.facts_shown), layout=False)
        problem = self.query_one("#label-problem", Static)
        if session.problem or problem.display:
            problem.display = bool(session.problem)
            problem.update(session.problem)

    def after_keys(self, callback: Callable[[], None]) -> None:
        """Call back once the screen is painted and all keys typed before that are handled.

        The call takes the way of a key: from the application to the focused widget, and up from widget to widget.
        """

        def pass_on(way: Sequence[MessagePump]) -> None:
            first, *rest = way
            if rest:
                first.call_later(pass_on, rest)
            else:
                first.call_later(callback)

        self.call_after_refresh(pass_on, [self.app, *self.query_one(LabelView).ancestors_with_self])

    def labels_changed(self) -> None:
        self.post_message(self.LabelsChanged())

    def _read_keys(self) -> None:
        """Read the keys of the bindings, as the user has set them."""
        self._keys = {name.removeprefix("label."): key for name, key in keys_of(self).items()}

    def _restyle(self, style: Style) -> None:
        self._style = style
        self.query_one(LabelView).restyle(style)
        self.show_lines()

    def action_diff(self) -> None:
        self._restyle(self._style._replace(diff=not self._style.diff))

    def action_markdown(self) -> None:
        self._restyle(self._style._replace(markdown=not self._style.markdown))

    def action_blind(self) -> None:
        self.facts_shown = not self.facts_shown
        shown = "shown" if self.facts_shown else "hidden"
        self.notify(f"Authors, scores and lengths are {shown} after the choice")
        self.show_lines()

    def action_copy(self) -> None:
        if (texts := self.session.texts) is not None:
            self.copy(copy_text(texts), "prompt and completions")

    def action_progress(self) -> None:
        self._all_figures = not self._all_figures
        self.show_lines()

    def _look(self) -> None:
        if (known := self.session.progress) is not None and known.left != self._left:  # the queues have been counted
            self.show_lines()
        if self.session.lacks_item and not any(one.group == "label-look" for one in self.workers if one.is_running):
            self.run_worker(self.session.look(), group="label-look")

    @property
    def _saving(self) -> bool:
        """Return whether the disk is so slow that keys must wait: they were typed for an item that goes in a moment."""
        return self._work is not None and not self._work.is_finished and self._works_for is self.session.thread

    async def _patiently(self, work: Coroutine[Any, Any, None]) -> None:
        """Let the session `work`, and wait a short while, so that the keys typed ahead find the next item.

        The application handles no key meanwhile. If the disk takes longer, everything but the session goes on.
        """
        if self._saving:
            work.close()
            return
        self._work, self._works_for = self.run_worker(work, group="label"), self.session.thread
        await asyncio.wait([asyncio.ensure_future(_ended(self._work))], timeout=self.patience)

    async def action_better(self, number: int, strength: int = 1) -> None:
        await self._patiently(self.session.better(number, strength))

    async def action_tie(self) -> None:
        await self._patiently(self.session.tie())

    async def action_set_aside(self, verdict: Literal["both_bad", "skip"]) -> None:
        await self._patiently(self.session.set_aside(verdict))

    def action_take_back(self) -> None:
        self._set_ranking(self.session.ranking.taken_back())

    def action_rank(self) -> None:
        self._set_ranking(Ranking())

    def _set_ranking(self, ranking: Ranking) -> None:
        if not self._saving:
            self.session.set_ranking(ranking)

    async def action_undo(self) -> None:
        await self._patiently(self.session.undo())

    async def action_keep(self) -> None:
        await self._patiently(self.session.keep())

    def action_flag(self) -> None:
        if not self._saving:
            self.session.toggle_flag()

    # Dialogs on the session. They open within the action: keys typed ahead then go to the dialog.

    def action_note(self) -> None:
        from workbench.labelling.session_dialogs import NoteScreen

        if self._saving:
            return
        item = self.session.item

        def noted(text: str | None) -> None:
            if text is not None and self.session.item is item:
                self.session.set_note(text)

        self.app.push_screen(NoteScreen(self.session.note), noted)

    def action_guidelines(self) -> None:
        if (thread := self.session.thread) is not None:
            self.app.push_screen(WaitScreen(partial(self._show_guidelines, thread)))

    async def _show_guidelines(self, thread: SessionThread) -> None:
        from workbench.labelling.session_dialogs import GuidelinesScreen

        text = await self.session.answer(thread.guidelines, "Guidelines not loaded", "Still loading...")
        if text:
            self.app.push_screen(GuidelinesScreen(text))
        elif text is not None:
            self.notify("This session has no guidelines; name a text file when you begin one")

    def action_history(self) -> None:
        from workbench.labelling.session_dialogs import LabelHistoryScreen

        async def chosen(position: int | None) -> None:
            if position is not None:
                await self._patiently(self.session.go_to(position))

        if (thread := self.session.thread) is not None:
            self.app.push_screen(LabelHistoryScreen(thread), chosen)


async def _ended(worker: Worker[None]) -> None:
    """Wait until `worker` has ended, well or not; the application reports how."""
    with contextlib.suppress(WorkerError):
        await worker.wait()
