"""Print docs/keys.md: what a letter means everywhere, and the keys of each pane and dialog, from their bindings.

Run: .venv/bin/python docs/keys.py > docs/keys.md
"""

from __future__ import annotations

import importlib
import re
import sys

from textual.binding import Binding
from textual.dom import DOMNode
from textual.keys import key_to_character

from workbench.kit.dialog import Dialog
from workbench.kit.keys import own_bindings
from workbench.kit.pane import Pane

INTRODUCTION = """\
# Keys

This page is printed by `python docs/keys.py`. F1 shows the keys that apply where you are.
To change one, put its id into `keys.toml`: see [workbench.md](workbench.md#themes-and-keys).

A key of this table has the same meaning wherever it is bound:

| key | meaning |
|---|---|
| `/` | search, filter |
| `y` | copy what the cursor is on |
| `m` | mark, unmark |
| `x` | export, save to a file |
| `o`, `O` | sort by the next column, reverse the order |
| `n`, `N` | next item, previous item |
| `u`, `U` | undo, redo |
| `delete`, `D` | remove to the trash, dismiss |
| `v` | change the view |
| `w` | save the configuration |
| `space` | start, pause and resume the run; in Label, skip |
| `s`, `c`, `X` | one iteration, checkpoint, stop the run |
| `!`, `F` | show the alarm, fix the alarm |
| `z`, `(`, `)` | enlarge the pane, previous pane, next pane |
| `ctrl+o`, `J` | jump mode: a letter on every pane and control |
| `escape` | back, close, cancel |
| `?`, `f1` | help |
| `q`, `ctrl+q` | quit |

Other meanings, each for a reason: `y` and `n` are yes and no where a dialog asks, the channels of the token inspector
have the letters that its legend underlines, shift and the digit of a side judge strongly, and space ticks an entry of a
list of ticks.
"""


def page() -> str:
    """Return the text of docs/keys.md."""
    owners: dict[str, dict[str, tuple[Binding, list[str]]]] = {}
    for owner, binding in own_bindings():
        known = owners.setdefault(owner, {})
        known.setdefault(binding.id or binding.action, (binding, []))[1].append(binding.key)
    lines = [INTRODUCTION.rstrip()]
    for owner, known in sorted(owners.items(), key=lambda item: heading(item[0])):
        lines += ["", f"## {heading(owner)[1]}", "", "| key | does | id |", "|---|---|---|"]
        for one, keys in known.values():
            about = str(one.tooltip).replace("|", "\\|")
            lines.append(f"| {', '.join(f'`{name(key)}`' for key in keys)} | {about} | `{one.id}` |")
    return "\n".join(lines) + "\n"


def heading(owner: str) -> tuple[int, str]:
    """Return the place among the headings and the heading of a class: the application, panes, then the others."""
    module, _, class_name = owner.rpartition(".")
    kind: type[DOMNode] = getattr(importlib.import_module(module), class_name)
    if issubclass(kind, Pane):
        return 1, f"{kind.TITLE} pane"
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", class_name).capitalize()
    return 0 if class_name in ("WorkbenchApp", "MainScreen") else 2 if issubclass(kind, Dialog) else 3, words


def name(key: str) -> str:
    """Return a key as it is written: a sign by itself, other keys by their names."""
    character = "/" if key == "slash" else key_to_character(key)
    named = character is None or not character.isprintable() or character == " "
    return (key if named else character or key).replace("|", "\\|").replace("`", "backquote")


if __name__ == "__main__":
    sys.stdout.write(page())
