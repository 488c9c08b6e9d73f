"""Child processes of the program: how one starts, and what error it reports."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import IO

from workbench.system.output import PROGRAM

_LOG_BYTES = 16 * 1024
_ERROR = f"{PROGRAM}: error: "
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def started(
    command: Sequence[str],
    stdout: IO[bytes],
    stderr: IO[bytes],
    *,
    niceness: int = 0,
    own_session: bool = False,
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a process without input. Raises OSError.

    niceness: above 0 for a low priority. own_session: no terminal can end it. environment: None for that of this
    process.
    """
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        start_new_session=own_session,
        env=environment,
    )
    if niceness:
        with contextlib.suppress(OSError):  # it has ended already
            os.setpriority(os.PRIO_PROCESS, process.pid, niceness)
    return process


def last_error(log: IO[bytes]) -> str:
    """Return the last error that the program reported in `log`, or else its last line; empty if it is blank."""
    size = log.seek(0, os.SEEK_END)
    log.seek(max(size - _LOG_BYTES, 0))
    lines = [line for line in log.read().decode(errors="backslashreplace").splitlines() if line.strip()]
    errors = [line.removeprefix(_ERROR) for line in lines if line.startswith(_ERROR)]
    return (errors or lines or [""])[-1]


def with_share_of_cores(jobs: int) -> dict[str, str]:
    """Return the environment of one of `jobs` processes that compute at once: its BLAS uses its share of the cores.

    What the user has set stays: with any of the variables set, no other one is.
    """
    environment = dict(os.environ)
    if jobs > 1 and not any(name in environment for name in _THREADS):
        environment |= dict.fromkeys(_THREADS, str(max(1, _cores() // jobs)))
    return environment


def _cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
