"""Judgements and origins as plain values, and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainer.errors import DataError
from trainer.preferences.formats.values import field, from_json, is_list_of, is_number, is_text, is_whole
from trainer.preferences.records import STRENGTHS, Judgement, Origin

_YEAR_10000 = 253402300800  # in seconds since 1970
STRENGTH_RULE = ", ".join(map(str, STRENGTHS))


def judgement_values(judgement: Judgement) -> dict[str, Any]:
    """Return all fields of a judgement but verdict and ranking, which each format writes its own way."""
    return {
        "strength": judgement.strength,
        "labeller": judgement.labeller,
        "note": judgement.note,
        "flags": list(judgement.flags),
        "seconds": judgement.seconds,
        "order_shown": list(judgement.order_shown),
        "guidelines": judgement.guidelines,
        "time": judgement.time,
    }


def judgement_fields(values: dict[str, Any], k: int, place: str) -> dict[str, Any]:
    """Return the keyword arguments of a Judgement of `k` completions.

    values: what `judgement_values` returns, or a part of it. Raises DataError for a value that breaks a rule.
    """

    def take(name: str, default: Any, fits: Callable[[Any], bool], rule: str) -> Any:
        return field(values, name, default, fits, rule, place)

    return {
        "strength": take("strength", 1, lambda one: is_whole(one) and one in STRENGTHS, f"one of {STRENGTH_RULE}"),
        "labeller": take("labeller", "", is_text, "a string"),
        "note": take("note", "", is_text, "a string"),
        "flags": tuple(take("flags", (), lambda one: is_list_of(one, is_text), "a list of strings")),
        "seconds": take("seconds", None, lambda one: is_number(one) and one >= 0, "a number from 0 on"),
        "order_shown": tuple(
            take("order_shown", (), lambda one: _is_shown(one, k), f"places from 0 to {k - 1}, none twice")
        ),
        "guidelines": take("guidelines", "", is_text, "a string"),
        "time": take("time", None, lambda one: is_number(one) and 0 <= one < _YEAR_10000, "seconds since 1970"),
    }


def origin_values(origin: Origin) -> dict[str, Any]:
    """Return an origin as plain values; the sampling settings have no fixed shape."""
    return {
        "source": origin.source,
        "run": origin.run,
        "iteration": origin.iteration,
        "row": origin.row,
        "checkpoint": origin.checkpoint,
        "writer": origin.writer,
        "sampling": origin.sampling,
    }


def origin_of(values: Any, place: str) -> Origin:
    """Build the Origin from what `origin_values` returns; sampling is an object or its JSON. Raises DataError."""
    if not isinstance(values, dict):
        raise DataError(f"{place}: an origin must be an object")

    def take(name: str, default: Any, fits: Callable[[Any], bool], rule: str) -> Any:
        return field(values, name, default, fits, rule, place)

    sampling = from_json(values.get("sampling") or {}, place, "sampling")
    if not isinstance(sampling, dict):
        raise DataError(f"{place}: sampling must be an object")
    return Origin(
        source=take("source", "", is_text, "a string"),
        run=take("run", "", is_text, "a string"),
        iteration=take("iteration", None, is_whole, "a whole number"),
        row=take("row", None, is_whole, "a whole number"),
        checkpoint=take("checkpoint", "", is_text, "a string"),
        writer=take("writer", "", is_text, "a string"),
        sampling=sampling,
    )


def is_order(value: Any, k: int) -> bool:
    """Return whether `value` lists each of the places 0 to k - 1 once."""
    return is_list_of(value, is_whole) and sorted(value) == list(range(k))


def _is_shown(value: Any, k: int) -> bool:
    return is_list_of(value, is_whole) and len(set(value)) == len(value) and set(value) <= set(range(k))
