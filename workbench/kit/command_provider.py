"""Commands of the palette: all actions of the screen, the application and each pane.

What is called like the query comes first, then what begins with it, then what contains all typed words, each ordered
by kind. The kind that the query begins with comes before all others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size
from textual import actions
from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.content import Content
from textual.dom import DOMNode
from textual.screen import Screen

from workbench.kit.keys import remapped
from workbench.kit.pane import Pane
from workbench.text import fit_start, has_words

KINDS = ("action", "run", "setting", "preset", "sample", "docs")
_STEP = 1000.0  # between two kinds; Textual's own scores, and the places within a kind, are far below it
_BEFORE = 30  # characters shown before the word that was found in a text
MARGIN = 6  # columns beside a line of the palette, with its scroll bar


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
            yield DiscoveryHit(self._line(command, Content(command.title)), command.run, command.title)

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        found = (one for one in commands(self.screen) if has_words(f"{one.title} {one.help}", query))
        for place, command in enumerate(found):
            score = rank("action", command.name, query) if has_words(command.title, query) else 0
            line = self._line(command, matcher.highlight(command.title))
            yield Hit(score - place, line, command.run, command.title)

    def _line(self, command: Command, title: Content) -> Content:
        """Return the action, what it does as far as there is room, and its key at the right end."""
        room = max(self.app.size.width - MARGIN - title.cell_length - cell_len(command.key) - 4, 1)
        about = set_cell_size(fit_start(command.help, room), room)
        return Content.assemble(title, "  ", (about, "not bold dim"), "  ", (command.key, "not bold"))


class PaletteEntry(NamedTuple):
    """A thing that a finder found. name and detail: any text; control characters are shown as symbols."""

    name: str
    detail: str
    open: Callable[[], object]
    pane: str = ""  # that is shown first


def rank(kind: str, name: str, query: str) -> float:
    """Return the score of what contains the words of `query`.

    First the kind that the query begins with; then what is called like it, what begins with it, and the others, by
    kind.
    """
    first, wanted = query.casefold().partition(" ")[0], query.casefold().strip()
    kinds = len(KINDS)
    if first == kind:
        return _STEP * 4 * kinds
    called = 2 if name.casefold() == wanted else name.casefold().startswith(wanted)
    return _STEP * (called * kinds + kinds - KINDS.index(kind))


def around(text: str, words: str) -> str:
    """Return `text` from a little before `words`, or before the first of them if they are apart."""
    text_folded, words = text.casefold(), words.casefold()
    start = text_folded.find(words)
    start = text_folded.find((words.split() or [""])[0]) if start < 0 else start
    return f"…{text[start - _BEFORE :]}" if start > _BEFORE else text
