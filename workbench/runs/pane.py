"""Home: the loop from prompts to a policy, the runs of a folder, how they went, and the actions on them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, Literal

from textual import on, work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Container, VerticalScroll
from textual.content import Content
from textual.events import Show
from textual.message import Message
from textual.widgets import Input, Static

from trainer.errors import TrainerError
from trainer.runs.folder import TRASH, RunFolder, rename_run, restore_run, trash_run
from trainer.runs.listing import RunSummary
from workbench.compare.compared_run import RunGroup, read_configs
from workbench.kit.cursor_list import CursorList, FilterField
from workbench.kit.dialog import ConfirmScreen, TextPromptScreen
from workbench.kit.drawing import CutText, Drawn
from workbench.kit.keys import bind, hidden_key, keys_of
from workbench.kit.pane import Badge, Pane, Throttled
from workbench.kit.saving import ask_and_save
from workbench.run.run_listing import SIGNS, Glance, Workspace, read_workspace
from workbench.run.sentences import state_text
from workbench.run.view import RunView
from workbench.runs.bench_screen import RewardBenchScreen
from workbench.runs.details import (
    Detail,
    detail_content,
    differences_content,
    read_detail,
    score_against_kl,
    write_comparison,
)
from workbench.runs.loop import FactsReader, HomeFacts, HomeLoop, explanation
from workbench.runs.table import RunTable
from workbench.text import has_words, visible

RunRequest = Literal["open", "resume", "branch", "duplicate"]  # about the run under the cursor

INTERVAL = 2.0  # seconds between looks at the folder
_ROOMY = 30  # lines from which there are a large picture below the table
_LEAST = 20  # columns of the differences of runs
_BESIDE = 100  # columns from which the differences of runs are beside a picture of them


class RunsPane(Pane):
    """Pane with the loop, a table of runs, details of the selected one and a comparison of the marked ones.

    facts: reads the loop above the runs; None for none. It reads on threads, and only while it is displayed or runs
    train elsewhere.
    """

    TITLE = "Home"
    DOCS = "quickstart"
    HELP = (
        "Start here. The stations lead from prompts to a policy that is trained on your judgement, and the thick line "
        "to the one that comes next; each has a key. Below are all runs in the folder, newest first. Score and KL are "
        "means of the last five iterations. Open a run to view or follow it, resume it, branch it from a checkpoint, "
        "or start from its configuration. Mark two or more to compare their configurations, and their score against "
        "their KL: up and to the left is better. A run in the trash can be restored."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("enter", "choose", "choose", "home.choose", "Do what the cursor is on"),
        *(
            hidden_key(key, f"choose('{name}')", text, f"home.{name}", tooltip)
            for key, name, text, tooltip in (
                ("1,g", "configure", "new configuration", "Make a configuration in three questions"),
                ("2,t", "train", "train", "Train the configuration"),
                ("3,l", "label", "label", "Choose the better response"),
                ("4", "reward", "reward model", "Train a reward model on the labels, or look at it"),
                ("5", "use", "train on it", "Use the reward model as the reward, and train on it"),
            )
        ),
        bind("enter", "ask('open')", "open", "runs.open", "Show the selected run in the panes"),
        bind("slash", "filter", "filter", "runs.filter", "List runs by name, state, model or reward"),
        bind("r", "ask('resume')", "resume", "runs.resume", "Resume training from the newest checkpoint"),
        bind("b", "ask('branch')", "branch", "runs.branch", "Go on from a checkpoint with new settings"),
        bind("R", "restore(False)", "restore", "runs.restore", "Move the run out of the trash"),
        bind("m", "mark", "compare", "runs.mark", "Mark the run; mark two or more to compare them"),
        bind("x", "export", "export", "runs.export", "Save the comparison of the marked runs"),
        bind("d", "ask('duplicate')", "duplicate", "runs.duplicate", "Edit a copy of its configuration"),
        bind("w", "bench", "reward bench", "runs.bench", "Try a reward on the run's stored samples"),
        bind("e", "rename", "rename", "runs.rename", "Rename the run"),
        bind("delete,D", "trash", "trash", "runs.trash", "Move the run to the trash"),
        bind("u", "restore(True)", "undo", "runs.undo", "Restore the run that was moved to the trash last"),
        bind("T", "show_trash", "trash list", "runs.show-trash", "List the trash, or the runs again"),
        hidden_key("y", "copy", "copy path", "runs.copy", "Copy the path of the run's folder"),
        hidden_key("o", "sort(False)", "sort", "runs.sort", "Sort by the next column"),
        hidden_key("O", "sort(True)", "reverse", "runs.reverse", "Reverse the order"),
        hidden_key("escape", "back", "all runs", "runs.back", "Remove the filter; leave the trash"),
    ]

    @dataclass
    class Requested(Message):
        """Request to show the run in `folder`, resume or branch it, or edit its configuration as a new one."""

        what: RunRequest
        folder: Path

    @dataclass
    class Chosen(Message):
        """Posted when a choice is made. what: its name for the program."""

        what: str

    @dataclass
    class CompareChanged(Message):
        """Posted when other runs are to be compared: two or more, or none any more."""

        folders: list[Path]

    @dataclass
    class Moved(Message):
        """Posted when the run in `folder` was moved to `to`: renamed, or put in the trash."""

        folder: Path
        to: Path

    def __init__(self, runs_dir: Path, facts: FactsReader | None = None, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.runs_dir = runs_dir
        self._facts_reader, self._facts = facts, HomeFacts()
        self._workspace: Workspace | None = None
        self._throttled = Throttled()
        self._detail: Detail | None = None
        self._comparison: list[RunGroup] | None = None  # of the marked runs
        self._marked: list[str] = []  # in the order of marking
        self._compared: list[Path] = []  # as last posted to the app
        self._open = ""  # name of the run on the screen, if it is in this folder
        self._in_trash = False
        self._glances: dict[str, Glance] = {}  # of all runs, before the filter, by name
        self._trashed: list[RunFolder] = []  # by this pane, the last one last

    def compose(self) -> ComposeResult:
        loop = HomeLoop()
        loop.display = loop.can_focus = self._facts_reader is not None
        yield loop
        yield RunTable()
        yield FilterField("name, state, model, reward")
        yield CutText(most=6, id="run-detail")
        with Container(id="run-below"):
            with VerticalScroll(id="run-comparison"):
                yield Static(id="run-differences", markup=False)
            yield Drawn(id="run-picture")
        yield Static(id="home-machine", markup=False)

    def on_mount(self) -> None:
        self.query_one("#run-comparison").display = False
        if self._facts_reader is not None:
            self._facts = self._facts_reader()(None)  # so that the keys work while the runs are read
        self._show_runs()
        self._show_facts()
        self.set_interval(INTERVAL, self._look)

    @on(CursorList.Left)
    def _go_to_other_list(self, message: CursorList.Left) -> None:
        if message.by > 0 and self._glances:
            self.query_one(RunTable).focus()
        elif message.by < 0 and self._facts.stations:
            self.query_one(HomeLoop).focus()

    def badge_for(self, view: RunView) -> Badge:
        folder = Path(view.started.folder) if view.started else None  # also of a hidden pane: for its badge
        self._open = folder.name if folder and folder.parent.absolute() == self.runs_dir.absolute() else ""
        return self._badge()

    def _badge(self) -> Badge:
        """Return how many runs train that are not on the screen."""
        runs = [glance.run for glance in self._glances.values()]
        elsewhere = sum(run.state == "training" and run.name != self._open for run in runs)
        return Badge(f"{SIGNS['training']}{elsewhere}") if elsewhere else Badge()

    def show_run(self, view: RunView) -> None:
        self.query_one(RunTable).show_marks(self._marked, self._open)

    def set_runs_dir(self, path: Path) -> None:
        """Show the runs in another folder."""
        if path.absolute() != self.runs_dir.absolute():
            self.runs_dir = path
            self._go_to(in_trash=False)

    def refresh_runs(self) -> None:
        """Read the runs now, whether or not anything seems to have changed."""
        self._throttled, self._workspace = Throttled(), None
        self._read()

    def _go_to(self, *, in_trash: bool) -> None:
        """Read the runs of another folder: those in the trash, or the others."""
        self._in_trash, self._glances, self._workspace = in_trash, {}, None
        self._mark([])
        self._show_runs()
        self.refresh_runs()
        self.refresh_bindings()

    @property
    def selected(self) -> RunSummary | None:
        """Run at the cursor; None without runs."""
        return self.query_one(RunTable).selected

    @on(Show)
    def _look(self) -> None:
        """Read the runs if the pane is visible, or if its badge counts runs that may end."""
        if self.is_on_screen or self.badge.text:
            self._read()

    @work(group="listing")
    async def _read(self) -> None:
        throttled, before = self._throttled, self._workspace
        folder = self.runs_dir / TRASH if self._in_trash else self.runs_dir
        facts = self._facts_reader() if self._facts_reader is not None else lambda _: HomeFacts()

        def read() -> tuple[Workspace | None, HomeFacts]:
            workspace = read_workspace(folder, before and before.states)
            return workspace, facts(workspace or before)

        found = await throttled.read(read)
        if found is None or throttled is not self._throttled:  # a refresh was requested since
            return
        workspace, self._facts = found
        if workspace is not None:
            self._workspace = workspace
            self._glances = {glance.run.name: glance for glance in workspace.glances}
            self.badge = self._badge()
            self._show_runs()
            self._mark([name for name in self._marked if name in self._glances])
        self._show_facts()

    def _show_facts(self) -> None:
        """Show the loop and the machine."""
        keys = keys_of(self)
        stations = [one._replace(key=keys[f"home.{one.key}"]) for one in self._facts.stations]
        self.query_one(HomeLoop).show(stations, self._facts.following)
        foot = self.query_one("#home-machine", Static)
        foot.display = bool(self._facts.machine) and len(self._marked) < 2
        foot.update(self._facts.machine)
        self._arrange()

    @on(Input.Changed)
    def _show_runs(self) -> None:
        """List the runs that match the filter."""
        query = self.query_one(FilterField).value
        shown = [
            run
            for run in (glance.run for glance in self._glances.values())
            if has_words(" ".join((run.name, state_text(run), run.model, run.reward, run.kind)), query)
        ]
        start = keys_of(self.screen).get("run.start", "")
        message = f"No runs in '{self.runs_dir}' yet. {f'Press {start} to train.' if start else ''}".strip()
        if self._workspace is None:
            message = "Reading runs …"
        elif self._glances:
            message = "No matching runs"
        elif self._workspace.problem or self._in_trash:
            message = self._workspace.problem or "The trash is empty"
        self.query_one(RunTable).show(shown, time.time(), self._glances, message=f"  {visible(message)}")
        found = f"{len(shown)} of {len(self._glances)}" if query else ""
        self.border_subtitle = ", ".join(filter(None, ("trash" if self._in_trash else "", found)))
        self._arrange()

    @work(group="detail", exclusive=True)
    async def _read_detail(self, folder: RunFolder) -> None:
        self._detail = await asyncio.to_thread(read_detail, folder)
        self._show_selected()

    @work(group="comparison", exclusive=True)
    async def _compare(self, folders: list[RunFolder]) -> None:
        found = await asyncio.to_thread(read_configs, folders)
        if [folder.name for folder in folders] == self._marked:
            self._comparison = found
            self._show_selected()

    async def _moved(self, folder: RunFolder, move: Callable[[], RunFolder]) -> RunFolder | None:
        """Move a run in a thread and follow it to its new folder; None if that fails, which is reported."""
        try:
            to = await asyncio.to_thread(move)
        except TrainerError as error:
            self.notify(visible(str(error)), severity="error", markup=False)
            return None
        else:
            self.post_message(self.Moved(folder.root, to.root))
            return to
        finally:
            self.refresh_runs()

    @on(RunTable.Moved)
    def _select(self) -> None:
        if (run := self.selected) is not None:
            self._read_detail(run.folder)
        self._show_selected()
        self.refresh_bindings()

    def _show_selected(self) -> None:
        """Show details and picture of the run under the cursor, or how the marked ones differ and theirs."""
        table, run, marked = self.query_one(RunTable), self.selected, self._marked
        detail = self._detail if run and self._detail and self._detail.folder == run.folder else None
        content = detail_content(run, detail, table.left_out) if run else ""
        self.query_one("#run-detail", Static).update(content)
        area, differences = self.query_one("#run-comparison"), self.query_one("#run-differences", Static)
        area.display = bool(marked)
        if len(marked) == 1:
            text = f"◆ {visible(marked[0])} is marked. Mark another to compare."
            differences.update(Content.styled(text, "$text-muted"))
        elif marked and self._comparison is not None:
            width = area.scrollable_content_region.width or self.size.width
            differences.update(differences_content(self._comparison, max(width, _LEAST)))
        names = marked if len(marked) > 1 else [run.name] if run else []
        known = [glance for glance in self._glances.values() if glance.scores]
        drawn = [self._glances[name] for name in names if name in self._glances and self._glances[name].scores]
        new = partial(explanation, self.query_one(HomeLoop).items)
        self.query_one("#run-picture", Drawn).show(partial(score_against_kl, drawn or known) if known else new)

    def on_resize(self) -> None:
        self._arrange()
        self.call_after_refresh(self._show_selected)  # once the table has its size

    def _arrange(self) -> None:
        """Give the table the lines of its runs where there is room below for a picture or an explanation."""
        loop, compares = self.query_one(HomeLoop), len(self._marked) > 1
        width, height = self.content_size
        loop.display = self._facts_reader is not None and (not compares or loop.has_focus or height >= _ROOMY)
        new = self._workspace is not None and not self._glances and not self._in_trash and bool(loop.items)
        below = compares or new or (bool(self._glances) and height >= _ROOMY)
        self.query_one("#run-below").display = below or bool(self._marked)
        self.query_one("#run-picture").display = below
        self.query_one("#run-detail").display = bool(self._glances) and not compares
        self.set_class(new, "-new")
        self.set_class(below, "-below")
        self.set_class(below and width >= _BESIDE, "-beside")
        loop.styles.height = 5 if new else 6  # the table has a blank line for its heading
        lines = 2 if new else max(min(len(self._glances) + 1, height // 3), 4)
        self.query_one(RunTable).styles.height = lines if below else "1fr"

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        run, on_run = self.selected, not self.query_one(HomeLoop).has_focus
        match action, *parameters:
            case "choose", str(key):
                return any(one.key == key for one in self._facts.stations)
            case ["choose"]:
                return not on_run
            case "ask", "open":
                return run is not None and on_run
            case ("ask", "resume") | ["rename" | "trash"]:
                return run is not None and not self._in_trash and run.state != "training"
            case ("ask", "duplicate") | ["mark"]:
                return run is not None and not self._in_trash
            case ("ask", "branch") | ["copy" | "bench"]:
                return run is not None
            case "restore", last:
                return bool(self._trashed) if last else run is not None and self._in_trash
            case ["export"]:
                return len(self._marked) > 1
            case ["back"]:
                return self._in_trash or self.query_one(FilterField).display
        return True

    @on(CursorList.Opened)
    def _open_clicked(self) -> None:
        if self.query_one(HomeLoop).has_focus:
            self.action_choose()
        else:
            self.action_ask("open")

    def action_choose(self, key: str = "") -> None:
        """Do what the station with this key is for, or the one under the cursor."""
        selected = self.query_one(HomeLoop).selected
        chosen = next((one for one in self._facts.stations if one.key == key), None) if key else selected
        if chosen is not None:
            self.post_message(self.Chosen(chosen.what))

    def action_ask(self, what: RunRequest) -> None:
        if (run := self.selected) is not None:
            self.post_message(self.Requested(what, run.folder.root))

    @work(group="bench")
    async def action_bench(self) -> None:
        """Ask for a reward, and show what it makes of the selected run's samples."""
        if (run := self.selected) is not None:
            question = f"Reward to try on {run.name}: lexicon, file.py:function, or a list"
            if reward := await self.app.push_screen_wait(TextPromptScreen(question, "lexicon")):
                self.app.push_screen(RewardBenchScreen(run.folder.root, reward))

    def action_rename(self) -> None:
        if (run := self.selected) is None:
            return
        folder = run.folder

        async def rename(name: str) -> str:
            if name != folder.name:
                before = self._marked  # a listing meanwhile no longer has the old name, and drops its mark
                try:
                    renamed = await asyncio.to_thread(rename_run, folder, name)
                except TrainerError as error:
                    return str(error)
                self._marked = [name if marked == folder.name else marked for marked in before]
                self.post_message(self.Moved(folder.root, renamed.root))
                self.refresh_runs()
            return ""

        self.app.push_screen(TextPromptScreen(f"Rename {run.name} to", run.name, submit=rename))

    @work(group="change")
    async def action_trash(self) -> None:
        """Move the selected run to the trash, once the user agrees."""
        if (run := self.selected) is None:
            return
        keys = keys_of(self.screen, self)
        detail = f"{keys['runs.undo']} restores it; {keys['runs.show-trash']} lists the trash."
        question = ConfirmScreen(f"Move {run.name} to the trash?", detail, "Move run", "Keep run")
        if not await self.app.push_screen_wait(question):
            return
        if (to := await self._moved(run.folder, lambda: RunFolder(trash_run(run.folder)))) is not None:
            self._trashed.append(to)
            self.confirm(f"Moved {run.name} to the trash; {keys['runs.undo']} restores it")

    @work(group="change")
    async def action_restore(self, last: bool) -> None:
        """Restore the selected run, or the one that was moved to the trash last."""
        folder = self._trashed[-1] if last else self.selected.folder if self.selected else None
        if folder and (restored := await self._moved(folder, lambda: restore_run(folder))) is not None:
            self._trashed = [one for one in self._trashed if one != folder]
            self.confirm(f"Restored {restored.name}")

    def action_show_trash(self) -> None:
        """List the trash in place of the runs, or the runs again."""
        self._go_to(in_trash=not self._in_trash)

    def action_filter(self) -> None:
        self.query_one(FilterField).open()

    def action_back(self) -> None:
        if (field := self.query_one(FilterField)).display:
            field.clear_filter()
        elif self._in_trash:
            self.action_show_trash()

    def action_copy(self) -> None:
        if (run := self.selected) is not None:
            self.copy(str(run.folder.root), "the path of the folder")

    def action_export(self) -> None:
        folders = [RunFolder(self.runs_dir / name) for name in self._marked]
        ask_and_save(self, "Save the comparison as", "comparison.md", partial(write_comparison, folders))

    def action_mark(self) -> None:
        if (run := self.selected) is None:
            return
        marked = run.name in self._marked
        self._mark([name for name in self._marked if name != run.name] if marked else [*self._marked, run.name])

    def action_sort(self, same: bool) -> None:
        """Sort by the next column, or by the same one the other way round."""
        table = self.query_one(RunTable)
        table.sort_by(table.sorted_by if same else "")

    def _mark(self, names: list[str]) -> None:
        """Mark these runs; compare two or more, and report a changed comparison to the app."""
        self._marked, self._comparison = names, None
        self.query_one(RunTable).show_marks(names, self._open)
        folders = [RunFolder(self.runs_dir / name) for name in names] if len(names) > 1 else []
        if folders:
            self._compare(folders)
        self._show_facts()
        self._show_selected()
        compared = [folder.root for folder in folders]
        if compared != self._compared:
            self._compared = compared
            self.post_message(self.CompareChanged(compared))
