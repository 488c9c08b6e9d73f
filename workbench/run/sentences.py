"""Sentences about events that are not rows of numbers, and the summary at the end."""

from __future__ import annotations

import math
import shlex
from pathlib import Path

from trainer.control.live_settings import in_words
from trainer.events import (
    Alarm,
    Alert,
    CheckpointSaved,
    Decision,
    DPOEvaluation,
    Evaluation,
    Event,
    HumanEvaluation,
    RewardModelEvaluation,
    RolledBack,
    RunStarted,
    SettingChanged,
    StateChanged,
)
from trainer.plurals import counted
from trainer.runs.listing import PPO
from workbench.numbers import duration, number
from workbench.run.journal_source import whole_run
from workbench.run.metrics import training_command
from workbench.run.view import RunView
from workbench.run.wording import (
    AnyEvaluation,
    alert_text,
    held_out,
    in_brief,
    parts,
    reference_win_rate,
    title,
    win_rate,
)
from workbench.system.output import PROGRAM

_LEVELS = {"info": "note"}  # else the level itself
_ACTIONS = {"rollback": "roll back"}  # else the action itself


def sentences(event: Event) -> list[str]:
    """Describe `event` in lines of text; none for an event that is shown as numbers."""
    match event:
        case RunStarted():
            return _run(event)
        case StateChanged(state="loading"):
            return ["loading the model"]
        case StateChanged(state="paused"):
            return [f"paused: resume it in '{PROGRAM} watch'"]
        case SettingChanged():
            lines = [f"{event.key} changed from {in_words(event.old)} to {in_words(event.value)}"]
        case Evaluation() | RewardModelEvaluation() | HumanEvaluation():
            lines = [_evaluation(event)]
        case CheckpointSaved():
            lines = [f"checkpoint {event.path}, {duration(event.seconds)}"]
        case RolledBack():
            lines = [alert_text(event)]
        case Decision():
            lines = [f"decision to {_ACTIONS.get(event.action, event.action)}: {event.message}"]
        case Alert():
            lines = [f"{_LEVELS.get(event.level, event.level)}: {alert_text(event)}"]
            if isinstance(event, Alarm):
                lines.append(f"advice: {event.advice}")
                if event.fixes:
                    lines.append(f"the workbench offers: {'; '.join(fix.label for fix in event.fixes)}")
        case _:
            return []
    return [f"iteration {event.iteration}: {line}" for line in lines]


def summary(view: RunView) -> list[tuple[str, str]]:
    """Return labels and texts: how the run went, where it is, how to continue. Empty when no run started.

    For a resumed run, `view` has only the last part, so the journal is read for the rest.
    """
    if view.started is not None and view.started.resumed_at is not None:
        whole = whole_run(Path(view.started.folder))
        if whole.started is not None and whole.ended == view.ended:  # else the journal is gone, or damaged
            view = whole
    if view.started is None:
        return []
    lines = [("run", f"{view.started.name}: {_outcome(view)}")]
    lines += _learnt(view)
    if view.active_alarms:
        lines.append(("alarms", ", ".join(f"{title(code)} ({level})" for code, level in view.active_alarms.items())))
    folder = short_path(view.started.folder)
    lines.append(("folder", folder))
    if checkpoint := (view.ended and view.ended.checkpoint) or (view.checkpoints and view.checkpoints[-1].path):
        lines.append(("checkpoint", checkpoint))
        if view.state != "done" or view.started.run_kind == PPO:  # other kinds cannot be extended once done
            kind = view.started.run_kind
            command = f"{training_command(kind) or PROGRAM} --resume {shlex.quote(folder)}"
            more = f" --set ppo.iterations={2 * view.total}" if kind == PPO and view.state == "done" else ""
            lines.append(("resume", command + more))
    lines.append(("inspect", f"{PROGRAM} runs --dir {shlex.quote(str(Path(folder).parent))}"))
    return lines


def _learnt(view: RunView) -> list[tuple[str, str]]:
    """Return labels and texts: the progress of the main numbers of the run."""
    lines = []
    if view.history and view.history.kind == PPO:
        score, kl = view.first_and_last("score_mean"), view.first_and_last("kl")
        lines.append(("score", f"{_course(score)} ({score[1] - score[0]:+.3f}), first and last five iterations"))
        lines.append(("KL", f"{_course(kl)} nats a sequence"))
    elif view.history:
        lines.append(("loss", f"{_course(view.first_and_last('loss'))}, first and last five iterations"))
    if view.held_out:
        last = view.held_out[-1]
        lines.append(
            (
                "held out",
                f"accuracy {_course((last.untrained_accuracy, last.accuracy))} "
                f"({number(last.accuracy_low)} to {number(last.accuracy_high)}) of {counted(last.pairs, 'pair')}, "
                f"by length alone {number(last.length_accuracy)}",
            )
        )
        if isinstance(last, DPOEvaluation):
            lines.append(("KL", f"{number(last.kl)} nats a token"))
    if view.evaluations:
        lines.append(("evaluation", in_brief(view.evaluations[-1])))
    if view.judged:
        lines.append(("people", in_brief(view.judged)))
    return lines


def _course(ends: tuple[float, float]) -> str:
    return f"{number(ends[0])} -> {number(ends[1])}"


def short_path(path: str) -> str:
    """Return `path` relative to the current folder when it is inside, else unchanged."""
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except ValueError:
        return path


def _run(event: RunStarted) -> list[str]:
    share = 100 * event.trainable / event.parameters if event.parameters else math.nan
    lines = [
        f"run {event.name} in {short_path(event.folder)}",
        f"model {event.model}, {event.parameters / 1e6:.1f}M parameters, {event.trainable / 1e6:.2f}M "
        f"trained ({share:.2f}%), {event.dtype} on {event.device}, seed {event.seed}",
        f"{counted(event.prompts, 'prompt' if event.run_kind == PPO else 'comparison')}, "
        f"{event.eval_prompts:,} held out, {counted(event.iterations, 'iteration')}",
    ]
    if event.resumed_at is not None:
        lines.append(f"resumed after iteration {event.resumed_at}")
    return lines + [f"warning: {warning}" for warning in event.warnings]


def _evaluation(event: AnyEvaluation) -> str:
    match event:
        case HumanEvaluation():
            people = counted(event.labellers, "person", "people")
            counts = f"{event.wins} for the policy, {counted(event.ties, 'tie')}, {event.losses} for the reference"
            return f"{win_rate(event)} of {counted(event.comparisons, 'comparison')} by {people}: {counts}"
        case RewardModelEvaluation():
            learnt = ""
            if isinstance(event, DPOEvaluation):
                learnt = f", lead {number(event.lead)}, KL {number(event.kl)} nats a token"
            return (
                f"{held_out(event)} of {counted(event.pairs, 'pair')}, log-loss {number(event.log_loss)}{learnt}; "
                f"by length alone {number(event.length_accuracy)}, untrained {number(event.untrained_accuracy)}, "
                f"{duration(event.seconds)}"
            )
        case Evaluation():
            text = f"evaluation on {counted(event.prompts, 'prompt')}: score {number(event.score_mean)}"
            if math.isfinite(event.score_low) and math.isfinite(event.score_high):
                text += f" ({number(event.score_low)} to {number(event.score_high)})"
            text += f"{parts(event.parts)}, deviation {number(event.score_std)}, KL {number(event.kl)} nats a sequence"
            if math.isfinite(event.win_rate):
                text += f", {reference_win_rate(event)} against the reference's {number(event.reference_score)}"
            if math.isfinite(event.best_of_score):
                text += f", whose best of {event.best_of} score {number(event.best_of_score)}"
            if math.isfinite(event.explained_variance):
                variance = number(event.explained_variance, 2)
                text += f", values off by {number(event.value_error)} explain {variance} of the variance"
            return f"{text}, {duration(event.seconds)}"


def _outcome(view: RunView) -> str:
    if view.ended is None:
        return f"interrupted after iteration {view.iteration} of {view.total}"
    words = f"{view.ended.state} after iteration {view.ended.iteration} of {view.total}"
    if view.ended.seconds:
        words += f", {duration(view.ended.seconds)}"
    return f"{words}: {view.ended.reason}" if view.ended.reason and view.ended.state != "done" else words
