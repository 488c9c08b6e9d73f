"""The session thread answers in order, saves what it is given or says why not, and resumes where it was."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from apart import ROOT
from store_damage import alter

from trainer.errors import StorageError, UsageError
from trainer.preferences import connection
from trainer.preferences.items import Item, QueuePlan, SessionPlan
from trainer.preferences.migrations import VERSION
from trainer.preferences.records import Comparison, Judgement
from trainer.preferences.store import PreferenceStore
from workbench.labelling.session_thread import SessionState, SessionThread

PLAN = SessionPlan(queues=(QueuePlan(queue="samples"),))
A, B = Judgement.chosen("a", seconds=2.0), Judgement.chosen("b", seconds=4.0)
LONG = Judgement.chosen("b", note="n" * 99_999)


def items(n: int, start: int = 0) -> list[Item]:
    comparisons = (Comparison(prompt=f"p{number}", completions=("x", "y")) for number in range(start, start + n))
    return [Item(comparison=comparison, queue="samples", order=(1, 0)) for comparison in comparisons]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "preferences.db"


@contextmanager
def opened(path: Path) -> Iterator[SessionThread]:
    session = SessionThread(path)
    try:
        yield session
    finally:
        session.close()
        session.join()


@pytest.fixture
def session(path: Path) -> Iterator[SessionThread]:
    """Return a session thread with a session of five items."""
    with opened(path) as session:
        session.begin("ann", PLAN, "Be kind.")
        assert session.put(items(5)).result().ahead == 4
        yield session


def prompts(path: Path) -> list[Any]:
    """Return the prompts of labels that are not undone, as another reader of the store sees them."""
    with PreferenceStore(path, create=False) as store:
        return [p.comparison.prompt for p in store.preferences(with_skips=True)]


def places(state: SessionState) -> tuple[int | None, int, int | None, int]:
    """Return position of the current item, items behind it, position of the item labelled last, and labels."""
    current, last = state.current, state.last
    return current and current.position, state.ahead, last and last.position, state.record.done


def test_each_answer_is_the_state_of_the_session_at_that_time(path: Path) -> None:
    with opened(path) as session:
        begun = session.begin("ann", PLAN, "Be kind.").result()
        assert places(begun) == (None, 0, None, 0)
        assert (begun.record.labeller, begun.record.plan) == ("ann", PLAN)
        assert session.guidelines().result() == "Be kind."
        assert places(session.put(items(3)).result()) == (0, 2, None, 0)
        labelled = session.label(0, replace(A, time=1000.0)).result()
        assert places(labelled) == (1, 1, 0, 1)
        assert labelled.last is not None
        assert labelled.last.label is not None
        assert (labelled.last.label.judgement.time, labelled.last.label.judgement.order_shown) == (1000, (1, 0))
        assert places(session.label(2, replace(B, time=1010.0)).result()) == (1, 0, 2, 2)
        changed = session.relabel(0, replace(B, time=1020.0)).result()
        assert places(changed) == (1, 0, 0, 2)
        assert (changed.progress.done, changed.progress.median_seconds, changed.progress.streak) == (2, 4.0, 2)
        assert changed.progress.per_hour == 360
        assert places(session.undo().result()) == (0, 1, 2, 1)
        assert [one.position for one in session.history().result()] == [2]
        assert session.item(2).result().label is not None
        assert session.served().result() == {one.comparison.key for one in items(3)}
    assert prompts(path) == ["p2"]


def test_the_number_left_is_known_with_a_limit_or_once_no_more_come(path: Path) -> None:
    with opened(path) as session:
        session.begin("ann", PLAN)
        assert session.put(items(3)).result().progress.left is None
        session.exhausted()
        reported = session.label(0, A).result()
        assert (reported.exhausted, reported.progress.left) == (True, 2)
        assert reported.progress.eta_seconds != reported.progress.eta_seconds, "one label tells no speed"
        session.begin("ann", SessionPlan(queues=(), limit=10))
        session.put(items(3, start=3))
        limited = session.label(0, A).result()
        assert (limited.exhausted, limited.progress.left) == (False, 9)
        session.exhausted()
        assert session.state().result().progress.left == 2


def test_calls_are_answered_in_their_order_without_being_waited_for(session: SessionThread, path: Path) -> None:
    calls: list[Future[SessionState]] = [
        session.label(0, A),
        session.label(1, B),
        session.undo(),
        session.label(1, A),
        session.label(2, B),
    ]
    assert [places(call.result()) for call in calls] == [
        (1, 3, 0, 1),
        (2, 2, 1, 2),
        (1, 3, 0, 1),
        (2, 2, 1, 2),
        (3, 1, 2, 3),
    ]
    assert prompts(path) == ["p0", "p1", "p2"]


def test_reopening_returns_to_the_same_item_and_numbers(session: SessionThread, path: Path) -> None:
    for position in (0, 1, 3):
        left = session.label(position, A)
    state = left.result()
    session.close()
    session.join()
    with opened(path) as later:
        found = later.sessions().result()
        assert [(one.items, one.done) for one in found] == [(5, 3)]
        back = later.resume(found[0].id).result()
        assert repr(back) == repr(state), "a NaN equals nothing"
        assert places(back) == (2, 1, 3, 3)
        with pytest.raises(UsageError, match="no labelling session 9"):
            later.resume(9).result()


def test_calls_that_need_a_session_say_so_without_one(path: Path) -> None:
    with opened(path) as session:
        for call in (
            session.state(),
            session.undo(),
            session.label(0, A),
            session.served(),
            session.guidelines(),
            session.history(),
        ):
            with pytest.raises(UsageError, match="no labelling session is open: begin or resume one"):
                call.result()


def test_looking_for_sessions_makes_no_store(path: Path) -> None:
    with opened(path) as session:
        assert session.sessions().result() == []
    assert not path.exists()


@pytest.mark.parametrize(
    ("write", "after"),
    [
        (lambda session: session.label(1, LONG), (2, 2, 1, 2)),
        (lambda session: session.relabel(0, LONG), (1, 3, 0, 1)),
        (lambda session: session.put(items(500, start=5)), (1, 503, 0, 1)),
    ],
)
def test_a_write_refused_by_a_full_disk_did_not_happen_and_can_be_repeated(
    session: SessionThread, path: Path, write: Callable[[SessionThread], Future[SessionState]], after: tuple[int, ...]
) -> None:
    def hold(pages: int) -> None:
        assert session._store is not None
        session._store.log.connection.execute(f"PRAGMA max_page_count = {pages}")

    before = session.label(0, A).result()
    session._call(lambda: hold(1))
    with pytest.raises(StorageError, match="the disk is full; free space"):
        write(session).result()
    assert repr(session.state().result()) == repr(before)
    session._call(lambda: hold(1_000_000))
    assert places(write(session).result()) == after
    with PreferenceStore(path) as store:
        assert store.check() == []


def test_a_locked_store_refuses_and_takes_it_when_it_is_free(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "BUSY_SECONDS", 0.01)
    with PreferenceStore(path) as other, opened(path) as session:
        with other.log.transaction(), pytest.raises(StorageError, match="locked by"):
            session.begin("ann", PLAN).result()
        session.begin("ann", PLAN)
        session.put(items(2)).result()
        with other.log.transaction():
            assert places(session.state().result()) == (0, 1, None, 0), "it can be read meanwhile"
            for call in (session.label(0, A), session.undo(), session.put(items(1, start=2))):
                with pytest.raises(StorageError, match=r"locked by .* try again"):
                    call.result()
        assert places(session.label(0, A).result()) == (1, 0, 0, 1)


def test_a_label_after_which_the_session_cannot_be_read_is_refused(session: SessionThread, path: Path) -> None:
    alter(path, "UPDATE session_items SET payload = '[]' WHERE position = 1")
    with pytest.raises(StorageError, match="is damaged: item 1 of session 1 cannot be read"):
        session.label(0, A).result()
    assert prompts(path) == []
    alter(path, "UPDATE session_items SET payload = '{\"order_shown\":[0,1]}' WHERE position = 1")
    assert places(session.label(0, A).result()) == (1, 3, 0, 1)


def test_a_store_of_a_newer_version_is_reported(path: Path) -> None:
    PreferenceStore(path).close()
    alter(path, f"PRAGMA user_version = {VERSION + 1}")
    with opened(path) as session:
        for call in (session.sessions(), session.begin("ann", PLAN)):
            with pytest.raises(StorageError, match=r"newer version .* update ppo-workbench"):
                call.result()


def test_two_windows_on_one_session_label_each_item_once(session: SessionThread, path: Path) -> None:
    with opened(path) as other:
        assert places(other.resume(1).result()) == (1, 4, None, 0), "the first one is shown already"
        assert places(session.label(0, A).result()) == (2, 3, 0, 1)
        with pytest.raises(UsageError, match="item 1 has been labelled in another window"):
            other.label(0, B).result()
        seen = other.state().result()
        assert places(seen) == (1, 3, 0, 1)
        assert seen.progress.done == 1
        assert places(other.label(1, B).result()) == (3, 2, 1, 2)
        assert places(session.put(items(1, start=5)).result()) == (2, 3, 1, 2)
    assert prompts(path) == ["p0", "p1"]


def test_two_sessions_of_one_labeller_share_what_is_to_be_judged(path: Path) -> None:
    with opened(path) as one, opened(path) as two:
        sessions = (one, two)
        for number, session in enumerate(sessions):
            session.begin("ann", PLAN)
            session.put(items(12)[:: 1 - 2 * number]).result()  # the same ones, from either end
            session.exhausted()
        states = [session.state().result() for session in sessions]
        turns = 0
        while any(state.current for state in states):
            shown = [state.current.item.comparison.prompt for state in states if state.current]
            assert len(shown) == len({*shown}), "no comparison is on both screens"
            current = states[turns % 2].current
            if current is not None:
                sessions[turns % 2].label(current.position, A).result()
            states = [session.state().result() for session in sessions]
            turns += 1
        assert sorted(prompts(path)) == sorted(f"p{number}" for number in range(12))
        assert [(state.record.done, state.record.elsewhere, state.record.left) for state in states] == [(6, 6, 0)] * 2
        assert [state.exhausted for state in states] == [True, True]
        assert [session.left for session in one.sessions().result()] == [0, 0]
        two.undo().result()
        undone = two.state().result().current
        assert undone is not None
        assert one.state().result().current is None, "while it is shown there"
        two.leave()
        two.sessions().result()
        back = one.state().result().current
        assert back is not None
        assert back.item.comparison == undone.item.comparison


def test_an_item_that_another_session_releases_does_not_take_the_place_of_the_one_shown(path: Path) -> None:
    with opened(path) as one, opened(path) as two:
        for session in (one, two):
            session.begin("ann", PLAN)
            session.put(items(3)).result()
        assert places(two.state().result())[0] == 1, "the first item is on the other screen"
        one.leave()
        assert places(two.put(items(1, start=3)).result())[0] == 1
        resumed = one.resume(one.sessions().result()[-1].id).result()
        assert places(resumed)[0] == 0
        two.label(1, A).result()
        two.label(2, A).result()
        assert places(two.undo().result())[0] == 2, "what is undone is shown again"


def test_an_item_judged_meanwhile_in_another_session_is_refused(path: Path) -> None:
    with opened(path) as one, opened(path) as two:
        for session in (one, two):
            session.begin("ann", PLAN)
            session.put(items(2)).result()
        two.label(0, B).result()
        with pytest.raises(UsageError, match="item 1 has been judged in another session"):
            one.label(0, A).result()
        assert places(one.state().result()) == (None, 1, None, 0), "the other one shows what is left"
        assert not one.state().result().exhausted
    assert prompts(path) == ["p0"]


def test_another_labeller_is_still_asked(path: Path) -> None:
    with opened(path) as one, opened(path) as two:
        states = []
        for session, who in ((one, "ann"), (two, "bob")):
            session.begin(who, PLAN)
            states.append(session.put(items(1)).result())
        assert [places(state) for state in states] == [(0, 0, None, 0)] * 2
        one.label(0, A).result()
        assert places(two.label(0, B).result()) == (None, 0, 0, 1)


def test_repeats_and_requested_comparisons_are_asked_although_already_judged(path: Path) -> None:
    with opened(path) as one, opened(path) as two:
        one.begin("ann", PLAN)
        one.put(items(2))
        first = one.label(0, A).result().last
        assert first is not None
        assert first.label is not None
        repeat = replace(items(1)[0], queue="repeat", repeats=first.label.id)
        two.begin("ann", PLAN)
        two.put([repeat, *items(1)])
        assert places(two.label(0, B).result()) == (None, 0, 0, 1), "and the item itself is not asked"
        again = [replace(item, queue="again") for item in items(2)]
        two.begin("ann", PLAN)
        assert places(two.put(again).result()) == (0, 1, None, 0)
        one.label(1, A).result()  # since that session began
        assert places(two.state().result()) == (0, 0, None, 0)


_LABELLER = """
import sys, time
from pathlib import Path
from test_session_thread import A, PLAN, SessionThread, items
session = SessionThread(Path(sys.argv[1]))
session.begin("ann", PLAN)
state = session.put(items(12)).result()
print("shows", state.current.position, flush=True)
sys.stdin.readline()
session.exhausted()
while not (state.exhausted and state.current is None):
    if state.current is not None:
        session.label(state.current.position, A).exception()
        print("labelled", flush=True)
    state = session.state().result()
session.close()
"""


def labeller(path: Path) -> subprocess.Popen[str]:
    """Start a process that shows its first item, and labels all when it is sent a line."""
    process = subprocess.Popen(
        [sys.executable, "-c", _LABELLER, str(path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "tests" / "support"), *filter(None, sys.path)])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("shows")
    return process


def test_two_processes_label_each_comparison_once(path: Path) -> None:
    with labeller(path) as one, labeller(path) as two:
        for process in (one, two):
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        for process in (one, two):
            process.communicate(timeout=60)
            assert process.returncode == 0
    assert sorted(prompts(path)) == sorted(f"p{number}" for number in range(12))
    assert [file.name for file in path.parent.iterdir()] == ["preferences.db"]


def test_the_item_shown_by_a_killed_process_comes_next(path: Path) -> None:
    with opened(path) as session, labeller(path) as other:
        session.begin("ann", PLAN)
        assert places(session.put(items(12)).result())[0] == 1
        other.kill()
        other.wait(60)
        assert places(session.label(1, A).result())[0] == 0
    assert [file.name for file in path.parent.iterdir()] == ["preferences.db"]


def test_without_claims_each_session_shows_what_is_next(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks here")

    monkeypatch.setattr("trainer.preferences.claims.fcntl.flock", refuse)
    with opened(path) as one, opened(path) as two:
        for session in (one, two):
            session.begin("ann", PLAN)
            assert places(session.put(items(2)).result()) == (0, 1, None, 0)
        one.label(0, A).result()
        assert places(two.state().result()) == (1, 0, None, 0)
    assert [file.name for file in path.parent.iterdir()] == ["preferences.db"]


def test_a_decision_is_saved_even_when_nobody_waits_for_it_any_more(session: SessionThread, path: Path) -> None:
    go_on = threading.Event()
    session._call(go_on.wait)
    decided = session.label(0, A)
    assert not decided.cancel()
    session.close()
    assert not decided.done(), "close does not wait"
    go_on.set()
    session.join()
    assert decided.result().record.done == 1
    assert prompts(path) == ["p0"]
    assert [file.name for file in path.parent.iterdir()] == [path.name], "the store is closed"
    with pytest.raises(UsageError, match="labelling has ended"):
        session.label(1, A).result()
    session.close()


def test_a_session_thread_that_nobody_used_can_be_closed(path: Path) -> None:
    with opened(path):
        pass
    assert not path.exists()


def test_the_session_thread_loads_no_heavy_package() -> None:
    program = "import sys, workbench.labelling.session_thread; print(*{name.partition('.')[0] for name in sys.modules})"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert not {"mlx", "numpy", "pyarrow", "pydantic", "datasets", "textual", "rich"} & set(result.stdout.split())
