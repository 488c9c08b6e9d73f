"""The state of a run, built from its events. Whatever a screen shows is a function of this record."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, fields
from typing import Any, Literal, NamedTuple, TypeVar

from trainer.engine.live_settings import in_words
from trainer.events import (
    Alarm,
    Alert,
    CheckpointSaved,
    DataChanged,
    Decision,
    Evaluation,
    Event,
    HumanEvaluation,
    Iteration,
    PhaseProgress,
    RewardModelEvaluation,
    RewardModelStep,
    RolledBack,
    RunEnded,
    RunStarted,
    SamplesWritten,
    SettingChanged,
    State,
    StateChanged,
)
from trainer.monitoring.monitor import is_active_after
from trainer.runs.listing import RECENT, last_mean
from workbench.run.history import MetricHistory, kind_of
from workbench.run.metrics import Numbers
from workbench.run.sentences import AnyEvaluation, alert_text, in_brief, resumption

STARTING = "starting"
"""Note on a run whose process has not reported its start yet."""

_KEPT = 500  # newest events of a kind that are kept
_MARKS = 2000

Kept = TypeVar("Kept")
MarkKind = Literal["checkpoint", "alert", "alarm", "decision", "rollback", "setting", "evaluation", "resumed", "end"]
_REDONE = ("evaluation", "checkpoint", "alarm", "decision", "rollback")  # reported again by a run that repeats them


class Mark(NamedTuple):
    """Something that happened at an iteration, for a timeline. `text` is not made safe to print."""

    iteration: int
    kind: MarkKind
    text: str
    level: str = ""  # of an alert or alarm


@dataclass(slots=True)
class RunView:
    """The state of a run. `take` folds in one event, live or from a journal.

    Lists keep only the newest 500 events or 2000 marks, so that a run may go on for ever. The reader of the run sets
    what no event reports: `problems`, and the first `kl_target`.
    """

    started: RunStarted | None = None
    state: State = "loading"
    is_starting: bool = False  # a run is under way that has not reported its start, or has just continued
    phase: PhaseProgress | None = None
    history: MetricHistory = field(default_factory=MetricHistory)
    last: Numbers | None = None  # the newest
    previous: Numbers | None = None  # the one before it
    evaluations: list[Evaluation] = field(default_factory=list)
    held_out: list[RewardModelEvaluation] = field(default_factory=list)  # on comparisons; of a DPO run too
    judged: HumanEvaluation | None = None  # the newest
    alerts: list[Alert | RolledBack] = field(default_factory=list)  # alarms and decisions among them
    log: list[tuple[float, Event]] = field(default_factory=list)  # starts, alerts and ends with their unix seconds
    logged: int = 0  # including those no longer kept
    alarms: list[Alarm] = field(default_factory=list)  # active, newest last; of one iteration the first reported last
    checkpoints: list[CheckpointSaved] = field(default_factory=list)
    settings: list[SettingChanged] = field(default_factory=list)
    samples: SamplesWritten | None = None
    marks: list[Mark] = field(default_factory=list)
    ended: RunEnded | None = None
    problems: list[str] = field(default_factory=list)  # what could not be read
    kl_target: float | None = None  # nats a sequence; of a run whose kl_coef follows the KL

    def take(self, event: Event, at: float | None = None) -> None:
        """Fold in one event, which happened at unix second `at`, by default now; unknown kinds change nothing."""
        if self.alarms:
            self.alarms[:] = [alarm for alarm in self.alarms if is_active_after(alarm, event)]
        match event:
            case RunStarted():
                self._start(event)
            case StateChanged():
                self.state = event.state
                self.phase = None
                self.is_starting = event.state == "loading"
            case PhaseProgress():
                self.phase = event
            case Iteration() | RewardModelStep():
                self._add(event)
            case Evaluation():
                _keep(self.evaluations, event)
                self.history.evaluate(event)
                self._mark(event.iteration, "evaluation", in_brief(event))
            case RewardModelEvaluation():
                _keep(self.held_out, event)
                self.history.evaluate(event)
                self._mark(event.iteration, "evaluation", in_brief(event))
            case HumanEvaluation():
                # The result comes anew with every few labels, so it replaces a mark just before it.
                old, self.judged = self.judged, event
                if old and old.iteration == event.iteration and self.marks and self.marks[-1].text == in_brief(old):
                    self.marks.pop()
                self._mark(event.iteration, "evaluation", in_brief(event))
            case Alert() | RolledBack():
                if isinstance(event, DataChanged):
                    self.evaluations.clear()
                    self.history.forget_evaluations()
                _keep(self.alerts, event)
                if isinstance(event, Alarm):
                    same = (place for place, other in enumerate(self.alarms) if other.iteration == event.iteration)
                    self.alarms.insert(next(same, len(self.alarms)), event)
                kinds: dict[type[Event], MarkKind] = {RolledBack: "rollback", Alarm: "alarm", Decision: "decision"}
                level = "" if isinstance(event, RolledBack | Decision) else event.level
                self._mark(event.iteration, kinds.get(type(event), "alert"), alert_text(event), level)
            case SettingChanged():
                _keep(self.settings, event)
                if event.key == "ppo.kl_target" and self.kl_target is not None and isinstance(event.value, float):
                    self.kl_target = event.value
                self._mark(event.iteration, "setting", f"{event.key} {in_words(event.old)} -> {in_words(event.value)}")
            case SamplesWritten():
                self.samples = event
            case CheckpointSaved():
                _keep(self.checkpoints, event)
                self.history.spend("save", event.iteration, event.seconds)
                self._mark(event.iteration, "checkpoint", event.path)
            case RunEnded():
                self.ended = event
                self.state = event.state
                self.phase = None
                self.is_starting = False
                standing = {alarm.code for alarm in self.alarms}
                newest = {alert.code: alert for alert in self.alerts if isinstance(alert, Alarm)}
                self.alarms[:0] = [newest[code] for code in event.alarms if code in newest and code not in standing]
                self._mark(event.iteration, "end", f"{event.state}: {event.reason}" if event.reason else event.state)
        if isinstance(event, RunStarted | Alert | RolledBack | RunEnded):
            _keep(self.log, (time.time() if at is None else at, event))
            self.logged += 1

    @property
    def newest_evaluations(self) -> list[AnyEvaluation]:
        """Newest evaluations by people, on held-out comparisons and on held-out prompts, as far as there are any."""
        judged = [self.judged] if self.judged else []
        return [*judged, *self.held_out[-1:], *self.evaluations[-1:]]

    @property
    def iteration(self) -> int:
        """Number of finished iterations, including those before a resumption."""
        if self.history:
            return self.history.numbers[-1]
        return max(self.started.resumed_at or 0, 0) if self.started else 0

    @property
    def total(self) -> int:
        """Number of iterations that the run will have."""
        return self.started.iterations if self.started else 0

    @property
    def active_alarms(self) -> dict[str, str]:
        """Code and level of the active alarms, and of those that were unresolved when the run ended."""
        return (self.ended.alarms if self.ended else {}) | {alarm.code: alarm.level for alarm in self.alarms}

    def seconds_left(self) -> float:
        """Return the expected seconds to the end of the run, from the newest iterations; NaN before the first."""
        return last_mean(self.history.column("seconds_total")) * max(self.total - self.iteration, 0)

    def first_and_last(self, name: str) -> tuple[float, float]:
        """Return the means of the metric `name` over the first and the last five iterations; NaN before the first."""
        values = self.history.column(name)
        return last_mean(values[:RECENT]), last_mean(values)

    def put_away(self, alarm: Alarm) -> None:
        """Dismiss `alarm`, which the user has read."""
        self.alarms[:] = [other for other in self.alarms if other is not alarm]

    def _start(self, event: RunStarted) -> None:
        if event.resumed_at is None:
            # Forget everything: another run takes the place of this one.
            fresh = RunView(problems=self.problems, kl_target=self.kl_target)
            for each in fields(self):
                setattr(self, each.name, getattr(fresh, each.name))
        else:
            resumed_at = event.resumed_at  # what came after that checkpoint will be done again
            self.history.cut(resumed_at)
            if self.last is not None and self.last.iteration > resumed_at:
                kept = self.previous is not None and self.previous.iteration <= resumed_at
                self.last, self.previous = (self.previous if kept else None), None
            if self.samples is not None and self.samples.iteration > resumed_at:
                self.samples = None
            if self.judged is not None and self.judged.iteration > resumed_at:
                self.judged = None
            done_again: tuple[list[Any], ...] = (self.evaluations, self.held_out, self.checkpoints, self.alarms)
            for events in done_again:
                events[:] = [event for event in events if event.iteration <= resumed_at]
            self.alerts[:] = [a for a in self.alerts if a.iteration <= resumed_at or type(a) is Alert]
            self.marks[:] = [m for m in self.marks if m.iteration <= resumed_at or m.kind not in _REDONE]
            self._mark(max(resumed_at, 0), "resumed", resumption(resumed_at))
        if not self.history:
            self.history = MetricHistory(event.run_kind)
        self.started = event
        self.ended = None
        self.phase = None
        self.state = "loading"
        self.is_starting = False

    def _add(self, event: Numbers) -> None:
        if (kind := kind_of(event)) != self.history.kind:
            if self.history:  # the journal is damaged: a run has one kind
                return
            self.history = MetricHistory(kind)
        self.history.append(event)
        if self.last is not None and self.last.iteration < event.iteration:
            self.previous = self.last
        elif self.previous is not None and self.previous.iteration >= event.iteration:
            self.previous = None
        self.last = event
        self.phase = None

    def _mark(self, iteration: int, kind: MarkKind, text: str, level: str = "") -> None:
        _keep(self.marks, Mark(iteration, kind, text, level), _MARKS)


def _keep(newest: list[Kept], item: Kept, most: int = _KEPT) -> None:
    newest.append(item)
    del newest[:-most]
