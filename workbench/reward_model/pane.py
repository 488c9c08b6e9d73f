"""Reward-model pane: how a reward model learnt, how far it can be trusted, and the pairs that it gets wrong."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import Static

from trainer.reward_model.predictions import PairPrediction
from workbench.reward_model.charts import RewardCharts
from workbench.reward_model.course import Course
from workbench.reward_model.measures import Measured, of_event, of_report
from workbench.reward_model.pair_list import RewardPairList
from workbench.reward_model.pair_text import RewardPairText
from workbench.reward_model.reading import RewardModelReading
from workbench.reward_model.texts import pairs_heading, run_heading
from workbench.text import visible

_NONE = "no reward model in '{}' yet: label some pairs and train one, or ppo-workbench reward-model train"
_NO_PAIRS = "this run kept nothing of its held-out pairs: it held none out, or an older version trained it"
_NO_PAIRS_YET = "the held-out pairs will stand here after the first evaluation"


class RewardModelPane(RewardModelReading):
    """Pane of one reward-model run: its charts above the held-out pairs, or one of these pairs in full."""

    TITLE = "Reward model"
    HELP = (
        "What a reward model has learnt of the labels, on pairs that it was not trained on. The run that began last is "
        "shown, and followed while it is trained; left and right choose another.\n"
        "A model that is no better than length alone has learnt to count. A bar of the calibration that ends below its "
        "◂ says that the model is too sure of itself.\n"
        "Pairs are listed with the most wrong one first: ✗ the model disagrees with the label, ✓ it agrees, ~ a tie. "
        "Some of the wrong ones are wrong labels: l asks for them again."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "open", id="reward-model.open", tooltip="Show the selected pair whole"),
        Binding("escape", "close", "back", id="reward-model.close", tooltip="Back to the charts and the list"),
        Binding("left", "go(1)", "older run", id="reward-model.older", tooltip="The reward model begun before this"),
        Binding("right", "go(-1)", "newer run", id="reward-model.newer", tooltip="The one begun after this"),
        Binding("v", "next_chart", "next chart", id="reward-model.chart", tooltip="Show the next of the four charts"),
        Binding("m", "mark", "mark", id="reward-model.mark", tooltip="Mark the pair, or take its mark away"),
        Binding("l", "label", "label again", id="reward-model.label", tooltip="Label the marked pairs again, or this"),
        Binding("L", "label_wrong", "all wrong", id="reward-model.label-wrong", tooltip="Label all listed ✗ again"),
        Binding("n", "next(1)", "next pair", id="reward-model.next", tooltip="Open the next pair"),
        Binding("N", "next(-1)", "pair before", show=False, id="reward-model.before", tooltip="Open the one before"),
    ]

    class LabelAgain(Message):
        """Request to label the comparisons with these keys again."""

        def __init__(self, keys: tuple[str, ...]) -> None:
            super().__init__()
            self.keys = keys

    def __init__(self, runs_dir: Path, *, id: str | None = None) -> None:
        super().__init__(runs_dir, id=id)
        self._marked: list[str] = []  # keys, in the order of marking
        self._opened = False

    def compose(self) -> ComposeResult:
        yield Static(id="reward-heading", markup=False)
        yield Static(id="reward-problem", markup=False)
        yield RewardCharts()
        yield Static(id="reward-pairs", markup=False)
        yield RewardPairList()
        yield RewardPairText()

    def take_focus(self) -> None:
        (self.query_one(RewardPairText) if self._opened else self.query_one(RewardPairList)).focus()

    @property
    def selected(self) -> PairPrediction | None:
        """Pair at the cursor; None without pairs."""
        return self.query_one(RewardPairList).selected

    # Display

    def forget(self) -> None:
        super().forget()
        self._marked, self._opened = [], False

    def show_look(self) -> None:
        look = self.run_seen
        predictions = look.predictions if look else None
        self.query_one(RewardCharts).show(look.course if look else Course(), self._measured(), predictions)
        listed = self.query_one(RewardPairList)
        listed.mark(self._marked)
        listed.show(predictions.pairs if predictions else (), message=self._nothing())
        problems = [problem for problem in (self.problem, *(look.problems if look else ())) if problem]
        told = self.query_one("#reward-problem", Static)
        told.update("\n".join(f"✖ {visible(problem)}" for problem in problems))
        told.display = bool(problems)
        self._show_count()
        self.show_place()
        self._arrange()

    def show_place(self) -> None:
        heading = run_heading(self.shown.name, self.run_seen) if self.shown else ""
        if self.place >= 0 and len(self.runs) > 1:
            heading += f"   run {self.place + 1} of {len(self.runs)}"
        self.query_one("#reward-heading", Static).update(heading)
        self.refresh_keys()

    def _show_count(self) -> None:
        predictions = self.run_seen.predictions if self.run_seen else None
        heading = pairs_heading(predictions, len(self._marked)) if predictions else ""
        self.query_one("#reward-pairs", Static).update(heading)

    def _measured(self) -> Measured | None:
        if self.run_seen is None:
            return None
        if (found := self.run_seen.predictions) is not None:
            return of_report(found.report, found.iteration)
        evaluations = self.run_seen.course.evaluations
        return of_event(evaluations[-1]) if evaluations else None

    def _nothing(self) -> str:
        """Return the message shown in place of the pairs."""
        if self.shown is None:
            return "" if self.problem else visible(_NONE.format(self.runs_dir))
        if self.run_seen is None:
            return "reading the run …"
        return _NO_PAIRS_YET if self.run_seen.live else _NO_PAIRS

    def _arrange(self) -> None:
        """Size the charts, and show the list or the open pair."""
        charts = self.query_one(RewardCharts)
        charts.fit_into(*self.size)
        charts.display = not self._opened and self.shown is not None
        self.query_one("#reward-pairs").display = charts.display
        self.query_one(RewardPairList).display = not self._opened
        self.query_one(RewardPairText).display = self._opened
        self.refresh_keys()

    def on_resize(self) -> None:
        self._arrange()

    # Keys

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        match action:
            case "open":
                return not self._opened and self.selected is not None
            case "close" | "next":
                return self._opened
            case "go":
                return len(self.runs) > (self.place >= 0)
            case "next_chart":
                return not self._opened and self.shown is not None and not self.query_one(RewardCharts).all_shown
            case "mark" | "label":
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
        if self.runs:
            place = min(max(self.place + by, 0), len(self.runs) - 1)
            self.choose(self.runs[place].folder.root)

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

    def action_label(self) -> None:
        if (pair := self.selected) is not None:
            self.post_message(self.LabelAgain(tuple(self._marked) or (pair.key,)))

    def action_label_wrong(self) -> None:
        self.post_message(self.LabelAgain(self._wrong()))

    def _wrong(self) -> tuple[str, ...]:
        """Return the keys of the listed pairs that the model gets wrong, each once."""
        predictions = self.run_seen.predictions if self.run_seen else None
        pairs = predictions.pairs if predictions else []
        return tuple(dict.fromkeys(pair.key for pair in pairs if not pair.is_tie and pair.lead < 0))
