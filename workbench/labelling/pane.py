"""Label pane: the user decides with one key which of two completions is better."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Literal, TypeVar

from rich.cells import cell_len
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.events import Resize
from textual.style import Style
from textual.widgets import Static

from trainer.errors import BusyError, TrainerError, one_line
from trainer.preferences.records import FLAGGED, Judgement, SessionItem, Verdict
from workbench.kit.footer import Links
from workbench.kit.keys import bind, keys_of, remapped
from workbench.kit.pane import Badge, Pane
from workbench.labelling import texts
from workbench.labelling.item_view import LabelView
from workbench.labelling.session_worker import SessionState, SessionWorker
from workbench.labelling.texts import MOST, Draft, ItemTexts, Keys
from workbench.text import visible

T = TypeVar("T")

LabelRequest = Literal["start", "leave", "train", "use", "import", "export"]
"""Request by a key of the pane that goes beyond the open session."""

_TALL = 30  # lines of the pane from which the keys that decide are large
_LOOK = 0.25  # seconds between looks at what the session's worker has changed
_SLOW = 0.3  # seconds until the pane reports that the disk is slow
_MARGINS = 2  # columns beside them
_CAP, _SMALL_CAP = "bold reverse $text-primary", "bold $text-primary on $panel"  # of the keys of sides and others
_SIDES = ["first"], ["second"]
_UNSEEN = 0.4  # seconds that keys are ignored after a slow or failed save: they were typed for another item
_HELP = """\
Which completion is better? A key decides, saves the label at once, and shows the next item. Who wrote the \
completions, their scores and their lengths stay hidden until you have decided; a line then shows them, unless \
{label.blind} has hidden it.

Both sides scroll together. Three or more completions are ranked: type their digits in order of preference, with \
{label.tie} between equally good ones; the last digit decides."""


# Key, action, description, name and tooltip of each binding. Those that decide are in the pane, others in the footer.
_DECIDING = (
    ("1,left", "better(1)", "first", "first", "The first (left or above) is better"),
    ("2,right", "better(2)", "second", "second", "The second (right or below) is better"),
    ("equals_sign,e", "tie", "tie", "tie", "Tie; in a ranking, ties the next two"),
    ("0", "judge('both_bad')", "both bad", "both-bad", "None of them is acceptable"),
    ("space", "judge('skip')", "skip", "skip", "Skip this item without a choice"),
)
_SHOWN = (
    ("enter", "request('start')", "label", "start", "Begin or resume a session"),
    ("enter", "keep", "keep label", "keep", "Keep the label, and return to the next item"),
    ("backspace", "retype(-1)", "delete", "take-back", "Delete the last digit of the ranking"),
    ("r", "retype(0)", "rank again", "rank", "Type the ranking again from its start"),
    ("u", "undo", "undo", "undo", "Undo the last label; again, the one before"),
    ("f", "flag", "flag", "flag", "Flag the item for a second look"),
    ("a", "note", "note", "note", "Write a note, saved with the label"),
    ("d", "switch('diff')", "diff", "diff", "Mark the words that differ"),
    ("g", "guidelines", "guidelines", "guidelines", "Show the session's guidelines"),
)
_STRONGLY = ("less_than_sign,exclamation_mark,shift+left", "greater_than_sign,at,shift+right")
_MORE = (
    (_STRONGLY[0], "better(1, 3)", "first, strongly", "first-strongly", "The first is strongly better"),
    (_STRONGLY[1], "better(2, 3)", "second, strongly", "second-strongly", "The second is strongly better"),
    *((f"{n}", f"better({n})", f"number {n}", f"number-{n}", f"Rank number {n} next") for n in range(3, MOST + 1)),
    ("v", "switch('markdown')", "Markdown", "markdown", "Switch between Markdown and plain text"),
    ("y", "copy", "copy", "copy", "Copy prompt and completions, without what is hidden"),
    ("b", "switch('facts_shown')", "hide facts", "blind", "Hide authors and scores after the choice too, or show them"),
    ("h", "history", "history", "history", "List your labels, to change one"),
    ("p", "switch('all_figures')", "figures", "progress", "Show all figures of the session, or one line"),
    ("l", "request('leave')", "leave", "leave", "Leave the session; it resumes at the same item"),
    ("t", "request('train')", "train", "train", "Train a reward model on the labels"),
    ("T", "request('use')", "use model", "use", "Use the newest reward model as the run's reward"),
    ("i", "request('import')", "import", "import", "Import preferences from a file"),
    ("x", "request('export')", "export", "export", "Export preferences to a file"),
)


class LabelPane(Pane):
    """Pane that shows one item of a labelling session at a time, with a key for each decision.

    request: does what a key asks for beyond the session; returns at once. facts_shown: whether authors, scores and
    lengths of an item are shown once it is judged.
    """

    TITLE = "Label"
    patience = _SLOW  # seconds that a key waits for the disk before the keys after it are handled
    flash = 0.5  # seconds for which the choice is marked on its side
    HELP = _HELP
    DOCS = "labelling"
    BINDINGS: ClassVar[list[BindingType]] = [
        bind(key, action, description, f"label.{name}", tooltip, show=group is _SHOWN)
        for group in (_DECIDING, _SHOWN, _MORE)
        for key, action, description, name, tooltip in group
    ]

    def __init__(
        self,
        request: Callable[[LabelRequest], None],
        *,
        id: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(id=id)
        self.worker: SessionWorker | None = None  # of the open session
        self.state: SessionState | None = None
        self.item: SessionItem | None = None  # the item to judge: the next one, or a labelled one to change
        self.texts = ItemTexts((), ())  # of the item
        self.draft = Draft()  # of the item
        self.problem = ""  # why the last judgement is not on disk
        self.facts_shown = True
        self.all_figures = False  # of the session, also where only one line is usual
        self.busy = False  # keys that change a label are ignored: the last change is not on disk yet
        self._request = request
        self._clock = clock
        self._since = 0.0  # when the item came into view
        self._drafts: dict[tuple[int, ...], Draft] = {}  # of items not shown now, by session, position and label
        self._place: tuple[int, ...] = ()  # of the item: session, position and label
        self._left_out: set[str] = set()  # lines that were shown
        self._keys_for: tuple[object, ...] = ()
        self._keys: Keys = {}

    def compose(self) -> ComposeResult:
        yield Static(id="label-progress", markup=False)
        yield LabelView(id="label-view")
        yield Static(id="label-last", markup=False)
        yield Static(id="label-problem", markup=False)
        yield Static(id="label-hint", markup=False)
        yield Links(id="label-keys", markup=False)

    def on_mount(self) -> None:
        self.on_show()
        self._open(None)
        self.set_interval(_LOOK, self._look)

    def on_show(self) -> None:
        self._keys = {name.removeprefix("label."): key for name, key in keys_of(self).items()}  # as the user set them
        self._since = self._clock()

    def on_resize(self, event: Resize) -> None:
        self._show_keys()
        self.call_after_refresh(self._show_lines)  # once the lines have their new size

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        count = len(self.texts.completions)
        match action:
            case "request" if parameters[0] == "start":
                return self.worker is None
            case "request" if parameters[0] == "leave":
                return self.worker is not None
            case "keep":
                return self.item is not None and self.item.label is not None
            case "better" if parameters and parameters[0] not in (1, 2):
                return count >= int(str(parameters[0]))
            case "retype":
                return count > 2
            case "switch" if parameters[0] == "diff":
                return count == 2
            case "switch" if parameters[0] == "facts_shown":
                return True
            case "switch" if parameters[0] == "all_figures":
                return self.worker is not None
            case "flag" | "note" | "switch" | "copy":
                return self.item is not None
            case "better" | "tie" | "judge" | "undo" | "guidelines" | "history":
                return self.worker is not None  # also without an item: otherwise space would pause the run
        return True

    # The session, its items and what is drawn of them.

    def begin(self, worker: SessionWorker, state: SessionState) -> None:
        """Show a session at its current item."""
        self.worker = worker
        self._take(state)

    def end(self) -> None:
        """Show no session any more."""
        self.workers.cancel_group(self, "label")
        self.worker, self.state, self.busy = None, None, False
        self._open(None)

    def _take(self, state: SessionState) -> None:
        """Show the session's current item, and once what was left out."""
        self.state = state
        for line in [line for line in state.supply.left_out if line not in self._left_out]:
            self._left_out.add(line)
            self.notify(visible(line), severity="warning", markup=False)
        self._open(state.current)

    def _open(self, item: SessionItem | None) -> None:
        """Show `item`, with what the user had typed of it before another one was shown; None: say why there is none."""
        if self.item is not None:
            self._drafts[self._place] = self.draft
        self.item, self.problem, self.texts, self.draft = item, "", ItemTexts((), ()), Draft()
        view = self.query_one(LabelView)
        if item is not None:
            session = self.state.record.id if self.state is not None else 0
            self._place = session, item.position, item.label.id if item.label is not None else 0
            self.texts, self.draft = texts.texts_of(item.item), self._drafts.pop(self._place, _draft_of(item))
            view.show(self.texts)
        else:
            meanings = {str(one.id).removeprefix("label."): one.tooltip for one in Binding.make_bindings(self.BINDINGS)}
            view.show(None, texts.instead_of_item(self.state, self._keys, meanings))
        self._since = self._clock()
        self._show_lines()
        keys = self.worker is None, item is None, item and item.label is None, len(self.texts.completions)
        if keys != self._keys_for:  # what `check_action` asks; mostly the next item has the keys of the last
            self._keys_for = keys
            self._show_keys()
            self.refresh_bindings()

    def _show_keys(self) -> None:
        """Show the keys that decide as caps, large ones in a tall pane. A click on one presses it."""
        bar, count, bindings = self.query_one("#label-keys", Links), len(self.texts.completions), remapped(self)
        bar.display = 1 < count <= MOST
        if not bar.display:
            return
        numbers = ["first", "second", *(f"number-{number}" for number in range(3, count + 1))]
        groups = [(numbers, "best first")] if count > 2 else [(["first"], "first"), (["second"], "second")]
        groups += [(["tie"], "tie"), (["both-bad"], "both bad" if count == 2 else "all bad"), (["skip"], "skip")]
        groups += [(["first-strongly", "second-strongly"], "strongly")] if count == 2 else []
        tall, used = self.size.height >= _TALL, 0
        gap = 4 if tall else 2
        lines, middle = [Content()] * (3 if tall else 1), int(tall)
        for names, does in groups:
            keys = [next(binding for binding in bindings if binding.id == f"label.{name}") for name in names]
            caps = [f" {self.app.get_key_display(key)} " for key in keys]
            used += sum(map(cell_len, (*caps, does))) + len(caps) + gap
            if used - gap > self.size.width - _MARGINS:
                break
            for row in range(len(lines)):
                for key, cap in zip(keys, caps, strict=True):
                    press = Style.from_meta({"@click": f"app.simulate_key({key.key!r})", "tooltip": key.tooltip})
                    text = Content(cap if row == middle else " " * cell_len(cap))
                    lines[row] += text.stylize(_CAP if names in _SIDES else _SMALL_CAP).stylize(press) + " "
                lines[row] += (does if row == middle else "").ljust(len(does) + gap)
        bar.update(Content("\n").join(lines))

    def _show_lines(self) -> None:
        """Show the lines around the item."""
        state, item, view = self.state, self.item, self.query_one(LabelView)
        progress, hint, last, problem = (
            self.query_one(f"#label-{name}", Static) for name in ("progress", "hint", "last", "problem")
        )
        waits = 0 if state is None else state.record.left if state.progress.left is None else state.progress.left
        self.badge = Badge(str(waits or ""))
        found = texts.figures(state.record.labeller, state.progress) if state else [""]
        width, height = progress.size
        text = texts.progress_text(found, width, self._keys["progress"], whole=self.all_figures)
        progress.update(text, layout=text.count("\n") + 1 != height)
        how = {"markdown": view.markdown, "diff": view.diff}
        hint.update(texts.hints(item, self.texts, self.draft, self._keys, **how) if item else "", layout=False)
        judged = state.last if state else None
        last.update(texts.last_line(judged, item, last.size.width, facts=self.facts_shown), layout=False)
        if self.problem or problem.display:
            problem.display = bool(self.problem)
            problem.update(self.problem)

    def _look(self) -> None:
        """Show what the worker has changed by itself: the next item, what it waits for, the items left."""
        state = self.worker.state if self.worker is not None else None
        if state is None or state is self.state or self.busy:
            return
        if self.item is None or (self.item.label is None and state.current != self.item):  # judged in another window
            reason = self.problem
            self._take(state)
            self.problem = reason
        else:
            self.state = state
        self._show_lines()

    # Judging. An action returns once its label is on disk: keys typed ahead then find the next item.

    async def action_better(self, number: int, strength: int = 1) -> None:
        """Choose `number` as the better of two; with more completions, put it next in the ranking."""
        if len(self.texts.completions) > 2:
            await self._rank_next(str(number))
        else:
            await self.action_judge("ranked", [[number - 1], [2 - number]], strength)

    async def action_tie(self) -> None:
        """Mark a tie; within a ranking, tie the last two."""
        if self.draft.ranking:
            await self._rank_next("=")
        else:
            await self.action_judge("ranked", [range(len(self.texts.completions))])

    async def _rank_next(self, mark: str) -> None:
        """Append a digit, or = between equals, to the ranking; the last digit saves it."""
        count, typed = len(self.texts.completions), self.draft.ranking
        fits = typed[-1:] not in ("", "=") if mark == "=" else mark not in typed and 1 <= int(mark) <= count
        if count > MOST or self.busy or not fits:
            return
        self._edit(ranking=typed + mark)
        if len(self.draft.ranking.replace("=", "")) == count:
            groups = re.findall(r"\d(?:=\d)*", self.draft.ranking)
            self.draft = self.draft._replace(ranking="")  # typed again if it cannot be saved
            await self.action_judge("ranked", [[int(digit) - 1 for digit in group.split("=")] for group in groups])

    async def action_judge(
        self, verdict: Verdict, groups: Sequence[Sequence[int]] = (), strength: int = 1, kept: Judgement | None = None
    ) -> None:
        """Save a judgement of the item, with its note and flag, and go to the next item.

        groups: places on the screen from the left, the best first, ties together. kept: the judgement, if it is no new
        one; a new one has the seconds that it took.
        """
        if self.worker is None or self.item is None:
            return
        order, seconds = self.item.item.order, round(self._clock() - self._since, 3)
        ranking = tuple(tuple(sorted(order[place] for place in group)) for group in groups)
        judgement = kept or Judgement(
            verdict=verdict, ranking=ranking, order_shown=order, strength=strength, seconds=seconds
        )
        judgement = replace(judgement, note=self.draft.note, flags=(FLAGGED,) if self.draft.flagged else ())
        choice = texts.judgement_text(self.item.item, judgement)
        call = partial(self.worker.label, self.item, judgement)
        slow = f"Still saving: {choice}. Keys are ignored until it is saved"
        mark = "✗" if verdict == "both_bad" else "✓" if len(groups) > 1 else "="
        marked = range(len(order)) if verdict == "both_bad" else [place for group in groups[:1] for place in group]
        marks = dict.fromkeys(marked, (mark, "worse" if verdict == "both_bad" else "better"))

        def taken(state: SessionState) -> None:
            self._take(state)
            self.query_one(LabelView).acknowledge(marks, self.flash)

        await self._await(call, taken, f"Not saved: {choice}", slow)

    async def action_keep(self) -> None:
        """Leave the item's judgement as it is, save a changed note or flag, and go to the next item."""
        if self.item is None or self.item.label is None or self.state is None or self.busy:
            return
        if self.draft == _draft_of(self.item):
            self._open(self.state.current)
        else:
            kept = replace(self.item.label.judgement, time=None)
            await self.action_judge(kept.verdict, kept=kept)

    async def action_undo(self) -> None:
        """Undo the newest label of the session and show its item again, with its note and flag."""
        last = self.state.last if self.state else None
        if self.worker is None or last is None:
            self.notify("No label to undo in this session")
            return

        def undone(state: SessionState) -> None:
            self._take(state)
            if self.item is not None and self.item.position == last.position:
                self.draft = _draft_of(last)
                self._show_lines()

        await self._await(self.worker.undo, undone, "Label not undone", "Still undoing...")

    async def go_to(self, position: int) -> None:
        """Show a labelled item of the session, to change its label."""
        if self.worker is not None:
            load = partial(self.worker.item, position)
            await self._await(load, self._open, f"Item {position + 1} not loaded", "Still loading...")

    async def _await(self, call: Callable[[], Future[T]], then: Callable[[T], None], failure: str, slow: str) -> None:
        """Call the worker and do `then` with the result; if that fails, show `failure` and why.

        Keys are ignored until the worker has answered. This returns after `patience` seconds at most, so that a slow
        disk holds up the session only.
        """
        if self.busy:
            return
        self.busy, began, answered = True, time.monotonic(), asyncio.Event()

        def report(problem: str) -> None:
            self.problem = visible(problem)
            self._show_lines()

        async def settle() -> None:
            failed = False
            while True:
                try:
                    then(await asyncio.wrap_future(call()))
                    break
                except BusyError as error:  # another process holds the store
                    report(f"{slow} ({error})")
                except TrainerError as error:
                    failed = True
                    report(f"✖ {failure}. {one_line(error)}")
                    break
            answered.set()
            if failed or time.monotonic() - began > self.patience:
                await asyncio.sleep(_UNSEEN)
            self.busy = False

        settling = self.run_worker(settle(), group="label")  # cancelled when the session is left
        try:
            await asyncio.wait_for(answered.wait(), self.patience)
        except TimeoutError:
            if settling.is_running:
                report(slow)

    # What the user notes on the item, and how it is drawn.

    def _edit(self, **changes: Any) -> None:
        """Change the draft of the item, unless it is being saved: the key was typed for an item that goes."""
        if not self.busy:
            self.draft = self.draft._replace(**changes)
            self._show_lines()

    def action_retype(self, end: int) -> None:
        """Keep the ranking only up to its character `end`."""
        self._edit(ranking=self.draft.ranking[:end])

    def action_flag(self) -> None:
        self._edit(flagged=not self.draft.flagged)

    def action_switch(self, name: Literal["markdown", "diff", "facts_shown", "all_figures"]) -> None:
        view = self.query_one(LabelView)
        if name == "diff":
            view.wants_diff = not view.diff
        else:
            owner = view if name == "markdown" else self
            setattr(owner, name, not getattr(owner, name))
        if name == "facts_shown":
            shown = "shown" if self.facts_shown else "hidden"
            self.notify(f"Authors, scores and lengths are {shown} after the choice")
        view.lay_out()
        self._show_lines()

    def action_copy(self) -> None:
        if self.item is not None:
            self.copy(texts.copy_text(self.texts), "prompt and completions")

    def action_request(self, what: LabelRequest) -> None:
        self._request(what)

    # Dialogs. They open within the action: keys typed ahead then go to the dialog.

    def action_note(self) -> None:
        from workbench.labelling.dialogs import NoteScreen

        item = self.item

        def noted(text: str | None) -> None:
            if text is not None and self.item is item:
                self._edit(note=text)

        if not self.busy:
            self.app.push_screen(NoteScreen(self.draft.note), noted)

    def action_guidelines(self) -> None:
        from workbench.labelling.dialogs import GuidelinesScreen

        if self.state is not None and self.state.guidelines:
            self.app.push_screen(GuidelinesScreen(self.state.guidelines))
        else:
            self.notify("This session has no guidelines; name a text file when you begin one")

    def action_history(self) -> None:
        from workbench.labelling.dialogs import LabelHistoryScreen

        async def chosen(position: int | None) -> None:
            if position is not None:
                await self.go_to(position)

        if self.worker is not None:
            self.app.push_screen(LabelHistoryScreen(self.worker), chosen)


def _draft_of(item: SessionItem) -> Draft:
    """Return note and flag of the item's label."""
    if item.label is None:
        return Draft()
    judgement = item.label.judgement
    return Draft(note=judgement.note, flagged=FLAGGED in judgement.flags)
