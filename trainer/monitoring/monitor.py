"""The engine of all rules: it keeps one history of a run, and reports alarms and decisions about each event.

An alarm offers fixes, each applied with one key and computed from the configuration. A decision, by the rules of
[convergence], says that a run has reached its goal, or goes so wrong that it stops or is rolled back: the rules look at
windows of `convergence.window` iterations, and the decision says what they found and what follows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean
from typing import Literal, NamedTuple

from trainer.config.ppo import PPOConfig
from trainer.config.schema import Action, AlarmCode, Config, ConvergenceConfig, OptimConfig
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
from trainer.monitoring import policy_rules, update_rules
from trainer.monitoring.history import History, Rule, Sign

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
    "length_exploitation": policy_rules.length_exploitation,
    "truncation": policy_rules.truncation,
    "repetition": policy_rules.repetition,
    "reward_hacking": policy_rules.reward_hacking,
    "throughput": update_rules.throughput,
    "straggler": update_rules.straggler,
}
"""Rules that raise alarms, by code, the most urgent first."""

AWAY = 10
"""Iterations without its sign after which an alarm is resolved; if the sign comes back, it is reported again."""

TRIED = 10
"""Iterations that a changed setting gets to help; an alarm whose sign persists is then reported again."""


class _Reported(NamedTuple):
    level: str
    seen: int  # last iteration with its sign
    keys: frozenset[str]  # settings that its fixes change
    tried: float = math.inf  # iteration in which one of them changed


class Monitor:
    """Monitor of a run: `take` each of its events in order, and report what it returns.

    config_of: returns the current configuration. past: earlier events, whose alarms and decisions were reported then.

    An alarm is reported when it begins and when a warning becomes an error; again only after it was resolved, after a
    rollback, or if a change of a setting that it suggests did not help. A rule decides when it begins to hold, and
    again after it has not held in between or the run was rolled back. Both count as reported when they are fed as
    events themselves: a journal that is replayed under other settings has alarms and decisions of its own, and not
    those that these settings would have raised.
    """

    def __init__(self, config_of: Callable[[], Config], past: Sequence[Event] = ()) -> None:
        self._config_of = config_of
        self._history = History()
        self._reported: dict[str, _Reported] = {}
        self._decided: dict[str, Decision] = {}
        self._rollbacks = 0
        for event in past:
            self.take(event)

    @property
    def unresolved_alarms(self) -> dict[str, str]:
        """Code and level of the reported alarms whose sign was there within the last ten iterations.

        Unlike an active alarm of `active_alarms`, one stays unresolved as long as its sign persists, even if dismissed.
        """
        alarms = self._config_of().health.alarms
        return {code: reported.level for code, reported in self._reported.items()} if alarms else {}

    def take(self, event: Event) -> list[Alert]:
        """Return the alerts to report right after `event`, and then to `take` as well: alarms, then decisions."""
        config = self._config_of()
        is_news = self._history.take(event, config)
        match event:
            case Alarm() if event.code in ALARM_RULES:
                keys = frozenset(fix.key for fix in event.fixes if fix.key)
                self._reported[event.code] = _Reported(event.level, event.iteration, keys)
            case Decision() if event.rule in DECISION_RULES:
                if event.action == self._action(event.rule, config.convergence):
                    self._decided[event.rule] = event
            case RolledBack():
                self._rollbacks += self.due(event.iteration) is not None
                self._reported, self._decided = {}, {}
            case RunStarted(resumed_at=None):
                self._reported = {}
            case SettingChanged():
                for code, reported in self._reported.items():
                    if event.key in reported.keys:
                        self._reported[code] = reported._replace(tried=event.iteration)
        alerts: list[Alert] = []
        if is_news and config.health.alarms:
            alerts += self._new_alarms(config)
        if isinstance(event, Iteration | Evaluation):
            alerts += self._new_decisions(config, event.iteration)
        return alerts

    def pauses(self, alert: Alert) -> bool:
        """Return whether the run is to pause at `alert`."""
        return isinstance(alert, Alarm) and alert.level == "error" and self._config_of().health.pause

    def due(self, iteration: int) -> Decision | None:
        """Return the decision due between `iteration` and the next: to stop, or else to roll back, or None."""
        due = [d for d in self._decided.values() if d.iteration == iteration and d.action in ("stop", "rollback")]
        return min(due, key=lambda decision: decision.action != "stop", default=None)

    def _new_alarms(self, config: Config) -> list[Alarm]:
        """Return the alarms to report now, the most urgent first."""
        alarms, now = [], self._history.iteration
        for code, rule in ALARM_RULES.items():
            sign = None if code in config.health.ignore else rule(self._history, config)
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
                        fixes=list(filter(None, (_fix(fix, self._history, config) for fix in sign.fixes))),
                    )
                )
        return alarms

    def _new_decisions(self, config: Config, iteration: int) -> list[Decision]:
        """Return the decisions to report now."""
        settings, decisions = config.convergence, []
        for name, rule in DECISION_RULES.items():
            action = self._action(name, settings)
            if action == "off" or (sign := rule(self._history, config)) is None:
                self._decided.pop(name, None)
            elif name not in self._decided:
                setting = f"convergence.on_{name}"
                follows = "the run continues"
                if action == "rollback":
                    follows = f"the run is rolled back ({setting})"
                elif action == "stop" and getattr(settings, f"on_{name}") == "rollback":
                    follows = f"the run stops after convergence.max_rollbacks = {settings.max_rollbacks} rollbacks"
                elif action == "stop":
                    follows = f"the run stops; to continue, --resume it with {setting} = 'off'"
                decisions.append(
                    Decision(
                        iteration=iteration,
                        level="error" if action == "stop" and sign.level == "warning" else sign.level,
                        code=f"convergence_{name}",
                        message=f"{sign.message}: {follows}",
                        rule=name,
                        action=action,
                        evidence=sign.evidence,
                    )
                )
        return decisions

    def _action(self, rule: DecisionRule, settings: ConvergenceConfig) -> Action:
        """Return the current action of a rule: "stop" instead of "rollback" after max_rollbacks."""
        action: Action = getattr(settings, f"on_{rule}")
        return "stop" if action == "rollback" and self._rollbacks >= settings.max_rollbacks else action


class SettingFix(NamedTuple):
    """A fix that changes one setting, by a factor as in the tuning guide of the PPO concepts reference."""

    key: str  # dotted
    factor: float
    of_zero: float = 0.0  # value in place of 0
    least: float = 0.0
    most: float = math.inf


FIXES: dict[str, SettingFix] = {
    "raise_kl_coef": SettingFix("ppo.kl_coef", 2, PPOConfig().kl_coef, most=100),
    "lower_policy_lr": SettingFix("optim.policy_lr", 1 / 2),
    "raise_policy_lr": SettingFix("optim.policy_lr", 10, OptimConfig().policy_lr, most=1),
    "lower_value_lr": SettingFix("optim.value_lr", 1 / 10),
    "raise_value_lr": SettingFix("optim.value_lr", 3, OptimConfig().value_lr, most=1),
    "lower_value_coef": SettingFix("ppo.value_coef", 1 / 10),
    "lower_clip": SettingFix("ppo.clip", 1 / 2),
    "fewer_epochs": SettingFix("ppo.epochs", 1 / 2, least=1),
    "entropy_bonus": SettingFix("ppo.entropy_coef", 2, 0.01),
    "sample_all_p": SettingFix("rollout.top_p", math.inf, most=1),
    "sample_all_k": SettingFix("rollout.top_k", 0),
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
    change = FIXES[fix]
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


COLLAPSED_ENTROPY = 0.2
"""Share of the first entropy below which it has collapsed: a policy that sure of each token tries no others."""
RUNAWAY_KL = 8.0
"""Growth factor between windows above which the KL is diverging. PPO on the starter model, 3 seeds: at most 3.6."""
UNSTABLE_KL = 3.0
"""Multiple of its target above which an adaptive controller has lost control of the KL."""


def target(history: History, config: Config) -> Sign | None:
    """Check whether the mean score has reached the target: that of an evaluation if there are any, else of a window."""
    goal = config.convergence.target_score
    score = history.held_out if history.is_evaluated else history.window_score(config.convergence.window)
    if score is None or not score.mean >= goal:
        return None
    of = "on held-out prompts " if history.is_evaluated else ""
    message = f"the mean score {of}is {score.mean:.3g} and has reached convergence.target_score = {goal:g}"
    return Sign("info", message, {"score": score.mean, "target": goal})


def plateau(history: History, config: Config) -> Sign | None:
    """Check whether the mean scores of the newest two windows are nearly equal."""
    size = config.convergence.window
    newest, older = history.window_score(size), history.window_score(size, before=size)
    if newest is None or older is None:
        return None
    std = (newest.std + older.std) / 2
    if not abs(newest.mean - older.mean) <= config.convergence.plateau * std:
        return None
    message = (
        f"the score no longer changes: {newest.mean:.3g} over {size} iterations, {older.mean:.3g} over the {size} "
        f"before (convergence.plateau = {config.convergence.plateau:g} deviations of {std:.3g})"
    )
    return Sign("info", message, {"score": newest.mean, "score_before": older.mean, "score_std": std})


def collapse(history: History, config: Config) -> Sign | None:
    """Check whether little is left of the entropy of the run's first iteration."""
    start, size = history.first_entropy, config.convergence.window
    if start is None or not (newest := history.learning.newest(size)):
        return None
    entropy = fmean([row.entropy for row in newest])
    if not entropy < COLLAPSED_ENTROPY * start:
        return None
    message = f"the entropy is {entropy:.3g} nats a token over {size} iterations, and was {start:.3g} at the start"
    return Sign("warning", message, {"entropy": entropy, "entropy_start": start})


def degradation(history: History, config: Config) -> Sign | None:
    """Check whether the score, of a window or of an evaluation, is far below its best."""
    pairs = (
        ("", history.window_score(config.convergence.window), history.best),
        ("on held-out prompts ", history.held_out, history.best_held_out),
    )
    for of, score, best in pairs:
        if score is None or best is None:
            continue
        std = max(score.std, best.std)  # if all scores were equal once, any difference would be a fall
        if best.mean - score.mean > config.convergence.degradation * std and score.high < best.low:
            message = (
                f"the mean score {of}fell to {score.mean:.3g} from {best.mean:.3g} at its best, by more than "
                f"convergence.degradation = {config.convergence.degradation:g} deviations of {std:.3g}"
            )
            return Sign("warning", message, {"score": score.mean, "score_best": best.mean, "score_std": std})
    return None


def runaway_kl(history: History, config: Config) -> Sign | None:
    """Check whether the KL is above its limit, or grows fast from one window to the next."""
    size, kl_target = config.convergence.window, config.ppo.kl_target
    if not (newest := history.learning.newest(size)):
        return None
    kl, limit = fmean([row.kl for row in newest]), config.convergence.kl_limit
    if not limit and config.ppo.kl_controller == "adaptive":
        limit = UNSTABLE_KL * kl_target
    if limit and kl > limit:
        message = f"the KL is {kl:.3g} nats a sequence over {size} iterations, above {limit:.3g}"
        return Sign("warning", message, {"kl": kl, "kl_limit": limit})
    if not (older := history.learning.newest(size, before=size)):
        return None
    kl_before = fmean([row.kl for row in older])
    first_half, second_half = (fmean([row.kl for row in rows]) for rows in (newest[: size // 2], newest[size // 2 :]))
    # Below a controller's target the KL may grow at any rate: it begins at 0.
    if kl > max(RUNAWAY_KL * kl_before, kl_target) and second_half > first_half:
        message = f"the KL is diverging: {kl:.3g} nats a sequence over {size} iterations, {kl_before:.3g} before"
        return Sign("warning", message, {"kl": kl, "kl_before": kl_before})
    return None


DecisionRule = Literal["target", "plateau", "collapse", "degradation", "kl"]

DECISION_RULES: dict[DecisionRule, Rule] = {
    "target": target,
    "plateau": plateau,
    "collapse": collapse,
    "degradation": degradation,
    "kl": runaway_kl,
}
"""Rules of [convergence] that make decisions, by name; `convergence.on_NAME` is the action of each."""


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
