"""Lines and lists around the form: heading, search, problems, and help on a setting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.cells import cell_len
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.message import Message
from textual.reactive import reactive
from textual.widget import Widget
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from trainer.runs.listing import PPO
from workbench.columns import fit_end
from workbench.config.document import ConfigDocument, Problem
from workbench.config.fields import fields_by_key, limits, shown
from workbench.config.rows import Row, SectionRow
from workbench.kit.drawing import CutText
from workbench.kit.guard import GuardedWidget
from workbench.kit.keys import with_keys
from workbench.text import visible


class ConfigHeading(GuardedWidget, Widget):
    """Heading with the name of the preset or file, whether it is saved, and the number of changes."""

    shown: reactive[int] = reactive(0)
    """Number of settings in the form."""
    _subject = ""
    _notes: Sequence[str] = ()
    _changed = ""
    _has_form = True

    def show(self, document: ConfigDocument, *, running: bool) -> None:
        """Show the state of `document`. running: during a run, only live settings can change."""
        self._subject = visible(document.preset if document.path is None and document.preset else document.name)
        self._has_form = document.kind == PPO
        changed = sum(change.from_preset for change in document.changes.values())
        against = "the preset" if document.preset else "the defaults"
        self._notes = [
            *(["preset"] if document.path is None and document.preset else []),
            *(["*unsaved"] if document.dirty else []),
            *(["live settings only"] if running else []),
        ]
        self._changed = f"•{changed} changed from {against}" if changed else ""
        self.refresh()

    def _hidden(self) -> str:
        """Return a note on the settings that the form hides; empty if it hides none."""
        every = len(fields_by_key())
        if not self._has_form or self.shown >= every:
            return ""
        return with_keys(f"{self.shown} of {every} shown, {{config.view}} shows all", *self.ancestors)

    def render(self) -> Content:
        width = self.size.width
        notes = ""
        least = min(cell_len(self._subject), 12)
        for note in filter(None, [*self._notes, self._hidden(), self._changed]):
            if len(notes) + 2 + len(note) <= width - least:
                notes += f"  {note}"
        name = fit_end(self._subject, max(width - len(notes), 1))
        return Content.assemble((name, "bold"), (notes, "$text-muted"))


class SearchLine(Input):
    """Search input, hidden until requested; enter keeps the matches, escape shows all settings again."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "escape", "clear", "show all", id="config-search.clear", tooltip="End the search and show all settings"
        ),
        Binding("down", "submit", "to the rows", show=False, id="config-search.down", tooltip="Go to the matches"),
    ]

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(placeholder="Search names and descriptions", compact=True, id=id)
        self.display = False

    def allow_focus(self) -> bool:
        return bool(self.display)

    def put(self, query: str) -> None:
        """Show `query` without searching again; hide the line if it is empty."""
        with self.prevent(Input.Changed):
            self.value = query
        self.display = bool(query)

    async def action_clear(self) -> None:
        self.value = ""
        await self.action_submit()
        self.display = False


class ProblemsList(OptionList):
    """List of problems, which lead to their settings, and warnings; hidden while it is empty."""

    class Chosen(Message):
        """Request to show the setting or line of `problem`."""

        def __init__(self, problem: Problem) -> None:
            super().__init__()
            self.problem = problem

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id, compact=True)
        self._problems: Sequence[Problem] = ()
        self._warnings: Sequence[str] = ()
        self._gone_to = -1  # index of the problem shown last
        self.display = False

    def allow_focus(self) -> bool:
        return bool(self.display)

    def show(self, problems: Sequence[Problem], warnings: Sequence[str]) -> None:
        """Show problems and warnings, the problems first."""
        if (problems, warnings) == (self._problems, self._warnings):
            return
        self._problems, self._warnings = problems, warnings
        self.clear_options()
        self.add_options(Content.assemble(("✖ ", "$text-error"), visible(problem.message)) for problem in problems)
        self.add_options(
            Option(Content.assemble(("⚠ ", "$text-warning"), visible(warning)), disabled=True) for warning in warnings
        )
        self.display = bool(problems or warnings)
        self._gone_to = min(self._gone_to, len(problems) - 1)

    def next(self, by: int) -> None:
        """Go to the next problem (by 1) or the previous one (-1), with wrap-around."""
        if self._problems:
            self._gone_to = (self._gone_to + by) % len(self._problems)
            self.highlighted = self._gone_to
            self.post_message(self.Chosen(self._problems[self._gone_to]))

    def point_at(self, key: str) -> None:
        """Highlight the first problem of a setting."""
        for place, problem in enumerate(self._problems):
            if problem.setting == key:
                self.highlighted = place
                return

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.post_message(self.Chosen(self._problems[event.option_index]))


class FieldHelp(CutText):
    """Help on a row, the most important facts first; its height is fixed, so that the form does not jump."""

    def show(self, row: Row | None) -> None:
        """Explain `row`."""
        self.update(help_content(row), layout=False)


def help_content(row: Row | None) -> Content:
    """Return the help on `row`: its purpose, advice, range, default, and the default's source."""
    if row is None:
        return Content()
    if isinstance(row, SectionRow):
        return Content.assemble((row.title, "bold"), "  ", row.purpose)
    field, about = row.field, row.field.about
    lines = [Content.assemble((f"{field.name}  ", "bold"), about.help)]
    if about.advice:
        lines.append(Content.styled(about.advice, "$text-accent"))
    default = f"default {visible(shown(field, field.default))}"
    facts = filter(None, (limits(field), default, "live" if about.live else ""))
    lines.append(Content.styled(" · ".join(facts), "$text-muted"))
    if about.source:
        lines.append(Content.styled(f"default from: {about.source}", "$text-muted"))
    return Content("\n").join(lines)
