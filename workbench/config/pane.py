"""Config pane: one configuration as a form and as TOML, with its problems and estimated cost, and its files."""

from __future__ import annotations

import asyncio
import importlib
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, Literal

from rich.cells import cell_len
from textual import on, work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal
from textual.content import Content
from textual.events import Resize, Show
from textual.message import Message
from textual.widgets import Input, OptionList, Static, TextArea
from textual.widgets.option_list import Option

from trainer.config import Config, config_warnings
from trainer.errors import TrainerError, counted
from trainer.runs.listing import PPO
from workbench.config.document import ConfigDocument, Problem
from workbench.config.estimates import Estimate, estimate, file_problems
from workbench.config.fields import fields_by_key, search
from workbench.config.files import OverwriteError, read_text, sources
from workbench.config.form import NEXT, ConfigForm
from workbench.config.rows import ConfigRows, FieldRow
from workbench.config.views import TomlView, cost_content
from workbench.kit.cursor_list import FilterField
from workbench.kit.dialog import AnswerScreen, Reply, TextPromptScreen
from workbench.kit.drawing import CutText
from workbench.kit.keys import bind, hidden_key, with_keys
from workbench.kit.pane import Pane
from workbench.run.view import RunView
from workbench.system.machine import room_for
from workbench.text import fit_end, visible

_LOW = 26  # lines of the pane; with fewer, the help is smaller
_BESIDE = 96  # columns from which the TOML or the help is beside the form
_ALL_BESIDE = 150  # columns from which both are


class ConfigPane(Pane):
    """Pane that edits one document; the app handles the keys of the run.

    Configurations of reward models and of DPO have no form and are read-only.
    """

    TITLE = "Config"
    DOCS = "configuration"
    HELP = (
        "The configuration of the next run, or of the active one. {config.edit} edits the value under the cursor, "
        "{config.less} and {config.more} change it by a step, {config.copy} copies it as TOML. {config.view} shows the "
        "basic settings, all, or those that were changed. • differs from the preset, * is unsaved, ✖ is a problem. "
        "During a run only settings marked live can change; a new value is sent to the run for the next iteration. "
        "Reward models and DPO are shown as read-only TOML."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("w,ctrl+s", "save", "save", "config.save", "Save the file; a preset as a file of your own"),
        hidden_key("W", "save(True)", "save as", "config.save-as", "Save under another name"),
        bind("p", "open", "presets", "config.open", "Open a preset or another file"),
        bind("slash", "search", "search", "config.search", "Search names and descriptions"),
        bind("t,ctrl+t", "toggle_toml", "TOML", "config.toml", "Show or hide the TOML"),
        bind("u,ctrl+z", "travel('undo')", "undo", "config.undo", "Undo the last change, in form or TOML"),
        hidden_key("U,ctrl+y", "travel('redo')", "redo", "config.redo", "Redo the change that was undone"),
        bind("e,ctrl+n", "problem(1)", "problem", "config.problem", "Go to the next problem"),
        hidden_key("E", "problem(-1)", "problem", "config.problem-up", "Go to the previous problem"),
        hidden_key("escape", "back", "back", "config.back", "End the search; leave the TOML"),
    ]

    @dataclass
    class OpenRequested(Message):
        """Request to edit another preset or file; unsaved changes may be discarded."""

        source: str

    _toml_shown = False  # beside the form, or in its place
    _checked: Config | None = None  # the configuration whose cost and files were last checked

    def __init__(self, document: ConfigDocument, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._help = CutText(id="config-help")
        self.form = ConfigForm(document, self._help, self._show_toml)
        """Form, which may be hidden."""
        self._toml = TomlView(lambda text: self.form.make(partial(self.document.set_text, text)))
        self._heading = Static(id="config-heading", markup=False)
        self._list = OptionList(id="config-problems", compact=True)  # of problems, then of warnings
        self._list.display = False
        self._listed: list[Content] = []
        self._costs = Static(id="config-cost", markup=False)
        self._cost: tuple[Estimate | None, int] = None, 0  # of the newest valid configuration, and the memory
        self._search = FilterField("Search names and descriptions")
        self._file_problems: list[Problem] = []
        self._writing = asyncio.Lock()  # two saves at once would each take the other's for another program's

    def compose(self) -> ComposeResult:
        yield self._heading
        yield self._search
        with Horizontal(id="config-body"):
            yield self.form
            yield self._toml
            yield self._help
        yield self._list
        yield self._costs

    def on_mount(self) -> None:
        # The first change of a value needs it: 0.2 s.
        self.run_worker(asyncio.to_thread(importlib.import_module, "tomlkit"), group="load")
        self.refresh_view()

    @property
    def document(self) -> ConfigDocument:
        """Document on the screen."""
        return self.form.document

    @property
    def _read_only(self) -> bool:
        """Return whether this is a configuration of a reward model or of DPO, which have no form."""
        return self.document.kind != PPO

    @property
    def problems(self) -> list[Problem]:
        """Problems of the document, or else of the files that its run would read, as far as they were checked."""
        return self.document.problems or self._file_problems

    def take_focus(self) -> None:
        if self._read_only:
            self._toml.focus()
        elif not self.has_focus_within:
            (self.form.rows if self.form.display else self._toml).focus()

    def show_document(self, document: ConfigDocument) -> None:
        """Edit another document."""
        focused = self.has_focus_within
        self.form.close()
        self.form.edit_document(document)
        self.form.rows.put_cursor(0)
        if self._read_only:
            self._end_search()
        self.refresh_view()
        if focused and self._read_only:
            self.take_focus()

    def set_running(self, running: bool) -> None:
        """Set whether a run is active; while one is, only its live settings can be changed."""
        if running != self.form.running:  # an open editor stays, so that typed text does not act as keys
            self.form.running = running
            self.form.edit_document(self.document)
            self.refresh_view()

    def show_run(self, view: RunView) -> None:
        if not self._read_only:
            self.form.follow(view.settings)

    def focus_field(self, key: str) -> None:
        """Go to a setting in the form, or to its line in the TOML if the form does not show it."""
        if self._read_only:
            self.take_focus()
        elif key not in fields_by_key():
            self._show_toml(next((p.line for p in self.problems if p.key == key), None))
        else:
            self._end_search()
            if not self.form.display:
                self._hide_toml()
            self.form.go_to(key)
            self.form.rows.focus()

    # The document, in both views

    def action_travel(self, step: Literal["undo", "redo"]) -> None:
        self.form.make(partial(self.document.travel, step))

    @on(ConfigForm.Changed)
    def refresh_view(self) -> None:
        """Show the document as it is now."""
        document = self.document
        self.form.show()
        self._toml.read_only = self.form.running or self._read_only
        self._costs.display = not self._read_only
        if document.config is not self._checked and not self._read_only:
            self._checked, self._file_problems = document.config, []
            self._check()
        problems = [] if self._read_only else self.problems
        warnings = config_warnings(document.config) if document.config else []
        marked = [("✖ ", "$text-error", problem.message) for problem in problems]
        marked += [("⚠ ", "$text-warning", text) for text in ([document.about_kind] if self._read_only else warnings)]
        lines = [Content.assemble((sign, style), visible(text)) for sign, style, text in marked]
        if lines != self._listed:
            self._listed, self._list.display = lines, bool(lines)
            self._list.clear_options()
            self._list.add_options(Option(line, disabled=at >= len(problems)) for at, line in enumerate(lines))
        self._lay_out()
        self._point_at_problem()
        self.refresh_bindings()

    @on(Show)  # a file may have come or gone
    @work(exclusive=True, group="check")  # of one configuration, the newest
    async def _check(self) -> None:
        """Estimate the cost of the configuration and look for its files, in threads, if the pane is in sight."""
        if not self.display or (config := self.document.config) is None:
            return
        self._cost = await asyncio.to_thread(lambda: (estimate(config), room_for(config.model)))
        self._show_lines()
        found = await asyncio.to_thread(file_problems, config)
        if config is self.document.config and found != self._file_problems:
            self._file_problems = found
            self.refresh_view()

    @on(Resize)
    def _lay_out(self) -> None:
        """Show form, TOML and help side by side where there is room; otherwise the help is below."""
        self.set_class(self.size.height < _LOW, "-low")
        width, has_form = self.size.width, not self._read_only
        self.form.display = has_form and (not self._toml_shown or width >= _BESIDE)
        self._help.display = has_form
        self._help.set_class(width >= (_ALL_BESIDE if self._toml_shown else _BESIDE), "-beside")
        self._toml.display = self._toml_shown or not has_form
        if self._toml.display:
            self._toml.show_text(self.document.text)
        self._show_lines()

    def _show_lines(self) -> None:
        """Show the cost, and the name of the document with notes on its state, the most important first."""
        document, form, total = self.document, self.form, len(fields_by_key())
        is_preset = document.path is None and bool(document.preset)
        name = visible(document.preset if is_preset else document.name)
        notes = ["preset"] * is_preset + ["*unsaved"] * document.dirty + ["live settings only"] * form.running
        if form.shown < total and not form.words:
            notes.append(with_keys(f"{form.shown} of {total} shown, {{config.view}} shows {NEXT[form.view]}", form))
        if changed := sum(change.from_preset for change in document.changes.values()):
            notes.append(f"•{changed} changed")
        room, shown = self.size.width - 2, ""  # without the padding
        needed, memory = self._cost
        cost = cost_content(needed if document.config else None, memory, len(self.problems), room)
        self._costs.update(cost, layout=False)
        for note in [] if self._read_only else notes:
            if len(shown) + len(note) + 2 + min(cell_len(name), 12) <= room:
                shown += f"  {note}"
        name = fit_end(name, max(room - len(shown), 1))
        self._heading.update(Content.assemble((name, "bold"), (shown, "$text-muted")), layout=False)

    def _show_toml(self, line: int | None = None) -> None:
        """Show and focus the TOML at `line`, from 1; without one, at the line of the form's cursor."""
        row = self.form.rows.selected
        line = line or self.document.line_of(row.key if row else "")
        self._toml_shown = True
        self._lay_out()
        self._toml.focus()
        if line:
            self.call_after_refresh(self._toml.move_cursor, (line - 1, 0), center=True)

    def _hide_toml(self) -> None:
        self._toml_shown = False
        self._lay_out()
        self.form.rows.focus()

    def action_toggle_toml(self) -> None:
        if self._toml_shown:
            self._hide_toml()
        else:
            self._show_toml()

    @on(TextArea.SelectionChanged)
    def _follow_cursor(self) -> None:
        """Move the form's cursor, and with it the help, to the setting at the cursor of the TOML."""
        if self._toml.has_focus and not self._read_only:
            for key, line in self.document.lines.items():
                if line == self._toml.cursor_location[0] + 1 and key in fields_by_key():
                    self.form.go_to(key)

    # Search and problems

    def action_search(self) -> None:
        if not self.form.display:
            self._hide_toml()
        self._search.open()

    @on(Input.Changed, "FilterField")
    @on(Input.Submitted, "FilterField")
    def _find(self, event: Input.Changed | Input.Submitted) -> None:
        if isinstance(event, Input.Submitted):
            self.form.rows.focus()
            return
        self.form.words = event.value
        self.form.close()
        self.refresh_view()
        if found := search(event.value) if event.value else []:
            self.form.rows.go_to(found[0].key)

    def _end_search(self) -> None:
        with self.prevent(Input.Changed):
            self._search.value = self.form.words = ""
        self._search.display = False
        self.refresh_view()

    def action_problem(self, by: int) -> None:
        """Go to the next problem (by 1) or the previous one (-1), with wrap-around."""
        at = self._list.highlighted
        self._list.highlighted = ((0 if by > 0 else -1) if at is None else at + by) % len(self.problems)
        self._go_to_problem()

    @on(OptionList.OptionSelected, "#config-problems")
    def _go_to_problem(self) -> None:
        problem = self.problems[self._list.highlighted or 0]
        if problem.key in fields_by_key():
            self.focus_field(problem.key)
        else:
            self._show_toml(problem.line)

    @on(ConfigRows.Moved)
    def _point_at_problem(self) -> None:
        row = self.form.rows.selected
        places = [place for place, problem in enumerate(self.problems) if row and problem.setting == row.key]
        if places and isinstance(row, FieldRow) and row.problem:
            self._list.highlighted = places[0]

    def action_back(self) -> None:
        if self._search.display:
            self._end_search()
            self.form.rows.focus()
        else:
            self._hide_toml()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if self._read_only and action != "open":
            return False
        if action == "back":  # otherwise the app handles escape
            return self._search.display or self._toml_shown
        if action == "problem":
            return bool(self.problems)
        if action in ("open", "travel"):  # the run is controlled through the document on the screen
            return not self.form.running
        return True

    # Files

    @work(group="dialog", exclusive=True)
    async def action_open(self) -> None:
        """Let the user choose a preset or a file, and ask the app to open it."""
        path = self.document.path
        found = await asyncio.to_thread(sources, Path(), *([path.parent] if path else []))
        answers = []
        for one in found:
            place = "" if one.folder is None else f"In {one.folder}/." if one.folder.parts else "In this folder."
            answers.append(Reply(one.source, one.name, f"{one.purpose} {place}".strip() or "A preset."))
        answers.append(Reply("", "another file …", "Type its path."))
        source = await self.app.push_screen_wait(AnswerScreen("Open a configuration", answers))
        if source == "":
            folder = f"{path.parent}/" if path else ""
            source = await self.app.push_screen_wait(TextPromptScreen("Open a file", folder, submit=_unreadable))
        if source:
            self.post_message(self.OpenRequested(source.strip()))

    @work(group="save")
    async def action_save(self, rename: bool = False) -> None:
        await self.save(rename=rename)

    async def save(self, *, rename: bool = False) -> bool:
        """Save the file, or a preset or a copy under a name that is asked for; return whether nothing is unsaved.

        rename: ask for another name of a file, too.
        """
        path = self.document.path
        if path is not None and not rename:
            if problem := await self._problem_of_saving(path):
                self.notify(visible(problem), severity="error", markup=False)
            return not problem and not self.document.dirty

        async def write(name: str) -> str:
            chosen = Path(name.strip())
            return await self._problem_of_saving(chosen, f"{chosen} exists: choose another name")

        suggested = path or Path(f"my-{self.document.preset or 'run'}.toml")
        prompt = TextPromptScreen("Save as", str(suggested), submit=write)
        return await self.app.push_screen_wait(prompt) is not None

    async def _problem_of_saving(self, path: Path, kept: str = "", *, overwrite: bool = False) -> str:
        """Save the document; return why that failed. kept: the result if the user keeps the existing file."""
        document = self.document
        try:
            try:
                async with self._writing:
                    document.saved(*await asyncio.to_thread(document.to_save(path, overwrite=overwrite)))
            except OverwriteError as error:
                answers = [Reply("stay", "Cancel", "keep the file"), Reply("overwrite", "Overwrite", "replace it")]
                if error.path == document.path:
                    answers.insert(1, Reply("reload", "Reload", "from disk; undo restores your changes"))
                answer = await self.app.push_screen_wait(AnswerScreen(str(error), answers))
                if answer != "reload":
                    return await self._problem_of_saving(path, overwrite=True) if answer == "overwrite" else kept
                text, content = await asyncio.to_thread(read_text, error.path, str(error.path))
                self.form.make(partial(document.set_text, text))
                document.saved(error.path, text, content)
            else:
                problems = len(document.problems)
                suffix = f", with {counted(problems, 'problem')}" if problems else ""
                self.notify(f"Saved {visible(str(document.path))}{suffix}", markup=False)
        except TrainerError as error:
            return str(error)
        self.refresh_view()
        return ""


async def _unreadable(text: str) -> str:
    """Return why the file cannot be opened, or ""; the form shows problems in the configuration itself."""
    try:
        await asyncio.to_thread(ConfigDocument.open, text.strip())
    except TrainerError as error:
        return str(error)
    return ""
