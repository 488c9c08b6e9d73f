"""Commands of the palette: all actions of the screen, the application and each pane.

What is called like the query comes first, then what begins with it, then what contains all typed words, each ordered
by kind; an action whose description alone has the words is after samples. The kind that the query begins with comes
before all others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

from rich.cells import cell_len
from textual import actions
from textual.app import App
from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.content import Content
from textual.dom import DOMNode
from textual.screen import Screen

from workbench.kit.keys import remapped
from workbench.kit.pane import Pane
from workbench.text import fit_start, has_words, padded

KINDS = ("action", "run", "setting", "preset", "sample", "docs")
_STEP = 1000.0  # between two kinds; Textual's own scores, and the places within a kind, are far below it
_BEFORE = 30  # characters shown before the word that was found in a text
_WIDEST = 112  # columns of the palette, as in its style
_MARGIN = 6  # columns beside a line of the palette, with its scroll bar
_NAME = 26  # columns of a name at least


class Command(NamedTuple):
    """One line of the palette."""

    title: str  # begins with the pane that has the action
    name: str  # of the action alone
    help: str
    key: str  # or keys, as the footer spells them; empty without any
    run: Callable[[], object]


def commands(screen: Screen[object]) -> Iterator[Command]:
    """Yield the actions that are allowed now: those of `screen` and the application, then those of each pane."""
    nodes: list[tuple[str, DOMNode]] = [("", screen), ("", screen.app)]
    nodes += [(f"{pane.TITLE}: ", pane) for pane in screen.query(Pane)]
    for prefix, node in nodes:
        found = dict[str, Command]()
        for binding in remapped(node):
            assert binding.id
            _, name, parameters = actions.parse(binding.action)
            key = screen.app.get_key_display(binding)
            if binding.id in found:
                found[binding.id] = found[binding.id]._replace(key=f"{found[binding.id].key} {key}")
            elif node.check_action(name, parameters) is True:  # as far as it knows without a key press
                title, run = f"{prefix}{binding.description}", partial(_run, node, binding.action)
                found[binding.id] = Command(title, binding.description, binding.tooltip or "", key, run)
        yield from found.values()
        if node is screen.app:
            for title, about, callback, _ in screen.app.get_system_commands(screen):
                yield Command(title, title, about, "", callback)


async def _run(node: DOMNode, action: str) -> None:
    """Run `action` of `node`; show a pane first."""
    if isinstance(node, Pane):
        await node.app.run_action(f"screen.show_pane({node.id!r})")
    await node.app.run_action(action, node)


class WorkbenchCommands(Provider):
    """The provider that finds actions. An action of a pane shows that pane first."""

    async def discover(self) -> Hits:
        for command in commands(self.screen):
            line = palette_line(self.app, Content(command.title), command.help, command.key)
            yield DiscoveryHit(line, command.run, command.title)

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        found = (one for one in commands(self.screen) if has_words(f"{one.title} {one.help}", query))
        for place, command in enumerate(found):
            by_title = has_words(command.title, query)
            score = rank("action", command.name, query) if by_title else rank("sample", "", query)
            title = matcher.highlight(command.title) if by_title else Content(command.title)
            line = palette_line(self.app, title, command.help, command.key)
            yield Hit(score - place, line, command.run, command.title)


def palette_line(app: App[Any], name: Content, detail: str, end: str) -> Content:
    """Return a name, its detail in a column as far as there is room, and `end`, a key or a kind, at the right."""
    room = min(app.size.width, _WIDEST) - _MARGIN - cell_len(end) - 2
    widest = max(room - cell_len(detail) - 2, _NAME)  # a long name leaves room for a short detail
    name = name.truncate(min(max(name.cell_length, _NAME), widest), ellipsis=True, pad=True)
    room = max(room - name.cell_length - 2, 0)
    about = padded(fit_start(detail, room), room)
    style = "dim" if end in KINDS else "$text-accent"
    return Content.assemble(name, "  ", (about, "not bold dim"), "  ", (end, f"not bold {style}"))


class PaletteEntry(NamedTuple):
    """A thing that a finder found. name and detail: any text; control characters are shown as symbols."""

    name: str
    detail: str
    open: Callable[[], object]
    pane: str = ""  # that is shown first


def rank(kind: str, name: str, query: str) -> float:
    """Return the score of what contains the words of `query`.

    First the kind that the query begins with; then what is called like it, what begins with it, and the others, by
    kind. A setting is also called like the last part of its key.
    """
    wanted, kinds = query.casefold().strip(), len(KINDS)
    first, _, rest = wanted.partition(" ")
    if first == kind:
        wanted = rest.strip()
    names = (name.casefold(), name.casefold().rpartition(".")[2])
    called = 2 if wanted in names else any(one.startswith(wanted) for one in names)
    return _STEP * ((4 * (first == kind) + called) * kinds + kinds - KINDS.index(kind))


def around(text: str, words: str) -> str:
    """Return `text` from some words before `words`, or before the first of them if they are apart."""
    text_folded, words = text.casefold(), words.casefold()
    start = text_folded.find(words)
    start = text_folded.find((words.split() or [""])[0]) if start < 0 else start
    if start <= _BEFORE:
        return text
    before = text[start - _BEFORE : start]
    return f"…{before.partition(' ')[2] or before}{text[start:]}"
