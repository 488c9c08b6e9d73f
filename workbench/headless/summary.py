"""The summary that ends a headless run: how it went, where it is, and how to continue it."""

from __future__ import annotations

import shlex
from pathlib import Path

from trainer.events import DPOEvaluation
from trainer.plurals import counted
from trainer.runs.listing import PPO
from workbench.numbers import duration, number
from workbench.run.journal_source import whole_run
from workbench.run.metrics import training_command
from workbench.run.sentences import in_brief, rank_texts, short_path, title
from workbench.run.view import RunView
from workbench.system.output import PROGRAM


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
    lines += [("ranks", text) for text in rank_texts(view.last)]
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
        lines.append(
            ("score", f"{_course(score)} ({number(score[1] - score[0], signed=True)}), first and last five iterations")
        )
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


def _outcome(view: RunView) -> str:
    if view.ended is None:
        return f"interrupted after iteration {view.iteration} of {view.total}"
    words = f"{view.ended.state} after iteration {view.ended.iteration} of {view.total}"
    if view.ended.seconds:
        words += f", {duration(view.ended.seconds)}"
    return f"{words}: {view.ended.reason}" if view.ended.reason and view.ended.state != "done" else words
