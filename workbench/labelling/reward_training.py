"""Training of a reward model on the labels, in its own process that outlives the workbench."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

from trainer.config import Config
from trainer.errors import StorageError
from trainer.events import Event, RewardModelEvaluation, RewardModelStep, RunEnded, RunStarted
from trainer.runs.folder import RunFolder
from trainer.runs.journal import JournalReader
from workbench.system.output import PROGRAM
from workbench.system.processes import own_command

_NICENESS = 10  # labelling and a run in training go first
_LOG_BYTES = 16 * 1024
_NAME = "labels"
_STEPS, _BATCH, _MOST_EPOCHS = 70, 8, 10
_FEW = 500  # labels: with fewer, a tenth held out would measure next to nothing
_ERROR = f"{PROGRAM}: error: "


def settings_like(config: Config) -> dict[str, Any]:
    """Return reward model settings with the backbone and prompt format of the PPO configuration `config`.

    PPO and the reward model can then share the backbone.
    """
    model = config.model
    names = ("path", "revision", "adapter", "dtype", "quantize")
    return {f"model.{name}": getattr(model, name) for name in names} | {
        "data.chat": config.data.chat,
        "data.system": config.data.system,
    }


def settings_for(labels: int) -> dict[str, Any]:
    """Return settings that let a reward model learn from as few labels as people make in an afternoon.

    benchmarks/hidden_rule.py: at this learning rate it learns little from 200 rankings in 25 steps and a clear rule in
    70. With enough labels for 70 steps in one epoch, it trains for one epoch, the default.
    """
    epochs = min(max(round(_STEPS * _BATCH / max(labels, 1)), 1), _MOST_EPOCHS)
    few = {"data.eval_fraction": 0.2} if labels < _FEW else {}
    return {"train.batch_size": _BATCH, "train.epochs": epochs, "optim.lr": 5e-4, **few}


class RewardTraining:
    """Process that trains a reward model on the labels in `store`, as a new run in `run_dir`; starts at once.

    It runs `ppo-workbench reward-model train` with low priority and no terminal, and is read and controlled like any
    run: through its folder. settings: of its configuration, by dotted key. Call the methods on one thread. Raises
    StorageError if the process cannot be started; other errors are in `problem`.
    """

    def __init__(self, store: Path, run_dir: Path, settings: Mapping[str, Any] | None = None) -> None:
        self.run = run_dir.resolve() / _free_name(run_dir)  # exists once labels and model are loaded
        self.problem = ""  # why it ended before training was complete
        self._reader = JournalReader(RunFolder(self.run).events)
        self._started: RunStarted | None = None
        self._step: RewardModelStep | None = None
        self._before: RewardModelEvaluation | None = None
        self._after: RewardModelEvaluation | None = None
        self._end: RunEnded | None = None
        command = own_command("reward-model", "train", "--display", "plain")
        command += ["--data", str(store.resolve()), "--name", self.run.name]
        for key, value in {"run.dir": str(self.run.parent), **(settings or {})}.items():
            command += ["--set", f"{key}={_toml(value)}"]
        try:
            # An unnamed file: it leaves nothing behind, whichever of the two processes ends first.
            self._log = tempfile.TemporaryFile()  # noqa: SIM115  closed after it is read
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log, start_new_session=True
            )
        except OSError as error:
            raise StorageError(f"cannot train a reward model: {error}; do it with {PROGRAM} reward-model") from None
        with contextlib.suppress(OSError):  # it has ended already
            os.setpriority(os.PRIO_PROCESS, self._process.pid, _NICENESS)

    @property
    def done(self) -> bool:
        """Whether the process has ended, well or not."""
        return self._process.poll() is not None

    def poll(self) -> str:
        """Return the state in one line. Parts may come from the model or the labels and are not made visible."""
        done = self.done  # checked first, so that the last events before the end are read below
        try:
            for _, event in self._reader.poll():
                self._take(event)
        except StorageError as error:
            return f"{self.run.name}: {error}"
        if done and not self._log.closed:
            self.problem = self._failure()
            self._log.close()
        return f"{self.run.name}: {self._state(done)}"

    def _take(self, event: Event) -> None:
        match event:
            case RunStarted():
                self._started = event
            case RewardModelStep():
                self._step = event
            case RewardModelEvaluation():
                self._before = self._before or event
                self._after = event
            case RunEnded():
                self._end = event

    def _state(self, done: bool) -> str:
        if self.problem:
            return self.problem
        if done:
            return f"trained, {self._accuracy()}"
        if self._started is None:
            return "loading the labels and the model"
        if self._step is None:
            return "looking at how good it is untrained"
        at = f"step {self._step.iteration} of {self._started.iterations}, loss {self._step.loss:.3f}"
        return f"{at}, {self._accuracy()}"

    def _accuracy(self) -> str:
        before, after = self._before, self._after
        if before is None or after is None or not after.pairs:
            return "nothing held out"
        if after is before:
            return f"held-out accuracy {_percent(before.accuracy)} before"
        return (
            f"held-out accuracy {_percent(before.accuracy)} before, {_percent(after.accuracy)} after "
            f"({100 * after.accuracy_low:.0f} to {_percent(after.accuracy_high)}, {after.pairs} pairs)"
        )

    def _failure(self) -> str:
        """Return why the process ended before training was complete; empty if training is complete."""
        match self._end:
            case RunEnded(state="done"):
                return ""
            case RunEnded(state="stopped"):
                return f"{_line(self._end.reason)}, after step {self._end.iteration}"
            case RunEnded():
                return f"failed: {_line(self._end.reason)}"
        if self._process.returncode < 0:
            return f"was ended by signal {-self._process.returncode}"
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(size - _LOG_BYTES, 0))
        lines = self._log.read().decode(errors="replace").splitlines()
        errors = [line.removeprefix(_ERROR) for line in lines if line.startswith(_ERROR)]
        return f"failed: {errors[-1] if errors else (lines or ['it told no reason'])[-1]}"


def _free_name(run_dir: Path) -> str:
    numbers = [int(match[1]) for path in run_dir.glob("*") if (match := re.fullmatch(rf"{_NAME}-(\d+)", path.name))]
    return f"{_NAME}-{max(numbers, default=0) + 1:04d}"


def _toml(value: Any) -> str:
    return tomli_w.dumps({"v": value}).removeprefix("v = ").rstrip("\n")


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _line(text: str) -> str:
    return "; ".join(text.splitlines())
