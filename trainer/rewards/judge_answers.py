"""Answers of judges, by the content of their requests: in memory, and in a file of the run."""

from __future__ import annotations

import contextlib
import json
import math
import os
from pathlib import Path
from typing import NamedTuple

from trainer.errors import storage_error, writing
from trainer.files import PRIVATE, SHARED, open_file

Messages = list[dict[str, str]]

_LONGEST = 20_000  # characters of an answer that are kept, from its end
_LINE = 1 << 18  # bytes


class Reply(NamedTuple):
    """Answer of a judge to one request, or why there is none."""

    text: str
    problem: str = ""  # one line; part of it is the endpoint's own text
    read: float = math.nan  # tokens of the request; NaN if the endpoint does not say
    written: float = math.nan  # tokens of the answer

    @classmethod
    def of(cls, text: str, read: float, written: float) -> Reply:
        """Return the reply with an answer as the model wrote it, without what it thought before."""
        return cls(text.rpartition("</think>")[2].strip()[-_LONGEST:], "", read, written)

    def shared(self, share: float) -> Reply:
        """Return the reply with a share of its tokens."""
        return self._replace(read=self.read * share, written=self.written * share)


class Answers(dict[str, Reply]):
    """Replies by the hash of their request. `keep_in` names the file that a run keeps them in."""

    _path: Path | None = None
    _mode = PRIVATE
    _begin = ""  # of the next line: a newline after one that was cut

    def keep_in(self, path: Path, *, shared: bool) -> None:
        """Take what the file has, and add every new reply to it. A line that is cut or damaged is left out.

        shared: other users may read it. Raises StorageError if it cannot be read.
        """
        self._path, self._mode = path, SHARED if shared else PRIVATE
        last, way_out = b"\n", "fix the file, or delete it to ask the judge again"
        with (
            storage_error(f"cannot read '{path}'", way_out),
            contextlib.suppress(FileNotFoundError),
            os.fdopen(open_file(path), "rb") as file,
        ):
            while line := file.readline(_LINE):
                last = line
                with contextlib.suppress(ValueError, TypeError, RecursionError):
                    key, text, problem, *counts = json.loads(line)
                    read, written = (math.nan if count is None else float(count) for count in counts)
                    if all(isinstance(one, str) for one in (key, text, problem)):
                        self[key] = Reply(text, problem, read, written)
        self._begin = "" if last.endswith(b"\n") else "\n"

    def add(self, key: str, reply: Reply) -> None:
        """Keep a reply, on disk before it is used: a run that is killed does not ask for it again."""
        self[key] = reply
        if self._path is None:
            return
        values = [key, *(None if value != value else value for value in reply)]
        line = f"{self._begin}{json.dumps(values, ensure_ascii=False, separators=(',', ':'))}\n"
        with writing(f"'{self._path}'"):
            descriptor = open_file(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, self._mode)
            try:
                os.write(descriptor, line.encode("utf-8", "backslashreplace"))
                self._begin = ""
            finally:
                os.close(descriptor)
