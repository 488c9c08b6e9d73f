"""Config pane: one configuration as a form and as TOML, with its problems, estimated cost and changes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import Input

from trainer.errors import TrainerError
from trainer.runs.listing import PPO
from workbench.config.document import ConfigDocument, Problem
from workbench.config.document_pane import DocumentPane
from workbench.config.draft import Draft, drafted, moved_since, values_of
from workbench.config.estimates import estimate
from workbench.config.fields import fields_by_key, search, sections, stepped
from workbench.config.form import ConfigForm
from workbench.config.heading import ConfigHeading
from workbench.config.help import EstimateLine, FieldHelp
from workbench.config.problems import ProblemsList
from workbench.config.reading import ConfigReading
from workbench.config.row import FieldRow, rows_of
from workbench.config.rows import ConfigRows
from workbench.config.search import SearchLine
from workbench.config.toml import line_of
from workbench.config.views import ConfigViews
from workbench.kit.keys import keys_of
from workbench.run.view import RunView

_LOW = 26  # lines of the pane; with fewer, the help is smaller


class ConfigPane(DocumentPane):
    """Pane that edits one document; the app handles the keys of the run."""

    TITLE = "Config"
    HELP = (
        "The configuration of the next run, or of the one under way. Enter edits the value under the cursor, left and "
        "right change it by a step. • is unlike the preset, * unlike the file, ✖ a problem. While a run goes on, "
        "settings marked live can be changed: enter sends the new value (↵) to the run, which uses it from the next "
        "iteration on, and escape puts the old one back; the others wait for its end. That of a reward model or of DPO "
        "is shown as its TOML, to be read."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "search", "search", id="config.search", tooltip="Find settings by name or help text"),
        Binding("t,ctrl+t", "toggle_toml", "TOML", id="config.toml", tooltip="Show the TOML, or hide it"),
        Binding("u,ctrl+z", "undo", "undo", id="config.undo", tooltip="Take back the last change, in form or TOML"),
        Binding("U,ctrl+y", "redo", "redo", show=False, id="config.redo", tooltip="Do again what was taken back"),
        Binding("backspace", "reset", "reset", show=False, id="config.reset", tooltip="Take back the preset's value"),
        Binding("f", "fold_all", "fold", show=False, id="config.fold", tooltip="Fold every section, or unfold them"),
        Binding("e,ctrl+n", "problem(1)", "problem", id="config.problem", tooltip="Go to the next problem"),
        Binding("E", "problem(-1)", "problem", show=False, id="config.problem-up", tooltip="Go to the problem before"),
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

    def __init__(self, document: ConfigDocument, *, id: str | None = None) -> None:
        super().__init__(document, id=id)
        self._under_way = False
        self._folded: set[str] = set()
        self._query = ""
        self._draft: Draft | None = None
        self._sent: dict[str, Any] = {}  # values sent to the run that it has not confirmed
        self._taken: object = None  # the run's newest setting change that the document includes

    def compose(self) -> ComposeResult:
        yield ConfigHeading(id="config-heading")
        yield SearchLine(id="config-search")
        yield ConfigViews(id="config-views")
        yield ConfigReading(id="config-reading")
        yield ProblemsList(id="config-problems")
        yield FieldHelp(id="config-help")
        yield EstimateLine(id="config-estimate")

    def on_mount(self) -> None:
        self._show()

    def on_resize(self) -> None:
        self.set_class(self.size.height < _LOW, "-low")

    def on_descendant_blur(self) -> None:
        self.call_after_refresh(self._forget_if_left)

    def _forget_if_left(self) -> None:
        """Remove the note and the unsent value once the focus has left the pane."""
        if not self.has_focus_within:
            self._form.say("")
            if self._draft is not None:
                self._put_back()

    def take_focus(self) -> None:
        if self._is_read_only:
            self.query_one(ConfigReading).take_focus()
        elif not self.has_focus_within:
            (self._form.rows if self._form.display else self._views.toml or self._form.rows).focus()

    # Called by the app

    def show_document(self, document: ConfigDocument) -> None:
        """Edit another document."""
        focused = self.has_focus_within
        self.document = document
        self._taken = self._draft = None
        self._sent.clear()
        self._form.close()
        self._set_query("" if self._is_read_only else self._query)
        self.refresh_keys()
        if focused and self._is_read_only:
            self.take_focus()

    def set_running(self, running: bool) -> None:
        """Set whether a run is active; while one is, only its live settings can be changed."""
        if running != self._under_way:
            self._under_way = running
            self._sent.clear()
            self._draft = None  # an open editor stays, so that typed text does not act as keys
            self._show()
            self.refresh_keys()

    def show_run(self, view: RunView) -> None:
        newest = view.settings[-1] if view.settings else None
        if not self._under_way or newest is self._taken or self._is_read_only:
            return
        seen = next((i for i, setting in enumerate(view.settings) if setting is self._taken), -1)
        self._taken = newest
        for setting in view.settings[seen + 1 :]:
            self._sent.pop(setting.key, None)
            if setting.key in fields_by_key():
                self._try(partial(self.document.set, setting.key, setting.value))
        self._show()

    def focus_field(self, key: str) -> None:
        """Go to a setting in the form, or to its line in the TOML if the form does not show it."""
        if self._is_read_only:
            self.take_focus()
            return
        if key not in fields_by_key():
            self._show_toml(next((p.line for p in self.document.problems if p.key == key), None))
            return
        self._folded.discard(key.partition(".")[0])
        self._set_query("")
        self._views.show_form()
        self._form.rows.go_to(key)
        self._form.rows.focus()

    # The form

    @property
    def _is_read_only(self) -> bool:
        """Whether the document is for another kind of run than PPO, which has no form."""
        return self.document.kind != PPO

    @property
    def _views(self) -> ConfigViews:
        return self.query_one(ConfigViews)

    @property
    def _form(self) -> ConfigForm:
        return self._views.form

    @on(ConfigForm.ValueChosen)
    def _take_value(self, event: ConfigForm.ValueChosen) -> None:
        self._change(lambda: self.document.set(event.key, event.value), self.document.undo)

    @on(ConfigForm.StepRequested)
    def _step_value(self, event: ConfigForm.StepRequested) -> None:
        draft = self._draft
        old = draft.value if draft is not None and draft.key == event.key else self.document.get(event.key)
        self._propose(event.key, stepped(fields_by_key()[event.key], old, event.direction))

    @on(ConfigForm.DraftChosen)
    def _send_draft(self) -> None:
        draft, self._draft = self._draft, None
        self._form.close()
        if draft is not None:
            self._change(draft.act, draft.back)

    @on(ConfigForm.FoldRequested)
    def _fold(self, event: ConfigForm.FoldRequested) -> None:
        (self._folded.discard if event.is_open else self._folded.add)(event.section)
        self._show()

    @on(ConfigForm.TextRequested)
    def _edit_text(self, event: ConfigForm.TextRequested) -> None:
        self._show_toml(line_of(event.key, self.document.lines))

    @on(ConfigForm.LockedChosen)
    def _explain_lock(self, event: ConfigForm.LockedChosen) -> None:
        if self.document.syntax_error:
            self._form.say(f"the TOML has an error: fix it there first ({keys_of(self)['config.toml']})")
        else:
            self._form.say(f"{event.key} cannot change during a run: only settings marked live can")

    @on(ConfigRows.Moved)
    def _explain(self) -> None:
        row = self._form.rows.row
        if self._draft is not None and (row is None or row.key != self._draft.key):
            self._put_back()
            return
        self.query_one(FieldHelp).show(row)
        if isinstance(row, FieldRow) and row.problem:
            self.query_one(ProblemsList).point_at(row.key)

    def action_fold_all(self) -> None:
        """Fold all sections, or unfold all if any is folded."""
        self._folded = set() if self._folded else set(sections())
        self._show()

    def action_reset(self) -> None:
        """Reset the setting under the cursor to the preset's value."""
        row = self._form.rows.row
        if isinstance(row, FieldRow) and self._form.rows.has_focus:
            if row.locked:
                self._form.post_message(ConfigForm.LockedChosen(row.key))
            else:
                self._propose(row.key, self.document.preset_value(row.key), partial(self.document.reset, row.key))

    def action_undo(self) -> None:
        self._travel(self.document.undo, self.document.redo)

    def action_redo(self) -> None:
        self._travel(self.document.redo, self.document.undo)

    def _propose(self, key: str, value: Any, act: Callable[[], object] | None = None) -> None:
        """Set `key` to `value` by `act`; during a run only once the user sends it with enter."""
        act = act or partial(self.document.set, key, value)
        if self._under_way:
            self._show_draft(Draft(key, value, act, self.document.undo))
        else:
            self._change(act, self.document.undo)

    def _travel(self, act: Callable[[], bool], back: Callable[[], bool]) -> None:
        """Undo or redo a step of the document; during a run only once the user sends it with enter."""
        if not self._under_way:
            self._change(act, back)
            return
        self.take_typed()
        if draft := drafted(self.document, act, back):
            self.focus_field(draft.key)
            self.call_after_refresh(self._show_draft, draft)  # after the cursor has moved there
        else:
            self._form.say("only a change of one live setting can be undone or redone during a run")

    def _show_draft(self, draft: Draft) -> None:
        if draft.value == self.document.get(draft.key):
            self._put_back()
            return
        self._draft = draft
        self._show()
        back = keys_of(self)["config.back"]
        self._form.say(f"enter sends {draft.key} to the run, {back} puts it back")

    def _put_back(self) -> None:
        """Discard the proposed value."""
        self._draft = None
        self._form.close()
        self._show()

    def _change(self, act: Callable[[], object], back: Callable[[], object]) -> None:
        """Change the document and send the change to a current run; undo it with `back` if it is not live."""
        self.take_typed()
        text, before = self.document.text, values_of(self.document)
        if not self._try(act) or self.document.text == text:
            return
        moved = moved_since(self.document, before)
        if self._under_way and not all(fields_by_key()[key].live for key in moved):
            back()
            self._form.say("that cannot change during a run: it is not a live setting")
            return
        for key in moved if self._under_way else ():
            self._sent[key] = self.document.get(key)
            self.post_message(self.LiveSettingChanged(key, self._sent[key]))
        self.document_changed()

    # Search

    def action_search(self) -> None:
        line = self.query_one(SearchLine)
        line.display = True
        self._views.show_form()
        line.focus()

    @on(Input.Changed, "#config-search")
    def _search(self, event: Input.Changed) -> None:
        self._query = event.value
        self._form.close()
        self._show()
        if found := search(event.value) if event.value else []:
            self._form.rows.go_to(found[0].key)

    @on(Input.Submitted, "#config-search")
    def _keep_search(self) -> None:
        self._form.rows.focus()

    @on(SearchLine.Cleared)
    def _clear_search(self) -> None:
        self._set_query("")
        self._form.rows.focus()

    def _set_query(self, query: str) -> None:
        self._query = query
        line = self.query_one(SearchLine)
        with line.prevent(Input.Changed):
            line.value = query
        line.display = bool(query)
        self._show()

    # TOML

    def action_toggle_toml(self) -> None:
        """Show the TOML, or hide it."""
        if self._views.toml is None:
            self._show_toml(None)
        else:
            self._views.hide_toml()

    def _show_toml(self, line: int | None) -> None:
        row = self._form.rows.row
        self._views.show_toml(self.document, row.key if row else "", line, read_only=self._under_way)

    @on(ConfigViews.TextEdited)
    def take_typed(self) -> None:
        if not self._is_read_only and (text := self._views.take_typed()) is not None:
            self.document.set_text(text)
            self.document_changed()

    @on(ConfigViews.LineEntered)
    def _follow(self, event: ConfigViews.LineEntered) -> None:
        """Move the form's cursor, and with it the help, to the TOML line's setting."""
        for key, line in self.document.lines.items():
            if line == event.line and key in fields_by_key():
                self._form.rows.go_to(key)

    def action_back(self) -> None:
        if self._draft is not None:
            self._put_back()
        elif self._query:
            self._set_query("")
        else:
            self._views.hide_toml()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if self._is_read_only and action != "open":
            return False
        if action == "back":  # otherwise the app handles escape
            return self._draft is not None or bool(self._query) or self._views.toml is not None
        if action == "problem":
            return bool(self.document.problems)
        if action == "open":  # the run is controlled through the document on the screen
            return not self._under_way
        return True

    # Problems

    def action_problem(self, by: int) -> None:
        self.query_one(ProblemsList).next(by)

    @on(ProblemsList.Chosen)
    def _go_to_problem(self, event: ProblemsList.Chosen) -> None:
        problem: Problem = event.problem
        if problem.key in fields_by_key():
            self.focus_field(problem.key)
        else:
            self._show_toml(problem.line)

    # Display

    def _try(self, action: Callable[[], object]) -> bool:
        """Call `action`; if it raises TrainerError, show a note and return False."""
        try:
            action()
        except TrainerError as error:
            self._form.say(str(error))
            return False
        return True

    def document_changed(self) -> None:
        self.post_message(self.Changed())
        self._show()
        self.refresh_keys()

    def document_saved(self) -> None:
        self._show()

    def _show(self) -> None:
        self.take_typed()
        document, reading = self.document, self.query_one(ConfigReading)
        reading.display = self._is_read_only
        for widget in (self._views, self.query_one(FieldHelp), self.query_one(EstimateLine)):
            widget.display = not reading.display
        self.query_one(ConfigHeading).show(document, running=self._under_way and not reading.display)
        if reading.display:
            reading.show(document)
            self.query_one(ProblemsList).show([], [])
            return
        rows = rows_of(
            document,
            folded=self._folded,
            query=self._query,
            running=self._under_way,
            sent=self._sent,
            draft=self._draft[:2] if self._draft else None,
        )
        self._views.show(document, rows, read_only=self._under_way)
        self.query_one(ProblemsList).show(document.problems, document.warnings)
        self._explain()
        config = document.config()
        self.query_one(EstimateLine).show(estimate(config) if config else None)
