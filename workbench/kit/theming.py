"""Themes: TOML files with base colours and those of charts and heat; and the screen in ASCII.

The shipped ones are in themes/; a user's own, in the config folder's themes/, override them by name. Each problem of
their files is a line of text. Chart and token colours reach stylesheets as theme variables: `$chart-1`, `$heat-low`...
Some have a meaning, and a name for it: `ROLES`.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path, PurePath
from typing import Any, TypeVar

from rich.cells import cell_len
from rich.segment import Segment
from textual import events
from textual.app import App
from textual.color import Color, ColorParseError
from textual.css.model import RuleSet
from textual.filter import LineFilter
from textual.theme import Theme

from trainer.files import flat
from workbench.kit.keys import meant, read_own
from workbench.text import typed, visible

# For every widget that it styles, Textual looks up every rule of its stylesheets, by a hash computed in Python. This
# one is of the same identity, computed in C, and saves a seventh of the time that the screen takes to open.
RuleSet.__hash__ = object.__hash__  # type: ignore[method-assign]

Result = TypeVar("Result")

DEFAULT_THEME = "workbench"
FEW_COLORS_THEME = "ansi-16"  # for terminals on which others would lose theirs
DEFAULT_THEMES = {
    (True, False): DEFAULT_THEME,
    (True, True): "paper",
    (False, False): FEW_COLORS_THEME,
    (False, True): f"{FEW_COLORS_THEME}-light",
}
"""Themes of a user who has chosen none, by whether the terminal has many colours and a light background."""

# Ours, with defaults for stylesheets until a theme is chosen.
EXTRA_VARIABLES = {
    "chart-1": "#af87d7",
    "chart-2": "#87af5f",
    "chart-3": "#d7af5f",
    "chart-4": "#5fafd7",
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

ROLES = {"policy": "chart-1", "reference": "chart-2", "better": "heat-high", "worse": "heat-low"}
"""Variables with a meaning, the same everywhere, and those whose colours they have."""

EXTRA_VARIABLES |= {role: EXTRA_VARIABLES[of] for role, of in ROLES.items()}

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
COLORS = tuple(
    f"{table}.{key}"
    for table, keys in {
        "colors": " ".join(_BASE),
        "chart": "1 2 3 4 5 6 axis target missing",
        "heat": "low mid high",
        "text": "muted",
    }.items()
    for key in keys.split()
)
KEYS = ("name", "dark", *COLORS)
"""The keys of a theme file. The last may be left out."""

_PACKAGE = Path(__file__).parent.parent
SHIPPED_THEMES = _PACKAGE / "themes" if (_PACKAGE / "themes").is_dir() else _PACKAGE.parent / "themes"
"""Folder of the shipped themes: inside an installed package, or beside it in the source tree."""

_LINE = 3.1  # contrast of borders on every ground: WCAG 2.2 asks for 3


class ThemedApp(App[Result]):
    """Base of applications with our themes and keys. Pasted text reaches every field with its controls as symbols."""

    def set_keymap(self, keymap: Mapping[str, str]) -> None:
        self.keymap = keymap  # for `workbench.kit.keys.remapped`
        super().set_keymap(keymap)

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return EXTRA_VARIABLES

    async def on_event(self, event: events.Event) -> None:
        if isinstance(event, events.Paste):
            from textual.widgets import TextArea  # not before the first frame

            is_area = isinstance(self.focused, TextArea)  # which keeps tabs
            event.text = typed(event.text) if is_area else visible(event.text, keep_newlines=True, joined=True)
        await super().on_event(event)


def no_color() -> bool:
    """Return whether the user wants no colour at all: `NO_COLOR` is set and not empty (https://no-color.org)."""
    return bool(os.environ.get("NO_COLOR"))


def shipped_themes() -> dict[str, Theme]:
    """Return the shipped themes by name."""
    return read_themes(SHIPPED_THEMES)[0]


def read_themes(folder: Path) -> tuple[dict[str, Theme], list[str]]:
    """Return the themes in `folder`, which need not exist, by name, and a line for every problem.

    A file with a problem is left out. Regular files only are read: a pipe or a socket would block the reader.
    """
    themes: dict[str, Theme] = {}
    problems: list[str] = []
    for path in sorted(path for path in folder.glob("*.toml") if path.is_file()):
        raw, problem = read_own(path)
        found = [problem] if problem else [*theme_problems(raw)]
        if not found and raw["name"] in themes:
            found = [f"name = {raw['name']!r} is taken by another file"]
        if found:
            problems += [visible(f"{path}: {one}") for one in found]
        else:
            themes[raw["name"]] = theme_of(raw)
    return themes, problems


def theme_problems(raw: Mapping[str, Any]) -> Iterator[str]:
    """Yield each problem of the contents of a theme file: key, value, rule and a way out."""
    given = dict(flat(raw))
    colors = {key: color for key, color in given.items() if key in COLORS}
    yield from (f"unknown key {key}{meant(key, KEYS)}" for key in given if key not in KEYS)
    if missing := [key for key in KEYS if key not in given and key != "text.muted"]:
        yield f"missing: {', '.join(missing)}"
    name = given.get("name", "a")
    if not isinstance(name, str) or not re.fullmatch("[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
        yield f'name = {name!r}: must be small letters, digits and dashes, as in "my-theme"'
    if not isinstance(given.get("dark", True), bool):
        yield f"dark = {given['dark']!r}: must be true or false"
    broken = {key: rule for key, color in colors.items() if (rule := _broken_rule(color))}
    yield from (f"{key} = {colors[key]!r}: {rule}" for key, rule in broken.items())
    ansi = [key for key, color in colors.items() if key not in broken and color.startswith("ansi_")]
    if 0 < len(ansi) < len(colors) - len(broken):
        yield f"{ansi[0]} is a colour of the terminal and others are not: use one kind in a file"


def _broken_rule(color: object) -> str:
    """Return the rule that a colour of a theme file breaks; empty for none."""
    rule = 'must be a colour: "#rrggbb", a CSS name like "teal", or "ansi_blue"'
    if not isinstance(color, str):
        return rule
    try:
        return "" if Color.parse(color).a == 1 else "must be opaque: leave the alpha out"
    except ColorParseError as failure:
        return rule + (f": did you mean {failure.suggested_color}?" if failure.suggested_color else "")


def theme_of(raw: Mapping[str, Any]) -> Theme:
    """Convert a checked file to Textual's theme, with our variables among its own."""
    file = dict(flat(raw))
    colors, dark = {name: file[f"colors.{name}"] for name in _BASE}, file["dark"]
    background = colors["background"]
    is_ansi = background.startswith("ansi_")
    if is_ansi:  # the terminal's default colours are unknown and nothing can be mixed
        on_accent = "ansi_black" if dark else "ansi_bright_white"
        muted, line, selection = colors["foreground"], "", colors["primary"]
        tints = {f"{name}-muted": background for name in _ACCENTS}
    else:
        on_accent = background
        ground = Color.parse(background)
        muted, selection = Color.parse(colors["foreground"]).blend(ground, 0.3).hex, f"{colors['primary']} 30%"
        text, *grounds = (Color.parse(colors[name]) for name in ("foreground", "background", "surface", "panel"))
        mixes = (ground.blend(text, step / 100) for step in range(101))  # the faintest that stands out everywhere
        line = next((mix for mix in mixes if min(contrast(mix, on) for on in grounds) >= _LINE), text).hex
        tints = {f"{name}-muted": Color.parse(colors[name]).blend(ground, 0.85).hex for name in _ACCENTS}
    # Textual's own choices for these may be hard to read; tests check the contrast of every pair.
    variables = {
        "text-muted": muted,
        **{key.replace(".", "-"): file[key] for key in COLORS[len(_BASE) :] if key in file},
        **{role: file[of.replace("-", ".")] for role, of in ROLES.items()},
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
    if is_ansi:
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
    return Theme(name=file["name"], dark=dark, ansi=is_ansi, variables=variables, **colors)


def contrast(one: Color, other: Color) -> float:
    """Return the contrast ratio of WCAG 2.2, 1 to 21."""
    luminances = []
    for color in (one, other):
        red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in color.normalized)
        luminances.append(0.2126 * red + 0.7152 * green + 0.0722 * blue)
    return (max(luminances) + 0.05) / (min(luminances) + 0.05)


def apply_themes(app: App[Any], themes: Mapping[str, Theme]) -> None:
    """Register `themes` with `app`, and redraw if the current one has changed."""
    before = app.current_theme
    for theme in themes.values():
        app.register_theme(theme)
    if app.current_theme != before:
        app.mutate_reactive(App.theme)


ALL_STYLES: list[str | PurePath] = [*sorted(_PACKAGE.rglob("*.tcss"), key=lambda path: path.name)]
"""The stylesheets, each in the package of the widgets that it styles."""


_BRAILLE = range(0x2800, 0x2900)
_BOXES = range(0x2500, 0x2580)
_BLOCKS = range(0x2580, 0x25A0)
_TOP, _BOTTOM = 0x01 | 0x08 | 0x02 | 0x10, 0x04 | 0x20 | 0x40 | 0x80  # dots of a braille character
_FULL = 6  # dots

_BY_LOOK = (  # pairs of a sign and its replacement
    "▁_ ▂. ▃: ▄- ▅= ▆+ ▇* █# ▔- ▕| ▐| ▌# ▀- ▏| ▎| ▍| ▋# ▊# ▉# "
    "─- ━- ═- ┄- ┅- ┈- ┉- ╌- ╍- ╴- ╶- ╸- ╺- │| ┃| ║| ┆| ┇| ┊| ┋| ╎| ╏| ╵| ╷| ╹| ╻| "
    "·. …. •* ●o ◆* ◇o ■# □o ○o ◌o ★* ⚑P ✂% ✖x ✗x ✓v ✔v ⚠! ▲^ △^ ▴^ ▼v ▾v ▽v ▸> ▶> ›> ⟩> ◂< ◀< ‹< ⟨< "
    "←< →> ↑^ ↓v ↵/ ⏎/ ␣_ ␊n ␡d ␛e ↶< ↻o ×* ±~ −- ²2 ½/ ≤< ≥> ≠! ≈= √V ΣS πp γg λl δd ρr βb κk µu ∅0 ‖| "
    "“' ”' ‘' ’' –- —-"
)
_SIGNS = str.maketrans({pair[0]: pair[1] for pair in _BY_LOOK.split(" ")})


class AsciiOnly(LineFilter):
    """A filter of all that is drawn, for terminals that show nothing else: every sign becomes one of the same width."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [
            segment if segment.control or segment.text.isascii() else Segment(ascii_text(segment.text), segment.style)
            for segment in segments
        ]


@lru_cache(4096)
def ascii_text(text: str) -> str:
    """Return `text` in ASCII, as wide as before: signs by their look, letters without accents, "?" for the rest."""
    return "".join(char if char.isascii() else _ascii(char) for char in text.translate(_SIGNS))


def _ascii(char: str) -> str:
    code = ord(char)
    if code in _BRAILLE:
        dots = code - _BRAILLE.start
        if dots.bit_count() >= _FULL:
            return "#"
        return ":" if dots & _TOP and dots & _BOTTOM else "'" if dots & _TOP else "." if dots else " "
    if code in _BOXES or code in _BLOCKS:
        return "+"
    plain = unicodedata.normalize("NFKD", char)[0]
    width = cell_len(char)
    return plain if plain.isascii() and width == 1 else "?" * width
