"""The question before a run starts or resumes: what it would train, on what, where and in how much memory."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.geometry import Size
from textual.widget import Widget
from textual.widgets import Static

from trainer.config import Config, config_warnings
from trainer.engine.branching import BranchPlan, plan_warnings
from trainer.events import plain
from trainer.plurals import counted
from trainer.runs.checkpoint_files import newest_checkpoint
from trainer.runs.checkpoint_index import iteration_of
from trainer.runs.folder import RunFolder, expected_run
from trainer.runs.listing import summary_of
from workbench.config.estimates import estimate
from workbench.config.fields import fields_by_key, shown, toml_line
from workbench.kit.dialog import ConfirmScreen
from workbench.numbers import gigabytes
from workbench.run.sentences import change_words
from workbench.system.machine import room_for
from workbench.system.output import PROGRAM
from workbench.text import visible

_LABEL = 12  # columns
_NAMED = 4  # most changed settings that are named


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
    folder = expected_run(config, preset)
    what = "one iteration, then pause" if one_iteration else str(config.ppo.iterations)
    differs = ", ".join(changed[:_NAMED]) + (f" and {len(changed) - _NAMED} more" if changed[_NAMED:] else "")
    facts = [
        *_material(config, what),
        ("run folder", str(folder.root)),
        _memory(config),
        *([("changed", differs)] if differs else []),
    ]
    return Plan("Start this run?", facts, config_warnings(config))


def resume_plan(folder: Path, config: Config) -> Plan:
    """Return the plan of continuing the run in `folder` with `config`. Reads files."""
    run = RunFolder(folder)
    checkpoint, damaged = newest_checkpoint(run)
    if checkpoint is None:
        begins = "no checkpoint was saved: the run begins again"
    else:
        begins = f"{checkpoint.name}, iteration {iteration_of(checkpoint)} of {config.ppo.iterations}"
    facts = [
        ("checkpoint", begins),
        *_material(config, str(config.ppo.iterations)),
        ("run folder", str(folder)),
        _memory(config),
    ]
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
        _memory(branch.config),
        ("three seeds", shlex.join([PROGRAM, "branch", str(plan.parent.root), "--at", str(at), *seeds])),
    ]
    return Plan(f"Branch {plan.parent.name} after iteration {at}?", facts, plan_warnings(plan))


def _material(config: Config, iterations: str) -> list[tuple[str, str]]:
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
    ]


def _memory(config: Config) -> tuple[str, str]:
    needed = estimate(config)
    if needed.memory_bytes is None:
        return "memory", f"unknown: {needed.basis.rpartition('; ')[2]}"
    total = room_for(config.model)
    more = ": does not fit" if needed.memory_bytes > total else ""
    return "memory", f"about {gigabytes(needed.memory_bytes)} of {gigabytes(total)}{more}"


class Facts(Widget):
    """Table of labels and texts; a long text continues below its beginning."""

    def __init__(self, facts: Sequence[tuple[str, str]]) -> None:
        super().__init__()
        self._facts = [(label, Content(visible(text))) for label, text in facts]
        self.styles.height = "auto"

    def _lines(self, width: int) -> list[Content]:
        lines = []
        for label, text in self._facts:
            for place, part in enumerate(text.wrap(max(width - _LABEL, 8))):
                head = label if place == 0 else ""
                lines.append(Content.assemble((f"{head:{_LABEL}}", "$text-muted"), part))
        return lines

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return len(self._lines(width))

    def render(self) -> Content:
        return Content("\n").join(self._lines(self.size.width))


class RunQuestion(ConfirmScreen):
    """Asks whether to train as planned. Enter agrees: the question says what will happen."""

    FOCUSED: ClassVar[str] = "#yes"
    KEYS: ClassVar[tuple[str, str]] = ("enter", "esc")
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "dismiss(True)", "train", key_display="enter", id="confirm.yes", tooltip="Train as planned"),
        Binding("n,escape", "dismiss(False)", "cancel", id="confirm.no", tooltip="Close without a change"),
        Binding("pagedown", "read(1)", "read on", show=False, id="run-question.on", tooltip="Scroll the plan down"),
        Binding("pageup", "read(-1)", "back", show=False, id="run-question.back", tooltip="Scroll the plan up"),
    ]

    def __init__(self, plan: Plan, yes: str) -> None:
        super().__init__(plan.question, yes=yes, no="Cancel")
        self._plan = plan

    def compose_detail(self) -> ComposeResult:
        with VerticalScroll(classes="plan", can_focus=False):
            yield Facts(self._plan.facts)
            for warning in self._plan.warnings:
                yield Static(Content.assemble(("⚠ ", "$text-warning"), visible(warning)))

    def action_read(self, pages: int) -> None:
        plan = self.query_one(".plan")
        plan.scroll_relative(y=pages * max(plan.size.height - 1, 1), animate=False)
