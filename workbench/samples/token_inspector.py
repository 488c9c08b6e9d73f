"""Everything known about one token, in words and numbers; where room is short the least important is dropped."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import ClassVar, NamedTuple

from rich.cells import cell_len, set_cell_size

from workbench.kit.axes import number_text
from workbench.kit.drawing import Drawn, component_classes
from workbench.run.sample_table import TokenSample
from workbench.samples.token_facts import TokenFacts, percent, sentence
from workbench.text import MISSING, Line, fit, plain

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
    is_part: bool = False  # belongs to the row above, so it begins no column


Number = tuple[int, str, float | None, str, float | None]  # rank, label, number, unit, probability


def inspector_lines(facts: TokenFacts, width: int, height: int) -> list[Line]:
    """Return at most `height` lines of at most `width` columns: the token, the sentence, and the numbers that fit.

    Numbers that do not fit in one column are set in two, if `width` has room for them.
    """
    if width < 1:
        return []
    columns = 2 if width >= 2 * _COLUMN + _GAP else 1
    rows = _rows(facts, min(width, _WIDEST))
    numbers = -(-sum(bool(row.line) for row in rows) // columns)
    head = _head(facts, width, min(height - 1, max(_SENTENCE, height - 2 - numbers)))[:height]
    room = height - len(head)
    if columns == 1 or room < 1 or sum(bool(row.line) for row in rows) <= room:
        return head + [_cut(row.line, width) for row in _most_telling(rows, room)]
    column = min((width - _GAP) // 2, _WIDEST)
    rows = [row for row in _rows(facts, column) if row.line]
    for count in range(2 * room, room, -1):
        shown = _most_telling(rows, count)
        half = next((place for place in range(min(room, len(shown) - 1), 0, -1) if not shown[place].is_part), room)
        if len(shown) <= half + room:
            break
    for left, right in zip_longest(shown[:half], shown[half:]):
        line: Line = left.line if left else []
        gap = (" " * (column + _GAP - cell_len(plain(line))), "text")
        head.append([*line, gap, *right.line] if right else line)
    return head


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
    groups = [[_row(*number, width) for number in group if number[2] is not None] for group in _numbers(facts, width)]
    rows: list[InspectorRow] = []
    for group in filter(None, [*groups, [*_choices(facts, width)]]):
        rows += [InspectorRow(_BLANK if rows else _FIRST_BLANK, []), *group]
    return rows


def _numbers(facts: TokenFacts, width: int) -> Iterator[list[Number]]:
    """Yield the groups of numbers."""
    settings = facts.settings
    whitened = settings is not None and settings.whiten_rewards
    yield [
        (0, "advantage", facts.advantage, "", None),
        (4, "  whitened", facts.whitened_advantage, "std", None),
        (5, "  baseline", facts.baseline, "", None),
        (27, "  divided by", facts.advantage_scale, "", None),
        (5, "value", facts.value, "", None),
        (27, "  next", facts.next_value, "", None),
        (8, "TD error", facts.td_error, "", None),
        (8, "all rewards", facts.total_reward, "", None),
        (9, "return", facts.return_, "", None),
        (6, "reward", facts.reward, "whitened" if whitened else "", None),
        (10, "  KL penalty", facts.kl_penalty, "", None),
        (13, "  token's own", facts.token_score or None, "", None),
        (11, "  score", facts.sequence_score, "", None),
        (17, "  sum", facts.raw_reward if whitened else None, "", None),
    ]
    k1, kl = facts.k1, facts.kl
    apart = k1 is None or kl is None or not math.isclose(k1, kl, rel_tol=1e-5, abs_tol=1e-6)
    estimator = settings.kl_estimator if settings is not None else "penalty"
    yield [
        (2, "log-prob", facts.logprob, "nats", facts.probability),
        (3, "  reference", facts.ref_logprob, "nats", facts.ref_probability),
        (26, "  sampler", facts.sampler_logprob, "nats", facts.sampler_probability),
        (1, "KL", k1, "nats", None),
        (12, f"  by {estimator}", kl if apart else None, "nats", None),
        (15, "entropy", facts.entropy, "nats", None),
        (12, "KL's push", facts.kl_pull, "", None),
        (16, "weight", facts.weight, "", None),
    ]
    passes = facts.passes
    key = {len(passes) - 1, next((place for place, one in enumerate(passes) if one.clipped), -1)}
    ratio = "ρ" if any(len(f"ratio {one.name}") > _columns(width)[1] for one in passes) else "ratio"
    ranks = [7 if place in key else 16 if len(passes) <= _PASSES else 28 + place for place in range(len(passes))]
    yield [
        (rank, f"{ratio} {one.name}", one.ratio, one.mark, one.probability)
        for rank, one in zip(ranks, passes, strict=True)
    ]


def _choices(facts: TokenFacts, width: int) -> Iterator[InspectorRow]:
    room = width - 2 - 2 * (_PERCENT + 1)
    if len(facts.choices) < 2 or room < 4:
        return
    heads = "policy".rjust(_PERCENT + 1) + "reference".rjust(_PERCENT + 1)
    yield InspectorRow(8, [(fit("  likeliest", room + 2) + heads, "muted")])
    for one in facts.choices:
        shares = percent(one.probability).rjust(_PERCENT + 1) + percent(one.ref_probability).rjust(_PERCENT + 1)
        name = (fit(one.name, room) + shares, "strong" if one.chosen else "text")
        yield InspectorRow(8 if one.chosen else 9, [("▸ " if one.chosen else "  ", "selected"), name], is_part=True)


def _columns(width: int) -> tuple[int, int]:
    """Return the columns for a unit, and those that number, unit and probability leave for a label."""
    units = 10 if width >= _FULL_FROM else 5
    return units, max(width - _NUMBER - units - _PERCENT, 0)


def _row(rank: int, label: str, number: float | None, unit: str, probability: float | None, width: int) -> InspectorRow:
    """Return a row with a label, the number and its unit, and a probability at the right end."""
    units, left = _columns(width)
    number = math.nan if number is None else number
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


def _cut(line: Line, width: int) -> Line:
    """Cut the line to at most `width` columns."""
    cut: Line = []
    for text, role in line:
        text = text if cell_len(text) <= width else set_cell_size(text, width)
        width -= cell_len(text)
        cut.append((text, role))
    return cut
