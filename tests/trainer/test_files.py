"""The program's own files: whole or not at all, private where they should be, and never behind a link."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from trainer.files import PRIVATE, open_file, own_folder, remove, whole_file, write_whole


@pytest.fixture
def thesis(tmp_path: Path) -> Path:
    """Make a folder that is not the program's."""
    (folder := tmp_path / "thesis").mkdir()
    (folder / "thesis.tex").write_text("three years")
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (folder := tmp_path / "run").mkdir()
    return folder


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_a_file_replaces_a_link_and_what_it_leads_to_stays(folder: Path, thesis: Path) -> None:
    for name in ("a.json", ".a.json.tmp"):
        (folder / name).symlink_to(thesis / "thesis.tex")
    write_whole(folder / "a.json", "ours")
    assert (folder / "a.json").read_text() == "ours"
    assert not (folder / "a.json").is_symlink()
    assert (thesis / "thesis.tex").read_text() == "three years"
    assert [path.name for path in folder.iterdir()] == ["a.json"]


def test_a_file_is_there_whole_or_not_at_all(folder: Path) -> None:
    write_whole(folder / "a.json", "before")

    def killed() -> None:
        with whole_file(folder / "a.json") as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        killed()
    assert [(path.name, path.read_text()) for path in folder.iterdir()] == [("a.json", "before")]


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_a_private_file_is_private_under_every_umask(folder: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        write_whole(folder / "private", "", mode=PRIVATE)
        write_whole(folder / "shared", "")
        os.close(open_file(folder / "journal", os.O_WRONLY | os.O_CREAT, PRIVATE))
        own_folder(folder / "control", mode=0o700)
    finally:
        os.umask(before)
    assert [mode(folder / name) for name in ("private", "journal", "control")] == [0o600, 0o600, 0o700]
    assert mode(folder / "shared") == 0o666 & ~umask


PLACES: dict[str, Callable[[Path], object]] = {
    "link": lambda path: path.symlink_to(path.parent.parent / "thesis" / "thesis.tex"),
    "link to nothing": lambda path: path.symlink_to(path.parent / "new"),
    "folder": Path.mkdir,
    "pipe": lambda path: os.mkfifo(path),
}


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_RDWR | os.O_CREAT | os.O_APPEND, os.O_WRONLY])
@pytest.mark.parametrize("put", PLACES.values(), ids=PLACES.keys())
def test_only_a_regular_file_is_opened_and_nothing_is_waited_for(
    folder: Path, thesis: Path, put: Callable[[Path], object], flags: int
) -> None:
    put(folder / "events.jsonl")
    with pytest.raises(OSError):  # noqa: PT011  whatever the system calls it
        open_file(folder / "events.jsonl", flags)
    assert [path.name for path in folder.iterdir()] == ["events.jsonl"]
    assert (thesis / "thesis.tex").read_text() == "three years"


def test_a_link_or_a_file_is_not_a_folder_of_ours(folder: Path, thesis: Path) -> None:
    (folder / "samples").symlink_to(thesis)
    (folder / "control").write_text("")
    (folder / "nowhere").symlink_to(folder / "gone")
    for name in ("samples", "control", "nowhere"):
        with pytest.raises(NotADirectoryError, match="a link or a file blocks a folder that the program needs"):
            own_folder(folder / name)
    with pytest.raises(FileNotFoundError):
        own_folder(folder / "missing" / "samples")
    assert not (folder / "missing").exists(), "only the last folder is made"


def test_removing_stops_at_links(folder: Path, thesis: Path) -> None:
    (folder / "link").symlink_to(thesis)
    (folder / "deep").mkdir()
    (folder / "deep" / "link").symlink_to(thesis)
    for name in ("link", "deep", "missing"):
        remove(folder / name)
    assert list(folder.iterdir()) == []
    assert (thesis / "thesis.tex").read_text() == "three years"
