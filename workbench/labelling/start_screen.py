"""Screen that resumes a labelling session or begins a new one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

from rich.text import Text
from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.content import Content
from textual.widgets import Input, OptionList, Select, Static
from textual.widgets.option_list import Option

from trainer.errors import TrainerError, UsageError
from trainer.preferences.items import Queue, SessionRecord
from workbench.kit.dialog import Dialog
from workbench.kit.key_footer import KeyFooter
from workbench.kit.keys import keys_of
from workbench.kit.plain_input import PlainInput
from workbench.labelling.choices import (
    ENSEMBLE,
    QUEUES,
    SessionChoice,
    Wanted,
    labeller_name,
    plan_line,
    read_guidelines,
    session_plan,
    unfinished,
)
from workbench.labelling.guidelines_screen import GuidelinesScreen
from workbench.labelling.queue_list import QueueList
from workbench.text import visible


class LabelStartScreen(Dialog[SessionChoice | None]):
    """Dialog that asks what to label. Its result is the choice; None if it was closed.

    Enter first does what most users want. The dialog stays open until the session has begun. runs: folders of runs that
    keep samples. models: folders of reward models. sessions: those of the store. All three the newest first. wanted:
    initial values of the form. begin: begins the session and returns the problem if that fails, or else "".
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+r", "begin", "begin", id="label-start.begin", tooltip="Begin or go on, from any field"),
        Binding("escape", "close", "close", id="label-start.close", tooltip="Close this and begin nothing"),
    ]
    DEFAULT_CLASSES = "label-form"
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-wide")]
    VERTICAL_BREAKPOINTS = [(0, "-low"), (28, "-high")]

    def __init__(
        self,
        runs: Sequence[Path],
        store: Path,
        labeller: str,
        sessions: Sequence[SessionRecord],
        *,
        models: Sequence[Path] = (),
        wanted: Wanted | None = None,
        begin: Callable[[SessionChoice], Awaitable[str]] | None = None,
    ) -> None:
        super().__init__()
        self._take_up, self._finishing = begin, False
        self._wanted = wanted or Wanted()
        first = [self._wanted.run] if self._wanted.run else []
        self._runs = list(dict.fromkeys([*first, *runs]))
        self._models = self._wanted.models or tuple(models[:ENSEMBLE])
        self._store, self._labeller, self._sessions = store, labeller, sessions
        self._open: list[SessionRecord] = []  # sessions that the labeller can resume
        self._listed: str | None = None  # labeller whose sessions are listed
        self._fields: tuple[object, ...] = ()  # last values of a new session's fields
        self._followed: tuple[object, ...] = ()  # all values at the last update of the status line

    def compose(self) -> ComposeResult:
        wanted = self._wanted
        yield Static(f"Label into {visible(self._store.name)}", markup=False, classes="title one-line")
        with Horizontal(classes="fields"):
            yield Static("labeller", classes="label")
            yield PlainInput(
                visible(self._labeller), compact=True, id="labeller", tooltip="Who judges; kept with each label"
            )
        yield OptionList(markup=False, compact=True, id="starts").with_tooltip("Enter goes on with it, or begins it")
        yield QueueList(self._suggested(), {queue: self._lacking(queue) for queue in QUEUES}).with_tooltip(
            "What a new session asks, in equal shares; space takes one in or leaves it out"
        )
        with Horizontal(classes="fields"):
            yield Static("run", classes="label")
            yield Select(
                [(Text(visible(run.name)), run) for run in self._runs],
                prompt="no run keeps samples yet",
                allow_blank=not self._runs,
                value=self._runs[0] if self._runs else Select.NULL,
                disabled=not self._runs,
                compact=True,
                id="run",
                tooltip="Whose samples are judged, the newest first",
            )
        with Horizontal(classes="fields"):
            yield Static("data", classes="label")
            yield PlainInput(
                visible(wanted.data),
                placeholder="file, folder or datasets name, of pairs",
                compact=True,
                id="data",
                tooltip="Pairs of the queue dataset; what was judged of them before is not shown",
            )
        with Horizontal(classes="fields"):
            yield Static("guidelines", classes="label")
            yield PlainInput(
                visible(wanted.guidelines),
                placeholder="a text file to judge by",
                compact=True,
                id="guidelines",
                tooltip="Shown first, and kept with the labels",
            )
        with Horizontal(classes="fields"):
            yield Static("at most", classes="label")
            yield PlainInput(
                str(wanted.limit or ""),
                placeholder="all",
                type="integer",
                max_length=7,
                compact=True,
                id="limit",
                tooltip="Items of the session; all that there are when left empty",
            )
            yield Static("repeats %", classes="second label")
            yield PlainInput(
                f"{100 * wanted.repeats:g}",
                type="number",
                max_length=5,
                compact=True,
                id="repeats",
                tooltip="Share of items that ask for a label of yours again, sides swapped: how sure you are",
            )
        yield Static(id="status", markup=False)
        yield KeyFooter(palette=False)

    def on_mount(self) -> None:
        self._fields = self._said()
        self._follow()
        nothing = not (self._open or self._runs or self._wanted.data)
        self.query_one("#data" if nothing else "#starts").focus()

    def action_close(self) -> None:
        self.dismiss(None)

    def action_begin(self) -> None:
        """Resume the session under the cursor, or begin the new one."""
        self._follow()  # the key may arrive before the message about a changed field
        try:
            labeller = labeller_name(self._value("labeller"))
            if (session := self._chosen) is not None:
                self._finish(SessionChoice(labeller=labeller, resume=session.id))
                return
            self._begin(labeller, self._asked())
        except UsageError as error:
            self._tell(str(error))

    @work(exclusive=True, group="begin")
    async def _begin(self, labeller: str, wanted: Wanted) -> None:
        self._tell(looking=True)
        try:
            choice = await asyncio.to_thread(_choice, labeller, wanted)
        except TrainerError as error:
            self._tell(str(error))
            return
        self._tell()
        if choice.guidelines and not await self.app.push_screen_wait(GuidelinesScreen(choice.guidelines, begin=True)):
            return
        self._finish(choice)

    @work(group="finish")
    async def _finish(self, choice: SessionChoice) -> None:
        if self._finishing:
            return
        self._finishing = True
        try:
            problem = await self._take_up(choice) if self._take_up is not None else ""
        finally:
            self._finishing = False
        if problem:
            self._tell(problem)
        else:
            self.dismiss(choice)

    # The fields

    @on(OptionList.OptionSelected, "#starts")
    @on(Input.Submitted)
    def _take(self) -> None:
        self.action_begin()

    @on(Input.Changed)
    @on(Select.Changed)
    @on(QueueList.Changed)
    @on(OptionList.OptionHighlighted, "#starts")
    def _follow(self) -> None:
        """List the labeller's sessions and show what enter does; keep list and status line if nothing has changed."""
        labeller, fields = self._value("labeller").strip(), self._said()
        if labeller != self._listed:
            self._list_starts(labeller)
        if fields != self._fields:
            self._ask_anew(fields)
        said = labeller, self._fields, self.query_one("#starts", OptionList).highlighted
        if said != self._followed:
            self._followed = said
            self.workers.cancel_group(self, "begin")
            self._tell()

    def _list_starts(self, labeller: str) -> None:
        """List the labeller's sessions and the new one, with the cursor on the first."""
        self._listed = labeller
        self._open = unfinished(self._sessions, labeller)
        starts = self.query_one("#starts", OptionList)
        starts.clear_options()
        starts.add_options([*map(_session_label, self._open), Option(Content.styled("a new session", "bold"))])
        starts.highlighted = 0

    def _ask_anew(self, fields: tuple[object, ...]) -> None:
        """Move the cursor to the new session, because the user has changed one of its fields."""
        if bool(fields[1]) != bool(self._fields[1]):  # the data
            self.query_one(QueueList).choose("dataset", bool(fields[1]))
        self._fields = self._said()
        self.query_one("#starts", OptionList).highlighted = len(self._open)

    @property
    def _chosen(self) -> SessionRecord | None:
        """Session under the cursor; None for a new one."""
        place = self.query_one("#starts", OptionList).highlighted
        return self._open[place] if place is not None and place < len(self._open) else None

    def _value(self, name: str) -> str:
        return self.query_one(f"#{name}", Input).value

    def _said(self) -> tuple[object, ...]:
        """Return the values of a new session's fields."""
        values = map(self._value, ("data", "guidelines", "limit", "repeats"))
        return self.query_one("#run", Select).value, *values, frozenset(self.query_one(QueueList).chosen)

    def _asked(self) -> Wanted:
        """Return the options of a new session. Raises UsageError if a field is not valid."""
        chosen = self.query_one(QueueList).chosen
        if not chosen:
            key = keys_of(self.query_one(QueueList))["label-start.toggle"]
            raise UsageError(f"no queue is chosen: take one in with {key}, or name data")
        weights = dict(self._wanted.queues)
        run = self.query_one("#run", Select).value
        return Wanted(
            queues=tuple((queue, weights.get(queue, 1.0)) for queue in QUEUES if queue in chosen),
            run=run if isinstance(run, Path) else None,
            data=_as_given(self._value("data").strip(), self._wanted.data),
            models=self._models,
            limit=_number(self._value("limit") or "0", "limit", int),
            repeats=_number(self._value("repeats") or "0", "repeats", float) / 100,
            guidelines=_as_given(self._value("guidelines").strip(), self._wanted.guidelines),
        )

    def _suggested(self) -> set[Queue]:
        if self._wanted.queues:
            return {queue for queue, _ in self._wanted.queues}
        suggested: dict[Queue, bool] = {
            "samples": bool(self._runs),
            "dataset": bool(self._wanted.data) or not self._runs,
        }
        return {queue for queue, is_it in suggested.items() if is_it}

    def _lacking(self, queue: Queue) -> str:
        """Return what `queue` still needs; empty if it can be used."""
        if queue != "dataset" and not self._runs:
            return "needs a run that keeps its samples"
        needed = {"uncertain": 1, "disagreement": 2}.get(queue, 0)
        if len(self._models) < needed:
            return "needs a reward model" if needed == 1 else "needs two reward models"
        return ""

    # Status line

    def _tell(self, problem: str = "", *, looking: bool = False) -> None:
        """Show the problem, the work in progress, or else what enter does."""
        if problem:
            told = Content.styled(f"✖ {visible(problem)}", "$text-error")
        elif looking:
            told = Content.styled("looking at what there is to label…", "$text-accent")
        else:
            session, who = self._chosen, visible(self._value("labeller").strip())
            what = f"goes on with session {session.id}" if session else "begins a new session"
            told = Content.assemble(("enter", "bold"), (f" {what} as {who}", "$text-muted"))
        self.query_one("#status", Static).update(told)


def _choice(labeller: str, wanted: Wanted) -> SessionChoice:
    guidelines = read_guidelines(wanted.guidelines) if wanted.guidelines else ""
    return SessionChoice(labeller=labeller, plan=session_plan(wanted), guidelines=guidelines)


def _session_label(session: SessionRecord) -> Option:
    began = f"{datetime.fromtimestamp(session.began).astimezone():%F %R}"
    done = f"{session.done:,} of {session.plan.limit:,}" if session.plan.limit else f"{session.done:,}"
    facts = f"{done} done   {plan_line(session.plan)}   {began}"
    return Option(Content.assemble((f"go on with {session.id}   ", "bold"), (facts, "$text-muted")))


def _as_given(text: str, given: str) -> str:
    """Return `text`, or the value `given` on the command line if the field still shows that."""
    return given if text == visible(given) else text


def _number(text: str, name: str, kind: Any) -> Any:
    try:
        return kind(text)
    except ValueError:
        raise UsageError(f"{name} = {text}: write a number") from None
