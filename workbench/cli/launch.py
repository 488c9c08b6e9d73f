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
_NOT_STARTED = {  # by exit codes of ssh and of the shell
    255: "ssh to its host failed; check that it works without a password",
    127: "its host has no such Python; give the path that it has there with --python",
}
_PIPE_BYTES = 1 << 16

_DESCRIPTION = """\
Train one run in several processes, called ranks. All other arguments are those of a run without the screen:

  ppo-workbench launch --hosts hosts.json --config quickstart --set rollout.batch_size=32
  ppo-workbench launch --local 2 --resume quickstart-1

The first host keeps the run's folder, and ctrl+c stops the run there. Model, prompts and Python must have the same
paths on all hosts, and ssh must reach them without a password. See docs/memory.md.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `launch`; `main.parse` passes the other arguments on."""
    parser.description = _DESCRIPTION
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.usage = f"{parser.prog} (--hosts FILE | --local N) [OPTION ...] [ARGUMENT OF A RUN ...]"
    parser.set_defaults(execute=_misplaced)
    hosts = parser.add_mutually_exclusive_group()
    hosts.add_argument("--hosts", metavar="FILE", help="host file of mlx.launch (JSON)")
    hosts.add_argument("--local", metavar="N", type=int, help="start N ranks on this machine")
    parser.add_argument("--backend", choices=("ring", "jaccl", "jaccl-ring", "nccl"), help="MLX's backend")
    parser.add_argument("--port", metavar="N", type=int, help="first port of the ring (default: 32323)")
    parser.add_argument("--python", metavar="PATH", help="Python on the hosts (default: the path of this one)")
    parser.add_argument("--cwd", metavar="DIR", help="folder on the hosts (default: this one, where it exists)")


def parse(words: Sequence[str], parse_run: Any) -> argparse.Namespace:
    """Parse the arguments after `launch`. parse_run: parses those of a run, which are passed on unchanged."""
    from workbench.cli import reward_model

    parser = Parser(prog=f"{output.PROGRAM} {NAME}", module=__name__, allow_abbrev=False)
    args, rest = parser.parse_known_args(words)
    asked = parse_run(["--no-ui", *rest])  # reports mistakes once, before each rank does
    if asked.command not in _TRAINING or (asked.command == "reward-model" and asked.execute is not reward_model.train):
        parser.error(f"'{asked.command}' does not train")
    return argparse.Namespace(**vars(args) | {"execute": run, "rest": rest})


def _misplaced(args: argparse.Namespace) -> int:
    from trainer.errors import UsageError

    raise UsageError(f"{NAME} comes first: {output.PROGRAM} {NAME} --local 2 --config ...")


def run(args: argparse.Namespace) -> int:
    """Run `mlx.launch`; return the exit code of the first rank. Raises TrainerError for what a user can fix."""
    from trainer.errors import UsageError

    if args.local is None and args.hosts is None:
        raise UsageError(f"on which hosts? Give --hosts FILE or --local N; see '{output.PROGRAM} {NAME} --help'")
    if args.local is not None and args.local < 2:
        raise UsageError(f"--local gives {args.local} of the two or more ranks; for one, use {output.PROGRAM} --no-ui")
    if args.hosts is not None and not Path(args.hosts).is_file():
        raise UsageError(f"cannot read the hosts in {args.hosts}: check the path")
    port = args.port or (_free_port(args.local) if args.local else None)
    given = {
        "--hostfile": args.hosts,
        "--repeat-hosts": args.local,
        "--backend": args.backend or ("ring" if args.local else None),
        "--starting-port": port,
        "--cwd": args.cwd,
    }
    options = [word for name, value in given.items() if value is not None for word in (name, str(value))]
    command = own_command("--no-ui", *args.rest)
    command[:1] = [args.python or command[0]]
    launcher = Path(sysconfig.get_path("scripts"), "mlx.launch")
    return _launched([str(launcher), *options, "--", *command], is_local=args.hosts is None)


def _launched(command: Sequence[str], *, is_local: bool) -> int:
    """Run `mlx.launch` to the end of all ranks, pass its messages on, and return the exit code of the first rank.

    Raises RankError if a rank could not be started.
    """
    from trainer.errors import RankError

    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # so that the terminal's Ctrl+C reaches nobody twice
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),  # and ends neither mlx.launch nor ssh
    )

    def enter(text: str) -> None:
        assert process.stdin
        with contextlib.suppress(OSError):  # it has ended
            process.stdin.write(text)
            process.stdin.flush()

    def interrupt(_: object) -> bool:
        """Stop the first rank, which ends the others: by a signal here, by the terminal that ssh opened elsewhere."""
        os.killpg(process.pid, signal.SIGINT)
        enter("\x03")
        return False

    if is_local:  # mlx.launch polls without a pause while a rank's input can be written, and no rank reads any
        enter("\n" * _PIPE_BYTES)
    code, problem = 0, ""
    assert process.stderr
    with handled_signals(interrupt):
        for line in process.stderr:
            sys.stderr.write(line)
            sys.stderr.flush()
            if ended := _ENDED.search(line):
                rank, found = int(ended[1]), int(ended[2] or -signal.SIGTERM)
                if rank == 0:
                    code = found if found >= 0 else 128 - found
                problem = problem or (f"rank {rank}: {_NOT_STARTED[found]}" if found in _NOT_STARTED else "")
        failed = process.wait()
    if problem:
        raise RankError(problem)
    return failed or code


def _free_port(count: int) -> int:
    """Return the first of `count` ports in a row that nobody on this machine listens on, for two runs at a time."""

    def is_free(port: int) -> bool:
        with socket.socket() as one:
            return one.connect_ex(("127.0.0.1", port)) != 0

    ports = range(32323, 60000, count)
    return next(first for first in ports if all(is_free(port) for port in range(first, first + count)))
