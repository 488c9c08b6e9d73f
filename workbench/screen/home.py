"""Content of Home besides the runs: the next run, labels that wait, the machine, questions of a new configuration."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from functools import lru_cache
from importlib import util
from pathlib import Path
from typing import NamedTuple

from trainer.config import Config, load_config
from trainer.data import SHIPPED, shipped_sets
from trainer.errors import TrainerError, counted
from trainer.files import read_regular
from trainer.memory.shape import folder_of
from trainer.models import starter
from trainer.preferences.sessions import list_sessions
from trainer.preferences.store import PreferenceStore
from trainer.runs.listing import PPO
from trainer.runs.samples import kept_iterations
from workbench.config.estimates import largest_fitting
from workbench.reward_model.training import FEW
from workbench.reward_model.verdict import read_newest, verdict
from workbench.run.metrics import REWARD_MODEL
from workbench.run.run_listing import Glance, Workspace
from workbench.run.run_on_disk import whole_run
from workbench.runs.loop import HomeFacts, Station
from workbench.system.machine import this_machine
from workbench.text import fit_end, number, percent, visible

_NAME = 16  # columns of a run's name
_LARGE = 2_000_000  # bytes of prompts that are not counted
_COUNT = """SELECT count(*), coalesce(sum(e.time > ?), 0) FROM events e WHERE e.kind = 'label'
    AND NOT EXISTS (SELECT 1 FROM events u WHERE u.undoes = e.id)"""


class NextRun(NamedTuple):
    """The run that would start, and the one that trains here, as the screen knows them; a thread reads the rest."""

    name: str  # of the configuration
    config: Config | None
    problems: int
    training: str  # name of the run that trains here
    runs_dir: Path
    store: Path


def home_facts(plan: NextRun, workspace: Workspace | None) -> HomeFacts:
    """Read what Home shows besides the runs: blocks on files. workspace: None to read nothing yet."""
    reads, glances = workspace is not None, workspace.glances if workspace else []
    runs = [one for one in glances if one.run.kind == PPO and (one.scores or one.run.state == "training")]
    first, again = (  # the newest run without a reward model among its rewards, and with one
        next((one for one in runs if ("model" in one.run.reward.split(", ")) is uses), None) for uses in (False, True)
    )
    model = next((one for one in glances if one.run.kind == REWARD_MODEL), None)
    train = _training(plan, glances)
    labels, later, session, waiting = _labels(plan, runs, model) if reads else (0, 0, "", "")
    state, brief, judgement = _quality(model)
    if plan.training or not runs:
        following = 4 if again and again.run.name == plan.training else 1
    elif model and judgement.startswith("✓"):  # and once a policy is trained on it, its responses are labelled
        following = 2 if again and glances.index(again) < glances.index(model) else 4
    else:
        following = 3 if later >= FEW or (model and model.run.state == "training") else 2
    learn = "model", "Train a reward model", counted(labels, "label") if labels else "needs labels"
    use = "reward-model", "Train on a reward model", "needs a trained reward model"
    if model:
        name, config = visible(model.run.name), plan.config
        learn = learn if following == 3 else ("reward-model", f"Look at {name}", judgement)
        uses = plan.training or (config and any(source.kind == "model" for source in config.reward.sources))
        use = train if uses else ("use", f"Use {name} as the reward", "then train the policy again")
    prompts = _prompts(plan.config) if plan.config and reads else ("", "")
    ask = "configure", "New configuration", "model, prompts, reward: three questions"
    count = counted(labels, "label") if labels else "none yet"
    stations = [
        Station("configure", *prompts, *ask, reached=True),
        Station("train", *_result(first), *train, reached=bool(first)),
        Station("label", count, session, "label", "Label", waiting, reached=bool(labels)),
        Station("reward", state, brief, *learn, reached=bool(model)),
        Station("use", *_result(again), *use, reached=bool(again)),
    ]
    return HomeFacts(stations, following, machine_line(plan.config) if reads else "")


def _prompts(config: Config) -> tuple[str, str]:
    """Return how many prompts a file has, and its name; the name alone where counting could take long."""
    name = config.data.prompts
    path = SHIPPED / f"{name}.jsonl" if name in shipped_sets() else Path(name).expanduser()
    with contextlib.suppress(OSError):
        if path.suffix in (".jsonl", ".txt"):
            count = sum(bool(line.strip()) for line in read_regular(path, _LARGE).splitlines())
            return f"{min(count, config.data.limit or count):,}", visible(path.stem)
    return visible(Path(name).name), ""


def _result(policy: Glance | None) -> tuple[str, str]:
    """Return score and KL of a run, or how far it is, and its name."""
    if policy is None:
        return "not yet", ""
    run = policy.run
    result = f"{number(run.score, 2, width=7)}, KL {number(run.kl, 1, width=7)}"
    if run.state == "training":
        result = f"{run.iteration} of {run.iterations}"
    return result, fit_end(visible(run.name), _NAME)


def _quality(model: Glance | None) -> tuple[str, str, str]:
    """Return how good a reward model is on held-out pairs: two short lines, and the verdict once there is one."""
    if model is None:
        return "not yet", "", ""
    if model.run.state == "training" or (found := model.held_out) is None:
        return f"step {model.run.iteration} of {model.run.iterations}", visible(model.run.state), ""
    text = _verdict(model.run.folder.root, found.iteration)
    brief = "too few to tell" if "too few" in text else "beats length" if text.startswith("✓") else "no better"
    return f"{percent(found.accuracy)} of {found.pairs:,} pairs", brief, text


@lru_cache(maxsize=8)
def _verdict(folder: Path, _iteration: int) -> str:
    return verdict(whole_run(folder), read_newest(folder))


def _training(plan: NextRun, glances: Sequence[Glance]) -> tuple[str, str, str]:
    """Return what starting a run does: the name of the action, its title, and facts."""
    if plan.training:
        return "training", "Go to the run", f"{plan.training} trains here"
    if plan.config is None:
        count = "a problem" if plan.problems == 1 else counted(plan.problems, "problem")
        return "config", "Fix the configuration", f"{plan.name} has {count}"
    iterations, path = plan.config.ppo.iterations, plan.config.model.path
    facts = ["SmolLM2-135M" if path == "starter" else visible(Path(path).name), counted(iterations, "iteration")]
    here = (one.seconds for one in glances if one.run.model == path)
    if seconds := next(filter(math.isfinite, here), 0.0):  # an iteration of the newest run of this model
        facts.append(f"about {max(round(seconds * iterations / 60), 1)} min")
    elif plan.config == load_config("quickstart"):
        facts.append("about 10 min")
    return "train", f"Train {plan.name}", ", ".join(facts)


def _labels(plan: NextRun, runs: Sequence[Glance], model: Glance | None) -> tuple[int, int, str, str]:
    """Return how many labels stand, and how many since the reward model; what is left of sessions; what waits.

    runs: PPO runs, the newest first.
    """
    total = later = done = left = 0
    more = ""
    with contextlib.suppress(TrainerError, OSError):  # Label reports what is wrong with the store
        if plan.store.exists():
            with PreferenceStore(plan.store, create=False) as store:
                sessions = [session for session in list_sessions(store) if session.left]
                done = sum(session.done for session in sessions)
                left = sum(max(session.plan.limit - session.done, session.left) for session in sessions)
                more = "" if all(session.plan.limit for session in sessions) else "at least "  # their queues have more
                ((total, later),) = store.rows(_COUNT, ((model and model.run.started) or 0.0,))
    if left:
        return total, later, "" if more else f"{done} of {done + left}", f"{more}{counted(left, 'item')} waiting"
    with contextlib.suppress(OSError):
        for one in runs:
            if one.run.state == "training" or kept_iterations(one.run.folder):
                return total, later, "", f"compare responses of {visible(one.run.name)}"
    return total, later, "", "needs a run's samples, or a file with pairs"


def machine_line(config: Config | None) -> str:
    """Return device, memory, the largest model that fits and whether the model of `config` is here, in a line."""
    machine = this_machine()
    parts = [machine.device, f"{machine.total / 1e9:.0f} GB"]
    if config is not None:
        fits = largest_fitting(config, machine.now)
        parts[1] += f", fits {fits}" if fits else ", too little for the starter model"
        name = visible(Path(config.model.path).name)
        if config.model.path != "starter":
            parts.append(f"{name} ready" if folder_of(config.model.path) else f"{name} not downloaded yet")
        elif starter.starter_is_cached() or util.find_spec(starter.PACKAGE) is not None:
            parts.append("starter model ready")
        else:
            parts.append(f"no starter model: {starter.INSTALL}")
    return " · ".join(parts)
