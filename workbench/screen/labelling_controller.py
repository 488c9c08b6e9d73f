"""Labelling on the main screen: sessions, the questions that they ask of runs, preferences from and to files.

Also what labels are for: training a reward model on them, and using it as the reward.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from trainer.config import load_config
from trainer.errors import Interrupted, TrainerError, UsageError, counted
from trainer.preferences.records import QueuePlan, SessionPlan
from trainer.preferences.store import STORE, PreferenceStore
from trainer.questions import Answer, Question
from trainer.runs.folder import RunFolder
from trainer.runs.listing import PPO
from workbench.config.fields import toml_line
from workbench.kit.dialog import ConfirmScreen, TextPromptScreen
from workbench.labelling.pane import LabelRequest
from workbench.labelling.plans import (
    SessionOptions,
    default_labeller,
    labeller_name,
    labeller_problem,
    labelling_material,
    login_name,
)
from workbench.labelling.session_worker import SessionWorker
from workbench.reward_model.training import FEW, RewardTraining, change_text, quality_text, rewarded_by, settings_for
from workbench.reward_model.verdict import read_newest
from workbench.run.run_on_disk import whole_run
from workbench.run.threads import PolicyThread
from workbench.screen.panes import Panes
from workbench.text import visible


class LabellingController:
    """The actions of the Label pane that concern more than its open session, done on the main screen.

    opening: what the workbench was opened to label, if anything.
    """

    def __init__(self, panes: Panes, opening: SessionOptions | None) -> None:
        self._panes, self._supervisor = panes, panes.supervisor
        self._opening = opening
        self._labeller = opening.labeller if opening else ""  # the last labeller on this screen
        self._policies: PolicyThread | None = None  # of the run that is labelled, if it is not on the screen
        self._asked: list[Future[Answer]] = []  # questions whose answers the session waits for
        store = opening.store if opening else None
        self.worker = SessionWorker(store or Path.cwd() / STORE, self.ask_run)
        self.training: RewardTraining | None = None  # of a reward model; its run need not have a folder yet
        self._starting = False  # the training

    def open(self) -> None:
        """Begin the labelling that the workbench was opened for, if any."""
        if self._opening is not None:
            self._panes.go_to("label")
            is_chosen = self._opening.plan or self._opening.resume
            self._panes.ask(self._begin(self._opening) if is_chosen else self._ask_what_to_label())

    def close(self) -> None:
        """Close store and models without waiting; a reward model that is being trained goes on."""
        self.worker.close()
        self._let_go()

    def request(self, what: LabelRequest) -> None:
        """Do what a key of the pane requests; returns at once."""
        panes = self._panes
        match what:
            case "start":
                panes.ask(self._ask_what_to_label())
            case "leave":
                self._leave()
            case "train":
                panes.ask(self._train())
            case "use":
                panes.ask(self._use())
            case "import" | "export":
                from workbench.labelling.transfer import ExportPreferencesScreen, ImportPreferencesScreen

                dialog = ImportPreferencesScreen if what == "import" else ExportPreferencesScreen
                panes.app.push_screen(dialog(self.worker.path), lambda line: panes.say(line, "done") if line else None)

    def watch(self) -> None:
        """Show what goes on beside the labelling: a training, its end once it has come, and the win rate.

        Raises the bug that has ended the worker, if any.
        """
        if self.worker.bug is not None:
            raise self.worker.bug
        if (training := self.training) is not None and training.done:
            self.training = None
            self._panes.screen.run_worker(self._report(training), group="training")
        problem = self.worker.win_rate_problem
        line = f"Win rate not reported to the run: {problem}" if problem else ""
        self._panes.say_once(line, about="win-rate")

    async def label_again(self, keys: tuple[str, ...]) -> None:
        """Begin a session that asks for the comparisons with these keys again."""
        kept = await self._panes.tried(asyncio.wrap_future(self.worker.kept()), "label")
        if kept is None:
            return
        labeller = self._labeller or default_labeller(kept[0])
        if labeller not in (self._labeller, login_name()):  # but whoever labelled last
            prompt = TextPromptScreen("Label again as", labeller, labeller_problem)
            if (given := await self._panes.app.push_screen_wait(prompt)) is None:
                return
            labeller = labeller_name(given)
        plan = SessionPlan(queues=(QueuePlan(queue="again", keys=keys),), repeats=0)
        await self._begin(SessionOptions(labeller=labeller, plan=plan))

    async def _ask_what_to_label(self) -> None:
        from workbench.labelling.start_screen import LabelStartScreen

        kept = await self._panes.tried(asyncio.wrap_future(self.worker.kept()), "label")
        material = await self._panes.tried(asyncio.to_thread(labelling_material, self._panes.runs_dir), "label")
        if kept is None or material is None:
            return
        sessions, flagged, disputed = kept
        labeller = self._labeller or default_labeller(sessions)
        again = replace(self._opening or SessionOptions(), flagged=tuple(flagged), disputed=tuple(disputed))
        given = replace(again, plan=None, resume=0)
        model = given.model or next(iter(material.models), None)
        self._panes.app.push_screen(
            LabelStartScreen(
                sorted(material.runs, key=lambda run: run != self._supervisor.folder),
                self.worker.path,
                sessions,
                asks=labeller not in (self._labeller, login_name()),
                options=replace(given, labeller=labeller, model=model),
                begin=self._open_session,
            )
        )

    async def _begin(self, options: SessionOptions) -> None:
        if problem := await self._open_session(options):
            self._panes.say(problem, about="label")

    async def _open_session(self, options: SessionOptions) -> str | None:
        """Begin or resume the session, once the user has read the guidelines of a new one.

        Returns why it fails, "" if it does not, and None if the user cancels.
        """
        if options.text:
            from workbench.labelling.dialogs import GuidelinesScreen

            if not await self._panes.app.push_screen_wait(GuidelinesScreen(options.text, begin=True)):
                return None
        self._leave()  # before the worker changes sessions, so that no key press reaches the new one
        try:
            if options.plan is not None:
                opened = self.worker.begin(options.labeller, options.plan, options.text)
            else:
                opened = self.worker.resume(options.resume)
            state = await asyncio.wrap_future(opened)
        except TrainerError as error:
            return str(error)
        except asyncio.CancelledError:
            self.worker.leave()  # it may have begun on its thread
            raise
        self._labeller = state.record.labeller
        self._panes.settle("train")  # an error about missing labels
        self._panes.go_to("label")
        self._panes.label.begin(self.worker, state)
        return ""

    def _leave(self) -> None:
        self.worker.leave()
        self._let_go()
        self._panes.label.end()

    def ask_run(self, folder: Path, question: Question, left: threading.Event) -> Answer:
        """Return what the model of the run in `folder` writes; called on threads of the queues.

        left: set once the session was left. Raises Interrupted then.
        """

        def ask() -> Future[Answer]:
            if left.is_set():  # looked at on the thread that sets it, so that nobody loads a model for what is over
                raise Interrupted("labelling has ended", save=False)
            return self.ask_model(folder, question)

        return self._panes.app.call_from_thread(ask).result()

    def ask_model(self, folder: Path, question: Question) -> Future[Answer]:
        """Ask the model of the run in `folder`, loading it unless it is on the screen; at most one is loaded."""
        shown = self._supervisor.shows(folder)
        if self._policies is not None and (shown or self._policies.folder != folder.absolute()):
            self._policies.close()
            self._policies = None
        if shown:
            future = self._supervisor.ask_model(question)
        else:
            self._policies = self._policies or PolicyThread(folder)
            future = self._policies.ask(question)
        self._asked = [*(one for one in self._asked if not one.done()), future]
        return future

    def _let_go(self) -> None:
        """Cancel the session's questions and close the model loaded for them, without waiting."""
        for future in self._asked:
            future.cancel()
        if self._policies is not None:
            self._policies.close()
        self._asked, self._policies = [], None

    # Reward models.

    async def _train(self) -> None:
        """Train a reward model on the labels, once the user agrees; while one trains, show it.

        Its backbone is that of the run on the screen if that is a PPO run.
        """
        panes = self._panes
        if self._starting:
            return
        if (training := self.training) is not None:
            if not training.done:  # else `watch` reports its end
                panes.app.notify(await asyncio.to_thread(training.progress))
            panes.go_to("reward-model")
            return
        started = self._supervisor.view.started
        folder = self._supervisor.folder if started and started.run_kind == PPO else None
        found = await panes.tried(asyncio.to_thread(self._settings, folder), "train")
        if found is None:
            return
        labels, settings = found
        detail = [f"Backbone: {visible(str(settings.get('model.path', 'starter')))}."]
        detail += ["You can go on labelling: it trains in a process of its own, as a run in Reward model."]
        if labels < FEW:
            detail.append(f"⚠ With fewer than {FEW} labels, few are held out, and its accuracy says little.")
        question = f"Train a reward model on {counted(labels, 'label')}?"
        if not await panes.app.push_screen_wait(ConfirmScreen(question, "\n".join(detail), "Train model", "Cancel")):
            return
        panes.settle("training")  # an error of the one before
        self._starting = True
        assignments = [toml_line(key, value) for key, value in settings.items()]
        panes.screen.run_worker(self._start(assignments), group="training")  # a newer dialog must not cancel it

    async def _start(self, assignments: list[str]) -> None:
        panes = self._panes
        start = partial(RewardTraining, self.worker.path, panes.runs_dir, assignments)
        try:
            self.training = await panes.tried(asyncio.to_thread(start), "train")
        finally:
            self._starting = False
        if self.training is not None:
            key = panes.keys()["pane.reward-model"]
            panes.app.notify(f"Training {self.training.run.name}: {key} shows it once labels and model are loaded")

    async def _report(self, training: RewardTraining) -> None:
        state, line = await asyncio.to_thread(training.end)
        if state != "done":
            self._panes.say(line, "note" if state == "stopped" else "error", about="training")
            return
        self._panes.settle("use")  # an error about a missing reward model
        keys = self._panes.keys()
        hint = f"{keys['label.use']} in Label ({keys['pane.label']}) uses it as the reward."
        self._panes.app.notify(f"{line}. {hint}", title="Reward model")

    async def _use(self) -> None:
        """Use the newest reward model as reward: in the run under way, else in the configuration on the screen."""
        panes, supervisor = self._panes, self._supervisor
        material = await panes.tried(asyncio.to_thread(labelling_material, panes.runs_dir), "use")
        if material is None:
            return
        if not material.models:
            key = panes.keys()["label.train"]
            panes.say(f"No trained reward model yet; {key} in Label trains one on the labels", about="use")
            return
        view, folder, model = supervisor.view, supervisor.folder, material.models[0]
        live = supervisor.under_way and view.started and view.started.run_kind == PPO
        before: list[dict[str, Any]] = []
        if live and folder is not None:
            config = await panes.tried(asyncio.to_thread(load_config, RunFolder(folder).config), "use")
            if config is None:
                return
            before = config.reward.model_dump()["sources"]
        after = rewarded_by(model, before)
        where = f"{view.started.name}, from the next iteration on" if live and view.started else "this configuration"
        question = f"Use {model.name} as the reward of {where}?"
        quality = await asyncio.to_thread(lambda: quality_text(whole_run(model), read_newest(model)))
        detail = "\n".join(filter(None, [quality, change_text(before, after)]))
        agreed = await panes.app.push_screen_wait(ConfirmScreen(question, detail, yes="Use model", no="Cancel"))
        if agreed and supervisor.view is not view:
            panes.say("Not applied: the screen shows another run", about="use")
        elif agreed:
            change = partial(supervisor.set, "reward.sources") if live else self._configure
            panes.attempt(lambda: change(after), about="use")

    def _configure(self, sources: list[dict[str, Any]]) -> None:
        """Set the reward sources of the configuration on the screen. Raises UsageError."""
        config = self._panes.config
        if config.document.kind != PPO:
            raise UsageError("Config shows no PPO run: open a PPO configuration first")
        config.document.set("reward.sources", sources)
        config.show_document(config.document)
        self._panes.go_to("config")
        config.focus_field("reward.sources")

    def _settings(self, folder: Path | None) -> tuple[int, dict[str, Any]]:
        """Return how many labels there are, and settings for them; on a thread. Raises UsageError if there are none.

        folder: of the PPO run whose backbone is shared.
        """
        labels = 0
        if self.worker.path.exists():
            with PreferenceStore(self.worker.path, create=False) as opened:
                counts = opened.counts()
                labels = counts.labels - counts.skips - counts.choices.get("both_bad", 0)
        if not labels:
            raise UsageError("no labels to train on yet: begin a session")
        return labels, settings_for(labels, None if folder is None else load_config(RunFolder(folder).config))
