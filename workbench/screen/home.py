"""Content of Home besides the runs: the next run, labels that wait, the machine, questions of a new configuration."""

from __future__ import annotations

import contextlib
import math
from importlib import util
from pathlib import Path
from typing import NamedTuple

from trainer.config import Config, load_config
from trainer.errors import TrainerError, counted
from trainer.memory.shape import folder_of
from trainer.models import starter
from trainer.preferences.sessions import list_sessions
from trainer.preferences.store import PreferenceStore
from workbench.config.estimates import largest_fitting
from workbench.labelling.plans import labelling_material
from workbench.run.run_listing import Workspace
from workbench.runs.table import Choice, HomeFacts
from workbench.system.machine import this_machine
from workbench.text import fit, visible

_NAME = 24  # columns of a run's name beside a choice
_NEW_LABELS = """SELECT count(*) FROM events e WHERE e.kind = 'label' AND e.time > ?
    AND NOT EXISTS (SELECT 1 FROM events u WHERE u.undoes = e.id)"""


class NextRun(NamedTuple):
    """The run that would start, and the one that trains here, as the screen knows them; a thread reads the rest."""

    name: str  # of the configuration
    config: Config | None
    problems: int
    training: str  # name of the run that trains here
    runs_dir: Path
    store: Path
    since: float  # the last visit, unix seconds


def home_facts(plan: NextRun, workspace: Workspace | None) -> HomeFacts:
    """Read what Home shows besides the runs: blocks on files. workspace: None to read nothing yet."""
    waiting, new = _labels(plan) if workspace is not None else ("", 0)
    if plan.training:
        training = Choice("train", "training", "Go to the run", f"{plan.training} trains here")
    elif plan.config is None:
        count = "a problem" if plan.problems == 1 else counted(plan.problems, "problem")
        training = Choice("train", "config", "Fix the configuration", f"{plan.name} has {count}")
    else:
        iterations, path = plan.config.ppo.iterations, plan.config.model.path
        facts = ["SmolLM2-135M" if path == "starter" else visible(Path(path).name), counted(iterations, "iteration")]
        here = [one.seconds for one in workspace.glances if one.run.model == path] if workspace else []
        if seconds := next(filter(math.isfinite, here), 0.0):  # an iteration of the newest run of this model
            facts.append(f"about {max(round(seconds * iterations / 60), 1)} min")
        elif plan.config == load_config("quickstart"):
            facts.append("about 10 min")
        training = Choice("train", "train", f"Train {plan.name}", ", ".join(facts))
    choices = [training, Choice("label", "label", "Label", waiting)]
    if not plan.training:
        choices.append(Choice("configure", "configure", "New configuration", "model, prompts, reward: three questions"))
    return HomeFacts(choices, new, machine_line(plan.config) if workspace is not None else "")


def _labels(plan: NextRun) -> tuple[str, int]:
    """Return what waits to be labelled, and how many labels were added since the last visit and stand."""
    left, new, more = 0, 0, ""
    with contextlib.suppress(TrainerError, OSError):  # Label reports what is wrong with the store
        if plan.store.exists():
            with PreferenceStore(plan.store, create=False) as store:
                sessions = [session for session in list_sessions(store) if session.left]
                left = sum(max(session.plan.limit - session.done, session.left) for session in sessions)
                more = "" if all(session.plan.limit for session in sessions) else "at least "  # their queues have more
                ((new,),) = store.rows(_NEW_LABELS, (plan.since,))
    if left:
        return f"{more}{counted(left, 'item')} waiting", new
    runs = []
    with contextlib.suppress(TrainerError, OSError):
        runs = labelling_material(plan.runs_dir).runs
    if runs:
        name = fit(visible(runs[0].name), _NAME).rstrip()  # what fits beside a choice on a small terminal
        return f"compare responses of {name}", new
    return "needs a run's samples, or a file with pairs", new


def machine_line(config: Config | None) -> str:
    """Return device, memory, the largest model that fits and whether the model of `config` is here, in a line."""
    machine = this_machine()
    parts = [machine.device, f"{machine.total / 1e9:.0f} GB"]
    if config is not None:
        fits = largest_fitting(config, machine.now)
        parts[1] += f", fits up to {fits}" if fits else ", too little for the starter model"
        name = visible(Path(config.model.path).name)
        if config.model.path != "starter":
            parts.append(f"{name} ready" if folder_of(config.model.path) else f"{name} not downloaded yet")
        elif starter.starter_is_cached() or util.find_spec(starter.PACKAGE) is not None:
            parts.append("starter model ready")
        else:
            parts.append(f"no starter model: {starter.INSTALL}")
    return " · ".join(parts)
