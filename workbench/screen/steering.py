"""Control of the run by keys and panes of the main screen: start, stop, resume, watch, live settings, fixes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from trainer.config import load_config, parse_overrides
from trainer.config.schema import Config, RewardConfig
from trainer.engine.branching import BranchRequest, branch_points, later_changes, plan_branches
from trainer.events import Alarm, Fix
from trainer.runs.folder import RunFolder
from trainer.runs.journal import read_journal
from trainer.runs.listing import is_complete, summary_of
from workbench.config.document import ConfigDocument
from workbench.kit.dialog import ConfirmScreen, TextPromptScreen
from workbench.labelling.plans import labelling_material
from workbench.run.sentences import title, urgent_first
from workbench.run.supervisor import Request
from workbench.runs.new_configuration import ask_for_settings
from workbench.screen.dialogs import RunQuestion, TrustScreen, UnsavedScreen, branch_question, resume_plan, start_plan
from workbench.screen.panes import Panes
from workbench.system.code_trust import trusted_code, untrusted_code
from workbench.training.alarms import AlarmScreen

_COUNT = re.compile(r"\s*0*[1-9]\d{0,8}\s*")  # of iterations

Steer = Request | Literal["alarm", "fix"]
"""What a key of the main screen asks for: a request to the run, or to see its alarms or apply the first fix."""


class Steering:
    """Controller of the run on the screen: asks what has to be asked, then hands the request to the supervisor.

    A request that fails changes nothing; the banner shows why.
    """

    def __init__(self, panes: Panes) -> None:
        self._panes, self._supervisor, self._config = panes, panes.supervisor, panes.config
        self._sending = asyncio.Lock()
        self._branching: tuple[RunFolder, int, ConfigDocument] | None = None  # run, iteration and configuration

    # What keys and panes request

    def allows(self, what: Steer) -> bool:
        """Return whether the key for `what` applies now."""
        alarms = self._supervisor.view.alarms
        match what:
            case "alarm":
                return bool(alarms)
            case "fix":
                return bool(alarms) and self._supervisor.under_way
            case _:
                return self._supervisor.allows(what)

    def request(self, what: Steer) -> None:
        """Do what a key requests of the run."""
        match what:
            case "alarm":
                self._panes.ask(self._show_alarms())
            case "fix":
                self._panes.ask(self._fix_alarm())
            case "stop":
                self._panes.ask(self._stop())
            case "pause" | "resume" | "checkpoint":
                self._send(partial(self._supervisor.ask, what))
            case "step" if self._supervisor.under_way:
                self._send(partial(self._supervisor.ask, "step"))
            case _:
                self._panes.ask(self._start(one_iteration=what == "step"))

    def set(self, key: str, value: Any) -> None:
        """Change a live setting before the run's next iteration."""
        change = partial(self._supervisor.set, key, value)
        if key == "reward.sources":
            self._panes.ask(self._once_trusted(RewardConfig(sources=value), change, about="steer"))
        else:
            self._send(change)

    def open_run(self, folder: Path) -> None:
        """Show the run in `folder` in the Training pane, and its configuration.

        A run that trains is controlled through that configuration, so with unsaved changes it opens only if the user
        discards them. The one that trains here is on the screen already.
        """
        if self._supervisor.trains_here and self._supervisor.shows(folder):
            self._panes.go_to("training")
        else:
            self._panes.ask(self._watch(folder))

    async def follow(self, folder: Path) -> None:
        """Show the run on the screen from `folder`, to which it was moved; the configuration on the screen stays."""
        opened = await self._panes.tried(asyncio.to_thread(self._supervisor.opened, folder), "start")
        if opened is not None:
            self._panes.attempt(lambda: self._supervisor.show(opened), about="start")

    async def may_discard(self) -> bool:
        """Return whether the configuration on the screen has no unsaved changes, or the user saves or discards them."""
        document = self._config.document
        if not document.dirty:
            return True
        question = UnsavedScreen(document.name)
        agreed = await self._panes.app.push_screen_wait(question)
        return await self._config.save() if question.saves else bool(agreed)

    # Start, resume, branch

    async def _start(self, *, one_iteration: bool) -> None:
        panes, document = self._panes, self._config.document
        config = document.config
        if config is None:
            problems = document.problems
            panes.go_to("config")
            self._config.focus_field(problems[0].key)
            count = "a problem" if len(problems) == 1 else f"{len(problems)} problems; the first"
            panes.say(f"The configuration has {count}: {problems[0].message}", about="configuration")
            return
        if self._branching and self._branching[2] is document:
            run, at, _ = self._branching
            await self._start_branch(run, BranchRequest(at, config=config), one_iteration=one_iteration)
            return
        preset = document.preset or str(document.path or "run")
        changed = [key for key, change in document.changes.items() if change.from_preset]
        plan = partial(start_plan, config, preset, changed, one_iteration=one_iteration)
        found = await panes.tried(asyncio.to_thread(plan), "start")
        if found is not None and await panes.app.push_screen_wait(RunQuestion(found, "Start run")):
            start = partial(self._supervisor.start, config, preset=preset, one_iteration=one_iteration)
            await self._once_trusted(config.reward, start, about="start")

    async def resume(self, folder: Path, overrides: Sequence[str] = (), *, agreed: bool = False) -> None:
        """Resume the run in `folder` on this process's trainer thread, once the user agrees to the plan.

        A run that is complete asks for more iterations. Its configuration takes the place of the one on the screen;
        with unsaved changes, only if the user agrees. agreed: the user has asked for it by a command.
        """
        if self._panes.attempt(self._supervisor.check_free, about="start") and await self.may_discard():
            await self._resume(folder, overrides, agreed=agreed)

    async def _resume(
        self, folder: Path, overrides: Sequence[str] = (), *, agreed: bool, one_iteration: bool = False
    ) -> None:
        panes, app, run = self._panes, self._panes.app, RunFolder(folder)
        if (found := await panes.tried(asyncio.to_thread(_read_run, folder, overrides), "start")) is None:
            return
        done = found[0].ppo.iterations
        if await asyncio.to_thread(is_complete, run, done):
            question = f"{run.name} is complete after {done} iterations. How many more?"
            wrong = "Enter a number of iterations, 1 or more"
            prompt = TextPromptScreen(question, str(done), lambda text: "" if _COUNT.fullmatch(text) else wrong)
            if (more := await app.push_screen_wait(prompt)) is None:
                return
            longer = [*overrides, f"ppo.iterations={done + int(more)}"]
            if (found := await panes.tried(asyncio.to_thread(_read_run, folder, longer), "start")) is None:
                return
        elif not agreed:
            plan = await asyncio.to_thread(resume_plan, folder, found[0])
            if not await app.push_screen_wait(RunQuestion(plan, "Resume run")):
                return
        config, document = found
        past = await asyncio.to_thread(self._supervisor.opened, folder)

        def train(*, accept_data: bool = False) -> None:
            self._supervisor.start(
                config,
                resume=folder,
                past=past,
                one_iteration=one_iteration,
                accept_data=accept_data,
                on_changed_data=lambda problem: panes.ask(train_on_changed_data(problem)),
            )
            panes.go_to("training")
            self._config.show_document(document)

        async def train_on_changed_data(problem: str) -> None:
            question = "Go on with the changed prompts, and begin a new series of evaluations?"
            if await app.push_screen_wait(ConfirmScreen(question, problem, yes="Go on", no="Cancel")):
                panes.attempt(partial(train, accept_data=True), about="start")

        await self._once_trusted(config.reward, train, about="start")

    async def branch(self, folder: Path) -> None:
        """Ask for a checkpoint of the run in `folder` and open the configuration that a branch begins with.

        Starting that configuration makes the branch and trains it here.
        """
        panes, run = self._panes, RunFolder(folder.absolute())
        if not (panes.attempt(self._supervisor.check_free, about="start") and await self.may_discard()):
            return
        if (points := await panes.tried(asyncio.to_thread(branch_points, run), "start")) is None:
            return
        there = ", ".join(map(str, sorted(points)))
        question = f"Branch {run.name} after which iteration? Checkpoints: {there}"
        known = {str(point) for point in points}
        prompt = TextPromptScreen(
            question, str(points[0]), lambda text: "" if text.strip() in known else f"Enter one of {there}"
        )
        if (text := await panes.app.push_screen_wait(prompt)) is None:
            return
        at = int(text)
        document = await panes.tried(asyncio.to_thread(_branch_document, run, at), "configuration")
        if document is not None:
            self._branching = run, at, document
            self._config.show_document(document)
            panes.go_to("config")
            panes.say(f"{document.title}: change its settings, then start it", "note")

    async def _start_branch(self, run: RunFolder, request: BranchRequest, *, one_iteration: bool) -> None:
        """Make the branch once the user agrees, and train it, or show one that has ended."""
        panes = self._panes
        if (plan := await panes.tried(asyncio.to_thread(plan_branches, run, request), "start")) is None:
            return
        if (question := await panes.tried(asyncio.to_thread(branch_question, plan), "start")) is None:
            return
        [branch] = plan.branches
        if not await panes.app.push_screen_wait(RunQuestion(question, "Start branch")):
            return
        if not await panes.tried(self._trusts(branch.config.reward), "start"):
            return
        if (made := await panes.tried(asyncio.to_thread(plan.create, branch), "start")) is None:
            return
        if (await asyncio.to_thread(summary_of, made)).state in ("done", "training"):  # it existed
            await self._watch(made.root)
        else:
            await self._resume(made.root, agreed=True, one_iteration=one_iteration)

    # Show

    async def _watch(self, folder: Path) -> None:
        """Show the run in `folder` and its configuration, both read in threads."""
        panes = self._panes
        opened = await panes.tried(asyncio.to_thread(self._supervisor.opened, folder), "start")
        if opened is None:
            return
        document = await panes.tried(asyncio.to_thread(ConfigDocument.of_run, folder), "configuration")
        live = opened.run.live  # it is controlled through its configuration
        if live and not await self.may_discard():
            return
        if panes.attempt(lambda: self._supervisor.show(opened), about="start"):
            panes.go_to("training")
            if document is not None and (live or await self.may_discard()):
                self._config.show_document(document)

    async def open_configuration(self, read: Callable[[], ConfigDocument], pane: str = "") -> None:
        """Read a configuration in a thread and show it, unless the user keeps unsaved changes; then go to `pane`."""
        document = await self._panes.tried(asyncio.to_thread(read), "configuration")
        if document is not None and await self.may_discard():
            self._config.show_document(document)
            if pane:
                self._panes.go_to(pane)

    async def new_configuration(self) -> None:
        """Ask for model, prompts and reward, and open the answers in Config, based on the quickstart or the file."""
        if not await self.may_discard():
            return
        panes = self._panes
        material = await panes.tried(asyncio.to_thread(labelling_material, panes.runs_dir), "configuration")
        models = material.models if material else []
        if not (settings := await panes.tried(ask_for_settings(panes.app, models), "configuration")):
            return
        source = self._config.document.path or "quickstart"
        document = await panes.tried(asyncio.to_thread(ConfigDocument.open, source), "configuration")
        if document is not None:
            for key, value in settings.items():
                document.set(key, value)
            self._config.show_document(document)
            panes.go_to("config")

    # Steer

    async def _show_alarms(self) -> None:
        """Show the active alarms, the most severe one first, and do what the user chooses."""
        alarms = urgent_first(self._supervisor.view.alarms)
        answer = await self._panes.app.push_screen_wait(AlarmScreen(alarms, self._supervisor.fixes))
        if answer is None:
            return
        alarm, fix = answer
        if fix is not None:
            self._apply(alarm, fix)
        else:
            self._supervisor.view.put_away(alarm)
            self._panes.show_run()

    async def _fix_alarm(self) -> None:
        """Apply the likeliest fix of the most severe alarm, once the user agrees."""
        alarm = urgent_first(self._supervisor.view.alarms)[0]
        if not (fixes := self._supervisor.fixes(alarm)):
            self._panes.say(f"{title(alarm.code)}: no fix can be applied now", "note")
            return
        fix = fixes[0]
        question, why = f"{fix.label[:1].upper()}{fix.label[1:]}?", f"{title(alarm.code)}: {alarm.message}"
        if await self._panes.app.push_screen_wait(ConfirmScreen(question, why, yes="Apply", no="Cancel", wanted=True)):
            self._apply(alarm, fix)

    def _apply(self, alarm: Alarm, fix: Fix) -> None:
        """Hand the fix to the trainer, unless it no longer applies to the run."""
        name = title(alarm.code)
        if fix not in self._supervisor.fixes(alarm):
            message = f"{name} is no longer active, or its run has ended: nothing was changed"
            self._panes.say(message, about="steer")
        else:
            self._send(partial(self._supervisor.apply, fix, name), f"{name}: asked the run to {fix.label}")

    async def _stop(self) -> None:
        """Stop the run once the user agrees: even a capital letter can be typed by mistake."""
        folder = self._supervisor.folder
        question = f"Stop {f'run {folder.name}' if folder else 'the run'} after a checkpoint?"
        detail = "It can be resumed later, from that checkpoint."
        screen = ConfirmScreen(question, detail, yes="Stop run", no="Keep training")
        if await self._panes.app.push_screen_wait(screen) and self._supervisor.allows("stop"):
            self._send(self._supervisor.stop)

    def _send(self, request: Callable[[], object], done: str = "") -> None:
        """Send a request to the trainer in a thread, because to one of another process it is a file; then say `done`.

        Requests arrive in the order in which they were sent.
        """

        async def send() -> None:
            async with self._sending:
                if await self._panes.tried(asyncio.to_thread(lambda: request() or True), "steer") and done:
                    self._panes.say(done, "note")
                self._panes.show_run()

        self._panes.screen.run_worker(send(), group="steer")

    # Code of the reward

    async def _once_trusted(self, reward: RewardConfig, action: Callable[[], None], *, about: str) -> None:
        """Call `action`, which runs `reward`, once the user has trusted the reward's code."""
        if await self._panes.tried(self._trusts(reward), about):
            self._panes.attempt(action, about=about)

    async def _trusts(self, reward: RewardConfig) -> bool:
        """Return whether the user trusts the code of `reward`, and ask if that is not known.

        Raises RewardError, StorageError.
        """
        codes = await asyncio.to_thread(untrusted_code, reward)
        if codes:
            if not await self._panes.app.push_screen_wait(TrustScreen(codes)):
                return False
            await self._panes.tried(asyncio.to_thread(trusted_code().remember, codes), "trust")
        return True


def _read_run(folder: Path, overrides: Sequence[str]) -> tuple[Config, ConfigDocument]:
    """Return the configuration of the run in `folder` with these settings, and its document. Raises UsageError."""
    tables = parse_overrides([*overrides])
    return load_config(RunFolder(folder).config, tables), ConfigDocument.of_run(folder, tables)


def _branch_document(run: RunFolder, at: int) -> ConfigDocument:
    """Return the configuration of `run` as it was after iteration `at`. Raises TrainerError."""
    document = ConfigDocument.of_run(run.root, later_changes(read_journal(run.events).events, at))
    document.title = f"branch of {run.name} after iteration {at}"
    return document
