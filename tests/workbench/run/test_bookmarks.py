"""Marked samples outlive the program, other programs that mark as well, and broken files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainer.errors import StorageError
from trainer.runs.folder import RunFolder
from workbench.run.bookmarks import Bookmarks
from workbench.run.sample_table import SampleKey

A, B, C = SampleKey(3, 1), SampleKey(12, 0), SampleKey(12, 63)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path)


def file(folder: RunFolder) -> Path:
    return folder.root / "bookmarks.json"


def test_a_mark_is_set_removed_and_read_back(folder: RunFolder) -> None:
    bookmarks = Bookmarks(folder)
    assert (list(bookmarks), bookmarks.problem, A in bookmarks) == ([], "", False)
    assert list(folder.root.iterdir()) == []
    assert [bookmarks.toggle(key) for key in (C, A, B, A)] == [True, True, True, False]
    for each in (bookmarks, Bookmarks(folder)):
        assert list(each) == [B, C]
        assert len(each) == 2
        assert B in each
        assert A not in each
        assert each.problem == ""
    assert json.loads(file(folder).read_text()) == {"version": 1, "samples": [[12, 0], [12, 63]]}
    assert list(folder.root.iterdir()) == [file(folder)]


BROKEN = {
    "cut": b'{"version": 1, "samples": [[3,',
    "not UTF-8": b"\xff\xfe",
    "no samples": b'{"version": 1}',
    "not pairs": b'{"version": 1, "samples": [[3, 1, 2]]}',
    "lists": b'{"version": 1, "samples": [[[], 1]]}',
    "fractions": b'{"version": 1, "samples": [[3.5, 1]]}',
    "too large": b'{"version": 1, "samples": [[3, 99999999999999999999]]}',
    "deep": b"[" * 100_000,
    "newer": b'{"version": 2, "samples": {"3": [1]}}',
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_a_broken_file_is_reported_and_never_overwritten(folder: RunFolder, content: bytes) -> None:
    file(folder).write_bytes(content)
    bookmarks = Bookmarks(folder)
    assert ("newer version" if b'"version": 2' in content else "damaged") in bookmarks.problem
    assert "\n" not in bookmarks.problem
    assert list(bookmarks) == []
    with pytest.raises(StorageError, match=r"bookmarks\.json"):
        bookmarks.toggle(A)
    assert file(folder).read_bytes() == content
    assert list(bookmarks) == []


def test_a_file_that_broke_meanwhile_is_not_overwritten_either_and_a_folder_in_its_place_is_reported(
    folder: RunFolder,
) -> None:
    bookmarks, other = Bookmarks(folder), Bookmarks(folder)
    bookmarks.toggle(A)
    assert not other.toggle(A), "marks that another program has set are known"
    bookmarks.toggle(A)
    file(folder).write_text("broken")
    with pytest.raises(StorageError, match="damaged"):
        bookmarks.toggle(B)
    assert list(bookmarks) == [A]
    file(folder).unlink()
    file(folder).mkdir()
    assert "cannot be read" in Bookmarks(folder).problem


def test_a_folder_that_cannot_be_written_is_an_error_and_nothing_changes(folder: RunFolder) -> None:
    bookmarks = Bookmarks(folder)
    bookmarks.toggle(A)
    before = file(folder).read_bytes()
    (folder.root / ".bookmarks.json.tmp").mkdir()  # root may write anywhere but over a folder
    for key in (A, B):
        with pytest.raises(StorageError, match=r"cannot write bookmarks '.*bookmarks\.json'.*writable") as error:
            bookmarks.toggle(key)
        assert "\n" not in str(error.value)
        assert list(bookmarks) == [A]
    assert file(folder).read_bytes() == before
