"""Training pane: the metrics of the run over its iterations, the newest scores, and a timeline."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from pathlib import Path
from textwrap import wrap
from typing import ClassVar, Literal

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Container, Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import Static
from textual.widgets.selection_list import Selection

from trainer.errors import counted
from trainer.runs.listing import PPO
from workbench.kit.axes import number_text, window_of, window_over
from workbench.kit.dialog import ChoiceList, Dialog
from workbench.kit.drawing import OVERLAYS, Drawn
from workbench.kit.keys import bind, hidden_key, keys_of
from workbench.kit.pane import Badge, Pane
from workbench.run.history import MetricHistory
from workbench.run.metrics import DEFAULT, MAIN, METRICS, Metric
from workbench.run.sentences import level_sign, rank_texts, state_words, urgent_first
from workbench.run.view import RunView
from workbench.text import Line
from workbench.training.alarms import alarm_line
from workbench.training.critic import critic_of
from workbench.training.metric_grid import Charted, is_informative, metrics_of, reading_at
from workbench.training.overview import Layout, Overview, Shown, histogram, layout, overview
from workbench.training.score_against_kl import curve_of, point_at, point_text, score_against_kl
from workbench.training.timeline import Timeline

_SPANS = tuple(factor * 10**power for power in range(1, 7) for factor in (1, 2, 5) if factor * 10**power >= 50)
_ROOMY = 26  # lines of a pane that keeps a line for alarms, so that nothing moves when one comes
_ALL = 10**9


class ChooseMetricsScreen(Dialog[tuple[str, ...]]):
    """Dialog that returns the fields of the metrics to show, in the order of the table; empty for the default ones."""

    BINDINGS: ClassVar[list[BindingType]] = [
        bind("escape", "close", "close", "metrics.close", "Show the chosen metrics")
    ]

    def __init__(self, shown: Collection[str]) -> None:
        super().__init__()
        self._shown = shown

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static("Metrics to show", markup=False, classes="question")
            yield ChoiceList(
                *(Selection(Content(metric.label), metric.field, metric.field in self._shown) for metric in METRICS)
            )
            hidden = "Metrics that this run does not record, or that never change, are hidden."
            keys = self.hint(("space", "shows or hides one"), ("metrics.close", "closes"))
            yield Static(Content.assemble(hidden, "\n", keys), classes="detail")

    def action_close(self) -> None:
        chosen = set(self.query_one(ChoiceList).selected)
        self.dismiss(tuple(metric.field for metric in METRICS if metric.field in chosen))


class TrainingPane(Pane):
    """Pane with all metrics, or one of them enlarged, and one cursor over the iterations of all."""

    TITLE = "Training"
    HELP = (
        "The worst active alarm is on top. Below it are charts of the two main metrics (dotted: a standard deviation "
        "of the batch on either side, averaged over about 4 iterations; ⚠ and ✖: alarms), the other metrics with their "
        "values, where the time went, and events, the newest first.\n"
        "A run on several processes has a line for each of them, with what it did in the newest iteration.\n"
        "{training.plot} plots score against KL, with the runs that are marked in Home.\n"
        "{training.enlarge} on the explained variance also shows the critic's calibration: tokens in fifths by the "
        "return that it predicted. A bar that ends below its ◂ got less than that.\n"
        "{training.left} and {training.right} move a cursor over the iterations: values and samples are then of that "
        "iteration.\n"
        "× marks a number that was NaN or infinite, ! a value past its limit ┄, ▾ and ▴ a value "
        "beyond the axis, a gap a missing iteration. Metrics that this run does not record, or that never change, "
        "are hidden."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("enter", "mode('one')", "enlarge", "training.enlarge", "Draw this metric as a large chart"),
        bind("escape", "close", "back", "training.close", "Return to all metrics, then to the newest"),
        hidden_key("up", "select(-1)", "metric up", "training.up", "Go to the previous metric"),
        hidden_key("down", "select(1)", "metric down", "training.down", "Go to the next metric"),
        hidden_key("left", "move(-1)", "earlier", "training.left", "Go back one iteration"),
        hidden_key("right", "move(1)", "later", "training.right", "Go forward one iteration"),
        hidden_key("shift+left", "move(-10)", "far back", "training.far-left", "Go back 10 iterations"),
        hidden_key("shift+right", "move(10)", "far forward", "training.far-right", "Go forward 10 iterations"),
        hidden_key("home", f"move({-_ALL})", "first", "training.first", "Go to the first iteration"),
        hidden_key("end", f"move({_ALL})", "newest", "training.newest", "Follow the newest iteration"),
        hidden_key("plus,equals_sign", "zoom(1)", "closer", "training.closer", "Chart fewer iterations"),
        hidden_key("minus", "zoom(-1)", "wider", "training.wider", "Chart more iterations"),
        bind("e", "draw('EMA')", "EMA", "training.average", "Show or hide the exponential moving average"),
        bind("l", "draw('log')", "log", "training.log", "Switch losses, KL and gradient to logarithmic axes"),
        bind("k", "mode('plot')", "score/KL", "training.plot", "Plot score against KL, with the marked runs"),
        hidden_key("y", "copy", "copy", "training.copy", "Copy iteration, metric and value"),
        bind("v", "choose", "metrics", "training.metrics", "Choose which metrics are shown"),
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
        self._drawn: set[str] = set()  # EMA, log
        self._mode: Literal["all", "one", "plot"] = "all"  # all metrics, one enlarged, or score against KL
        self._others: list[tuple[Path, RunView]] = []
        self._scores: tuple[Sequence[float], int] = ((), 0)  # and their iteration
        self._shown: object = None  # what the charts were drawn from

    def compose(self) -> ComposeResult:
        yield Drawn(id="training-alarms")
        yield Overview()
        yield Static(id="ranks", markup=False)
        with Container(id="training-below"):
            yield Drawn(id="training-scores")
            yield Timeline()

    def badge_for(self, view: RunView) -> Badge:
        if not view.alarms:
            return Badge()
        worst = urgent_first(view.alarms)[0].level
        more = str(len(view.alarms)) if len(view.alarms) > 1 else ""
        return Badge(f"{level_sign(worst)}{more}", "error" if worst == "error" else "warning")

    def show_run(self, view: RunView) -> None:
        if view is not self._view:
            if self._view.started is not None:  # else the scores, which may have come first, are of this run
                self._scores = ((), 0)
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
        self._scores = (scores, iteration)
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
        has_iterations, is_ppo = bool(len(self._view.history)), self._view.history.kind == PPO
        if action == "mode":
            return has_iterations and (is_ppo if parameters[0] == "plot" else self._mode == "all")
        if action == "close":
            return self._mode != "all" or self._cursor is not None
        return {"copy": has_iterations, "choose": is_ppo}.get(action, True)

    def action_mode(self, mode: Literal["all", "one", "plot"]) -> None:
        """Show one metric enlarged, or score against KL; all metrics if it is shown already."""
        self._mode = mode if mode != self._mode else "all"
        self._show()
        self.refresh_bindings()

    def action_close(self) -> None:
        if self._mode != "all":
            self.action_mode("all")
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

    def action_zoom(self, direction: int) -> None:
        size = len(self._view.history)
        spans = [span for span in _SPANS if span < size]
        at = spans.index(self._span) if self._span in spans else len(spans)
        at = min(max(at - direction, 0), len(spans))
        self._span = spans[at] if at < len(spans) else None
        self._show()

    def action_draw(self, what: str) -> None:
        self._drawn ^= {what}
        self._show()

    def action_choose(self) -> None:
        def chosen(fields: tuple[str, ...] | None) -> None:
            if fields is not None:
                self.metrics_shown = fields

        self.app.push_screen(ChooseMetricsScreen(self.metrics_shown), chosen)

    def action_copy(self) -> None:
        if self._mode == "plot":
            if (point := point_at(curve_of(self._view), self._cursor)) is not None:
                self.copy(point_text(point), "the point")
            return
        at, metric = self._at(), self._metrics[self._selected]
        value = reading_at(self._charted(), metric).value
        text = metric.with_unit(value) if math.isfinite(value) else number_text(value, metric.digits, 9)
        iteration = self._view.history.numbers[-1 if at is None else at]
        self.copy(f"iteration {iteration}: {metric.label} {text}", "the value")

    def on_overview_picked(self, message: Overview.Picked) -> None:
        message.stop()
        if self._mode == "all":
            self._selected = message.number
        if message.iteration is not None:
            newest = message.iteration == self._view.history.numbers[-1]
            self._put_cursor(None if newest else message.iteration)
        else:
            self._show()

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

    def _beside(self) -> tuple[tuple[str, MetricHistory], ...]:
        """Return the other runs beside an enlarged metric that have it; a run of another kind may lack it."""
        field = self._metrics[self._selected].field
        marked = self._marked() if self._mode == "one" else []
        return tuple((name, view.history) for name, view in marked if field in view.history.names)

    def _charted(self) -> Charted:
        history, others = self._view.history, self._beside()
        window = window_of(history, self._span, self._at())
        if others and self._span is None:
            window = window_over([history, *(other for _, other in others)])
        return Charted(window=window, at=self._at(), average="EMA" in self._drawn, log="log" in self._drawn)

    def _show(self) -> None:
        """Draw what is visible."""
        view, is_all = self._view, self._mode == "all"
        field, self._metrics = self._metrics[self._selected].field, metrics_of(view, self._chosen)
        fields = [metric.field for metric in self._metrics]
        self._selected = fields.index(field) if field in fields else min(self._selected, len(fields) - 1)
        critic = None
        if self._mode == "one" and self._metrics[self._selected].field == "explained_variance":
            critic = critic_of(view.history, self._at())
        large = sum(metric.field in MAIN[view.history.kind] for metric in self._metrics) if is_all else 1 + bool(critic)
        shared, charted, charts = self._show_around(large), self._charted(), self.query_one(Overview)
        if self._mode == "plot":
            marked = (curve_of(view, place, name) for place, (name, view) in enumerate(self._marked()))
            curves = [curve_of(view), *(curve for curve in marked if curve.compared)]
            limit = next((metric.threshold for metric in self._metrics if metric.field == "kl"), view.kl_target)
            charts.show(partial(score_against_kl, curves, charted.iteration, limit))
        elif not len(view.history):
            charts.show(self._nothing_yet)
        else:
            shown = Shown(
                charted=charted,
                metrics=self._metrics if is_all else self._metrics[self._selected : self._selected + 1],
                selected=self._selected if is_all else 0,
                layout=shared,
                marks=view.marks,
                others=self._beside(),
                drawing=critic,
            )
            charts.show(lambda width, _: overview(shown, width)[0], shown)
        iteration, is_ppo = charted.iteration, view.history.kind == PPO
        hidden = sum(is_ppo and m not in self._chosen and is_informative(view.history, m) for m in DEFAULT)
        below = len(self._metrics) - len(shared.charts) - shared.rows * shared.columns if is_all else 0
        words = [f"iteration {iteration} of {view.history.numbers[-1]}"] if iteration is not None else []
        words += [*sorted(self._drawn), *([f"{below} more ↓"] if below > 0 else [])]
        words += [f"{counted(hidden, 'metric')} hidden · {keys_of(self)['training.metrics']}"] if hidden else []
        self.border_subtitle = " · ".join(words)

    on_mount = on_resize = _show

    def _show_around(self, large: int) -> Layout:
        """Draw what is above and below the charts, and return how the lines are shared out. large: charts."""
        view, is_all, (width, height) = self._view, self._mode == "all", self.size
        alarms = self.query_one("#training-alarms", Drawn)
        alarms.display = bool(view.alarms or (view.history and height >= _ROOMY))
        key, active = keys_of(self.screen).get("alarm.open", "!"), tuple(view.alarms)
        alarms.show(lambda width, _: [alarm_line(active, width, key)])
        ranks, texts = self.query_one("#ranks", Static), rank_texts(view.last)[: max(height // 5, 1)] if is_all else []
        ranks.display = bool(texts)
        ranks.update("\n".join(texts))
        height -= alarms.display + len(texts)

        scores, timeline = self.query_one("#training-scores", Drawn), self.query_one(Timeline)
        scores.show(partial(histogram, *self._scores))
        events = timeline.show(view.marks)
        shared = layout(
            width,
            height,
            large=large,
            small=len(self._metrics) - large if is_all else 0,
            scores=is_all and bool(self._scores[0]),
            events=events if is_all else min(events, max(height // 5, 3)),
        )
        below = self.query_one("#training-below")
        below.display, below.styles.height = bool(shared.below), shared.below
        below.set_class(shared.beside, "-beside")
        for widget, share in ((scores, shared.histogram), (timeline, shared.events)):
            widget.display, widget.styles.height = bool(share), share
        return shared

    def _nothing_yet(self, width: int, height: int) -> list[Line]:
        view = self._view
        text = f"No run yet. Press {keys_of(self.screen).get('run.start', 'space')} to train the configuration."
        if view.is_starting:
            words = state_words(view.state)
            text = f"{words[0].upper()}{words[1:]}."
        elif view.ended is not None:
            text = "The run ended before its first iteration was over."
        elif view.started is not None:
            text = "First iteration running; metrics appear when it finishes."
        return [[], *([(f" {line}", "muted")] for line in wrap(text, max(width - 2, 1)))]
