"""The controller of a labelling session needs no pane: a plain object shows what it reports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from label_session import FakeSession, items

from trainer.errors import BusyError, StorageError
from workbench.labelling.session_controller import SessionController


class PlainDisplay:
    """Record of what the controller reports. painted: to be called once that would be on a screen."""

    def __init__(self) -> None:
        self.reports: list[str] = []
        self.painted: list[Callable[[], None]] = []

    def show_item(self) -> None:
        self.reports.append("item")

    def show_lines(self) -> None:
        self.reports.append("lines")

    def labels_changed(self) -> None:
        self.reports.append("labels changed")

    def notify(self, message: str, **_: Any) -> None:
        self.reports.append(message)

    def after_keys(self, callback: Callable[[], None]) -> None:
        self.painted.append(callback)


async def test_a_judgement_shows_the_next_item_and_reports_the_label() -> None:
    display, session = PlainDisplay(), FakeSession(items(2))
    controller = SessionController(display)
    controller.begin(session, session.now())  # type: ignore[arg-type]
    await controller.better(1)
    assert display.reports == ["item", "item", "labels changed"]
    assert controller.item is not None
    assert controller.item.position == 1


async def test_a_label_waits_for_a_store_that_another_process_holds_and_is_not_lost() -> None:
    display, session = PlainDisplay(), FakeSession(items(2))
    controller = SessionController(display)
    controller.begin(session, session.now())  # type: ignore[arg-type]
    session.refusal, seen = BusyError("'p.db' has been locked by process 7 for 30 s"), []

    def show_lines() -> None:
        seen.append(controller.problem)
        session.refusal = None

    display.show_lines = show_lines  # type: ignore[method-assign]
    await controller.better(1)
    assert seen[0].startswith("Still saving: 1 is better. Keys judge nothing until it is on disk")
    assert "locked by process 7" in seen[0]
    assert len(session.labels) == 1
    assert controller.problem == ""


async def test_a_label_no_longer_waits_once_the_session_is_left() -> None:
    display, session = PlainDisplay(), FakeSession(items(2))
    controller = SessionController(display)
    controller.begin(session, session.now())  # type: ignore[arg-type]
    session.refusal = BusyError("locked")
    display.show_lines = controller.end  # type: ignore[method-assign]
    await controller.better(1)
    assert session.labels == []


async def test_nothing_to_undo_is_a_notice() -> None:
    display = PlainDisplay()
    await SessionController(display).undo()
    assert display.reports == ["No label to undo in this session"]


async def test_a_label_that_is_not_saved_judges_nothing_until_the_user_has_seen_why() -> None:
    display, session = PlainDisplay(), FakeSession(items(2))
    controller = SessionController(display)
    controller.begin(session, session.now())  # type: ignore[arg-type]
    session.refusal = StorageError("disk full")
    await controller.better(1)
    assert "disk full" in controller.problem
    session.refusal = None
    await controller.better(2)
    assert session.labels == []
    for seen in display.painted:
        seen()
    await controller.better(2)
    assert len(session.labels) == 1
