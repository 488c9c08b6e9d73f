"""Screen that resumes a labelling session or begins a new one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from rich.text import Text
from textual import on, work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Container, Vertical
from textual.content import Content
from textual.widgets import Input, OptionList, Select
from textual.widgets.selection_list import Selection

from trainer.errors import TrainerError, UsageError, counted, one_line
from trainer.preferences.records import SessionRecord
from workbench.kit.dialog import ChoiceList
from workbench.kit.keys import bind, hidden_key, keys_of, with_keys
from workbench.labelling.dialogs import LabelForm, columns_field, columns_in, path_field, row, text_field
from workbench.labelling.item_view import LabelView
from workbench.labelling.plans import QUEUES, SessionOptions, UserQueue, first_item, labeller_name, plan_line, planned
from workbench.labelling.texts import texts_of
from workbench.text import aligned, moment, visible

_NAME = max(map(len, QUEUES)) + 1  # columns
_TYPING = 0.2  # seconds without a key after which the first item is looked up


class QueueList(ChoiceList):
    """List of queues that the user includes or leaves out; the screen handles enter."""

    BINDINGS: ClassVar[list[BindingType]] = [
        bind("space", "select", "toggle", "label-start.toggle", "Include this queue, or leave it out"),
        hidden_key("enter", "screen.begin", "begin", "label-start.begin-here", "Begin"),
    ]


class LabelStartScreen(LabelForm[SessionOptions | None]):
    """Dialog that asks what to label. Its result is the session; None if it was closed.

    Enter first does what most users want. The dialog stays open until the session has begun. runs: folders of runs that
    keep samples. sessions: those of the store. Both the newest first. asks: the labeller is a guess, so that field
    comes first. options: initial values of the form. begin: begins the session and returns why that fails, "" if it
    does not, and None if the user cancels.
    """

    TITLE = "Label"
    HELP = (
        "What to label, and by whom. ⏎ on a session of the list resumes it; on the new one, it begins that. Its items "
        "come in equal shares from the marked sources; {label-start.toggle} includes or leaves out the one under the "
        "cursor. tab goes to the next field, {label-start.begin} begins from any of them."
    )
    DOCS = "labelling"
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("ctrl+r", "begin", "begin", "label-start.begin", "Begin or resume (from any field)"),
        bind("escape", "close", "close", "label-start.close", "Close without a session"),
    ]
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (190, "-wide")]
    VERTICAL_BREAKPOINTS = [(0, "-low"), (24, "-middle"), (36, "-high")]

    def __init__(
        self,
        runs: Sequence[Path],
        store: Path,
        sessions: Sequence[SessionRecord],
        *,
        asks: bool = False,
        options: SessionOptions,
        begin: Callable[[SessionOptions], Awaitable[str | None]],
    ) -> None:
        super().__init__(f"Label into {store.name}")
        self._store = store
        self._begin_session = begin
        self._options = options
        first = [self._options.run] if self._options.run else []
        self._runs = list(dict.fromkeys([*first, *runs]))
        self._sessions, self._asks = sessions, asks
        self._open: list[SessionRecord] = []  # sessions that the labeller can resume
        # At the last update: the labeller, the values of a new session's fields, and the place in the list.
        self._followed: tuple[str | None, tuple[object, ...], int | None] = (None, (), None)

    def fields(self) -> ComposeResult:
        with Container(id="body"):
            with Vertical(id="choices"):
                yield from self._choices()
            preview = LabelView(id="preview")
            preview.can_focus, preview.border_title = False, "first item"
            yield preview

    def _choices(self) -> ComposeResult:
        options = self._options
        yield row(("labeller", text_field("labeller", "Your name, saved with each label", options.labeller)))
        starts = OptionList(markup=False, compact=True, id="starts").with_tooltip("Enter begins or resumes the session")
        yield row(("session", starts))
        offered = [queue for queue in QUEUES if queue != "disputed" or options.disputed]
        queues = QueueList(*map(self._queue, offered), compact=True, id="queues")
        about = "Sources of a new session's items, in equal shares; {label-start.toggle} includes or leaves out one"
        yield row(("sources", queues.with_tooltip(with_keys(about, queues))))
        run = Select(
            [(Text(visible(run.name)), run) for run in self._runs],
            prompt="no run has saved samples yet",
            allow_blank=not self._runs,
            value=self._runs[0] if self._runs else Select.NULL,
            disabled=not self._runs,
            compact=True,
            id="run",
            tooltip="Run whose samples you judge, newest first",
        )
        yield row(("run", run))
        about = "Pairs for the queue dataset; those that you judged before are not shown"
        example = "file, folder or datasets name with pairs"
        yield row(("data", path_field("data", about, options.data, placeholder=example)))
        yield row(("columns", columns_field(", ".join(options.columns))))
        about = "Shown first, and saved with the labels"
        yield row(("guidelines", path_field("guidelines", about, options.guidelines, placeholder="a text file")))
        about = "Number of items in the session; empty for all"
        limit = text_field("limit", about, str(options.limit or ""), placeholder="all", type="integer", max_length=7)
        about = "Percent of items that repeat one you labelled, sides swapped: how consistent you are"
        repeats = text_field("repeats", about, f"{100 * options.repeats:g}", type="number", max_length=5)
        yield row(("at most", limit), ("repeat", repeats), unit="% of items")

    def _queue(self, queue: UserQueue) -> Selection[str]:
        """Return a line of the list: what the queue asks, or what it still needs."""
        options, about = self._options, QUEUES[queue]
        lacks = ""
        if queue == "flagged":
            about = f"{counted(len(options.flagged), 'item')} flagged for a second look, once more"
            lacks = "" if options.flagged else "no item is flagged"
        elif queue == "disputed":
            about = f"{counted(len(options.disputed), 'pair')} on which a judge disagrees with the labels"
        elif queue != "dataset" and not self._runs:
            lacks = "needs a run that saves its samples"
        elif queue == "uncertain" and self._options.model is None:
            lacks = "needs a reward model"
        usual = {"samples": bool(self._runs), "dataset": bool(options.data or not self._runs)}
        chosen = queue in dict(options.queues) if options.queues else usual.get(queue, False)
        label = Content.assemble((f"{queue:{_NAME}}", "bold"), lacks or about)
        return Selection(label, queue, chosen and not lacks, disabled=bool(lacks))

    def on_mount(self) -> None:
        self._followed = None, self._values(), None
        self._follow()
        options = self._options
        nothing = not (self._open or self._runs or options.data or options.flagged or options.disputed)
        self.query_one("#labeller" if self._asks else "#data" if nothing else "#starts").focus()

    @on(OptionList.OptionSelected, "#starts")
    @on(Input.Submitted)
    def action_begin(self) -> None:
        """Resume the session under the cursor, or begin the new one."""
        if self.busy or not self._follow():  # the key may arrive before the message about a changed field
            return
        try:
            labeller, session = labeller_name(self.value("labeller")), self._chosen
            self._begin(SessionOptions(labeller=labeller, resume=session.id) if session else self._options_of(labeller))
        except UsageError as error:
            self.show_problem(str(error))

    @work(exclusive=True, group="begin")
    async def _begin(self, options: SessionOptions) -> None:
        if not options.resume:
            self.show_status("Looking for items to label...")
            plan = await self.tried(asyncio.to_thread(planned, options))
            if plan is None:
                return
            options = plan
            self._show_start()
        self.busy = True
        try:
            problem = await self._begin_session(options)
        finally:
            self.busy = False
        if problem:
            self.show_problem(problem)
        elif problem is not None:
            self.dismiss(options)

    @on(Input.Changed)
    @on(Select.Changed)
    @on(QueueList.SelectedChanged)
    @on(OptionList.OptionHighlighted, "#starts")
    def _follow(self) -> bool:
        """List the labeller's sessions and show what enter does; keep list and status line if nothing has changed.

        Return whether there are fields: there are none before the first sight of the dialog, nor once it is dismissed.
        """
        if not self._followed[1] or self not in self.app.screen_stack:
            return False
        labeller, fields = self.value("labeller").strip(), self._values()
        starts = self.query_one("#starts", OptionList)
        listed, known, _ = self._followed
        if labeller != listed:
            self._open = [session for session in self._sessions if session.labeller == labeller and session.left]
            starts.clear_options()
            rows = []
            for one in self._open:
                limit = f" of {one.plan.limit:,}" if one.plan.limit else ""
                rows.append((f"resume {one.id}", f"{one.done:,}{limit} done", moment(one.began), plan_line(one.plan)))
            starts.add_options(map(Content, aligned(rows, left=(0, 3))))
            starts.add_option(Content.styled("new session", "bold"))
            starts.highlighted = 0
        if fields != known:  # the user wants a new session
            if bool(fields[1]) != bool(known[1]):  # the data
                queues = self.query_one(QueueList)
                (queues.select if fields[1] else queues.deselect)("dataset")
                fields = self._values()
            starts.highlighted = len(self._open)
        followed = labeller, fields, starts.highlighted
        if followed != self._followed:
            self._followed = followed
            if not self.busy:
                self.workers.cancel_group(self, "begin")
            self._show_start()
            self._preview()
        return True

    @work(exclusive=True, group="preview")
    async def _preview(self) -> None:
        """Show the first item of a new session, or why it is not known."""
        await asyncio.sleep(_TYPING)
        item = None
        try:
            if self._chosen is not None:
                why = f"Session {self._chosen.id} goes on where it was left"
            else:
                options = self._options_of(self.value("labeller"))
                item, why = await asyncio.to_thread(first_item, options, self._store)
        except TrainerError as error:
            why = one_line(error)
        self.query_one(LabelView).show(texts_of(item) if item else None, [(why, "muted")])

    @property
    def _chosen(self) -> SessionRecord | None:
        """Session under the cursor; None for a new one."""
        place = self.query_one("#starts", OptionList).highlighted
        return self._open[place] if place is not None and place < len(self._open) else None

    def _values(self) -> tuple[object, ...]:
        """Return the values of a new session's fields."""
        values = map(self.value, ("data", "columns", "guidelines", "limit", "repeats"))
        return self.query_one("#run", Select).value, *values, frozenset(self.query_one(QueueList).selected)

    def _options_of(self, labeller: str) -> SessionOptions:
        """Return the options of a new session of `labeller`. Raises UsageError if a field is not valid."""
        chosen = self.query_one(QueueList).selected
        if not chosen:
            key = keys_of(self.query_one(QueueList))["label-start.toggle"]
            raise UsageError(f"no queue is chosen: include one with {key}, or name data")
        given, run = self._options, self.query_one("#run", Select).value
        weights = dict(given.queues)
        return replace(
            given,
            labeller=labeller,
            queues=tuple((queue, weights.get(queue, 1.0)) for queue in QUEUES if queue in chosen),
            run=run if isinstance(run, Path) else None,
            data=self.value("data").strip(),
            columns=columns_in(self.value("columns")),
            limit=_number(self.value("limit") or "0", "limit", int),
            repeats=_number(self.value("repeats") or "0", "repeats", float) / 100,
            guidelines=self.value("guidelines").strip(),
        )

    def _show_start(self) -> None:
        """Show what enter does."""
        session, who = self._chosen, visible(self.value("labeller").strip())
        what = f"resumes session {session.id}" if session else "begins a new session"
        self.show_status(self.hint(("enter", f"{what} as {who}")))


def _number(text: str, name: str, kind: Any) -> Any:
    try:
        return kind(text)
    except ValueError:
        raise UsageError(f"{name} = {text}: write a number") from None
