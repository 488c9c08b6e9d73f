"""Themes: TOML files with base colours and those of charts and heat.

The shipped ones are in themes/; a user's own, in the config folder's themes/, override them by name. Chart and token
colours reach stylesheets as theme variables: `$chart-1`, `$heat-low`...
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, ConfigDict, Field, ValidationError, create_model
from pydantic_core import ErrorDetails
from textual.app import App
from textual.color import Color, ColorParseError
from textual.css.model import RuleSet
from textual.theme import Theme

from trainer.errors import ConfigError
from trainer.files import read_toml
from workbench.text import visible

# For every widget that it styles, Textual looks up every rule of its stylesheets, by a hash computed in Python. This
# one is of the same identity, computed in C, and saves a seventh of the time that the screen takes to open.
RuleSet.__hash__ = object.__hash__  # type: ignore[method-assign]

DEFAULT_THEME = "workbench"
FEW_COLORS_THEME = "ansi-16"  # for terminals on which others would lose theirs

# Defaults for stylesheets when a theme lacks the variable, as Textual's own themes do.
EXTRA_VARIABLES = {
    "chart-1": "#5fafd7",
    "chart-2": "#d7af5f",
    "chart-3": "#87af5f",
    "chart-4": "#af87d7",
    "chart-5": "#d78787",
    "chart-6": "#5fafaf",
    "chart-axis": "#808080",
    "chart-target": "#d7875f",
    "chart-missing": "#d75f5f",
    "heat-low": "#d7875f",
    "heat-mid": "#808080",
    "heat-high": "#5f87d7",
    "line": "#808080",  # borders and scrollbars; follows from the colours of a theme
}

# Without colour, attributes mark what the keyboard acts on. Underline is needed as well: lists and buttons draw with
# Textual's `Widget.get_visual_style`, which passes on every attribute except reverse.
_NO_COLOR_VARIABLES = {
    "block-cursor-text-style": "bold underline reverse",
    "block-cursor-blurred-text-style": "underline",
    "input-cursor-text-style": "reverse",
    "button-focus-text-style": "bold underline reverse",
}

_ACCENTS = ("primary", "secondary", "accent", "success", "warning", "error")
_BASE = (*_ACCENTS, "foreground", "background", "surface", "panel")
_TABLES = {
    "colors": _BASE,
    "chart": ("1", "2", "3", "4", "5", "6", "axis", "target", "missing"),
    "heat": ("low", "mid", "high"),
    "text": ("muted",),
}
_LINE = 3.1  # contrast of borders on every ground: WCAG 2.2 asks for 3
_RULES = {  # pydantic's error types, in our words
    "bool_type": "must be true or false",
    "model_type": "must be a table of colours",
    "string_type": "must be a name in quotes",
    "string_pattern_mismatch": "must be small letters, digits and dashes, as in my-theme",
}


@dataclass(frozen=True)
class ThemeSpec:
    """The contents of a theme file."""

    name: str
    dark: bool
    colors: Mapping[str, str]  # the base colours, in Textual's names
    variables: Mapping[str, str]  # those of `EXTRA_VARIABLES`, and text-muted where the file gives it

    @property
    def ansi(self) -> bool:
        """Return whether its colours are the terminal's own sixteen."""
        return self.colors["background"].startswith("ansi_")


def no_color() -> bool:
    """Return whether the user wants no colour at all: `NO_COLOR` is set and not empty (https://no-color.org)."""
    return bool(os.environ.get("NO_COLOR"))


def shipped_themes_dir() -> Path:
    """Return the folder of the shipped themes: inside an installed package, or beside it in the source tree."""
    package = Path(__file__).parent.parent
    inside = package / "themes"
    return inside if inside.is_dir() else package.parent / "themes"


def load_themes(user_dir: Path) -> tuple[dict[str, Theme], list[str]]:
    """Return the shipped themes and those of `user_dir` by name, and a line for every problem.

    `user_dir` need not exist. A file with a problem is left out, so a shipped theme of that name stays.
    """
    themes: dict[str, Theme] = {}
    problems: list[str] = []
    for folder in (shipped_themes_dir(), user_dir):
        taken: dict[str, Path] = {}
        for path in _theme_files(folder):
            try:
                spec = read_theme(path)
            except ConfigError as broken:
                problems.extend(visible(problem) for problem in str(broken).splitlines())
                continue
            if spec.name in taken:
                problems.append(visible(f"{path}: name = {spec.name!r} is taken by {taken[spec.name].name}"))
                continue
            taken[spec.name] = path
            themes[spec.name] = to_textual(spec)
    return themes, problems


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
    given = {f"{table}-{key}": color for table in _TABLES for key, color in file.get(table, {}).items()}
    ansi = [key for key, color in given.items() if color.startswith("ansi_")]
    if ansi and len(ansi) < len(given):
        key = ansi[0].replace("-", ".")
        raise ConfigError([f"{key} is a colour of the terminal and others are not: use one kind in a file"], source)
    variables = {key: color for key, color in given.items() if not key.startswith("colors-")}
    return ThemeSpec(file["name"], file["dark"], file["colors"], variables)


def to_textual(spec: ThemeSpec) -> Theme:
    """Convert the theme to Textual's, with our variables among its own."""
    colors: dict[str, Any] = dict(spec.colors)
    background = colors["background"]
    if spec.ansi:  # the terminal's default colours are unknown and nothing can be mixed
        on_accent = "ansi_black" if spec.dark else "ansi_bright_white"
        muted, line, selection = colors["foreground"], "", colors["primary"]
        tints = {f"{name}-muted": background for name in _ACCENTS}
    else:
        on_accent = background
        ground = Color.parse(background)
        muted, selection = Color.parse(colors["foreground"]).blend(ground, 0.3).hex, f"{colors['primary']} 30%"
        line = _line(*(Color.parse(colors[name]) for name in ("foreground", "background", "surface", "panel"))).hex
        tints = {f"{name}-muted": Color.parse(colors[name]).blend(ground, 0.85).hex for name in _ACCENTS}
    # Textual's own choices for these may be hard to read; tests check the contrast of every pair.
    variables = {
        "text-muted": muted,
        **spec.variables,
        **{f"text-{name}": colors[name] for name in _ACCENTS},
        **tints,
        "block-cursor-background": colors["primary"],
        "block-cursor-foreground": on_accent,
        "button-color-foreground": on_accent,
        "footer-key-foreground": colors["accent"],
        "border": colors["primary"],
        "input-selection-background": selection,
    }
    # Muted and disabled text must stay readable: warnings, for example, are options that cannot be chosen.
    variables |= dict.fromkeys(("foreground-muted", "text-disabled", "foreground-disabled"), variables["text-muted"])
    line = line or variables["text-muted"]
    variables |= dict.fromkeys(("line", "border-blurred", "scrollbar"), line)
    variables["scrollbar-hover"] = variables["text-muted"]
    if spec.ansi:
        variables |= {
            "surface": colors["surface"],
            "panel": colors["panel"],
            "surface-active": colors["surface"],
            "ansi-background": colors["panel"],
            "ansi-foreground": colors["foreground"],
            "input-selection-foreground": on_accent,
            "screen-selection-background": selection,
            "screen-selection-foreground": on_accent,
        }
    if no_color():
        variables |= _NO_COLOR_VARIABLES
    return Theme(name=spec.name, dark=spec.dark, ansi=spec.ansi, variables=variables, **colors)


def _line(foreground: Color, *grounds: Color) -> Color:
    """Return the faintest mix of foreground and first ground that stands out as a line from all `grounds`."""
    mixes = (grounds[0].blend(foreground, step / 100) for step in range(101))
    return next((mix for mix in mixes if min(contrast(mix, on) for on in grounds) >= _LINE), foreground)


def contrast(one: Color, other: Color) -> float:
    """Return the contrast ratio of WCAG 2.2, 1 to 21."""
    dark, light = sorted((_luminance(one), _luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def _luminance(color: Color) -> float:
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in color.normalized)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def apply_themes(app: App[Any], themes: Mapping[str, Theme]) -> None:
    """Register `themes` with `app`, and redraw if the current one has changed."""
    before = app.current_theme
    for theme in themes.values():
        app.register_theme(theme)
    if app.current_theme != before:
        app.mutate_reactive(App.theme)


def theme_stamps(folder: Path) -> dict[Path, tuple[int, int]]:
    """Return time and size of each theme file in `folder`, which differ once one was added, removed or written."""
    stamps = {}
    for path in _theme_files(folder):
        with suppress(OSError):  # gone since it was listed
            status = path.stat()
            stamps[path] = (status.st_mtime_ns, status.st_size)
    return stamps


def _theme_files(folder: Path) -> list[Path]:
    """Return the theme files in order of name. Regular files only: a pipe or a socket would block the reader."""
    return sorted(path for path in folder.glob("*.toml") if path.is_file())


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
_TABLE_SCHEMAS = {table: _schema(table, **dict.fromkeys(keys, _COLOR)) for table, keys in _TABLES.items()}
_THEME_FILE = _schema(
    "theme",
    name=(Annotated[str, Field(pattern="^[a-z][a-z0-9]*(-[a-z0-9]+)*$")], ...),
    dark=(bool, ...),
    **{table: (schema, None if table == "text" else ...) for table, schema in _TABLE_SCHEMAS.items()},
    labels=(Any, None),  # of older themes; nothing is drawn with it
)


def _message(problem: ErrorDetails) -> str:
    """Return one problem of a theme file: key, value, rule and a way out."""
    table, key = str(problem["loc"][0]), ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        known = _THEME_FILE.model_fields if key == table else [f"{table}.{name}" for name in _TABLES[table]]
        return f"unknown key {key}{_guess(*difflib.get_close_matches(key, list(known), n=1))}"
    if problem["type"] == "missing":
        return f"{key} is missing: {f'add a table [{key}]' if key in _TABLES else f'add {key}'}"
    rule = _RULES.get(problem["type"]) or problem["msg"].removeprefix("Value error, ")
    return f"{key} = {problem['input']!r}: {rule}"


def _guess(meant: str | None = None) -> str:
    return f": did you mean {meant}?" if meant else ""
