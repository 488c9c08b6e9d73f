"""The dialog that explains the advantage of a token: the formulas, then its sum of TD errors or rewards by term."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, overload

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content

from workbench.columns import fit
from workbench.kit.dialog import Dialog
from workbench.kit.drawing import ScrolledLines, component_classes, scroll_bindings
from workbench.kit.keys import keys_of
from workbench.kit.lines import Line
from workbench.run.sample_table import TokenSample
from workbench.samples.formula_lines import formula_lines, number
from workbench.samples.token_facts import TokenFacts, token_label
from workbench.samples.token_maths import PER_RESPONSE, AdvantageTerm, advantage_terms

_ZERO = 0.5e-4  # a weight below this is printed as zero
_AHEAD, _NUMBER = 6, 12  # columns: the first column, and the widest number
_LEAST_NAME, _WIDEST_NAME = 6, 24  # columns


class AdvantageScreen(Dialog[int]):
    """Dialog that shows the formulas with a token's numbers; returns the index of the token shown last."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "close", "close", id="advantage.close", tooltip="Return to the sample at this token"),
        Binding(
            "left", "neighbour(-1)", "previous token", id="advantage.earlier", tooltip="Explain the previous token"
        ),
        Binding("right", "neighbour(1)", "next token", id="advantage.later", tooltip="Explain the next token"),
        Binding("y", "copy", "copy", id="advantage.copy", tooltip="Copy the whole calculation"),
    ]

    def __init__(self, sample: TokenSample, index: int) -> None:
        """Open at token `index`, counted from 0. Raises IndexError when the sample has no such token."""
        super().__init__()
        self._facts = TokenFacts(sample, index)

    def compose(self) -> ComposeResult:
        yield AdvantageSum(id="advantage")

    def on_mount(self) -> None:
        keys = keys_of(self)
        hint = f"{keys['advantage.earlier']}{keys['advantage.later']} token   {keys['advantage.copy']} copy   "
        hint += f"{keys['advantage.close']} close"
        self.query_one(AdvantageSum).border_subtitle = Content(hint)
        self._show()

    def action_close(self) -> None:
        self.dismiss(self._facts.index)

    def action_neighbour(self, by: int) -> None:
        if 0 <= self._facts.index + by < self._facts.length:
            self._facts = TokenFacts(self._facts.sample, self._facts.index + by)
            self._show()

    def action_copy(self) -> None:
        self.copy(f"{self._title}\n\n{self.query_one(AdvantageSum).text}\n", "the calculation")

    @property
    def _title(self) -> str:
        facts = self._facts
        return f"Advantage of {facts.name}, token {facts.index + 1} of {facts.length}"

    def _show(self) -> None:
        explanation = self.query_one(AdvantageSum)
        explanation.border_title = Content(self._title)
        explanation.show(self._facts)


class AdvantageSum(ScrolledLines):
    """Scrollable explanation of one token's advantage."""

    CSS_NAME = "drawn"
    COMPONENT_CLASSES: ClassVar[set[str]] = component_classes(
        "text", "strong", "muted", "series", "missing", "alert", "selected"
    )
    BINDINGS: ClassVar[list[BindingType]] = scroll_bindings("advantage", "up down page-up page-down first last")

    _facts: TokenFacts | None = None

    def show(self, facts: TokenFacts) -> None:
        """Show the advantage of a token."""
        self._facts = facts
        self.lay_out()

    def wrap(self, width: int) -> Sequence[Line]:
        return [] if self._facts is None else _AdvantageLines(self._facts, width)


class _AdvantageLines(Sequence[Line]):
    """The formulas and the table of terms; the line of a term is made when it is read: there may be thousands."""

    def __init__(self, facts: TokenFacts, width: int) -> None:
        self._facts, self._width = facts, width
        self._terms = advantage_terms(facts.sample, facts.index)
        self._own = lines_of_their_own(self._terms)
        self._head = formula_lines(facts, width) + ([[], self._headings()] if self._terms else [])

    def __len__(self) -> int:
        return len(self._head) + self._own + (self._own < len(self._terms))

    @overload
    def __getitem__(self, place: int) -> Line: ...
    @overload
    def __getitem__(self, place: slice) -> list[Line]: ...
    def __getitem__(self, place: int | slice) -> Line | list[Line]:
        if isinstance(place, slice):
            return [self[one] for one in range(*place.indices(len(self)))]
        if not 0 <= place < len(self):
            raise IndexError(place)
        if place < len(self._head):
            return self._head[place]
        place -= len(self._head)
        if place == self._own:
            return rest_line(self._terms, self._own, self._width)
        return self._term_line(self._terms[place])

    def _headings(self) -> Line:
        if self._facts.estimator in PER_RESPONSE:
            return [(_table_row("t", "token", ["r_t", "sum"], self._width), "muted")]
        heads = ["(γλ)^l", "δ_{t+l}"] if self._facts.estimator == "gae" else ["γ^l", "r_{t+l}"]
        return [(_table_row("l", "token", [*heads, "product", "sum"], self._width), "muted")]

    def _term_line(self, term: AdvantageTerm) -> Line:
        name, ahead, role = token_label(self._facts.sample, term.token), term.token - self._facts.index, "text"
        numbers = [term.weight, term.x, term.product, term.running]
        if self._facts.estimator in PER_RESPONSE:  # the sum is over all tokens, including this one
            ahead, role, numbers = term.token + 1, "text" if ahead else "strong", [term.x, term.running]
        return [(_table_row(f"{ahead:,}", name, [number(x) for x in numbers], self._width), role)]


def lines_of_their_own(terms: list[AdvantageTerm]) -> int:
    """Return how many terms, from the first, have a line of their own.

    The terms after them have negligible weight and share a line; a single one keeps its own line.
    """
    count = next((place for place, term in enumerate(terms) if term.weight < _ZERO), len(terms))
    return count if count < len(terms) - 1 else len(terms)


def rest_line(terms: list[AdvantageTerm], shown: int, width: int) -> Line:
    """Return one line for all terms after the first `shown`."""
    before = terms[shown - 1].running if shown else 0.0
    total = terms[-1].running
    numbers = [number(0.0), "", number(total - before), number(total)]
    return [(_table_row("…", f"{len(terms) - shown:,} more terms", numbers, width), "muted")]


def _table_row(ahead: str, name: str, numbers: list[str], width: int) -> str:
    column = min((width - _AHEAD - 2 - _LEAST_NAME) // len(numbers), _NUMBER)
    name = fit(name, max(min(width - _AHEAD - 2 - len(numbers) * column, _WIDEST_NAME), _LEAST_NAME))
    return f"{ahead:>{_AHEAD}}  {name}" + "".join(f" {text}".rjust(column) for text in numbers)
