"""Reward models on the main screen: training one on the labels, and using it as the reward."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from trainer.config import load_config
from trainer.errors import UsageError
from trainer.preferences.store import PreferenceStore
from trainer.runs.folder import RunFolder
from trainer.runs.listing import PPO
from workbench.kit.dialog import ConfirmScreen
from workbench.labelling.plans import labelling_material
from workbench.run.supervisor import Supervisor
from workbench.screen.host import Host, attempt, tried
from workbench.screen.reward_training import RewardTraining, settings_for, settings_like
from workbench.text import visible


class RewardModels:
    """Training of a reward model on the labels in `store`, one at a time, and its use."""

    def __init__(self, screen: Host, supervisor: Supervisor, store: Path) -> None:
        self._screen = screen
        self._supervisor = supervisor
        self._store = store
        self._training: RewardTraining | None = None
        self._starting = False
        self._polling = asyncio.Lock()  # a training is polled on one thread at a time

    async def train(self) -> None:
        """Train a reward model on the labels, on the backbone of the run on the screen if that is a PPO run."""
        if self._starting:
            self._screen.notify("A reward model is already starting")
            return
        if self._training is not None:
            self._screen.notify(await self._polled(self._training), markup=False)
            self._screen.action_show_pane("reward-model")
            return
        folder = self._supervisor.folder if self._shows_ppo() else None
        self._starting = True
        try:
            self._training = await tried(self._screen, asyncio.to_thread(self._start, folder), "train")
        finally:
            self._starting = False
        if self._training is not None:
            key = self._screen.keys()["pane.reward-model"]
            self._screen.notify(f"Training {self._training.run.name} on the labels; {key} shows it", markup=False)

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
            self._screen.say(line, about="train")
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
        agreed = await screen.app.push_screen_wait(
            ConfirmScreen(question, change_text(before, after), yes="Use model", no="Cancel")
        )
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

    def _start(self, folder: Path | None) -> RewardTraining:
        """Start training a reward model; called off the screen's thread. Raises UsageError if there are no labels.

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
        return RewardTraining(self._store, self._screen.runs_dir, settings)

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
