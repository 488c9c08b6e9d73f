"""Events in words, for what is not a row of numbers, and the summary at the end."""

from __future__ import annotations

import math
import shlex
from pathlib import Path

from trainer.events import (
    Alert,
    CheckpointSaved,
    Evaluation,
    Event,
    RewardModelEvaluation,
    RunStarted,
    SettingChanged,
    StateChanged,
)
from trainer.run_list import PPO
from workbench.output import PROGRAM
from workbench.run_view import RunView
from workbench.text import duration

_LEVELS = {"info": "note", "warning": "warning", "error": "error"}


def sentences(event: Event) -> list[str]:
    """What to tell about `event`, one line each; empty for what is shown as numbers."""
    match event:
        case RunStarted():
            return _run(event)
        case StateChanged(state="loading"):
            return ["loading the model"]
        case StateChanged(state="paused"):
            return [f"paused: '{PROGRAM} watch' lets it go on"]
        case SettingChanged():
            return [f"iteration {event.iteration}: {event.key} = {event.value} from here on, it was {event.old}"]
        case Evaluation():
            return [
                f"iteration {event.iteration}: evaluation on {event.prompts} prompts: "
                f"score {_number(event.score_mean)} (deviation {_number(event.score_std)}), "
                f"KL {_number(event.kl)} nats a sequence, {duration(event.seconds)}"
            ]
        case RewardModelEvaluation():
            return [
                f"iteration {event.iteration}: held-out accuracy {_number(event.accuracy)} "
                f"({_number(event.accuracy_low)} to {_number(event.accuracy_high)}) of {event.pairs} pairs, log-loss "
                f"{_number(event.log_loss)}; by length alone {_number(event.length_accuracy)}, untrained "
                f"{_number(event.untrained_accuracy)}, {duration(event.seconds)}"
            ]
        case CheckpointSaved():
            return [f"iteration {event.iteration}: checkpoint {event.path}, {duration(event.seconds)}"]
        case Alert():
            return [f"iteration {event.iteration}: {_LEVELS[event.level]}: {event.message}"]
    return []


def summary(view: RunView) -> list[tuple[str, str]]:
    """Labels and texts: how the run went, where it lies, how to go on. Empty when no run started."""
    if view.started is None:
        return []
    lines = [("run", f"{view.started.name}: {_outcome(view)}")]
    if view.history:
        score, kl = view.first_and_last("score_mean"), view.first_and_last("kl")
        change = score[1] - score[0]
        scores = f"{_number(score[0])} -> {_number(score[1])} ({change:+.3f})"
        lines.append(("score", f"{scores}, first and last five iterations"))
        lines.append(("KL", f"{_number(kl[0])} -> {_number(kl[1])} nats a sequence"))
    folder = short_path(view.started.folder)
    lines.append(("folder", folder))
    if checkpoint := (view.ended and view.ended.checkpoint) or (view.checkpoint and view.checkpoint.path):
        lines.append(("checkpoint", checkpoint))
        if view.state != "done" or view.started.run_kind == PPO:  # another kind that is done cannot be prolonged
            lines.append(("resume", _resume(view, folder)))
    lines.append(("inspect", f"{PROGRAM} runs --dir {shlex.quote(str(Path(folder).parent))}"))
    return lines


def short_path(path: str) -> str:
    """`path` relative to the current folder when it lies inside, else as it is."""
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except ValueError:
        return path


def _run(event: RunStarted) -> list[str]:
    share = 100 * event.trainable / event.parameters if event.parameters else math.nan
    lines = [
        f"run {event.name} in {short_path(event.folder)}",
        f"model {event.model}, {event.parameters / 1e6:.1f}M parameters, {event.trainable / 1e6:.2f}M "
        f"trained ({share:.2f} %), {event.dtype} on {event.device}, seed {event.seed}",
        f"{event.prompts} {'prompts' if event.run_kind == PPO else 'comparisons'}, {event.eval_prompts} held out, "
        f"{event.iterations} iterations",
    ]
    if event.resumed_at is not None:
        lines.append(f"resumed after iteration {event.resumed_at}")
    return lines + [f"warning: {warning}" for warning in event.warnings]


def _outcome(view: RunView) -> str:
    if view.ended is None:
        return f"broken off after iteration {view.iteration} of {view.total}"
    words = f"{view.ended.state} after iteration {view.ended.iteration} of {view.total}"
    if view.ended.seconds:
        words += f", {duration(view.ended.seconds)}"
    return f"{words}: {view.ended.reason}" if view.ended.reason and view.ended.state != "done" else words


def _resume(view: RunView, folder: str) -> str:
    if view.started and view.started.run_kind != PPO:
        command = {"reward-model": "reward-model train"}.get(view.started.run_kind, view.started.run_kind)
        return f"{PROGRAM} {command} --resume {shlex.quote(folder)}"
    command = f"{PROGRAM} --no-ui --resume {shlex.quote(folder)}"
    return f"{command} --set ppo.iterations={2 * view.total}" if view.state == "done" else command


def _number(value: float) -> str:
    return f"{value:.3f}" if math.isfinite(value) else "-"
