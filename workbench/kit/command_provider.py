"""Commands of the palette: all actions of the screen, the application and each pane."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from textual import actions
from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.dom import DOMNode
from textual.screen import Screen

from workbench.kit.pane import Pane


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
                yield Hit(score, matcher.highlight(command.title), partial(self._run, command), help=command.help)

    async def _run(self, command: Command) -> None:
        if isinstance(command.node, Pane):
            await self.app.run_action(f"screen.show_pane({command.node.id!r})")
        await self.app.run_action(command.action, command.node)
