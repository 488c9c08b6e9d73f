"""Config pane: one configuration as a form and as TOML, with its problems, estimated cost and changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import Input, TextArea

from trainer.config import Config
from trainer.errors import TrainerError
from trainer.plurals import counted
from workbench.config.changes import Changes
from workbench.config.controller import ConfigController
from workbench.config.cost_lines import CostLines
from workbench.config.document import ConfigDocument, Problem
from workbench.config.fields import fields_by_key, search, sections, toml_line
from workbench.config.file_dialogs import FileDialogs
from workbench.config.form import ConfigForm
from workbench.config.material import material_problems
from workbench.config.rows import CHANGED, ConfigRows, FieldRow, SectionRow, Selection, keys_of, row_action
from workbench.config.toml import line_of, load_writer
from workbench.config.views import ConfigReading, ConfigViews
from workbench.config.widgets import ConfigHeading, FieldHelp, ProblemsList, SearchLine
from workbench.kit.pane import Pane
from workbench.run.view import RunView

_LOW = 26  # lines of the pane; with fewer, the help is smaller


class ConfigPane(Pane):
    """Pane that edits one document; the app handles the keys of the run."""

    TITLE = "Config"
    DOCS = "configuration"
    HELP = (
        "The configuration of the next run, or of the active one. {config.edit} edits the value under the cursor, "
        "{config.less} and {config.more} change it by a step, {config.copy} copies it as TOML. {config.view} shows the "
        "basic settings or all. • differs from the preset, * is unsaved, ✖ is a problem. During a run only settings "
        "marked live can change: {config.send} sends a new value (↵) to the run for the next iteration, and "
        "{config.back} discards it. Reward models and DPO are shown as read-only TOML."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("w,ctrl+s", "save", "save", id="config.save", tooltip="Save the file; a preset as a file of your own"),
        Binding("W", "save_as", "save as", show=False, id="config.save-as", tooltip="Save under another name"),
        Binding("p", "open", "presets", id="config.open", tooltip="Open a preset or another file"),
        Binding("slash", "search", "search", id="config.search", tooltip="Search names and descriptions"),
        Binding("v", "view", "all/basic", id="config.view", tooltip="Change the view: all settings, or the basic ones"),
        Binding("y", "copy", "copy", show=False, id="config.copy", tooltip="Copy the setting or section as TOML"),
        Binding("t,ctrl+t", "toggle_toml", "TOML", id="config.toml", tooltip="Show or hide the TOML"),
        Binding("u,ctrl+z", "undo", "undo", id="config.undo", tooltip="Undo the last change, in form or TOML"),
        Binding("U,ctrl+y", "redo", "redo", show=False, id="config.redo", tooltip="Redo the change that was undone"),
        Binding("backspace", "reset", "reset", show=False, id="config.reset", tooltip="Restore the preset's value"),
        Binding("f", "fold_all", "fold", show=False, id="config.fold", tooltip="Fold or unfold all sections"),
        Binding("e,ctrl+n", "problem(1)", "problem", id="config.problem", tooltip="Go to the next problem"),
        Binding(
            "E", "problem(-1)", "problem", show=False, id="config.problem-up", tooltip="Go to the previous problem"
        ),
        Binding("escape", "back", "back", show=False, id="config.back", tooltip="End the search; leave the TOML"),
    ]

    class Changed(Message):
        """The document has changed."""

    class LiveSettingChanged(Message):
        """Request that the current run uses `value` for `key`."""

        def __init__(self, key: str, value: Any) -> None:
            super().__init__()
            self.key = key
            self.value = value

    class OpenRequested(Message):
        """Request to edit another preset or file; unsaved changes may be discarded."""

        def __init__(self, source: str) -> None:
            super().__init__()
            self.source = source

    def __init__(self, document: ConfigDocument, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._controller = ConfigController(document)
        self._selection = Selection()
        self._loaded = False
        self._checked: Config | None = None  # the configuration whose files were last checked
        self._material: list[Problem] = []  # of those files
        self._changes = Changes(
            self, self._controller, lambda key, value: self.post_message(self.LiveSettingChanged(key, value))
        )
        self._files = FileDialogs(self, lambda source: self.post_message(self.OpenRequested(source)))

    @property
    def document(self) -> ConfigDocument:
        """Document on the screen."""
        return self._controller.document

    @property
    def shows_all(self) -> bool:
        """Return whether the form shows all settings, not only the basic ones."""
        return self._selection.everything

    @shows_all.setter
    def shows_all(self, everything: bool) -> None:
        if everything != self._selection.everything:
            self._selection.everything = everything
            self._views.show(keep="")
            self.refresh_view()

    def compose(self) -> ComposeResult:
        yield ConfigHeading(id="config-heading")
        yield SearchLine(id="config-search")
        yield ConfigViews(self._controller, self._selection, id="config-views")
        yield ConfigReading(id="config-reading")
        yield ProblemsList(id="config-problems")
        yield CostLines(id="config-cost")

    def on_mount(self) -> None:
        self._views.watch(self._views, "shown", partial(setattr, self.query_one(ConfigHeading), "shown"))
        self.refresh_view()

    def on_resize(self) -> None:
        self.set_class(self.size.height < _LOW, "-low")

    def on_descendant_blur(self) -> None:
        self.call_after_refresh(self._forget_if_left)

    def _forget_if_left(self) -> None:
        """Remove the note and the unsent value once the focus has left the pane."""
        if not self.has_focus_within:
            self.form.say("")
            if self._controller.draft is not None:
                self._changes.discard()

    def take_focus(self) -> None:
        if not self._loaded:
            self._loaded = True
            self.run_worker(asyncio.to_thread(load_writer), group="load")  # before the first change needs it
        if self._controller.read_only:
            self.query_one(ConfigReading).take_focus()
        elif not self.has_focus_within:
            (self.form.rows if self.form.display else self._views.toml or self.form.rows).focus()

    def show_document(self, document: ConfigDocument) -> None:
        """Edit another document."""
        focused = self.has_focus_within
        self._controller.open(document)
        self.form.close()
        self.form.rows.put_cursor(0)
        self._set_query("" if self._controller.read_only else self._selection.query)
        self.refresh_keys()
        if focused and self._controller.read_only:
            self.take_focus()

    def set_running(self, running: bool) -> None:
        """Set whether a run is active; while one is, only its live settings can be changed."""
        if self._controller.set_running(running):  # an open editor stays, so that typed text does not act as keys
            self.refresh_view()
            self.refresh_keys()

    def show_run(self, view: RunView) -> None:
        try:
            if self._controller.follow(view.settings):
                self.refresh_view()
        except TrainerError as error:
            self.form.say(str(error))

    def focus_field(self, key: str) -> None:
        """Go to a setting in the form, or to its line in the TOML if the form does not show it."""
        if self._controller.read_only:
            self.take_focus()
            return
        if key not in fields_by_key():
            self._views.show_toml(next((p.line for p in self.document.problems if p.key == key), None))
            return
        self._set_query("")
        self._views.show_form()
        self._views.go_to(key)
        self.form.rows.focus()

    @property
    def _views(self) -> ConfigViews:
        return self.query_one(ConfigViews)

    @property
    def form(self) -> ConfigForm:
        """Form, which may be hidden."""
        return self._views.form

    @on(ConfigForm.ValueChosen)
    def _take_value(self, event: ConfigForm.ValueChosen) -> None:
        self._changes.set(event.key, event.value)

    @on(ConfigRows.Chosen)
    def _choose(self) -> None:
        row = self.form.rows.selected
        if isinstance(row, SectionRow):
            self._fold(row, is_open=not row.is_open)
        elif isinstance(row, FieldRow):
            match row_action(row):
                case "explain":
                    self._changes.explain_lock()
                case "send":
                    self._changes.send()
                case "toggle":
                    self._changes.step(row, 1)
                case "toml":
                    self._views.show_toml(line_of(row.key, self.document.lines))
                case _:
                    self.form.edit(row)

    @on(ConfigRows.Stepped)
    def _step(self, event: ConfigRows.Stepped) -> None:
        row = self.form.rows.selected
        if isinstance(row, SectionRow):
            self._fold(row, is_open=event.direction > 0)
        elif isinstance(row, FieldRow):
            self._changes.step(row, event.direction)

    def _fold(self, row: SectionRow, *, is_open: bool) -> None:
        (self._selection.folded.discard if is_open else self._selection.folded.add)(row.key)
        self.refresh_view()

    @on(ConfigForm.LockedChosen)
    def _explain_lock(self) -> None:
        self._changes.explain_lock()

    @on(ConfigRows.Moved)
    def _explain(self) -> None:
        row, draft = self.form.rows.selected, self._controller.draft
        if draft is not None and (row is None or row.key != draft.key):
            self._changes.discard()
            return
        self.query_one(FieldHelp).show(row)
        if isinstance(row, FieldRow) and row.problem:
            self.query_one(ProblemsList).point_at(row.key)

    def action_fold_all(self) -> None:
        """Fold all sections, or unfold all if any is folded."""
        self._selection.folded = set() if self._selection.folded else {CHANGED, *sections()}
        self.refresh_view()

    def action_view(self) -> None:
        """Show the basic settings or all."""
        self.shows_all = not self.shows_all

    def action_copy(self) -> None:
        """Copy the setting under the cursor as TOML, or those of the section."""
        if row := self.form.rows.selected:
            keys = keys_of(row, self.document)
            text = "\n".join(toml_line(key, self.document.get(key)) for key in keys)
            self.copy(text, row.key if isinstance(row, FieldRow) else counted(len(keys), "setting"))

    def action_reset(self) -> None:
        """Reset the setting under the cursor to the preset's value."""
        row = self.form.rows.selected
        if isinstance(row, FieldRow) and self.form.rows.has_focus:
            self._changes.reset(row)

    def action_undo(self) -> None:
        self._changes.undo()

    def action_redo(self) -> None:
        self._changes.redo()

    def action_open(self) -> None:
        self._files.open()

    def save(self, then: Callable[[], object]) -> None:
        """Save the configuration, asking for a name if it has none; call `then` once it is saved."""
        self._files.save(then)

    def action_save(self) -> None:
        self._files.save()

    def action_save_as(self) -> None:
        self._files.save_as()

    def action_search(self) -> None:
        line = self.query_one(SearchLine)
        line.display = True
        self._views.show_form()
        line.focus()

    @on(Input.Changed, "#config-search")
    def _search(self, event: Input.Changed) -> None:
        self._selection.query = event.value
        self.form.close()
        self.refresh_view()
        if found := search(event.value) if event.value else []:
            self.form.rows.go_to(found[0].key)

    @on(Input.Submitted, "#config-search")
    def _keep_search(self) -> None:
        self.form.rows.focus()

    def _set_query(self, query: str) -> None:
        self._selection.query = query
        self.query_one(SearchLine).put(query)
        self.refresh_view()

    def action_toggle_toml(self) -> None:
        if self._views.toml is None:
            self._views.show_toml()
        else:
            self._views.hide_toml()

    @on(TextArea.SelectionChanged)
    def _follow_cursor(self) -> None:
        self._views.follow_cursor()

    @on(TextArea.Changed)
    def take_typed(self) -> None:
        if self._views.take_typed():
            self.document_changed()

    def action_back(self) -> None:
        if self._controller.draft is not None:
            self._changes.discard()
        elif self._selection.query:
            self._set_query("")
        else:
            self._views.hide_toml()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if self._controller.read_only and action != "open":
            return False
        if action == "back":  # otherwise the app handles escape
            return self._controller.draft is not None or bool(self._selection.query) or self._views.toml is not None
        if action == "problem":
            return bool(self.problems)
        if action == "open":  # the run is controlled through the document on the screen
            return not self._controller.running
        return True

    def action_problem(self, by: int) -> None:
        self.query_one(ProblemsList).next(by)

    @on(ProblemsList.Chosen)
    def _go_to_problem(self, event: ProblemsList.Chosen) -> None:
        if event.problem.key in fields_by_key():
            self.focus_field(event.problem.key)
        else:
            self._views.show_toml(event.problem.line)

    def document_changed(self) -> None:
        """Show the changed document, and report it to the app."""
        self.post_message(self.Changed())
        self.refresh_view()
        self.refresh_keys()

    def refresh_view(self) -> None:
        """Show the document as it is now, with the text that was just typed."""
        self.take_typed()
        document, controller, reading = self.document, self._controller, self.query_one(ConfigReading)
        reading.display = controller.read_only
        for widget in (self._views, self.query_one(CostLines)):
            widget.display = not reading.display
        self.query_one(ConfigHeading).show(document, running=controller.running and not reading.display)
        if reading.display:
            reading.show(document)
            self.query_one(ProblemsList).show([], [])
            return
        self._views.show()
        config = document.config
        if config is not self._checked:
            self._checked, self._material = config, []
            self._check_material()
        self.query_one(ProblemsList).show(self.problems, document.warnings)
        self._explain()
        self.query_one(CostLines).show(config, len(self.problems))

    @property
    def problems(self) -> list[Problem]:
        """Problems of the document, or else of the files that its run would read, as far as they were checked."""
        return self.document.problems or self._material

    def on_show(self) -> None:
        self._check_material()  # a file may have come or gone

    @work(exclusive=True, group="material")  # of one configuration, the newest
    async def _check_material(self) -> None:
        if not self.display or (config := self.document.config) is None:
            return
        found = await asyncio.to_thread(material_problems, config)
        if config is self.document.config and found != self._material:
            self._material = found
            self.refresh_view()
            self.refresh_keys()
