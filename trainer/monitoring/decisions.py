"""Decisions by the rules of [convergence]: a run has reached its goal, or goes so wrong that it stops or rolls back.

They look at windows of `convergence.window` iterations; a decision says what they found and what follows.
"""

from __future__ import annotations

from typing import Literal

from trainer.config.schema import Action, Config, ConvergenceConfig
from trainer.events import Decision, Event, RolledBack
from trainer.monitoring.history import History, Rule, Sign, window_mean

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
    entropy = window_mean([row.entropy for row in newest])
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
    kl, limit = window_mean([row.kl for row in newest]), config.convergence.kl_limit
    if not limit and config.ppo.kl_controller == "adaptive":
        limit = UNSTABLE_KL * kl_target
    if limit and kl > limit:
        message = f"the KL is {kl:.3g} nats a sequence over {size} iterations, above {limit:.3g}"
        return Sign("warning", message, {"kl": kl, "kl_limit": limit})
    if not (older := history.learning.newest(size, before=size)):
        return None
    kl_before = window_mean([row.kl for row in older])
    first_half, second_half = (
        window_mean([row.kl for row in rows]) for rows in (newest[: size // 2], newest[size // 2 :])
    )
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
                decisions.append(
                    Decision(
                        iteration=iteration,
                        level="error" if action == "stop" and sign.level == "warning" else sign.level,
                        code=f"convergence_{name}",
                        message=f"{sign.message}: {_consequence(name, action, settings)}",
                        rule=name,
                        action=action,
                        evidence=sign.evidence,
                    )
                )
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
