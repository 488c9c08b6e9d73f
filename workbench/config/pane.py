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
from trainer.plurals import counted
from trainer.runs.listing import PPO
from workbench.config.changes import Changes
from workbench.config.cost_lines import CostLines
from workbench.config.document import ConfigDocument, Problem
from workbench.config.estimates import file_problems
from workbench.config.fields import editable, fields_by_key, kind_of, search, sections, toml_line
from workbench.config.files import open_another, save, save_as
from workbench.config.form import ConfigForm, FieldHelp
from workbench.config.rows import CHANGED, ConfigRows, FieldRow, SectionRow, keys_of, rows_of
from workbench.config.toml import line_of, load_writer
from workbench.config.views import ConfigBody, ConfigHeading, ProblemsList, SearchLine
from workbench.kit.dialog import AnswerScreen, Reply
from workbench.kit.keys import with_keys
from workbench.kit.pane import Pane
from workbench.run.view import RunView

_LOW = 26  # lines of the pane; with fewer, the help is smaller


class ConfigPane(Pane):
    """Pane that edits one document; the app handles the keys of the run.

    Without a run, changes are made at once. During a run only live settings can change: a step or an undo is a proposal
    until the user sends it. Configurations of reward models and of DPO have no form and are read-only.
    """

    TITLE = "Config"
    DOCS = "configuration"
    HELP = (
        "The configuration of the next run, or of the active one. {config.edit} edits the value under the cursor, "
        "{config.less} and {config.more} change it by a step, {config.copy} copies it as TOML. {config.view} shows the "
        "basic settings or all. • differs from the preset, * is unsaved, ✖ is a problem. During a run only settings "
        "marked live can change: {config.edit} sends a new value (↵) to the run for the next iteration, and "
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

    _query = ""
    _shown_text = ""  # of the document, when it was last shown
    _checked: Config | None = None  # the configuration whose files were last checked

    def __init__(self, document: ConfigDocument, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.document = document
        """Document on the screen."""
        self.writing = asyncio.Lock()  # two saves at once would each take the other's for another program's
        self._shows_all = False
        self._folded: set[str] = set()
        self._file_problems: list[Problem] = []
        self._changes = Changes(self, lambda key, value: self.post_message(self.LiveSettingChanged(key, value)))

    def compose(self) -> ComposeResult:
        yield ConfigHeading(id="config-heading")
        yield SearchLine(id="config-search")
        yield ConfigBody(self.document, id="config-body")
        yield ProblemsList(id="config-problems")
        yield CostLines(id="config-cost")

    def on_mount(self) -> None:
        self.run_worker(asyncio.to_thread(load_writer), group="load")  # before the first change needs it
        self.refresh_view()

    def on_resize(self) -> None:
        self.set_class(self.size.height < _LOW, "-low")

    def on_show(self) -> None:
        self._check_files()  # a file may have come or gone

    def on_descendant_blur(self) -> None:
        self.call_after_refresh(self._forget_if_left)

    def _forget_if_left(self) -> None:
        """Remove the note and the unsent value once the focus has left the pane."""
        if not self.has_focus_within:
            self.form.say("")
            if self._changes.proposal is not None:
                self._changes.discard()

    @property
    def _body(self) -> ConfigBody:
        return self.query_one(ConfigBody)

    @property
    def form(self) -> ConfigForm:
        """Form, which may be hidden."""
        return self._body.form

    @property
    def _read_only(self) -> bool:
        """Return whether this is a configuration of a reward model or of DPO, which have no form."""
        return self.document.kind != PPO

    @property
    def shows_all(self) -> bool:
        """Return whether the form shows all settings, not only the basic ones."""
        return self._shows_all

    @shows_all.setter
    def shows_all(self, everything: bool) -> None:
        if everything != self._shows_all:
            self._shows_all = everything
            self.refresh_view(keep="")

    @property
    def problems(self) -> list[Problem]:
        """Problems of the document, or else of the files that its run would read, as far as they were checked."""
        return self.document.problems or self._file_problems

    def take_focus(self) -> None:
        if self._read_only or not self.has_focus_within:
            self._body.take_focus()

    def show_document(self, document: ConfigDocument) -> None:
        """Edit another document."""
        focused = self.has_focus_within
        self.document = document
        self._changes.forget()
        self.form.close()
        self.form.rows.put_cursor(0)
        self._set_query("" if self._read_only else self._query)
        self.refresh_bindings()
        if focused and self._read_only:
            self.take_focus()

    def set_running(self, running: bool) -> None:
        """Set whether a run is active; while one is, only its live settings can be changed."""
        if running != self._changes.running:  # an open editor stays, so that typed text does not act as keys
            self._changes.running = running
            self._changes.forget()
            self.refresh_view()
            self.refresh_bindings()

    def show_run(self, view: RunView) -> None:
        if not self._read_only:
            self._changes.follow(view.settings)

    def focus_field(self, key: str) -> None:
        """Go to a setting in the form, or to its line in the TOML if the form does not show it."""
        if self._read_only:
            self.take_focus()
        elif key not in fields_by_key():
            self._body.show_toml(next((p.line for p in self.document.problems if p.key == key), None))
        else:
            self._set_query("")
            self._body.show_form()
            self._go_to(key)
            self.form.rows.focus()

    def document_changed(self) -> None:
        """Show the changed document, and report it to the app."""
        self.post_message(self.Changed())
        self.refresh_view()
        self.refresh_bindings()

    @on(ConfigForm.ValueChosen)
    def _take_value(self, event: ConfigForm.ValueChosen) -> None:
        self._changes.set(event.key, event.value)

    @on(ConfigRows.Chosen)
    def _choose(self) -> None:
        row = self.form.rows.selected
        if isinstance(row, SectionRow):
            self._fold(row, is_open=not row.is_open)
        elif row is None:
            return
        elif row.locked:
            self._changes.explain_lock(row.key)
        elif row.proposed:
            self._changes.send()
        elif kind_of(row.field) == "boolean" and isinstance(row.value, bool):
            self._changes.step(row, 1)
        elif not editable(row.field, row.value):
            self._body.show_toml(line_of(row.key, self.document.lines))
        elif kind_of(row.field) == "choice":
            choices = [Reply(one, one, "current" if one == row.value else "") for one in row.field.schema["enum"]]
            self.app.push_screen(AnswerScreen(row.key, choices), partial(self._take_choice, row.key))
        else:
            self.form.edit(row)

    def _take_choice(self, key: str, choice: str | None) -> None:
        if choice is not None:
            self._changes.set(key, choice)

    @on(ConfigRows.Stepped)
    def _step(self, event: ConfigRows.Stepped) -> None:
        row = self.form.rows.selected
        if isinstance(row, SectionRow):
            self._fold(row, is_open=event.direction > 0)
        elif row is not None:
            self._changes.step(row, event.direction)

    def action_reset(self) -> None:
        """Reset the setting under the cursor to the preset's value."""
        row = self.form.rows.selected
        if isinstance(row, FieldRow) and self.form.rows.has_focus:
            self._changes.reset(row)

    def action_undo(self) -> None:
        self._changes.undo()

    def action_redo(self) -> None:
        self._changes.redo()

    def _fold(self, row: SectionRow, *, is_open: bool) -> None:
        (self._folded.discard if is_open else self._folded.add)(row.key)
        self.refresh_view()

    def action_fold_all(self) -> None:
        """Fold all sections, or unfold all if any is folded."""
        self._folded = set() if self._folded else {CHANGED, *sections()}
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

    @on(ConfigRows.Moved)
    def _explain(self) -> None:
        row = self.form.rows.selected
        if self._changes.proposal is not None and (row is None or row.key != self._changes.proposal.key):
            self._changes.discard()
            return
        self.query_one(FieldHelp).show(row)
        if isinstance(row, FieldRow) and row.problem:
            self.query_one(ProblemsList).point_at(row.key)

    def _go_to(self, key: str) -> None:
        """Move the form's cursor to a setting, also if it is hidden or its section is folded."""
        if not self.form.rows.go_to(key):
            self._folded.discard(key.partition(".")[0])
            self.refresh_view(keep=key)
            self.form.rows.go_to(key)

    def action_search(self) -> None:
        line = self.query_one(SearchLine)
        line.display = True
        self._body.show_form()
        line.focus()

    @on(Input.Changed, "#config-search")
    def _search(self, event: Input.Changed) -> None:
        self._query = event.value
        self.form.close()
        self.refresh_view()
        if found := search(event.value) if event.value else []:
            self.form.rows.go_to(found[0].key)

    @on(Input.Submitted, "#config-search")
    def _keep_search(self) -> None:
        self.form.rows.focus()

    def _set_query(self, query: str) -> None:
        self._query = query
        self.query_one(SearchLine).put(query)
        self.refresh_view()

    def action_problem(self, by: int) -> None:
        self.query_one(ProblemsList).next(by)

    @on(ProblemsList.Chosen)
    def _go_to_problem(self, event: ProblemsList.Chosen) -> None:
        if event.problem.key in fields_by_key():
            self.focus_field(event.problem.key)
        else:
            self._body.show_toml(event.problem.line)

    def action_toggle_toml(self) -> None:
        if self._body.toml_shown:
            self._body.hide_toml()
        else:
            self._body.show_toml()

    @on(TextArea.SelectionChanged)
    def _follow_cursor(self) -> None:
        """Move the form's cursor, and with it the help, to the setting at the cursor of the TOML."""
        toml = self._body.toml
        if toml.has_focus and not self._read_only:
            for key, line in self.document.lines.items():
                if line == toml.cursor_location[0] + 1 and key in fields_by_key():
                    self._go_to(key)

    @on(TextArea.Changed)
    def take_typed(self) -> None:
        """Change the document as the TOML was edited since the document was last shown."""
        text = self._body.toml.text
        if self._body.toml_shown and not self._read_only and text != self._shown_text:
            self._shown_text = text
            self.document.set_text(text)
            self.document_changed()

    def action_back(self) -> None:
        if self._changes.proposal is not None:
            self._changes.discard()
        elif self._query:
            self._set_query("")
        else:
            self._body.hide_toml()

    def request_open(self, source: str) -> None:
        """Ask the app to open another configuration."""
        self.post_message(self.OpenRequested(source))

    def action_open(self) -> None:
        open_another(self)

    def save(self, then: Callable[[], object]) -> None:
        """Save the configuration, asking for a name if it has none; call `then` once it is saved."""
        save(self, then)

    def action_save(self) -> None:
        save(self)

    def action_save_as(self) -> None:
        save_as(self)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if self._read_only and action != "open":
            return False
        if action == "back":  # otherwise the app handles escape
            return self._changes.proposal is not None or bool(self._query) or self._body.toml_shown
        if action == "problem":
            return bool(self.problems)
        if action == "open":  # the run is controlled through the document on the screen
            return not self._changes.running
        return True

    def refresh_view(self, *, keep: str | None = None) -> None:
        """Show the document as it is now, with the text that was just typed.

        keep: as for `rows_of`; None for the row under the cursor.
        """
        self.take_typed()
        document, changes, row = self.document, self._changes, self.form.rows.selected
        rows = rows_of(
            document,
            everything=self._shows_all,
            query=self._query,
            folded=self._folded,
            keep=(row.spot if row else "") if keep is None else keep,
            running=changes.running,
            sent=changes.sent,
            proposed={changes.proposal.key: changes.proposal.value} if changes.proposal else {},
        )
        self._shown_text = document.text
        self._body.show(rows, document, locked=changes.running or self._read_only)
        shown = sum(row.shown for row in rows if isinstance(row, SectionRow))
        self.query_one(ConfigHeading).show(*self._heading(shown))
        self.query_one(CostLines).display = not self._read_only
        if self._read_only:
            self.query_one(ProblemsList).show([], [], self.document.about_kind)
            return
        if document.config is not self._checked:
            self._checked, self._file_problems = document.config, []
            self._check_files()
        self.query_one(ProblemsList).show(self.problems, document.warnings)
        self._explain()
        self.query_one(CostLines).show(document.config, len(self.problems))

    def _heading(self, shown: int) -> tuple[str, list[str]]:
        """Return the name of the document, and notes on its state. shown: number of settings in the form."""
        document = self.document
        if self._read_only:
            return document.name, []
        is_preset = document.path is None and bool(document.preset)
        changed = sum(change.from_preset for change in document.changes.values())
        notes = ["preset"] * is_preset + ["*unsaved"] * document.dirty + ["live settings only"] * self._changes.running
        if shown < len(fields_by_key()) and not self._query:
            hidden = f"{shown} of {len(fields_by_key())} shown, {{config.view}} shows all"
            notes.append(with_keys(hidden, *self.query_one(ConfigHeading).ancestors))
        if changed:
            notes.append(f"•{changed} changed from {'the preset' if document.preset else 'the defaults'}")
        return document.preset if is_preset else document.name, notes

    @work(exclusive=True, group="files")  # of one configuration, the newest
    async def _check_files(self) -> None:
        if not self.display or (config := self.document.config) is None:
            return
        found = await asyncio.to_thread(file_problems, config)
        if config is self.document.config and found != self._file_problems:
            self._file_problems = found
            self.refresh_view()
            self.refresh_bindings()
