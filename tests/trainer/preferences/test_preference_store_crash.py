"""Labels survive killed writers, many concurrent writers, and interrupted migrations."""

from __future__ import annotations

import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from preferences_helper import finished, preference, program, stored_events

from trainer.errors import StorageError
from trainer.preferences import migrations
from trainer.preferences.items import Item, SessionPlan
from trainer.preferences.records import Comparison, Judgement
from trainer.preferences.sessions import begin_session
from trainer.preferences.store import PreferenceStore

KILLS = 100
ONCE = Comparison(prompt="Once", completions=("upon", "more"))
CHOSEN_A = '{"ranking":[[0],[1]],"verdict":"ranked","strength":1,"time":9.5}'
VERSION_0 = """
CREATE TABLE labels (
    id INTEGER PRIMARY KEY, time REAL, labeller TEXT, prompt TEXT, first TEXT, second TEXT, choice TEXT, undone INTEGER
);
INSERT INTO labels VALUES
    (1, 100.5, 'ann', 'Once', 'upon', 'more', 'first', 0),
    (2, 101.5, 'bob', 'Once', 'more', 'upon', 'first', 0),
    (4, 102.5, 'ann', 'Naïve', '', 'é', 'tie', 0),
    (5, 103.5, 'ann', 'Naïve', '', 'é', 'second', 1),
    (6, 104.5, 'bob', 'Twice', 'x', 'y', 'both_bad', 0),
    (9, 105.5, 'bob', 'Thrice', 'x', 'y', 'skip', 0);
"""
STANDING_0 = [
    (1, 100.5, "ann", "Once", ("upon", "more"), "a"),
    (2, 101.5, "bob", "Once", ("upon", "more"), "b"),
    (4, 102.5, "ann", "Naïve", ("", "é"), "tie"),
    (6, 104.5, "bob", "Twice", ("x", "y"), "both_bad"),
    (9, 105.5, "bob", "Thrice", ("x", "y"), "skip"),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "preferences.db"


@pytest.fixture
def old(path: Path) -> Path:
    """Make a store of version 0."""
    with closing(sqlite3.connect(path)) as raw:
        raw.executescript(VERSION_0)
    return path


def standing(store: PreferenceStore) -> list[tuple[object, ...]]:
    labels = [(p.id, p.comparison, p.judgement) for p in store.preferences(with_skips=True)]
    return [(id_, j.time, j.labeller, c.prompt, c.completions, j.choice) for id_, c, j in labels]


def dump(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as raw:
        return list(raw.iterdump())


def test_no_label_of_a_writer_killed_a_hundred_times_is_lost(path: Path) -> None:
    printed = [line.split(" ", 1) for line in finished(program("kill", path, KILLS, 5)).splitlines()]
    with PreferenceStore(path) as store:
        kept = {p.id: p.comparison.prompt for p in store.preferences()}
        assert store.check() == []
    assert len(printed) > KILLS
    assert len({prompt.split()[1] for _, prompt in printed}) > KILLS / 2, "most writers wrote"
    assert [kept.get(int(id_)) for id_, _ in printed] == [prompt for _, prompt in printed]
    assert len(kept) <= len(printed) + KILLS, "one at most of each writer was kept and not yet printed"


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
        assert store.check() == []
    assert len(printed) == 800
    assert kept == {int(id_): prompt for id_, prompt in printed}


def test_threads_with_stores_of_their_own_make_one_store_and_write_it(path: Path) -> None:
    barrier = threading.Barrier(8)

    def write(number: int) -> None:
        barrier.wait()
        with PreferenceStore(path) as store:
            for count in range(20):
                store.add(preference(f"{number} {count}"))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    with PreferenceStore(path) as store:
        assert store.counts().labels == 160
        assert store.check() == []


def test_a_store_of_version_0_is_migrated_and_a_copy_kept(old: Path) -> None:
    before = dump(old)
    with PreferenceStore(old, create=False) as store:
        assert standing(store) == STANDING_0
        assert [(e.id, e.kind, e.undoes) for e in stored_events(store)][-1] == (10, "undo", 5)
        assert store.counts().undone == 1
        assert store.check() == []
        assert store.add(preference()) == 11
    copy = old.with_name("preferences.db.v0.bak")
    assert dump(copy) == before
    assert copy.stat().st_mode & 0o777 == 0o600
    assert len(list(old.parent.iterdir())) == 2


def test_a_store_of_version_1_keeps_its_log_as_it_was_and_can_hold_sessions(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as raw:
        migrations.MIGRATIONS[0](raw)
        raw.execute("INSERT INTO comparisons VALUES (3, ?, '\"Once\"', '[\"upon\",\"more\"]', '[]', '{}')", (ONCE.key,))
        raw.execute("INSERT INTO events VALUES (4, 9.5, 'label', 3, 'ann', 'file', 'a', ?, NULL)", (CHOSEN_A,))
        raw.execute("INSERT INTO events VALUES (5, 9.6, 'undo', 3, 'bob', 'file', NULL, '{}', 4)")
        raw.execute("INSERT INTO events VALUES (7, 9.7, 'label', 3, 'ann', '', 'a', ?, NULL)", (CHOSEN_A,))
        raw.execute(f"PRAGMA application_id = {migrations.APPLICATION_ID}")
        raw.execute("PRAGMA user_version = 1")
    before = dump(path)
    with PreferenceStore(path, create=False) as store:
        assert [(e.id, e.time, e.kind, e.labeller, e.source, e.undoes) for e in stored_events(store)] == [
            (4, 9.5, "label", "ann", "file", None),
            (5, 9.6, "undo", "bob", "file", 4),
            (7, 9.7, "label", "ann", "", None),
        ]
        assert {(e.session, e.position) for e in stored_events(store)} == {(None, None)}
        assert [(p.id, p.comparison, p.judgement.choice) for p in store.preferences()] == [(7, ONCE, "a")]
        session = begin_session(store, "ann", SessionPlan(queues=()))
        session.put([Item(comparison=ONCE, queue="again", order=(1, 0), repeats=7)])
        assert session.label(0, Judgement.chosen("b")) == 8
        assert store.check() == []
    assert dump(path.with_name("preferences.db.v1.bak")) == before
    assert len(list(path.parent.iterdir())) == 2


def test_a_migration_that_is_killed_leaves_the_old_store_whole(old: Path) -> None:
    before = dump(old)
    killed = program("migrate", old)
    killed.communicate(timeout=60)
    assert killed.returncode == -9
    assert dump(old.with_name("preferences.db.v0.bak")) == before
    assert dump(old) == before
    with PreferenceStore(old) as store:
        assert standing(store) == STANDING_0


def test_a_store_that_cannot_be_migrated_stays_as_it_was(old: Path) -> None:
    with closing(sqlite3.connect(old)) as raw:
        raw.execute("UPDATE labels SET choice = 'perhaps' WHERE id = 6")
        raw.commit()
    before = dump(old)
    with pytest.raises(StorageError, match=r"of version 0 cannot be migrated .*perhaps.* it was left unchanged"):
        PreferenceStore(old)
    assert dump(old) == before


def test_a_store_is_not_migrated_where_no_copy_can_be_kept(old: Path) -> None:
    before = dump(old)
    old.with_name("preferences.db.v0.bak").mkdir()
    with pytest.raises(StorageError, match=r"cannot copy .* before migrating it: Is a directory"):
        PreferenceStore(old)
    assert dump(old) == before


def test_many_processes_opening_an_old_store_migrate_it_once(old: Path) -> None:
    writers = [program("write", old, f"writer {number}", 3) for number in range(4)]
    for writer in writers:
        finished(writer)
    with PreferenceStore(old) as store:
        assert standing(store)[: len(STANDING_0)] == STANDING_0
        assert store.counts().labels == len(STANDING_0) + 12
        assert store.check() == []


def test_each_version_has_a_migration_to_the_next(path: Path) -> None:
    with PreferenceStore(path) as store:
        assert store.log.rows("PRAGMA user_version") == [(migrations.VERSION,)] == [(len(migrations.MIGRATIONS),)]
    assert list(path.parent.iterdir()) == [path]


def test_a_migration_starts_from_the_version_of_the_store(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with PreferenceStore(path) as store:
        store.add(preference("kept"))

    def add_a_table(connection: sqlite3.Connection) -> None:
        connection.execute("CREATE TABLE more (id INTEGER PRIMARY KEY)")

    monkeypatch.setattr(migrations, "MIGRATIONS", [*migrations.MIGRATIONS, add_a_table])
    newer = migrations.VERSION + 1
    monkeypatch.setattr(migrations, "VERSION", newer)
    with PreferenceStore(path) as store:
        assert [p.comparison.prompt for p in store.preferences()] == ["kept"]
    monkeypatch.undo()
    with pytest.raises(StorageError, match="newer version"):
        PreferenceStore(path)
    path.with_name(f"preferences.db.v{newer - 1}.bak").replace(path)
    with PreferenceStore(path) as store:
        assert [p.comparison.prompt for p in store.preferences()] == ["kept"]
        assert store.check() == []
