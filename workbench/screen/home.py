"""Controller of Home: its choices and their actions, and its words about the machine and the labels."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable
from functools import partial
from importlib import util
from pathlib import Path
from typing import NamedTuple

from trainer.config import Config, load_config
from trainer.errors import TrainerError
from trainer.models import starter
from trainer.plurals import counted
from trainer.preferences.sessions import list_sessions
from trainer.preferences.store import PreferenceStore
from workbench.columns import fit
from workbench.config.document import ConfigDocument
from workbench.config.estimates import largest_fitting, model_is_here
from workbench.labelling.plans import labelling_material
from workbench.run.supervisor import Supervisor
from workbench.runs.choices import Choice, Facts
from workbench.runs.glances import Workspace
from workbench.runs.new_configuration import Given, Settings, SetupScreen, questions
from workbench.screen.host import Host, tried
from workbench.screen.labelling_controller import LabellingController
from workbench.screen.steering import Steering
from workbench.system.machine import this_machine
from workbench.text import visible

_NAME = 24  # columns of a run's name beside a choice


class _Plan(NamedTuple):
    """The next run and the one that trains here, as the screen knows them; a thread reads the rest."""

    name: str  # of the configuration
    config: Config | None
    problems: int
    training: str  # name of the run that trains here
    runs_dir: Path
    store: Path
    since: float


class HomeController:
    """The actions of the Home pane, done by the controllers of `screen`. since: of the last visit, unix seconds."""

    def __init__(
        self, screen: Host, supervisor: Supervisor, steering: Steering, labelling: LabellingController, since: float
    ) -> None:
        self._screen, self._supervisor = screen, supervisor
        self._steering, self._labelling = steering, labelling
        self.since = since

    @property
    def here(self) -> Path | None:
        """Folder of the run that trains in this process; None without one."""
        return self._supervisor.folder if self._supervisor.trains_here else None

    def first_facts(self) -> Facts:
        """Return what Home shows before anything has been read."""
        return Facts(_choices(self._plan(), Workspace([], ""), ""))

    def facts(self) -> Callable[[Workspace], Facts]:
        """Return a function, to be called on a thread, that reads what Home shows besides the runs."""
        return partial(read_facts, self._plan())

    def _plan(self) -> _Plan:
        document = self._screen.config.document
        quickstart = document.preset == "quickstart" and document.path is None and not document.dirty
        name = "the quickstart" if quickstart else visible(document.name)
        return _Plan(
            name,
            document.config,
            len(document.problems),
            visible(self.here.name) if self.here else "a run" if self._supervisor.trains_here else "",
            self._screen.runs_dir,
            self._labelling.worker.path,
            self.since,
        )

    def choose(self, what: str) -> None:
        """Do what a choice says."""
        match what:
            case "train":
                self._steering.request("start")
            case "label":
                self._screen.action_show_pane("label")
                if self._screen.label.worker is None:
                    self._labelling.request("start")
            case "configure":
                self._steering.when_nothing_is_lost(lambda: self._screen.ask(self._configure()))
            case _:
                self._screen.action_show_pane(what)

    async def _configure(self) -> None:
        """Ask for model, prompts and reward, and open the answers in Config, based on the quickstart or the file."""
        material = await tried(
            self._screen, asyncio.to_thread(labelling_material, self._screen.runs_dir), "configuration"
        )
        asked = questions(material.models if material else [])
        given: dict[int, Given] = {}
        number = 0
        while number < len(asked):
            question = SetupScreen(asked[number], number + 1, len(asked), given.get(number))
            answer = await self._screen.app.push_screen_wait(question)
            if answer is not None:
                given[number] = answer
                number += 1
            elif number:
                number -= 1
            else:
                return
        settings = {key: value for answer in given.values() for key, value in answer.settings.items()}
        source = self._screen.config.document.path or "quickstart"
        document = await tried(self._screen, asyncio.to_thread(_configured, source, settings), "configuration")
        if document is not None:
            self._screen.config.show_document(document)
            self._screen.action_show_pane("config")

    def open(self, folder: Path) -> None:
        """Show the run in `folder`; the one that trains here is on the screen already."""
        if self._supervisor.trains_here and self._supervisor.shows(folder):
            self._screen.action_show_pane("training")
        else:
            self._steering.open_run(folder)


def _configured(source: str | Path, settings: Settings) -> ConfigDocument:
    """Return the configuration `source` with these settings as unsaved changes. Raises UsageError."""
    document = ConfigDocument.open(source)
    for key, value in settings.items():
        document.set(key, value)
    return document


def read_facts(plan: _Plan, workspace: Workspace) -> Facts:
    """Read what Home shows besides the runs: blocks on files."""
    waiting, new = _labels(plan)
    return Facts(_choices(plan, workspace, waiting), new, machine_line(plan.config))


def _choices(plan: _Plan, workspace: Workspace, waiting: str) -> list[Choice]:
    choices = [_training(plan, workspace)]
    choices.append(Choice("label", "label", "Label", waiting))
    if not plan.training:
        choices.append(Choice("configure", "configure", "New configuration", "model, prompts, reward: three questions"))
    return choices


def _training(plan: _Plan, workspace: Workspace) -> Choice:
    """Return what to do about training: go to the run that trains, fix the configuration, or train it."""
    if plan.training:
        return Choice("train", "training", "Go to the run", f"{plan.training} trains here")
    if plan.config is None:
        count = "a problem" if plan.problems == 1 else counted(plan.problems, "problem")
        return Choice("train", "config", "Fix the configuration", f"{plan.name} has {count}")
    iterations = plan.config.ppo.iterations
    model = "SmolLM2-135M" if plan.config.model.path == "starter" else visible(Path(plan.config.model.path).name)
    facts = [model, counted(iterations, "iteration")]
    if minutes := expected_minutes(plan.config, workspace):
        facts.append(minutes)
    return Choice("train", "train", f"Train {plan.name}", ", ".join(facts))


def expected_minutes(config: Config, workspace: Workspace) -> str:
    """Return how long `config` will train, from the newest run of its model and batch here; empty without one."""
    for glance in workspace.glances:
        if glance.run.model == config.model.path and math.isfinite(glance.seconds):
            return f"about {max(round(glance.seconds * config.ppo.iterations / 60), 1)} min"
    return "about 10 min" if config == load_config("quickstart") else ""


def _labels(plan: _Plan) -> tuple[str, int]:
    """Return what waits to be labelled, and how many labels were added since the last visit."""
    left, new, more = 0, 0, ""
    with contextlib.suppress(TrainerError, OSError):  # Label reports what is wrong with the store
        if plan.store.exists():
            with PreferenceStore(plan.store, create=False) as store:
                sessions = [session for session in list_sessions(store) if session.left]
                left = sum(max(session.plan.limit - session.done, session.left) for session in sessions)
                more = "" if all(session.plan.limit for session in sessions) else "at least "  # their queues have more
                ((new,),) = store.rows("SELECT count(*) FROM events WHERE kind = 'label' AND time > ?", (plan.since,))
    if left:
        return f"{more}{counted(left, 'item')} waiting", new
    runs = []
    with contextlib.suppress(TrainerError, OSError):
        runs = labelling_material(plan.runs_dir).runs
    if runs:
        return f"compare responses of {_short(runs[0].name)}", new
    return "needs a run's samples, or a file with pairs", new


def _short(name: str) -> str:
    """Return the name of a run, cut to what fits beside a choice on a small terminal."""
    return fit(visible(name), _NAME).rstrip()


def machine_line(config: Config | None) -> str:
    """Return device, memory, the largest model that fits and whether the model of `config` is here, in a line."""
    machine = this_machine()
    parts = [machine.device, f"{machine.total / 1e9:.0f} GB"]
    if config is not None:
        fits = largest_fitting(config, machine.now)
        parts[1] += f", fits up to {fits}" if fits else ", too little for the starter model"
        parts.append(_model_state(config.model.path))
    return " · ".join(parts)


def _model_state(path: str) -> str:
    if path == "starter":
        there = starter.starter_is_cached() or util.find_spec(starter.PACKAGE) is not None
        return "starter model ready" if there else f"no starter model: {starter.INSTALL}"
    name = visible(Path(path).name)
    return f"{name} ready" if model_is_here(path) else f"{name} not downloaded yet"
