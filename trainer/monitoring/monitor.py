"""The engine of all rules: it keeps one history of a run, and reports alarms and decisions about each event."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from trainer.config.schema import Action, AlarmCode, Config, ConvergenceConfig
from trainer.events import Alarm, Alert, Decision, Evaluation, Event, Iteration, RolledBack, RunStarted, SettingChanged
from trainer.monitoring.convergence_rules import collapse, degradation, plateau, runaway_kl, target
from trainer.monitoring.history import History, Rule, Sign
from trainer.monitoring.policy_rules import entropy_collapse, kl_high, kl_negative, not_training, sampling_bias
from trainer.monitoring.reward_rules import length_exploitation, repetition, reward_hacking, truncation
from trainer.monitoring.update_rules import (
    clip_saturation,
    critic_lost,
    critic_pull,
    gradient_spike,
    no_signal,
    ratio_spike,
    step_nan,
    straggler,
    throughput,
)

ALARM_RULES: dict[AlarmCode, Rule] = {
    "step_nan": step_nan,
    "not_training": not_training,
    "no_signal": no_signal,
    "kl_high": kl_high,
    "kl_negative": kl_negative,
    "sampling_bias": sampling_bias,
    "entropy_collapse": entropy_collapse,
    "clip_saturation": clip_saturation,
    "ratio_spike": ratio_spike,
    "gradient_spike": gradient_spike,
    "critic_lost": critic_lost,
    "critic_pull": critic_pull,
    "length_exploitation": length_exploitation,
    "truncation": truncation,
    "repetition": repetition,
    "reward_hacking": reward_hacking,
    "throughput": throughput,
    "straggler": straggler,
}
"""Rules that raise alarms, by code, the most urgent first."""

DecisionRule = Literal["target", "plateau", "collapse", "degradation", "kl"]

DECISION_RULES: dict[DecisionRule, Rule] = {
    "target": target,
    "plateau": plateau,
    "collapse": collapse,
    "degradation": degradation,
    "kl": runaway_kl,
}
"""Rules of [convergence] that make decisions, by name; `convergence.on_NAME` is the action of each."""

AWAY = 10
"""Iterations without its sign after which an alarm is resolved; if the sign comes back, it is reported again."""

TRIED = 10
"""Iterations that a changed setting gets to help; an alarm whose sign persists is then reported again."""


class Monitor:
    """Monitor of a run: `take` each of its events in order, and report what it returns.

    config_of: returns the current configuration. past: earlier events, whose alarms and decisions were reported then.
    """

    def __init__(self, config_of: Callable[[], Config], past: Sequence[Event] = ()) -> None:
        self._config_of = config_of
        self._history = History()
        self._alarms = Alarms()
        self._decisions = Decisions()
        for event in past:
            self.take(event)

    @property
    def unresolved_alarms(self) -> dict[str, str]:
        """Code and level of the reported alarms whose sign was there within the last ten iterations."""
        return self._alarms.unresolved if self._config_of().health.alarms else {}

    def take(self, event: Event) -> list[Alert]:
        """Return the alerts to report right after `event`, and then to `take` as well: alarms, then decisions."""
        config = self._config_of()
        is_news = self._history.take(event, config)
        self._alarms.take(event)
        self._decisions.take(event, config.convergence)
        alerts: list[Alert] = []
        if is_news and config.health.alarms:
            alerts += self._alarms.new(self._history, config)
        if isinstance(event, Iteration | Evaluation):
            alerts += self._decisions.new(self._history, config, event.iteration)
        return alerts

    def pauses(self, alert: Alert) -> bool:
        """Return whether the run is to pause at `alert`."""
        return isinstance(alert, Alarm) and alert.level == "error" and self._config_of().health.pause

    def due(self, iteration: int) -> Decision | None:
        """Return the decision due between `iteration` and the next: to stop, or else to roll back, or None."""
        return self._decisions.due(iteration)


class _Reported(NamedTuple):
    level: str
    seen: int  # last iteration with its sign
    keys: frozenset[str]  # settings that its fixes change
    tried: float = math.inf  # iteration in which one of them changed


class Alarms:
    """Alarms of a run, each reported when it begins and when a warning becomes an error.

    One is reported again only after it was resolved, after a rollback, or if a change of one of the settings that it
    suggested did not help. It counts as reported when it is fed as an event itself: a journal that is replayed under
    other settings has alarms of its own, and not those that these settings would have raised.
    """

    def __init__(self) -> None:
        self._reported: dict[str, _Reported] = {}

    @property
    def unresolved(self) -> dict[str, str]:
        """Code and level of the reported alarms whose sign was there within the last ten iterations.

        Unlike an active alarm of `alarms.py`, one stays unresolved as long as its sign persists, even if dismissed.
        """
        return {code: reported.level for code, reported in self._reported.items()}

    def take(self, event: Event) -> None:
        """Note an alarm that was reported, forget those that `event` ends, and note a change of a setting."""
        match event:
            case Alarm() if event.code in ALARM_RULES:
                keys = frozenset(fix.key for fix in event.fixes if fix.key)
                self._reported[event.code] = _Reported(event.level, event.iteration, keys)
            case RolledBack() | RunStarted(resumed_at=None):
                self._reported.clear()
            case SettingChanged():
                for code, reported in self._reported.items():
                    if event.key in reported.keys:
                        self._reported[code] = reported._replace(tried=event.iteration)

    def new(self, history: History, config: Config) -> list[Alarm]:
        """Return the alarms to report now, the most urgent first."""
        alarms, now = [], history.iteration
        for code, rule in ALARM_RULES.items():
            sign = None if code in config.health.ignore else rule(history, config)
            reported = self._reported.get(code)
            if sign is None:
                if reported and now - reported.seen >= AWAY:
                    del self._reported[code]
            elif reported and (reported.level, sign.level) != ("warning", "error") and now - reported.tried < TRIED:
                self._reported[code] = reported._replace(seen=now)
            else:
                alarms.append(_alarm(code, sign, now))
        return alarms


def _alarm(code: str, sign: Sign, iteration: int) -> Alarm:
    return Alarm(
        iteration=iteration,
        level=sign.level,
        code=code,
        message=sign.message,
        evidence={name: float(value) for name, value in sign.evidence.items() if math.isfinite(value)},
        advice=sign.advice,
        fixes=[fix for fix in sign.fixes if fix is not None],
    )


class Decisions:
    """Decisions of the rules of [convergence], which depend on the run's events alone.

    A rule decides when it begins to hold, and again after it has not held in between or the run was rolled back. A
    decision takes effect when it is fed as an event itself, so that those in a journal are not made again.
    """

    def __init__(self) -> None:
        self._active: dict[str, Decision] = {}
        self._rollbacks = 0

    def take(self, event: Event, settings: ConvergenceConfig) -> None:
        """Note a decision that was reported, or a rollback."""
        match event:
            case RolledBack():
                self._rollbacks += self.due(event.iteration) is not None
                self._active = {}
            case Decision() if event.rule in DECISION_RULES and event.action == self._action(event.rule, settings):
                self._active[event.rule] = event

    def new(self, history: History, config: Config, iteration: int) -> list[Decision]:
        """Return the decisions to report now."""
        settings, decisions = config.convergence, []
        for name, rule in DECISION_RULES.items():
            action = self._action(name, settings)
            if action == "off" or (sign := rule(history, config)) is None:
                self._active.pop(name, None)
            elif name not in self._active:
                decisions.append(_decision(name, sign, action, settings, iteration))
        return decisions

    def due(self, iteration: int) -> Decision | None:
        """Return the decision due between `iteration` and the next: to stop, or else to roll back, or None."""
        due = [d for d in self._active.values() if d.iteration == iteration and d.action in ("stop", "rollback")]
        return min(due, key=lambda decision: decision.action != "stop", default=None)

    def _action(self, rule: DecisionRule, settings: ConvergenceConfig) -> Action:
        """Return the current action of a rule: "stop" instead of "rollback" after max_rollbacks."""
        action = _configured(rule, settings)
        return "stop" if action == "rollback" and self._rollbacks >= settings.max_rollbacks else action


def _configured(rule: DecisionRule, settings: ConvergenceConfig) -> Action:
    action: Action = getattr(settings, f"on_{rule}")
    return action


def _decision(rule: DecisionRule, sign: Sign, action: Action, settings: ConvergenceConfig, iteration: int) -> Decision:
    assert action != "off"
    return Decision(
        iteration=iteration,
        level="error" if action == "stop" and sign.level == "warning" else sign.level,
        code=f"convergence_{rule}",
        message=f"{sign.message}: {_consequence(rule, action, settings)}",
        rule=rule,
        action=action,
        evidence=sign.evidence,
    )


def _consequence(rule: DecisionRule, action: Action, settings: ConvergenceConfig) -> str:
    setting = f"convergence.on_{rule}"
    match action:
        case "stop" if _configured(rule, settings) == "rollback":
            return f"the run stops after convergence.max_rollbacks = {settings.max_rollbacks} rollbacks"
        case "stop":
            return f"the run stops; to continue, --resume it with {setting} = 'off'"
        case "rollback":
            return f"the run is rolled back ({setting})"
        case _:
            return "the run continues"
