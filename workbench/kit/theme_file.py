"""Themes of the user's own, with a line for each problem of their files, and Textual's own, made readable.

Apart from `theming` because pydantic takes longer to import than the first frame.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, ConfigDict, Field, ValidationError, create_model
from pydantic_core import ErrorDetails
from textual.color import Color, ColorParseError
from textual.theme import BUILTIN_THEMES, Theme

from trainer.errors import ConfigError
from trainer.files import read_toml
from workbench.kit.theming import TABLES, ThemeSpec, contrast, shipped_themes, spec_of, theme_files, to_textual
from workbench.text import visible

_RULES = {  # pydantic's error types, in our words
    "bool_type": "must be true or false",
    "model_type": "must be a table of colours",
    "string_type": "must be a name in quotes",
    "string_pattern_mismatch": "must be small letters, digits and dashes, as in my-theme",
}


def load_themes(user_dir: Path) -> tuple[dict[str, Theme], list[str]]:
    """Return the shipped themes and those of `user_dir` by name, and a line for every problem.

    `user_dir` need not exist. A file with a problem is left out, so a shipped theme of that name stays.
    """
    taken: dict[str, Path] = {}
    own: dict[str, Theme] = {}
    problems: list[str] = []
    for path in theme_files(user_dir):
        try:
            spec = read_theme(path)
        except ConfigError as broken:
            problems.extend(visible(problem) for problem in str(broken).splitlines())
            continue
        if spec.name in taken:
            problems.append(visible(f"{path}: name = {spec.name!r} is taken by {taken[spec.name].name}"))
            continue
        taken[spec.name] = path
        own[spec.name] = to_textual(spec)
    return shipped_themes() | own, problems


def read_theme(path: Path) -> ThemeSpec:
    """Read a theme file. Raises ConfigError with all its problems."""
    try:
        raw = read_toml(path)
    except OSError as failure:
        raise ConfigError([f"cannot be read: {failure.strerror}"], str(path)) from None
    except UnicodeDecodeError:
        raise ConfigError(["is not UTF-8 text"], str(path)) from None
    except ValueError as failure:
        raise ConfigError([f"cannot be read as TOML: {failure}"], str(path)) from None
    return parse_theme(raw, str(path))


def parse_theme(raw: Mapping[str, Any], source: str) -> ThemeSpec:
    """Check the contents of a theme file. Raises ConfigError with all its problems, each with `source`."""
    try:
        file = _THEME_FILE.model_validate(raw).model_dump(exclude_none=True)
    except ValidationError as error:
        raise ConfigError([_message(problem) for problem in error.errors(include_url=False)], source) from None
    given = {f"{table}-{key}": color for table in TABLES for key, color in file.get(table, {}).items()}
    ansi = [key for key, color in given.items() if color.startswith("ansi_")]
    if ansi and len(ansi) < len(given):
        key = ansi[0].replace("-", ".")
        raise ConfigError([f"{key} is a colour of the terminal and others are not: use one kind in a file"], source)
    return spec_of(file)


def _opaque(value: Any) -> str:
    """Return `value` if it is an opaque colour. Raises ValueError with the rule that it breaks."""
    rule = 'must be a colour: "#rrggbb", a CSS name like "teal", or "ansi_blue"'
    if not isinstance(value, str):
        raise ValueError(rule)
    try:
        color = Color.parse(value)
    except ColorParseError as failure:
        raise ValueError(f"{rule}{_guess(failure.suggested_color)}") from None
    if color.a < 1:
        raise ValueError("must be opaque: leave the alpha out")
    return value


def _schema(title: str, /, **fields: Any) -> Any:
    return create_model(title, __config__=ConfigDict(extra="forbid", strict=True), **fields)


_COLOR = (Annotated[Any, AfterValidator(_opaque)], ...)
_TABLE_SCHEMAS = {table: _schema(table, **dict.fromkeys(keys, _COLOR)) for table, keys in TABLES.items()}
_THEME_FILE = _schema(
    "theme",
    name=(Annotated[str, Field(pattern="^[a-z][a-z0-9]*(-[a-z0-9]+)*$")], ...),
    dark=(bool, ...),
    **{table: (schema, None if table == "text" else ...) for table, schema in _TABLE_SCHEMAS.items()},
)


def _message(problem: ErrorDetails) -> str:
    """Return one problem of a theme file: key, value, rule and a way out."""
    table, key = str(problem["loc"][0]), ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        known = _THEME_FILE.model_fields if key == table else [f"{table}.{name}" for name in TABLES[table]]
        return f"unknown key {key}{_guess(*difflib.get_close_matches(key, list(known), n=1))}"
    if problem["type"] == "missing":
        return f"{key} is missing: {f'add a table [{key}]' if key in TABLES else f'add {key}'}"
    rule = _RULES.get(problem["type"]) or problem["msg"].removeprefix("Value error, ")
    return f"{key} = {problem['input']!r}: {rule}"


def _guess(meant: str | None = None) -> str:
    return f": did you mean {meant}?" if meant else ""


_WORD, _LINE = 4.6, 3.2  # contrast with every ground, a little more than WCAG 2.2 asks for
_TEXTS = ("foreground", "primary", "secondary", "accent", "success", "warning", "error")


def textual_themes() -> dict[str, Theme]:
    """Return Textual's themes by name, without those of the terminal's colours: we have our own."""
    return {name: readable(theme) for name, theme in BUILTIN_THEMES.items() if not theme.ansi}


def readable(theme: Theme) -> Theme:
    """Return `theme` with our variables, and with words and lines that stand out from each of its grounds."""
    made = theme.to_color_system().generate()
    names = ("background", "surface", "panel", "panel-lighten-1", "surface-darken-1")
    grounds = [Color.parse(made[name]) for name in names]
    end = max(Color.parse("white"), Color.parse("black"), key=lambda color: min(contrast(color, on) for on in grounds))
    colors = {name: _apart(Color.parse(made[name]), end, grounds, _WORD) for name in _TEXTS}
    muted = _apart(Color.parse(made["foreground"]).blend(grounds[0], 0.3), end, grounds, _WORD)
    middle = _apart(grounds[0].blend(Color.parse(colors["foreground"]), 0.4), end, grounds, _LINE)
    chart = ("primary", "warning", "success", "secondary", "error", "accent")
    variables = {f"chart-{number}": colors[name] for number, name in enumerate(chart, 1)}
    variables |= {"chart-axis": muted, "chart-target": colors["warning"], "chart-missing": colors["error"]}
    variables |= {"heat-low": colors["warning"], "heat-mid": middle, "heat-high": colors["primary"]}
    variables |= {"text-muted": muted}
    base = {name: made[name] for name in ("background", "surface", "panel")}
    return to_textual(ThemeSpec(theme.name, theme.dark, colors | base, variables))


def _apart(color: Color, end: Color, grounds: Sequence[Color], least: float) -> str:
    """Return `color`, moved as little as needed towards `end` for this contrast with all `grounds`."""
    mixes = (color.blend(end, step / 50) for step in range(51))
    return next((mix for mix in mixes if min(contrast(mix, on) for on in grounds) >= least), end).hex
