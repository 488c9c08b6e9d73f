"""Everything known about one token, in words and numbers; where room is short the least important is dropped."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import ClassVar, NamedTuple

from rich.cells import cell_len, set_cell_size

from workbench.columns import fit
from workbench.kit.drawing import Drawn, component_classes
from workbench.kit.lines import MISSING, Line, plain
from workbench.kit.scale import number_text
from workbench.run.sample_table import TokenSample
from workbench.samples.token_facts import TokenFacts, percent, sentence, token_name

_NUMBER, _PERCENT = 9, 9  # columns
_FULL_FROM = 40  # columns: units are written out
_SHORT = {"✂ clipped": "✂", "outside": "out", "no step": "", "whitened": ""}  # below that width
_COLUMN, _WIDEST = 36, 44  # columns: least and greatest width of a column of numbers
_GAP = 2  # columns between two columns of numbers
_SENTENCE = 4  # lines at most, unless the numbers leave more
_PASSES = 5  # with more passes, only the first clipped one and the last are important
_ALL = 1000  # lines: more than there are numbers
_FIRST_BLANK, _BLANK = 14, 25  # ranks of empty lines: below the sentence, and between numbers


class InspectorRow(NamedTuple):
    """A line and its rank; where room is short, lines of the highest rank are dropped first."""

    rank: int
    line: Line
    is_part: bool = False  # belongs to the row above, so it should not begin a column


def inspector_lines(facts: TokenFacts, width: int, height: int) -> list[Line]:
    """Return at most `height` lines of at most `width` columns: the token, the sentence, and the numbers that fit.

    Numbers that do not fit in one column are set in several.
    """
    if width < 1:
        return []
    column = min(width, _WIDEST)
    rows = _rows(facts, column)
    columns = max((width + _GAP) // (_COLUMN + _GAP), 1)
    numbers = -(-sum(bool(row.line) for row in rows) // columns)
    head = _head(facts, width, min(height - 1, max(_SENTENCE, height - 2 - numbers)))[:height]
    room = height - len(head)
    if columns == 1 or sum(bool(row.line) for row in rows) <= room:
        return head + [_cut(row.line, width) for row in _most_telling(rows, room)]
    column = min((width + _GAP) // columns - _GAP, _WIDEST)
    return head + _side_by_side(_rows(facts, column), columns, room, column)


def facts_text(facts: TokenFacts) -> str:
    """Return the token, the sentence and all numbers as text, for the clipboard."""
    return "\n".join(plain(line).rstrip() for line in inspector_lines(facts, 2 * _WIDEST, _ALL))


class TokenInspector(Drawn):
    """Widget that explains one token of a sample."""

    COMPONENT_CLASSES: ClassVar[set[str]] = component_classes(
        "text", "strong", "muted", "series", "missing", "alert", "selected"
    )

    facts: TokenFacts | None = None  # of the token shown
    _message = ""

    def show(self, sample: TokenSample | None, index: int) -> None:
        """Explain token `index`, or the nearest one; show nothing without a sample."""
        self.facts, self._message = None, ""
        if sample is not None and len(sample):
            self.facts = TokenFacts(sample, min(max(index, 0), len(sample) - 1))
        elif sample is not None:
            self._message = "The response is empty."
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        if self.facts is not None:
            return inspector_lines(self.facts, width, height)
        return [[(fit(self._message, width), "muted")]] if height > 0 else []


def _head(facts: TokenFacts, width: int, lines: int) -> list[Line]:
    """Return the token's name and place, then at most `lines` lines of the sentence."""
    name, identity = facts.name, f"  id {facts.token}"
    end = (" · cut short" if facts.sample.truncated else " · stop") if facts.is_last else ""
    place = f"  {facts.index + 1} of {facts.length}{end}"
    left = width - len(place)
    if left < 8:
        heading: Line = [(fit(name, width), "strong")]
    elif cell_len(name + identity) > left:
        heading = [(fit(name, left), "strong"), (place, "muted")]
    else:
        heading = [(name, "strong"), (fit(identity, left - cell_len(name)), "muted"), (place, "muted")]
    if lines < 1:
        return [heading]
    text = sentence(facts)
    wrapped = textwrap.wrap(text[:1].upper() + text[1:], width, max_lines=lines, placeholder="…")
    return [heading, *(_cut([(line, "text")], width) for line in wrapped)]


def _rows(facts: TokenFacts, width: int) -> list[InspectorRow]:
    """Return all numbers in lines of `width` columns, with empty lines between the groups."""
    rows: list[InspectorRow] = []
    for group in (_rewards, _logprobs, _ratios, _choices):
        rows += [InspectorRow(_BLANK if rows else _FIRST_BLANK, []), *group(facts, width)]
    return [row for row, following in pairwise([*rows, InspectorRow(_BLANK, [])]) if row.line or following.line]


def _rewards(facts: TokenFacts, width: int) -> Iterator[InspectorRow]:
    whitened = facts.settings is not None and facts.settings.whiten_rewards
    for rank, label, number, unit in (
        (0, "advantage", facts.advantage, ""),
        (4, "  whitened", facts.whitened_advantage, "std"),
        (5, "  baseline", facts.baseline, ""),
        (27, "  divided by", facts.advantage_scale, ""),
        (5, "value", facts.value, ""),
        (27, "  next", facts.next_value, ""),
        (8, "TD error", facts.td_error, ""),
        (8, "all rewards", facts.total_reward, ""),
        (9, "return", facts.return_, ""),
        (6, "reward", facts.reward, "whitened" if whitened else ""),
        (10, "  KL penalty", facts.kl_penalty, ""),
        (13, "  token's own", facts.token_score or None, ""),
        (11, "  score", facts.sequence_score, ""),
        (17, "  sum", facts.raw_reward if whitened else None, ""),
    ):
        if number is not None:
            yield _number(rank, label, number, unit, None, width)


def _logprobs(facts: TokenFacts, width: int) -> Iterator[InspectorRow]:
    k1, kl = facts.k1, facts.kl
    apart = k1 is not None and kl is not None and not math.isclose(k1, kl, rel_tol=1e-5, abs_tol=1e-6)
    estimator = facts.settings.kl_estimator if facts.settings is not None else "penalty"
    for rank, label, number, unit, probability in (
        (2, "log-prob", facts.logprob, "nats", facts.probability),
        (3, "  reference", facts.ref_logprob, "nats", facts.ref_probability),
        (26, "  sampler", facts.sampler_logprob, "nats", facts.sampler_probability),
        (1, "KL", k1, "nats", None),
        (12, f"  by {estimator}", kl if apart or k1 is None else None, "nats", None),
        (15, "entropy", facts.entropy, "nats", None),
        (12, "KL's push", facts.kl_pull, "", None),
        (16, "weight", facts.weight, "", None),
    ):
        if number is not None:
            yield _number(rank, label, number, unit, probability, width)


def _ratios(facts: TokenFacts, width: int) -> Iterator[InspectorRow]:
    first = next((place for place, one in enumerate(facts.passes) if one.clipped), -1)
    beneath = any(cell_len(f"ratio {one.name}") > _columns(width)[1] for one in facts.passes)
    if beneath:  # the names have a line of their own
        yield InspectorRow(7, [("ratio", "text")])
    for place, one in enumerate(facts.passes):
        rank = 7 if place in (first, len(facts.passes) - 1) else 16 if len(facts.passes) <= _PASSES else 28 + place
        yield _number(rank, f"{' ' if beneath else 'ratio'} {one.name}", one.ratio, one.mark, one.probability, width)


def _choices(facts: TokenFacts, width: int) -> Iterator[InspectorRow]:
    room = width - 2 - 2 * (_PERCENT + 1)
    if not facts.choices or room < 4:
        return
    heads = "policy".rjust(_PERCENT + 1) + "reference".rjust(_PERCENT + 1)
    yield InspectorRow(8, [(fit("  likeliest", room + 2) + heads, "muted")])
    for one in facts.choices:
        role = "strong" if one.chosen else "text"
        shares = percent(one.probability).rjust(_PERCENT + 1) + percent(one.ref_probability).rjust(_PERCENT + 1)
        line = [
            ("▸ " if one.chosen else "  ", "selected"),
            (fit(token_name(one.text) if one.text else f"id {one.token}", room) + shares, role),
        ]
        yield InspectorRow(8 if one.chosen else 9, line, is_part=True)


def _columns(width: int) -> tuple[int, int]:
    """Return the columns for a unit, and those that number, unit and probability leave for a label."""
    units = 10 if width >= _FULL_FROM else 5
    return units, max(width - _NUMBER - units - _PERCENT, 0)


def _number(rank: int, label: str, number: float, unit: str, probability: float | None, width: int) -> InspectorRow:
    """Return a row with a label, the number and its unit, and a probability at the right end."""
    units, left = _columns(width)
    shown, role = number_text(number, 4, _NUMBER - 1), "strong"
    if not math.isfinite(number):
        shown, role = f"{MISSING} {shown}", "missing"
    is_part = label.startswith(" ")
    if is_part and cell_len(label) > left:
        label = label[1:]
    line = [
        (fit(label, left), "muted" if is_part else "text"),
        (shown.rjust(_NUMBER), role),
        (" " + fit(unit if units > 5 else _SHORT.get(unit, unit), units - 1), "alert" if "✂" in unit else "muted"),
        ("" if probability is None else percent(probability).rjust(_PERCENT), "muted"),
    ]
    return InspectorRow(rank, line, is_part)


def _most_telling(rows: Sequence[InspectorRow], count: int) -> list[InspectorRow]:
    """Return the `count` rows of lowest rank, in their order."""
    places = sorted(range(len(rows)), key=lambda place: rows[place].rank)[: max(count, 0)]
    return [rows[place] for place in sorted(places)]


def _side_by_side(rows: Sequence[InspectorRow], columns: int, height: int, width: int) -> list[Line]:
    """Set the most important rows in `columns` columns of `height` lines, as many as fit."""
    rows = [row for row in rows if row.line]
    count, stacks = columns * height, list[list[InspectorRow]]()
    while count > 0 and len(stacks := _stacked(_most_telling(rows, count), height)) > columns:
        count -= 1
    lines: list[Line] = []
    for place in range(max(map(len, stacks), default=0)):
        line: Line = []
        for stack in stacks:
            cells: Line = stack[place].line if place < len(stack) else []
            line += [*cells, (" " * (width + _GAP - cell_len(plain(cells))), "text")]
        lines.append(line[:-1])
    return lines


def _stacked(rows: Sequence[InspectorRow], height: int) -> list[list[InspectorRow]]:
    """Split the rows into columns of at most `height`; if possible, none begins with a part of the row above."""
    stacks: list[list[InspectorRow]] = []
    while rows:
        end = min(height, len(rows))
        if end < len(rows):
            end = next((place for place in range(end, 0, -1) if not rows[place].is_part), end)
        stacks.append(list(rows[:end]))
        rows = rows[end:]
    return stacks


def _cut(line: Line, width: int) -> Line:
    """Cut the line to at most `width` columns."""
    cut: Line = []
    for text, role in line:
        text = text if cell_len(text) <= width else set_cell_size(text, width)
        width -= cell_len(text)
        cut.append((text, role))
    return cut
