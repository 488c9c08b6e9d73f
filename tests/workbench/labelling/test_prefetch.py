"""Items are ready before they are needed, reach the session in batches, and whatever holds up more is reported."""

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
    """Stand-in that takes items like a session and lets a test wait for events. refuse: an error for a put, or none."""

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
def prefetching(tmp_path: Path) -> Iterator[Callable[..., Prefetcher]]:
    """Make prefetchers, and end them with the test."""
    made: list[Prefetcher] = []

    def make(session: Any, plan: SessionPlan, **context: Any) -> Prefetcher:
        made.append(Prefetcher(session, plan, QueueContext("ann", tmp_path / "preferences.db", **context)))
        return made[-1]

    yield make
    for one in made:
        one.close()
        one.join(60)


def test_twelve_items_are_ahead_from_the_beginning_the_first_at_once(tmp_path: Path, prefetching: Any) -> None:
    session = FakeSession()
    prefetching(session, plan(pair_rows(tmp_path / "pairs.jsonl", 100)))
    session.wait_until(lambda: session.ahead >= LEAST)
    assert session.puts[0] == 1
    assert LEAST == 12


def test_items_stay_ahead_and_are_added_in_pieces(tmp_path: Path, prefetching: Any) -> None:
    session = FakeSession()
    prefetcher = prefetching(session, plan(pair_rows(tmp_path / "pairs.jsonl", 200)))
    for _ in range(150):
        session.wait_until(lambda: session.ahead >= LEAST)
        session.label()
        prefetcher.need(session.ahead)
    session.wait_until(lambda: session.ahead >= LEAST)
    prompts = [item.comparison.prompt for item in session.items]
    assert prompts == [f"question {n}" for n in range(len(prompts))]
    assert len(session.items) <= 150 + 25, "no more than is needed"
    assert len(session.puts) < 60, "not one a label"
    pause = threading.Event()
    assert any(prefetcher.total == 200 or pause.wait(0.05) for _ in range(1200))


def test_labels_given_while_items_are_being_put_are_not_forgotten(tmp_path: Path, prefetching: Any) -> None:
    class Overtaken(FakeSession):
        """Session that labels most items ahead after a put has counted them, before the prefetcher hears of it."""

        def put(self, items: Sequence[Item]) -> Future[Any]:
            counted = super().put(items)
            assert begun.wait(60)
            if self.ahead >= LEAST and self.done == 0:
                self.label(self.ahead)
                prefetcher.need(self.ahead)
            return counted

    session, begun = Overtaken(), threading.Event()
    prefetcher = prefetching(session, plan(pair_rows(tmp_path / "pairs.jsonl", 100)))
    begun.set()
    session.wait_until(lambda: session.done > 0 and session.ahead >= LEAST)


def test_the_limit_includes_existing_items_and_the_session_is_informed(tmp_path: Path, prefetching: Any) -> None:
    session = FakeSession()
    queue = pair_rows(tmp_path / "pairs.jsonl", 100)
    prefetcher = prefetching(session, plan(queue, limit=15))
    session.wait_until(lambda: session.no_more)
    assert len(session.items) == 15
    session.no_more = False
    prefetcher = prefetching(session, plan(queue, limit=18), served={item.comparison.key for item in session.items})
    session.label(15)
    prefetcher.need(0)
    session.wait_until(lambda: session.no_more)
    assert len({item.comparison.key for item in session.items}) == 18
    assert (prefetcher.problem, prefetcher.waiting) == ("", "")


def test_when_everything_was_asked_the_session_is_informed_without_an_error(tmp_path: Path, prefetching: Any) -> None:
    session = FakeSession()
    prefetcher = prefetching(session, plan(pair_rows(tmp_path / "pairs.jsonl", 5)))
    session.wait_until(lambda: session.no_more)
    assert (len(session.items), prefetcher.problem) == (5, "")


def test_the_reason_for_having_no_items_is_reported(tmp_path: Path, prefetching: Any) -> None:
    session = FakeSession()
    prefetcher = prefetching(session, plan(QueuePlan(queue="samples", source=str(tmp_path / "gone"))))
    session.wait_until(lambda: session.no_more)
    prefetcher.join(60)
    assert prefetcher.problem.startswith("no run 'gone' in")
    nothing = pair_rows(tmp_path / "pairs.jsonl", 1)
    served = {item.comparison.key for item in all_items(prefetching, nothing)}
    session = FakeSession()
    prefetcher = prefetching(session, plan(nothing), served=served)
    session.wait_until(lambda: session.no_more)
    prefetcher.join(60)
    assert prefetcher.problem == "ann has judged everything: add another queue"


def all_items(prefetching: Any, queue: QueuePlan) -> list[Item]:
    session = FakeSession()
    prefetching(session, plan(queue))
    session.wait_until(lambda: session.no_more)
    return session.items


def test_a_left_out_queue_is_reported_while_the_others_continue(tmp_path: Path, prefetching: Any) -> None:
    session = FakeSession()
    lost = QueuePlan(queue="samples", source=str(tmp_path / "gone"))
    prefetcher = prefetching(session, plan(lost, pair_rows(tmp_path / "pairs.jsonl", 100)))
    session.wait_until(lambda: session.ahead >= LEAST)
    assert [line[:13] for line in prefetcher.left_out] == ["no run 'gone'"]
    assert prefetcher.problem == ""


def test_waiting_for_a_model_is_reported_and_items_come_once_written(tmp_path: Path, prefetching: Any) -> None:
    asked, may_write = threading.Semaphore(0), threading.Semaphore(0)
    write = answering()

    def ask(question: Any) -> Any:
        if question.writer == "policy":
            asked.release()
            assert may_write.acquire(timeout=60)
        return write(question)

    session = FakeSession()
    run = run_folder(tmp_path / "run", prompts=3, samples=1)
    prefetcher = prefetching(session, plan(of_run("policy-reference", run)), ask=ask)
    assert asked.acquire(timeout=60)
    for number in range(1, 4):
        may_write.release()
        assert asked.acquire(timeout=60), "the next one is asked for before it is needed"
        session.wait_until(lambda number=number: len(session.items) >= number)  # type: ignore[misc]
    wait_for(lambda: prefetcher.waiting == "policy and reference are writing pair 4")
    prefetcher.close()
    may_write.release()


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait for something that notifies nobody when it happens."""
    ticks = threading.Event()
    for _ in range(6000):
        if condition():
            return
        ticks.wait(0.01)
    raise AssertionError("it did not happen within a minute")


def test_a_quick_queue_fills_in_for_a_slow_one_only_where_items_run_short(tmp_path: Path, prefetching: Any) -> None:
    may_write = threading.Event()
    write = answering()

    def ask(question: Any) -> Any:
        assert may_write.wait(60)
        return write(question)

    session = FakeSession()
    run = run_folder(tmp_path / "run", prompts=50, samples=1)
    prefetching(session, plan(of_run("policy-reference", run), pair_rows(tmp_path / "pairs.jsonl", 200)), ask=ask)
    session.wait_until(lambda: session.ahead >= LEAST)
    assert [item.queue for item in session.items].count("dataset") == LEAST + 1
    may_write.set()
    session.wait_until(lambda: session.ahead >= 24)
    assert [item.queue for item in session.items].count("policy-reference") == 12, "of 25 items"


def test_items_of_newer_iterations_come_as_they_are_written(
    tmp_path: Path, prefetching: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LOOK", 0.01)
    session = FakeSession()
    run = run_folder(tmp_path / "run", prompts=2)
    with run.lock():
        prefetcher = prefetching(session, plan(of_run("samples", run)))
        session.wait_until(lambda: len(session.items) == 2)
        wait_for(lambda: prefetcher.waiting == "waiting for the samples of iteration 2")
        assert not session.no_more
        add_samples(run, 2, prompts=3)
        session.wait_until(lambda: len(session.items) == 5)
    session.wait_until(lambda: session.no_more)


def test_a_full_disk_is_reported_and_no_item_is_lost(
    tmp_path: Path, prefetching: Any, monkeypatch: pytest.MonkeyPatch
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

    session = FakeSession(refuse)
    prefetcher = prefetching(session, plan(pair_rows(tmp_path / "pairs.jsonl", 6)))
    assert held.wait(60)
    assert prefetcher.problem == "the disk is full"
    may_go_on.set()
    session.wait_until(lambda: session.no_more)
    assert [item.comparison.prompt for item in session.items] == [f"question {n}" for n in range(6)]
    assert prefetcher.problem == ""


def test_an_item_that_the_store_cannot_keep_is_left_out_and_reported(tmp_path: Path, prefetching: Any) -> None:
    def refuse(items: Sequence[Item]) -> Exception | None:
        wrong = any(item.comparison.prompt == "question 5" for item in items)
        return DataError("an item that cannot be asked") if wrong else None

    session = FakeSession(refuse)
    prefetcher = prefetching(session, plan(pair_rows(tmp_path / "pairs.jsonl", 9)))
    session.wait_until(lambda: session.no_more)
    assert [item.comparison.prompt for item in session.items] == [f"question {n}" for n in range(9) if n != 5]
    assert prefetcher.left_out == ("an item that cannot be asked",)


def test_a_bug_is_reported_and_its_traceback_goes_to_the_log(
    tmp_path: Path, prefetching: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(items: Sequence[Item]) -> Exception | None:
        return RuntimeError("[bold]no[/bold]")

    session = FakeSession(refuse)
    prefetcher = prefetching(session, plan(pair_rows(tmp_path / "pairs.jsonl", 9)))
    session.wait_until(lambda: session.no_more)
    prefetcher.join(60)
    assert prefetcher.problem == "unexpected RuntimeError: [bold]no[/bold]: this is a bug, its traceback is in the log"
    assert "Traceback" in capsys.readouterr().out


def test_closing_ends_it_while_a_model_writes(tmp_path: Path, prefetching: Any) -> None:
    asked, may_write = threading.Event(), threading.Event()

    def ask(question: Any) -> Any:
        asked.set()
        assert may_write.wait(60)
        raise StorageError("too late")

    session = FakeSession()
    run = run_folder(tmp_path / "run", prompts=3, samples=1)
    prefetcher = prefetching(session, plan(of_run("policy-reference", run)), ask=ask)
    assert asked.wait(60)
    prefetcher.close()
    prefetcher.join(60)
    assert not prefetcher._thread.is_alive()
    assert (session.items, session.no_more, prefetcher.problem) == ([], False, "")
    may_write.set()


def test_importing_it_imports_neither_pyarrow_nor_numpy() -> None:
    modules = "workbench.labelling.prefetch, workbench.labelling.reward_processes"
    code = f"import sys, {modules}; print({{'pyarrow', 'numpy'}} & {{*sys.modules}})"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.strip() == "set()"


def test_a_closed_prefetcher_adds_nothing_to_the_next_session(tmp_path: Path, prefetching: Any) -> None:
    drawing, may_draw = threading.Event(), threading.Event()

    def check() -> None:
        if session.items:
            drawing.set()
            assert may_draw.wait(60)

    session = FakeSession()
    prefetcher = prefetching(session, plan(of_run("samples", run_folder(tmp_path / "run", prompts=50))), check=check)
    assert drawing.wait(60)
    before = len(session.items)
    prefetcher.close()
    may_draw.set()
    prefetcher.join(60)
    assert (len(session.items), session.no_more, prefetcher.problem) == (before, False, "")


def test_with_a_session_and_a_store_items_are_labelled_and_repeated(tmp_path: Path, prefetching: Any) -> None:
    planned = plan(pair_rows(tmp_path / "pairs.jsonl", 60), repeats=0.1)
    session = SessionThread(tmp_path / "preferences.db")
    state = session.begin("ann", planned).result()
    prefetcher = prefetching(session, planned)
    while not (state.exhausted and state.current is None):
        if state.current is None:
            state = session.state().result()
            continue
        state = session.label(state.current.position, Judgement.chosen("a")).result()
        prefetcher.need(state.ahead)
    session.close()
    session.join()
    assert prefetcher.problem == ""
    assert (state.record.items, state.record.done) == (66, 66)
    assert state.progress.same.total == 6
