"""Workplace of a labeller: the desk of a store, the supply of items for its session, and the win rate of a run."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.control.control import Interrupted
from trainer.control.questions import Answer, Question
from workbench.labelling.choices import SessionChoice
from workbench.labelling.desk import DeskState, LabelDesk
from workbench.labelling.scoring import Scoring
from workbench.labelling.supply import Supply
from workbench.labelling.win_rate import WinRate

if TYPE_CHECKING:
    from trainer.preferences.items import SessionPlan

Ask = Callable[[Path, Question], Answer]
"""Function that asks the model of the run in a folder; called on the queues' threads. Raises TrainerError."""


class Workplace:
    """Store at `store` with one labelling session at a time. Call its methods on the screen's thread.

    win_rates: creates the `WinRate` of the run in a folder.
    """

    def __init__(self, store: Path, ask: Ask, win_rates: Callable[[Path], WinRate]) -> None:
        self.store = store
        self.desk = LabelDesk(store)
        self.supply: Supply | None = None
        self._ask = ask
        self._win_rates = win_rates
        self._win_rate: WinRate | None = None
        self._scoring: Scoring | None = None
        self._left = threading.Event()  # set when the open session is left

    async def take_up(self, choice: SessionChoice) -> DeskState:
        """Leave the open session and begin or resume another. Raises TrainerError."""
        self.leave()
        if choice.plan is not None:
            begun = self.desk.begin(choice.labeller, choice.plan, choice.guidelines)
        else:
            assert choice.resume is not None
            begun = self.desk.resume(choice.resume)
        state = await asyncio.wrap_future(begun)
        served = await asyncio.wrap_future(self.desk.served())
        self._supply(state.record.labeller, state.record.plan, served)
        return state

    def labelled(self) -> None:
        """Update the win rate, because labels were made, changed or undone."""
        if self._win_rate is not None:
            self._win_rate.labelled()

    def leave(self) -> None:
        """Leave the session, which gets no more items and can be resumed. Returns at once."""
        for helper in (self.supply, self._scoring, self._win_rate):
            if helper is not None:
                helper.close()
        self.supply = self._scoring = self._win_rate = None
        self._left.set()
        self.desk.leave()

    def close(self) -> None:
        """Leave the session and close the store once all labels are written; returns at once."""
        self.leave()
        self.desk.close()

    def _supply(self, labeller: str, plan: SessionPlan, served: set[str]) -> None:
        from trainer.preferences.queues.context import QueueContext

        run, left = run_of(plan), threading.Event()
        self._left = left

        def ask(question: Question) -> Answer:
            if run is None or left.is_set():  # load no model for a session that is over
                raise Interrupted("the labelling was ended", save=False)
            return self._ask(run, question)

        self._scoring = Scoring()
        context = QueueContext(
            labeller=labeller,
            store=self.store,
            served=served,
            ask=None if run is None else ask,
            score=self._scoring,
        )
        self.supply = Supply(self.desk, plan, context)
        self._win_rate = None if run is None else self._win_rates(run)


def run_of(plan: SessionPlan) -> Path | None:
    """Return the folder of the run that a plan asks about; None if there is none."""
    sources = (queue.source for queue in plan.queues if queue.queue not in ("dataset", "again"))
    return next((Path(source) for source in sources if source), None)
