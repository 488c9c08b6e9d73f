"""Actions of the Label and Reward model panes: sessions, training on the labels, use of the trained model."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from textual import on, work
from textual.screen import Screen

from trainer.config import load_config
from trainer.control.questions import Answer, Question
from trainer.errors import TrainerError, UsageError
from trainer.preferences.items import QueuePlan, SessionPlan, SessionRecord
from trainer.preferences.store import PreferenceStore, default_store
from trainer.runs.folder import RunFolder
from workbench.kit.banner import Kind
from workbench.kit.confirm import ConfirmScreen
from workbench.kit.keys import keys_of
from workbench.kit.text_prompt import TextPromptScreen
from workbench.kit.whole import MountedWhole
from workbench.labelling.choices import (
    LabelOpening,
    SessionChoice,
    default_labeller,
    labeller_name,
    labeller_problem,
    labelling_material,
)
from workbench.labelling.pane import LabelPane
from workbench.labelling.reward_training import RewardTraining, settings_for, settings_like
from workbench.labelling.reward_use import rewarded_by, told
from workbench.labelling.win_rate import WinRate
from workbench.labelling.workplace import Workplace
from workbench.reward_model.pane import RewardModelPane
from workbench.run.policy_thread import PolicyThread
from workbench.run.supervisor import Supervisor

if TYPE_CHECKING:
    from workbench.labelling.desk import DeskState

T = TypeVar("T")
_LOOK = 1.0  # seconds between two looks at a reward model that is being trained


class LabellingScreen(MountedWhole, Screen[None]):
    """A screen with a Label and a Reward model pane."""

    supervisor: Supervisor

    def __init__(self, label: LabelOpening | None) -> None:
        super().__init__()
        self._label = label
        self._labeller = ""  # the last labeller on this screen
        self._workplace: Workplace | None = None
        self._policies: PolicyThread | None = None  # of the run that is labelled, if it is not on the screen
        self._asked: list[Future[Answer]] = []  # questions whose answers the session waits for
        self._reward_training: RewardTraining | None = None

    def say(self, message: str, kind: Kind = "error", *, about: str = "") -> None:
        """Show a message above the panes."""
        raise NotImplementedError

    def settle(self, about: str) -> None:
        """Remove an error about this: it no longer applies."""
        raise NotImplementedError

    @property
    def runs_dir(self) -> Path:
        """Folder of the listed runs, in which new ones are created."""
        raise NotImplementedError

    def action_show_pane(self, name: str) -> None:
        """Go to a pane."""
        raise NotImplementedError

    def reward_sources(self, sources: list[dict[str, Any]]) -> None:
        """Set the reward sources of the configuration on the screen."""
        raise NotImplementedError

    def open_labelling(self) -> None:
        """Begin the labelling that the workbench was opened for, if any, and watch reward-model training."""
        if self._label is not None:
            self.action_show_pane("label")
            self._begin_labelling(self._label.choice)
        self.set_interval(_LOOK, self._watch_training)

    def close_labelling(self) -> None:
        """Close store and models without waiting; a reward model that is being trained goes on."""
        if self._workplace is not None:
            self._workplace.close()
        self._let_go()

    # Sessions

    @property
    def workplace(self) -> Workplace:
        """Workplace of this workspace's labels, created on first use."""
        if self._workplace is None:
            store = self._label.store if self._label else default_store(Path.cwd())
            self._workplace = Workplace(store, self._ask_run, self._win_rate)
        return self._workplace

    @on(LabelPane.StartRequested)
    def _start_labelling(self) -> None:
        self._begin_labelling(None)

    @work(exclusive=True, group="labelling")
    async def _begin_labelling(self, choice: SessionChoice | None) -> None:
        """Begin or resume the session of `choice`; None: ask which one."""
        from workbench.labelling.guidelines_screen import GuidelinesScreen
        from workbench.labelling.start_screen import LabelStartScreen

        desk = self.workplace.desk
        if choice is None:
            sessions = await self._tried(asyncio.wrap_future(desk.sessions()))
            material = await self._tried(asyncio.to_thread(labelling_material, self.runs_dir))
            if sessions is None or material is None:
                return
            runs = material.runs
            if (shown := self.supervisor.folder) in runs:
                runs = [shown, *(run for run in runs if run != shown)]
            self.app.push_screen(
                LabelStartScreen(
                    runs,
                    self.workplace.store,
                    self._proposed(sessions),
                    sessions,
                    models=material.models,
                    wanted=self._label.wanted if self._label else None,
                    begin=self._take_up,
                )
            )
            return
        if choice.guidelines:
            await self.app.push_screen_wait(GuidelinesScreen(choice.guidelines, begin=True))
        if problem := await self._take_up(choice):
            self.say(problem, about="label")

    async def _take_up(self, choice: SessionChoice) -> str:
        """Begin or resume the session; return why it fails, empty if it does not."""
        pane = self.query_one(LabelPane)
        self._let_go()
        pane.end()  # before the desk changes sessions, so that no key press reaches the new one
        try:
            state: DeskState = await self.workplace.take_up(choice)
        except TrainerError as error:
            return str(error)
        self._labeller = state.record.labeller
        self.action_show_pane("label")
        pane.begin(self.workplace.desk, state, self.workplace.supply)
        return ""

    @on(LabelPane.LeaveRequested)
    def _leave_labelling(self) -> None:
        self.workplace.leave()
        self._let_go()
        self.query_one(LabelPane).end()

    @on(LabelPane.Labelled)
    @on(LabelPane.Undone)
    def _count_labels(self) -> None:
        self.settle("train")  # an error about missing labels
        self.workplace.labelled()

    @on(RewardModelPane.LabelAgain)
    @work(exclusive=True, group="labelling")
    async def _label_again(self, message: RewardModelPane.LabelAgain) -> None:
        sessions = await self._tried(asyncio.wrap_future(self.workplace.desk.sessions()))
        labeller = await self._at_the_keyboard(sessions) if sessions is not None else None
        if labeller is not None:
            plan = SessionPlan(queues=(QueuePlan(queue="again", keys=message.keys),), repeats=0)
            if problem := await self._take_up(SessionChoice(labeller=labeller, plan=plan)):
                self.say(problem, about="label")

    def _proposed(self, sessions: Sequence[SessionRecord]) -> str:
        """Return who is likely to label now."""
        return self._labeller or (self._label.labeller if self._label else default_labeller(sessions))

    async def _at_the_keyboard(self, sessions: Sequence[SessionRecord]) -> str | None:
        """Return who labels now: the last labeller on this screen, else who the user names; None if they cancel."""
        labeller = self._proposed(sessions)
        if self._labeller or {session.labeller for session in sessions} <= {labeller}:
            return labeller
        given = await self.app.push_screen_wait(TextPromptScreen("Label again as", labeller, labeller_problem))
        return None if given is None else labeller_name(given)

    # Dialogs around an item

    @on(LabelPane.GuidelinesRequested)
    @work(exclusive=True, group="around")
    async def _show_guidelines(self) -> None:
        from workbench.labelling.guidelines_screen import GuidelinesScreen

        text = await self._tried(asyncio.wrap_future(self.workplace.desk.guidelines()))
        if text:
            self.app.push_screen(GuidelinesScreen(text))
        elif text is not None:
            self.notify("this session goes by no guidelines: name a text file when you begin one")

    @on(LabelPane.NoteRequested)
    @work(exclusive=True, group="around")
    async def _write_note(self, message: LabelPane.NoteRequested) -> None:
        from workbench.labelling.note_screen import NoteScreen

        text = await self.app.push_screen_wait(NoteScreen(message.text))
        if text is not None:
            self.query_one(LabelPane).set_note(text)

    @on(LabelPane.HistoryRequested)
    @work(exclusive=True, group="around")
    async def _show_history(self) -> None:
        from workbench.labelling.history_screen import HistoryScreen

        position = await self.app.push_screen_wait(HistoryScreen(self.workplace.desk))
        if position is not None:
            await self.query_one(LabelPane).go_to(position)

    @on(LabelPane.ImportRequested)
    @work(exclusive=True, group="around")
    async def _import_preferences(self) -> None:
        from workbench.labelling.import_screen import ImportScreen

        if line := await self.app.push_screen_wait(ImportScreen(self.workplace.store)):
            self.say(line, "done")

    @on(LabelPane.ExportRequested)
    @work(exclusive=True, group="around")
    async def _export_preferences(self) -> None:
        from workbench.labelling.export_screen import ExportScreen

        if line := await self.app.push_screen_wait(ExportScreen(self.workplace.store)):
            self.say(line, "done")

    # Training and use of reward models

    @on(LabelPane.TrainRequested)
    @work(exclusive=True, group="train")
    async def _train_on_labels(self) -> None:
        """Train a reward model on the labels, on the backbone of the run on the screen if that is a PPO run."""
        if self._reward_training is not None:
            self.notify(self._reward_training.poll(), markup=False)
            self.action_show_pane("reward-model")
            return
        shown = self.supervisor.folder if self._shows_ppo() else None
        training = await self._tried(asyncio.to_thread(self._begin_training, shown), "train")
        if training is not None:
            self._reward_training = training
            key = keys_of(self)["pane.reward-model"]
            self.notify(f"{training.run.name} learns from the labels: {key} shows how", markup=False)

    def _begin_training(self, folder: Path | None) -> RewardTraining:
        """Start training a reward model; called off the screen's thread. Raises UsageError if there are no labels.

        folder: of the PPO run whose backbone is shared.
        """
        store = self.workplace.store
        labels = 0
        if store.exists():
            with PreferenceStore(store, create=False) as kept:
                counts = kept.counts()
                labels = counts.labels - counts.skips - counts.choices.get("both_bad", 0)
        if not labels:
            raise UsageError("there are no labels to learn from yet: begin a session")
        settings = settings_for(labels)
        if folder is not None:
            settings |= settings_like(load_config(RunFolder(folder).config))
        return RewardTraining(store, self.runs_dir, settings)

    def _watch_training(self) -> None:
        if (training := self._reward_training) is not None:
            line = training.poll()
            if training.done:
                self._reward_training = None
                if training.problem:
                    self.say(line, about="train")
                else:
                    self.settle("use")  # an error about a missing reward model
                    keys = keys_of(self, self.query_one(LabelPane))
                    hint = f"In Label ({keys['pane.label']}), {keys['label.use']} rewards by it."
                    self.notify(f"{line}. {hint}", title="Reward model", timeout=20, markup=False)

    @on(LabelPane.UseRequested)
    @work(exclusive=True, group="use")
    async def _use_reward_model(self) -> None:
        """Use the newest reward model as reward: in the run under way, else in the configuration on the screen."""
        material = await self._tried(asyncio.to_thread(labelling_material, self.runs_dir), "use")
        if material is None:
            return
        if not material.models:
            key = keys_of(self.query_one(LabelPane))["label.train"]
            self.say(f"there is no trained reward model yet: {key} in Label trains one on the labels", about="use")
            return
        view, folder = self.supervisor.view, self.supervisor.folder
        live = self.supervisor.under_way and self._shows_ppo()
        model = material.models[0]
        if live and folder is not None:
            config = await self._tried(asyncio.to_thread(load_config, RunFolder(folder).config), "use")
            if config is None:
                return
            before = config.reward.model_dump()["sources"]
        else:
            before = []
        after = rewarded_by(model, before)
        who = view.started.name if live and view.started else "the configuration on the screen"
        question = f"Let {model.name} reward {who}{' from the next iteration on' if live else ''}?"
        if await self.app.push_screen_wait(ConfirmScreen(question, told(before, after), yes="Use it", no="Leave it")):
            try:
                if live:
                    self.supervisor.set("reward.sources", after)
                else:
                    self.reward_sources(after)
            except TrainerError as error:
                self.say(str(error), about="use")

    # Questions of the session to runs

    def _ask_run(self, folder: Path, question: Question) -> Answer:
        """Return what the model of the run in `folder` writes; called on threads of the queues."""
        future: Future[Answer] = self.app.call_from_thread(self._ask_model, folder, question)
        return future.result()

    def _ask_model(self, folder: Path, question: Question) -> Future[Answer]:
        shown = self._shows(folder)
        if self._policies is not None and (shown or self._policies.folder != folder.resolve()):
            self._policies.close()
            self._policies = None
        if shown:
            future = self.supervisor.ask_model(question)
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

    def _win_rate(self, folder: Path) -> WinRate:
        return WinRate(self.workplace.store, folder, told=self.supervisor.view.judged if self._shows(folder) else None)

    def _shows_ppo(self) -> bool:
        started = self.supervisor.view.started
        return started is not None and started.run_kind == "ppo"

    def _shows(self, folder: Path) -> bool:
        shown = self.supervisor.folder
        return shown is not None and shown.resolve() == folder.resolve()

    async def _tried(self, work: Coroutine[Any, Any, T] | asyncio.Future[T], about: str = "label") -> T | None:
        """Return the result of `work` and settle errors about it; None if it fails: the banner shows why."""
        try:
            result = await work
        except TrainerError as error:
            self.say(str(error), about=about)
            return None
        self.settle(about)
        return result
