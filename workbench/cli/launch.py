"""`ppo-workbench launch`: one run in several processes, on several machines or on this one."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from workbench.cli.parser import Parser
from workbench.system import output
from workbench.system.environment import own_command
from workbench.system.signals import INTERRUPTED, handled_signals

NAME = "launch"
_TRAINING = (None, "dpo", "reward-model")

_DESCRIPTION = """\
Train one run in several processes, called ranks. All other arguments are those of a run without the screen:

  ppo-workbench launch --hosts hosts.json --config quickstart --set rollout.batch_size=32
  ppo-workbench launch --local 2 --resume quickstart-1

The first host keeps the run's folder and hears ctrl+c. Model, prompts and Python must have the same paths on all hosts,
and ssh must reach them without a password. See docs/several-machines.md.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `launch`; `main.parse` passes the other arguments on."""
    from trainer.distributed.hosts import BACKENDS

    parser.description = _DESCRIPTION
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.usage = f"{parser.prog} (--hosts FILE | --local N) [OPTION ...] [ARGUMENT OF A RUN ...]"
    parser.set_defaults(execute=_misplaced)
    hosts = parser.add_mutually_exclusive_group()
    hosts.add_argument(
        "--hosts", metavar="FILE", help="JSON: a list of host names, or mlx.launch's own form with addresses"
    )
    hosts.add_argument("--local", metavar="N", type=int, help="start N ranks on this machine")
    parser.add_argument("--backend", choices=BACKENDS, help="MLX's backend (default: the file's, else ring)")
    parser.add_argument("--port", metavar="N", type=int, help="first port of the ring (default: 32323)")
    parser.add_argument("--python", metavar="PATH", help="Python on the hosts (default: the path of this one)")
    parser.add_argument("--cwd", metavar="DIR", help="folder on the hosts (default: this one, where it exists)")


def parse(words: Sequence[str], parse_run: Any) -> argparse.Namespace:
    """Parse the arguments after `launch`. parse_run: parses those of a run, which are passed on unchanged."""
    parser = Parser(prog=f"{output.PROGRAM} {NAME}", module=__name__, allow_abbrev=False)
    args, rest = parser.parse_known_args(words)
    asked = parse_run(["--no-ui", *rest])  # reports mistakes once, before each rank does
    if asked.command not in _TRAINING or (asked.command == "reward-model" and asked.execute is not _train_reward()):
        parser.error(f"'{asked.command}' does not train")
    return argparse.Namespace(**vars(args) | {"execute": run, "rest": rest})


def _train_reward() -> object:
    from workbench.cli.reward_model import train

    return train


def _misplaced(args: argparse.Namespace) -> int:
    from trainer.errors import UsageError

    raise UsageError(f"{NAME} comes first: {output.PROGRAM} {NAME} --local 2 --config ...")


def run(args: argparse.Namespace) -> int:
    """Start the ranks and return the run's exit code. Raises TrainerError for what a user can fix."""
    from trainer.distributed.hosts import LOCAL, free_port, local_hosts, read_hosts
    from trainer.distributed.launcher import Launcher
    from trainer.errors import UsageError

    if args.local is not None:
        hosts = local_hosts(args.local, args.backend)
    elif args.hosts is not None:
        hosts = read_hosts(Path(args.hosts), args.backend)
    else:
        raise UsageError(f"on which hosts? Give --hosts FILE or --local N; see '{output.PROGRAM} {NAME} --help'")
    port = args.port or (free_port(len(hosts.names)) if set(hosts.names) == {LOCAL} else 32323)
    command = own_command("--no-ui", *args.rest)
    command[:1] = [args.python or command[0]]
    launcher = Launcher(hosts, command, port=port, cwd=args.cwd)

    def pass_on(_: object) -> bool:
        launcher.interrupt()
        return False

    with handled_signals(pass_on):
        code = launcher.run()
    failed = launcher.failed_first
    if failed and code != INTERRUPTED and (failed.rank or failed.code < 0):  # else the run has said why
        how = f"killed by signal {-failed.code}" if failed.code < 0 else f"with exit code {failed.code}"
        output.note(f"rank {failed.rank} ({failed.host}) ended first, {how}")
    return code
