"""List of the configuration's problems and warnings, below the form."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content
from textual.message import Message
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from workbench.config.document import Problem
from workbench.text import visible


class ProblemsList(OptionList):
    """List of problems, which lead to their settings, and warnings; hidden while it is empty."""

    class Chosen(Message):
        """Request to show the setting or line of `problem`."""

        def __init__(self, problem: Problem) -> None:
            super().__init__()
            self.problem = problem

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id, compact=True)
        self._problems: Sequence[Problem] = ()
        self._warnings: Sequence[str] = ()
        self._gone_to = -1  # index of the problem shown last
        self.display = False

    def allow_focus(self) -> bool:
        return bool(self.display)

    def show(self, problems: Sequence[Problem], warnings: Sequence[str]) -> None:
        """Show problems and warnings, the problems first."""
        if (problems, warnings) == (self._problems, self._warnings):
            return
        self._problems, self._warnings = problems, warnings
        self.clear_options()
        self.add_options(Content.assemble(("✖ ", "$text-error"), visible(problem.message)) for problem in problems)
        self.add_options(
            Option(Content.assemble(("⚠ ", "$text-warning"), visible(warning)), disabled=True) for warning in warnings
        )
        self.display = bool(problems or warnings)
        self._gone_to = min(self._gone_to, len(problems) - 1)

    def next(self, by: int) -> None:
        """Go to the next problem (by 1) or the previous one (-1), with wrap-around."""
        if self._problems:
            self._gone_to = (self._gone_to + by) % len(self._problems)
            self.highlighted = self._gone_to
            self.post_message(self.Chosen(self._problems[self._gone_to]))

    def point_at(self, key: str) -> None:
        """Highlight the first problem of a setting."""
        for place, problem in enumerate(self._problems):
            if problem.key.partition("[")[0] == key:
                self.highlighted = place
                return

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.post_message(self.Chosen(self._problems[event.option_index]))
