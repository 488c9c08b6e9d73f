"""A session that keeps labels in memory and answers, refuses or waits as a test asks; items; the pane in an app."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from styles_helper import styles_path
from textual.app import ComposeResult
from textual.pilot import Pilot
from textual.widgets import Static

from trainer.errors import TrainerError
from trainer.preferences.records import (
    Comparison,
    Item,
    Judgement,
    Origin,
    Preference,
    Progress,
    Queue,
    SessionItem,
    SessionPlan,
    SessionRecord,
    Share,
    Text,
)
from workbench.kit.footer import KeyFooter
from workbench.kit.theming import ThemedApp
from workbench.labelling.pane import LabelPane
from workbench.labelling.session_worker import SessionState, SessionWorker, SupplyReport

NOTHING = Share(0, 0, math.nan, math.nan, math.nan)


def item(
    *completions: Text,
    prompt: Text = "Why is the sky blue?",
    order: Sequence[int] = (),
    origins: tuple[Origin, ...] = (),
    columns: dict[str, Any] | None = None,
    queue: Queue = "samples",
) -> Item:
    """Return an item; its completions keep their order unless an order is given."""
    completions = completions or ("Because of the air.", "Rayleigh scattering.")
    comparison = Comparison(prompt=prompt, completions=completions, origins=origins, columns=columns or {})
    return Item(comparison=comparison, queue=queue, order=tuple(order) or tuple(range(len(completions))))


def items(count: int) -> list[Item]:
    """Return pairs that differ in every text."""
    return [item(f"left {n}", f"right {n}", prompt=f"prompt {n}") for n in range(count)]


class FakeSession:
    """Stand-in for SessionWorker, as far as the pane uses it.

    refusal: error of the next writes, until it is None again. held: a list in which answers wait for the test. figures,
    facts: what differs in the progress and in the state.
    """

    def __init__(self, given: Sequence[Item], *, guidelines: str = "", limit: int = 0, **facts: Any) -> None:
        self.items = [SessionItem(position=place, item=one) for place, one in enumerate(given)]
        self.labels: list[tuple[int, Preference]] = []  # labels that are not undone, oldest first
        self.refusal: TrainerError | None = None
        self.held: list[Callable[[], None]] | None = None
        self.calls: list[str] = []
        self.figures: dict[str, Any] = {}
        self.facts: dict[str, Any] = {"ended": True, **facts}
        self.state: SessionState | None = None
        self._text, self._guidelines, self._limit, self._ids = guidelines, guidelines and "hash", limit, 0
        self.now()

    @property
    def judgements(self) -> dict[int, Judgement]:
        return {position: label.judgement for position, label in self.labels}

    def now(self) -> SessionState:
        standing = dict(self.labels)
        unlabelled = [one for one in self.items if one.position not in standing]
        last = self.labels[-1] if self.labels else None
        figures: dict[str, Any] = {"done": len(standing), "left": len(unlabelled), "streak": 0}
        figures |= dict.fromkeys(("per_hour", "median_seconds", "eta_seconds", "kappa"), math.nan)
        figures |= dict.fromkeys(("left_side", "longer", "same"), NOTHING)
        self.state = SessionState(
            record=SessionRecord(
                id=1,
                labeller="ann",
                plan=SessionPlan(queues=(), limit=self._limit),
                guidelines=self._guidelines,
                began=0.0,
                items=len(self.items),
                done=len(standing),
            ),
            current=unlabelled[0] if unlabelled else None,
            ahead=max(len(unlabelled) - 1, 0),
            progress=Progress(**figures | self.figures),
            last=replace(self.items[last[0]], label=last[1]) if last else None,
            guidelines=self._text,
            supply=SupplyReport(**self.facts),
        )
        return self.state

    def report(self, **facts: Any) -> None:
        """Change the state, as the worker does by itself."""
        self.facts |= facts
        self.now()

    def put(self, given: Sequence[Item]) -> None:
        start = len(self.items)
        self.items += [SessionItem(position=start + place, item=one) for place, one in enumerate(given)]
        self.now()

    def label(self, one: SessionItem, judgement: Judgement) -> Future[SessionState]:
        self.calls.append(f"{'label' if one.label is None else 'relabel'} {one.position}")

        def work() -> SessionState:
            self._refuse()
            self.labels = [label for label in self.labels if label[0] != one.position]
            self._ids += 1
            label = Preference(comparison=one.item.comparison, judgement=judgement, id=self._ids)
            self.labels.append((one.position, label))
            return self.now()

        return self._answer(work)

    def undo(self) -> Future[SessionState]:
        self.calls.append("undo")

        def work() -> SessionState:
            self._refuse()
            self.labels.pop()
            return self.now()

        return self._answer(work)

    def history(self, limit: int = 200, before: int | None = None) -> Future[list[SessionItem]]:
        return self._answer(lambda: [replace(self.items[at], label=label) for at, label in reversed(self.labels)])

    def item(self, position: int) -> Future[SessionItem]:
        return self._answer(lambda: replace(self.items[position], label=dict(self.labels).get(position)))

    def _refuse(self) -> None:
        if self.refusal is not None:
            raise self.refusal

    def _answer(self, work: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()

        def settle() -> None:
            try:
                future.set_result(work())
            except TrainerError as error:
                future.set_exception(error)

        settle() if self.held is None else self.held.append(settle)
        return future


class Labelling(ThemedApp[None]):
    """The pane alone, with the footer."""

    CSS_PATH = styles_path("app.tcss", "dialogs.tcss", "label.tcss", "label_screens.tcss")

    def __init__(self) -> None:
        super().__init__()
        self.animation_level = "none"
        self.seconds = 0.0
        self.requested: list[str] = []  # requests of the pane to the screen
        self.notified: list[str] = []
        self.pane = LabelPane(self.requested.append, id="label", clock=lambda: self.seconds)
        self.pane.flash = 0

    def compose(self) -> ComposeResult:
        yield self.pane
        yield KeyFooter()

    def on_mount(self) -> None:
        self.pane.border_title = "Label F5"
        self.pane.take_focus()

    def notify(self, message: str, **options: Any) -> None:
        self.notified.append(str(message))
        super().notify(message, **options)

    def reported(self, name: str) -> str:
        """Return the text of one line of the pane."""
        widget = self.query_one(f"#label-{name}", Static)
        return str(widget.render()) if widget.display else ""

    @property
    def text(self) -> str:
        """Return the terminal's text, line by line."""
        strips = self.screen._compositor.render_strips()
        return "\n".join("".join(segment.text for segment in strip).rstrip() for strip in strips)


@asynccontextmanager
async def labelling(
    session: Any = None,
    *,
    size: tuple[int, int] = (120, 40),
    state: SessionState | None = None,
    patience: float = 30,
) -> AsyncIterator[tuple[Labelling, Pilot[None]]]:
    """Open the pane, with a session under way if there is one. state: of a real session.

    patience: seconds that a key waits for the session before the keys after it are handled.
    """
    app = Labelling()
    app.pane.patience = patience
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        if session is not None:
            app.pane.begin(session, state or session.now())
            await pilot.pause()
        yield app, pilot


@contextmanager
def kept_session(
    path: Path, given: Sequence[Item], guidelines: str = ""
) -> Iterator[tuple[SessionWorker, SessionState]]:
    """Begin a session with these items in the store at `path`; close it at the end."""
    worker = SessionWorker(path)
    try:
        worker.begin("ann", SessionPlan(queues=()), guidelines).result()
        yield worker, worker.put(given).result()
    finally:
        worker.close()
        worker.join()


async def until(condition: Callable[[], bool]) -> None:
    """Let the application work until the condition holds; an assertion fails after five minutes.

    Unlike the pilot's `pause` it does not wait for the application, which may be waiting for the session.
    """
    for _ in range(15_000):
        if condition():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("the condition did not come about within five minutes")
