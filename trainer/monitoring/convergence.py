"""Convergence rules: whether a run has reached its goal or goes wrong, and the decisions that follow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from trainer.config import Config
from trainer.config.watching import Action, ConvergenceConfig
from trainer.events import Decision, Evaluation, Event, Iteration, RolledBack, SettingChanged

COLLAPSED_ENTROPY = 0.2
"""Share of the first entropy below which it has collapsed: a policy that sure of each token tries no others."""
RUNAWAY_KL = 8.0
"""Growth factor between windows above which the KL runs away. PPO on the starter model, 3 seeds: at most 3.6."""
UNSTABLE_KL = 3.0
"""Multiple of its target above which an adaptive controller has lost control of the KL."""

Rule = Literal["target", "plateau", "collapse", "degradation", "kl"]
Level = Literal["info", "warning", "error"]


class Finding(NamedTuple):
    """Message and numbers of a rule that holds."""

    message: str
    evidence: dict[str, float]


class Scores(NamedTuple):
    """Scores of a window of iterations, or of one evaluation, which has an interval because its prompts are few."""

    mean: float
    std: float  # of the scores of single responses
    low: float
    high: float


class Course:
    """Data of the rules: the newest iterations since the last rollback, and the best scores so far.

    scores: of the newest window, None before there is one; held_out: of the newest evaluation; best, best_held_out:
    the best of each so far. start_entropy: of the first iteration, in nats a token.
    """

    def __init__(self) -> None:
        self.start_entropy: float | None = None
        self.is_evaluated = False
        self.begin_scores()

    def begin_scores(self) -> None:
        """Forget all scores: later ones are not comparable with them."""
        self.best: Scores | None = None
        self.best_held_out: Scores | None = None
        self.begin_windows()

    def begin_windows(self) -> None:
        """Forget the iterations and the newest scores, but keep the best for comparison."""
        self.scores: Scores | None = None
        self.held_out: Scores | None = None
        self._recent: list[Iteration] = []

    def add_iteration(self, event: Iteration, window: int, *, warms_up: bool) -> None:
        """Add an iteration; while the critic warms up and the policy does not learn, its scores and KL do not count."""
        if self.start_entropy is None:
            self.start_entropy = event.entropy
        if warms_up:
            return
        self._recent = [*self._recent[1 - 2 * window :], event]
        if newest := self.window(window):
            self.scores = _scores(newest)
            self.best = _better(self.best, self.scores)

    def add_evaluation(self, event: Evaluation) -> None:
        """Add an evaluation."""
        self.is_evaluated = True
        self.held_out = Scores(event.score_mean, event.score_std, event.score_low, event.score_high)
        self.best_held_out = _better(self.best_held_out, self.held_out)

    def window(self, size: int, *, before: int = 0) -> Sequence[Iteration]:
        """Return the `size` iterations before the newest `before`; none if there are fewer."""
        end = len(self._recent) - before
        return self._recent[end - size : end] if end >= size else []


class ConvergenceCheck:
    """The rules of [convergence] on a run's events, fed in order. Decisions depend on these events alone.

    A rule decides when it begins to hold, and again after it has not held in between or the run was rolled back. A
    decision takes effect when it is fed as an event itself, so that those in a journal are not made again.
    """

    def __init__(self, config_of: Callable[[], Config]) -> None:
        self._config_of = config_of
        self._course = Course()
        self._standing: dict[str, Decision] = {}
        self._rollbacks = 0

    def take(self, event: Event) -> list[Decision]:
        """Return the decisions after `event`."""
        match event:
            case Iteration():
                config = self._config_of()
                warms_up = event.iteration <= config.ppo.critic_warmup
                self._course.add_iteration(event, config.convergence.window, warms_up=warms_up)
                return self._decisions(event.iteration)
            case Evaluation():
                self._course.add_evaluation(event)
                return self._decisions(event.iteration)
            case SettingChanged(key="reward.sources"):
                self._course.begin_scores()
            case RolledBack():
                self._rollbacks += self.due(event.iteration) is not None
                self._course.begin_windows()
                self._standing = {}
            case Decision() if event.action == self._action(event.rule):
                self._standing[event.rule] = event
        return []

    def due(self, iteration: int) -> Decision | None:
        """Return the decision due between `iteration` and the next: to stop, or else to roll back, or None."""
        due = [decision for decision in self._standing.values() if decision.iteration == iteration]
        for action in ("stop", "rollback"):
            for decision in due:
                if decision.action == action:
                    return decision
        return None

    def _decisions(self, iteration: int) -> list[Decision]:
        config, decisions = self._config_of(), []
        for rule in _RULES:
            action = self._action(rule.name)
            if action == "off" or (finding := rule.find(self._course, config)) is None:
                self._standing.pop(rule.name, None)
            elif rule.name not in self._standing:
                decisions.append(self._decision(rule, action, iteration, finding))
        return decisions

    def _decision(self, rule: _Rule, action: Action, iteration: int, finding: Finding) -> Decision:
        assert action != "off"
        level: Level = rule.level
        if action == "stop" and rule.level == "warning":
            level = "error"
        return Decision(
            iteration=iteration,
            level=level,
            code=f"convergence_{rule.name}",
            message=f"{finding.message}: {self._consequence(rule, action)}",
            rule=rule.name,
            action=action,
            evidence=finding.evidence,
        )

    def _action(self, name: Rule) -> Action:
        """Return the current action of a rule: "stop" after max_rollbacks, "off" for a rule of a newer version."""
        settings = self._config_of().convergence
        action: Action = next((rule.action(settings) for rule in _RULES if rule.name == name), "off")
        return "stop" if action == "rollback" and self._rollbacks >= settings.max_rollbacks else action

    def _consequence(self, rule: _Rule, action: Action) -> str:
        settings, setting = self._config_of().convergence, f"convergence.on_{rule.name}"
        match action:
            case "stop" if rule.action(settings) == "rollback":
                return f"the run stops, after as many rollbacks as convergence.max_rollbacks = {settings.max_rollbacks}"
            case "stop":
                return f"the run stops; --resume with {setting} = 'off' goes on"
            case "rollback":
                return f"the run is rolled back ({setting})"
            case _:
                return "the run goes on"


def _target(course: Course, config: Config) -> Finding | None:
    target, scores = config.convergence.target_score, course.held_out if course.is_evaluated else course.scores
    if scores is None or not scores.mean >= target:
        return None
    of = "on held-out prompts " if course.is_evaluated else ""
    message = f"the mean score {of}is {scores.mean:.3g} and has reached convergence.target_score = {target:g}"
    return Finding(message, {"score": scores.mean, "target": target})


def _plateau(course: Course, config: Config) -> Finding | None:
    size = config.convergence.window
    if not (before := course.window(size, before=size)):
        return None
    newest, older = _scores(course.window(size)), _scores(before)
    std = (newest.std + older.std) / 2
    if not abs(newest.mean - older.mean) <= config.convergence.plateau * std:
        return None
    message = (
        f"the score moves no more: {newest.mean:.3g} over {size} iterations, {older.mean:.3g} over the {size} before "
        f"(convergence.plateau = {config.convergence.plateau:g} deviations of {std:.3g})"
    )
    return Finding(message, {"score": newest.mean, "score_before": older.mean, "score_std": std})


def _collapse(course: Course, config: Config) -> Finding | None:
    start, size = course.start_entropy, config.convergence.window
    if start is None or not (newest := course.window(size)):
        return None
    entropy = _mean([event.entropy for event in newest])
    if not entropy < COLLAPSED_ENTROPY * start:
        return None
    message = f"the entropy is {entropy:.3g} nats a token over {size} iterations, and was {start:.3g} at the start"
    return Finding(message, {"entropy": entropy, "entropy_start": start})


def _degradation(course: Course, config: Config) -> Finding | None:
    pairs = (("", course.scores, course.best), ("on held-out prompts ", course.held_out, course.best_held_out))
    for of, scores, best in pairs:
        if scores is None or best is None:
            continue
        std = max(scores.std, best.std)  # if all scores were equal once, any difference would be a fall
        if best.mean - scores.mean > config.convergence.degradation * std and scores.high < best.low:
            message = (
                f"the mean score {of}fell to {scores.mean:.3g} from {best.mean:.3g} at its best, by more than "
                f"convergence.degradation = {config.convergence.degradation:g} deviations of {std:.3g}"
            )
            return Finding(message, {"score": scores.mean, "score_best": best.mean, "score_std": std})
    return None


def _kl(course: Course, config: Config) -> Finding | None:
    size, target = config.convergence.window, config.ppo.kl_target
    if not (newest := course.window(size)):
        return None
    kls = [event.kl for event in newest]
    kl, limit = _mean(kls), config.convergence.kl_limit
    if not limit and config.ppo.kl_controller == "adaptive":
        limit = UNSTABLE_KL * target
    if limit and kl > limit:
        message = f"the KL is {kl:.3g} nats a sequence over {size} iterations, above {limit:.3g}"
        return Finding(message, {"kl": kl, "kl_limit": limit})
    if not (older := course.window(size, before=size)):
        return None
    kl_before = _mean([event.kl for event in older])
    is_rising = _mean(kls[size // 2 :]) > _mean(kls[: size // 2])
    # Below a controller's target the KL may grow at any rate: it begins at 0.
    if kl > max(RUNAWAY_KL * kl_before, target) and is_rising:
        message = f"the KL runs away: {kl:.3g} nats a sequence over {size} iterations, {kl_before:.3g} before"
        return Finding(message, {"kl": kl, "kl_before": kl_before})
    return None


class _Rule(NamedTuple):
    name: Rule
    level: Literal["info", "warning"]  # of its decisions
    action: Callable[[ConvergenceConfig], Action]
    find: Callable[[Course, Config], Finding | None]


_RULES = (
    _Rule("target", "info", lambda settings: settings.on_target, _target),
    _Rule("plateau", "info", lambda settings: settings.on_plateau, _plateau),
    _Rule("collapse", "warning", lambda settings: settings.on_collapse, _collapse),
    _Rule("degradation", "warning", lambda settings: settings.on_degradation, _degradation),
    _Rule("kl", "warning", lambda settings: settings.on_kl, _kl),
)


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers)


def _scores(iterations: Sequence[Iteration]) -> Scores:
    mean, std = (_mean(numbers) for numbers in zip(*((e.score_mean, e.score_std) for e in iterations), strict=True))
    return Scores(mean, std, mean, mean)


def _better(best: Scores | None, scores: Scores) -> Scores:
    return scores if best is None or scores.mean > best.mean else best
