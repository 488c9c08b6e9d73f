"""The dialog that asks from which checkpoint of a run to go on, and with which settings."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.suggester import Suggester
from textual.widgets import Input, Static

from trainer.errors import TrainerError, UsageError
from trainer.ppo_run.branching import Wanted
from trainer.runs.folder import RunFolder
from workbench.columns import fit
from workbench.kit.cursor_list import CursorList, under_cursor
from workbench.kit.dialog import Dialog, PlainInput
from workbench.kit.drawing import CutText
from workbench.kit.keys import keys_of
from workbench.kit.lines import Line
from workbench.numbers import number
from workbench.runs.branch_form import (
    SEEDS,
    BranchPoint,
    Outlook,
    Parent,
    about,
    assignments,
    branch_command,
    completions,
    left_text,
    outlook,
    value_at,
    word_at_end,
)
from workbench.text import visible

_REST = 0.2  # seconds without a key until what was typed is checked
_NUMBER = 11  # columns
_NAME = 24  # columns of a checkpoint
_SHOWN = 40  # most keys that are shown as completions


class PointList(CursorList[BranchPoint], can_focus=False):
    """List of checkpoints. The keys of the dialog move its cursor, so that the fields keep the focus."""

    CSS_NAME = "branch-points"
    HEADER_HEIGHT = 1
    COMPONENT_CLASSES: ClassVar[set[str]] = {f"branch-points--{role}" for role in ("heading", "cursor", "muted")}

    def __init__(self, parent: Parent) -> None:
        super().__init__()
        self._items = parent.points
        self._first = parent.first
        self.styles.height = self.HEADER_HEIGHT + len(parent.points)

    def on_mount(self) -> None:
        self.put_cursor(self._first)

    def header_line(self, width: int) -> Line:
        cells = fit("score last 5", _NUMBER + 1, right=True) + fit("KL last 5", _NUMBER, right=True)
        return [(fit("go on after", _NAME) + cells, "heading")]

    def item_line(self, index: int, line: int, width: int) -> Line:
        point = self._items[index]
        marks = [word for word, has in (("newest", index == 0), ("best", point.is_best)) if has]
        name = fit(f"iteration {point.iteration:<5} {', '.join(marks)}", _NAME)
        score, kl = number(point.score, width=_NUMBER), number(point.kl, 2, width=_NUMBER - 1)
        cells = fit(score, _NUMBER + 1, right=True) + fit(kl, _NUMBER, right=True)
        pieces: Line = [(name + cells, "")]
        return under_cursor(pieces, width) if index == self.cursor else pieces


class BranchField(PlainInput):
    """Field of the dialog. Enter starts the branch from any of them."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "submit", "start", id="branch.start", tooltip="Make the branch and train it"),
        Binding("up", "screen.move(-1)", "newer", id="branch.up", tooltip="Go to the next newer checkpoint"),
        Binding("down", "screen.move(1)", "older", id="branch.down", tooltip="Go to the next older checkpoint"),
        Binding("pageup", "screen.page(-1)", "page up", show=False, id="branch.page-up", tooltip="Go up a page"),
        Binding("pagedown", "screen.page(1)", "page down", show=False, id="branch.page-down", tooltip="Go down a page"),
    ]


class BranchSettings(BranchField):
    """Field for settings to change, which completes their names."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab", "complete", "complete", id="branch.complete", tooltip="Complete the name of the setting"),
    ]

    def __init__(self, suggester: Suggester) -> None:
        super().__init__(
            placeholder="such as ppo.kl_coef=0.1 optim.policy_lr=1e-5",
            suggester=suggester,
            compact=True,
            id="branch-settings",
        )

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return action != "complete" or bool(completions(word_at_end(self.value)))

    def action_complete(self) -> None:
        word = word_at_end(self.value)
        self.value = f"{self.value[: len(self.value) - len(word)]}{completions(word)[0]}="
        self.action_end()


class _SettingSuggester(Suggester):
    """Suggester of the rest of a setting's name, and of its value after the checkpoint."""

    def __init__(self, value_of: Callable[[str], str]) -> None:
        super().__init__(use_cache=False, case_sensitive=True)
        self._value_of = value_of

    async def get_suggestion(self, value: str) -> str | None:
        word = word_at_end(value)
        if word.endswith("="):
            return value + await asyncio.to_thread(self._value_of, word[:-1])
        found = [key for key in completions(word) if key.startswith(word)]
        return f"{value}{found[0][len(word) :]}=" if found else None


class BranchScreen(Dialog[RunFolder | None]):
    """Dialog that returns the folder of the branch, None when cancelled. It stays open until the branch is made.

    parent: the run. create: makes the branch and returns its folder; raises TrainerError.
    """

    TITLE = "Branch"
    HELP = "Makes a new run that goes on from a checkpoint of this one, with other settings. ⏎ in a field makes it."
    DOCS = "experiments"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+y", "copy", "copy command", id="branch.copy", tooltip="Copy the command for several seeds"),
        Binding("escape", "close", "cancel", id="branch.close", tooltip="Close without a branch"),
    ]

    def __init__(self, parent: Parent, create: Callable[[Wanted], Awaitable[RunFolder]]) -> None:
        super().__init__()
        self._run, self._create = parent, create
        self._creating = False

    def compose(self) -> ComposeResult:
        name = visible(self._run.folder.name)
        with Vertical(classes="dialog"):
            yield Static(f"Branch {name}: go on from a checkpoint, as a new run", markup=False, classes="question")
            yield PointList(self._run)
            with Horizontal(classes="field"):
                yield Static("settings", classes="label")
                yield BranchSettings(_SettingSuggester(lambda key: value_at(self._run, self._at, key)))
            with Horizontal(classes="field"):
                yield Static("iterations", classes="label")
                yield BranchField(restrict="[0-9]{0,9}", compact=True, id="branch-iterations")
            yield CutText(id="branch-note")
            about_command = f"{SEEDS} seeds with controls, as a command ({keys_of(self)['branch.copy']} copies it):"
            yield Static(about_command, classes="detail", markup=False)
            yield CutText(id="branch-command")

    def on_mount(self) -> None:
        self.query_one(BranchSettings).focus()
        self._show()

    @property
    def _at(self) -> int:
        """Iteration of the chosen checkpoint."""
        point = self.query_one(PointList).selected
        assert point is not None
        return point.iteration

    def _wanted(self) -> Wanted:
        count = self.query_one("#branch-iterations", Input).value
        overrides = assignments(self.query_one(BranchSettings).value)
        return Wanted(at=self._at, overrides=overrides, iterations=int(count) if count else None)

    def action_move(self, by: int) -> None:
        self.query_one(PointList).action_move(by)

    def action_page(self, by: int) -> None:
        self.query_one(PointList).action_page(by)

    def action_copy(self) -> None:
        self.copy(branch_command(self._run.folder, self._wanted()), "the command")

    def action_close(self) -> None:
        if not self._creating:
            self.dismiss(None)

    @on(PointList.Moved)
    @on(Input.Changed)
    def _show(self) -> None:
        wanted = self._wanted()
        self.query_one("#branch-iterations", Input).placeholder = left_text(self._run, wanted.at)
        command = visible(branch_command(self._run.folder, wanted))
        self.query_one("#branch-command", CutText).update(Content(command), layout=False)
        self.refresh_bindings()
        if not self._creating:
            self._look(wanted, word_at_end(self.query_one(BranchSettings).value))

    @work(exclusive=True, group="look")
    async def _look(self, wanted: Wanted, word: str) -> None:
        """Say what the branch would do, what is wrong with it, or how the word that is being typed may go on."""
        if keys := completions(word):
            self._show_note(Content.styled("  ".join(keys[:_SHOWN]), "$text-muted"))
            return
        await asyncio.sleep(_REST)
        try:
            if word.endswith("=") and (text := await asyncio.to_thread(about, self._run, wanted.at, word[:-1])):
                self._show_note(Content.styled(visible(text, keep_newlines=True), "$text-muted"))
                return
            _check(wanted)
            found = await asyncio.to_thread(outlook, self._run, wanted)
        except TrainerError as error:
            self._show_problem(error)
        else:
            self._show_note(_outlook_text(found))

    def on_input_submitted(self) -> None:
        if not self._creating:
            self._creating = True
            self.workers.cancel_group(self, "look")
            self._make()

    @work
    async def _make(self) -> None:
        self._show_note(Content.styled("Making the branch …", "$text-muted"))
        folder = None
        try:
            wanted = self._wanted()
            _check(wanted)
            folder = await self._create(wanted)
        except TrainerError as error:
            self._show_problem(error)
        finally:
            self._creating = False
        if folder is not None:
            self.dismiss(folder)

    def _show_problem(self, error: TrainerError) -> None:
        self._show_note(Content.assemble(("✖ ", "$text-error"), visible(str(error), keep_newlines=True)))

    def _show_note(self, note: Content) -> None:
        self.query_one("#branch-note", CutText).update(note, layout=False)


def _check(wanted: Wanted) -> None:
    """Raise UsageError for a number of iterations that is none."""
    if wanted.iterations == 0:
        raise UsageError("0 iterations: enter 1 or more, or nothing for those that the run has left")


def _outlook_text(found: Outlook) -> Content:
    lines = [Content.styled(visible(found.what), "bold"), Content(visible(found.changes))]
    lines += [Content.assemble(("⚠ ", "$text-warning"), visible(warning)) for warning in found.warnings]
    return Content("\n").join(lines)
