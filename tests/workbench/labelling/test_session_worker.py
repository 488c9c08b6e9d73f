"""The worker of a session answers in order, saves labels or says why not, draws and scores items, reports win rates."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
from label_runs import answering, of_run, pair_rows, plan, run_folder
from reward_model_runs import reward_workspace
from store_damage import alter

from trainer.errors import DataError, Interrupted, ModelError, StorageError, UsageError
from trainer.events import HumanEvaluation, StateChanged
from trainer.preferences.records import Comparison, Item, Judgement, QueuePlan, SessionPlan, Text
from trainer.preferences.sessions import LabelSession
from trainer.preferences.store import PreferenceStore, check_store
from trainer.runs.folder import RunFolder
from trainer.runs.journal import Journal, read_journal
from workbench.labelling import session_worker
from workbench.labelling.session_worker import AHEAD, SessionState, SessionWorker, score
from workbench.system import children

T = TypeVar("T")

PLAN = SessionPlan(queues=())
A, B = Judgement.chosen("a", seconds=2.0), Judgement.chosen("b", seconds=4.0)
LONG = Judgement.chosen("b", note="n" * 99_999)


def items(n: int, start: int = 0) -> list[Item]:
    comparisons = (Comparison(prompt=f"p{number}", completions=("x", "y")) for number in range(start, start + n))
    return [Item(comparison=comparison, queue="samples", order=(1, 0)) for comparison in comparisons]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "preferences.db"


@contextmanager
def opened(path: Path, *arguments: Any) -> Iterator[SessionWorker]:
    worker = SessionWorker(path, *arguments)
    try:
        yield worker
    finally:
        worker.close()
        worker.join(60)


class LimitedStore(PreferenceStore):
    """A store that may have no more than `pages` pages, as on a full disk."""

    pages = 1_000_000

    def transaction(self) -> Any:
        self.connection.execute(f"PRAGMA max_page_count = {self.pages}")
        return super().transaction()


@pytest.fixture
def worker(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SessionWorker]:
    """Return a worker with a session of five items."""
    monkeypatch.setattr(session_worker, "PreferenceStore", LimitedStore)
    with opened(path) as worker:
        worker.begin("ann", PLAN, "Be kind.")
        assert worker.put(items(5)).result().ahead == 4
        yield worker


def label(worker: SessionWorker, position: int, judgement: Judgement = A) -> Future[SessionState]:
    """Label the item at `position`, or change its label."""
    return worker.label(worker.item(position).result(), judgement)


def prompts(path: Path) -> list[Any]:
    """Return the prompts of labels that are not undone, as another reader of the store sees them."""
    with PreferenceStore(path, create=False) as store:
        return [p.comparison.prompt for p in store.preferences(with_skips=True)]


def places(state: SessionState) -> tuple[int | None, int, int | None, int]:
    """Return position of the current item, items behind it, position of the item labelled last, and labels."""
    current, last = state.current, state.last
    return current and current.position, state.ahead, last and last.position, state.record.done


def wait(condition: Callable[[], T]) -> T:
    """Return what the condition does as soon as it holds; fail after five minutes."""
    pause = threading.Event()
    for _ in range(30_000):
        if found := condition():
            return found
        pause.wait(0.01)
    raise AssertionError("it did not happen within five minutes")


def until(worker: SessionWorker, condition: Callable[[SessionState], object]) -> SessionState:
    """Return the worker's state as soon as the condition holds."""
    found = wait(lambda: state if (state := worker.state) is not None and condition(state) else None)
    assert found is not None
    return found


def test_each_answer_is_the_state_of_the_session_at_that_time(path: Path) -> None:
    with opened(path) as worker:
        begun = worker.begin("ann", PLAN, "Be kind.").result()
        assert places(begun) == (None, 0, None, 0)
        assert (begun.record.labeller, begun.record.plan, begun.guidelines) == ("ann", PLAN, "Be kind.")
        assert places(worker.put(items(3)).result()) == (0, 2, None, 0)
        labelled = label(worker, 0, replace(A, time=1000.0)).result()
        assert places(labelled) == (1, 1, 0, 1)
        assert places(label(worker, 2, replace(B, time=1010.0)).result()) == (1, 0, 2, 2)
        changed = label(worker, 0, replace(B, time=1020.0)).result()
        assert places(changed) == (1, 0, 0, 2)
        assert changed.progress.done == 2
        counted = until(worker, lambda state: state.progress.median_seconds == 4).progress
        assert (counted.done, counted.per_hour, counted.streak) == (2, 360, 2)
        assert places(worker.undo().result()) == (0, 1, 2, 1)
        assert [one.position for one in worker.history().result()] == [2]
        assert worker.item(2).result().label is not None
    assert prompts(path) == ["p2"]


def test_calls_are_answered_in_their_order_without_being_waited_for(worker: SessionWorker, path: Path) -> None:
    first, second, third = (worker.item(position).result() for position in range(3))
    calls = [worker.label(first, A), worker.label(second, B), worker.undo(), worker.label(second, A)]
    found = [places(call.result()) for call in [*calls, worker.label(third, B)]]
    assert found == [(1, 3, 0, 1), (2, 2, 1, 2), (1, 3, 0, 1), (2, 2, 1, 2), (3, 1, 2, 3)]
    assert prompts(path) == ["p0", "p1", "p2"]


@pytest.mark.parametrize(
    ("write", "after"),
    [
        (lambda worker: label(worker, 1, LONG), (2, 2, 1, 2)),
        (lambda worker: label(worker, 0, LONG), (1, 3, 0, 1)),
        (lambda worker: worker.put(items(500, start=5)), (1, 503, 0, 1)),
    ],
)
def test_a_write_refused_by_a_full_disk_did_not_happen_and_can_be_repeated(
    worker: SessionWorker,
    path: Path,
    write: Callable[[SessionWorker], Future[SessionState]],
    after: tuple[int, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = label(worker, 0).result()
    monkeypatch.setattr(LimitedStore, "pages", 1)
    with pytest.raises(StorageError, match="the disk is full; free space"):
        write(worker).result()
    assert worker.state is not None
    assert replace(worker.state, progress=before.progress) == before
    monkeypatch.setattr(LimitedStore, "pages", 1_000_000)
    assert places(write(worker).result()) == after
    with PreferenceStore(path) as store:
        assert check_store(store) == []


def test_a_label_after_which_the_session_cannot_be_read_is_refused(worker: SessionWorker, path: Path) -> None:
    alter(path, "UPDATE session_items SET payload = '[]' WHERE position = 1")
    with pytest.raises(StorageError, match="is damaged: item 1 of session 1 cannot be read"):
        label(worker, 0).result()
    assert prompts(path) == []
    alter(path, 'UPDATE session_items SET payload = \'{"verdict":"skip","order_shown":[0,1]}\' WHERE position = 1')
    assert places(label(worker, 0).result()) == (1, 3, 0, 1)


def test_an_item_that_another_window_labelled_is_refused_and_the_next_one_comes(
    worker: SessionWorker, path: Path
) -> None:
    first = worker.item(0).result()
    with opened(path) as other:
        other.resume(1)
        label(other, 0).result()
    with pytest.raises(UsageError, match="item 1 has a label, or was judged in another session: label the next one"):
        worker.label(first, B).result()
    assert places(until(worker, lambda state: state.record.done)) == (1, 3, None, 1)
    assert prompts(path) == ["p0"]


def test_a_decision_is_saved_even_when_nobody_waits_for_it_any_more(worker: SessionWorker, path: Path) -> None:
    go_on, first = threading.Event(), worker.item(0).result()
    worker.undo().add_done_callback(lambda _: go_on.wait(60))  # holds the thread
    decided = worker.label(first, A)
    assert not decided.cancel()
    worker.close()
    assert not decided.done(), "close does not wait"
    go_on.set()
    worker.join()
    assert decided.result().record.done == 1
    assert prompts(path) == ["p0"]
    assert [file.name for file in path.parent.iterdir()] == [path.name], "the store is closed"
    with pytest.raises(UsageError, match="labelling has ended"):
        worker.label(first, A).result()
    worker.close()


# Items ahead of the labeller.


def supplied(worker: SessionWorker) -> list[Item]:
    """Return the items of the session so far."""
    state = worker.state
    assert state is not None
    return [worker.item(position).result().item for position in range(state.record.items)]


def label_all(worker: SessionWorker) -> SessionState:
    while True:
        state = until(worker, lambda state: state.current or state.supply.ended)
        if state.current is None:
            return state
        worker.label(state.current, A).result()


def test_items_stay_ahead_from_the_beginning(path: Path, tmp_path: Path) -> None:
    with opened(path) as worker:
        worker.begin("ann", plan(pair_rows(tmp_path / "pairs.jsonl", 100)))
        for done in range(50):
            state = until(worker, lambda state: state.ahead >= AHEAD)
            assert state.current is not None
            worker.label(state.current, A).result()
            assert state.record.items <= done + 26, "no more than is needed"
        assert AHEAD == 12
        assert state.progress.left is None, "nobody has counted the rows"
        asked = [item.comparison.prompt for item in supplied(worker)]
        assert asked == [f"question {n}" for n in range(len(asked))]
        state = label_all(worker)
        assert (state.record.items, state.progress.left, state.supply.problem) == (100, 0, "")


def test_a_session_with_a_limit_ends_there_also_when_it_is_resumed(path: Path, tmp_path: Path) -> None:
    with opened(path) as worker:
        worker.begin("ann", plan(pair_rows(tmp_path / "pairs.jsonl", 100), limit=15))
        state = until(worker, lambda state: state.ahead >= AHEAD and state.current)
        assert state.progress.left == 15
        assert state.current is not None
        worker.label(state.current, A).result()
        worker.leave()
        worker.resume(1)
        state = label_all(worker)
        assert (state.record.items, state.record.done, state.supply.problem, state.supply.waiting) == (15, 15, "", "")
        assert len({item.comparison.key for item in supplied(worker)}) == 15


def test_the_reason_for_having_no_items_is_reported(path: Path, tmp_path: Path) -> None:
    with opened(path) as worker:
        lost = QueuePlan(queue="samples", source=str(tmp_path / "gone"))
        worker.begin("ann", plan(lost))
        assert until(worker, lambda state: state.supply.ended).supply.problem.startswith("no run 'gone' in")
        worker.begin("ann", plan(lost, pair_rows(tmp_path / "pairs.jsonl", 100)))
        supply = until(worker, lambda state: state.ahead >= AHEAD).supply  # the other queue goes on
        assert [line[:13] for line in supply.left_out] == ["no run 'gone'"]
        assert supply.problem == ""
        for _ in range(2):
            worker.begin("ann", plan(pair_rows(tmp_path / "pair.jsonl", 1, "another question"))).result()
            state = label_all(worker)
        assert state.supply.problem == "ann has judged everything: add another queue"


def test_waiting_for_a_model_is_reported_and_items_come_once_written(path: Path, tmp_path: Path) -> None:
    asked, may_write = threading.Semaphore(0), threading.Semaphore(0)
    write = answering()

    def ask(_: Path, question: Any, left: threading.Event) -> Any:
        if question.writer == "policy":
            asked.release()
            assert may_write.acquire(timeout=300)
        return write(question)

    with opened(path, ask) as worker:
        worker.begin("ann", plan(of_run("policy-reference", run_folder(tmp_path / "run", prompts=3, samples=1))))
        assert asked.acquire(timeout=300)
        for number in range(1, 4):
            may_write.release()
            assert asked.acquire(timeout=300), "the next one is asked for before it is needed"
            until(worker, lambda state: state.record.items >= number)  # noqa: B023
        state = until(worker, lambda state: state.supply.waiting.endswith("pair 4"))
        assert state.supply.waiting == "policy and reference are writing pair 4"
        worker.leave()
        worker.undo().exception()  # the thread goes on although the model has not answered
        assert worker.state is None
        may_write.release()


def test_an_item_waits_for_a_full_disk_and_one_that_the_store_cannot_keep_is_left_out(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_worker, "RETRY", 0.01)
    put, full = LabelSession.put, [True]

    def try_put(session: LabelSession, given: list[Item]) -> None:
        if full[0]:
            raise StorageError("the disk is full")
        if any(item.comparison.prompt == "question 5" for item in given):
            raise DataError("an item that cannot be asked")
        put(session, given)

    monkeypatch.setattr(LabelSession, "put", try_put)
    with opened(path) as worker:
        worker.begin("ann", plan(pair_rows(tmp_path / "pairs.jsonl", 9)))
        until(worker, lambda state: state.supply.problem == "the disk is full")
        full.insert(0, False)
        supply = until(worker, lambda state: state.supply.ended).supply
        assert supply.left_out == ("an item that cannot be asked",)
        asked = [item.comparison.prompt for item in supplied(worker)]
        assert asked == [f"question {n}" for n in range(9) if n != 5]


def broken(*_: object) -> None:
    raise RuntimeError("a bug")


def test_a_bug_in_a_call_is_that_of_the_calls_after_it(worker: SessionWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, item = threading.Event(), worker.item(0).result()
    monkeypatch.setattr(LabelSession, "undo", broken)
    worker.history().add_done_callback(lambda _: go_on.wait(60))  # holds the thread
    calls: list[Future[Any]] = [worker.undo(), worker.label(item, A), worker.history()]
    go_on.set()
    for call in calls:
        with pytest.raises(RuntimeError, match="a bug"):
            call.result(60)
    assert str(worker.bug) == "a bug"


# The win rate of the run that is labelled.


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """Return a finished run whose policy is compared with its reference; counts are made without a pause."""
    monkeypatch.setattr(session_worker, "PAUSE", 0.0)
    monkeypatch.setattr(session_worker, "SHARE", 0)
    folder = run_folder(tmp_path / "run", prompts=30, samples=1)
    journal = Journal(folder.events)
    journal.emit(StateChanged(state="done"))
    journal.close()
    return folder


def win_rates(run: RunFolder) -> list[HumanEvaluation]:
    return [event for event in read_journal(run.events).events if isinstance(event, HumanEvaluation)]


def wins(worker: SessionWorker, number: int) -> None:
    """Prefer the policy in the next `number` pairs."""
    for _ in range(number):
        current = until(worker, lambda state: state.current).current
        assert current is not None
        writers = [origin.writer for origin in current.item.comparison.origins]
        chosen = Judgement.chosen("ab"[writers.index("policy")])  # type: ignore[arg-type]
        worker.label(current, chosen).result()


@contextmanager
def comparing(path: Path, run: RunFolder) -> Iterator[SessionWorker]:
    """Open a session that compares the policy of `run` with its reference."""
    with opened(path, lambda _, question, left: answering()(question)) as worker:
        worker.begin("ann", plan(of_run("policy-reference", run)))
        yield worker


def test_a_changed_win_rate_is_reported_and_the_labels_right_before_the_end_are_counted_together(
    path: Path, run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with comparing(path, run) as worker:
        wins(worker, 1)
        wait(lambda: len(win_rates(run)) == 1)
        wins(worker, 1)
        wait(lambda: len(win_rates(run)) == 2)
        monkeypatch.setattr(session_worker, "PAUSE", 60.0)
        worker.undo().result()
        wait(lambda: len(win_rates(run)) == 3)
        wins(worker, 9)
    assert [(event.comparisons, event.win_rate) for event in win_rates(run)] == [(1, 1), (2, 1), (1, 1), (10, 1)]


def test_a_failed_report_is_shown_and_made_up_for_with_the_next_label(
    path: Path, run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise StorageError("cannot write\nthe journal")

    with comparing(path, run) as worker:
        with monkeypatch.context() as patched:
            patched.setattr(session_worker, "add_event", refuse)
            wins(worker, 1)
            wait(lambda: worker.win_rate_problem == "cannot write the journal")
        wins(worker, 1)
        wait(lambda: not worker.win_rate_problem)
    assert [event.comparisons for event in win_rates(run)] == [2]


def test_the_worker_loads_no_heavy_package() -> None:
    program = "import sys, workbench.labelling.session_worker; print(*{name.partition('.')[0] for name in sys.modules})"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=True)
    assert not {"mlx", "numpy", "pyarrow", "datasets", "textual"} & set(result.stdout.split())


ROWS: list[tuple[Text, Text]] = [("one ", "a\nb\u2028c"), ("one ", "abc"), ("\ud83d[/bold]", "")]


def instead(monkeypatch: pytest.MonkeyPatch, path: Path, program: str) -> None:
    """Call `program` in place of the workbench."""
    path.write_text(f"#!{sys.executable}\nimport json, os, sys, time\n{program}\n")
    path.chmod(0o700)
    monkeypatch.setattr(children, "sys", SimpleNamespace(executable=str(path)))


def test_each_row_gets_the_score_that_the_command_gives_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = """
for line in open(sys.argv[-1]):
    row = json.loads(line)
    print(json.dumps({**row, "score": len(row["completion"]) + 0.5}))
open(sys.argv[0] + ".called", "w").write(" ".join(sys.argv[1:-1]))"""
    instead(monkeypatch, tmp_path / "program", program)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    assert score("runs/rm", ROWS, closing=threading.Event()) == [5.5, 3.5, 0.5]
    assert (tmp_path / "program.called").read_text() == "-P -m workbench reward-model score runs/rm --data"
    assert list((tmp_path / "temporary").iterdir()) == [], "nothing is left behind"


def test_scores_are_the_reward_models_own_for_text_and_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trainer.reward_model.loaded import load_reward_model

    run = reward_workspace(tmp_path)
    rows: list[tuple[Text, Text]] = [("say 1: ", "abca"), ("say 1: ", "hhhh"), ("say 2: ", "a")]
    model = load_reward_model(run)
    scores = score(str(run), rows, closing=threading.Event())
    assert scores == pytest.approx(model.score([model.encode(*row) for row in rows]), abs=1e-5)
    with pytest.raises(ModelError, match="'nowhere' cannot score: no run 'nowhere'"):
        score("nowhere", rows, closing=threading.Event())


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (
            "print('ppo-workbench: error: it is damaged: use another', file=sys.stderr); sys.exit(3)",
            "it is damaged: use",
        ),
        ("sys.exit(9)", "its process ended with code 9"),
        ("os.kill(os.getpid(), 9)", "its process ended with code -9"),
        ("print(json.dumps({'score': 1}))", "did not return 3 scores"),
        ("print('nothing\\n[]\\n{}')", "did not return 3 scores"),
        ("sys.stdout.buffer.write(b'\\xff')", "did not return 3 scores"),
    ],
)
def test_errors_are_reported_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, words: str
) -> None:
    instead(monkeypatch, tmp_path / "program", program)
    with pytest.raises(ModelError, match="reward model 'rm'") as reported:
        score("rm", ROWS, closing=threading.Event())
    assert words in str(reported.value)
    assert "\n" not in str(reported.value)


def test_the_process_has_low_priority_and_ends_when_it_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "pipe")
    program = f"""import signal
while os.nice(0) < 15:
    time.sleep(0.01)
open({str(tmp_path / "pipe")!r}, "w").write(f"{{os.getpid()}} {{os.nice(0)}}")
signal.pause()"""
    instead(monkeypatch, tmp_path / "program", program)
    closing, ended = threading.Event(), list[BaseException]()

    def work() -> None:
        try:
            score("rm", ROWS, closing=closing)
        except Interrupted as error:
            ended.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    pid, niceness = map(int, (tmp_path / "pipe").read_text().split())
    assert niceness >= 15
    closing.set()
    thread.join(60)
    assert isinstance(ended[0], Interrupted)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    with pytest.raises(Interrupted):
        score("rm", ROWS, closing=closing)


def test_rows_that_cannot_be_written_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(StorageError, match="cannot write to the temporary folder: No such file or directory; check"):
        score("rm", ROWS, closing=threading.Event())
