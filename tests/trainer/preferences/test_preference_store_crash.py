"""Labels survive killed writers and many concurrent writers."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from preferences_helper import finished, preference, program

from trainer.preferences.store import PreferenceStore, check_store

KILLS = 100


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
                store.add(preference(f"{number} {count}"))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    with PreferenceStore(path) as store:
        assert store.counts().labels == 160
        assert check_store(store) == []
