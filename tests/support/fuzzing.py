"""Damage shared by the fuzzers: bytes changed as disks, editors and strangers change them, the same for each seed.

`FUZZ_SEED=7 FUZZ_CASES=100000 pytest -k fuzz` tries other cases than the default ones.
"""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from random import Random

NASTY = (
    b"\x00", b"\xff", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\x1b[2J", b"\r", b"\n", b'"', b'"""', b"'", b"\\", b"\\u0000",
    b"\\ud800", b"[", b"]", b"{", b"}", b"[[", b"=", b".", b",", b"#", b"-", b"~", b"~nosuchuser/", b"../",
    b"/dev/zero",    b"null", b"true", b"NaN", b"nan", b"inf", b"-1", b"0", b"1e-300", b"1e400", b"9223372036854775808",
    b"-9223372036854775809", b"1" * 5000, b"x" * 5000, b"x." * 100, b"[" * 200, b"{}", b"[]", b'""', "中".encode(),
    "\u202e".encode(), b"1979-05-27T07:32:00Z",
)  # fmt: skip


def randoms(name: str, cases: int) -> Iterator[Random]:
    """Yield one random generator per case, seeded by FUZZ_SEED; `cases` of them, or FUZZ_CASES."""
    seed = os.environ.get("FUZZ_SEED", "0")
    for case in range(int(os.environ.get("FUZZ_CASES", cases))):
        yield Random(f"{name} {seed} {case}")


def damaged(content: bytes, random: Random) -> bytes:
    """Return `content` damaged one to four times: a flipped bit, a changed, missing, doubled or nasty piece, a cut."""
    for _ in range(random.randint(1, 4)):
        at = random.randrange(len(content) + 1)
        to = min(at + int(random.expovariate(1 / 20)) + 1, len(content))
        piece = content[at:to]
        match random.randrange(8):
            case 0 if at < len(content):
                content = content[:at] + bytes([content[at] ^ 1 << random.randrange(8)]) + content[at + 1 :]
            case 1:
                content = content[:at] + random.randbytes(len(piece)) + content[to:]
            case 2:
                content = content[:at] + content[to:]
            case 3:
                content = content[:to] + piece * random.choice((1, 1, 2, 40)) + content[to:]
            case 4:
                content = content[:at]
            case 5:
                other = random.randrange(len(content) + 1)
                content = content[:other] + piece + content[other:]
            case _:
                content = content[:at] + random.choice(NASTY) + content[random.choice((at, to)) :]
    return content


@contextmanager
def within(seconds: float, what: object) -> Iterator[None]:
    """Fail if the block takes more CPU time of this thread; the message names `what`."""
    began = time.process_time()
    yield
    took = time.process_time() - began
    assert took < seconds, f"{took:.1f} s for {what!r}"


def outcome(main: Callable[[list[str]], int], words: list[str]) -> tuple[int, str]:
    """Return exit code and output of the command `words`; fail if the code is not 0, 2 or 3, as after a bug."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            code = main(words)
        except SystemExit as end:  # of argparse
            code = end.code if isinstance(end.code, int) else 1
    assert code in (0, 2, 3), f"{words}: {code}\n{err.getvalue()[-3000:]}"
    assert "Traceback" not in err.getvalue()
    return code, out.getvalue() + err.getvalue()
