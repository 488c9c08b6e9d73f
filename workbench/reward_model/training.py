"""Training of a reward model on the labels, in a process of its own, and its use as the reward of a run."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainer.config import Config
from trainer.errors import counted, storage_error
from trainer.reward_model.predictions import Predictions
from trainer.runs.folder import free_names
from workbench.reward_model.verdict import verdict
from workbench.run.run_on_disk import whole_run
from workbench.run.view import RunView
from workbench.system.children import last_error, own_command, started
from workbench.system.output import PROGRAM
from workbench.text import number, percent, visible

FEW = 100  # labels; below, a fifth of them is too few pairs to tell 70% from chance
_NICENESS = 10  # labelling and a run in training go first
_STEPS, _BATCH, _MOST_EPOCHS = 70, 8, 10
_FEW_TO_HOLD_OUT = 500  # labels: with fewer, a tenth held out would measure next to nothing


def settings_for(labels: int, like: Config | None = None) -> dict[str, Any]:
    """Return settings that let a reward model learn from as few labels as people make in an afternoon.

    like: a PPO configuration whose backbone and prompt format it gets, so that both can share the backbone.

    benchmarks/hidden_rule.py (b9e8a6a): at this learning rate it learns little from 200 rankings in 25 steps
    and a clear rule in 70. With enough labels for 70 steps in one epoch, it trains for one epoch, the default.
    """
    epochs = min(max(round(_STEPS * _BATCH / max(labels, 1)), 1), _MOST_EPOCHS)
    settings = {"train.batch_size": _BATCH, "train.epochs": epochs, "optim.lr": 5e-4}
    if labels < _FEW_TO_HOLD_OUT:
        settings["data.eval_fraction"] = 0.2
    if like is not None:
        for name in ("path", "revision", "adapter", "dtype", "quantize"):
            settings[f"model.{name}"] = getattr(like.model, name)
        for name in ("chat", "system", "template"):
            settings[f"data.{name}"] = getattr(like.data, name)
    return settings


class RewardTraining:
    """Process that trains a reward model on the labels in `store`, as a new run in `run_dir`; starts at once.

    It runs `ppo-workbench reward-model train` with low priority and no terminal, and is read and controlled like any
    run: through its folder. settings: assignments as after --set. Raises StorageError if `run_dir` cannot be read or
    the process cannot be started.
    """

    def __init__(self, store: Path, run_dir: Path, settings: Sequence[str]) -> None:
        self.run = run_dir.absolute() / next(free_names(run_dir, "labels"))  # exists once labels and model are loaded
        command = own_command("reward-model", "train", "--display", "plain", "--data", str(store.resolve()))
        command += ["--name", self.run.name, "--dir", str(self.run.parent)]
        for assignment in settings:
            command += ["--set", assignment]
        with storage_error("cannot train a reward model", f"train it with {PROGRAM} reward-model train"):
            # An unnamed file: it leaves nothing behind, whichever of the two processes ends first.
            self._log = tempfile.TemporaryFile()  # noqa: SIM115  closed after it is read
            self.process = started(command, self._log, self._log, niceness=_NICENESS, own_session=True)

    @property
    def done(self) -> bool:
        """Return whether the process has ended, well or not."""
        return self.process.poll() is not None

    def progress(self) -> str:
        """Read from the run's folder how far it is, in one line; on a thread."""
        view = whole_run(self.run)
        if view.started is None:
            stage = "loading the labels and the model"
        elif not view.history:
            stage = "measuring the untrained baseline"
        else:
            loss = number(view.history.column("loss")[-1])
            stage = f"step {view.iteration} of {view.total}, loss {loss}, {_accuracy(view)}"
        return f"{self.run.name}: {stage}"

    def end(self) -> tuple[str, str]:
        """Read how the process has ended, once it is `done`; on a thread, and only once.

        Returns done, stopped or failed, and a line. Parts of it may come from the model or the labels.
        """
        view = whole_run(self.run)
        with self._log:
            printed = last_error(self._log)
        ended, code, name = view.ended, self.process.returncode, self.run.name
        if ended is None:
            why = f"ended by signal {-code}" if code < 0 else f"failed: {printed or 'no reason given'}"
            return "failed", f"{name}: {why}"
        reason = "; ".join(ended.reason.splitlines())
        texts = {"done": f"trained, {_accuracy(view)}", "stopped": f"{reason}, after step {ended.iteration}"}
        return ended.state, f"{name}: {texts.get(ended.state, f'failed: {reason}')}"


def _accuracy(view: RunView) -> str:
    before, after = (view.held_out[0], view.held_out[-1]) if view.held_out else (None, None)
    if before is None or after is None or not after.pairs:
        return "nothing held out"
    if after is before:
        return f"held-out accuracy {percent(before.accuracy)} before"
    return (
        f"held-out accuracy {percent(before.accuracy)} before, {percent(after.accuracy)} after "
        f"({number(100 * after.accuracy_low, 0)} to {percent(after.accuracy_high)}, {counted(after.pairs, 'pair')})"
    )


def rewarded_by(model: Path, before: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return reward sources in which only the reward model in the run `model` counts.

    The previous sources stay with a weight of 0, so that the charts still show them. Previous reward models are removed
    because they cost memory.
    """
    kept = [{**source, "weight": 0.0} for source in before if source["kind"] != "model"]
    return [{"kind": "model", "path": str(model.absolute())}, *kept]


def quality_text(view: RunView, predictions: Predictions | None) -> str:
    """Describe how good the reward model of a run is on held-out pairs, a sentence per line; ⚠ marks what is weak."""
    done = view.ended is not None and view.ended.state == "done"  # also if it ended early because it learnt no more
    lines = [] if done else [f"⚠ Not finished: step {view.iteration} of {view.total}."]
    return "\n".join([*lines, verdict(view, predictions).removeprefix("✓ ")])


def change_text(before: Sequence[dict[str, Any]], after: Sequence[dict[str, Any]]) -> str:
    """Describe the change of the reward sources, one sentence per line."""

    def names(sources: Sequence[dict[str, Any]], *, weighted: bool) -> list[str]:
        chosen = [source for source in sources if bool(source.get("weight", 1.0)) is weighted]
        return [visible(Path(one["path"]).name if "path" in one else one["kind"]) for one in chosen]

    now, unweighted = names(before, weighted=True), names(after, weighted=False)
    sentences = [f"Current reward: {' + '.join(now)}."] if now else []
    if unweighted:
        sentences.append(f"Still measured with weight 0: {', '.join(unweighted)}.")
    return "\n".join(sentences)
