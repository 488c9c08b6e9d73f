"""`ppo-workbench --no-ui` and `dpo`: a run without the workbench, from the configuration to the exit code."""

from __future__ import annotations

import argparse
import errno
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from trainer.config import SCHEMAS, AnyConfig, Config
from trainer.config.pairs import DPOConfig, RewardModelConfig
from trainer.config.problems import validate_as
from trainer.distributed import join, rank_of_process
from trainer.errors import StorageError, TrainerError, counted
from trainer.events import RunStarted
from trainer.runs.listing import is_complete, summary_of
from workbench.cli.config import asked_run
from workbench.cli.parser import add, add_preference_training
from workbench.headless import Display, JsonDisplay, PlainDisplay, RichDisplay
from workbench.run.threads import TrainingThread
from workbench.system import output
from workbench.system.code_trust import is_given, require_trust
from workbench.system.signals import leave_now, stop_on_signals

_READER_GONE = (errno.EPIPE, errno.EIO)  # the pipe's reader ended; the terminal was closed
_READER_WENT = "the reader of the output went away"  # a reason to stop that nobody can be told
_STOPPING_SECONDS = 0.2  # between two looks at a run that is to stop


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `dpo`."""
    parser.set_defaults(execute=dpo)
    add_preference_training(parser, "dpo")
    add(parser, "--trust-code")


def dpo(args: argparse.Namespace) -> int:
    """Train a policy on preferences and return the exit code. Raises TrainerError for what a user can fix."""
    return train(args, DPOConfig)[0]


def train(args: argparse.Namespace, schema: type[AnyConfig] = Config, *, notice: str = "") -> tuple[int, Path | None]:
    """Train as the command line says; return the exit code, and the run's folder if there is one.

    notice: printed before the run starts. Raises TrainerError for what a user can fix.
    """
    if rank_of_process():
        return _follow(), None
    config, folder = asked_run(args, schema)
    if folder and isinstance(config, Config) and is_complete(folder, config.ppo.iterations):  # before loading: seconds
        done = summary_of(folder).iteration
        more = f"{output.PROGRAM} --no-ui --resume {args.resume} --set ppo.iterations={2 * done}"
        output.note(f"{folder.name} is complete after {counted(done, 'iteration')}; continue with {more}")
        return 0, folder.root
    if not isinstance(config, RewardModelConfig):
        require_trust(config.reward, given=is_given(args, schema))
    if notice:
        output.note(notice)
    preset = args.config if schema is Config else args.config_given or ""  # what a new run is named after
    resume = None if folder is None else folder.root
    thread = TrainingThread(config, resume=resume, preset=str(preset), accept_data=args.accept_data)
    return headless(thread, choose_display(args.display))


def _follow() -> int:
    """Train as another rank than the first, which sends it all and reports for it; return the exit code."""
    from trainer.engine.training import follow, release_thread

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first rank gets it too, and ends all of them
    try:
        ranks = join()
        if (order := ranks.receive())["do"] != "end":
            raw = order["config"]
            follow(ranks, validate_as(SCHEMAS[raw.get("kind", "ppo")], raw))
    finally:
        release_thread()
    return 0


def choose_display(name: str | None, stdout: TextIO | None = None) -> Display:
    """Return the display called `name`; without a name, `rich` on a terminal and `plain` elsewhere."""
    stdout = stdout or sys.stdout
    if name is None:
        name = "rich" if stdout.isatty() and os.environ.get("TERM") != "dumb" else "plain"
    return {"rich": RichDisplay, "plain": PlainDisplay, "json": JsonDisplay}[name](stdout)


def headless(thread: TrainingThread, display: Display) -> tuple[int, Path | None]:
    """Show the run of `thread` on `display`, and handle signals; return the exit code and the run's folder.

    The run is stopped when the display's reader goes away.
    """
    folder: Path | None = None
    noticed = False

    @contextmanager
    def reader_may_go() -> Iterator[None]:
        nonlocal display
        try:
            yield
        except OSError as problem:
            if problem.errno not in _READER_GONE:
                raise StorageError(f"cannot write to the output: {problem.strerror}: redirect it") from None
            display = Display()
            output.discard_stdout()
            thread.stop(_READER_WENT)

    if rank_of_process() == 0:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # `launch` has its children ignore it
        # mlx.launch sends it when another rank is lost. The run ends by itself then, with its own exit code.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with stop_on_signals(thread.stop), thread:
            try:
                while not (thread.finished or thread.stuck):
                    events = thread.take(_STOPPING_SECONDS if noticed else display.interval)
                    with reader_may_go():
                        for event in events:
                            if isinstance(event, RunStarted):
                                folder = Path(event.folder)
                            display.show(event)
                        if thread.stop_reason and not noticed:
                            noticed = True
                            if thread.stop_reason != _READER_WENT:
                                how = "saving a checkpoint; Ctrl+C ends at once without one"
                                output.note(f"{thread.stop_reason}: {how}")
                        display.refresh()
            finally:
                with reader_may_go():
                    display.close()
            if thread.stuck:
                output.note("the run had not begun, and nothing of it is kept")
                leave_now()
            return thread.result().exit_code, folder
    except TrainerError:
        raise
    except Exception as bug:  # noqa: BLE001 - a user gets one line, the traceback goes to a file
        output.crash(bug, folder)
        return 1, folder
