"""Queries for samples: words and conditions separated by spaces, which must all hold, and the order of samples."""

from __future__ import annotations

import difflib
import math
import operator
import re
from dataclasses import dataclass
from typing import Literal, NamedTuple

from workbench.text import visible

COMPARISONS = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le, "=": operator.eq}

EXAMPLES = (
    "joy",
    '"the sky"',
    "-joy",
    "score>0.5",
    "-score>0.5",
    "kl<=10",
    "len>20",
    "it>=100",
    "pi=3",
    "stop:length",
    'prompt:"the sky"',
    "text:joy",
    "is:marked",
    "is:unscored",
)
"""One example of each condition; a - at the beginning negates it."""

_QUANTITIES = {
    "score": "score",
    "kl": "kl",
    "len": "length",
    "length": "length",
    "it": "iteration",
    "iteration": "iteration",
    "pi": "prompt_index",
    "prompt_index": "prompt_index",
}
_TEXTS = {"prompt": "prompt", "text": "completion"}
_STATES = {
    "stop": {"stop": ("truncated", False), "length": ("truncated", True)},
    "is": {"marked": ("marked", True), "unscored": ("unscored", True)},
}
_FIELDS = (*_QUANTITIES, *_TEXTS, *_STATES)
# Spaces may surround a comparison, but only after the name of a quantity: "joy > pain" is three words.
_WORD = re.compile(
    rf"""
    \s* (?P<minus>-?)
    (?: (?P<field> (?:{"|".join(_QUANTITIES)}) (?=\s*[<>=!]) | [a-z_]+ (?=[:<>=!]) )
        (?: \s* (?P<comparison>[<>=!]+) \s* | : ) )?
    (?: "(?P<quoted>(?:[^"\\]|\\.)*)" | (?P<bare>[^\s"]\S*) )?
    """,
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)


class Condition(NamedTuple):
    """A condition on a sample.

    field: score, kl, length, iteration, prompt_index, truncated (cut at the length limit), unscored (no reward source
    applies) or marked (it has a bookmark), which compare with `value`; an unknown number compares with none. Or prompt,
    completion or either, which contains the text `value`, ignoring case.
    """

    field: str
    comparison: str  # of COMPARISONS, or contains
    value: float | str
    negated: bool = False


Query = tuple[Condition, ...]
"""Conditions that a sample must all meet; without any, all samples match."""


@dataclass(frozen=True, slots=True)
class Order:
    """The quantity that samples are sorted by; batch: as they were written, the newest iteration first."""

    by: Literal["batch", "score", "kl", "length"] = "batch"
    descending: bool = False


def parse_query(text: str) -> Query:
    r"""Parse the conditions in `text`, such as those in EXAMPLES; an empty text has none.

    A bare word is searched for in prompt and completion. Between quotes everything is text; \" is a quote and \\ a
    backslash. Raises ValueError, in one line that says how to fix it, for what cannot be understood.
    """
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")  # as samples files write lone surrogates
    conditions: list[Condition] = []
    place, end = 0, len(text.rstrip())
    while place < end:
        word = _WORD.match(text, place, end)
        assert word is not None  # every part of the pattern is optional
        if text.startswith('"', word.end()) and word["quoted"] is None and word["bare"] is None:
            raise ValueError('unclosed quote: add a closing ", or write \\" for a quote inside the text')
        conditions.append(_condition(word))
        place = word.end()
    return tuple(conditions)


def _condition(word: re.Match[str]) -> Condition:
    field, comparison, negated = word["field"], word["comparison"], word["minus"] == "-"
    value = word["bare"] or re.sub(r'\\(["\\])', r"\1", word["quoted"] or "")
    if field is None:
        if not value:
            raise ValueError('missing text: write a word, "several words", or -word to exclude one')
        return Condition("either", "contains", value, negated)
    name = field.lower()
    if name in _QUANTITIES:
        return Condition(_QUANTITIES[name], comparison, _number(name, comparison, value), negated)
    if name not in _FIELDS:
        close = difflib.get_close_matches(name, _FIELDS, n=1)
        known = f"the fields are {', '.join(_FIELDS)}; quote it to search for the text"
        raise ValueError(f"unknown field {field}: {f'did you mean {close[0]}?' if close else known}")
    if comparison is not None:
        raise ValueError(f"{name} is not a number: write {_example(name)}")
    if name in _TEXTS:
        if not value:
            raise ValueError(f"{name}: needs a text: write {_example(name)}")
        return Condition(_TEXTS[name], "contains", value, negated)
    if value.lower() not in _STATES[name]:
        raise ValueError(f"{name}:{visible(value)}: write {' or '.join(f'{name}:{state}' for state in _STATES[name])}")
    state, holds = _STATES[name][value.lower()]
    return Condition(state, "=", holds, negated)


def _number(name: str, comparison: str | None, value: str) -> float:
    if comparison is None:
        raise ValueError(f"{name} is compared with a number: write {_example(name)}")
    if comparison not in COMPARISONS:
        raise ValueError(f"{name}{comparison}: use > >= < <= or =, and -{name}=1 for unequal")
    if not value:
        raise ValueError(f"{name}{comparison} needs a number: write {_example(name)}")
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if math.isnan(number):
        raise ValueError(f"{name}{comparison}: {visible(value)} is not a number: write {_example(name)}")
    return number


def _example(name: str) -> str:
    """Return an example of a condition on the field `name`."""
    return next((example for example in EXAMPLES if re.match(rf"{name}\W", example)), f"{name}>20")
