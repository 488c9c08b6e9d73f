"""One plain sentence about a token; each rule adds a clause or none, and the numbers support every clause."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeGuard

from trainer.runs.samples import SampleSettings
from workbench.samples.token_facts import TokenFacts, deviation

_HARDLY = 0.05  # of the deviation of the batch's advantages: less counts as hardly a push
_BASELINE = ("its return", "the estimator's baseline")
_COMPARED = {
    "reinforce": ("its return", "the mean reward of the batch's other responses"),
    "rloo": ("the reward of its response", "the mean of the prompt's other responses"),
    "remax": ("its return", "the score of the greedy response"),
    "grpo": ("the reward of its response", "the mean of the prompt's responses"),
}


def sentence(facts: TokenFacts) -> str:
    """Return why the token was pushed, what dominates its reward, and how likely the reference finds it.

    Empty where too little is known.
    """
    return "; ".join(clause for rule in _RULES if (clause := rule(facts)))


def amount(x: float) -> str:
    """Format the absolute value of `x` with two decimals, and at least two significant digits."""
    return f"{abs(x):.2f}" if x == 0 or 0.095 <= abs(x) < 1e6 else f"{abs(x):.2g}"


def percent(probability: float) -> str:
    """Format `probability` as a percentage with two or three digits, or as a bound where it is close to 0 or 1."""
    if not math.isfinite(probability) or probability <= 0:
        return f"{100 * probability:.0f}%"
    if probability > 1:  # of a damaged file
        return f"{100 * probability:.3g}%"
    if probability < 1e-4:
        return "<0.01%"
    if probability < 0.0995:
        return f"{100 * probability:.2g}%"
    if 0.9995 <= probability < 1:
        return ">99.9%"
    return f"{100 * probability:.{1 if 0.99 <= probability < 1 else 0}f}%"


def _push(facts: TokenFacts) -> str:
    """Return the direction of the push and its explanation by the critic's expectation or the baseline."""
    raw, seen, settings = facts.advantage, facts.loss_advantage, facts.settings
    if not _finite(raw):
        return ""
    expected = _compared(facts, raw)
    if settings is None or not _finite(seen):
        return expected
    if problem := _no_step(facts, settings):
        return f"not pushed: {problem}"
    unit = 1.0 if settings.whiten_advantages else settings.advantage_std
    slight = _HARDLY * unit
    direction = (
        "hardly pushed" if seen == 0 or abs(seen) < slight else _until_clipped(facts, "up" if seen > 0 else "down")
    )
    if settings.whiten_advantages:
        mean, its = settings.advantage_mean, "" if facts.estimator == "gae" else "its advantage is "
        batch = f"the batch's mean of {'-' if mean < 0 else ''}{amount(mean)}"
        if direction == "hardly pushed" and abs(raw) >= _HARDLY * settings.advantage_std:
            return f"{expected}, {its and f'and {its}'}close to {batch}: {direction}"
        explained = raw > 0 if seen > 0 else raw < 0
        if direction != "hardly pushed" and not explained:
            return f"{expected}, but {its}{'above' if seen > 0 else 'below'} {batch}: {direction}"
    return f"{direction}: {expected}"


def _compared(facts: TokenFacts, raw: float) -> str:
    """Return the advantage in words: `raw` is how far one quantity lies above another."""
    if facts.estimator == "gae":
        way = "better" if raw > 0 else "worse"
        return f"{way} than the critic expected by {amount(raw)}" if raw else "just as the critic expected"
    what, than = _COMPARED.get(facts.estimator, _BASELINE)
    way = "above" if raw > 0 else "below"
    if raw == 0:
        return f"{what} is {than}"
    if facts.estimator != "grpo":
        return f"{what} is {amount(raw)} {way} {than}"
    far = raw * (facts.advantage_scale or math.nan)
    return f"{what} is {amount(far)} {way} {than}" if math.isfinite(far) else f"{what} is {way} {than}"


def _no_step(facts: TokenFacts, settings: SampleSettings) -> str:
    """Return why the token was part of no step; empty if it was."""
    if not settings.trains_policy:
        return "only the critic is trained in this iteration"
    if not settings.has_signal:
        return "all advantages of the batch are equal"
    marks = [one.mark for one in facts.passes]
    if "no step" in marks and not any(one.in_loss for one in facts.passes):
        return "no optimiser step used its minibatches"
    return ""


def _until_clipped(facts: TokenFacts, way: str) -> str:
    epochs = [one for one in facts.passes if one.in_loss]
    clipped = [one.clipped for one in epochs]
    if not any(clipped):
        return f"pushed {way}"
    if all(clipped):
        return f"kept from being pushed {way} by the clip"
    first = clipped.index(True)
    if all(clipped[first:]):
        return f"pushed {way} until the clip stopped it in {epochs[first].name}"
    return f"pushed {way}, held by the clip in {sum(clipped)} of {len(clipped)} epochs"


def _penalty(facts: TokenFacts) -> str:
    """Report the KL penalty where it is most of the reward and large enough to affect the advantage."""
    penalty, rest, settings = facts.kl_penalty, facts.token_score, facts.settings
    if settings is None or not (_finite(penalty) and _finite(rest) and _finite(facts.advantage)):
        return ""
    if facts.earns_score:
        if not _finite(facts.sequence_score):
            return ""
        rest += facts.sequence_score
    size = abs(penalty) / (deviation(settings.reward_std) if settings.whiten_rewards else 1.0)
    size /= abs(facts.advantage_scale or 1.0)
    matters = size >= abs(facts.advantage) / 2 and size >= _HARDLY * settings.advantage_std
    if abs(penalty) <= abs(rest) or not matters:
        return ""
    what = f"KL {'penalty' if penalty < 0 else 'bonus'} of {amount(penalty)}"
    if rest == 0:
        return f"its reward is a {what}"
    return f"the {what} dominates its reward of {'-' if rest < 0 else ''}{amount(rest)}"


def _kl_in_loss(facts: TokenFacts) -> str:
    """Report the KL in the loss where it pushes the token at least half as much as its advantage does."""
    pull, seen, settings = facts.kl_pull, facts.loss_advantage, facts.settings
    if settings is None or not (_finite(pull) and _finite(seen)) or not pull or _no_step(facts, settings):
        return ""
    push = seen * (1.0 if facts.weight is None else facts.weight)
    unit = 1.0 if settings.whiten_advantages else settings.advantage_std
    if abs(pull) < max(abs(push) / 2, _HARDLY * unit):
        return ""
    more = " more strongly" if push and abs(pull) > abs(push) else ""
    return f"the KL in the loss pushes it {'up' if pull > 0 else 'down'}{more}"


def _reference(facts: TokenFacts) -> str:
    mine, theirs = facts.probability, facts.ref_probability
    if mine is None or theirs is None or math.isnan(mine) or math.isnan(theirs):
        return ""
    return f"reference {percent(theirs)}, policy {percent(mine)}"


def _finite(x: float | None) -> TypeGuard[float]:
    return x is not None and math.isfinite(x)


_RULES: tuple[Callable[[TokenFacts], str], ...] = (_push, _penalty, _kl_in_loss, _reference)
