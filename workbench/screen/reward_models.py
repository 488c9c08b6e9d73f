"""Reward models on the main screen: training one on the labels, and using it as the reward."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from trainer.config import load_config
from trainer.errors import UsageError
from trainer.plurals import counted
from trainer.preferences.store import PreferenceStore
from trainer.runs.folder import RunFolder
from trainer.runs.listing import PPO
from workbench.kit.dialog import ConfirmScreen
from workbench.labelling.plans import labelling_material
from workbench.numbers import number, percent
from workbench.run.journal_source import whole_run
from workbench.run.supervisor import Supervisor
from workbench.run.view import RunView
from workbench.screen.host import Host, attempt, tried
from workbench.screen.reward_training import RewardTraining, settings_for, settings_like
from workbench.text import visible

FEW = 100  # labels; below, a fifth of them is too few pairs to tell 70% from chance
FEW_PAIRS = 20  # below, the 95% interval of an accuracy is wider than 0.4


class RewardModels:
    """Training of a reward model on the labels in `store`, one at a time, and its use."""

    def __init__(self, screen: Host, supervisor: Supervisor, store: Path) -> None:
        self._screen = screen
        self._supervisor = supervisor
        self._store = store
        self._training: RewardTraining | None = None
        self._polling = asyncio.Lock()  # a training is polled on one thread at a time

    async def train(self) -> None:
        """Train a reward model on the labels, once the user agrees; while one trains, show it.

        Its backbone is that of the run on the screen if that is a PPO run.
        """
        if self._training is not None:
            self._screen.notify(await self._polled(self._training), markup=False)
            self._screen.action_show_pane("reward-model")
            return
        folder = self._supervisor.folder if self._shows_ppo() else None
        found = await tried(self._screen, asyncio.to_thread(self._settings, folder), "train")
        if found is None:
            return
        labels, settings = found
        question = f"Train a reward model on {counted(labels, 'label')}?"
        detail = [f"Backbone: {visible(str(settings.get('model.path', 'starter')))}."]
        detail += ["You can go on labelling: it trains in a process of its own, as a run in Reward model."]
        if labels < FEW:
            detail.append(f"⚠ With fewer than {FEW} labels, few are held out, and its accuracy says little.")
        ask = ConfirmScreen(question, "\n".join(detail), "Train model", "Cancel")
        if not await self._screen.app.push_screen_wait(ask):
            return
        start = partial(RewardTraining, self._store, self._screen.runs_dir, settings)
        self._screen.settle("training")  # an error of the one before
        self._training = await tried(self._screen, asyncio.to_thread(start), "train")
        if self._training is not None:
            key = self._screen.keys()["pane.reward-model"]
            self._screen.notify(f"Training {self._training.run.name} on the labels; {key} shows it", markup=False)

    @property
    def loading(self) -> str:
        """Name of the training that has no folder yet; empty for none."""
        return self._training.run.name if self._training is not None and self._training.is_loading else ""

    def watch(self) -> None:
        """Look for the end of a training, unless that is under way; returns at once."""
        if self._training is not None and not self._polling.locked():
            self._screen.run_worker(self.look(), group="training")

    async def look(self) -> None:
        """Report the end of a training."""
        if (training := self._training) is None:
            return
        done = training.done  # before the poll, which then has seen how it ended
        line = await self._polled(training)
        if not done or training is not self._training:
            return
        self._training = None
        if training.problem:
            self._screen.say(line, "note" if training.stopped else "error", about="training")
            return
        self._screen.settle("use")  # an error about a missing reward model
        keys = self._screen.keys()
        hint = f"{keys['label.use']} in Label ({keys['pane.label']}) uses it as the reward."
        self._screen.notify(f"{line}. {hint}", title="Reward model", timeout=20, markup=False)

    async def _polled(self, training: RewardTraining) -> str:
        """Return the state of a training in one line; its journal is read on a thread."""
        async with self._polling:
            return await asyncio.to_thread(training.poll)

    async def use(self) -> None:
        """Use the newest reward model as reward: in the run under way, else in the configuration on the screen."""
        screen, supervisor = self._screen, self._supervisor
        material = await tried(screen, asyncio.to_thread(labelling_material, screen.runs_dir), "use")
        if material is None:
            return
        if not material.models:
            key = screen.keys()["label.train"]
            screen.say(f"No trained reward model yet; {key} in Label trains one on the labels", about="use")
            return
        view, folder, model = supervisor.view, supervisor.folder, material.models[0]
        live = supervisor.under_way and self._shows_ppo()
        before: list[dict[str, Any]] = []
        if live and folder is not None:
            config = await tried(screen, asyncio.to_thread(load_config, RunFolder(folder).config), "use")
            if config is None:
                return
            before = config.reward.model_dump()["sources"]
        after = rewarded_by(model, before)
        where = f"{view.started.name}, from the next iteration on" if live and view.started else "this configuration"
        question = f"Use {model.name} as the reward of {where}?"
        quality = quality_text(await asyncio.to_thread(whole_run, model))
        detail = "\n".join(filter(None, [quality, change_text(before, after)]))
        agreed = await screen.app.push_screen_wait(ConfirmScreen(question, detail, yes="Use model", no="Cancel"))
        if agreed and supervisor.view is not view:
            screen.say("Not applied: the screen shows another run", about="use")
        elif agreed:
            change = partial(supervisor.set, "reward.sources") if live else self._configure
            attempt(screen, lambda: change(after), about="use")

    def _configure(self, sources: list[dict[str, Any]]) -> None:
        """Set the reward sources of the configuration on the screen. Raises UsageError."""
        config = self._screen.config
        if config.document.kind != PPO:
            raise UsageError("Config shows no PPO run: open a PPO configuration first")
        config.document.set("reward.sources", sources)
        config.show_document(config.document)
        self._screen.action_show_pane("config")
        config.focus_field("reward.sources")

    def _settings(self, folder: Path | None) -> tuple[int, dict[str, Any]]:
        """Return how many labels there are, and settings for them; on a thread. Raises UsageError if there are none.

        folder: of the PPO run whose backbone is shared.
        """
        labels = 0
        if self._store.exists():
            with PreferenceStore(self._store, create=False) as opened:
                counts = opened.counts()
                labels = counts.labels - counts.skips - counts.choices.get("both_bad", 0)
        if not labels:
            raise UsageError("no labels to train on yet: begin a session")
        settings = settings_for(labels)
        if folder is not None:
            settings |= settings_like(load_config(RunFolder(folder).config))
        return labels, settings

    def _shows_ppo(self) -> bool:
        started = self._supervisor.view.started
        return started is not None and started.run_kind == PPO


def rewarded_by(model: Path, before: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return reward sources in which only the reward model in the run `model` counts.

    The previous sources stay with a weight of 0, so that the charts still show them. Previous reward models are removed
    because they cost memory.
    """
    kept = [{**source, "weight": 0.0} for source in before if source["kind"] != "model"]
    return [{"kind": "model", "path": str(model.absolute())}, *kept]


def quality_text(view: RunView) -> str:
    """Describe how good the reward model of a run is on held-out pairs, a sentence per line; ⚠ marks what is weak."""
    done = view.ended is not None and view.ended.state == "done"  # also if it ended early because it learnt no more
    lines = [] if done else [f"⚠ Not finished: step {view.iteration} of {view.total}."]
    found = view.held_out[-1] if view.held_out else None
    if found is None or not found.pairs:
        return "\n".join([*lines, "⚠ No pairs were held out: nothing says how good it is."])
    low, high = number(100 * found.accuracy_low, 0), percent(found.accuracy_high)
    right = f"Right on {percent(found.accuracy)} of {counted(found.pairs, 'held-out pair')} ({low} to {high})"
    if not found.accuracy_low > 0.5:
        lines.append(f"⚠ {right}: that may be chance.")
    elif found.accuracy <= found.length_accuracy:
        lines.append(f"⚠ {right}, no better than length alone.")
    else:
        lines.append(f"{right}.")
    if found.pairs < FEW_PAIRS:
        lines.append(f"⚠ Fewer than {FEW_PAIRS} held-out pairs: hold out more, or label more.")
    return "\n".join(lines)


def change_text(before: Sequence[dict[str, Any]], after: Sequence[dict[str, Any]]) -> str:
    """Describe the change of the reward sources, one sentence per line."""
    now = [_source_name(source) for source in before if source.get("weight", 1.0)]
    unweighted = [_source_name(source) for source in after if not source.get("weight", 1.0)]
    sentences = [f"Current reward: {' + '.join(now)}."] if now else []
    if unweighted:
        sentences.append(f"Still measured with weight 0: {', '.join(unweighted)}.")
    return "\n".join(sentences)


def _source_name(source: dict[str, Any]) -> str:
    return visible(Path(source["path"]).name if "path" in source else source["kind"])
