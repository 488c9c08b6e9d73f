"""Settings as the form needs them: their kinds, values to text and back, and sensible steps."""

from __future__ import annotations

import contextlib
import functools
import math
from decimal import Decimal
from typing import Any, Literal

import tomli_w

from trainer.config import Config
from trainer.config.problems import broken_rule
from trainer.config.reference import Setting, reference_rows
from trainer.files import parse_toml
from workbench.text import has_words

FieldKind = Literal["number", "integer", "boolean", "choice", "string", "path", "list", "table", "sources"]

_PATHS = {"model.path", "model.adapter", "data.prompts", "run.dir"}  # can also be names; completed as paths
BASIC = {
    "model.path",
    "model.lora_rank",
    "data.prompts",
    "data.chat",
    "rollout.batch_size",
    "rollout.max_new_tokens",
    "rollout.temperature",
    "reward.sources",
    "ppo.iterations",
    "ppo.epochs",
    "ppo.minibatches",
    "ppo.kl_coef",
    "optim.policy_lr",
    "eval.every",
    "checkpoint.every",
    "run.name",
    "run.seed",
}
"""Settings that most people change first."""

_SWITCH = {"true": True, "on": True, "yes": True, "false": False, "off": False, "no": False}

_SMALL = 0.01  # step of a share between 0 and 1; a default below it is that of a learning rate or the like
_SMALLEST = 1e-6  # value of such a setting above 0


@functools.cache
def fields_by_key() -> dict[str, Setting]:
    """Return every setting by its dotted key, in the order of the schema."""
    return {row.key: row for row in reference_rows() if "[]" not in row.key}


@functools.cache
def sections() -> dict[str, str]:
    """Return each table's name and purpose: `ppo` and `the algorithm.`."""
    return {
        name: (table.annotation.__doc__ or "").partition(": ")[2].partition("\n")[0]
        for name, table in Config.model_fields.items()
        if table.annotation is not None
    }


def kind_of(field: Setting) -> FieldKind:
    """Return how a value is edited."""
    if field.key == "reward.sources":
        return "sources"
    if field.key in _PATHS:
        return "path"
    if "enum" in field.schema:
        return "choice"
    kind: str = field.schema["type"]
    return {"array": "list", "object": "table"}.get(kind, kind)  # type: ignore[return-value]


def search(query: str) -> list[Setting]:
    """Return the settings with every word of `query` in key, help or advice; matches in the key come first."""
    found = [f for f in fields_by_key().values() if has_words(f"{f.key} {f.help} {f.advice}", query)]
    return sorted(found, key=lambda f: not has_words(f.key, query))


def parse(field: Setting, text: str) -> Any:
    """Parse `text` as a value of `field`.

    Raises ValueError with the broken rule, in one line. Does not check rules between settings.
    """
    stripped = text.strip()
    value: Any = stripped
    match kind_of(field):
        case "integer":
            try:
                number = float(stripped) if "e" in stripped.lower() else int(stripped)
                value = int(number)
            except (ValueError, OverflowError):
                raise ValueError("must be a whole number") from None
            if value != number:
                raise ValueError("must be a whole number")
        case "number":
            try:
                value = float(stripped)
            except ValueError:
                raise ValueError("must be a number") from None
        case "boolean":
            if (value := _SWITCH.get(stripped.casefold())) is None:
                raise ValueError("must be true or false")
        case "list" if stripped.startswith("["):
            value = _toml_value(stripped, 'must be items between commas, or a TOML array as in ["a", "b"]')
        case "list":
            value = _split(stripped)
        case "table":
            value = _toml_value(f"{{{stripped}}}", "must be options between commas, as in enable_thinking = false")
        case "string":
            value = text
    if rule := broken_rule(field.key, value):
        raise ValueError(rule)
    return value


def editable(field: Setting, value: Any) -> bool:
    """Return whether `value` can be edited as one line of text; reward sources and multi-line texts cannot."""
    return kind_of(field) != "sources" and as_text(field, value).isprintable()


def as_text(field: Setting, value: Any) -> str:
    """Format `value` for `parse`; a value of a wrong type is shown as in TOML, so that the user can fix it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        small = 0 < abs(value) < 1e-3  # as people write it: 3e-4, 1e-5
        return f"{Decimal(repr(value)).normalize():e}" if small else repr(value)
    if isinstance(value, str):
        return value
    if isinstance(value, list) and kind_of(field) == "list":
        plain = ", ".join(map(str, value))
        return plain if _split(plain) == value else _literal(value)
    if isinstance(value, dict) and kind_of(field) == "table":
        return _literal(value)[1:-1]
    return str(value) if isinstance(value, int) else _literal(value)


def shown(field: Setting, value: Any) -> str:
    """Format `value` for display; `parse` cannot always read the result."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10_000:
        return f"{value:_}"
    if kind_of(field) == "sources" and isinstance(value, list):
        tables = [source if isinstance(source, dict) else {"path": source} for source in value]
        weighted = [(one.get("path") or one.get("kind") or "?", one.get("weight", 1)) for one in tables]
        return ", ".join(f"{name}" if weight == 1 else f"{name} x {weight}" for name, weight in weighted) or "none"
    text = as_text(field, value)
    return text or ("none" if isinstance(value, list | dict) else "empty" if isinstance(value, str) else "")


def toml_line(key: str, value: Any) -> str:
    """Format a setting as a line of TOML, as in `ppo.kl_coef = 0.05`."""
    return f"{key} = {_literal(value)}"


def limits(field: Setting) -> str:
    """Return which values are allowed, and their unit, as in `at least 0, at most 100 · score per nat`."""
    kind = kind_of(field)
    allowed = field.rule or (field.type if kind in ("integer", "number", "boolean") else "")
    if kind == "list":
        allowed = ", ".join(filter(None, ("items between commas", allowed)))
    if kind == "table":
        allowed = "as in enable_thinking = false"
    return " · ".join(filter(None, (allowed, field.unit)))


def stepped(field: Setting, value: Any, direction: int) -> Any:
    """Return the next sensible value up (direction 1) or down (-1); `value` itself at the end of the range.

    Numbers step by one of their first digit, from 1 to 2 by a tenth, and shares by 0.01; whole numbers step by one, and
    from 20 on by one of their second digit. Switches and choices wrap around.
    """
    kind, schema = kind_of(field), field.schema
    if kind == "boolean" and isinstance(value, bool):
        return not value
    if kind == "choice":
        choices = schema["enum"]
        return choices[(choices.index(value) + direction) % len(choices)] if value in choices else choices[0]
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if kind not in ("integer", "number") or not is_number:
        return value
    low = schema.get("exclusiveMinimum", schema.get("minimum", -math.inf))
    high = schema.get("exclusiveMaximum", schema.get("maximum", math.inf))
    smallest = _SMALLEST if 0 < schema["default"] < _SMALL else _SMALL
    # Towards 0, a number such as 0.1 steps by one of the digit that follows.
    size = abs(value) * (1 if direction * value > 0 else 1 - 1e-9)
    if kind == "integer":
        digit = max(math.floor(math.log10(size)) - 1, 0) if size >= 20 else 0
        step = 10**digit
        moved: float = (value // step + 1) * step if direction > 0 else (-(-value // step) - 1) * step
    elif (low, high) == (0, 1) and smallest == _SMALL:
        moved = round(round(value / _SMALL) * _SMALL + direction * _SMALL, 10)
    elif abs(value) <= smallest and direction * value <= 0:
        moved = 0.0 if value else direction * smallest
    else:
        digit = -1 if 1 <= size < 2 else max(math.floor(math.log10(size)), round(math.log10(smallest)))
        step = (math.floor if direction > 0 else math.ceil)(round(value / 10.0**digit, 6)) + direction
        moved = round(step * 10.0**digit, max(-digit, 0))
    moved = type(moved)(min(max(moved, low), high))
    return value if broken_rule(field.key, moved) else moved


def _toml_value(text: str, problem: str) -> Any:
    with contextlib.suppress(ValueError):
        values = parse_toml(f"v = {text}")
        if len(values) == 1:
            return values["v"]
    raise ValueError(problem)


def _split(text: str) -> list[Any]:
    """Split text at commas into items; [] if it is a TOML array or not printable."""
    if text.startswith("[") or not text.isprintable():
        return []
    return [item.strip() for item in text.split(",") if item.strip()]


def _literal(value: Any) -> str:
    """Format `value` as TOML on one line."""
    if isinstance(value, list):
        return f"[{', '.join(map(_literal, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key} = {_literal(item)}' for key, item in value.items())}}}"
    return tomli_w.dumps({"v": value})[4:].rstrip("\n")
