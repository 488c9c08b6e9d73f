"""Labelling on the main screen: sessions, the questions that they ask of runs, preferences from and to files."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

from trainer.errors import Interrupted, TrainerError
from trainer.preferences.records import QueuePlan, SessionPlan
from trainer.preferences.store import default_store
from trainer.questions import Answer, Question
from workbench.kit.dialog import TextPromptScreen
from workbench.labelling.pane import LabelRequest
from workbench.labelling.plans import (
    LabelOpening,
    SessionChoice,
    SessionOptions,
    default_labeller,
    labeller_name,
    labeller_problem,
    labelling_material,
    login_name,
)
from workbench.labelling.session_worker import SessionWorker
from workbench.run.supervisor import Supervisor
from workbench.run.threads import PolicyThread
from workbench.screen.host import Host, tried
from workbench.screen.reward_models import RewardModels


class LabellingController:
    """The actions of the Label pane that concern more than its open session, done on the main screen.

    opening: what the workbench was opened to label, if anything.
    """

    def __init__(self, screen: Host, supervisor: Supervisor, opening: LabelOpening | None) -> None:
        self._screen = screen
        self._supervisor = supervisor
        self._opening = opening
        self._labeller = opening.labeller if opening else ""  # the last labeller on this screen
        self._policies: PolicyThread | None = None  # of the run that is labelled, if it is not on the screen
        self._asked: list[Future[Answer]] = []  # questions whose answers the session waits for
        store = opening.store if opening else default_store(Path.cwd())
        self.worker = SessionWorker(store, self._ask_run)
        self._reward_models = RewardModels(screen, supervisor, store)

    def open(self) -> None:
        """Begin the labelling that the workbench was opened for, if any."""
        if self._opening is not None:
            self._screen.action_show_pane("label")
            choice = self._opening.choice
            self._screen.ask(self._begin(choice) if choice else self._ask_what_to_label())

    def close(self) -> None:
        """Close store and models without waiting; a reward model that is being trained goes on."""
        self.worker.close()
        self._let_go()

    def request(self, what: LabelRequest) -> None:
        """Do what a key of the pane requests; returns at once."""
        screen = self._screen
        match what:
            case "start":
                screen.ask(self._ask_what_to_label())
            case "leave":
                self._leave()
            case "train":
                screen.ask(self._reward_models.train())
            case "use":
                screen.ask(self._reward_models.use())
            case "import" | "export":
                from workbench.labelling.transfer import ExportPreferencesScreen, ImportPreferencesScreen

                dialog = ImportPreferencesScreen if what == "import" else ExportPreferencesScreen
                screen.app.push_screen(
                    dialog(self.worker.path), lambda line: screen.say(line, "done") if line else None
                )

    @property
    def training(self) -> Path | None:
        """Folder of the reward model that is being trained, which need not exist yet; None for none."""
        return self._reward_models.training

    def watch(self) -> None:
        """Report what goes on beside the labelling: a reward model that is trained, and the win rate.

        Raises the bug that has ended the worker, if any.
        """
        if self.worker.bug is not None:
            raise self.worker.bug
        self._reward_models.watch()
        problem = self.worker.win_rate_problem
        line = f"Win rate not reported to the run: {problem}" if problem else ""
        self._screen.say_once(line, about="win-rate")

    async def label_again(self, keys: tuple[str, ...]) -> None:
        """Begin a session that asks for the comparisons with these keys again."""
        kept = await tried(self._screen, asyncio.wrap_future(self.worker.kept()), "label")
        if kept is None:
            return
        labeller = self._labeller or default_labeller(kept[0])
        if not self._is_known(labeller):
            prompt = TextPromptScreen("Label again as", labeller, labeller_problem)
            if (given := await self._screen.app.push_screen_wait(prompt)) is None:
                return
            labeller = labeller_name(given)
        plan = SessionPlan(queues=(QueuePlan(queue="again", keys=keys),), repeats=0)
        await self._begin(SessionChoice(labeller=labeller, plan=plan))

    def _is_known(self, labeller: str) -> bool:
        """Return whether the likely labeller is the user, and not just whoever labelled last."""
        return labeller in (self._labeller, login_name())

    async def _ask_what_to_label(self) -> None:
        from workbench.labelling.start_screen import LabelStartScreen

        kept = await tried(self._screen, asyncio.wrap_future(self.worker.kept()), "label")
        material = await tried(self._screen, asyncio.to_thread(labelling_material, self._screen.runs_dir), "label")
        if kept is None or material is None:
            return
        sessions, flagged = kept
        labeller = self._labeller or default_labeller(sessions)
        options = self._opening.options if self._opening else SessionOptions()
        self._screen.app.push_screen(
            LabelStartScreen(
                sorted(material.runs, key=lambda run: run != self._supervisor.folder),
                self.worker.path,
                labeller,
                sessions,
                asks=not self._is_known(labeller),
                models=material.models,
                options=replace(options, flagged=tuple(flagged)),
                begin=self._open_session,
            )
        )

    async def _begin(self, choice: SessionChoice) -> None:
        if problem := await self._open_session(choice):
            self._screen.say(problem, about="label")

    async def _open_session(self, choice: SessionChoice) -> str | None:
        """Begin or resume the session, once the user has read the guidelines of a new one.

        Returns why it fails, "" if it does not, and None if the user cancels.
        """
        if choice.guidelines:
            from workbench.labelling.dialogs import GuidelinesScreen

            if not await self._screen.app.push_screen_wait(GuidelinesScreen(choice.guidelines, begin=True)):
                return None
        self._leave()  # before the worker changes sessions, so that no key press reaches the new one
        try:
            if choice.plan is not None:
                opened = self.worker.begin(choice.labeller, choice.plan, choice.guidelines)
            else:
                assert choice.resume is not None
                opened = self.worker.resume(choice.resume)
            state = await asyncio.wrap_future(opened)
        except TrainerError as error:
            return str(error)
        except asyncio.CancelledError:
            self.worker.leave()  # it may have begun on its thread
            raise
        self._labeller = state.record.labeller
        self._screen.action_show_pane("label")
        self._screen.label.begin(self.worker, state)
        return ""

    def _leave(self) -> None:
        self.worker.leave()
        self._let_go()
        self._screen.label.end()

    def _ask_run(self, folder: Path, question: Question, left: threading.Event) -> Answer:
        """Return what the model of the run in `folder` writes; called on threads of the queues.

        left: set once the session was left. Raises Interrupted then.
        """

        def ask() -> Future[Answer]:
            if left.is_set():  # looked at on the thread that sets it, so that nobody loads a model for what is over
                raise Interrupted("labelling has ended", save=False)
            return self.ask_model(folder, question)

        return self._screen.app.call_from_thread(ask).result()

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
