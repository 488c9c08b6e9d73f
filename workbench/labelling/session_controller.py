"""Controller of the open labelling session: the item to judge, and saving the judgement. Knows no screen."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypeVar

from trainer.errors import BusyError, TrainerError, UsageError
from trainer.preferences.items import Progress, SessionItem
from trainer.preferences.records import FLAGGED, Judgement
from workbench.labelling.item_texts import (
    MOST,
    Groups,
    ItemTexts,
    Ranking,
    judgement_text,
    ranked,
    set_aside,
    texts_of,
)
from workbench.text import visible

if TYPE_CHECKING:
    from workbench.labelling.prefetch import Prefetcher
    from workbench.labelling.session_thread import SessionState, SessionThread

T = TypeVar("T")

SLOW = 0.3  # seconds until the pane reports that the disk is slow


class SessionDisplay(Protocol):
    """The part of the label pane that the controller uses."""

    def show_item(self) -> None: ...
    def show_lines(self) -> None: ...
    def labels_changed(self) -> None: ...
    def notify(self, message: str, *, severity: Literal["warning"] = ..., markup: bool = ...) -> None: ...
    def after_keys(self, callback: Callable[[], None]) -> None: ...


class Draft(NamedTuple):
    """State of an item that is not saved yet."""

    ranking: Ranking = Ranking()
    note: str = ""
    flagged: bool = False


class SessionController:
    """Open session on `display`. It awaits each write: later keys wait for the disk in order, and nothing else does."""

    def __init__(self, display: SessionDisplay, clock: Callable[[], float] = time.monotonic) -> None:
        self.thread: SessionThread | None = None
        self.state: SessionState | None = None
        self.prefetcher: Prefetcher | None = None
        self.item: SessionItem | None = None  # the item to judge: the next one, or a labelled one to change
        self.texts: ItemTexts | None = None  # of the item
        self.ranking = Ranking()
        self.note = ""
        self.flagged = False
        self.problem = ""  # why the last judgement is not on disk
        self._display = display
        self._clock = clock
        self._since = 0.0  # when the item came into view
        self._unseen = 0  # calls that changed what is on the screen: keys typed before it is seen judge nothing
        self._loading = False  # nor do keys typed while another item is read
        self._drafts: dict[tuple[int, int, int], Draft] = {}  # of items not shown now, by session, position and label
        self._reported: set[str] = set()  # lines of the prefetcher's `left_out` that were shown

    def begin(self, thread: SessionThread, state: SessionState, prefetcher: Prefetcher | None = None) -> None:
        """Show a session at its current item. prefetcher: adds further items; None if no more come."""
        self.thread, self.prefetcher = thread, prefetcher
        self._take(state)

    def end(self) -> None:
        """Show no session any more."""
        self._put_aside()
        self.item = None
        self.thread = self.state = self.prefetcher = None
        self._open(None)

    @property
    def changes(self) -> bool:
        """Return whether the item already has a label, which a judgement would change."""
        return self.item is not None and self.item.label is not None

    @property
    def count(self) -> int:
        """Number of completions of the item; 0 without one."""
        return len(self.texts.completions) if self.texts else 0

    async def better(self, number: int, strength: int = 1) -> None:
        """Choose `number` as the better of two; with more completions, put it next in the ranking."""
        if self.count > 2:
            await self._rank_next(str(number))
        else:
            first = number - 1
            await self._rank([[first], [1 - first]], strength)

    async def tie(self) -> None:
        """Call all completions as good as each other; in a ranking begun, the last one and the next."""
        if self.ranking.marks:
            await self._rank_next("=")
        else:
            await self._rank([list(range(self.count))])

    async def set_aside(self, verdict: Literal["both_bad", "skip"]) -> None:
        """Save a judgement without a ranking."""
        if self.item is not None:
            await self._judge(set_aside(self.item.item, verdict))

    def set_ranking(self, ranking: Ranking) -> None:
        """Replace what was typed of the ranking."""
        self.ranking = ranking
        self._display.show_lines()

    def toggle_flag(self) -> None:
        """Flag the item, or remove its flag; saved with its label."""
        self.flagged = not self.flagged
        self._display.show_lines()

    def set_note(self, text: str) -> None:
        """Set the note that is saved with the item's label."""
        self.note = text
        self._display.show_lines()

    async def keep(self) -> None:
        """Leave the item's judgement as it is, save a changed note or flag, and go to the next item."""
        label = self.item.label if self.item else None
        if label is None or self.state is None:
            return
        if (self.note, self.flagged) == (label.judgement.note, FLAGGED in label.judgement.flags):
            self._open(self.state.current)
        else:
            await self._save(replace(label.judgement, time=None))

    async def undo(self) -> None:
        """Undo the newest label of the session and show its item again."""
        thread, last = self.thread, self.state.last if self.state else None
        if thread is None or last is None:
            self._display.notify("No label to undo in this session")
            return
        state = await self.answer(thread.undo, "Label not undone", "Still undoing...")
        if state is not None and self.thread is thread:
            self._take(state)
            if self.item is not None and self.item.position == last.position:
                self._restore(last)
                self._display.show_lines()
            self._display.labels_changed()

    async def go_to(self, position: int) -> None:
        """Show a labelled item of the session, to change its label; keys pressed until then judge nothing."""
        if (thread := self.thread) is None:
            return
        self._loading = True
        try:
            load = partial(thread.item, position)
            item = await self.answer(load, f"Item {position + 1} not loaded", "Still loading...")
        finally:
            self._loading = False
        if item is not None and self.thread is thread:
            self._open(item)

    @property
    def progress(self) -> Progress | None:
        """Progress of the session, with the items that its queues still have counted; None without one."""
        if self.state is None:
            return None
        known, total = self.state.progress, self.prefetcher.total if self.prefetcher is not None else None
        if self.state.exhausted or total is None:
            return known
        left = max(total - known.done, self.state.record.left)
        left = left if known.left is None else min(known.left, left)
        return replace(known, left=left, eta_seconds=left / known.per_hour * 3600)

    @property
    def lacks_item(self) -> bool:
        """Return whether there is no item to judge yet."""
        return self.item is None and self.state is not None and not self.state.exhausted

    async def look(self) -> None:
        """Check for a new item, if there is none to judge."""
        thread = self.thread
        if thread is None or not self.lacks_item:
            return
        state = await self.answer(thread.state, "Next item not loaded", "Still loading...")
        if state is not None and self.thread is thread and self.item is None:
            self._take(state)

    def come_into_view(self) -> None:
        """Count the seconds of the item's judgement from now on."""
        self._since = self._clock()

    async def answer(self, call: Callable[[], Future[T]], failure: str, slow: str) -> T | None:
        """Return the result of a call of the thread; if that fails, show `failure` and the reason, and return None.

        While another process holds the store, the call is repeated, with that process shown, until the session is left.
        """
        thread, waiting = self.thread, slow
        answer = asyncio.wrap_future(call())
        done, _ = await asyncio.wait([answer], timeout=SLOW)
        if not done:
            self.problem = slow
            self._display.show_lines()
        try:
            while True:
                try:
                    result = await answer
                    break
                except BusyError as error:
                    if self.thread is not thread:
                        return None
                    self.problem = slow = visible(f"{waiting} ({error})")
                    self._display.show_lines()
                    answer = asyncio.wrap_future(call())
        except TrainerError as error:
            if isinstance(error, UsageError):
                await self._catch_up()
            self.problem = visible(f"✖ {failure}. {' '.join(str(error).split())}")
            self._await_eyes()
            return None
        finally:
            if self.problem == slow:  # also if nobody waits for it any more
                self.problem = ""
                self._await_eyes()
        return result

    async def _rank_next(self, mark: str) -> None:
        if self.count > MOST:
            return
        ranking = self.ranking.typed(mark, self.count)
        if ranking.is_whole(self.count):
            self.ranking = Ranking()  # the user types it again if it cannot be saved
            await self._rank(ranking.groups)
        else:
            self.set_ranking(ranking)

    async def _rank(self, groups: Groups, strength: int = 1) -> None:
        if self.item is not None:
            await self._judge(ranked(self.item.item, groups, strength))

    async def _judge(self, judgement: Judgement) -> None:
        """Save a new judgement of the item, with the seconds that it took."""
        await self._save(replace(judgement, seconds=round(self._clock() - self._since, 3)))

    async def _save(self, judgement: Judgement) -> None:
        """Save the judgement of the item, with its note and flag, and go to the next item."""
        thread, item = self.thread, self.item
        if thread is None or item is None or self._unseen or self._loading:
            return
        judgement = replace(judgement, note=self.note, flags=(FLAGGED,) if self.flagged else ())
        write = partial(thread.relabel if self.changes else thread.label, item.position, judgement)
        choice = judgement_text(item.item, judgement)
        slow = f"Still saving: {choice}. Keys judge nothing until it is on disk"
        state = await self.answer(write, f"Not saved: {choice}", slow)
        if state is not None and self.thread is thread:
            self._take(state)
            self._display.labels_changed()

    async def _catch_up(self) -> None:
        """Go to the session's current item, if another window has labelled this one or changed its label."""
        thread, item = self.thread, self.item
        if thread is None or item is None:
            return
        try:
            state = await asyncio.wrap_future(thread.state())
        except TrainerError:  # keep what is shown
            return
        if self.thread is not thread:
            return
        if self.changes or state.current is None or state.current.position != item.position:
            self._take(state)

    def _await_eyes(self) -> None:
        """Show the lines, and judge nothing by the keys that were typed before they are painted."""
        self._unseen += 1
        self._display.show_lines()
        self._display.after_keys(self._see)

    def _see(self) -> None:
        self._unseen -= 1

    def _take(self, state: SessionState) -> None:
        """Show the current state of the session."""
        self.state = state
        if self.prefetcher is not None:
            self.prefetcher.need(state.ahead)
            for line in self.prefetcher.left_out:
                if line not in self._reported:
                    self._reported.add(line)
                    self._display.notify(visible(line), severity="warning", markup=False)
        self._open(state.current)

    def _open(self, item: SessionItem | None) -> None:
        """Show `item`, with what the user had typed of it before another one was shown."""
        self._put_aside()
        self.item = item
        self.texts = texts_of(item.item) if item is not None else None
        self.problem = ""
        draft = self._drafts.pop(self._key(item), None) if item is not None else None
        self.ranking, self.note, self.flagged = draft or Draft()
        if item is not None and draft is None:
            self._restore(item)
        self.come_into_view()
        self._display.show_item()

    def _put_aside(self) -> None:
        """Keep what is typed of the item on the screen until it returns."""
        if self.item is not None:
            self._drafts[self._key(self.item)] = Draft(self.ranking, self.note, self.flagged)

    def _key(self, item: SessionItem) -> tuple[int, int, int]:
        session = self.state.record.id if self.state is not None else 0
        return session, item.position, item.label.id if item.label is not None else 0

    def _restore(self, item: SessionItem) -> None:
        """Restore note and flag from the item's label."""
        if item.label is not None:
            judgement = item.label.judgement
            self.note, self.flagged = judgement.note, FLAGGED in judgement.flags
