"""Files of many rows: read line by line, never whole."""

from __future__ import annotations

import gzip
import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from trainer.data import readers
from trainer.data.readers import read_rows
from trainer.errors import DataError

CONTENT = {
    ".jsonl": "".join(json.dumps({"prompt": f"row {number}", "n": "é\u2028"}) + "\r\n" for number in range(50_000)),
    ".csv": "prompt,n\n" + "".join(f'"row\n{number}",é\r\n' for number in range(50_000)),
    ".txt": "\ufeff" + "".join(f"row {number}\r\n" for number in range(50_000)),
}


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".csv", ".txt"])
def test_the_first_rows_of_a_file_do_not_wait_for_its_end_and_errors_still_name_the_line(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, content = tmp_path / f"rows{suffix}", CONTENT[suffix.removesuffix(".gz")].encode()
    packed = gzip.compress if suffix.endswith(".gz") else bytes
    path.write_bytes(packed(content))
    expected = [row.columns["prompt"] for row in read_rows(path, "prompt")]
    assert len(expected) == 50_000
    assert expected[1] == "row\n1" if suffix == ".csv" else "row 1"

    def whole(path: Path) -> Any:
        pytest.fail(f"{path} was read whole")

    path.write_bytes(packed(content + b"\xff"))
    with monkeypatch.context() as patch:
        patch.setattr(readers, "_text", whole)
        assert [row.columns["prompt"] for row in islice(read_rows(path, "prompt"), 3)] == expected[:3]
    line = content.count(b"\n") + 1
    with pytest.raises(DataError, match=rf"rows{suffix}:{line}: byte 0xff is not UTF-8"):
        list(read_rows(path, "prompt"))
