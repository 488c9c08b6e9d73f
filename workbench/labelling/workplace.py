"""Where labels are made: the desk of a store, what brings the items of its session, and what its labels go to."""

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
"""What the model of the run in a folder writes; called on threads of the queues. Raises TrainerError."""


class Workplace:
    """The store at `store`, and one labelling session at a time. Its methods are called on the screen's thread.

    win_rates: makes what counts the labels that compare the policy of the run in a folder with its reference.
    """

    def __init__(self, store: Path, ask: Ask, win_rates: Callable[[Path], WinRate]) -> None:
        self.store = store
        self.desk = LabelDesk(store)
        self.supply: Supply | None = None
        self._ask = ask
        self._win_rates = win_rates
        self._win_rate: WinRate | None = None
        self._scoring: Scoring | None = None
        self._left = threading.Event()  # of the session under way

    async def take_up(self, choice: SessionChoice) -> DeskState:
        """Begin a session, or go on with one; the one under way is left. Raises TrainerError."""
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
        """Labels were made, changed or taken back."""
        if self._win_rate is not None:
            self._win_rate.labelled()

    def leave(self) -> None:
        """Bring no more items to the session; it can be gone on with. Returns at once."""
        for helper in (self.supply, self._scoring, self._win_rate):
            if helper is not None:
                helper.close()
        self.supply = self._scoring = self._win_rate = None
        self._left.set()
        self.desk.leave()

    def close(self) -> None:
        """Let go of the store, once what was said is written; returns at once."""
        self.leave()
        self.desk.close()

    def _supply(self, labeller: str, plan: SessionPlan, served: set[str]) -> None:
        from trainer.preferences.queues.context import QueueContext

        run, left = run_of(plan), threading.Event()
        self._left = left

        def ask(question: Question) -> Answer:
            if run is None or left.is_set():  # nor load a model for a session that is over
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
    """The folder of the run that a plan asks about; None where it asks about none."""
    sources = (queue.source for queue in plan.queues if queue.queue not in ("dataset", "again"))
    return next((Path(source) for source in sources if source), None)
