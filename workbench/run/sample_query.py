"""What samples are searched for: words and conditions between spaces, all of which must hold, and their order."""

from __future__ import annotations

import difflib
import math
import re
from dataclasses import dataclass
from typing import Literal, cast

from workbench.text import visible

Quantity = Literal["score", "kl", "length", "iteration", "prompt_index"]
Comparison = Literal[">", ">=", "<", "<=", "="]

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
)
"""One of each condition; those that begin with - hold where the rest of them does not."""

_QUANTITIES: dict[str, Quantity] = {
    "score": "score",
    "kl": "kl",
    "len": "length",
    "length": "length",
    "it": "iteration",
    "iteration": "iteration",
    "pi": "prompt_index",
    "prompt_index": "prompt_index",
}
_TEXTS: dict[str, Literal["prompt", "completion"]] = {"prompt": "prompt", "text": "completion"}
_FIELDS = (*_QUANTITIES, *_TEXTS, "stop", "is")
_COMPARISONS = (">", ">=", "<", "<=", "=")
# Around a comparison there may be spaces, but only after the name of a quantity: "joy > pain" are three words.
_WORD = re.compile(
    rf"""
    \s* (?P<minus>-?)
    (?: (?P<field> (?:{"|".join(_QUANTITIES)}) (?=\s*[<>=!]) | [a-z_]+ (?=[:<>=!]) )
        (?: \s* (?P<comparison>[<>=!]+) \s* | : ) )?
    (?: "(?P<quoted>(?:[^"\\]|\\.)*)" | (?P<bare>[^\s"]\S*) )?
    """,
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compares:
    """A number is greater or less than `value`, or just that. One that is not known is neither."""

    quantity: Quantity
    comparison: Comparison
    value: float
    negated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Contains:
    """`text` is in the prompt, the completion, or either, in capitals or not."""

    where: Literal["prompt", "completion", "either"]
    text: str
    negated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Stops:
    """The response ended by itself, or was cut at the length limit."""

    truncated: bool
    negated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class IsMarked:
    """The sample has a bookmark."""

    negated: bool = False


Condition = Compares | Contains | Stops | IsMarked


@dataclass(frozen=True, slots=True)
class Query:
    """Samples of which every condition holds; all samples where there is none."""

    conditions: tuple[Condition, ...] = ()


@dataclass(frozen=True, slots=True)
class Order:
    """By which quantity samples are sorted; batch: as they were written, the newest iteration first."""

    by: Literal["batch", "score", "kl", "length"] = "batch"
    descending: bool = False


def parse_query(text: str) -> Query:
    r"""The conditions in `text`, such as those in EXAMPLES; none in an empty one.

    A bare word is looked for in prompt and completion. Between quotes anything is text, \" a quote and \\ a
    backslash. Raises ValueError, in one line with the way out, for what cannot be understood.
    """
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")  # as samples files have lone surrogates
    conditions: list[Condition] = []
    place, end = 0, len(text.rstrip())
    while place < end:
        word = _WORD.match(text, place, end)
        assert word is not None  # every part of it may be missing
        if text.startswith('"', word.end()) and word["quoted"] is None and word["bare"] is None:
            raise ValueError('a quote is not closed: end it by another ", and write \\" for one inside the text')
        conditions.append(_condition(word))
        place = word.end()
    return Query(tuple(conditions))


def _condition(word: re.Match[str]) -> Condition:
    field, comparison, negated = word["field"], word["comparison"], word["minus"] == "-"
    value = word["bare"] or re.sub(r'\\(["\\])', r"\1", word["quoted"] or "")
    if field is None:
        if not value:
            raise ValueError('a text is missing: write a word, "several words", or -word for what is not to be there')
        return Contains(where="either", text=value, negated=negated)
    name = field.lower()
    if name in _QUANTITIES:
        return _comparison(name, comparison, value, negated)
    if name not in _FIELDS:
        raise ValueError(f"{field} is no field: {_meant(name)}")
    if comparison is not None:
        raise ValueError(f"{name} is no number: write {_example(name)}")
    if name in _TEXTS:
        if not value:
            raise ValueError(f"{name}: lacks a text: write {_example(name)}")
        return Contains(where=_TEXTS[name], text=value, negated=negated)
    if name == "stop":
        if value.lower() not in ("stop", "length"):
            raise ValueError(f"stop:{visible(value)}: write stop:stop or stop:length")
        return Stops(truncated=value.lower() == "length", negated=negated)
    if value.lower() != "marked":
        raise ValueError(f"is:{visible(value)}: write is:marked")
    return IsMarked(negated=negated)


def _comparison(name: str, comparison: str | None, value: str, negated: bool) -> Compares:
    if comparison is None:
        raise ValueError(f"{name}: is compared with a number: write {_example(name)}")
    if comparison not in _COMPARISONS:
        raise ValueError(f"{name}{comparison}: the comparisons are > >= < <= and =, and -{name}=1 is for what differs")
    if not value:
        raise ValueError(f"{name}{comparison} lacks a number: write {_example(name)}")
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if math.isnan(number):
        raise ValueError(f"{name}{comparison}: {visible(value)} is no number: write {_example(name)}")
    return Compares(
        quantity=_QUANTITIES[name], comparison=cast("Comparison", comparison), value=number, negated=negated
    )


def _example(name: str) -> str:
    """How a condition on the field `name` may look."""
    return next((example for example in EXAMPLES if re.match(rf"{name}\W", example)), f"{name}>20")


def _meant(name: str) -> str:
    close = difflib.get_close_matches(name, _FIELDS, n=1)
    return f"did you mean {close[0]}?" if close else f"there are {', '.join(_FIELDS)}; quotes make it a text"
