"""`ppo-workbench` and `ppo-workbench watch`: the screen, and a run that outlives it.

Functions import what the screen's first frame does not need.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import traceback
from dataclasses import replace
from typing import TYPE_CHECKING

from workbench.cli.parser import add, dir_override
from workbench.opening import Opening
from workbench.system import output
from workbench.system.environment import colors, is_light, needs_ascii, state_dir
from workbench.system.output import native_output_to, new_log
from workbench.system.signals import INTERRUPTED, handled_signals, leave_now

if TYPE_CHECKING:
    from workbench.app import WorkbenchApp
    from workbench.run.supervisor import Supervisor

_CANNOT_PLACE = ("dumb", "unknown")  # terminals without a cursor to move, such as an editor's shell
_MANY_COLORS = 256  # enough to show the colours of a theme

_SWITCH_SECONDS = 0.001  # that the trainer holds Python's lock while the screen waits; a key waits several times


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `watch`."""
    parser.set_defaults(execute=watch)
    add(parser, "run", "--dir")


def run(args: argparse.Namespace) -> int:
    """Open the workbench as the command line says and return the exit code. Raises TrainerError.

    Where it cannot be shown, a run that the command line names is trained with the plain display.
    """
    if reason := _no_screen():
        if args.config_given is None and args.resume is None:
            from trainer.errors import UsageError

            raise UsageError(f"{reason}; to train here without it: {output.PROGRAM} --no-ui")
        from workbench.cli import train

        args.display = args.display or "plain"
        return train.train(args, notice=f"{reason}; training with the plain display")[0]
    return open_workbench(opening(args))


def _no_screen() -> str:
    """Return why the workbench cannot be shown; empty if it can."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return "the workbench needs a terminal"
    if os.environ.get("TERM", "").lower() in _CANNOT_PLACE:
        return f"TERM = {os.environ['TERM']!r} cannot show the workbench"
    return ""


def watch(args: argparse.Namespace) -> int:
    """Open the workbench on a run of another process, or on one that has ended."""
    from trainer.runs.folder import open_run
    from workbench.cli.config import runs_dir

    return open_workbench(Opening(watch=open_run(args.run, runs_dir(args)).root))


def opening(args: argparse.Namespace) -> Opening:
    """Return what to open: configuration, --set and --name, or the run of --resume. Raises TrainerError."""
    if args.display is not None:
        from trainer.errors import UsageError

        raise UsageError(f"--display {args.display} needs a headless run: add --no-ui")
    named = [f"run.name={args.name}"] if args.name is not None else []
    opening = Opening(source=args.config, overrides=(*args.overrides, *named, *dir_override(args)))
    given = [value for value in (args.config_given, args.name, args.resume) if value is not None]
    if not (given or args.overrides or args.trust_code):
        return opening  # the problems of a workspace's own configuration are shown in Config
    from trainer.config import Config
    from workbench.cli.config import asked_run
    from workbench.system.code_trust import is_given, remember, untrusted_code

    config, folder = asked_run(args, Config)  # which refuses here what it does without the screen
    if folder is not None:
        opening = Opening(resume=folder.root, overrides=tuple(args.overrides))
    if is_given(args):
        remember(untrusted_code(config.reward))
    return opening


def open_workbench(opening: Opening) -> int:
    """Show the screen until the user leaves, wait for a run that outlives it, and return the exit code."""
    if reason := _no_screen():
        from trainer.errors import UsageError

        raise UsageError(reason)
    shown = colors()
    if shown >= _MANY_COLORS:
        os.environ.setdefault("TEXTUAL_COLOR_SYSTEM", "truecolor" if shown > _MANY_COLORS else "256")
    if {"SSH_CONNECTION", "SSH_TTY"} & set(os.environ):
        os.environ.setdefault("TEXTUAL_FPS", "15")  # read when Textual is first imported
    os.environ["TEXTUAL_ANIMATIONS"] = "none"
    sys.setswitchinterval(_SWITCH_SECONDS)
    from workbench.app import WorkbenchApp
    from workbench.kit.theming import DEFAULT_THEMES

    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:  # by nohup; a run outlives its terminal anyway
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    log = new_log(state_dir())
    light, typed = is_light(sys.stdin.fileno(), sys.stdout.fileno())
    theme = DEFAULT_THEMES[shown >= _MANY_COLORS, light is True]
    app = WorkbenchApp(replace(opening, log=log), theme, typed=typed, ascii_only=needs_ascii())
    # Not asyncio's handlers, which end with its loop: a run may outlive the screen and still needs them.
    with handled_signals(app.handle_signal):
        with native_output_to(log):
            try:
                message = app.run()
            except BaseException as bug:  # noqa: BLE001  the run on the trainer's thread goes on, and needs its signals
                app.report.write("".join(traceback.format_exception(bug)))
                message = None
        if app.terminal_gone:
            nowhere = os.open(os.devnull, os.O_RDWR)
            for descriptor in (0, 1, 2):
                os.dup2(nowhere, descriptor)
        supervisor = app.main.supervisor if app.main is not None else None
        if supervisor is not None and supervisor.trains_here and not supervisor.stuck:
            _go_on_without(app, supervisor)
        elif trace := app.report.getvalue():
            output.crash(trace, state_dir())
    if message:
        output.note(message)
    if supervisor is not None and supervisor.stuck:
        leave_now()
    if app.refusal is not None:
        raise app.refusal
    return INTERRUPTED if app.ended_by is not None else app.return_code or int(bool(app.report.getvalue()))


def _go_on_without(app: WorkbenchApp, supervisor: Supervisor) -> None:
    """Wait for a run whose screen has gone, and say how to watch it if there still is a terminal."""
    if app.terminal_gone:
        supervisor.wait()
        return
    from workbench.run.sentences import short_path

    app.crashed = True
    if bug := app.report.getvalue():
        output.crash(bug, state_dir())
    supervisor.take()  # the run may have its folder since
    folder = supervisor.folder
    name, watch = (folder.name, f"watch {short_path(str(folder))}") if folder else ("the run", "runs, then watch RUN")
    output.note(f"the screen has closed, but {name} goes on training in this process")
    output.note(f"show it in another terminal with {output.PROGRAM} {watch}")
    output.note("ctrl+c saves a checkpoint and ends the run")
    supervisor.wait()
    ended = supervisor.view.ended
    output.note(supervisor.failure or f"{name} has ended: {ended.state if ended else 'unknown'}")
