"""The store's file: what it survives, killed processes too, who may write it, and errors when it cannot be used."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import label_soak_helper
import pytest
from label_soak_helper import GUIDELINES, ITEMS, MOST, decision, is_repeat, prompt
from preferences_helper import add_label, finished, preference, program, stored_events
from store_damage import alter

from trainer.errors import BusyError, StorageError, UsageError
from trainer.preferences import connection
from trainer.preferences.connection import VERSION
from trainer.preferences.formats import read_preferences, write_preferences
from trainer.preferences.records import Item, Judgement, SessionPlan
from trainer.preferences.sessions import begin_session, guidelines_text, list_sessions, open_session
from trainer.preferences.store import PreferenceStore, check_store

A, B, C = (preference(name) for name in "ABC")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[PreferenceStore]:
    with PreferenceStore(tmp_path / "preferences.db") as store:
        yield store


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_write_is_synced_into_a_write_ahead_log_and_closing_leaves_one_file(store: PreferenceStore) -> None:
    add_label(store, A)
    raw = store.connection
    assert raw.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL
    assert raw.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    store.close()
    assert names(store.path.parent) == ["preferences.db"]


@pytest.mark.parametrize("table", ["events", "comparisons", "guidelines", "sessions", "session_items"])
@pytest.mark.parametrize("statement", ["DELETE FROM {}", "UPDATE {} SET rowid = 9"])
def test_the_database_itself_lets_nobody_change_the_past(store: PreferenceStore, table: str, statement: str) -> None:
    session = begin_session(store, "ann", SessionPlan(queues=()), "Be kind.")
    session.put([Item(comparison=A.comparison, queue="samples", order=(0, 1))])
    session.label(session.item(0), A.judgement)
    with closing(sqlite3.connect(store.path)) as raw:
        before = list(raw.iterdump())
        with pytest.raises(sqlite3.IntegrityError, match=f"{table} are append-only"):
            raw.execute(statement.format(table))
        raw.rollback()
        assert list(raw.iterdump()) == before


def test_a_locked_store_can_be_read_and_says_that_it_is_locked(
    store: PreferenceStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_label(store, A)
    monkeypatch.setattr(connection, "BUSY_SECONDS", 0.01)
    with store.transaction():
        with PreferenceStore(store.path, create=False) as other:
            assert len(list(other.preferences())) == 1
            for write in (lambda: add_label(other, B), lambda: other.undo(1, "ann")):
                with pytest.raises(BusyError, match=r"locked by another program .* or try again later"):
                    write()
        with pytest.raises(BusyError, match="locked by another program"):
            PreferenceStore(store.path)


def test_a_file_system_without_locks_is_named_and_no_copy_is_to_be_restored(
    store: PreferenceStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.lockf", refuse)
    for code in (sqlite3.SQLITE_IOERR_LOCK, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_PROTOCOL):
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = code
        said = "its file system has no file locks; keep the store in a local folder"
        with pytest.raises(StorageError, match=said), connection.storage_errors(store.path):
            raise error


def test_a_store_of_a_newer_version_is_reported_and_not_touched(store: PreferenceStore) -> None:
    store.close()
    alter(store.path, f"PRAGMA user_version = {VERSION + 1}")
    before = store.path.read_bytes()
    for create in (True, False):
        with pytest.raises(StorageError, match=r"newer version .* update ppo-workbench"):
            PreferenceStore(store.path, create=create)
    assert store.path.read_bytes() == before
    assert names(store.path.parent) == ["preferences.db"]


@pytest.mark.parametrize("create", [True, False])
@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE places (url TEXT)",
        "CREATE TABLE labels (name TEXT)",
        "CREATE TABLE comparisons (id INTEGER)",
        "PRAGMA user_version = 1",
        "PRAGMA application_id = 7",
    ],
)
def test_the_database_of_another_program_is_not_touched(tmp_path: Path, statement: str, create: bool) -> None:
    path = tmp_path / "other.db"
    alter(path, statement)
    before = path.read_bytes()
    with pytest.raises(StorageError, match=r"other\.db' is a database of another program: name another file"):
        PreferenceStore(path, create=create)
    assert path.read_bytes() == before


@pytest.mark.parametrize("create", [True, False])
@pytest.mark.parametrize("content", [b"prompt,chosen,rejected\n" * 99, b"SQLite format 3\0" + b"\xff" * 5000])
def test_a_file_that_is_not_a_database_is_reported_and_not_touched(
    tmp_path: Path, content: bytes, create: bool
) -> None:
    path = tmp_path / "preferences.db"
    path.write_bytes(content)
    with pytest.raises(StorageError, match=r"not a preference store|is damaged"):
        PreferenceStore(path, create=create)
    assert path.read_bytes() == content


def test_a_missing_store_is_reported_where_none_should_be_made(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no preference store .* import or label"):
        PreferenceStore(tmp_path / "preferences.db", create=False)
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "rule"),
    [("", "is not a file"), ("missing/preferences.db", "its folder is missing"), ("loop", "levels of symbolic links")],
)
def test_an_impossible_location_is_reported(tmp_path: Path, name: str, rule: str) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(StorageError, match=rule):
        PreferenceStore(tmp_path / name)


@pytest.mark.parametrize("name", ["a?mode=memory#x.db", "50% off.db", "ü\udc80.db"])
def test_odd_file_names_work(tmp_path: Path, name: str) -> None:
    with PreferenceStore(tmp_path / name) as store:
        add_label(store, A)
        assert name in names(tmp_path)
    with PreferenceStore(tmp_path / name, create=False) as store:
        assert store.counts().labels == 1


@contextmanager
def not_root() -> Iterator[None]:
    """Give up root meanwhile: file permissions mean nothing to root."""
    if os.geteuid() != 0:
        yield
        return
    os.setresuid(65534, 65534, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Make a folder that others can enter, unlike pytest's own."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


@pytest.mark.parametrize("mode", [0o555, 0o777])  # nothing is left that keeps others from writing
def test_a_read_only_store_can_be_read_and_not_written(open_folder: Path, mode: int) -> None:
    path = open_folder / "preferences.db"
    with PreferenceStore(path) as store:
        add_label(store, A)
    path.chmod(0o444)
    open_folder.chmod(mode)
    with not_root():
        with pytest.raises(StorageError, match="read-only; make both writable"):
            PreferenceStore(path)
        with PreferenceStore(path, create=False) as store:
            assert [p.comparison.prompt for p in store.preferences()] == ["A"]
            assert check_store(store) == []
            for write in (lambda: add_label(store, B), lambda: store.undo(1, "ann")):
                with pytest.raises(StorageError, match="read-only; make both writable"):
                    write()
        if mode == 0o555:
            with pytest.raises(StorageError, match="may not write there"):
                PreferenceStore(open_folder / "new.db")
    assert names(open_folder) == ["preferences.db"]


def test_a_store_in_use_can_be_read_with_read_only_permission(open_folder: Path) -> None:
    with PreferenceStore(open_folder / "preferences.db") as store:
        add_label(store, A)
        for file in open_folder.iterdir():
            file.chmod(0o644)  # by its owner: a new one is private
        open_folder.chmod(0o555)
        with not_root(), PreferenceStore(store.path, create=False) as reader:
            assert reader.counts().labels == 1
            drawn = reader.preferences()
            assert next(drawn).comparison.prompt == "A"


def test_labels_in_an_unreadable_log_are_not_silently_skipped(open_folder: Path) -> None:
    with PreferenceStore(open_folder / "original.db") as store:
        add_label(store, A)
        for suffix in ("", "-wal"):
            shutil.copy(f"{store.path}{suffix}", open_folder / f"copy.db{suffix}")
    open_folder.chmod(0o555)
    with not_root(), pytest.raises(StorageError, match="make the folder writable"):
        PreferenceStore(open_folder / "copy.db", create=False)


# What is changed in a store of three labels, the second undone, and of a session of five items, the second label undone
DAMAGE = {
    "comparisons SET prompt = '\"other\"' WHERE id = 1": "comparison 1: its key does not match its",
    "comparisons SET completions = '[\"x\"' WHERE id = 1": "comparison 1: cannot be read (JSONDecodeError",
    "comparisons SET prompt = '7' WHERE id = 1": "comparison 1: cannot be read (row: column 'prompt' is 7",
    "events SET payload = '{' WHERE id = 1": "event 1: cannot be read (JSONDecodeError",
    "events SET payload = '[]' WHERE id = 1": "event 1: cannot be read (TypeError",
    f"events SET payload = '{'[' * 99999}' WHERE id = 1": "event 1: cannot be read (RecursionError",
    "events SET payload = '{\"ranking\": [[0]]}' WHERE id = 1": "event 1: cannot be read (row: ranking is [[0]]",
    "events SET choice = 'b' WHERE id = 1": "event 1: its choice 'b' does not match its payload",
    "events SET comparison = 9 WHERE id = 1": "events 1: refers to a missing row of comparisons",
    "events SET labeller = CAST(x'ff' AS TEXT) WHERE id = 1": "file: cannot be read to its end",
    "guidelines SET text = 'Be rude.'": "guidelines 1: their hash does not match their text",
    "sessions SET plan = '{}'": "session 1: cannot be read (row: the plan has no queues",
    "sessions SET guidelines = 'f00'": "sessions 1: refers to a missing row of guidelines",
    "session_items SET payload = '{}' WHERE id = 2": "session item 2: cannot be read (row: ranking",
    """session_items SET payload = '{"verdict":"skip","order_shown":[0]}'""": "session item 1: cannot be read (row",
    "session_items SET session = 7 WHERE id = 5": "session_items 5: refers to a missing row of sessions",
    "DROP TRIGGER events_no_delete": "schema: 'events_no_delete' is missing",
    "DROP TRIGGER session_items_no_delete": "schema: 'session_items_no_delete' is missing",
    "DROP INDEX events_of_comparison": "schema: 'events_of_comparison' is missing",
    "DROP INDEX events_of_session": "schema: 'events_of_session' is missing",
}


@pytest.mark.parametrize("change", DAMAGE)
def test_a_check_reports_what_is_wrong(store: PreferenceStore, change: str) -> None:
    for p in (A, B, C):
        add_label(store, p)
    store.undo(2, "ann")
    session = begin_session(store, "ann", SessionPlan(queues=()), "Be kind.")
    session.put([Item(comparison=preference(f"p{n}").comparison, queue="samples", order=(0, 1)) for n in range(5)])
    for position in (0, 1):
        session.label(session.item(position), A.judgement)
    session.undo()
    assert check_store(store) == []
    alter(store.path, change if change.startswith("DROP") else f"UPDATE {change}")
    problem = DAMAGE[change]
    found = [line for line in check_store(store) if not line.startswith("schema: ") or problem.startswith("schema")]
    assert any(line.startswith(problem) for line in found), found
    assert all("\n" not in line for line in found)
    if problem.startswith("session") and "cannot be read" in problem:
        with pytest.raises(StorageError, match=r"is damaged: (item \d of )?session 1 cannot be read; check the store"):
            list(map(open_session(store, 1).item, range(5)))
    elif "cannot be read (" in problem:
        with pytest.raises(StorageError, match="is damaged"):
            list(store.preferences())


def test_a_comparison_that_does_not_match_its_key_accepts_no_label(store: PreferenceStore) -> None:
    add_label(store, A)
    alter(store.path, """UPDATE comparisons SET completions = '["other", "words"]'""")
    with pytest.raises(StorageError, match="is damaged: comparison 1 cannot be read"):
        add_label(store, A)


def modes(folder: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}


def test_labels_are_private_to_their_owner_from_the_first_byte_on(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with PreferenceStore(tmp_path / "preferences.db") as store:
            add_label(store, A)
            assert modes(tmp_path) == {f"preferences.db{end}": 0o600 for end in ("", "-wal", "-shm")}
    finally:
        os.umask(before)


def test_a_store_that_its_owner_opened_to_others_stays_open(tmp_path: Path) -> None:
    path = tmp_path / "preferences.db"
    with PreferenceStore(path) as store:
        add_label(store, A)
    path.chmod(0o664)
    with PreferenceStore(path) as store:
        add_label(store, B)
    assert modes(tmp_path) == {"preferences.db": 0o664}


def test_a_schema_with_text_that_is_not_utf8_is_reported_as_damage(store: PreferenceStore) -> None:
    add_label(store, A)
    store.close()
    content = store.path.read_bytes()
    assert content.count(b"CREATE TABLE comparisons") == 1
    store.path.write_bytes(content.replace(b"CREATE TABLE comparisons", b"CREATE TABLE compar\xec\xeains"))
    with pytest.raises(StorageError, match=r"is damaged \(.*restore a copy"):
        PreferenceStore(store.path, create=False)


def said(judgement: Judgement) -> tuple[object, ...]:
    return judgement.choice, judgement.strength, judgement.note


def test_five_hundred_labels_survive_being_killed_at_any_moment(tmp_path: Path) -> None:
    path = tmp_path / "preferences.db"
    command = [sys.executable, label_soak_helper.__file__, str(path), "7"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    kills = lines.count("killed")
    reported = [
        (verb, int(id_), int(position)) for verb, id_, position in (line.split() for line in lines if " " in line)
    ]
    assert kills >= ITEMS // MOST
    assert len(reported) > ITEMS + 50, "some were undone or changed"

    with PreferenceStore(path) as store:
        assert check_store(store) == []
        (record,) = list_sessions(store)
        session = open_session(store, record.id)
        assert (record.items, record.done, session.next_open()) == (ITEMS, ITEMS, None)
        assert guidelines_text(store, record.guidelines) == GUIDELINES

        labels = {e.id: e.position for e in stored_events(store) if e.kind == "label"}
        undos = Counter(e.position for e in stored_events(store) if e.kind == "undo")
        acknowledged = {id_: position for verb, id_, position in reported if verb == "label"}
        assert acknowledged.items() <= labels.items()
        assert Counter(position for verb, _, position in reported if verb == "undo") <= undos
        assert len(labels) - len(acknowledged) <= kills, "one at most of each process was kept and not yet told"
        assert len(labels) == ITEMS + undos.total()

        history = {one.position: one for one in session.history(limit=ITEMS + 1)}
        standing = {position: one.label for position, one in history.items() if one.label is not None}
        assert {p: said(label.judgement) for p, label in standing.items()} == {
            position: said(decision(position)) for position in range(ITEMS)
        }
        assert all(one.label and one.label.judgement.order_shown == one.item.order for one in history.values())
        assert session.progress(None).same.total == sum(
            "skip" not in (decision(p).choice, decision(p - 30).choice) for p in filter(is_repeat, range(ITEMS))
        )
        export = tmp_path / "all.jsonl"
        write_preferences(store.preferences(with_skips=True), export, format="k-way")

    exported = Counter((p.comparison.prompt, *said(p.judgement)) for p in read_preferences(str(export)))
    assert exported == Counter((prompt(position), *said(decision(position))) for position in range(ITEMS))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "preferences.db"


def test_four_processes_write_while_others_read(path: Path) -> None:
    PreferenceStore(path).close()
    writers = [program("write", path, f"writer {number}", 200) for number in range(4)]
    ended = threading.Event()

    def read() -> int:
        ids: list[int] = []
        readings = 0
        with PreferenceStore(path, create=False) as store:
            while not ended.is_set():
                drawn = [p.id for p in store.preferences()]
                assert drawn[: len(ids)] == ids, "what was there stays, and stays in its place"
                readings += drawn != ids
                ids = drawn
        return readings

    with ThreadPoolExecutor(2) as pool:
        readers = [pool.submit(read) for _ in range(2)]
        try:
            printed = [line.split(" ", 1) for writer in writers for line in finished(writer).splitlines()]
        finally:
            ended.set()
    assert all(reader.result() > 1 for reader in readers), "they read while it was written"
    with PreferenceStore(path) as store:
        kept = {p.id: p.comparison.prompt for p in store.preferences()}
        assert check_store(store) == []
    assert len(printed) == 800
    assert kept == {int(id_): prompt for id_, prompt in printed}
