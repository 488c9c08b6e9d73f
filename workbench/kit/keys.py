"""Keys chosen by the user: keys.toml maps the ids of bindings to keys, on top of a shipped preset or of none.

preset = "vim"

[keys]
"run.pause" = "space,p"
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
import re
import string
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from textual.binding import Binding, BindingsMap, BindingType
from textual.dom import DOMNode
from textual.keys import Keys

from trainer.files import flat, read_toml
from workbench.text import visible

PRESETS = Path(__file__).parent / "keymaps"

_F_KEY = re.compile(r"f\d+")
_ID = re.compile(r"\{([a-z-]+\.[a-z-]+)\}")
_ROOMS = ("config", "kit", "labelling", "log", "reward_model", "runs", "samples", "screen", "training")


def bind(keys: str, action: str, description: str, id: str, tooltip: str, **more: Any) -> Binding:
    """Return a binding as every one of ours is: users remap it by its id, and the help shows its tooltip."""
    return Binding(keys, action, description, id=id, tooltip=tooltip, **more)


hidden_key = partial(bind, show=False)
"""A binding that the footer does not show."""


ANYWHERE: list[BindingType] = [
    bind("question_mark,f1", "app.help", "help", "app.help", "Show help, and all keys that work here"),
    bind("ctrl+o,J", "app.jump", "jump", "app.jump", "Put a letter on every pane and control"),
    bind("q,ctrl+q", "app.leave", "quit", "app.leave", "Quit; a run can stop or continue headless"),
]
"""Keys of the application, which Textual hides from a modal screen: each dialog binds them itself."""


def load_keymap(path: Path, bindings: Iterable[tuple[str, Binding]]) -> tuple[dict[str, str], list[str]]:
    """Return the keys by id for `App.set_keymap`, from the file and its preset, and a line for every problem.

    path: need not exist. bindings: all of the app, each with its class; see `own_bindings`. A binding whose entry has a
    problem keeps its shipped keys. Two bindings of one area, or of one class, never share a key unless they are shipped
    like that.
    """
    shipped: dict[str, list[str]] = {}
    owners: dict[str, set[str]] = {}
    for owner, binding in bindings:
        shipped.setdefault(binding.id or "", []).append(binding.key)
        owners.setdefault(binding.id or "", set()).add(owner)
    problems: list[str] = []
    preset, own = _read(path, problems)
    _, given = _read(PRESETS / f"{preset}.toml", problems) if preset else ("", {})
    chosen: dict[str, list[str]] = {}
    entries = [(f"preset {preset}", name, keys) for name, keys in given.items() if name not in own]
    for source, name, keys in [*entries, *((path.name, name, keys) for name, keys in own.items())]:
        if name not in shipped:
            problems.append(f"{source}: {name} is not a binding{meant(name, shipped)}")
        elif not isinstance(keys, str):
            problems.append(f'{source}: {name} = {keys!r}: write keys in quotes, like "space,p"')
        else:
            try:
                chosen[name] = [*dict.fromkeys(_key(key.strip()) for key in keys.split(","))]
            except ValueError as wrong:
                problems.append(f"{source}: {name} = {keys!r}: {wrong}")
    alike = {  # bindings that share a shipped key, such as start, pause and resume
        name: {other for other, keys in shipped.items() if {*shipped[name]} & {*keys}} for name in chosen
    }
    unchecked = [*chosen]
    while unchecked:
        name = unchecked.pop()
        area = name.partition(".")[0]
        near = [other for other in shipped if other.partition(".")[0] == area or owners[other] & owners[name]]
        taken = {key: other for other in near if other not in alike[name] for key in chosen.get(other, shipped[other])}
        if key := next((key for key in chosen[name] if key in taken), ""):
            problems.append(f"{path.name}: {name}: {key} is also the key of {taken[key]}: change one of them")
            del chosen[name]
            unchecked = [*chosen]  # another may have taken its shipped keys
    neighbours = {  # Textual unbinds a key for all that share it when one of them changes
        other: shipped[other]
        for name in chosen
        for other in alike[name]
        if other not in chosen and owners[name] & owners[other]
    }
    return {name: ",".join(keys) for name, keys in (chosen | neighbours).items()}, [*map(visible, problems)]


def remapped(node: DOMNode) -> list[Binding]:
    """Return the bindings of `node` that have an id, with the keys that the user has set; one item for each key.

    Textual lists only those that are active.
    """
    bindings = BindingsMap()
    for base in reversed(type(node).__mro__):
        bindings.key_to_bindings |= BindingsMap(vars(base).get("BINDINGS", ())).key_to_bindings
    bindings.apply_keymap(getattr(node.app, "keymap", {}))
    return [binding for _, binding in bindings if binding.id]


def keys_of(*nodes: DOMNode) -> dict[str, str]:
    """Return the key of each binding of `nodes` by id, as the user has set it; the first of several keys.

    For messages: this includes bindings that do not apply now, or not where the focus is.
    """
    keys: dict[str, str] = {}
    for node in nodes:
        for binding in remapped(node):
            shown = node.app.get_key_display(binding)
            keys.setdefault(str(binding.id), shown.upper() if _F_KEY.fullmatch(shown) else shown)
    return keys


def with_keys(text: str, *nodes: DOMNode) -> str:
    """Return `text` with keys of `nodes` in place of the ids of their bindings in braces, as in `{runs.open}`."""
    keys = keys_of(*nodes)
    return _ID.sub(lambda found: keys.get(found[1], found[0]), text)


def own_bindings() -> Iterator[tuple[str, Binding]]:
    """Yield every binding of our widgets, screens and the app with its class; one item for each of its keys.

    It imports all modules that have some, so call it only to remap keys.
    """
    names = ["workbench.app"]
    for room in _ROOMS:
        folder = Path(__file__).parent.parent / room
        names += [found.name for found in pkgutil.walk_packages([str(folder)], f"workbench.{room}.")]
    for name in names:
        for item in vars(importlib.import_module(name)).values():
            if isinstance(item, type) and issubclass(item, DOMNode) and item.__module__ == name:
                for binding in Binding.make_bindings(vars(item).get("BINDINGS", ())):
                    yield f"{name}.{item.__qualname__}", binding


def _key(text: str) -> str:
    """Return Textual's name for one key. Raises ValueError for an unknown key."""
    if not text:
        raise ValueError('a key is missing: write one or more, like "space,p"; write a comma as comma')
    *modifiers, last = text.split("+") if text != "+" else ["+"]
    [binding] = Binding.make_bindings([Binding(last or "+", "")])  # names signs, as in question_mark
    name, letter = binding.key, len(last) == 1 and last.isalnum()
    if letter and modifiers == ["shift"]:
        raise ValueError(f"unknown key {text}: write {last.upper()}")
    known = name in _NAMES or (len(name) == 1 and name.isprintable() and (not modifiers or name == name.lower()))
    if not known or not _MODIFIERS.issuperset(modifiers) or (letter and "shift" in modifiers):
        near = f": did you mean {text.lower()}?" if modifiers and text != text.lower() else meant(text, _NAMES)
        raise ValueError(f"unknown key {text}{near}")
    return "+".join([*sorted(set(modifiers)), name])


def _read(path: Path, problems: list[str]) -> tuple[str, dict[str, Any]]:
    """Return the preset that a key file names ("" for none), and its entries by id."""
    raw, problem = read_own(path)
    if problem and path.exists():
        problems.append(f"{path.name}: {problem}")
    for key in raw.keys() - {"preset", "keys"}:
        near = meant(key, ("preset", "keys"))
        problems.append(f"{path.name}: {key} is not a key of this file{near}: bindings go under [keys]")
    preset, keys = raw.get("preset", ""), raw.get("keys", {})
    presets = sorted(file.stem for file in PRESETS.glob("*.toml"))
    if preset and preset not in presets:
        problems.append(f"{path.name}: preset = {preset!r}: write one of {', '.join(presets)}")
        preset = ""
    if not isinstance(keys, dict):
        problems.append(f"{path.name}: keys = {keys!r}: write it as a table, [keys]")
        keys = {}
    return preset, dict(flat(keys))


def read_own(path: Path) -> tuple[dict[str, Any], str]:
    """Read a TOML file that the user has written; return its content, and why it cannot be read."""
    try:
        return read_toml(path), ""
    except (OSError, ValueError) as failure:
        return {}, f"cannot be read: {getattr(failure, 'strerror', None) or failure}"


def meant(name: str, known: Iterable[str]) -> str:
    """Return what a misspelt `name` may mean, to add to its problem; empty if nothing known is near."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f": did you mean {close[0]}?" if close else ""


_MODIFIERS = {"alt", "ctrl", "hyper", "meta", "shift", "super"}
# Names of keys that are not characters; "return" is for old programs only: terminals send enter.
_NAMES = {name for key in Keys if len(name := key.value.rpartition("+")[2]) > 1 and name.isalnum()} - {"return"}
_NAMES |= {
    binding.key for binding in Binding.make_bindings(Binding(sign, "") for sign in string.punctuation if sign != ",")
}
_NAMES.add("comma")
