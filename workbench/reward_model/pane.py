"""Reward-model pane: how a reward model learnt, how far it can be trusted, and the pairs that it gets wrong."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import Static

from trainer.plurals import counted
from trainer.reward_model.predictions import PairPrediction
from workbench.kit.pane import Pane
from workbench.reward_model.charts import RewardCharts
from workbench.reward_model.pairs import RewardPairList, RewardPairText, copy_text, pairs_heading
from workbench.reward_model.run_reader import RunReader
from workbench.run.metrics import REWARD_MODEL
from workbench.run.view import RunView
from workbench.text import visible

_INTERVAL = 1.0  # seconds between looks at the run, and at the folder if that is cheap
_NONE = "No reward models in '{}' yet. Label some pairs and train one, or run ppo-workbench reward-model train."
_NO_PAIRS = "No held-out pairs: this run held none out, or an older version trained it."
_NO_PAIRS_YET = "Held-out pairs appear after the first evaluation."
_SIGNS = {"done": "✓", "stopped": "■", "failed": "✖", "interrupted": "!"}  # else ●


def run_heading(name: str, view: RunView, *, live: bool) -> str:
    """Return the run's name, state, progress and number of comparisons."""
    state = view.state if live else view.ended.state if view.ended else "interrupted"
    parts = [visible(name), f"{_SIGNS.get(state, '●')} {visible(state)}"]
    if view.started is not None:
        parts.append(f"step {view.iteration:,} of {view.total:,}")
        parts.append(f"{counted(view.started.prompts, 'comparison')}, {view.started.eval_prompts:,} held out")
    return "   ".join(parts)


class RewardModelPane(Pane):
    """Pane of one reward-model run: its charts above the held-out pairs, or one of these pairs in full."""

    TITLE = "Reward model"
    HELP = (
        "What a reward model has learnt from the labels, measured on pairs that it was not trained on. Shows the "
        "newest run and follows it during training; {reward-model.older} and {reward-model.newer} choose another.\n"
        "A model that is no better than length alone has learnt to count. In the calibration, a bar that ends below "
        "its ◂ shows that the model is overconfident.\n"
        "Pairs are listed with the most wrong one first: ✗ the model disagrees with the label, ✓ it agrees, ~ a tie. "
        "Some of the wrong ones are wrong labels: {reward-model.label} asks for them again."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "open", id="reward-model.open", tooltip="Show the selected pair in full"),
        Binding("escape", "close", "back", id="reward-model.close", tooltip="Return to the charts and the list"),
        Binding("left", "go(1)", "older run", id="reward-model.older", tooltip="Show the next older reward model"),
        Binding("right", "go(-1)", "newer run", id="reward-model.newer", tooltip="Show the next newer reward model"),
        Binding("v", "next_chart", "next chart", id="reward-model.chart", tooltip="Show the next of the four charts"),
        Binding("m", "mark", "mark", id="reward-model.mark", tooltip="Mark the pair, or remove its mark"),
        Binding("y", "copy", "copy", show=False, id="reward-model.copy", tooltip="Copy this pair and its rewards"),
        Binding("l", "label", "label again", id="reward-model.label", tooltip="Label the marked pairs or this one"),
        Binding(
            "L", "label_wrong", "label wrong", id="reward-model.label-wrong", tooltip="Label all listed ✗ pairs again"
        ),
        Binding("n", "next(1)", "next pair", id="reward-model.next", tooltip="Open the next pair"),
        Binding(
            "N", "next(-1)", "previous pair", show=False, id="reward-model.before", tooltip="Open the previous pair"
        ),
    ]

    class LabelAgain(Message):
        """Request to label the comparisons with these keys again."""

        def __init__(self, keys: tuple[str, ...]) -> None:
            super().__init__()
            self.keys = keys

    def __init__(self, runs_dir: Path, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.reader = RunReader(runs_dir, self._show_changed_run, self._show_place)
        self._on_screen: Path | None = None  # the reward-model run that the other panes show
        self._marked: list[str] = []  # keys, in the order of marking
        self._opened = False

    def compose(self) -> ComposeResult:
        yield Static(id="reward-heading", markup=False)
        yield Static(id="reward-problem", markup=False)
        yield RewardCharts()
        yield Static(id="reward-pairs", markup=False)
        yield RewardPairList()
        yield RewardPairText()

    def on_mount(self) -> None:
        self._show()
        self.set_interval(_INTERVAL, self.read)

    def on_show(self) -> None:
        self.read()

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
        self.reader.set_runs_dir(path)
        if self.is_mounted:
            self.read()

    def take_focus(self) -> None:
        (self.query_one(RewardPairText) if self._opened else self.query_one(RewardPairList)).focus()

    @property
    def selected(self) -> PairPrediction | None:
        """Pair at the cursor; None without pairs."""
        return self.query_one(RewardPairList).selected

    def _show_changed_run(self) -> None:
        """Show what was read of the run, or that another one is being read."""
        if self.reader.seen is None:
            self._marked, self._opened = [], False
        if self.is_mounted:
            self._show()
            if self.reader.seen is None:
                self.read()

    def _show(self) -> None:
        look, predictions = self.reader.seen, self.reader.predictions
        self.query_one(RewardCharts).show(self.reader.view, predictions)
        listed = self.query_one(RewardPairList)
        listed.mark(self._marked)
        listed.show(predictions.pairs if predictions else (), message=self._empty_message())
        if self._opened and not self.query_one(RewardPairText).follow(self.selected):
            self._open(False)  # it is no longer listed, and the keys would act on another pair
        problems = [problem for problem in (self.reader.problem, *(look.problems if look else ())) if problem]
        line = self.query_one("#reward-problem", Static)
        line.update("\n".join(f"✖ {visible(problem)}" for problem in problems))
        line.display = bool(problems)
        self._show_count()
        self._show_place()
        self._arrange()

    def _show_place(self) -> None:
        reader, heading = self.reader, ""
        if reader.shown is not None:
            name, look = reader.shown.name, reader.seen
            heading = run_heading(name, reader.view, live=look.live) if look else visible(name)
        if reader.place >= 0 and len(reader.runs) > 1:
            heading += f"   run {reader.place + 1} of {len(reader.runs)}"
        self.query_one("#reward-heading", Static).update(heading)
        self.refresh_keys()

    def _show_count(self) -> None:
        predictions = self.reader.predictions
        heading = pairs_heading(predictions, len(self._marked)) if predictions else ""
        self.query_one("#reward-pairs", Static).update(heading)

    def _empty_message(self) -> str:
        """Return the message shown in place of the pairs."""
        if self.reader.shown is None:
            return "" if self.reader.problem else visible(_NONE.format(self.reader.runs_dir))
        if self.reader.seen is None:
            return "Reading the run..."
        return _NO_PAIRS_YET if self.reader.seen.live else _NO_PAIRS

    def _arrange(self) -> None:
        """Size the charts, and show the list or the open pair."""
        charts = self.query_one(RewardCharts)
        charts.fit_into(*self.size)
        charts.display = not self._opened and self.reader.shown is not None
        self.query_one("#reward-pairs").display = charts.display
        self.query_one(RewardPairList).display = not self._opened
        self.query_one(RewardPairText).display = self._opened
        self.refresh_keys()

    def on_resize(self) -> None:
        self._arrange()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        match action:
            case "open":
                return not self._opened and self.selected is not None
            case "close" | "next":
                return self._opened
            case "go":
                return len(self.reader.runs) > (self.reader.place >= 0)
            case "next_chart":
                return not self._opened and self.reader.shown is not None and not self.query_one(RewardCharts).all_shown
            case "mark" | "label" | "copy":
                return self.selected is not None
            case "label_wrong":
                return bool(self._wrong())
        return True

    @on(RewardPairList.Opened)
    def action_open(self) -> None:
        if (pair := self.selected) is not None:
            self._open(True)
            self.query_one(RewardPairText).show(pair)

    def action_close(self) -> None:
        self._open(False)

    def _open(self, opened: bool) -> None:
        focused = self.has_focus_within
        self._opened = opened
        self._arrange()
        if focused:
            self.take_focus()

    def action_next(self, by: int) -> None:
        self.query_one(RewardPairList).action_move(by)
        self.action_open()

    def action_go(self, by: int) -> None:
        if runs := self.reader.runs:
            place = min(max(self.reader.place + by, 0), len(runs) - 1)
            self.reader.choose(runs[place].folder.root)

    def action_next_chart(self) -> None:
        self.query_one(RewardCharts).next()

    def action_mark(self) -> None:
        if (pair := self.selected) is None:
            return
        if pair.key in self._marked:
            self._marked.remove(pair.key)
        else:
            self._marked.append(pair.key)
        self.query_one(RewardPairList).mark(self._marked)
        self._show_count()

    def action_copy(self) -> None:
        if (pair := self.selected) is not None:
            self.app.copy_to_clipboard(copy_text(pair))
            self.notify("Copied, if the terminal supports OSC 52")

    def action_label(self) -> None:
        if (pair := self.selected) is not None:
            self.post_message(self.LabelAgain(tuple(self._marked) or (pair.key,)))

    def action_label_wrong(self) -> None:
        self.post_message(self.LabelAgain(self._wrong()))

    def _wrong(self) -> tuple[str, ...]:
        """Return the keys of the listed pairs that the model gets wrong, each once."""
        predictions = self.reader.predictions
        pairs = predictions.pairs if predictions else []
        return tuple(dict.fromkeys(pair.key for pair in pairs if not pair.is_tie and pair.lead < 0))
