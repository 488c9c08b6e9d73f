"""One prompt through training: the responses to it, newest first, and their differences from one of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import ClassVar

from rich.cells import cell_len
from textual import on, work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Container, Vertical
from textual.widgets import Static
from textual.worker import get_current_worker

from trainer.errors import counted
from trainer.runs.folder import RunFolder
from trainer.runs.samples import kept_iterations
from workbench.kit.cursor_list import CursorList, cursor_bindings, under_cursor
from workbench.kit.dialog import Dialog
from workbench.kit.drawing import ScrolledLines, scroll_bindings, wrapped
from workbench.kit.glyphs import sparkline
from workbench.kit.keys import bind
from workbench.kit.theming import no_color
from workbench.kit.word_diff import Part, word_diff
from workbench.run.sample_query import Condition, Order
from workbench.run.sample_reader import scan
from workbench.run.sample_table import Sample, SampleKey, TokenSample
from workbench.text import Line, fit_end, number, score_text, visible

_PROMPT = 2000  # characters of the prompt's end that are considered
_LEAST_CHART = 8  # columns
_MARKS = {"gone": ("−", ""), "new": ("+", "")}  # in addition to strike and underline
_COLORLESS = {"gone": ("[-", "-]"), "new": ("{+", "+}")}  # as in git's word diff
_HEADINGS = "     sample    score  KL nats  tokens"


def changes_line(chosen: Sample, base: Sample) -> str:
    """Return score, KL and length of `chosen`, each with its difference from `base`."""
    facts = [
        f"{score_text(chosen.score)} ({number(chosen.score - base.score, 2, signed=True)})",
        f"KL {number(chosen.kl, 1)} nats ({number(chosen.kl - base.kl, 1, signed=True)})",
    ]
    if chosen.length is not None and base.length is not None:
        facts.append(f"{counted(chosen.length, 'token')} ({chosen.length - base.length:+d})")
    return "   ".join(facts)


def scores_line(samples: Sequence[Sample], width: int, *, reading: bool) -> str:
    """Return the number of samples and of their iterations, and a sparkline of the scores if there is room.

    samples: newest first. reading: add that more are being read.
    """
    iterations = len({sample.key.iteration for sample in samples})
    count = f"{counted(len(samples), 'sample')} of {counted(iterations, 'iteration')}" + ", reading…" * reading
    scores = [sample.score for sample in reversed(samples)]
    room = width - cell_len(count) - 30
    if len(scores) < 2 or room < _LEAST_CHART:
        return count
    step = -(-len(scores) // room)
    chart = sparkline(scores[::-step][::-1], room)
    return f"{count}   score {number(scores[0], 2, signed=True)} {chart} {number(scores[-1], 2, signed=True)}"


def diff_lines(parts: Sequence[Part], width: int, *, colorless: bool = False) -> list[Line]:
    """Wrap the parts in lines of at most `width` columns, 2 or more, with a mark at the start of each change.

    Spaces around a change are outside its marks, and one that consists of spaces alone shows them as symbols.
    colorless: mark its end as well, so that a change is visible without styles.
    """
    marks, pieces = _COLORLESS if colorless else _MARKS, []
    for kind, text in parts:
        before, after = marks.get(kind, ("", ""))
        if kind != "same" and not text.strip():
            newlines = "\n" * text.count("\n") if kind == "new" else ""
            text = before + visible(text).replace(" ", "␣") + after + newlines
        elif core := text.strip():
            text = text.replace(core, before + core + after)
        pieces.append((text, kind))
    return wrapped(pieces, width)


class ResponseList(CursorList[Sample]):
    """List of the responses with a cursor."""

    CSS_NAME = "response-list"
    COMPONENT_CLASSES: ClassVar[set[str]] = {f"response-list--{role}" for role in ("muted", "cursor")}
    HEADER_HEIGHT = 1
    BINDINGS: ClassVar[list[BindingType]] = cursor_bindings("history", "response")

    base: Sample | None = None  # the response that the others are compared with

    def header_line(self, width: int) -> Line:
        return [(_HEADINGS[:width], "muted")]

    def item_line(self, index: int, line: int, width: int) -> Line:
        """Return iteration and number in the batch, score, KL, length, and whether it is cut short or the base."""
        sample = self.items[index]
        place = f"{sample.key.iteration}·{sample.key.row + 1}"
        length = "-" if sample.length is None else str(sample.length)
        signs = " ✂" * sample.truncated + " base" * (sample is self.base)
        text = f"{place:>11}  {number(sample.score, 2, signed=True):>7}  {number(sample.kl, 1):>7}  {length:>6}{signs}"
        row: Line = [(text[:width], "")]
        return under_cursor(row, width) if index == self.cursor else row


class PromptHistoryScreen(Dialog[SampleKey | None]):
    """Dialog that returns the key of the sample to open, None when it is closed."""

    HORIZONTAL_BREAKPOINTS = [(0, "-stacked"), (100, "-beside")]
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("enter", "open", "open", "history.open", "Open this response in the Samples pane"),
        bind("b", "base", "base", "history.base", "Compare the others with this response"),
        bind("d", "toggle_diff", "changes", "history.diff", "Mark changes, or show the text"),
        bind("y", "copy", "copy", "history.copy", "Copy prompt and this response"),
        bind("escape", "dismiss", "close", "history.close", "Return to the samples"),
    ]

    def __init__(self, folder: RunFolder, sample: Sample | TokenSample) -> None:
        super().__init__()
        self._folder, self._sample = folder, sample
        self._samples: list[Sample] = []  # newest first
        self._list = ResponseList()
        self._base: Sample | None = None  # None: the oldest
        self._diff = self._reading = True
        self._placed = 0  # where the code put the cursor; the user may have moved it since
        self._shown: SampleKey | None = None

    def compose(self) -> ComposeResult:
        with Vertical(id="history"):
            for name in ("prompt", "scores", "problem"):
                yield Static(id=f"history-{name}", markup=False)
            with Container(id="history-body"):
                yield self._list
                with Vertical(id="history-chosen"):
                    yield Static(id="history-changes", markup=False)
                    yield DiffText()
            keys = [("history.open", "open"), ("history.base", "set as base"), ("history.diff", "changes")]
            yield Static(self.hint(*keys, ("tab", "text"), ("history.close", "close")), id="history-keys")

    def on_mount(self) -> None:
        self.query_one("#history-problem").display = False
        self._list.focus()
        self._read()

    @on(ResponseList.Opened)
    def action_open(self) -> None:
        if (chosen := self._list.selected) is not None:
            self.dismiss(chosen.key)

    def action_base(self) -> None:
        self._base = self._list.selected or self._base
        self._list.base = self._base or self._list.base
        self._list.refresh()
        self._show_chosen()

    def action_toggle_diff(self) -> None:
        self._diff = not self._diff
        self._show_chosen()

    def action_copy(self) -> None:
        if (chosen := self._list.selected) is not None:
            self.copy(chosen.prompt + chosen.completion, "prompt and response")

    @work(thread=True, group="history")
    def _read(self) -> None:
        """Search the run's files, and add what each part of them has.

        After a resume with other data the index may belong to another prompt, so the text must match as well.
        """
        worker, sample, problems = get_current_worker(), self._sample, list[str]()
        of_prompt = (Condition("prompt_index", "=", sample.prompt_index),)
        for part in scan(self._folder, kept_iterations(self._folder), lambda: worker.is_cancelled):
            found = [one for one in part.table.select(of_prompt, Order()) if one.prompt == sample.prompt]
            problems += part.problems
            self.call_later(self._add, found, [*problems])
        self.call_later(self._add, [], problems, done=True)

    def _add(self, found: list[Sample], problems: list[str], *, done: bool = False) -> None:
        self._samples += found
        self._reading = not done
        if self._samples:
            self._list.base = self._base or self._samples[-1]
            cursor = self._list.cursor
            if cursor == self._placed:
                keys = [sample.key for sample in self._samples]
                cursor = self._placed = keys.index(self._sample.key) if self._sample.key in keys else 0
            self._list.items = self._samples
            self._list.put_cursor(cursor)
        if problems:
            problem = self.query_one("#history-problem", Static)
            problem.display = True
            problem.update(f"✖ {visible(problems[0])}" + f" (and {len(problems) - 1} more)" * (len(problems) > 1))
        self._show_heading()
        self._show_chosen()

    def _show_heading(self) -> None:
        width = max(self.size.width - 4, 1)
        self.query_one("#history-prompt", Static).update(fit_end(visible(self._sample.prompt[-_PROMPT:]), width))
        self.query_one("#history-scores", Static).update(scores_line(self._samples, width, reading=self._reading))

    on_resize = _show_heading

    @on(ResponseList.Moved)
    def _show_chosen(self) -> None:
        chosen, base = self._list.selected, self._list.base
        changes, text = self.query_one("#history-changes", Static), self.query_one(DiffText)
        if chosen is None or base is None:
            changes.update("reading…" if self._reading else "no saved samples of this prompt")
            return
        parts: list[Part] = [("same", chosen.completion)]
        if len(self._samples) == 1:
            about = "the only response so far" if self._reading else "the only response to this prompt"
        elif chosen is base:
            about = "base of the comparison"
        else:
            about = f"compared with iteration {base.key.iteration}, sample {base.key.row + 1}"
            if self._diff:
                parts = word_diff(base.completion, chosen.completion)
        changes.update(f"{changes_line(chosen, base)}\n{about}")
        text.show_lines(partial(diff_lines, parts, colorless=no_color()), from_start=chosen.key != self._shown)
        self._shown = chosen.key


class DiffText(ScrolledLines):
    """Scrollable text with its changes marked."""

    CSS_NAME = "diff-text"
    COMPONENT_CLASSES: ClassVar[set[str]] = {"diff-text--same", "diff-text--gone", "diff-text--new"}
    BINDINGS: ClassVar[list[BindingType]] = scroll_bindings("diff")
