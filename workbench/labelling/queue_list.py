"""List in which the user chooses the queues of a labelling session."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.message import Message
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from trainer.preferences.items import Queue
from workbench.labelling.choices import QUEUES

_NAME = max(map(len, QUEUES)) + 1  # columns


class QueueList(OptionList):
    """List of queues that the user includes or leaves out; the screen handles enter.

    lacking: what each queue still needs; empty if it can be used.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space", "select", "take in", id="label-start.toggle", tooltip="Ask this queue too, or leave it out"),
        Binding("enter", "screen.begin", "begin", show=False, id="label-start.begin-here", tooltip="Begin"),
    ]

    class Changed(Message):
        """The choice of queues has changed."""

    def __init__(self, chosen: Collection[Queue], lacking: Mapping[Queue, str]) -> None:
        super().__init__(markup=False, compact=True, id="queues")
        self._lacking = lacking
        self.chosen = {queue for queue in chosen if not lacking[queue]}
        self.add_options(
            Option(self._label(queue), id=queue, disabled=bool(problem)) for queue, problem in lacking.items()
        )

    def on_mount(self) -> None:
        self.action_first()

    def choose(self, queue: Queue, chosen: bool) -> None:
        """Include `queue`, or leave it out."""
        (self.chosen.add if chosen else self.chosen.discard)(queue)
        self.replace_option_prompt(queue, self._label(queue))
        self.post_message(self.Changed())

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        queue = next(queue for queue in QUEUES if queue == event.option_id)
        self.choose(queue, queue not in self.chosen)

    def _label(self, queue: Queue) -> Content:
        sign = "✔" if queue in self.chosen else "·"
        return Content.assemble(
            (f"{sign} {queue:{_NAME}}", "bold"), (self._lacking[queue] or QUEUES[queue], "$text-muted")
        )
