"""A spool gives back what was put in, from memory or from a file without a name."""

from __future__ import annotations

import errno
import io
from pathlib import Path

import pytest
from preference_samples import preference

from trainer.errors import StorageError
from trainer.preferences import spool
from trainer.preferences.records import Origin, Preference
from trainer.preferences.spool import Spool


def rows(count: int) -> list[Preference]:
    messages = [{"role": "user", "content": "ü\ud800"}]
    return [preference(messages, [f"a{n}", f"b{n}"], "b", note="n", time=float(n)) for n in range(count)]


def filled(folder: Path, given: list[Preference]) -> Spool:
    kept = Spool(folder)
    for one in given:
        kept.append(one)
    return kept


@pytest.mark.parametrize("in_memory", [0, 10_000, 1 << 30])
@pytest.mark.parametrize("count", [0, 1, 999, 1000, 1001, 2500])
def test_what_is_read_is_what_was_appended_each_time(
    count: int, in_memory: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool, "_IN_MEMORY", in_memory)
    given = rows(count)
    kept = filled(tmp_path, given)
    assert len(kept) == count
    assert list(kept) == given
    assert list(zip(kept, kept, strict=True)) == list(zip(given, given, strict=True)), "two readers at once"
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "_IN_MEMORY", 10_000)
    with pytest.raises(StorageError, match=r"temporary file in '.*missing' \(No such file or directory\): free space"):
        filled(tmp_path / "missing", rows(2000))


def test_a_full_disk_is_reported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.BytesIO):
        def __init__(self, *_: object, **__: object) -> None:
            super().__init__()

        def write(self, _: object) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        def close(self) -> None:  # what could not be written is still in its buffer
            super().close()
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(spool, "SpooledTemporaryFile", Full)
    with pytest.raises(StorageError, match="No space left on device"):
        filled(tmp_path, rows(1000))


def test_origins_and_columns_are_kept(tmp_path: Path) -> None:
    given = rows(1000)
    given[7].comparison.columns["scores"] = [1, 2.5]
    back = list(filled(tmp_path, given))[7].comparison
    assert back.columns == {"scores": [1, 2.5]}
    assert back.origins == (Origin(source="test"),) * 2
