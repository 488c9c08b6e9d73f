"""Control of the run by keys and panes of the main screen: start, stop, resume, watch, live settings, fixes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from trainer.config import load_config, parse_overrides
from trainer.config.schema import Config, RewardConfig
from trainer.engine.branching import BranchPlan, BranchRequest, branch_points, later_changes, plan_branches
from trainer.errors import TrainerError
from trainer.events import Alarm, Fix
from trainer.runs.folder import RunFolder
from trainer.runs.journal import read_journal
from trainer.runs.listing import is_complete, summary_of
from workbench.config.document import ConfigDocument
from workbench.kit.dialog import ConfirmScreen, TextPromptScreen
from workbench.labelling.plans import labelling_material
from workbench.run.sentences import title, urgent_first
from workbench.run.supervisor import Request, Supervisor
from workbench.screen.dialogs import (
    Plan,
    RunQuestion,
    TrustScreen,
    UnsavedScreen,
    branch_question,
    resume_plan,
    start_plan,
)
from workbench.screen.home import ask_for_settings, configured
from workbench.screen.host import Host, attempt, tried
from workbench.system.code_trust import trusted_code, untrusted_code
from workbench.training.alarms import AlarmScreen, FixScreen


class Steering:
    """Controller of the run on `screen`: asks what has to be asked, then hands the request to the supervisor.

    A request that fails changes nothing; the banner shows why.
    """

    def __init__(self, screen: Host, supervisor: Supervisor) -> None:
        self._screen = screen
        self._supervisor = supervisor
        self._sending = asyncio.Lock()
        self._branching: tuple[RunFolder, int, ConfigDocument] | None = None  # run, iteration and configuration

    def request(self, request: Request) -> None:
        """Do what a key requests of the run."""
        if request == "start" or (request == "step" and not self._supervisor.under_way):
            self._start(one_iteration=request == "step")
        elif request == "stop":
            self._stop()
        else:
            self._send(partial(self._supervisor.ask, request))

    def follow(self, folder: Path) -> None:
        """Show the run on the screen from `folder`, to which it was moved; the configuration on the screen stays."""

        async def show() -> None:
            opened = await tried(self._screen, asyncio.to_thread(self._supervisor.opened, folder), "start")
            if opened is not None:
                attempt(self._screen, lambda: self._supervisor.show(*opened), about="start")

        self._screen.ask(show())

    def open_run(self, folder: Path) -> None:
        """Show the run in `folder` in the Training pane, and its configuration.

        A run that trains is controlled through that configuration, so with unsaved changes it opens only if the user
        discards them. The one that trains here is on the screen already.
        """
        if self._supervisor.trains_here and self._supervisor.shows(folder):
            self._screen.action_show_pane("training")
        else:
            self._screen.ask(self._watch(folder, "training"))

    def resume(self, folder: Path, overrides: Sequence[str] = (), *, agreed: bool = False) -> None:
        """Resume the run in `folder` on this process's trainer thread, once the user agrees to the plan.

        A run that is complete asks for more iterations. Its configuration takes the place of the one on the screen;
        with unsaved changes, only if the user agrees. agreed: the user has asked for it by a command.
        """
        self._train_another(partial(self._ask_to_resume, folder, overrides, agreed))

    def branch(self, folder: Path) -> None:
        """Ask for a checkpoint of the run in `folder` and open the configuration that a branch begins with.

        Starting that configuration makes the branch and trains it here.
        """
        self._train_another(partial(self._ask_to_branch, folder))

    def set(self, key: str, value: Any) -> None:
        """Change a live setting before the run's next iteration."""
        change = partial(self._supervisor.set, key, value)
        if key == "reward.sources":
            reward = RewardConfig(sources=value)
            self._screen.ask(self._once_trusted(reward, change, about="steer"))
        else:
            self._send(change)

    def allows_alarm(self, action: str) -> bool:
        """Return whether the key for `open_alarm` or `fix_alarm` applies now."""
        alarms = self._supervisor.view.alarms
        return bool(alarms) and (action == "open_alarm" or bool(self._supervisor.fixes(urgent_first(alarms)[0])))

    def open_alarm(self) -> None:
        """Show the active alarms, the most severe one first."""

        def answered(answer: tuple[Alarm, Fix | None] | None) -> None:
            if answer is None:
                return
            alarm, fix = answer
            if fix is None:
                self._supervisor.view.put_away(alarm)
                self._screen.show_run()
            else:
                self._apply(alarm, fix)

        alarms = urgent_first(self._supervisor.view.alarms)
        self._screen.app.push_screen(AlarmScreen(alarms, self._supervisor.fixes), answered)

    def fix_alarm(self) -> None:
        """Apply the likeliest fix of the most severe alarm, once the user agrees."""
        alarm = urgent_first(self._supervisor.view.alarms)[0]
        fix = self._supervisor.fixes(alarm)[0]
        self._screen.app.push_screen(FixScreen(alarm, fix), lambda agreed: self._apply(alarm, fix) if agreed else None)

    def open_configuration(self, read: Callable[[], ConfigDocument], then: Callable[[], None] = lambda: None) -> None:
        """Read a configuration in a thread and show it, unless the user keeps unsaved changes; then call `then`."""

        async def open_it() -> None:
            document = await tried(self._screen, asyncio.to_thread(read), "configuration")
            if document is not None:
                self._edit(document)
                then()

        self._screen.ask(open_it())

    def new_configuration(self) -> None:
        """Ask for model, prompts and reward, and open the answers in Config, based on the quickstart or the file."""

        async def ask() -> None:
            screen = self._screen
            material = await tried(screen, asyncio.to_thread(labelling_material, screen.runs_dir), "configuration")
            settings = await ask_for_settings(screen.app, material.models if material else [])
            if settings is None:
                return
            source = screen.config.document.path or "quickstart"
            document = await tried(screen, asyncio.to_thread(configured, source, settings), "configuration")
            if document is not None:
                screen.config.show_document(document)
                screen.action_show_pane("config")

        self.when_nothing_is_lost(lambda: self._screen.ask(ask()))

    def when_nothing_is_lost(self, action: Callable[[], None]) -> ConfirmScreen | None:
        """Call `action`, which discards the configuration on the screen; ask first if it has unsaved changes.

        Returns the question, if it is asked.
        """
        document = self._screen.config.document
        if not document.dirty:
            action()
            return None
        question = UnsavedScreen(document.name, partial(self._screen.config.save, action))
        self._screen.app.push_screen(question, lambda agreed: action() if agreed else None)
        return question

    def _apply(self, alarm: Alarm, fix: Fix) -> None:
        """Hand the fix to the trainer, unless it no longer applies to the run."""
        name = title(alarm.code)
        if fix not in self._supervisor.fixes(alarm):
            message = f"{name} is no longer active, or its run has ended: nothing was changed"
            self._screen.say(message, about="steer")
        else:
            requested = partial(self._screen.notify, f"Requested: {fix.label}", title=name, markup=False)
            self._send(partial(self._supervisor.apply, fix, name), requested)

    def _send(self, request: Callable[[], None], then: Callable[[], None] = lambda: None) -> None:
        """Send a request to the trainer in a thread, because to one of another process it is a file; then call `then`.

        Requests arrive in the order in which they were sent.
        """

        def sent() -> bool:
            request()
            return True

        async def send() -> None:
            async with self._sending:
                if await tried(self._screen, asyncio.to_thread(sent), "steer"):
                    then()
                self._screen.show_run()

        self._screen.run_worker(send(), group="steer")

    def _start(self, *, one_iteration: bool) -> None:
        document = self._screen.config.document
        config = document.config
        if config is None:
            problems = document.problems
            self._screen.action_show_pane("config")
            self._screen.config.focus_field(problems[0].key)
            count = "a problem" if len(problems) == 1 else f"{len(problems)} problems; the first"
            self._screen.say(f"The configuration has {count}: {problems[0].message}", about="configuration")
            return
        if self._branching and self._branching[2] is document:
            run, at, _ = self._branching
            self._screen.ask(self._ask_to_start_branch(run, at, config, one_iteration=one_iteration))
            return
        preset = document.preset or str(document.path or "run")
        changed = [key for key, change in document.changes.items() if change.from_preset]
        plan = partial(start_plan, config, preset, changed, one_iteration=one_iteration)
        start = partial(self._supervisor.start, config, preset=preset, one_iteration=one_iteration)

        async def ask() -> None:
            found = await tried(self._screen, asyncio.to_thread(plan), "start")
            if found is None:
                return
            if await self._screen.app.push_screen_wait(RunQuestion(found, "Start run")):
                await self._once_trusted(config.reward, start, about="start")

        self._screen.ask(ask())

    def _train_another(self, ask: Callable[[], Coroutine[None, None, None]]) -> None:
        """Call `ask`, which leads to a run that trains here, unless one does or the user keeps unsaved changes."""

        def open_it() -> None:
            if attempt(self._screen, self._supervisor.check_free, about="start"):
                self._screen.ask(ask())

        self.when_nothing_is_lost(open_it)

    async def _ask_to_resume(
        self, folder: Path, overrides: Sequence[str], agreed: bool, *, one_iteration: bool = False
    ) -> None:
        """Show where the run would continue from, or ask how many iterations follow a complete run, and train it."""
        app, run = self._screen.app, RunFolder(folder)

        def read(more: int = 0) -> tuple[Config, ConfigDocument]:
            tables = parse_overrides([*overrides, *([f"ppo.iterations={more}"] if more else [])])
            return load_config(run.config, tables), ConfigDocument.of_run(folder, tables)

        def plan(config: Config) -> Plan | None:
            return None if is_complete(run, config.ppo.iterations) else resume_plan(folder, config)

        if (found := await tried(self._screen, asyncio.to_thread(read), "start")) is None:
            return
        done = found[0].ppo.iterations

        def problem(count: str) -> str:
            count = count.strip()
            whole = count.isdecimal() and len(count) < 10 and int(count)
            return "" if whole else "Enter a number of iterations, 1 or more"

        async def add(count: str) -> str:
            nonlocal found
            try:
                found = await asyncio.to_thread(read, done + int(count))
            except TrainerError as error:
                return str(error)
            return ""

        if (planned := await asyncio.to_thread(plan, found[0])) is None:
            question = f"{run.name} is complete after {done} iterations. How many more?"
            if await app.push_screen_wait(TextPromptScreen(question, str(done), problem, add)) is None:
                return
        elif not agreed and not await app.push_screen_wait(RunQuestion(planned, "Resume run")):
            return
        config, document = found
        past = await asyncio.to_thread(self._supervisor.opened, folder)

        def ask_about_prompts(problem: str) -> None:
            def answered(agreed: bool | None) -> None:
                if agreed:
                    attempt(self._screen, partial(train, accept_data=True), about="start")

            question = "Go on with the changed prompts, and begin a new series of evaluations?"
            app.push_screen(ConfirmScreen(question, problem, yes="Go on", no="Cancel"), answered)

        def train(*, accept_data: bool = False) -> None:
            self._supervisor.start(
                config,
                resume=folder,
                past=past,
                one_iteration=one_iteration,
                accept_data=accept_data,
                on_changed_data=ask_about_prompts,
            )
            self._screen.action_show_pane("training")
            self._screen.config.show_document(document)

        await self._once_trusted(config.reward, train, about="start")

    async def _ask_to_branch(self, folder: Path) -> None:
        """Ask after which iteration a branch begins, and open its configuration in the Config pane."""
        run = RunFolder(folder.absolute())
        points = await tried(self._screen, asyncio.to_thread(branch_points, run), "start")
        if points is None:
            return
        there = ", ".join(map(str, sorted(points)))

        def problem(text: str) -> str:
            return "" if text.strip().isdecimal() and int(text) in points else f"Enter one of {there}"

        question = f"Branch {run.name} after which iteration? Checkpoints: {there}"
        at = await self._screen.app.push_screen_wait(TextPromptScreen(question, str(points[0]), problem))
        if at is None:
            return

        def read() -> ConfigDocument:
            document = ConfigDocument.of_run(run.root, later_changes(read_journal(run.events).events, int(at)))
            document.title = f"branch of {run.name} after iteration {int(at)}"
            return document

        if (document := await tried(self._screen, asyncio.to_thread(read), "configuration")) is not None:
            self._branching = run, int(at), document
            self._screen.config.show_document(document)
            self._screen.action_show_pane("config")
            self._screen.notify("Change its settings, then start it", title=document.title, markup=False)

    async def _ask_to_start_branch(self, run: RunFolder, at: int, config: Config, *, one_iteration: bool) -> None:
        """Make the branch with `config` once the user agrees, and train it, or show one that has ended."""

        def read() -> tuple[BranchPlan, Plan]:
            plan = plan_branches(run, BranchRequest(at, config=config))
            return plan, branch_question(plan)

        if (found := await tried(self._screen, asyncio.to_thread(read), "start")) is None:
            return
        plan, question = found
        [branch] = plan.branches
        if not await self._screen.app.push_screen_wait(RunQuestion(question, "Start branch")):
            return
        if not await tried(self._screen, self._trusts(branch.config.reward), "start"):
            return
        made = await tried(self._screen, asyncio.to_thread(plan.create, branch), "start")
        if made is None:
            return
        if (await asyncio.to_thread(summary_of, made)).state in ("done", "training"):  # it existed
            await self._watch(made.root, "training")
        else:
            await self._ask_to_resume(made.root, (), agreed=True, one_iteration=one_iteration)

    def _stop(self) -> None:
        """Stop the run once the user agrees: even a capital letter can be typed by mistake."""

        def answered(agreed: bool | None) -> None:
            if agreed and self._supervisor.allows("stop"):
                self._send(self._supervisor.stop)

        folder = self._supervisor.folder
        question = f"Stop {f'run {folder.name}' if folder else 'the run'} after a checkpoint?"
        detail = "It can be resumed later, from that checkpoint."
        self._screen.app.push_screen(ConfirmScreen(question, detail, yes="Stop run", no="Keep training"), answered)

    async def _once_trusted(self, reward: RewardConfig, action: Callable[[], None], *, about: str) -> None:
        """Call `action`, which runs `reward`, once the user has trusted the reward's code."""
        if await tried(self._screen, self._trusts(reward), about):
            attempt(self._screen, action, about=about)

    async def _trusts(self, reward: RewardConfig) -> bool:
        """Return whether the user trusts the code of `reward`, and ask if that is not known.

        Raises RewardError, StorageError.
        """
        codes = await asyncio.to_thread(untrusted_code, reward)
        if codes:
            if not await self._screen.app.push_screen_wait(TrustScreen(codes)):
                return False
            await tried(self._screen, asyncio.to_thread(trusted_code().remember, codes), "trust")
        return True

    async def _watch(self, folder: Path, pane: str) -> None:
        """Read the run in `folder` and its configuration in threads, and show both; then go to `pane`."""
        opened = await tried(self._screen, asyncio.to_thread(self._supervisor.opened, folder), "start")
        if opened is None:
            return
        run, found = opened
        configuration = await asyncio.gather(asyncio.to_thread(ConfigDocument.of_run, folder), return_exceptions=True)

        def show(edit: Callable[[ConfigDocument], None]) -> None:
            def both() -> None:
                self._supervisor.show(run, found)
                if isinstance(document := configuration[0], BaseException):
                    raise document
                edit(document)

            if attempt(self._screen, both, about="start"):
                self._screen.action_show_pane(pane)

        if run.live:  # it is controlled through its configuration
            self.when_nothing_is_lost(lambda: show(self._screen.config.show_document))
        else:
            show(self._edit)

    def _edit(self, document: ConfigDocument) -> None:
        """Show another configuration, unless the user keeps unsaved changes."""
        self.when_nothing_is_lost(lambda: self._screen.config.show_document(document))
