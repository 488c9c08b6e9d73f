"""The line about the run: its name, state, alarms, phase and its progress, iteration, speed, memory, time left."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content
from textual.widget import Widget

from trainer.events import Alarm
from workbench.columns import packed
from workbench.numbers import duration, gigabytes
from workbench.run.sentences import SIGNS, errors, level_sign, title, urgent_first
from workbench.run.view import STARTING, RunView
from workbench.text import visible

_GAP = "   "
_BAR = 16  # columns of the phase's progress
_SIGNS = {
    "loading": "◌",
    "training": "●",
    "evaluating": "●",
    "saving": "●",
    "paused": "‖",
    "done": "✓",
    "stopped": "■",
    "failed": "✖",
}
_UNKNOWN = "●"  # sign of a state that only a newer version knows
_STYLES = {"paused": "$text-warning", "failed": "$text-error", "done": "$text-success", "stopped": "$text-muted"}

NO_RUN = [Content.styled("no run yet", "$text-muted")]
"""The pieces while there is no run."""


class StatusLine(Widget):
    """The line that always shows which run this is and what it is doing."""

    _pieces: Sequence[Content] = (Content.assemble(("ppo-workbench", "bold")),)

    def show_run(self, view: RunView, *, note: str = "") -> None:
        """Show the state of the run. note: shown instead of the state's name, such as `stopping`."""
        pieces = status_pieces(view, note=note)
        if pieces != self._pieces:
            self._pieces = pieces
            self.refresh()

    @property
    def is_idle(self) -> bool:
        """True while there is no run to show."""
        return self._pieces == NO_RUN

    def render(self) -> Content:
        """Return as many pieces as fit, always including the first."""
        return fitted(self._pieces, self.size.width - 2)


def status_pieces(view: RunView, *, note: str = "") -> list[Content]:
    """Return the pieces of the line, most important first."""
    if view.started is None and view.state != "failed" and not view.is_starting and not note and not view.phase:
        return NO_RUN
    name = visible(view.started.name) if view.started else "new run"
    wrong = errors(view.active_alarms)
    sign, style = _SIGNS.get(view.state, _UNKNOWN), _STYLES.get(view.state, "$text-accent")
    words = note or view.state_text
    if note == STARTING:
        sign, style = _SIGNS["loading"], "$text-accent"
    if wrong and view.state == "done":
        sign, style = SIGNS["warning"], "$text-warning"
        words += "" if view.alarms else f", {visible(wrong)}"
    pieces = [Content.assemble((name, "bold"), "  ", Content.styled(f"{sign} {words}", style))]
    if view.alarms:
        pieces.append(_alarms(view.alarms))
    if view.total:
        pieces.append(Content(f"iteration {view.iteration}/{view.total}"))
    if view.phase is not None and not view.is_starting:
        done, total = view.phase.done, view.phase.total
        full = round(_BAR * min(max(done / total, 0), 1)) if total > 0 else 0
        bar = ("━" * full, "$accent"), ("─" * (_BAR - full), "$text-disabled")
        pieces.append(Content.assemble(f"{visible(view.phase.phase)} ", *bar))
    if (last := view.last) is not None:
        if view.ended is None:
            pieces.append(Content(f"ETA {duration(view.seconds_left())}"))
        pieces.append(Content(f"{last.tokens_per_second:.0f} tok/s"))
        pieces.append(Content(gigabytes(last.memory_bytes)))
    return pieces


def fitted(pieces: Sequence[Content], width: int) -> Content:
    """Join as many of the first pieces as fit into `width` columns."""
    shown = packed(pieces, width, len(_GAP), lambda piece: piece.cell_length)[0]
    return Content(_GAP).join(shown).truncate(max(width, 1), ellipsis=True)


def _alarms(alarms: Sequence[Alarm]) -> Content:
    """Return the title of the most severe alarm, and how many more there are."""
    worst = urgent_first(alarms)[0]
    words = visible(title(worst.code)) + (f" and {len(alarms) - 1} more" if len(alarms) > 1 else "")
    style = "$text-error" if worst.level == "error" else "$text-warning"
    return Content.styled(f"{level_sign(worst.level)} {words}", style)
