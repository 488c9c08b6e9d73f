"""The engine of all rules: it keeps one history of a run, and reports alarms and decisions about each event.

An alarm offers fixes, each applied with one key and computed from the configuration.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from trainer.config.ppo import PPOConfig
from trainer.config.schema import AlarmCode, Config, OptimConfig
from trainer.events import (
    Alarm,
    Alert,
    Decision,
    Evaluation,
    Event,
    Fix,
    Iteration,
    RolledBack,
    RunEnded,
    RunStarted,
    SettingChanged,
)
from trainer.monitoring import policy_rules, reward_rules, update_rules
from trainer.monitoring.decisions import Decisions
from trainer.monitoring.history import History, Rule

ALARM_RULES: dict[AlarmCode, Rule] = {
    "step_nan": update_rules.step_nan,
    "not_training": policy_rules.not_training,
    "no_signal": update_rules.no_signal,
    "kl_high": policy_rules.kl_high,
    "kl_negative": policy_rules.kl_negative,
    "sampling_bias": policy_rules.sampling_bias,
    "entropy_collapse": policy_rules.entropy_collapse,
    "clip_saturation": update_rules.clip_saturation,
    "ratio_spike": update_rules.ratio_spike,
    "gradient_spike": update_rules.gradient_spike,
    "critic_lost": update_rules.critic_lost,
    "critic_pull": update_rules.critic_pull,
    "length_exploitation": reward_rules.length_exploitation,
    "truncation": reward_rules.truncation,
    "repetition": reward_rules.repetition,
    "reward_hacking": reward_rules.reward_hacking,
    "throughput": update_rules.throughput,
    "straggler": update_rules.straggler,
}
"""Rules that raise alarms, by code, the most urgent first."""

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

        Unlike an active alarm of `active_alarms`, one stays unresolved as long as its sign persists, even if dismissed.
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
                alarms.append(
                    Alarm(
                        iteration=now,
                        level=sign.level,
                        code=code,
                        message=sign.message,
                        evidence={name: float(value) for name, value in sign.evidence.items() if math.isfinite(value)},
                        advice=sign.advice,
                        fixes=list(filter(None, (_fix(fix, history, config) for fix in sign.fixes))),
                    )
                )
        return alarms


class Change(NamedTuple):
    """A fix that changes one setting, by a factor as in the tuning guide of the PPO concepts reference."""

    key: str  # dotted
    factor: float
    of_zero: float = 0.0  # value in place of 0
    least: float = 0.0
    most: float = math.inf


CHANGES: dict[str, Change] = {
    "raise_kl_coef": Change("ppo.kl_coef", 2, PPOConfig().kl_coef, most=100),
    "lower_policy_lr": Change("optim.policy_lr", 1 / 2),
    "raise_policy_lr": Change("optim.policy_lr", 10, OptimConfig().policy_lr, most=1),
    "lower_value_lr": Change("optim.value_lr", 1 / 10),
    "raise_value_lr": Change("optim.value_lr", 3, OptimConfig().value_lr, most=1),
    "lower_value_coef": Change("ppo.value_coef", 1 / 10),
    "lower_clip": Change("ppo.clip", 1 / 2),
    "fewer_epochs": Change("ppo.epochs", 1 / 2, least=1),
    "entropy_bonus": Change("ppo.entropy_coef", 2, 0.01),
    "sample_all_p": Change("rollout.top_p", math.inf, most=1),
    "sample_all_k": Change("rollout.top_k", 0),
}
_SMALLEST_CLIP = 0.05


def _fix(fix: str | Fix | None, history: History, config: Config) -> Fix | None:
    """Return the fix of that name, or the one that a rule has made; None if it would change nothing."""
    if not isinstance(fix, str):
        return fix
    if fix == "pause":
        return Fix(label="pause and look at the samples", action="pause")
    if fix == "roll_back":
        return Fix(label="roll back to the best checkpoint", action="rollback") if history.has_checkpoint else None
    change = CHANGES[fix]
    section, _, name = change.key.partition(".")
    old = now = getattr(getattr(config, section), name)
    if fix == "raise_kl_coef" and (last := history.run.newest(1)):
        now = max(now, last[0].kl_coef)  # which a controller may have moved
    value = min(max(now * change.factor or change.of_zero, change.least), change.most)
    value = int(value) if isinstance(old, int) else float(f"{value:.3g}")
    if value == old or (fix == "lower_clip" and old <= _SMALLEST_CLIP):
        return None
    verb = "raise" if value > old else "lower"
    return Fix(label=f"{verb} {name} to {value:g}", action="set", key=change.key, value=value)


ACTIVE_ITERATIONS = 20
"""Iterations for which an alarm stays active: events report its beginning, not its end."""

_SEVERITY = {"info": 0, "warning": 1, "error": 2}


def severity(level: str) -> int:
    """Return a number that is higher for a worse level; a level of a newer version counts as a warning."""
    return _SEVERITY.get(level, _SEVERITY["warning"])


def is_active_after(alarm: Alarm, event: Event) -> bool:
    """Return whether `alarm`, active before `event`, is still active after it.

    It ends with a rollback, a change of a setting that one of its fixes sets, another alarm of its code, or time.
    """
    match event:
        case RolledBack():
            return False
        case SettingChanged():
            return all(fix.key != event.key for fix in alarm.fixes if fix.action == "set")
        case Alarm():
            return event.code != alarm.code
    iteration = getattr(event, "iteration", alarm.iteration)
    return bool(iteration < alarm.iteration + ACTIVE_ITERATIONS)


def active_alarms(events: Iterable[Event]) -> dict[str, str]:
    """Return code and level of the alarms active after `events`, the worst first.

    They include those that `RunEnded` lists as unresolved.
    """
    active: list[Alarm] = []
    unresolved: dict[str, str] = {}
    for event in events:
        active = [alarm for alarm in active if is_active_after(alarm, event)]
        match event:
            case Alarm():
                active.append(event)
            case RunStarted():
                unresolved = {}
                active = [alarm for alarm in active if alarm.iteration <= (event.resumed_at or 0)]
            case RunEnded():
                unresolved = event.alarms
    found = unresolved | {alarm.code: alarm.level for alarm in active}
    return dict(sorted(found.items(), key=lambda item: -severity(item[1])))
