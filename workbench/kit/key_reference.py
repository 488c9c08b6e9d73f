"""Print docs/keys.md: what a letter means everywhere, and the keys of each pane and dialog, from their bindings."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from textual.binding import Binding
from textual.dom import DOMNode
from textual.keys import key_to_character

from workbench.kit.dialog import Dialog
from workbench.kit.keys import own_bindings
from workbench.kit.pane import Pane


class Meaning(NamedTuple):
    """A meaning that keys have wherever they are bound.

    words: a pattern; the description or the tooltip of each of their bindings has one of these words.
    """

    keys: str
    text: str
    words: str


VOCABULARY = (
    Meaning("slash", "search, filter", "search|filter"),
    Meaning("y", "copy what the cursor is on", "copy"),
    Meaning("m", "mark, unmark", "mark"),
    Meaning("x", "export, save to a file", "export|save"),
    Meaning("o", "sort by the next column", "sort|order"),
    Meaning("O", "reverse the order", "reverse"),
    Meaning("n", "next item", "next"),
    Meaning("N", "previous item", "previous"),
    Meaning("u", "undo", "undo"),
    Meaning("U", "redo", "redo"),
    Meaning("delete,D", "remove to the trash, dismiss", "delete|trash|remove|dismiss"),
    Meaning("v", "change the view", "view|chart|metrics|markdown|severity"),
    Meaning("w", "save the configuration", "save"),
    Meaning("space", "start, pause and resume the run; in Label, skip", "start|train|pause|resume|skip"),
    Meaning("s", "one iteration", "iteration"),
    Meaning("c", "checkpoint", "checkpoint"),
    Meaning("X", "stop the run", "stop|end"),
    Meaning("exclamation_mark", "show the alarm", "alarm"),
    Meaning("F", "fix the alarm", "fix"),
    Meaning("z", "enlarge the pane", "enlarge|zoom"),
    Meaning("left_parenthesis", "previous pane", "previous"),
    Meaning("right_parenthesis", "next pane", "next"),
    Meaning("ctrl+o,J", "jump mode: a letter on every pane and control", "jump"),
    Meaning("escape", "back, close, cancel", "back|close|cancel|hide|leave|end|return|save|show|stop|all lines"),
    Meaning("question_mark,f1", "help", "help"),
    Meaning("q,ctrl+q", "quit", "quit"),
)
EXCEPTIONS = {
    "confirm.yes": "y is yes where a dialog asks",
    "confirm.no": "n is no where a dialog asks",
    "tokens.value": "the channels of the token inspector have the letters that its legend underlines",
    "label.first-strongly": "shift and the digit of a side judge strongly; a labelling session shows no alarm",
    "label-start.toggle": "space ticks an entry in a list of ticks, as in any other program",
}
"""Bindings that use a key of the vocabulary with another meaning, and why."""

_INTRODUCTION = """\
# Keys

This page is printed by `python -m workbench.kit.key_reference`. F1 shows the keys that apply where you are.
To change one, put its id into `keys.toml`: see [workbench.md](workbench.md#keys).

A key of this table has the same meaning wherever it is bound:
"""


def clashes(bindings: Iterable[Binding]) -> Iterator[str]:
    """Yield a line for each binding that uses a key of the vocabulary with another meaning."""
    meanings = {key: meaning for meaning in VOCABULARY for key in meaning.keys.split(",")}
    for binding in bindings:
        meaning = meanings.get(binding.key)
        if meaning is None or binding.id in EXCEPTIONS or binding.id is None:
            continue
        if not re.search(rf"\b(?:{meaning.words})", f"{binding.description} {binding.tooltip}", re.IGNORECASE):
            yield f"{binding.id}: {binding.key} means {meaning.text}, not {binding.description}"


def page() -> str:
    """Return the text of docs/keys.md."""
    lines = [_INTRODUCTION, "| key | meaning |", "|---|---|"]
    lines += [f"| {_shown(meaning.keys)} | {meaning.text} |" for meaning in VOCABULARY]
    lines += ["", "Other meanings, each for a reason:", ""]
    lines += [f"- `{name}`: {reason}" for name, reason in EXCEPTIONS.items()]
    owners: dict[str, dict[str, tuple[Binding, list[str]]]] = {}
    for owner, binding in own_bindings():
        known = owners.setdefault(owner, {})
        known.setdefault(binding.id or binding.action, (binding, []))[1].append(binding.key)
    for owner, known in sorted(owners.items(), key=lambda item: _title(item[0])):
        lines += ["", f"## {_title(owner)[1]}", "", "| key | does | id |", "|---|---|---|"]
        lines += [f"| {_shown(','.join(keys))} | {_cell(one.tooltip)} | `{one.id}` |" for one, keys in known.values()]
    return "\n".join(lines) + "\n"


def _title(owner: str) -> tuple[int, str]:
    """Return the place among the headings and the heading of a class: the application, panes, then the others."""
    module, _, name = owner.rpartition(".")
    kind: type[DOMNode] = getattr(importlib.import_module(module), name)
    if issubclass(kind, Pane):
        return 1, f"{kind.TITLE} pane"
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).capitalize()
    place = 0 if name in ("WorkbenchApp", "MainScreen") else 2 if issubclass(kind, Dialog) else 3
    return place, words


def _shown(keys: str) -> str:
    return ", ".join(f"`{_name(key)}`" for key in keys.split(","))


def _name(key: str) -> str:
    character = "/" if key == "slash" else key_to_character(key)
    named = character is None or not character.isprintable() or character == " "
    return (key if named else character or key).replace("|", "\\|").replace("`", "backquote")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    print(page(), end="")  # noqa: T201
