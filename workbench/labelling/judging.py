"""Open labelling session in a pane: the item to judge, and saving the judgement."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from textual.message import Message

from trainer.errors import TrainerError, UsageError
from trainer.preferences.items import SessionItem
from trainer.preferences.records import Judgement
from workbench.kit.pane import Pane
from workbench.labelling.messages import refused
from workbench.labelling.shown import Ranking, Shown, said, shown
from workbench.text import visible

if TYPE_CHECKING:
    from workbench.labelling.desk import DeskState, LabelDesk
    from workbench.labelling.supply import Supply

T = TypeVar("T")

FLAG = "flagged"
_SLOW = 0.5  # seconds until the pane reports that the disk is slow
_LOOK = 0.25  # seconds between checks for the next item, while there is none


class LabelJudging(Pane):
    """Pane that shows a labelling session and saves its labels.

    It awaits each write: later keys wait for the disk in order, and nothing else does.
    """

    class Labelled(Message):
        """A label is on disk."""

        def __init__(self, session_item: SessionItem) -> None:
            super().__init__()
            self.session_item = session_item

    class Undone(Message):
        """The last label was undone."""

    def __init__(self, *, id: str | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(id=id)
        self.desk: LabelDesk | None = None
        self.state: DeskState | None = None
        self.supply: Supply | None = None
        self.item: SessionItem | None = None  # the item to judge: the next one, or a labelled one to change
        self.shown: Shown | None = None  # the item's texts
        self.ranking = Ranking()
        self.note = ""
        self.flagged = False
        self.problem = ""  # why the last judgement is not on disk
        self._clock = clock
        self._since = 0.0  # when the item came into view
        self._problem_unseen = False
        self._told: set[str] = set()  # lines of the supply's `left_out` that were shown

    # Drawn by the pane

    def show_item(self) -> None:
        """Show `item`, or say that there is none."""
        raise NotImplementedError

    def show_lines(self) -> None:
        """Show the lines around the item."""
        raise NotImplementedError

    # The session

    def begin(self, desk: LabelDesk, state: DeskState, supply: Supply | None = None) -> None:
        """Show a session at its current item. supply: adds further items; None if no more come."""
        self.desk, self.supply = desk, supply
        self._take(state)
        if self.display:
            self.take_focus()

    def end(self) -> None:
        """Show no session any more."""
        self.desk = self.state = self.supply = None
        self._open(None)

    @property
    def changes(self) -> bool:
        """Whether the item already has a label, which a judgement would change."""
        return self.item is not None and self.item.label is not None

    def set_note(self, text: str) -> None:
        """Set the note that is saved with the item's label."""
        self.note = text
        self.show_lines()

    async def go_to(self, position: int) -> None:
        """Show a labelled item of the session, to change its label."""
        if (desk := self.desk) is not None:
            item = await self._answer(desk.item(position), f"item {position + 1} cannot be read")
            if item is not None and self.desk is desk:
                self._open(item)

    def keep(self) -> None:
        """Leave the item's label as it is, and go to the next item."""
        if self.state is not None:
            self._open(self.state.current)

    async def judge(self, judgement: Judgement) -> None:
        """Save the judgement of the item, with its note and flag, and go to the next item."""
        desk, item = self.desk, self.item
        if desk is None or item is None or self._problem_unseen:  # keys that were typed before the user saw the problem
            return
        judgement = replace(
            judgement,
            note=self.note,
            flags=(FLAG,) if self.flagged else (),
            seconds=round(self._clock() - self._since, 3),
        )
        write = desk.relabel if self.changes else desk.label
        state = await self._answer(write(item.position, judgement), said(item.item, judgement))
        if state is not None and self.desk is desk:
            self._take(state)
            self.post_message(self.Labelled(replace(item, label=state.last.label if state.last else None)))

    async def undo(self) -> None:
        """Undo the newest label of the session and show its item again."""
        desk, last = self.desk, self.state.last if self.state else None
        if desk is None or last is None:
            self.notify("there is no label to take back in this session")
            return
        state = await self._answer(desk.undo(), "the last label still stands")
        if state is not None and self.desk is desk:
            self._take(state)
            if self.item is not None and self.item.position == last.position:
                self._remember(last)
                self.show_lines()
            self.post_message(self.Undone())

    async def look(self) -> None:
        """Check for a new item, if there is none to judge."""
        desk = self.desk
        if desk is None or self.item is not None or self.state is None or self.state.exhausted:
            return
        state = await self._answer(desk.state(), "the next item cannot be read")
        if state is not None and self.desk is desk and self.item is None:
            self._take(state)

    def on_mount(self) -> None:
        self.set_interval(_LOOK, self.look)

    def on_show(self) -> None:
        self._since = self._clock()

    async def _answer(self, future: Future[T], what: str) -> T | None:
        """Return the desk's answer. If the desk refuses, show `what` and the reason, and return None."""
        answer = asyncio.wrap_future(future)
        done, _ = await asyncio.wait([answer], timeout=_SLOW)
        if not done:
            self.problem = "the disk takes its time …"
            self.show_lines()
        try:
            return await answer
        except TrainerError as error:
            await self._refuse(what, error)
            return None

    async def _refuse(self, what: str, reason: TrainerError) -> None:
        if isinstance(reason, UsageError):
            await self._catch_up()
        self.problem = refused(what, reason)
        self._problem_unseen = True
        self.show_lines()
        self.call_after_refresh(self._see_problem)

    async def _catch_up(self) -> None:
        """Go to the session's current item, if another window has labelled this one or changed its label."""
        item = self.item
        if self.desk is None or item is None:
            return
        try:
            state = await asyncio.wrap_future(self.desk.state())
        except TrainerError:  # keep what is shown
            return
        if self.changes or state.current is None or state.current.position != item.position:
            self._take(state)

    def _see_problem(self) -> None:
        self._problem_unseen = False

    def _take(self, state: DeskState) -> None:
        """Show the current state of the session."""
        self.state = state
        if self.supply is not None:
            self.supply.need(state.ahead)
            for line in self.supply.left_out:
                if line not in self._told:
                    self._told.add(line)
                    self.notify(visible(line), severity="warning", markup=False)
        self._open(state.current)

    def _open(self, item: SessionItem | None) -> None:
        self.item = item
        self.shown = shown(item.item) if item is not None else None
        self.ranking, self.note, self.flagged, self.problem = Ranking(), "", False, ""
        if item is not None:
            self._remember(item)
        self._since = self._clock()
        self.show_item()

    def _remember(self, item: SessionItem) -> None:
        """Restore note and flag from the item's label."""
        if item.label is not None:
            judgement = item.label.judgement
            self.note, self.flagged = judgement.note, FLAG in judgement.flags
