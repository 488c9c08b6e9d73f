"""The run on the screen: the source of its events, its state, and the requests that it allows now."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Literal, NamedTuple

from trainer.config import Config
from trainer.engine.inbox import Command
from trainer.errors import ChangedPromptsError, TrainerError, UsageError
from trainer.events import Alarm, Fix, RunEnded, RunStarted, StateChanged
from trainer.questions import Answer, Question
from trainer.runs.checkpoint_files import checkpoints
from trainer.runs.folder import RunFolder, check_name_is_free
from trainer.runs.journal import TimedEvent
from workbench.run.history import MetricHistory
from workbench.run.run_on_disk import RunOnDisk
from workbench.run.threads import PolicyThread, Train, TrainingThread
from workbench.run.view import STARTING, RunView
from workbench.system.children import continue_headless
from workbench.system.output import bug_line, data

Request = Literal["start", "pause", "resume", "step", "checkpoint", "stop"]

_LINGERS = 3.0  # seconds that a process may take after the end of its run


class Found(NamedTuple):
    """News from a run's folder."""

    run: RunOnDisk
    events: list[TimedEvent]
    past: list[MetricHistory]  # pieces of a long journal's past, newest first


class Supervisor:
    """The connection between the screen and one run at a time. It does not depend on widgets.

    train: replaces the trainer in tests, as in `TrainingThread`.
    """

    def __init__(self, train: Train | None = None) -> None:
        self._train = train
        self._policies: PolicyThread | None = None  # set once a run that has ended is asked
        self.run: TrainingThread | RunOnDisk | None = None
        self._attach(None)

    def _attach(self, run: TrainingThread | RunOnDisk | None) -> None:
        """Let go of the run so far, and show `run` from its beginning."""
        self.close()
        self.run = run
        self.view = RunView()
        self._on_changed_data: Callable[[str], object] | None = None
        self.failure = ""  # why the trainer could not go on, for the user; empty while it can
        self._thread = run if isinstance(run, TrainingThread) else None  # while it is trained here
        self.past = run if isinstance(run, RunOnDisk) else None  # for `look`; of a run that is trained here, its past
        self._requested: Literal["", "pausing", "stopping", "aborting"] = ""  # and not done yet
        self._ended_at = -math.inf  # when the end of the run was read, on the monotonic clock

    @property
    def trains_here(self) -> bool:
        """Return whether a run is under way on this process's trainer thread."""
        return self._thread is not None

    @property
    def stuck(self) -> bool:
        """Return whether the process should end without the trainer, as `TrainingThread.stuck`."""
        return self._thread is not None and self._thread.stuck

    @property
    def note(self) -> str:
        """Activity that the run's own events do not report, such as `pausing`; empty for none."""
        if self._requested:
            return self._requested
        # Long after the end of the run, a live process is not the one that trained it until then.
        is_over = self.view.ended is not None and time.monotonic() - self._ended_at > _LINGERS
        if isinstance(self.run, RunOnDisk) and self.run.live and (self.view.started is None or is_over):
            return STARTING
        broken_off = self.view.started is not None and self.view.ended is None and not self.under_way
        return "interrupted" if broken_off and not self.failure else ""

    @property
    def folder(self) -> Path | None:
        """Folder of the run; None before there is one."""
        if isinstance(self.run, RunOnDisk):
            return self.run.folder
        return Path(self.view.started.folder) if self.view.started else None

    def shows(self, folder: Path) -> bool:
        """Return whether the run is the one in `folder`."""
        return self.folder is not None and self.folder.absolute() == folder.absolute()

    @property
    def under_way(self) -> bool:
        """Return whether the run is being trained, here or elsewhere."""
        return self.trains_here or (isinstance(self.run, RunOnDisk) and self.run.live)

    def allows(self, request: Request) -> bool:
        """Return whether `request` makes sense now."""
        pausing, ending = self._requested == "pausing", self._requested in ("stopping", "aborting")
        paused = self.view.state == "paused"
        match request:
            case "start":
                return not self.under_way
            case "pause":
                return self.under_way and not paused and not self._requested
            case "resume":
                return self.under_way and (paused or pausing) and not ending
            case "step":
                return not ending
            case "checkpoint" | "stop":
                return self.under_way and not ending

    def start(
        self,
        config: Config,
        *,
        preset: str = "run",
        resume: Path | None = None,
        past: Found | None = None,
        one_iteration: bool = False,
        accept_data: bool = False,
        on_changed_data: Callable[[str], object] | None = None,
    ) -> None:
        """Train `config` in this process, or continue the run in `resume`.

        past: what `opened` read of the run that continues; without it, it is read here. one_iteration: pause after one
        iteration. accept_data: go on although the run's prompts have changed. on_changed_data: called by `take`
        with the reason if they have, until `close`.

        Raises UsageError while another run trains here, or if the name is in use; then nothing changes.
        """
        self.check_free()
        if resume is None:
            check_name_is_free(config)
        thread = TrainingThread(config, resume=resume, preset=preset, train=self._train, accept_data=accept_data)
        self._attach(thread)
        self._on_changed_data = on_changed_data
        if config.ppo.kl_controller == "adaptive":
            self.view.kl_target = config.ppo.kl_target
        if resume is not None:  # show its journal, so that its charts do not start empty
            found = past or self.opened(resume)
            self.past = found.run
            for at, event in found.events:
                self.view.take(event, at)
            for chunk in found.past:
                self.view.history.prepend(chunk)
            self.view.ended = None
        self.view.take(StateChanged(state="loading"))  # at once: the trainer reports it after seconds of imports
        if one_iteration:
            thread.send("step")
        thread.start()

    def watch(self, folder: Path) -> None:
        """Show the run in `folder`, live or ended. Raises UsageError while another run trains here."""
        self.show(self.opened(folder))

    @staticmethod
    def opened(folder: Path) -> Found:
        """Read the run in `folder` for `show`. May be called on any thread."""
        run = RunOnDisk(folder)
        return _found(run, run.take_timed())

    def show(self, found: Found) -> None:
        """Show a run that was `opened`. Raises UsageError while another run trains here."""
        self.check_free()
        self._attach(found.run)
        self.fold(found)
        self._ended_at = -math.inf

    def ask(self, request: Literal["pause", "resume", "step", "checkpoint"]) -> None:
        """Send a request to the run's trainer, in any process. Raises UsageError, StorageError."""
        if self.run is None:
            raise UsageError("no run yet: start one")
        self.run.send(request)
        if request in ("pause", "resume"):
            self._requested = "pausing" if request == "pause" else ""

    def set(self, key: str, value: Any) -> None:
        """Change a live setting before the run's next iteration."""
        self._send("set", key=key, value=value)

    def _send(self, command: Command, **values: Any) -> None:
        if self.run is None or not self.under_way:
            raise UsageError(f"cannot {command}: no run is training; start one")
        self.run.send(command, **values)

    def fixes(self, alarm: Alarm) -> list[Fix]:
        """Return the available fixes of an active alarm; none for a run that cannot be steered any more."""
        if not self.allows("checkpoint") or alarm not in self.view.alarms:
            return []
        known = ("set", "rollback", "pause") if self.allows("pause") else ("set", "rollback")
        return [fix for fix in alarm.fixes if fix.action in known]  # a newer version may know more

    def apply(self, fix: Fix, reason: str) -> None:
        """Send a fix to the run's trainer, for `reason`. Raises UsageError, StorageError."""
        match fix.action:
            case "set":
                self.set(fix.key, fix.value)
            case "pause":
                self.ask("pause")
            case "rollback":
                self._send("rollback", to=None, reason=reason)

    def ask_model(self, question: Question, checkpoint: str = "") -> Future[Answer]:
        """Ask the run's model to write: its trainer while it is under way, else one of its `saved_policies`.

        checkpoint: its name; "" for the newest. Raises UsageError and StorageError; the Future may fail with those and
        with errors of loading a model. Other problems are in the Answer's `problem`.
        """
        # Not `under_way`, which is a second old: an ended run's questions would be refused until then.
        live = self.trains_here or (isinstance(self.run, RunOnDisk) and RunFolder(self.run.folder).is_live())
        if self.run is not None and live:
            if checkpoint:
                raise UsageError(f"cannot ask {checkpoint} while the run is training: ask the current policy")
            return self.run.ask(question)
        if self.folder is None:
            raise UsageError("no run yet: start one")
        if self._policies is None:
            self._policies = PolicyThread(self.folder)
        return self._policies.ask(question, checkpoint)

    def saved_policies(self) -> list[str]:
        """Return the names of the checkpoints that can be asked, newest first; none while the run is under way."""
        if self.folder is None or self.under_way:
            return []
        return [path.name for path in reversed(checkpoints(RunFolder(self.folder)).paths)]

    def close(self) -> None:
        """Release the policies that were loaded, and drop open questions. A run that is trained here goes on."""
        if self._policies is not None:
            self._policies.close()
        self._policies = None
        if isinstance(self.run, RunOnDisk):
            self.run.close()

    def take(self, timeout: float = 0) -> bool:
        """Fold the events of a run that trains here into the view; return whether there were any. Reads no file.

        timeout: seconds to wait for the first of them.
        """
        if (thread := self._thread) is None:
            return False
        changed = self._fold([(time.time(), event) for event in thread.take(timeout)])
        if thread.finished:
            self._conclude(thread)
            changed = True
        return changed

    def look(self) -> Found | None:
        """Read what is new in the run's folder; the view stays as it is. May be called on any thread, one at a time."""
        run = self.past
        return None if run is None else _found(run, run.take_timed() if run is self.run else [])

    def fold(self, found: Found) -> bool:
        """Fold what `look` has found into the view; return whether anything changed."""
        if found.run is not self.past:  # another run is shown since
            return False
        self._fold(found.events)
        for chunk in found.past:
            self.view.history.prepend(chunk)
        if found.run is self.run:
            self.view.problems = found.run.problems
            if any(isinstance(event, RunStarted) for _, event in found.events):
                self.view.kl_target = found.run.kl_target
        elif not found.past:
            self.past = None
        return bool(found.events or found.past)

    def _fold(self, events: Sequence[TimedEvent]) -> bool:
        for at, event in events:
            self.view.take(event, at)
            if isinstance(event, RunEnded):
                self._ended_at = time.monotonic()
            if isinstance(event, RunStarted) and self.trains_here:
                # Freeze what loading a model left behind: scanning it again would take the collector 0.2 s, in which
                # the screen ignores keys. Undone when the run is over.
                gc.collect()
                gc.freeze()
        if self._requested == "pausing" and (self.view.state == "paused" or not self.under_way):
            self._requested = ""
        return bool(events)

    def stop(self, reason: str = "stopped by the user") -> None:
        """Ask the run to save a checkpoint and end."""
        if self.run is not None:
            self._requested = "stopping" if self.trains_here else ""
            self.run.send("stop", reason=reason)

    def abort(self) -> None:
        """Ask the run to end at once, without a checkpoint."""
        if self.run is not None:
            self._requested = "aborting" if self.trains_here else ""
            self.run.send("abort")

    def wait(self) -> None:
        """Block until the run that is trained here has ended or is `stuck`."""
        while self.trains_here and not self.stuck:
            self.take(timeout=1.0)

    def detach(self) -> str:
        """Continue the run that has just stopped here headless; return a message. Raises StorageError."""
        folder = self.folder
        if folder is None or self.view.ended is None:
            return "the run had not started: start it with --no-ui"
        if self.view.ended.state != "stopped":
            return f"{folder.name} had already ended: {self.view.ended.state}"
        continue_headless(folder)
        return f"{folder.name} continues headless; show it with ppo-workbench watch {folder}"

    def check_free(self) -> None:
        """Raise UsageError while a run is trained here."""
        if self.trains_here:
            name = self.view.started.name if self.view.started else "a run"
            raise UsageError(f"{name} is training here: stop it, or quit and detach it")

    def _conclude(self, thread: TrainingThread) -> None:
        self._thread = None
        self._requested = ""
        gc.unfreeze()
        gc.collect()  # 0.1 s once, so that the model is gone before another is loaded
        try:
            thread.result()
        except TrainerError as error:
            self.failure = str(error)
            if isinstance(error, ChangedPromptsError) and self._on_changed_data is not None:
                self._on_changed_data(self.failure)
        except BaseException as bug:  # noqa: BLE001  the screen outlives its trainer and says what happened
            self.failure = bug_line(bug, self.folder, data, "its traceback is in the log")
        if self.failure and self.view.ended is None:
            self.view.state = "failed"
            self.view.phase = None
            self.view.is_starting = False


def _found(run: RunOnDisk, events: list[TimedEvent]) -> Found:
    chunks: list[MetricHistory] = []
    while len(chunks) < 2 and (chunk := run.earlier()) is not None:  # each reading is short
        chunks.append(chunk)
    return Found(run, events, chunks)
