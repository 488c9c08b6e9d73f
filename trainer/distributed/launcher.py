"""Starting the ranks of a run by `mlx.launch`, with one Ctrl+C for all of them and the run's exit code."""

from __future__ import annotations

import io
import json
import os
import select
import shlex
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from subprocess import CalledProcessError, Popen
from typing import Any, ClassVar, NamedTuple

from mlx._distributed_utils import launch as mlx_launch

from trainer.distributed.hosts import LOCAL, Hosts
from trainer.errors import RankError

_LAST_SECONDS = 60.0  # for a run whose other rank was lost to find that out and to save, before it is asked to end
_FEW_SECONDS = 5.0  # the same where nothing is left to save
_STARTING = 60.0  # seconds within which a rank that ssh or the shell could not start has ended
_CTRL_C = b"\x03"
_NO_SSH, _NO_PROGRAM = 255, 127  # exit codes of ssh and of the shell


class Failure(NamedTuple):
    """End of a rank that failed or was killed."""

    rank: int
    host: str
    code: int  # negative: the number of a signal
    seconds: float  # since the launch


class Launcher:
    """One call of mlx.launch, in this process, so that its reports go where they always go.

    hosts: of the ranks. command: program and arguments of each. port: of the first rank; each rank takes the next one.
    cwd: folder on each host; else that of this process, where it exists. failed_first: the rank that failed first;
    the others cannot tell which one it was.
    """

    def __init__(self, hosts: Hosts, command: Sequence[str], *, port: int, cwd: str | None = None) -> None:
        self._hosts = hosts
        self._command = [*command]
        self._port, self._cwd = port, cwd
        self._ranks: dict[int, Any] = {}
        self._signals = 0  # that came before the first rank was started
        self._begun = time.monotonic()
        self.failed_first: Failure | None = None
        self._reads, self._writes = os.pipe()  # what all ranks read as their terminal

    def run(self) -> int:
        """Start the ranks, show what they print, and return the exit code of the run, once all have ended.

        Raises RankError if a host cannot be reached or lacks the program.
        """
        names = self._hosts.names
        repeats = Counter(names).most_common(1)[0][1]  # by which NCCL chooses a GPU for each rank
        options = ["--repeat-hosts", str(repeats), "--starting-port", str(self._port)]
        options += ["--cwd", self._cwd] if self._cwd else []
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(self._hosts._asdict(), file)
            file.flush()
            sys.argv = ["mlx.launch", "--hostfile", file.name, *options, "--", *self._command]
            sys.stdin = io.TextIOWrapper(io.FileIO(self._reads))
            # mlx.launch would leave a group of processes to the terminal's Ctrl+C, which then reaches some ranks
            # twice and kills ssh; and it would spin, because a rank's input can nearly always be written.
            _Rank.launcher = self
            vars(mlx_launch).update(RemoteProcess=_Rank, Popen=partial(Popen, start_new_session=True), select=_select)
            try:
                mlx_launch.main()
            except OSError:  # the reader of the output went away
                self.interrupt()
                for rank in self._ranks.values():
                    rank.process.wait()
        codes = [self._ranks[rank].process.returncode for rank in range(len(names))]
        self._check_started(codes)
        code: int = codes[0]
        return code if code >= 0 else 128 - code

    def interrupt(self) -> None:
        """Send the first rank, which ends the others, what Ctrl+C sends. It may be called in a signal handler."""
        first = self._ranks.get(0)
        if first is None:
            self._signals += 1
        elif self._hosts.names[0] != LOCAL:
            os.write(self._writes, _CTRL_C)  # ssh hands it to the terminal that it opened there; other ranks ignore it
        elif first.process.poll() is None:
            first.process.send_signal(signal.SIGINT)

    def started(self, number: int, rank: Any) -> None:
        """Take note of a rank that was started."""
        self._ranks[number] = rank
        if number == 0 and self._signals:
            self.interrupt()

    def ended(self, number: int, code: int) -> None:
        """Take note of the exit code of a rank."""
        if code and self.failed_first is None:
            self.failed_first = Failure(number, self._hosts.names[number], code, time.monotonic() - self._begun)

    def seconds_to_end(self) -> float:
        """Return how long a rank may go on after another one has failed."""
        failed = self.failed_first
        nothing_began = failed and failed.code in (_NO_SSH, _NO_PROGRAM) and failed.seconds < _STARTING
        return _FEW_SECONDS if nothing_began or self._ranks[0].process.poll() is not None else _LAST_SECONDS

    def _check_started(self, codes: Sequence[int]) -> None:
        for rank, (name, code) in enumerate(zip(self._hosts.names, codes, strict=True)):
            if code == _NO_SSH and name != LOCAL:
                raise RankError(
                    f"rank {rank}: ssh to {name} failed; check that 'ssh {shlex.quote(name)} true' works without a "
                    "password"
                )
            if code == _NO_PROGRAM:
                raise RankError(
                    f"rank {rank}: {name} has no {self._command[0]}; give the path of Python there with --python"
                )


class _Rank(mlx_launch.RemoteProcess):
    """A rank's process, which gets time to end by itself when another one has failed."""

    launcher: ClassVar[Launcher]

    def __init__(self, rank: int, *arguments: Any) -> None:
        super().__init__(rank, *arguments)
        self._number = rank
        self._failed: float | None = None  # when another rank did
        self.launcher.started(rank, self)

    def terminate(self) -> None:
        """End the process once its time is over; mlx.launch asks again and again."""
        now = time.monotonic()
        self._failed = self._failed or now
        late = now - self._failed - self.launcher.seconds_to_end()
        if late > 0 and self._is_local:
            end = self.process.kill if late > _FEW_SECONDS else self.process.terminate
            end()
        elif late > 0:
            with suppress(CalledProcessError):  # of the script below
                super().terminate()

    @staticmethod
    def make_kill_script(pidfile: str) -> str:
        """Return the script that ends the rank on its host. One that waits for the others hears no SIGTERM."""
        script: str = super(_Rank, _Rank).make_kill_script(pidfile)
        return script.replace("kill $pid;", f"kill $pid; sleep {_FEW_SECONDS:.0f}; kill -9 $pid 2>/dev/null;")

    def preprocess_output(self, data: str, is_stdout: bool = False) -> str:
        """Return what to show of the rank's output, without the name of a file that comes first."""
        if self._pidfile is None:
            data = data.replace("\r\n", "\n", 1)  # else mlx.launch takes the terminal's \r for a part of the name
        shown: str = super().preprocess_output(data, is_stdout)
        return shown

    @property
    def exit_status(self) -> tuple[int | None, bool]:
        """Return the exit code, None while the rank runs, and whether mlx.launch has ended it."""
        code, was_killed = super().exit_status
        if code is not None:
            self.launcher.ended(self._number, code)
        return code, was_killed


def _select(reads: list[int], writes: list[int], failed: list[int], seconds: float) -> tuple[Any, ...]:
    """Wait for output; input can be written at once."""
    return select.select(reads, [], failed, min(seconds, 0.1))[0], writes, []
