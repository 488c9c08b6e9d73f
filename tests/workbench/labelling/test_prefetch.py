"""Items are there before they are needed, go to the desk in pieces, and what keeps more from coming is told."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from label_runs import add_samples, answering, of_run, pair_rows, plan, run_folder

from trainer.errors import DataError, StorageError
from trainer.preferences.items import Item, QueuePlan, SessionPlan
from trainer.preferences.queues import QueueContext
from trainer.preferences.records import Judgement
from workbench.labelling import prefetch as module
from workbench.labelling.prefetch import LEAST, Prefetcher
from workbench.labelling.session_thread import SessionThread


class FakeSession:
    """Takes items as a desk does, and lets a test wait for what happens. refuse: an error for a put, or none."""

    def __init__(self, refuse: Callable[[Sequence[Item]], Exception | None] = lambda items: None) -> None:
        self.items: list[Item] = []
        self.puts: list[int] = []
        self.done = 0
        self.no_more = False
        self.refuse = refuse
        self._changed = threading.Condition()

    def state(self) -> Future[Any]:
        return self._answer(None)

    def put(self, items: Sequence[Item]) -> Future[Any]:
        if (error := self.refuse(items)) is not None:
            with self._changed:
                self._changed.notify_all()
            return self._answer(error)
        with self._changed:
            self.items += items
            self.puts.append(len(items))
            self._changed.notify_all()
        return self._answer(None)

    def exhausted(self) -> None:
        with self._changed:
            self.no_more = True
            self._changed.notify_all()

    @property
    def ahead(self) -> int:
        return max(len(self.items) - self.done - 1, 0)

    def label(self, count: int = 1) -> None:
        self.done += count

    def wait_until(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            while not condition():
                assert self._changed.wait(60)

    def _answer(self, error: Exception | None) -> Future[Any]:
        future: Future[Any] = Future()
        if error is not None:
            future.set_exception(error)
        else:
            record = SimpleNamespace(items=len(self.items), elsewhere=0)
            future.set_result(SimpleNamespace(ahead=self.ahead, record=record))
        return future


@pytest.fixture
def supplied(tmp_path: Path) -> Iterator[Callable[..., Prefetcher]]:
    """Makes supplies, and ends them with the test."""
    made: list[Prefetcher] = []

    def make(desk: Any, plan: SessionPlan, **context: Any) -> Prefetcher:
        made.append(Prefetcher(desk, plan, QueueContext("ann", tmp_path / "preferences.db", **context)))
        return made[-1]

    yield make
    for one in made:
        one.close()
        one.join(60)


def test_twelve_items_are_ahead_from_the_beginning_the_first_at_once(tmp_path: Path, supplied: Any) -> None:
    desk = FakeSession()
    supplied(desk, plan(pair_rows(tmp_path / "pairs.jsonl", 100)))
    desk.wait_until(lambda: desk.ahead >= LEAST)
    assert desk.puts[0] == 1
    assert LEAST == 12


def test_they_stay_ahead_and_are_put_in_pieces(tmp_path: Path, supplied: Any) -> None:
    desk = FakeSession()
    supply = supplied(desk, plan(pair_rows(tmp_path / "pairs.jsonl", 200)))
    for _ in range(150):
        desk.wait_until(lambda: desk.ahead >= LEAST)
        desk.label()
        supply.need(desk.ahead)
    desk.wait_until(lambda: desk.ahead >= LEAST)
    prompts = [item.comparison.prompt for item in desk.items]
    assert prompts == [f"question {n}" for n in range(len(prompts))]
    assert len(desk.items) <= 150 + 25, "no more than is needed"
    assert len(desk.puts) < 60, "not one a label"


def test_labels_given_while_items_are_being_put_are_not_forgotten(tmp_path: Path, supplied: Any) -> None:
    class Overtaken(FakeSession):
        """Labels most of what is ahead after a put has counted it, before the prefetcher hears of the count."""

        def put(self, items: Sequence[Item]) -> Future[Any]:
            counted = super().put(items)
            assert begun.wait(60)
            if self.ahead >= LEAST and self.done == 0:
                self.label(self.ahead)
                supply.need(self.ahead)
            return counted

    desk, begun = Overtaken(), threading.Event()
    supply = supplied(desk, plan(pair_rows(tmp_path / "pairs.jsonl", 100)))
    begun.set()
    desk.wait_until(lambda: desk.done > 0 and desk.ahead >= LEAST)


def test_the_limit_holds_also_for_what_was_there_and_the_desk_is_told(tmp_path: Path, supplied: Any) -> None:
    desk = FakeSession()
    queue = pair_rows(tmp_path / "pairs.jsonl", 100)
    supply = supplied(desk, plan(queue, limit=15))
    desk.wait_until(lambda: desk.no_more)
    assert len(desk.items) == 15
    desk.no_more = False
    supply = supplied(desk, plan(queue, limit=18), served={item.comparison.key for item in desk.items})
    desk.label(15)
    supply.need(0)
    desk.wait_until(lambda: desk.no_more)
    assert len({item.comparison.key for item in desk.items}) == 18
    assert (supply.problem, supply.waiting) == ("", "")


def test_when_all_was_asked_the_desk_is_told_and_nothing_is_wrong(tmp_path: Path, supplied: Any) -> None:
    desk = FakeSession()
    supply = supplied(desk, plan(pair_rows(tmp_path / "pairs.jsonl", 5)))
    desk.wait_until(lambda: desk.no_more)
    assert (len(desk.items), supply.problem) == (5, "")


def test_why_there_is_nothing_is_told(tmp_path: Path, supplied: Any) -> None:
    desk = FakeSession()
    supply = supplied(desk, plan(QueuePlan(queue="samples", source=str(tmp_path / "gone"))))
    desk.wait_until(lambda: desk.no_more)
    supply.join(60)
    assert supply.problem.startswith("no run 'gone' in")
    nothing = pair_rows(tmp_path / "pairs.jsonl", 1)
    served = {item.comparison.key for item in all_items(supplied, nothing)}
    desk = FakeSession()
    supply = supplied(desk, plan(nothing), served=served)
    desk.wait_until(lambda: desk.no_more)
    supply.join(60)
    assert supply.problem == "ann has judged everything: add another queue"


def all_items(supplied: Any, queue: QueuePlan) -> list[Item]:
    desk = FakeSession()
    supplied(desk, plan(queue))
    desk.wait_until(lambda: desk.no_more)
    return desk.items


def test_a_queue_that_is_left_out_is_told_while_the_others_go_on(tmp_path: Path, supplied: Any) -> None:
    desk = FakeSession()
    lost = QueuePlan(queue="samples", source=str(tmp_path / "gone"))
    supply = supplied(desk, plan(lost, pair_rows(tmp_path / "pairs.jsonl", 100)))
    desk.wait_until(lambda: desk.ahead >= LEAST)
    assert [line[:13] for line in supply.left_out] == ["no run 'gone'"]
    assert supply.problem == ""


def test_what_a_model_writes_is_told_and_comes_when_it_is_written(tmp_path: Path, supplied: Any) -> None:
    asked, may_write = threading.Semaphore(0), threading.Semaphore(0)
    write = answering()

    def ask(question: Any) -> Any:
        if question.writer == "policy":
            asked.release()
            assert may_write.acquire(timeout=60)
        return write(question)

    desk = FakeSession()
    run = run_folder(tmp_path / "run", prompts=3, samples=1)
    supply = supplied(desk, plan(of_run("policy-reference", run)), ask=ask)
    assert asked.acquire(timeout=60)
    for number in range(1, 4):
        may_write.release()
        assert asked.acquire(timeout=60), "the next one is asked for before it is needed"
        desk.wait_until(lambda number=number: len(desk.items) >= number)  # type: ignore[misc]
    wait_for(lambda: supply.waiting == "policy and reference are writing pair 4")
    supply.close()
    may_write.release()


def wait_for(condition: Callable[[], bool]) -> None:
    """For what tells nobody when it happens."""
    ticks = threading.Event()
    for _ in range(6000):
        if condition():
            return
        ticks.wait(0.01)
    raise AssertionError("it did not happen within a minute")


def test_a_quick_queue_fills_in_for_a_slow_one_only_where_items_run_short(tmp_path: Path, supplied: Any) -> None:
    may_write = threading.Event()
    write = answering()

    def ask(question: Any) -> Any:
        assert may_write.wait(60)
        return write(question)

    desk = FakeSession()
    run = run_folder(tmp_path / "run", prompts=50, samples=1)
    supplied(desk, plan(of_run("policy-reference", run), pair_rows(tmp_path / "pairs.jsonl", 200)), ask=ask)
    desk.wait_until(lambda: desk.ahead >= LEAST)
    assert [item.queue for item in desk.items].count("dataset") == LEAST + 1
    may_write.set()
    desk.wait_until(lambda: desk.ahead >= 24)
    assert [item.queue for item in desk.items].count("policy-reference") == 12, "of 25 items"


def test_items_of_newer_iterations_come_as_they_are_written(
    tmp_path: Path, supplied: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LOOK", 0.01)
    desk = FakeSession()
    run = run_folder(tmp_path / "run", prompts=2)
    with run.lock():
        supply = supplied(desk, plan(of_run("samples", run)))
        desk.wait_until(lambda: len(desk.items) == 2)
        wait_for(lambda: supply.waiting == "waiting for the samples of iteration 2")
        assert not desk.no_more
        add_samples(run, 2, prompts=3)
        desk.wait_until(lambda: len(desk.items) == 5)
    desk.wait_until(lambda: desk.no_more)


def test_a_full_disk_is_told_and_no_item_is_lost(
    tmp_path: Path, supplied: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_RETRY", 0.01)
    errors: list[Exception | None] = [None, StorageError("the disk is full"), StorageError("the disk is full")]
    held, may_go_on = threading.Event(), threading.Event()

    def refuse(items: Sequence[Item]) -> Exception | None:
        error = errors.pop(0) if errors else None
        if not errors:
            held.set()
            assert may_go_on.wait(60)
        return error

    desk = FakeSession(refuse)
    supply = supplied(desk, plan(pair_rows(tmp_path / "pairs.jsonl", 6)))
    assert held.wait(60)
    assert supply.problem == "the disk is full"
    may_go_on.set()
    desk.wait_until(lambda: desk.no_more)
    assert [item.comparison.prompt for item in desk.items] == [f"question {n}" for n in range(6)]
    assert supply.problem == ""


def test_an_item_that_the_store_cannot_keep_is_left_out_and_told(tmp_path: Path, supplied: Any) -> None:
    def refuse(items: Sequence[Item]) -> Exception | None:
        wrong = any(item.comparison.prompt == "question 5" for item in items)
        return DataError("an item that cannot be asked") if wrong else None

    desk = FakeSession(refuse)
    supply = supplied(desk, plan(pair_rows(tmp_path / "pairs.jsonl", 9)))
    desk.wait_until(lambda: desk.no_more)
    assert [item.comparison.prompt for item in desk.items] == [f"question {n}" for n in range(9) if n != 5]
    assert supply.left_out == ("an item that cannot be asked",)


def test_a_bug_is_told_and_its_traceback_goes_to_the_log(
    tmp_path: Path, supplied: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(items: Sequence[Item]) -> Exception | None:
        return RuntimeError("[bold]no[/bold]")

    desk = FakeSession(refuse)
    supply = supplied(desk, plan(pair_rows(tmp_path / "pairs.jsonl", 9)))
    desk.wait_until(lambda: desk.no_more)
    supply.join(60)
    assert supply.problem == "unexpected RuntimeError: [bold]no[/bold]: this is a bug, its traceback is in the log"
    assert "Traceback" in capsys.readouterr().out


def test_closing_ends_it_while_a_model_writes(tmp_path: Path, supplied: Any) -> None:
    asked, may_write = threading.Event(), threading.Event()

    def ask(question: Any) -> Any:
        asked.set()
        assert may_write.wait(60)
        raise StorageError("too late")

    desk = FakeSession()
    run = run_folder(tmp_path / "run", prompts=3, samples=1)
    supply = supplied(desk, plan(of_run("policy-reference", run)), ask=ask)
    assert asked.wait(60)
    supply.close()
    supply.join(60)
    assert not supply._thread.is_alive()
    assert (desk.items, desk.no_more, supply.problem) == ([], False, "")
    may_write.set()


def test_importing_it_imports_neither_pyarrow_nor_numpy() -> None:
    modules = "workbench.labelling.prefetch, workbench.labelling.reward_processes"
    code = f"import sys, {modules}; print({{'pyarrow', 'numpy'}} & {{*sys.modules}})"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.strip() == "set()"


def test_once_closed_it_puts_nothing_into_the_session_that_comes_after(tmp_path: Path, supplied: Any) -> None:
    drawing, may_draw = threading.Event(), threading.Event()

    def check() -> None:
        if desk.items:
            drawing.set()
            assert may_draw.wait(60)

    desk = FakeSession()
    supply = supplied(desk, plan(of_run("samples", run_folder(tmp_path / "run", prompts=50))), check=check)
    assert drawing.wait(60)
    before = len(desk.items)
    supply.close()
    may_draw.set()
    supply.join(60)
    assert (len(desk.items), desk.no_more, supply.problem) == (before, False, "")


def test_with_a_desk_and_a_store_items_are_labelled_and_repeated(tmp_path: Path, supplied: Any) -> None:
    session = plan(pair_rows(tmp_path / "pairs.jsonl", 60), repeats=0.1)
    desk = SessionThread(tmp_path / "preferences.db")
    state = desk.begin("ann", session).result()
    supply = supplied(desk, session)
    while not (state.exhausted and state.current is None):
        if state.current is None:
            state = desk.state().result()
            continue
        state = desk.label(state.current.position, Judgement.chosen("a")).result()
        supply.need(state.ahead)
    desk.close()
    desk.join()
    assert supply.problem == ""
    assert (state.record.items, state.record.done) == (66, 66)
    assert state.progress.same.total == 6
