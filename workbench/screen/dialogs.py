"""Dialogs of the main screen: before a run starts, when the user leaves, and whether to trust code."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple

from textual.binding import BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.widgets import Button, Static

from trainer.config import Config, config_warnings
from trainer.engine.branching import BranchPlan, plan_warnings
from trainer.errors import counted
from trainer.events import plain
from trainer.rewards.code import Code
from trainer.runs.checkpoint_files import iteration_of, newest_checkpoint
from trainer.runs.folder import RunFolder, check_name_is_free, free_names, name_of
from trainer.runs.listing import summary_of
from workbench.config.estimates import estimate
from workbench.config.fields import fields_by_key, shown, toml_line
from workbench.kit.dialog import AnswerScreen, ConfirmScreen, Reply, button_label
from workbench.kit.keys import bind
from workbench.run.sentences import change_words
from workbench.system.code_trust import code_text
from workbench.system.machine import room_for
from workbench.system.output import PROGRAM
from workbench.text import gigabytes, visible

_NAMED = 4  # most changed settings that are named


class QuitScreen(AnswerScreen):
    """Dialog that asks what should happen to the run called `run` when the user leaves; None means to stay."""

    BINDINGS: ClassVar[list[BindingType]] = [bind("escape", "dismiss", "stay", "quit.stay", "Close this dialog")]

    def __init__(self, run: str) -> None:
        answers = (
            Reply("stop", "Stop and save", "save a checkpoint, then leave"),
            Reply("detach", "Detach", "continue headless; watch shows it again"),
            Reply("abort", "Abort", "leave at once, without a checkpoint"),
        )
        super().__init__(f"{run} is training. What should happen to it?", answers)


class UnsavedScreen(ConfirmScreen):
    """Dialog that asks whether to discard the changes of the configuration `name`. saves: to save them instead."""

    BINDINGS: ClassVar[list[BindingType]] = [
        bind("w", "save", "save", "unsaved.save", "Save the configuration, then go on")
    ]

    def __init__(self, name: str) -> None:
        save = Button(button_label("w", "Save"), compact=True, id="save", action="screen.save")
        super().__init__(f"{name} has unsaved changes.", yes="Discard changes", no="Keep changes", more=[save])
        self.saves = False

    def action_save(self) -> None:
        self.saves = True
        self.dismiss(True)


class TrustScreen(ConfirmScreen):
    """Dialog that shows the code that the reward would run, and asks whether it may."""

    def __init__(self, codes: Sequence[Code]) -> None:
        shown = [f"{visible(code.name)}\nSHA-256 {code.sha256 or 'unknown'}\n\n{code_text(code)}\n" for code in codes]
        detail = [
            VerticalScroll(*(Static(text, markup=False) for text in shown), classes="code"),
            Static("It has all your permissions, now and in every later run that uses it.", classes="detail"),
        ]
        super().__init__("You have not trusted this version of what the reward uses.", detail, "Trust", "Cancel")


class Plan(NamedTuple):
    """Summary of the run that would start, for the user to agree to."""

    question: str
    facts: Sequence[tuple[str, str]]
    """Pairs of a label and a text, the most important first."""
    warnings: Sequence[str]


def start_plan(config: Config, preset: str, changed: Sequence[str], *, one_iteration: bool) -> Plan:
    """Return the plan of a new run. Reads files; raises UsageError for a name in use, StorageError.

    preset: what the run is named after. changed: keys of the settings that differ from it.
    """
    check_name_is_free(config)
    runs_dir = Path(config.run.dir)
    folder = runs_dir / (config.run.name or next(free_names(runs_dir, name_of(preset))))
    what = "one iteration, then pause" if one_iteration else str(config.ppo.iterations)
    differs = ", ".join(changed[:_NAMED]) + (f" and {len(changed) - _NAMED} more" if changed[_NAMED:] else "")
    changes = [("changed", differs)] if differs else []
    return Plan("Start this run?", [*_material(config, what, folder), *changes], config_warnings(config))


def resume_plan(folder: Path, config: Config) -> Plan:
    """Return the plan of continuing the run in `folder` with `config`. Reads files."""
    run = RunFolder(folder)
    checkpoint, damaged = newest_checkpoint(run)
    if checkpoint is None:
        begins = "no checkpoint was saved: the run begins again"
    else:
        begins = f"{checkpoint.name}, iteration {iteration_of(checkpoint)} of {config.ppo.iterations}"
    facts = [("checkpoint", begins), *_material(config, str(config.ppo.iterations), folder)]
    return Plan(f"Resume {run.name}?", facts, damaged + config_warnings(config))


def branch_question(plan: BranchPlan) -> Plan:
    """Return the plan of making the one branch of `plan` and training it, and the command that makes several."""
    [branch] = plan.branches
    at, last = branch.branched_from.iteration, branch.config.ppo.iterations
    changes = [change_words(key, old, new) for key, (old, new) in plan.changes.items()]
    settings = [word for key, (_, new) in plan.changes.items() for word in ("--set", toml_line(key, plain(new)))]
    seeds = [*settings, *(["--control"] if settings else []), "--seeds", "3"]
    state = summary_of(RunFolder(plan.parent.root.with_name(branch.name))).state if not branch.is_new else ""
    facts = [
        ("branch", f"{branch.name}, iterations {at + 1} to {last}{f'; exists already, {state}' if state else ''}"),
        ("changed", ", ".join(changes) or "no setting: it does the same as the run from there on"),
        *_material(branch.config, str(last - at)),
        ("three seeds", shlex.join([PROGRAM, "branch", str(plan.parent.root), "--at", str(at), *seeds])),
    ]
    return Plan(f"Branch {plan.parent.name} after iteration {at}?", facts, plan_warnings(plan))


def _material(config: Config, iterations: str, folder: Path | None = None) -> list[tuple[str, str]]:
    needed, total = estimate(config), room_for(config.model)
    if needed.memory_bytes is None:
        memory = f"unknown: {needed.basis.rpartition('; ')[2]}"
    else:
        more = ": does not fit" if needed.memory_bytes > total else ""
        memory = f"about {gigabytes(needed.memory_bytes)} of {gigabytes(total)}{more}"
    rollout, model = config.rollout, config.model
    quantised = "" if model.quantize == "off" else f", {model.quantize}"
    reward = fields_by_key()["reward.sources"]
    sources = [source.model_dump() if hasattr(source, "model_dump") else source for source in config.reward.sources]
    batch = f"{counted(rollout.batch_size, 'response')} of up to {counted(rollout.max_new_tokens, 'token')} each"
    return [
        ("model", f"{model.path}{quantised}, LoRA rank {model.lora_rank}"),
        ("prompts", config.data.prompts),
        ("reward", shown(reward, sources)),
        ("iterations", f"{iterations}; {batch}" if iterations.isdecimal() else iterations),
        *([("run folder", str(folder))] if folder else []),
        ("memory", memory),
    ]


class RunQuestion(ConfirmScreen):
    """Asks whether to train as planned. Enter agrees: the question says what will happen."""

    BINDINGS: ClassVar[list[BindingType]] = [
        bind("y", "dismiss(True)", "train", "confirm.yes", "Train as planned", key_display="enter"),
        bind("n,escape", "dismiss(False)", "cancel", "confirm.no", "Close without a change"),
    ]

    def __init__(self, plan: Plan, yes: str) -> None:
        facts = [
            Horizontal(Static(label, classes="label"), Static(visible(text), markup=False))
            for label, text in plan.facts
        ]
        warnings = [Static(Content.assemble(("⚠ ", "$text-warning"), visible(warning))) for warning in plan.warnings]
        detail = VerticalScroll(*facts, *warnings, classes="plan", can_focus=False)
        super().__init__(plan.question, [detail], yes, "Cancel", wanted=True)
