"""Training of a reward model on the labels, in a process of its own, while labelling goes on."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer.config import Config
from trainer.errors import StorageError
from trainer.events import RewardModelEvaluation, RunEnded
from trainer.plurals import counted
from trainer.runs.folder import RunFolder, free_names
from trainer.runs.journal import JournalReader
from workbench.config.fields import toml_line
from workbench.numbers import number, percent
from workbench.run.view import RunView
from workbench.system.children import last_error, started
from workbench.system.environment import own_command
from workbench.system.output import PROGRAM

_NICENESS = 10  # labelling and a run in training go first
_STEPS, _BATCH, _MOST_EPOCHS = 70, 8, 10
_FEW = 500  # labels: with fewer, a tenth held out would measure next to nothing


def settings_like(config: Config) -> dict[str, Any]:
    """Return reward model settings with the backbone and prompt format of the PPO configuration `config`.

    PPO and the reward model can then share the backbone.
    """
    model = config.model
    names = ("path", "revision", "adapter", "dtype", "quantize")
    return {f"model.{name}": getattr(model, name) for name in names} | {
        "data.chat": config.data.chat,
        "data.system": config.data.system,
        "data.template": config.data.template,
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
    run: through its folder. settings: of its configuration, by dotted key. Call the methods on one thread at a time.
    Raises StorageError if `run_dir` cannot be read or the process cannot be started; other errors are in `problem`.
    """

    def __init__(self, store: Path, run_dir: Path, settings: Mapping[str, Any]) -> None:
        self.run = run_dir.resolve() / next(free_names(run_dir, "labels"))  # exists once labels and model are loaded
        self.problem = ""  # why it ended before training was complete
        self._reader = JournalReader(RunFolder(self.run).events)
        self._view = RunView()
        self._before: RewardModelEvaluation | None = None  # the first: the view keeps only the newest ones
        command = own_command("reward-model", "train", "--display", "plain")
        command += ["--data", str(store.resolve()), "--name", self.run.name]
        for key, value in {"run.dir": str(self.run.parent), **settings}.items():
            command += ["--set", toml_line(key, value)]
        try:
            # An unnamed file: it leaves nothing behind, whichever of the two processes ends first.
            self._log = tempfile.TemporaryFile()  # noqa: SIM115  closed after it is read
            self._process = started(command, self._log, self._log, niceness=_NICENESS, own_session=True)
        except OSError as error:
            raise StorageError(
                f"cannot train a reward model: {error}; train it with {PROGRAM} reward-model train"
            ) from None

    @property
    def is_loading(self) -> bool:
        """Return whether it has no folder yet."""
        return self._view.started is None

    @property
    def stopped(self) -> bool:
        """Return whether someone has ended it before it was complete."""
        return isinstance(self._view.ended, RunEnded) and self._view.ended.state == "stopped"

    @property
    def done(self) -> bool:
        """Return whether the process has ended, well or not."""
        return self._process.poll() is not None

    def poll(self) -> str:
        """Return the state in one line. Parts may come from the model or the labels and are not made visible."""
        done = self.done  # checked first, so that the last events before the end are read below
        try:
            for _, event in self._reader.poll():
                self._view.take(event)
                if isinstance(event, RewardModelEvaluation):
                    self._before = self._before or event
        except StorageError as error:
            return f"{self.run.name}: {error}"
        if done and not self._log.closed:
            self.problem = self._failure()
            self._log.close()
        return f"{self.run.name}: {self._state(done)}"

    def _state(self, done: bool) -> str:
        if self.problem:
            return self.problem
        if done:
            return f"trained, {self._accuracy()}"
        if self._view.started is None:
            return "loading the labels and the model"
        if not self._view.history:
            return "measuring the untrained baseline"
        loss = number(self._view.history.column("loss")[-1])
        return f"step {self._view.iteration} of {self._view.total}, loss {loss}, {self._accuracy()}"

    def _accuracy(self) -> str:
        before, after = self._before, self._view.held_out[-1] if self._view.held_out else None
        if before is None or after is None or not after.pairs:
            return "nothing held out"
        if after is before:
            return f"held-out accuracy {percent(before.accuracy)} before"
        return (
            f"held-out accuracy {percent(before.accuracy)} before, {percent(after.accuracy)} after "
            f"({number(100 * after.accuracy_low, 0)} to {percent(after.accuracy_high)}, {counted(after.pairs, 'pair')})"
        )

    def _failure(self) -> str:
        """Return why the process ended before training was complete; empty if training is complete."""
        match self._view.ended:
            case RunEnded(state="done"):
                return ""
            case RunEnded(state="stopped", reason=reason, iteration=step):
                return f"{'; '.join(reason.splitlines())}, after step {step}"
            case RunEnded(reason=reason):
                return f"failed: {'; '.join(reason.splitlines())}"
        if self._process.returncode < 0:
            return f"ended by signal {-self._process.returncode}"
        return f"failed: {last_error(self._log) or 'no reason given'}"
