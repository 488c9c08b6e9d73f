"""Widgets around the form: heading, search, help, problems, cost, and the document as TOML."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar, get_args

from rich.cells import cell_len
from rich.style import Style
from rich.text import Text
from textual import work
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.message import Message
from textual.widget import Widget
from textual.widgets import OptionList, TextArea
from textual.widgets.option_list import Option
from textual.widgets.text_area import Edit, EditResult

from trainer.config import Config
from trainer.memory.footprint import Part
from trainer.plurals import counted
from workbench.config.document import Problem
from workbench.config.estimates import Estimate, estimate
from workbench.config.fields import limits, shown
from workbench.config.rows import Row, SectionRow
from workbench.config.toml import Token, TokenKind, tokens_by_line
from workbench.kit.dialog import PlainInput
from workbench.kit.drawing import CutText
from workbench.numbers import gigabytes
from workbench.system.machine import room_for
from workbench.text import fit, fit_end, packed, visible


class ConfigHeading(Widget):
    """Name of the preset or file, and notes on its state as far as there is room."""

    _subject = ""
    _notes: Sequence[str] = ()

    def show(self, subject: str, notes: Sequence[str]) -> None:
        """Show `subject` and `notes`, the most important first."""
        self._subject, self._notes = visible(subject), notes
        self.refresh()

    def render(self) -> Content:
        width, notes = self.size.width, ""
        least = min(cell_len(self._subject), 12)
        for note in self._notes:
            if cell_len(notes) + 2 + cell_len(note) <= width - least:
                notes += f"  {note}"
        name = fit_end(self._subject, max(width - cell_len(notes), 1))
        return Content.assemble((name, "bold"), (notes, "$text-muted"))


class SearchLine(PlainInput):
    """Search input, hidden until requested; enter keeps the matches, escape shows all settings again."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "escape", "clear", "show all", id="config-search.clear", tooltip="End the search and show all settings"
        ),
        Binding("down", "submit", "to the rows", show=False, id="config-search.down", tooltip="Go to the matches"),
    ]

    def __init__(self) -> None:
        super().__init__(placeholder="Search names and descriptions", compact=True)
        self.display = False

    def allow_focus(self) -> bool:
        return bool(self.display)

    async def action_clear(self) -> None:
        self.value = ""
        await self.action_submit()


class FieldHelp(CutText):
    """Help on a row below a note, the most important facts first; its height is fixed, so that the form stays."""

    def show(self, row: Row | None, note: str = "") -> None:
        """Explain `row`, after `note`: a problem, or what a key would do."""
        style = "$text-error" if note.startswith("✖") else "$text-warning"
        self.update(Content.styled(f"{note}\n" * bool(note), style) + help_content(row), layout=False)


def help_content(row: Row | None) -> Content:
    """Return the help on `row`: its purpose, advice, range, default, and the default's source."""
    if row is None:
        return Content()
    if isinstance(row, SectionRow):
        return Content.assemble((row.key, "bold"), "  ", row.purpose)
    field = row.field
    lines = [Content.assemble((f"{field.name}  ", "bold"), field.help)]
    if field.advice:
        lines.append(Content.styled(field.advice, "$text-accent"))
    default = f"default {visible(shown(field, field.schema['default']))}"
    facts = filter(None, (limits(field), default, "live" if field.live else ""))
    lines.append(Content.styled(" · ".join(facts), "$text-muted"))
    if field.source:
        lines.append(Content.styled(f"default from: {field.source}", "$text-muted"))
    return Content("\n").join(lines)


class ProblemsList(OptionList):
    """List of problems, which lead to their settings, and warnings; hidden while it is empty."""

    class Chosen(Message):
        """Request to show the setting or line of `problem`."""

        def __init__(self, problem: Problem) -> None:
            super().__init__()
            self.problem = problem

    def __init__(self) -> None:
        super().__init__(id="config-problems", compact=True)
        self._problems: Sequence[Problem] = ()
        self._shown: list[Content] = []
        self.display = False

    def allow_focus(self) -> bool:
        return bool(self.display)

    def show(self, problems: Sequence[Problem], notes: Sequence[str]) -> None:
        """Show problems, then notes that lead nowhere."""
        lines = [Content.assemble(("✖ ", "$text-error"), visible(problem.message)) for problem in problems]
        lines += [Content.assemble(("⚠ ", "$text-warning"), visible(note)) for note in notes]
        self._problems = problems
        if lines != self._shown:
            self._shown, self.display = lines, bool(lines)
            self.clear_options()
            self.add_options(Option(line, disabled=place >= len(problems)) for place, line in enumerate(lines))

    def next(self, by: int) -> None:
        """Go to the next problem (by 1) or the previous one (-1), with wrap-around."""
        if self._problems:
            place = (0 if by > 0 else -1) if self.highlighted is None else self.highlighted + by
            self.highlighted = place % len(self._problems)
            self.post_message(self.Chosen(self._problems[self.highlighted]))

    def point_at(self, key: str) -> None:
        """Highlight the first problem of a setting."""
        places = [place for place, problem in enumerate(self._problems) if problem.setting == key]
        if places:
            self.highlighted = places[0]

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.post_message(self.Chosen(self._problems[event.option_index]))


_OF_ADAPTERS: tuple[Part, ...] = ("adapters", "optimiser", "gradients")


class CostLines(Widget):
    """Two lines that are always in view: memory of an iteration and number of problems, then where the memory goes."""

    _config: Config | None = None
    _problems = 0
    _needed: Estimate | None = None
    _room = 0

    def show(self, config: Config | None, problems: int) -> None:
        """Estimate `config` in a thread, as it reads files, and show it with the count of problems.

        config: None while it has problems.
        """
        is_another, self._config, self._problems = config is not self._config, config, problems
        self.refresh()
        if config is None:
            self.workers.cancel_group(self, "estimate")  # of what was valid a moment ago
        elif is_another:
            self._estimate(config)

    @work(exclusive=True, group="estimate")
    async def _estimate(self, config: Config) -> None:
        self._needed, self._room = await asyncio.to_thread(lambda: (estimate(config), room_for(config.model)))
        self.refresh()

    def render(self) -> Content:
        needed, width = self._needed if self._config else None, self.size.width
        too_much = bool(needed and needed.memory and needed.memory.peak > self._room)
        words = "" if self._config else "No estimate until the problems are fixed"
        if needed:
            words = "memory unknown"
            if needed.memory:
                words = f"≈ {gigabytes(needed.memory.peak)} of {gigabytes(self._room)}"
                words += ": does not fit" * too_much
        state = f"✖ {counted(self._problems, 'problem')}" if self._problems else "✓ no problems"
        if len(words) + len(state) >= width:
            state = f"✖ {self._problems}" if self._problems else "✓"
        return Content.assemble(
            (fit(words, max(width - cell_len(state) - 1, 0)), "$text-error" if too_much else ""),
            (f" {state}", "$text-error" if self._problems else "$text-success"),
            "\n" + " · ".join(packed(cost_pieces(needed), width, 3)[0]) if needed else "",
        )


def cost_pieces(needed: Estimate) -> Sequence[str]:
    """Return what an iteration costs, the most important first."""
    pieces = [f"≤ {needed.tokens_per_iteration:,} tokens/it"]
    if memory := needed.memory:
        weights, adapters = memory.parts["weights"], sum(memory.parts.get(part, 0) for part in _OF_ADAPTERS)
        sizes = {"weights": weights, "adapters": adapters, memory.phase: memory.peak - weights - adapters}
        pieces += [f"{name} {gigabytes(size)}" for name, size in sizes.items()]
    return [*pieces, needed.basis, f"≤ {needed.forward_tokens:,} through a model"]


_APPS = {"f6", "f7", "ctrl+z", "ctrl+y"}  # F-keys choose panes; undo and redo also change the form


def _bindings() -> list[BindingType]:
    """Return TextArea's bindings, each with an id so that users can change its key.

    Leaves out those whose keys mean something else here.
    """
    kept: list[BindingType] = []
    for binding in TextArea.BINDINGS:
        assert isinstance(binding, Binding)
        if not _APPS & set(binding.key.split(",")):
            name = binding.action.replace("_", "-").replace("(True)", "-select")
            kept.append(replace(binding, id=f"toml.{name}", tooltip=binding.description, show=False))
    return kept


class TomlView(TextArea, inherit_bindings=False):
    """TOML editor with our own highlighting: Textual's needs two compiled packages, and we need the tokens anyway.

    typed: called with the text after each edit.
    """

    COMPONENT_CLASSES: ClassVar[set[str]] = {f"toml-view--{kind}" for kind in get_args(TokenKind)}
    BINDINGS: ClassVar[list[BindingType]] = _bindings()

    def __init__(self, typed: Callable[[str], None]) -> None:
        super().__init__(show_line_numbers=True, soft_wrap=False, tab_behavior="focus", compact=True)
        self.display = False
        self._typed = typed
        self._tokens: list[list[Token]] = []
        self._coloured: str | None = None

    def allow_focus(self) -> bool:
        return bool(self.display)

    def edit(self, edit: Edit) -> EditResult:
        """Make an edit, and report the text at once: a message may come after the next change of the form."""
        result = super().edit(edit)
        self._typed(self.text)
        return result

    def show_text(self, text: str) -> None:
        """Show `text`; the cursor stays where it was."""
        if text != self.text:
            location, scroll = self.cursor_location, self.scroll_offset
            self.load_text(text)
            self.move_cursor(location)
            self.scroll_to(scroll.x, scroll.y, animate=False)

    def go_to_line(self, line: int) -> None:
        """Move the cursor to a line, from 1."""
        self.move_cursor((line - 1, 0), center=True)

    def get_line(self, line_index: int) -> Text:
        """Return a line with its colours; each control character becomes one symbol, so that columns stay."""
        line = Text("".join(map(_shown, self.document.get_line(line_index))), end="", no_wrap=True)
        if self._coloured != self.text:
            self._coloured = self.text
            self._tokens = tokens_by_line("\n".join(self.document.lines))
        for token in self._tokens[line_index]:
            style = self.get_component_rich_style(f"toml-view--{token.kind}")
            # Without the background, which the line or the selection sets.
            ink = Style(color=style.color, bold=style.bold, italic=style.italic, underline=style.underline)
            line.stylize(ink, token.start, token.stop)
        return line


def _shown(character: str) -> str:
    safe = character if character == "\t" else visible(character)
    return safe if len(safe) == 1 else "\ufffd"
