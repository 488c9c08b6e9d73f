"""Training pane: the metrics of the run over its iterations, the newest scores, and a timeline."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.events import Resize
from textual.message import Message
from textual.widgets import Static

from trainer.plurals import counted
from trainer.runs.listing import PPO
from workbench.compare.frontier import Curve
from workbench.kit.axes import Window, window_of, window_over
from workbench.kit.drawing import OVERLAYS
from workbench.kit.keys import keys_of
from workbench.kit.pane import Badge, Pane
from workbench.run.history import History
from workbench.run.metrics import DEFAULT, METRICS, Metric
from workbench.run.sentences import in_brief, level_sign, rank_texts, urgent_first
from workbench.run.view import Mark, RunView
from workbench.training.alarms import AlarmLines
from workbench.training.chart import MetricChart, Picture
from workbench.training.histogram import ScoreHistogram
from workbench.training.layout import Layout, layout
from workbench.training.metric_choice import ChooseMetricsScreen, hidden_metrics, large_ones, metrics_of
from workbench.training.metric_grid import Charted, value_text
from workbench.training.overview import Overview, Shown, cells_hidden
from workbench.training.score_against_kl import ScoreAgainstKL, curve_of, point_text
from workbench.training.timeline import Timeline, lines_wanted

_SPANS = tuple(factor * 10**power for power in range(1, 7) for factor in (1, 2, 5) if factor * 10**power >= 50)
_STRIDE = 10  # iterations of a long step


class TrainingPane(Pane):
    """Pane with all metrics, or one of them enlarged, and one cursor over the iterations of all."""

    TITLE = "Training"
    HELP = (
        "Active alarms are on top. Below them are charts of the two main metrics (dotted: a standard deviation of the "
        "batch on either side), the other metrics with their values, where the time went, and events.\n"
        "A run on several processes has a line for each of them, with what it did in the newest iteration.\n"
        "{training.plot} plots score against KL, with the runs that are marked in Home.\n"
        "{training.left} and {training.right} move a cursor over the iterations: values and samples are then of that "
        "iteration.\n"
        "× marks a number that was NaN or infinite, ! a value past its limit ┄, a gap a missing iteration. "
        "Metrics that this run does not record, or that never change, are hidden."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "enlarge", "enlarge", id="training.enlarge", tooltip="Draw this metric as a large chart"),
        Binding("escape", "close", "back", id="training.close", tooltip="Return to all metrics, then to the newest"),
        Binding("up", "select(-1)", "metric up", show=False, id="training.up", tooltip="Go to the previous metric"),
        Binding("down", "select(1)", "metric down", show=False, id="training.down", tooltip="Go to the next metric"),
        Binding("left", "move(-1)", "earlier", show=False, id="training.left", tooltip="Go back one iteration"),
        Binding("right", "move(1)", "later", show=False, id="training.right", tooltip="Go forward one iteration"),
        Binding(
            "shift+left",
            f"move({-_STRIDE})",
            "far back",
            show=False,
            id="training.far-left",
            tooltip=f"Go back {_STRIDE} iterations",
        ),
        Binding(
            "shift+right",
            f"move({_STRIDE})",
            "far forward",
            show=False,
            id="training.far-right",
            tooltip=f"Go forward {_STRIDE} iterations",
        ),
        Binding("home", "first", "first", show=False, id="training.first", tooltip="Go to the first iteration"),
        Binding("end", "newest", "newest", show=False, id="training.newest", tooltip="Follow the newest iteration"),
        Binding(
            "plus,equals_sign", "zoom(1)", "closer", show=False, id="training.closer", tooltip="Chart fewer iterations"
        ),
        Binding("minus", "zoom(-1)", "wider", show=False, id="training.wider", tooltip="Chart more iterations"),
        Binding("e", "average", "EMA", id="training.average", tooltip="Show or hide the exponential moving average"),
        Binding("l", "log", "log", id="training.log", tooltip="Switch losses, KL and gradient to logarithmic axes"),
        Binding("k", "plot", "score/KL", id="training.plot", tooltip="Plot score against KL, with the marked runs"),
        Binding("y", "copy", "copy", show=False, id="training.copy", tooltip="Copy iteration, metric and value"),
        Binding("v", "choose", "metrics", id="training.metrics", tooltip="Choose which metrics are shown"),
    ]

    class IterationChosen(Message):
        """Posted when the cursor moves to an iteration; None when it follows the newest again."""

        def __init__(self, iteration: int | None) -> None:
            super().__init__()
            self.iteration = iteration

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._view = RunView()
        self._chosen: tuple[Metric, ...] = DEFAULT  # for PPO; runs of other kinds show all of their few metrics
        self._metrics: tuple[Metric, ...] = DEFAULT  # shown
        self._selected = 0
        self._cursor: int | None = None  # an iteration
        self._span: int | None = None  # charted iterations; None: all
        self._average = self._log = self._enlarged = self._plotted = False
        self._others: list[tuple[Path, RunView]] = []
        self._shown: object = None  # what the charts were drawn from

    def compose(self) -> ComposeResult:
        yield AlarmLines()
        yield Overview()
        yield MetricChart()
        yield ScoreAgainstKL()
        yield Static(id="ranks", markup=False)
        with Container(id="training-below"):
            yield ScoreHistogram()
            yield Timeline()

    def on_mount(self) -> None:
        self.query_one(MetricChart).display = self.query_one(ScoreAgainstKL).display = False
        self._show()

    def badge_for(self, view: RunView) -> Badge:
        if not view.alarms:
            return Badge()
        worst = urgent_first(view.alarms)[0].level
        more = str(len(view.alarms)) if len(view.alarms) > 1 else ""
        return Badge(f"{level_sign(worst)}{more}", "error" if worst == "error" else "warning")

    def show_run(self, view: RunView) -> None:
        if view is not self._view:
            if self._view.started is not None:  # else the scores, which may have come first, are of this run
                self.query_one(ScoreHistogram).show(())
            self._view, self._cursor = view, None
        history, marks = view.history, view.marks
        ends = (history.numbers[0], history.numbers[-1]) if len(history) else ()
        run = (view.started is None, view.kl_target, tuple(view.alarms), view.is_starting)
        now = (history, len(history), ends, view.last, len(marks), marks[-1:], run)
        if now != self._shown:
            self._shown = now
            self._show()
            self.refresh_bindings()

    def show_scores(self, iteration: int, scores: Sequence[float]) -> None:
        """Draw the distribution of the scores of the iteration whose samples are shown."""
        self.query_one(ScoreHistogram).show(scores, iteration)
        self._show()

    def compare(self, runs: Sequence[tuple[Path, RunView]]) -> None:
        """Draw the runs in these folders, at most five, beside this one; none for an empty list.

        The run on the screen may be among them; it is not drawn twice.
        """
        self._others = [(folder.absolute(), view) for folder, view in runs]
        self._show()

    @property
    def metrics_shown(self) -> tuple[str, ...]:
        """Fields of the PPO metrics to show, in the order of the table.

        Setting none, or only unknown ones, selects the default ones. A run of another kind shows all its metrics.
        """
        return tuple(metric.field for metric in self._chosen)

    @metrics_shown.setter
    def metrics_shown(self, fields: Iterable[str]) -> None:
        wanted = set(fields)
        self._chosen = tuple(metric for metric in METRICS if metric.field in wanted) or DEFAULT
        if self.is_mounted:
            self._show()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "enlarge":
            return not (self._enlarged or self._plotted) and bool(len(self._view.history))
        if action == "copy":
            return bool(len(self._view.history))
        if action == "close":
            return self._enlarged or self._plotted or self._cursor is not None
        if action == "plot":
            return self._view.history.kind == PPO and bool(len(self._view.history))
        if action == "choose":
            return self._view.history.kind == PPO
        return True

    def action_enlarge(self) -> None:
        self._open(enlarged=True)

    def action_plot(self) -> None:
        self._open(plotted=not self._plotted)

    def action_close(self) -> None:
        if self._enlarged or self._plotted:
            self._open()
        else:
            self._put_cursor(None)

    def action_select(self, rows: int) -> None:
        self._selected = min(max(self._selected + rows, 0), len(self._metrics) - 1)
        self._show()

    def action_move(self, iterations: int) -> None:
        history = self._view.history
        if len(history):
            at = self._at()
            at = (len(history) - 1 if at is None else at) + iterations
            self._put_cursor(None if at >= len(history) - 1 else history.numbers[max(at, 0)])

    def action_first(self) -> None:
        if len(self._view.history):
            self._put_cursor(self._view.history.numbers[0])

    def action_newest(self) -> None:
        self._put_cursor(None)

    def action_zoom(self, direction: int) -> None:
        size = len(self._view.history)
        spans = [span for span in _SPANS if span < size]
        at = spans.index(self._span) if self._span in spans else len(spans)
        at = min(max(at - direction, 0), len(spans))
        self._span = spans[at] if at < len(spans) else None
        self._show()

    def action_average(self) -> None:
        self._average = not self._average
        self._show()

    def action_log(self) -> None:
        self._log = not self._log
        self._show()

    def action_choose(self) -> None:
        def chosen(fields: tuple[str, ...] | None) -> None:
            if fields is not None:
                self.metrics_shown = fields

        self.app.push_screen(ChooseMetricsScreen(self.metrics_shown), chosen)

    def action_copy(self) -> None:
        if self._plotted:
            if (point := self.query_one(ScoreAgainstKL).point) is not None:
                self.copy(point_text(point), "the point")
            return
        at = self._at()
        iteration = self._view.history.numbers[-1 if at is None else at]
        text = f"iteration {iteration}: {value_text(self._charted(), self._metrics[self._selected])}"
        self.copy(text, "the value")

    def on_overview_picked(self, message: Overview.Picked) -> None:
        message.stop()
        self._selected = message.number
        if message.iteration is not None:
            newest = message.iteration == self._view.history.numbers[-1]
            self._put_cursor(None if newest else message.iteration)
        else:
            self._show()

    def on_resize(self, event: Resize) -> None:
        self._show()

    def _open(self, *, enlarged: bool = False, plotted: bool = False) -> None:
        """Show one metric enlarged, or score against KL, or all metrics."""
        focused = self.has_focus_within
        self._enlarged, self._plotted = enlarged, plotted
        chart, plot, overview = self.query_one(MetricChart), self.query_one(ScoreAgainstKL), self.query_one(Overview)
        chart.display, plot.display, overview.display = enlarged, plotted, not (enlarged or plotted)
        if focused:
            (chart if enlarged else plot if plotted else overview).focus()
        self._show()
        self.refresh_bindings()

    def _put_cursor(self, iteration: int | None) -> None:
        if iteration != self._cursor:
            self._cursor = iteration
            self.post_message(self.IterationChosen(iteration))
            self.refresh_bindings()
        self._show()

    def _at(self) -> int | None:
        """Return the cursor's position in the history; None without a cursor."""
        history = self._view.history
        return None if self._cursor is None or not len(history) else history.index_of(self._cursor)

    def _marked(self) -> list[tuple[str, RunView]]:
        """Return names of the marked runs and their views, but for this one."""
        started = self._view.started
        this = Path(started.folder).absolute() if started and self._others else None
        return [(folder.name, view) for folder, view in self._others if folder != this][:OVERLAYS]

    def _beside(self) -> tuple[tuple[str, History], ...]:
        """Return the other runs that have the enlarged metric; a run of another kind may lack it."""
        field = self._metrics[self._selected].field
        return tuple((name, view.history) for name, view in self._marked() if field in view.history.names)

    def _curves(self) -> list[Curve]:
        """Return the curves of score against KL: this run, then the marked ones that have points."""
        marked = (curve_of(view, place, name) for place, (name, view) in enumerate(self._marked()))
        return [curve_of(self._view), *(curve for curve in marked if curve.compared)]

    def _window(self) -> Window:
        if self._enlarged and self._span is None and (others := self._beside()):
            return window_over([self._view.history, *(history for _, history in others)])
        return window_of(self._view.history, self._span, self._at())

    def _charted(self) -> Charted:
        return Charted(window=self._window(), at=self._at(), average=self._average, log=self._log)

    def _show(self) -> None:
        """Draw what is visible."""
        view, histogram = self._view, self.query_one(ScoreHistogram)
        self._take_metrics(metrics_of(view, self._chosen))
        width, height = self.size
        key = keys_of(self.screen).get("alarm.open", "!") if view.alarms else ""
        height -= self.query_one(AlarmLines).show(view.alarms, key, height)
        ranks = [] if self._enlarged or self._plotted else rank_texts(view.last)[: max(height // 5, 1)]
        lines = self.query_one("#ranks", Static)
        lines.display = bool(ranks)
        lines.update("\n".join(ranks))
        height -= len(ranks)
        evaluations = [Mark(e.iteration, "evaluation", in_brief(e)) for e in view.newest_evaluations]
        large = large_ones(self._metrics, view.history.kind)
        events, single = len(evaluations) + lines_wanted(view.marks, width), self._enlarged or self._plotted
        shared = layout(
            width,
            height,
            large=1 if single else large,
            small=0 if single else len(self._metrics) - large,
            scores=not (histogram.empty or single),
            events=min(events, max(height // 5, 3)) if single else events,
        )
        self._show_below(shared, evaluations)
        charted, hidden = self._charted(), 0
        if self._enlarged:
            metric = self._metrics[self._selected]
            picture = Picture(charted=charted, metric=metric, marks=view.marks, others=self._beside())
            self.query_one(MetricChart).show(picture)
        elif self._plotted:
            limit = next((metric.threshold for metric in self._metrics if metric.field == "kl"), view.kl_target)
            self.query_one(ScoreAgainstKL).show(self._curves(), charted.iteration, limit)
        else:
            shown = Shown(charted=charted, metrics=self._metrics, selected=self._selected, layout=shared)
            hidden = cells_hidden(shown)
            self.query_one(Overview).show(shown, self._nothing_yet())
        self.border_subtitle = self._sign(charted, hidden)

    def _show_below(self, shared: Layout, evaluations: Sequence[Mark]) -> None:
        """Share the lines below the charts out among histogram and events."""
        histogram, events = self.query_one(ScoreHistogram), self.query_one(Timeline)
        below = self.query_one("#training-below")
        events.show(self._view.marks, evaluations)
        below.display = bool(shared.below)
        below.styles.height = shared.below
        below.set_class(shared.beside, "-beside")
        histogram.display, events.display = bool(shared.histogram), bool(shared.events)
        histogram.styles.height, events.styles.height = shared.histogram, shared.events

    def _take_metrics(self, metrics: tuple[Metric, ...]) -> None:
        """Show these metrics; the selected one stays selected if it is still shown."""
        field, same = self._metrics[self._selected].field, [metric.field for metric in metrics]
        self._selected = same.index(field) if field in same else min(self._selected, len(metrics) - 1)
        self._metrics = metrics

    def _sign(self, charted: Charted, below: int) -> str:
        """Return what is not seen at once, for the border. below: metrics that have no line."""
        hidden, iteration = hidden_metrics(self._view, self._chosen), charted.iteration
        words = [f"iteration {iteration} of {self._view.history.numbers[-1]}"] if iteration is not None else []
        words += ["EMA"] if self._average else []
        words += ["log"] if self._log else []
        words += [f"{below} more ↓"] if below else []
        words += [f"{counted(hidden, 'metric')} hidden · {keys_of(self)['training.metrics']}"] if hidden else []
        return " · ".join(words)

    def _nothing_yet(self) -> str:
        if self._view.is_starting:
            words = self._view.state_text
            return f"{words[0].upper()}{words[1:]}."
        if self._view.ended is not None:
            return "The run ended before its first iteration was over."
        if self._view.started is not None:
            return "First iteration running; metrics appear when it finishes."
        start = keys_of(self.screen).get("run.start", "space")
        return f"No run yet. Press {start} to train the configuration."
