"""The formulas from log-probs to the clipped loss, filled in with the numbers of one token."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator
from typing import NamedTuple

from trainer.plurals import counted
from trainer.runs.samples import SampleSettings
from workbench.columns import fit
from workbench.kit.lines import Line
from workbench.kit.scale import number_text
from workbench.samples.token_facts import TokenFacts
from workbench.samples.token_maths import LARGEST_LOG_R, PER_RESPONSE, TokenLoss, ratio_range
from workbench.samples.token_sentence import sentence

_SYMBOL, _DEFINITION = 6, 36  # columns
_ONE_LINE = 96  # columns: from here on definitions and numbers are aligned as two columns
_TERMS_FROM = 70  # columns: from here on both terms of a loss fit
_MORE_TERMS = 14  # columns for each further term
_UNKNOWN = "?"
_NO_SETTINGS = (
    "The samples file has no settings such as gamma and lambda, so there are no formulas. Newer runs save them."
)
_BASELINES = {
    "reinforce": "mean R of the batch's others, R = Σ r_t",
    "rloo": "mean R of the prompt's other responses",
    "remax": "score of the greedy response",
    "grpo": "mean R of the prompt's responses",
}
_AGGREGATIONS = {
    "sequence": "averaged over the tokens of each response, then over the responses of the minibatch",
    "constant": "summed over the minibatch, then divided by its responses times rollout.max_new_tokens",
}


class Formula(NamedTuple):
    """A quantity, its definition, the definition with numbers filled in (empty for none), and the result."""

    symbol: str
    definition: str
    filled: str
    result: float | None
    unit: str = ""
    field: str = ""  # of `TokenFacts`, for a saved number to compare with


def formula_lines(facts: TokenFacts, width: int) -> list[Line]:
    """Return the sentence, then each formula in one line or two, then the loss pass by pass.

    width: columns; the numbers of a healthy run fit into 55.
    """
    lines: list[Line] = [[(text, "text")] for text in textwrap.wrap(sentence(facts), width)]
    if facts.settings is None:
        return [*lines, [], *([(text, "muted")] for text in textwrap.wrap(_NO_SETTINGS, width))]
    lines.append([])
    for formula in _formulas(facts, facts.settings):
        lines += _drawn(formula, width)
        if formula.field in facts.disagreements:
            saved = number_text(getattr(facts, formula.field), 6, 14)
            text = f"≠ {saved} in the file: differs by more than float32 rounding"
            lines.append([(" " * _SYMBOL, "text"), (fit(text, width - _SYMBOL), "alert")])
    return [*lines, *_loss(facts, facts.settings, width)]


def number(x: float | None) -> str:
    """Format `x` with four decimals and no minus sign before a zero; "?" for None."""
    if x is None:
        return _UNKNOWN
    text = number_text(x, 4, 10)
    return text if text.strip("-0.") else text.lstrip("-")


def _operand(x: float | None) -> str:
    """Format `x` as an operand, in parentheses if negative."""
    text = number(x)
    return f"({text})" if text.startswith("-") else text


def _formulas(facts: TokenFacts, settings: SampleSettings) -> Iterator[Formula]:
    now = {name: found.value for name, found in facts.recomputed.items()}
    kl = facts.kl if facts.kl is not None else now["kl"]
    yield Formula("KL_t", *_kl(facts, settings.kl_estimator), now["kl"], "nats", "kl")
    definition, filled = _reward(facts, settings, kl)
    if settings.whiten_rewards:
        mean, std = _operand(settings.reward_mean), number(settings.reward_std)
        yield Formula("raw", definition, filled, facts.raw_reward)
        definition = "(raw - mean) / √(std² + 1e-8) + mean"
        filled = f"({number(facts.raw_reward)} - {mean}) / √({std}² + 1e-8) + {mean}"
    yield Formula("r_t", definition, filled, now["reward"], field="reward")
    yield from _gae(facts, settings) if settings.estimator == "gae" else _without_critic(facts, settings)
    if settings.whiten_advantages:
        mean, std = _operand(settings.advantage_mean), number(settings.advantage_std)
        filled = f"({number(facts.advantage)} - {mean}) / √({std}² + 1e-8)"
        yield Formula("Â_t", "(A_t - mean) / √(std² + 1e-8)", filled, facts.whitened_advantage)
    if settings.importance_cap:
        filled = f"min(exp({number(facts.logprob)} - {_operand(facts.sampler_logprob)}), {settings.importance_cap:g})"
        yield Formula("w", f"min(π_old / π_sampler, {settings.importance_cap:g})", filled, facts.weight)


def _reward(facts: TokenFacts, settings: SampleSettings, kl: float | None) -> tuple[str, str]:
    """Return the sum that makes the reward, and the same with numbers."""
    parts = []
    if settings.kl_in == "reward":
        parts.append(("-β KL_t", f"-{settings.kl_coef:g} · {_operand(kl)}"))
    if facts.token_score:
        parts.append(("token's own", _operand(facts.token_score)))
    if facts.earns_score:
        parts.append(("score", _operand(facts.sequence_score)))
    definition, filled = (" + ".join(column) for column in zip(*parts, strict=True)) if parts else ("0", "")
    return definition + (" (the KL is in the loss)" if settings.kl_in == "loss" else ""), filled


def _gae(facts: TokenFacts, settings: SampleSettings) -> Iterator[Formula]:
    td_error, advantage, return_ = (facts.recomputed[name].value for name in ("td_error", "advantage", "return_"))
    filled = f"{number(facts.reward)} + {settings.gamma:g} · {_operand(facts.next_value)} - {_operand(facts.value)}"
    yield Formula("δ_t", "r_t + γ V(s_{t+1}) - V(s_t)", filled, td_error, field="td_error")

    filled = f"{_terms(facts.length - facts.index)}, γλ = {settings.gamma:g} · {settings.lam:g}"
    yield Formula("A_t", "Σ (γλ)^l δ_{t+l}", filled, advantage, field="advantage")

    filled = f"{number(facts.advantage)} + {_operand(facts.value)}"
    yield Formula("G_t", "A_t + V(s_t)", filled, return_, field="return_")


def _without_critic(facts: TokenFacts, settings: SampleSettings) -> Iterator[Formula]:
    """Yield the return (or total reward), the baseline, and their difference."""
    if settings.estimator in PER_RESPONSE:
        earned, result = "R", facts.total_reward
        yield Formula("R", "Σ r_t of the whole response", _terms(facts.length), result)
    else:
        earned, result = "G_t", facts.return_
        filled = f"{_terms(facts.length - facts.index)}, γ = {settings.gamma:g}"
        yield Formula("G_t", "Σ γ^l r_{t+l}", filled, facts.recomputed["return_"].value, field="return_")
    yield Formula("b", _BASELINES.get(settings.estimator, "the estimator's baseline"), "", facts.baseline)
    definition, filled = f"{earned} - b", f"{number(result)} - {_operand(facts.baseline)}"
    if settings.estimator == "grpo" and settings.group_std:
        yield Formula("s", "deviation of these R + 1e-4", "", facts.advantage_scale)
        definition, filled = f"({definition}) / s", f"({filled}) / {_operand(facts.advantage_scale)}"
    yield Formula("A_t", definition, filled, facts.recomputed["advantage"].value, field="advantage")


def _terms(count: int) -> str:
    return f"{counted(count, 'term')}, below"


def _kl(facts: TokenFacts, estimator: str) -> tuple[str, str]:
    """Return the estimator's definition, and the same with numbers."""
    mine, theirs = number(facts.logprob), _operand(facts.ref_logprob)
    log_r = None if facts.k1 is None else min(-facts.k1, LARGEST_LOG_R)
    return {
        "k1": ("log π - log π_ref", f"{mine} - {theirs}"),
        "full": ("log π - log π_ref", f"{mine} - {theirs}"),
        "k2": ("½ (log π - log π_ref)²", f"½ ({mine} - {theirs})²"),
        "k3": ("r - 1 - log r,  r = min(π_ref / π, 13.6)", f"exp({number(log_r)}) - 1 - {_operand(log_r)}"),
        "abs": ("|log π - log π_ref|", f"|{mine} - {theirs}|"),
    }.get(estimator, (f"by {estimator}", _UNKNOWN))


def _drawn(formula: Formula, width: int) -> list[Line]:
    """Draw the formula in one line where it fits, else in two."""
    result, unit = number(formula.result), f" {formula.unit}".rstrip()
    role = "strong" if formula.result is None or math.isfinite(formula.result) else "missing"
    definition = f"= {formula.definition:<{_DEFINITION}} " if width >= _ONE_LINE else f"= {formula.definition} "
    room = width - _SYMBOL - len(result + unit) - len("=  = ")
    head: Line = [
        (f"{formula.symbol:<{_SYMBOL}}", "series"),
        (fit(definition, min(len(definition), width - _SYMBOL)), "muted"),
    ]
    filled = fit(formula.filled, min(len(formula.filled), max(room, 0)))
    tail: Line = [(f"= {filled} = " if filled else "= ", "text"), (result, role), (unit, "muted")]
    if len(definition) + len(formula.filled) <= room:
        return [[*head, *tail]]
    return [head, [(" " * _SYMBOL, "text"), *tail]]


def _loss(facts: TokenFacts, settings: SampleSettings, width: int) -> Iterator[Line]:
    """Yield the definition of L, then its value in each pass."""
    if not facts.passes:
        return
    yield from _wrapped("L", _loss_definition(facts, settings), width)
    longest = max(len(one.name) for one in facts.passes)
    marked = max(len(one.mark) for one in facts.passes)
    for one in facts.passes:
        line: Line = [(f"{'':<{_SYMBOL}}{one.name:<{longest}}  ρ {number(one.ratio)} ", "text")]
        line.append((f"{one.mark:<{marked}}", "alert" if one.clipped else "muted"))
        if one.loss is not None:
            line += [(f"  {_loss_terms(one.loss, width)}", "text"), (number(one.loss.total), "strong")]
        yield line
    yield from _wrapped("", _AGGREGATIONS.get(settings.loss_aggregation, ""), width)


def _wrapped(symbol: str, text: str, width: int) -> Iterator[Line]:
    for place, part in enumerate(textwrap.wrap(text, max(width - _SYMBOL, 1), break_on_hyphens=False)):
        yield [(f"{'' if place else symbol:<{_SYMBOL}}", "series"), (part.replace("\xa0", " "), "muted")]


def _loss_definition(facts: TokenFacts, settings: SampleSettings) -> str:
    low, high = ratio_range(settings)
    name = "Â_t" if settings.whiten_advantages else "A_t"
    kept = f"min(ρ {name}, clip(ρ, {low:.4g}, {high:.4g}) {name})"
    seen = facts.loss_advantage
    if settings.dual_clip and seen is not None and seen < 0:
        kept = f"max({kept}, {settings.dual_clip:g}\xa0{name})"
    weight = "w " if settings.importance_cap else ""
    exact = settings.kl_estimator == "full"
    kl = f" + β {'KL(π, π_ref) of all tokens' if exact else 'KL_t'}" if settings.kl_in == "loss" else ""
    return f"= -{weight}{kept}{kl},  ρ\xa0=\xa0π\xa0/\xa0π_old"


def _loss_terms(loss: TokenLoss, width: int) -> str:
    """Return the loss with its terms if there is room for them."""
    more = [x for x in (loss.bound, loss.weight, loss.kl) if x is not None]
    if width < _TERMS_FROM + _MORE_TERMS * len(more):
        return "L "
    kept = f"min({number(loss.unclipped)}, {number(loss.clipped)})"
    if loss.bound is not None:
        kept = f"max({kept}, {number(loss.bound)})"
    weight = f"{number(loss.weight)} · " if loss.weight is not None else ""
    kl = f" + {_operand(loss.kl)}" if loss.kl is not None else ""
    return f"-{weight}{kept}{kl} = "
