"""Reward models on the main screen: training one on the labels, and using it as the reward."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

from trainer.config import load_config
from trainer.errors import UsageError
from trainer.plurals import counted
from trainer.preferences.store import PreferenceStore
from trainer.runs.folder import RunFolder
from trainer.runs.listing import PPO
from workbench.config.fields import toml_line
from workbench.kit.dialog import ConfirmScreen
from workbench.labelling.plans import labelling_material
from workbench.reward_model.training import FEW, RewardTraining, change_text, quality_text, rewarded_by, settings_for
from workbench.run.run_on_disk import whole_run
from workbench.run.supervisor import Supervisor
from workbench.screen.host import Host, attempt, tried
from workbench.text import visible


class RewardModels:
    """Training of a reward model on the labels in `store`, one at a time, and its use."""

    def __init__(self, screen: Host, supervisor: Supervisor, store: Path) -> None:
        self._screen = screen
        self._supervisor = supervisor
        self._store = store
        self._training: RewardTraining | None = None
        self._starting = False

    @property
    def training(self) -> Path | None:
        """Folder of the run that is being trained, which need not exist yet; None for none."""
        return self._training.run if self._training is not None else None

    async def train(self) -> None:
        """Train a reward model on the labels, once the user agrees; while one trains, show it.

        Its backbone is that of the run on the screen if that is a PPO run.
        """
        screen = self._screen
        if self._starting:
            return
        if (training := self._training) is not None:
            if not training.done:  # else `watch` reports its end
                screen.notify(await asyncio.to_thread(training.progress), markup=False)
            screen.action_show_pane("reward-model")
            return
        folder = self._supervisor.folder if self._shows_ppo() else None
        found = await tried(screen, asyncio.to_thread(self._settings, folder), "train")
        if found is None:
            return
        labels, settings = found
        detail = [f"Backbone: {visible(str(settings.get('model.path', 'starter')))}."]
        detail += ["You can go on labelling: it trains in a process of its own, as a run in Reward model."]
        if labels < FEW:
            detail.append(f"⚠ With fewer than {FEW} labels, few are held out, and its accuracy says little.")
        question = f"Train a reward model on {counted(labels, 'label')}?"
        if not await screen.app.push_screen_wait(ConfirmScreen(question, "\n".join(detail), "Train model", "Cancel")):
            return
        screen.settle("training")  # an error of the one before
        self._starting = True
        assignments = [toml_line(key, value) for key, value in settings.items()]
        screen.run_worker(self._start(assignments), group="training")  # a newer dialog must not cancel it

    async def _start(self, assignments: list[str]) -> None:
        screen = self._screen
        start = partial(RewardTraining, self._store, screen.runs_dir, assignments)
        try:
            self._training = await tried(screen, asyncio.to_thread(start), "train")
        finally:
            self._starting = False
        if self._training is not None:
            key = screen.keys()["pane.reward-model"]
            screen.notify(f"Training {self._training.run.name} on the labels; {key} shows it", markup=False)

    def watch(self) -> None:
        """Report the end of a training once it has come; returns at once."""
        if (training := self._training) is not None and training.done:
            self._training = None
            self._screen.run_worker(self._report(training), group="training")

    async def _report(self, training: RewardTraining) -> None:
        state, line = await asyncio.to_thread(training.end)
        if state != "done":
            self._screen.say(line, "note" if state == "stopped" else "error", about="training")
            return
        self._screen.settle("use")  # an error about a missing reward model
        keys = self._screen.keys()
        hint = f"{keys['label.use']} in Label ({keys['pane.label']}) uses it as the reward."
        self._screen.notify(f"{line}. {hint}", title="Reward model", timeout=20, markup=False)

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
        return labels, settings_for(labels, None if folder is None else load_config(RunFolder(folder).config))

    def _shows_ppo(self) -> bool:
        started = self._supervisor.view.started
        return started is not None and started.run_kind == PPO
