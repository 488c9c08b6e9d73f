"""`ppo-workbench launch`: one run in several processes, started by `mlx.launch`."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from workbench.cli.parser import Parser
from workbench.system import output
from workbench.system.children import own_command
from workbench.system.signals import handled_signals

NAME = "launch"
_TRAINING = (None, "dpo", "reward-model")
_ENDED = re.compile(r"Node with rank (\d+) (?:exited with code (-?\d+)|was killed)")
_PIPE_BYTES = 1 << 16

_DESCRIPTION = """\
Train one run in several processes on this machine, called ranks. All other arguments are those of a run without the
screen:

  ppo-workbench launch --local 2 --config quickstart --set rollout.batch_size=32
  ppo-workbench launch --local 2 --resume quickstart-1

For several machines, see docs/memory.md: mlx.launch --hostfile hosts.json -- ppo-workbench --no-ui --config quickstart
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `launch`; `main.parse` passes the other arguments on."""
    parser.description = _DESCRIPTION
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.usage = f"{parser.prog} --local N [--port N] [ARGUMENT OF A RUN ...]"
    parser.set_defaults(execute=_misplaced)
    parser.add_argument("--local", metavar="N", type=int, required=True, help="start N ranks on this machine")
    parser.add_argument("--port", metavar="N", type=int, help="first port of the ring (default: the first free one)")


def parse(words: Sequence[str], parse_run: Any) -> argparse.Namespace:
    """Parse the arguments after `launch`. parse_run: parses those of a run, which are passed on unchanged."""
    from workbench.cli import reward_model

    parser = Parser(prog=f"{output.PROGRAM} {NAME}", allow_abbrev=False)
    add_options(parser)
    args, rest = parser.parse_known_args(words)
    asked = parse_run(["--no-ui", *rest])  # reports mistakes once, before each rank does
    if asked.command not in _TRAINING or (asked.command == "reward-model" and asked.execute is not reward_model.train):
        parser.error(f"'{asked.command}' does not train")
    return argparse.Namespace(**vars(args) | {"execute": run, "rest": rest})


def _misplaced(args: argparse.Namespace) -> int:
    from trainer.errors import UsageError

    raise UsageError(f"{NAME} comes first: {output.PROGRAM} {NAME} --local 2 --config ...")


def run(args: argparse.Namespace) -> int:
    """Run `mlx.launch` to the end of all ranks, pass its messages on, and return the exit code of the first rank.

    Raises UsageError.
    """
    from trainer.errors import UsageError

    if args.local < 2:
        raise UsageError(f"--local gives {args.local} of the two or more ranks; for one, use {output.PROGRAM} --no-ui")
    last = 65536 - args.local
    if args.port is not None and not 1 <= args.port <= last:
        raise UsageError(f"--port gives {args.port}; use a number from 1 to {last:,}, for the {args.local} ranks")
    launcher, port = Path(sysconfig.get_path("scripts"), "mlx.launch"), args.port
    for first in range(32323, 60000, args.local) if port is None else ():  # the first free ones in a row
        with contextlib.ExitStack() as sockets:
            tried = [sockets.enter_context(socket.socket()) for _ in range(args.local)]
            if all(one.connect_ex(("127.0.0.1", first + place)) for place, one in enumerate(tried)):
                port = first
                break
    options = ["--repeat-hosts", str(args.local), "--backend", "ring", "--starting-port", str(port)]
    process = subprocess.Popen(
        [str(launcher), *options, "--", *own_command("--no-ui", *args.rest)],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # so that the terminal's Ctrl+C reaches nobody twice
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),  # and does not end mlx.launch
    )
    assert process.stdin
    assert process.stderr
    with contextlib.suppress(OSError):  # it has ended
        # mlx.launch polls without a pause while a rank's input can be written, and no rank reads any
        process.stdin.write("\n" * _PIPE_BYTES)
        process.stdin.flush()

    def interrupt(_: object) -> bool:
        os.killpg(process.pid, signal.SIGINT)  # to the first rank, which ends the others
        return False

    code = 0
    with handled_signals(interrupt):
        for line in process.stderr:
            sys.stderr.write(line)
            sys.stderr.flush()
            if (ended := _ENDED.search(line)) and ended[1] == "0":
                found = int(ended[2] or -signal.SIGTERM)
                code = found if found >= 0 else 128 - found
        return process.wait() or code
