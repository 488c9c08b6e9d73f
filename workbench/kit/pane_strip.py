"""The top of the main screen: a strip with the names of all panes, and the state of the run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rich.cells import cell_len
from textual.content import Content
from textual.reactive import reactive
from textual.style import Style

from trainer.runs.listing import PPO
from workbench.kit.footer import Links
from workbench.kit.keys import keys_of
from workbench.kit.pane import Badge, Pane
from workbench.run.sentences import SIGNS, errors, level_sign, state_words, title, urgent_first
from workbench.run.view import STARTING, RunView
from workbench.text import duration, gigabytes, packed, rate, visible

_GAP = "   "
_BAR = 16  # columns of the phase's progress
_PHASE, _STATE, _ETA = 8, 12, 6  # of its name, of the state's, and of the time left: what follows keeps its place
_SIGNS = {"loading": "◌", "paused": "‖", "done": "✓", "stopped": "■", "failed": "✖"}
_UNDER_WAY = "●"  # else, also of a state that only a newer version knows
_STATE_STYLES = {"paused": "$text-warning", "failed": "$text-error", "done": "$text-success", "stopped": "$text-muted"}

NO_RUN = [Content.styled("no run yet", "$text-muted")]
"""The pieces while there is no run."""


def status_pieces(view: RunView, *, note: str = "") -> list[Content]:
    """Return the pieces of the line, most important first; those of a run that trains keep their widths."""
    if view.started is None and view.state != "failed" and not view.is_starting and not note and not view.phase:
        return NO_RUN
    name = visible(view.started.name) if view.started else "new run"
    wrong = errors(view.active_alarms)
    sign, style = _SIGNS.get(view.state, _UNDER_WAY), _STATE_STYLES.get(view.state, "$policy")
    words = note or state_words(view.state)
    if note == STARTING:
        sign, style = _SIGNS["loading"], "$text-muted"
    if note == "interrupted":
        sign, style = "!", "$text-warning"
    if wrong and view.state == "done":
        sign, style = SIGNS["warning"], "$text-warning"
        words += "" if view.alarms else f", {visible(wrong)}"
    is_left = view.ended is not None or note == "interrupted"
    moves = not is_left and view.started is not None and view.state != "paused"
    state = f"{sign} {words}".ljust(_STATE if moves else 0)
    pieces = [Content.assemble((name, "bold"), "  ", Content.styled(state, style))]
    if view.alarms:
        worst = urgent_first(view.alarms)[0]
        more = f" and {len(view.alarms) - 1} more" if len(view.alarms) > 1 else ""
        style = "$text-error" if worst.level == "error" else "$text-warning"
        pieces.append(Content.styled(f"{level_sign(worst.level)} {visible(title(worst.code))}{more}", style))
    if view.total:
        pieces.append(Content(f"iteration {view.iteration:>{len(str(view.total)) if moves else 0}}/{view.total}"))
    if view.phase is not None and not view.is_starting:
        done, total = view.phase.done, view.phase.total
        full = round(_BAR * min(max(done / total, 0), 1)) if total > 0 else 0
        bar = ("━" * full, "$policy"), ("─" * (_BAR - full), "$text-disabled")
        pieces.append(Content.assemble(f"{visible(view.phase.phase):{_PHASE}} ", *bar))
    elif moves and view.started is not None and view.started.run_kind == PPO:  # others have no phases
        pieces.append(Content(" " * (_PHASE + 1 + _BAR)))
    if (last := view.last) is not None:
        if not is_left:
            pieces.append(Content(f"ETA {duration(view.seconds_left()):<{_ETA if moves else 0}}"))
        pieces.append(Content(f"{rate(last.tokens_per_second):>{4 if moves else 0}} tok/s"))
        pieces.append(Content(gigabytes(last.memory_bytes)))
    return pieces


def fitted(pieces: Sequence[Content], width: int) -> Content:
    """Join as many of the first pieces as fit into `width` columns."""
    shown = packed(pieces, width, len(_GAP), lambda piece: piece.cell_length)[0]
    return Content(_GAP).join(shown).truncate(max(width, 1), ellipsis=True)


SHARED = 160
"""Columns from which the strip and the state of a run share one line: both then show all that they have."""

_IDLE = 14  # columns that stay free for the state while there is no run
_STYLES = {"": "bold", "warning": "$text-warning", "error": "$text-error"}


class Tab(NamedTuple):
    """A pane in the strip."""

    id: str
    title: str
    key: str
    badge: Badge

    def text(self, most: int, *, keys: bool, current: bool = False) -> Content:
        """Return the tab with at most `most` columns for its title: its first word if that fits, else its beginning."""
        name = self.title if cell_len(self.title) <= most else self.title.split()[0][:most]
        badge = f"·{self.badge.text}" if self.badge.text else ""
        key = f" {self.key}" if keys and self.key else ""
        mark = "▸" if current else " "
        text = Content.assemble(mark, name, (badge, _STYLES[self.badge.level]), (key, "$text-muted"), " ")
        return Content.styled(text.plain, "bold reverse $text-primary") if current else text


def strip_of(tabs: Sequence[Tab], width: int, current: str = "") -> list[Content]:
    """Return the tabs so that all fit `width`: the keys go first, then the ends of the longest names.

    At least one letter of each stays.
    """
    longest = max((cell_len(tab.title) for tab in tabs), default=1)
    for most, keys in [(longest, True), *((most, False) for most in range(longest, 0, -1))]:
        texts = [tab.text(most, keys=keys, current=tab.id == current) for tab in tabs]
        if sum(text.cell_length for text in texts) <= width:
            break
    return texts


class TopLines(Links):
    """The strip, with a badge where something wants attention, and the state: in one line where both fit, else in two.

    A click on a name goes to its pane. The panes are those of the screen, in their order.
    """

    current: reactive[str] = reactive("")
    ALLOW_SELECT = True

    def __init__(self) -> None:
        super().__init__(markup=False)
        self._pieces: Sequence[Content] = NO_RUN
        self._panes: list[tuple[Pane, str]] = []  # with their keys
        self.places: list[tuple[Tab, int, int]] = []  # the tabs, with the columns where each begins and ends

    def follow(self, panes: Iterable[Pane]) -> None:
        """Show these panes and their badges, from now on."""
        keys = keys_of(self.screen)
        self._panes = [(pane, keys.get(f"pane.{pane.id}", "")) for pane in panes]
        for pane, _ in self._panes:
            self.watch(pane, "badge", self._show, init=False)
        self._show()

    def show_run(self, view: RunView, *, note: str = "") -> None:
        """Show the state of the run. note: shown instead of the state's name, such as `stopping`."""
        pieces = status_pieces(view, note=note)
        if pieces != self._pieces:
            self._pieces = pieces
            self._show()

    def _show(self) -> None:
        width = self.app.size.width
        is_idle = self._pieces == NO_RUN
        is_shared = is_idle or width >= SHARED
        beside = 0 if not is_shared else _IDLE if is_idle else width // 2
        tabs = [Tab(pane.id or "", pane.TITLE, key, pane.badge) for pane, key in self._panes]
        self.places, strip = [], Content()
        for tab, text in zip(tabs, strip_of(tabs, width - beside, self.current), strict=True):
            self.places.append((tab, strip.cell_length, strip.cell_length + text.cell_length))
            meta = {"tooltip": f"{tab.title} {tab.key}", "@click": f"screen.show_pane({tab.id!r})"}
            strip += text.stylize(Style.from_meta(meta))
        if is_shared:
            state = fitted(self._pieces, width - strip.cell_length - 2)
            shown = strip + state.pad_left(max(width - strip.cell_length - state.cell_length - 1, 1))
        else:
            shown = Content.assemble(strip, "\n ", fitted(self._pieces, width - 2))
        self.update(shown, layout=self.size.height != 2 - is_shared)

    on_resize = watch_current = _show
