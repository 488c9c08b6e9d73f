"""Labels survive killed processes and many concurrent writers."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import label_soak_helper
import pytest
from label_soak_helper import GUIDELINES, ITEMS, decision, is_repeat, prompt
from preferences_helper import add_label, finished, preference, program, stored_events

from trainer.preferences.formats import read_preferences, write_preferences
from trainer.preferences.records import Judgement
from trainer.preferences.sessions import guidelines_text, list_sessions, open_session
from trainer.preferences.store import PreferenceStore, check_store


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
    assert kills > 15
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


def test_threads_with_stores_of_their_own_make_one_store_and_write_it(path: Path) -> None:
    barrier = threading.Barrier(8)

    def write(number: int) -> None:
        barrier.wait()
        with PreferenceStore(path) as store:
            for count in range(20):
                add_label(store, preference(f"{number} {count}"))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    with PreferenceStore(path) as store:
        assert store.counts().labels == 160
        assert check_store(store) == []
