"""The advantage of a token: the formulas, and below them its sum of TD errors or rewards, term by term."""

from __future__ import annotations

from typing import ClassVar

from rich.segment import Segment
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from workbench.kit.cells import fit
from workbench.kit.drawing import Line, component_classes
from workbench.run.sample_records import TokenSample
from workbench.samples.explain import explain, token_label
from workbench.samples.formula_lines import formula_lines, number
from workbench.samples.recompute import PER_RESPONSE
from workbench.samples.terms import Term, advantage_terms

_ZERO = 0.5e-4  # a weight below this is printed as zero
_AHEAD, _NUMBER = 6, 12  # columns: the first column, and the widest number
_LEAST_NAME, _WIDEST_NAME = 6, 24  # columns


class AdvantageSum(ScrollView, can_focus=False, inherit_bindings=False):
    """Explanation of one token's advantage; a line of the sum is made when it is scrolled to."""

    COMPONENT_CLASSES: ClassVar[set[str]] = component_classes(
        "text", "strong", "muted", "series", "missing", "alert", "selected"
    )

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._sample: TokenSample | None = None
        self._index = 0
        self._formulas: list[Line] = []
        self._estimator = ""
        self._terms: list[Term] = []
        self._shown = 0  # terms with a line of their own

    def show(self, sample: TokenSample, index: int) -> None:
        """Show the advantage of token `index`, counted from 0. Raises IndexError when there is no such token."""
        if not 0 <= index < len(sample):
            raise IndexError(f"no token {index} in a response of {len(sample)}")
        self._sample, self._index = sample, index
        self._estimator = explain(sample, index).estimator
        self._terms = advantage_terms(sample, index)
        self._shown = lines_of_their_own(self._terms)
        self._lay_out()

    def on_resize(self) -> None:
        self._lay_out()

    def render_line(self, y: int) -> Strip:
        width = self.scrollable_content_region.width
        style = self.get_component_rich_style
        line = self._line(y + self.scroll_offset.y, width)
        segments = [Segment(text, style(f"drawn--{role}")) for text, role in line]
        return Strip(segments).adjust_cell_length(width, self.rich_style)

    def _lay_out(self) -> None:
        width = self.scrollable_content_region.width
        if self._sample is None or width < 1:
            return
        self._formulas = formula_lines(explain(self._sample, self._index), width)
        table = 2 + self._shown + (self._shown < len(self._terms)) if self._terms else 0
        self.virtual_size = Size(width, len(self._formulas) + table)
        self.refresh()

    def _line(self, place: int, width: int) -> Line:
        if place < len(self._formulas):
            return self._formulas[place]
        place -= len(self._formulas) + 2
        if self._sample is None or not self._terms or place < -1:
            return []
        if place == -1:
            return header_line(self._estimator, width)
        if place < self._shown:
            term = self._terms[place]
            return term_line(term, self._index, token_label(self._sample, term.token), self._estimator, width)
        return rest_line(self._terms, self._shown, width) if place == self._shown < len(self._terms) else []


def lines_of_their_own(terms: list[Term]) -> int:
    """Return how many terms, from the first, have a line of their own.

    The terms after them have negligible weight and share a line; a single one keeps its own line.
    """
    count = next((place for place, term in enumerate(terms) if term.weight < _ZERO), len(terms))
    return count if count < len(terms) - 1 else len(terms)


def header_line(estimator: str, width: int) -> Line:
    """Return the column headings."""
    if estimator in PER_RESPONSE:
        return [(_row("t", "token", ["r_t", "sum"], width), "muted")]
    heads = ["(γλ)^l", "δ_{t+l}"] if estimator == "gae" else ["γ^l", "r_{t+l}"]
    return [(_row("l", "token", [*heads, "product", "sum"], width), "muted")]


def term_line(term: Term, index: int, name: str, estimator: str, width: int) -> Line:
    """Return the line of one term.

    index: the token that is explained. name: of the term's token.
    """
    if estimator in PER_RESPONSE:  # the sum is over all tokens, including this one
        numbers = [number(x) for x in (term.x, term.running)]
        return [(_row(f"{term.token + 1:,}", name, numbers, width), "strong" if term.token == index else "text")]
    numbers = [number(x) for x in (term.weight, term.x, term.product, term.running)]
    return [(_row(f"{term.token - index:,}", name, numbers, width), "text")]


def rest_line(terms: list[Term], shown: int, width: int) -> Line:
    """Return one line for all terms after the first `shown`."""
    before = terms[shown - 1].running if shown else 0.0
    total = terms[-1].running
    numbers = [number(0.0), "", number(total - before), number(total)]
    return [(_row("…", f"{len(terms) - shown:,} more terms", numbers, width), "muted")]


def _row(ahead: str, name: str, numbers: list[str], width: int) -> str:
    column = min((width - _AHEAD - 2 - _LEAST_NAME) // len(numbers), _NUMBER)
    name = fit(name, max(min(width - _AHEAD - 2 - len(numbers) * column, _WIDEST_NAME), _LEAST_NAME))
    return f"{ahead:>{_AHEAD}}  {name}" + "".join(text.rjust(column) for text in numbers)
