"""Settings as the form needs them: their kinds and ranges, values to text and back, sensible steps."""

from __future__ import annotations

import contextlib
import functools
import math
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

import tomli_w

from trainer.config import Config
from trainer.config.problems import broken_rule
from trainer.config.reference import ReferenceRow, reference_rows
from trainer.files import parse_toml
from workbench.text import has_words

FieldKind = Literal["number", "integer", "switch", "choice", "text", "path", "list", "table", "sources"]

_KINDS: dict[str, FieldKind] = {
    "integer": "integer",
    "number": "number",
    "boolean": "switch",
    "string": "text",
    "object": "table",
}
_PATHS = {"model.path", "model.adapter", "data.prompts", "run.dir"}  # can also be names; completed as paths
_BASIC = {  # the settings that most people change first
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
    "optim.value_lr",
    "eval.every",
    "checkpoint.every",
    "run.name",
    "run.seed",
}
_SWITCH = {"true": True, "on": True, "yes": True, "false": False, "off": False, "no": False}

# Mantissas that a step visits in each power of ten: people search a learning rate more coarsely than a coefficient.
_FINE = (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0)
_COARSE = (1.0, 2.0, 3.0, 5.0)
_SMALL = 0.01  # a number with a smaller default uses the coarse ladder, which starts at 1e-6 from 0
_HUNDREDTH = 0.01  # step of a share between 0 and 1


@dataclass(frozen=True)
class FormField:
    """Setting of the form."""

    key: str
    name: str
    kind: FieldKind
    default: Any
    low: float | None
    high: float | None
    choices: tuple[str, ...]
    """Allowed values of a choice, or of the items of a list; empty if any value is allowed."""
    about: ReferenceRow
    """The setting in words, and whether it is live."""

    @property
    def basic(self) -> bool:
        """Return whether newcomers see it at once."""
        return self.key in _BASIC


@functools.cache
def fields_by_key() -> dict[str, FormField]:
    """Return every setting by its dotted key, in the order of the schema."""
    rows = {row.key: row for row in reference_rows()}
    fields = {}
    for section, table in Config.model_fields.items():
        assert table.annotation is not None
        for name, schema in table.annotation.model_json_schema()["properties"].items():
            row = rows[f"{section}.{name}"]
            fields[row.key] = FormField(
                key=row.key,
                name=name,
                kind=_kind(row.key, schema),
                default=schema["default"],
                low=schema.get("exclusiveMinimum", schema.get("minimum")),
                high=schema.get("exclusiveMaximum", schema.get("maximum")),
                choices=tuple(schema.get("enum") or schema.get("items", {}).get("enum") or ()),
                about=row,
            )
    return fields


def sections() -> dict[str, str]:
    """Return each table's name and purpose: `ppo` and `the algorithm.`."""
    return {
        name: (table.annotation.__doc__ or "").partition(": ")[2].partition("\n")[0]
        for name, table in Config.model_fields.items()
        if table.annotation is not None
    }


def search(query: str) -> list[FormField]:
    """Return the settings with every word of `query` in key, help or advice; matches in the key come first."""
    found = [f for f in fields_by_key().values() if has_words(f"{f.key} {f.about.help} {f.about.advice}", query)]
    return sorted(found, key=lambda f: not has_words(f.key, query))


def parse(field: FormField, text: str) -> Any:
    """Parse `text` as a value of `field`.

    Raises ValueError with the broken rule, in one line. Does not check rules between settings.
    """
    value = _read(field, text)
    if rule := broken_rule(field.key, value):
        raise ValueError(rule)
    return value


def editable(field: FormField, value: Any) -> bool:
    """Return whether `value` can be edited as one line of text; reward sources and multi-line texts cannot."""
    return field.kind != "sources" and as_text(field, value).isprintable()


def as_text(field: FormField, value: Any) -> str:
    """Format `value` for `parse`; a value of a wrong type is shown as in TOML, so that the user can fix it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        small = 0 < abs(value) < 1e-3  # as people write it: 3e-4, 1e-5
        return f"{Decimal(repr(value)).normalize():e}" if small else repr(value)
    if isinstance(value, str):
        return value
    if isinstance(value, list) and field.kind == "list":
        plain = ", ".join(map(str, value))
        return plain if _split(plain) == value else _literal(value)
    if isinstance(value, dict) and field.kind == "table":
        return _literal(value)[1:-1]
    return str(value) if isinstance(value, int) else _literal(value)


def shown(field: FormField, value: Any) -> str:
    """Format `value` for display; `parse` cannot always read the result."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10_000:
        return f"{value:_}"
    if field.kind == "sources" and isinstance(value, list):
        return ", ".join(map(_source, value)) or "none"
    text = as_text(field, value)
    return text or ("none" if isinstance(value, list | dict) else "empty" if isinstance(value, str) else "")


def toml_line(key: str, value: Any) -> str:
    """Format a setting as a line of TOML, as in `ppo.kl_coef = 0.05`."""
    return f"{key} = {_literal(value)}"


def limits(field: FormField) -> str:
    """Return which values are allowed, and their unit, as in `at least 0, at most 100 · score per nat`."""
    kind = {"integer": "whole number", "number": "number", "switch": "true or false"}.get(field.kind, "")
    allowed = field.about.rule or kind
    if field.kind == "list":
        allowed = ", ".join(filter(None, ("items between commas", allowed)))
    if field.kind == "table":
        allowed = "as in enable_thinking = false"
    return " · ".join(filter(None, (allowed, field.about.unit)))


def stepped(field: FormField, value: Any, direction: int) -> Any:
    """Return the next sensible value up (direction 1) or down (-1); `value` itself at the end of the range.

    Numbers step through a nearly geometric ladder of round values, shares by 0.01, whole numbers by 1 and from 20 on by
    their second digit. Switches and choices wrap around.
    """
    if field.kind == "switch" and isinstance(value, bool):
        return not value
    if field.kind == "choice":
        places = len(field.choices)
        place = field.choices.index(value) + direction if value in field.choices else 0
        return field.choices[place % places]
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return value
    if field.kind == "integer":
        size = abs(int(value) + min(direction, 0))
        step = 1 if size < 20 else 10 ** (len(str(size)) - 2)
        moved: float = (int(value) // step + 1) * step if direction > 0 else (-(-int(value) // step) - 1) * step
    elif field.kind == "number":
        moved = _number_step(field, float(value), direction)
    else:
        return value
    if field.low is not None:
        moved = max(moved, type(moved)(field.low))
    if field.high is not None:
        moved = min(moved, type(moved)(field.high))
    return value if broken_rule(field.key, moved) else moved


def _kind(key: str, schema: dict[str, Any]) -> FieldKind:
    if key == "reward.sources":
        return "sources"
    if key in _PATHS:
        return "path"
    if schema["type"] == "array":
        return "list"
    return "choice" if "enum" in schema else _KINDS[schema["type"]]


def _read(field: FormField, text: str) -> Any:
    stripped = text.strip()
    match field.kind:
        case "integer":
            with contextlib.suppress(ValueError, OverflowError):
                number = float(stripped) if "e" in stripped.lower() else int(stripped)
                if number == int(number):
                    return int(number)
            raise ValueError("must be a whole number")
        case "number":
            try:
                return float(stripped)
            except ValueError:
                raise ValueError("must be a number") from None
        case "switch":
            if stripped.casefold() not in _SWITCH:
                raise ValueError("must be true or false")
            return _SWITCH[stripped.casefold()]
        case "list":
            return _list(stripped)
        case "table":
            return _table(stripped)
        case "sources":
            raise ValueError("reward sources are edited as TOML")
        case "choice" | "path":
            return stripped
        case "text":
            return text


def _list(text: str) -> list[Any]:
    if not text.startswith("["):
        return _split(text)
    with contextlib.suppress(ValueError):
        values = parse_toml(f"v = {text}")
        if len(values) == 1 and isinstance(values["v"], list):
            return values["v"]
    raise ValueError('must be items between commas, or a TOML array as in ["a", "b"]')


def _table(text: str) -> dict[str, Any]:
    with contextlib.suppress(ValueError):
        values = parse_toml(f"v = {{{text}}}")
        if len(values) == 1 and isinstance(values["v"], dict):
            return values["v"]
    raise ValueError("must be options between commas, as in enable_thinking = false")


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


def _source(source: Any) -> str:
    if not isinstance(source, dict):
        return str(source)
    name = source.get("path") or source.get("kind") or "?"
    weight = source.get("weight", 1)
    return f"{name}" if weight == 1 else f"{name} x {weight}"


def _number_step(field: FormField, value: float, direction: int) -> float:
    coarse = 0 < field.default < _SMALL
    if (field.low, field.high) == (0, 1) and not coarse:  # a share
        return round(round(value / _HUNDREDTH) * _HUNDREDTH + direction * _HUNDREDTH, 10)
    ladder, first = (_COARSE, 1e-6) if coarse else (_FINE, _SMALL)
    if value == 0 or (abs(value) <= first and direction * value < 0):
        return 0.0 if value else direction * first
    up = direction * value > 0  # away from 0
    exponent = math.floor(math.log10(abs(value)) + 1e-9)
    rungs = [round(m * 10.0**e, 12 - e) for e in (exponent - 1, exponent, exponent + 1) for m in ladder]
    beyond = [r for r in rungs if (r > abs(value) * (1 + 1e-9) if up else r < abs(value) * (1 - 1e-9))]
    return math.copysign(min(beyond) if up else max(beyond), value)
