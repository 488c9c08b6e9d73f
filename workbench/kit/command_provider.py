"""Commands of the palette: all actions of the screen, the application and each pane; the base of those that find more.

What contains all typed words comes first, ordered by kind; the kind that the query begins with before the others.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import ClassVar, NamedTuple

from textual import actions
from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.content import Content
from textual.dom import DOMNode
from textual.screen import Screen

from workbench.kit.pane import Pane
from workbench.text import has_words, visible

KINDS = ("action", "run", "setting", "preset", "sample", "docs")
_STEP = 1000.0  # between two kinds; Textual's own scores, and the places within a kind, are far below it
_WIDEST = 100  # characters of a name or a detail


class Command(NamedTuple):
    """One line of the palette."""

    title: str
    help: str
    node: DOMNode  # the screen, application or pane that has the action
    action: str


def commands(screen: Screen[object]) -> Iterator[Command]:
    """Yield the actions that are allowed now: those of `screen` and the application, then those of each pane."""
    nodes: list[tuple[str, DOMNode]] = [("", screen), ("", screen.app)]
    nodes += [(f"{pane.TITLE}: ", pane) for pane in screen.query(Pane)]
    for prefix, node in nodes:
        for _, binding in node._bindings:  # Textual has no public list of a node's bindings
            if not (binding.id and binding.description):  # Textual's own have no id
                continue
            _, name, parameters = actions.parse(binding.action)
            if node.check_action(name, parameters) is True:  # as far as it knows without a key press
                title = f"{prefix}{binding.description}"
                key = screen.app.get_key_display(binding)
                yield Command(title, f"{binding.tooltip or binding.description}  ({key})", node, binding.action)


class WorkbenchCommands(Provider):
    """The provider that finds actions. An action of a pane shows that pane first."""

    async def discover(self) -> Hits:
        for command in commands(self.screen):
            yield DiscoveryHit(command.title, partial(self._run, command), help=command.help)

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for command in commands(self.screen):
            if (score := matcher.match(f"{command.title} {command.help}")) > 0:
                score += rank("action", query) if has_words(command.title, query) else 0
                yield Hit(score, matcher.highlight(command.title), partial(self._run, command), help=command.help)

    async def _run(self, command: Command) -> None:
        if isinstance(command.node, Pane):
            await self.app.run_action(f"screen.show_pane({command.node.id!r})")
        await self.app.run_action(command.action, command.node)


class Found(NamedTuple):
    """A thing that a `Finder` found. name and detail: any text; control characters are shown as symbols."""

    name: str
    detail: str
    open: Callable[[], object]


class Finder(Provider):
    """Provider of things of one kind, such as runs. Their lines begin with the kind."""

    KIND: ClassVar[str]  # of KINDS
    MOST: ClassVar[int] = 20  # lines

    @abstractmethod
    async def find(self, words: str) -> Sequence[Found]:
        """Return what contains all of `words`, the best first; with none of them, everything. Reads in a thread."""

    async def search(self, query: str) -> Hits:
        first, _, rest = query.partition(" ")
        words = rest if first.casefold() == self.KIND else query
        for place, found in enumerate((await self.find(words))[: self.MOST]):
            name, detail = (_cut(visible(text)) for text in (found.name, found.detail))
            line = Content.assemble((f"{self.KIND} ", "not bold"), name, (f"\n{detail}", "not bold dim"))
            yield Hit(rank(self.KIND, query) - place, line, found.open, text=f"{self.KIND} {name}")


def rank(kind: str, query: str) -> float:
    """Return the score of what contains the words of `query`: by kind, first the one that the query begins with."""
    first = query.partition(" ")[0].casefold()
    return _STEP * (len(KINDS) + 1 if first == kind else len(KINDS) - KINDS.index(kind))


def _cut(text: str) -> str:
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 1]}…"
