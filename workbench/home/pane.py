"""Home pane: what can be done, the newest runs, and what happened since the workbench was last open."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, NamedTuple, Protocol

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Vertical
from textual.content import Content

from trainer.plurals import counted
from trainer.runs.listing import RunSummary
from workbench.home.glances import GlanceReader, Workspace, news, since_text
from workbench.home.home_list import Choice, HomeList, RunRow
from workbench.home.run_detail import RunDetail
from workbench.kit.drawing import CutText
from workbench.kit.keys import keys_of
from workbench.kit.pane import Pane
from workbench.kit.throttled import Throttled
from workbench.run.glance import Glance
from workbench.run.view import RunView
from workbench.text import visible

_INTERVAL = 2.0  # seconds between two looks at the workspace
_BESIDE = 150  # columns from which the details are beside the list
_BELOW = 12  # lines that the details below the list need


class Facts(NamedTuple):
    """Content of Home besides the runs: its choices, the labels added since the last visit, and the machine."""

    choices: list[Choice]
    labels: int = 0
    machine: str = ""


class HomeActions(Protocol):
    """Actions of the screen that Home calls, on the screen's thread."""

    @property
    def here(self) -> Path | None:
        """Folder of the run that trains in this process."""

    def first_facts(self) -> Facts:
        """Return the facts that are known before anything is read."""

    def facts(self) -> Callable[[Workspace], Facts]:
        """Return a function, to be called on a thread, that reads the facts."""

    def choose(self, what: str) -> None:
        """Do what a choice says; a dialog that it opens is there on return."""

    def open(self, folder: Path) -> None:
        """Show the run in `folder`."""


class HomePane(Pane):
    """Pane with the choices, the runs and the news. It reads on threads, and only while it is displayed."""

    TITLE = "Home"
    DOCS = "quickstart"
    HELP = (
        "Start here: train, open a run, label, or make a configuration of your own. Below are the newest runs of the "
        "workspace with their score and KL; a run that trains now is first. Enter does what the cursor is on."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "enter('choose')", "choose", id="home.choose", tooltip="Do what the cursor is on"),
        Binding("enter", "enter('open')", "open", id="home.open", tooltip="Show the run in the panes"),
        Binding("enter", "enter('watch')", "watch", id="home.watch", tooltip="Watch the run that trains elsewhere"),
        Binding("enter", "enter('training')", "go to Training", id="home.training", tooltip="Go to the run here"),
        Binding("t", "choose('train')", "train", show=False, id="home.train", tooltip="Train the configuration"),
        Binding("r", "choose('runs')", "open a run", show=False, id="home.runs", tooltip="Choose a run in Runs"),
        Binding("l", "choose('label')", "label", show=False, id="home.label", tooltip="Choose the better response"),
        Binding(
            "g",
            "choose('configure')",
            "new configuration",
            show=False,
            id="home.configure",
            tooltip="Make a configuration in three questions",
        ),
        Binding("y", "copy", "copy path", show=False, id="home.copy", tooltip="Copy the path of the run's folder"),
    ]

    def __init__(self, runs_dir: Path, actions: HomeActions, since: float, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._actions = actions
        self._since = since  # unix seconds; 0 if the workbench was never open here
        self._reader = GlanceReader(runs_dir)
        self._runs_dir = runs_dir
        self._throttled = Throttled()
        self._workspace: Workspace | None = None
        self._rows: list[RunRow] = []
        self._facts = Facts([])
        self._here: Path | None = None

    def compose(self) -> ComposeResult:
        with Container(id="home-body"):
            yield HomeList()
            yield RunDetail()
        with Vertical(id="home-foot"):
            yield CutText(most=3, id="home-news")
            yield CutText(most=2, id="home-machine")

    def on_mount(self) -> None:
        self._facts = self._actions.first_facts()  # so that the keys work while the runs are read
        self._show()
        self.set_interval(_INTERVAL, self._look)

    def on_show(self) -> None:
        self._look()

    def show_run(self, view: RunView) -> None:
        if self._actions.here != self._here:
            self._here = self._actions.here
            self.refresh_now()

    def set_runs_dir(self, path: Path) -> None:
        """Show the runs in another folder."""
        if path != self._runs_dir:
            self._runs_dir = path
            self._reader, self._workspace, self._rows = GlanceReader(path), None, []
            self.refresh_now()

    def refresh_now(self) -> None:
        """Read again now, whether or not the last reading was long ago."""
        self._throttled = Throttled()
        self._look()

    def _look(self) -> None:
        if self.is_attached and self.display:
            self._read()

    @work(group="read")
    async def _read(self) -> None:
        throttled, reader, before, here = self._throttled, self._reader, self._workspace, self._here
        facts = self._actions.facts()

        def read() -> tuple[Workspace, list[RunRow], Facts]:
            workspace = reader.read(before)
            return workspace, placed(workspace, here), facts(workspace)

        found = await throttled.read(read)
        if found is not None and throttled is self._throttled:  # no refresh was requested since
            self._workspace, self._rows, self._facts = found
            self._show()

    def _show(self) -> None:
        workspace, now = self._workspace, time.time()
        rows = self._rows
        problem = workspace.problem if workspace else "Reading runs …"
        note = visible(problem or "No runs yet. The curves of your runs appear here.")
        listed = self.query_one(HomeList)
        keys = keys_of(self)
        choices = [choice._replace(key=keys[f"home.{choice.key}"]) for choice in self._facts.choices]
        listed.show(choices, rows, now, note=note)
        found = news(workspace.glances, self._facts.labels, self._since) if workspace and self._since else []
        said = [f"{since_text(self._since, now)}: {' · '.join(found)}"] if found else []
        if any(row.place == "elsewhere" for row in rows) and self._here is None:
            said.append("A run trains elsewhere: enter on it to watch it")
        if workspace and workspace.total > len(workspace.glances):
            said.append(f"{counted(workspace.total - len(workspace.glances), 'older run')} in Runs")
        text = "\n".join(said)
        news_line = self.query_one("#home-news", CutText)
        news_line.display = bool(text)
        news_line.update(text)
        self.query_one("#home-machine", CutText).update(Content.styled(self._facts.machine, "$text-muted"))
        self._arrange()

    def on_resize(self) -> None:
        self.call_after_refresh(self._arrange)

    def _arrange(self) -> None:
        """Put the details beside the list or below it, or hide them where the list needs the room."""
        body, listed, detail = self.query_one("#home-body"), self.query_one(HomeList), self.query_one(RunDetail)
        width, height = body.size
        selected = listed.selected
        beside = width >= _BESIDE
        body.set_class(beside, "-beside")
        detail.show(selected.glance if isinstance(selected, RunRow) else self._newest())
        detail.display = beside or height - listed.lines >= _BELOW
        listed.styles.height = listed.lines + 1 if detail.display and not beside else "1fr"

    def _newest(self) -> Glance | None:
        return self._workspace.glances[0] if self._workspace and self._workspace.glances else None

    @on(HomeList.Moved)
    def _show_selected(self) -> None:
        self._arrange()
        self.refresh_keys()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "choose":
            unknown = parameters[0] == "runs" and self._workspace is None
            return unknown or any(choice.key == parameters[0] for choice in self._facts.choices)
        if action == "copy":
            return isinstance(self.query_one(HomeList).selected, RunRow)
        if action == "enter":
            return self._enter == parameters[0]
        return True

    @property
    def _enter(self) -> str:
        """Action of enter, in a word or two; empty if it does nothing."""
        match self.query_one(HomeList).selected:
            case Choice():
                return "choose"
            case RunRow(place="here"):
                return "training"
            case RunRow(place=place) if self._here is None:  # one process shows one run while it trains it
                return "watch" if place else "open"
            case _:
                return ""

    @on(HomeList.Opened)
    def _open_selected(self) -> None:
        self.action_enter(self._enter)

    def action_enter(self, how: str) -> None:
        match self.query_one(HomeList).selected:
            case Choice(what=what):
                self._actions.choose(what)
            case RunRow(glance=glance) if how:
                self._actions.open(glance.run.folder.root)

    def action_choose(self, key: str) -> None:
        self._actions.choose(next((choice.what for choice in self._facts.choices if choice.key == key), key))

    def action_copy(self) -> None:
        if isinstance(row := self.query_one(HomeList).selected, RunRow):
            self.copy(str(row.glance.run.folder.root.absolute()), "the path")


def placed(workspace: Workspace, here: Path | None) -> list[RunRow]:
    """Return the runs: the one in the folder `here` first, then those that train elsewhere, then the others.

    Looks up links, so it is for a thread.
    """
    here = here.resolve() if here is not None else None

    def place(run: RunSummary) -> str:
        if here is not None and run.folder.root.resolve() == here:
            return "here"
        return "elsewhere" if run.state == "training" else ""

    rows = [RunRow(glance, place(glance.run)) for glance in workspace.glances]
    return sorted(rows, key=lambda row: ["here", "elsewhere", ""].index(row.place))
