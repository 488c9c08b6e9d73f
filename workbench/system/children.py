"""Processes of the program beside this one: how one starts, and what error it reports."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from trainer.errors import storage_error
from trainer.files import PRIVATE, open_file
from workbench.system.output import PROGRAM

LOG = "headless.log"  # in the folder of a run that continues
_LOG_BYTES = 16 * 1024
_ERROR = f"{PROGRAM}: error: "
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def own_command(*arguments: str) -> list[str]:
    """Return the command line of `ppo-workbench` with `arguments`.

    -P keeps the working folder out of the module path, so that a `random.py` or `trainer.py` there is not imported.
    """
    return [sys.executable, "-P", "-m", "workbench", *arguments]


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
        command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, start_new_session=own_session, env=environment
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
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        environment |= dict.fromkeys(_THREADS, str(max(1, cores // jobs)))
    return environment


def continue_headless(folder: Path, *, environment: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Resume the run in `folder` in a new process that outlives this one and its terminal.

    No other process may hold its lock. environment: None for that of this process. The code that was trusted here is
    trusted there, in exactly this version. Raises StorageError.
    """
    from workbench.system.code_trust import PASSED_ON, trusted_code  # not above: it imports pydantic

    command = own_command("--no-ui", "--resume", str(folder.resolve()), "--display", "plain")
    environment = {**(os.environ if environment is None else environment), PASSED_ON: trusted_code().passed_on()}
    with (
        storage_error("cannot continue headless", f"run ppo-workbench --no-ui --resume {folder}"),
        os.fdopen(open_file(folder / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, PRIVATE), "ab") as log,
    ):
        return started(command, log, log, own_session=True, environment=environment)
