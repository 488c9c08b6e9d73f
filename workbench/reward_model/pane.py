"""Reward-model pane: how a reward model learnt, how far it can be trusted, and the pairs that it gets wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal
from textual.content import Content
from textual.events import Resize, Show
from textual.message import Message
from textual.widgets import Input, Static

from trainer.engine import inbox
from trainer.errors import TrainerError, counted
from trainer.reward_model.predictions import PairPrediction
from workbench.kit.cursor_list import FilterField
from workbench.kit.dialog import ConfirmScreen
from workbench.kit.keys import bind, hidden_key, keys_of
from workbench.kit.pane import Pane
from workbench.kit.saving import ask_and_save, write_lines
from workbench.reward_model.charts import RewardCharts
from workbench.reward_model.pairs import (
    ORDERS,
    RewardPairList,
    RewardPairText,
    chosen_pairs,
    copy_text,
    export_rows,
    pairs_heading,
)
from workbench.reward_model.run_reader import RunReader
from workbench.reward_model.verdict import verdict
from workbench.run.metrics import REWARD_MODEL
from workbench.run.sentences import state_words
from workbench.run.view import RunView
from workbench.text import duration, packed, percent, visible

_INTERVAL = 1.0  # seconds between looks at the run, and at the folder if that is cheap
_NONE = """\
No reward models in '{}' yet.

A reward model learns from labels which of two responses people prefer; PPO can then train on its scores.

{label}   go to Label and judge some pairs
{train}   there: train a reward model on the labels
or ppo-workbench reward-model train on the command line
"""
_NO_PAIRS = "No held-out pairs: set data.eval_fraction."
_NO_PAIRS_YET = "Held-out pairs appear after the first evaluation."
_BESIDE = 140  # columns of the pane from which the selected pair is beside the list
_STYLES = {"✓": "bold $better", "⚠": "bold $text-warning"}  # of a verdict, by its sign
_BAR, _GAP = 6, "  "  # columns of the progress; between two parts of the heading
_SIGNS = {"done": "✓", "stopped": "■", "failed": "✖", "interrupted": "!"}  # else ●


def run_heading(reader: RunReader, width: int, stop: str = "X") -> Content:
    """Return the name of the shown run and, once it is read, state, progress and comparisons, in lines of `width`.

    A live run has its phase, the time left and `stop`, the key that stops it, too.
    """
    view, live = reader.view, reader.live
    if reader.shown is None or live is None:
        return Content(visible(reader.shown.name) if reader.shown else "")
    state = view.state if live else view.ended.state if view.ended else "interrupted"
    words, full = state_words(state), round(_BAR * min(max(view.iteration / max(view.total, 1), 0), 1))
    if live and (phase := view.phase) is not None and not view.is_starting:
        words += f", {visible(phase.phase)}" if view.state == "training" else ""
        words += f" {percent(phase.done / max(phase.total, 1)):>4}"
    parts = [Content.styled(visible(reader.shown.name), "bold"), Content(f"{_SIGNS.get(state, '●')} {words}")]
    if (started := view.started) is not None:
        bar = ("━" * full, "$policy"), ("─" * (_BAR - full), "$text-disabled")
        parts.append(Content.assemble(*bar, f" {view.iteration:>{len(str(view.total))}}/{view.total} steps"))
        if live and 0 < view.iteration < view.total:
            parts.append(Content(f"{duration(view.seconds_left()):>6} left"))
        parts += [Content.assemble((stop, "bold $text-accent"), " stop")] if live else []
        parts.append(Content(f"{counted(started.prompts, 'comparison')}, {started.eval_prompts:,} held out"))
    if reader.place >= 0 and len(reader.runs) > 1:
        parts.append(Content(f"run {reader.place + 1} of {len(reader.runs)}"))
    lines = packed(parts, width, len(_GAP), lambda part: part.cell_length)
    return Content("\n").join(Content(_GAP).join(line) for line in lines)


class RewardModelPane(Pane):
    """Pane of one reward-model run: its charts above the held-out pairs, or one of these pairs in full."""

    TITLE = "Reward model"
    DOCS = "reward-models"
    HELP = (
        "What a reward model has learnt from the labels, measured on pairs that it was not trained on. Shows the "
        "newest run and follows it during training; {reward-model.older} and {reward-model.newer} choose another.\n"
        "The first line is the verdict, and how many labels would tell where the held-out pairs are too few. "
        "A model that is no better than length alone has learnt to count. In the calibration, a bar that ends below "
        "its ◂ shows that the model is overconfident.\n"
        "Pairs are listed with the most wrong one first: ✗ the model disagrees with the label, ✓ it agrees, ~ a tie. "
        "Some of the wrong ones are wrong labels: {reward-model.label} asks for them again. "
        "{reward-model.filter} lists the pairs with some words, {reward-model.sort} sorts them by how sure the model "
        "is or by how their lengths differ."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("enter", "open", "open", "reward-model.open", "Show the selected pair in full"),
        bind("escape", "close", "back", "reward-model.close", "Return to the charts and the list"),
        bind("left", "go(1)", "older run", "reward-model.older", "Show the next older reward model"),
        bind("right", "go(-1)", "newer run", "reward-model.newer", "Show the next newer reward model"),
        bind("slash", "filter", "filter", "reward-model.filter", "List the pairs with these words"),
        bind("v", "next_chart", "next chart", "reward-model.chart", "Show the next of the four charts"),
        bind("m", "mark", "mark", "reward-model.mark", "Mark the pair, or remove its mark"),
        hidden_key("y", "copy", "copy", "reward-model.copy", "Copy this pair and its rewards"),
        hidden_key("x", "export", "export", "reward-model.export", "Save the listed pairs"),
        hidden_key("o", "sort(False)", "sort", "reward-model.sort", "List in the next order"),
        hidden_key("O", "sort(True)", "reverse", "reward-model.reverse", "Reverse the order"),
        bind("X", "stop", "stop", "reward-model.stop", "Save a checkpoint and end this training"),
        bind("l", "label", "label again", "reward-model.label", "Label the marked pairs or this one"),
        bind("L", "label(True)", "label wrong", "reward-model.label-wrong", "Label all listed ✗ again"),
        bind("n", "next(1)", "next pair", "reward-model.next", "Open the next pair"),
        hidden_key("N", "next(-1)", "previous pair", "reward-model.before", "Open the previous pair"),
    ]

    @dataclass
    class LabelAgain(Message):
        """Request to label the comparisons with these keys again."""

        keys: tuple[str, ...]

    def __init__(self, runs_dir: Path, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.reader = RunReader(runs_dir, self._show_run)
        self._on_screen: Path | None = None  # the reward-model run that the other panes show
        self._marked: list[str] = []  # keys, in the order of marking
        self._opened = False
        self._order, self._reverse = next(iter(ORDERS)), False
        self.listed: Sequence[PairPrediction] = ()  # the pairs, as filtered and sorted

    def compose(self) -> ComposeResult:
        yield Static(id="reward-verdict", markup=False)
        yield Static(id="reward-heading", markup=False)
        yield Static(id="reward-problem", markup=False)
        yield RewardCharts()
        yield Static(id="reward-pairs", markup=False)
        with Horizontal(id="reward-body"):
            yield RewardPairList()
            yield RewardPairText()
        yield FilterField("words of prompt and completions")

    def on_mount(self) -> None:
        self._show()
        self.set_interval(_INTERVAL, self.read)

    @on(Show)
    def read(self) -> None:
        """Look at the folder and at the run on threads of their own, if the pane is visible."""
        if self.is_on_screen:
            self.run_worker(self.reader.read_runs(), group="reward-listing")
            self.run_worker(self.reader.read_run(), group="reward-run")

    def show_run(self, view: RunView) -> None:
        started = view.started
        folder = Path(started.folder) if started is not None and started.run_kind == REWARD_MODEL else None
        if folder != self._on_screen:
            self._on_screen = folder
            if folder is not None:
                self.reader.choose(folder)

    def set_runs_dir(self, path: Path) -> None:
        """Show the reward models of another folder."""
        if path.absolute() != self.reader.runs_dir:
            self.reader = RunReader(path, self._show_run)
            self._show_run()

    def take_focus(self) -> None:
        (self.query_one(RewardPairText) if self._opened else self.query_one(RewardPairList)).focus()

    @property
    def selected(self) -> PairPrediction | None:
        """Pair at the cursor; None without pairs."""
        return self.query_one(RewardPairList).selected

    def _show_run(self) -> None:
        """Show what was read of the run, or that another one is being read."""
        unread = self.reader.live is None
        if unread:
            self._marked, self._opened = [], False
        if self.is_mounted:
            self._show()
            if unread:
                self.read()

    @on(Input.Changed)
    def _show(self) -> None:
        reader, listed, words = self.reader, self.query_one(RewardPairList), self.query_one(FilterField).value.strip()
        self.query_one(RewardCharts).show_run(reader.view, reader.predictions)
        self.listed = chosen_pairs(self._pairs, words, self._order, reverse=self._reverse)
        stays = listed.show(self.listed, self._marked, self._empty_message(words))
        if self._opened and not stays:
            self._open(False)  # the pair is no longer listed, and the keys would act on another one
        problems = [f"✖ {visible(problem)}" for problem in (reader.problem, *reader.problems) if problem]
        problem = self.query_one("#reward-problem", Static)
        problem.update("\n".join(problems))
        problem.display = bool(problems)
        about_pairs = ""
        if reader.predictions is not None:
            order = f"{self._order}, reversed" if self._reverse else self._order
            filtered = len(self.listed) if words else None
            about_pairs = pairs_heading(reader.predictions, len(self._marked), order=order, filtered=filtered)
        self.query_one("#reward-pairs", Static).update(about_pairs)
        self._arrange()

    @property
    def _pairs(self) -> Sequence[PairPrediction]:
        return self.reader.predictions.pairs if self.reader.predictions else ()

    def _empty_message(self, words: str) -> str:
        """Return the message shown in place of the pairs."""
        reader = self.reader
        if reader.shown is not None:
            if reader.live is None:
                return "Reading the run..."
            if words and self._pairs:
                return "No pair has these words."
            return _NO_PAIRS_YET if reader.live else _NO_PAIRS
        if reader.problem:
            return ""
        keys = keys_of(self.screen, self.app, *self.screen.query(Pane))
        label, train = keys.get("pane.label", ""), keys.get("label.train", "")
        wide = max(len(label), len(train))
        return _NONE.format(visible(str(reader.runs_dir)), label=label.ljust(wide), train=train.ljust(wide))

    @on(Resize)
    def _arrange(self) -> None:
        """Size the charts, and show the list or the open pair."""
        charts, reader = self.query_one(RewardCharts), self.reader
        words = verdict(reader.view, reader.predictions) if reader.live is not None else ""
        self.query_one("#reward-verdict", Static).update(Content.styled(words, _STYLES.get(words[:1], "$text-muted")))
        heading = run_heading(reader, self.size.width, keys_of(self)["reward-model.stop"])
        self.query_one("#reward-heading", Static).update(heading)
        charts.fit_into(*self.size)
        charts.display = not self._opened and self.reader.shown is not None
        self.query_one("#reward-pairs").display = charts.display
        self.query_one(RewardPairList).display = not self._opened
        beside = not self._opened and self.size.width >= _BESIDE and self.selected is not None
        self.query_one(RewardPairText).display = self._opened or beside
        self.set_class(beside, "-beside")
        self._show_beside()
        self.refresh_bindings()

    @on(RewardPairList.Moved)
    def _show_beside(self) -> None:
        """Show the selected pair where it is open, or where there is room for it beside the list."""
        text = self.query_one(RewardPairText)
        if text.display and self.selected is not None:
            text.show(self.selected)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        match action:
            case "open":
                return not self._opened and self.selected is not None
            case "close":
                return self._opened or self.query_one(FilterField).display
            case "next":
                return self._opened
            case "filter" | "sort":
                return not self._opened and bool(self._pairs)
            case "export":
                return bool(self.listed)
            case "go":
                return len(self.reader.runs) > (self.reader.place >= 0)
            case "next_chart":
                return not self._opened and self.reader.shown is not None and not self.query_one(RewardCharts).all_shown
            case "label" if parameters:
                return bool(self._wrong)
            case "mark" | "label" | "copy":
                return self.selected is not None
            case "stop":
                return bool(self.reader.live)
        return True

    @on(RewardPairList.Opened)
    def action_open(self) -> None:
        if self.selected is not None:
            self._open(True)

    def action_close(self) -> None:
        if self._opened:
            self._open(False)
        else:
            self.query_one(FilterField).clear_filter()

    def action_filter(self) -> None:
        self.query_one(FilterField).open()
        self.refresh_bindings()

    def action_sort(self, reverse: bool) -> None:
        """List the pairs in the next order, or in reverse."""
        self._reverse = reverse and not self._reverse
        if not reverse:
            names = list(ORDERS)
            self._order = names[(names.index(self._order) + 1) % len(names)]
        self._show()
        self.query_one(RewardPairList).cursor = 0

    def action_export(self) -> None:
        pairs = self.listed
        question = f"Save {counted(len(pairs), 'pair')} as"
        ask_and_save(self, question, "pairs.jsonl", lambda path: write_lines(path, export_rows(pairs)))

    def _open(self, opened: bool) -> None:
        focused = self.has_focus_within
        self._opened = opened
        self._arrange()
        if focused:
            self.take_focus()

    def action_next(self, by: int) -> None:
        self.query_one(RewardPairList).action_move(by)

    def action_go(self, by: int) -> None:
        if runs := self.reader.runs:
            place = min(max(self.reader.place + by, 0), len(runs) - 1)
            self.reader.choose(runs[place].folder.root)

    def action_next_chart(self) -> None:
        self.query_one(RewardCharts).next()

    @work(group="stop")
    async def action_stop(self) -> None:
        """Stop the training of this reward model once the user agrees."""
        if (folder := self.reader.shown) is None:
            return
        question, detail = f"Stop {folder.name} after a checkpoint?", "It can be resumed later, from that checkpoint."
        if not await self.app.push_screen_wait(ConfirmScreen(question, detail, "Stop training", "Keep training")):
            return
        try:
            await asyncio.to_thread(inbox.send, folder.root, "stop", reason="stopped by the user")
        except TrainerError as error:
            self.warn(str(error))
        else:
            self.confirm(f"Requested: stop {folder.name}")

    def action_mark(self) -> None:
        if (pair := self.selected) is not None:
            (self._marked.remove if pair.key in self._marked else self._marked.append)(pair.key)
            self._show()

    def action_copy(self) -> None:
        if (pair := self.selected) is not None:
            self.copy(copy_text(pair), "the pair")

    def action_label(self, wrong: bool = False) -> None:
        if (pair := self.selected) is not None:
            self.post_message(self.LabelAgain(self._wrong if wrong else tuple(self._marked) or (pair.key,)))

    @property
    def _wrong(self) -> tuple[str, ...]:
        """Keys of the listed pairs that the model gets wrong, each once."""
        return tuple(dict.fromkeys(pair.key for pair in self.listed if not pair.is_tie and pair.lead < 0))
