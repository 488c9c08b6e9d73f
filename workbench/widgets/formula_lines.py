"""The formulas from log-probs to the clipped loss, with the numbers of one token in them."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator
from typing import NamedTuple

from trainer.samples import SampleSettings
from workbench.samples.explain import Pass, TokenFacts
from workbench.widgets.cells import fit
from workbench.widgets.drawing import Line
from workbench.widgets.scale import number_text

_SYMBOL, _DEFINITION = 6, 36  # columns
_ONE_LINE = 96  # columns: definitions and numbers stand below each other as two columns
_TERMS_FROM = 70  # columns: there is room for both terms of a loss
_UNKNOWN = "?"
_NO_SETTINGS = (
    "The file does not tell gamma, lambda and the other settings of its run, so the formulas cannot be filled in: "
    "a run that is made now keeps them."
)


class Formula(NamedTuple):
    """A quantity, what it is by definition, that with numbers in it, and what comes out."""

    symbol: str
    definition: str
    filled: str
    result: float | None
    unit: str = ""
    field: str = ""  # of the facts, where the saved number is to be compared


def formula_lines(facts: TokenFacts, width: int) -> list[Line]:
    """The sentence, then each formula in one line or two, then the loss pass by pass.

    width: columns; the numbers of a run that goes well fit into 55.
    """
    lines: list[Line] = [[(text, "text")] for text in textwrap.wrap(facts.sentence, width)]
    if facts.settings is None:
        return [*lines, [], *([(text, "muted")] for text in textwrap.wrap(_NO_SETTINGS, width))]
    lines.append([])
    for formula in _formulas(facts, facts.settings):
        lines += _drawn(formula, width)
        if formula.field in facts.disagreements:
            lines.append(_disagreement(getattr(facts, formula.field), width))
    return [*lines, *_loss(facts, facts.settings, width)]


def number(x: float | None) -> str:
    """`x` with four decimals, and no minus before a zero."""
    if x is None:
        return _UNKNOWN
    text = number_text(x, 4, 10)
    return text if text.strip("-0.") else text.lstrip("-")


def mark(one: Pass) -> str:
    """What the clip made of a pass, without colour; empty where the ratio is inside its range."""
    return "✂ clipped" if one.clipped else "outside" if one.outside else ""


def _operand(x: float | None) -> str:
    """`x` as it stands after a sign."""
    text = number(x)
    return f"({text})" if text.startswith("-") else text


def _formulas(facts: TokenFacts, settings: SampleSettings) -> Iterator[Formula]:
    now = {name: found.value for name, found in facts.recomputed.items()}
    kl = facts.kl if facts.kl is not None else now["kl"]
    yield Formula("KL_t", *_kl(facts, settings.kl_estimator), now["kl"], "nats", "kl")

    definition, filled = "-β KL_t", f"-{settings.kl_coef:g} · {_operand(kl)}"
    if facts.token_score:
        definition, filled = f"{definition} + token's own", f"{filled} + {_operand(facts.token_score)}"
    if facts.is_last:
        definition, filled = f"{definition} + score", f"{filled} + {_operand(facts.sequence_score)}"
    if settings.whiten_rewards:
        mean, std = _operand(settings.reward_mean), number(settings.reward_std)
        yield Formula("raw", definition, filled, facts.raw_reward)
        definition = "(raw - mean) / √(std² + 1e-8) + mean"
        filled = f"({number(facts.raw_reward)} - {mean}) / √({std}² + 1e-8) + {mean}"
    yield Formula("r_t", definition, filled, now["reward"], field="reward")

    filled = f"{number(facts.reward)} + {settings.gamma:g} · {_operand(facts.next_value)} - {_operand(facts.value)}"
    yield Formula("δ_t", "r_t + γ V(s_{t+1}) - V(s_t)", filled, now["td_error"], field="td_error")

    terms = facts.length - facts.index
    filled = f"{terms} term{'s' * (terms > 1)}, below, γλ = {settings.gamma:g} · {settings.lam:g}"
    yield Formula("A_t", "Σ (γλ)^l δ_{t+l}", filled, now["advantage"], field="advantage")

    filled = f"{number(facts.advantage)} + {_operand(facts.value)}"
    yield Formula("G_t", "A_t + V(s_t)", filled, now["return_"], field="return_")
    if settings.whiten_advantages:
        mean, std = _operand(settings.advantage_mean), number(settings.advantage_std)
        filled = f"({number(facts.advantage)} - {mean}) / √({std}² + 1e-8)"
        yield Formula("Â_t", "(A_t - mean) / √(std² + 1e-8)", filled, facts.whitened_advantage)


def _kl(facts: TokenFacts, estimator: str) -> tuple[str, str]:
    """The estimator's definition, and the same with numbers."""
    mine, theirs = number(facts.logprob), _operand(facts.ref_logprob)
    log_r = None if facts.k1 is None else -facts.k1
    return {
        "k1": ("log π - log π_ref", f"{mine} - {theirs}"),
        "k2": ("½ (log π - log π_ref)²", f"½ ({mine} - {theirs})²"),
        "k3": ("r - 1 - log r,  r = π_ref / π", f"exp({number(log_r)}) - 1 - {_operand(log_r)}"),
        "abs": ("|log π - log π_ref|", f"|{mine} - {theirs}|"),
    }.get(estimator, (f"by {estimator}", _UNKNOWN))


def _drawn(formula: Formula, width: int) -> list[Line]:
    """In one line where it fits, else in two."""
    result, unit = number(formula.result), f" {formula.unit}".rstrip()
    role = "strong" if formula.result is None or math.isfinite(formula.result) else "missing"
    definition = f"= {formula.definition:<{_DEFINITION}} " if width >= _ONE_LINE else f"= {formula.definition} "
    room = width - _SYMBOL - len(result + unit) - len("=  = ")
    head: Line = [
        (f"{formula.symbol:<{_SYMBOL}}", "series"),
        (fit(definition, min(len(definition), width - _SYMBOL)), "muted"),
    ]
    tail: Line = [(f"= {fit(formula.filled, min(len(formula.filled), max(room, 0)))} = ", "text"), (result, role)]
    tail.append((unit, "muted"))
    if len(definition) + len(formula.filled) <= room:
        return [[*head, *tail]]
    return [head, [(" " * _SYMBOL, "text"), *tail]]


def _disagreement(saved: float, width: int) -> Line:
    text = f"≠ {number_text(saved, 6, 14)} in the file: further off than float32 rounding goes"
    return [(" " * _SYMBOL, "text"), (fit(text, width - _SYMBOL), "alert")]


def _loss(facts: TokenFacts, settings: SampleSettings, width: int) -> Iterator[Line]:
    """L, pass by pass."""
    if not facts.passes:
        return
    name, seen = "Â_t" if settings.whiten_advantages else "A_t", facts.loss_advantage
    low, high = 1 - settings.clip, 1 + settings.clip
    definition = f"= -min(ρ {name}, clip(ρ, {low:.4g}, {high:.4g}) {name}),  ρ = π / π_old"
    yield [(f"{'L':<{_SYMBOL}}", "series"), (fit(definition, width - _SYMBOL), "muted")]
    longest = max(len(one.name) for one in facts.passes)
    marked = max(len(mark(one)) for one in facts.passes)
    for one in facts.passes:
        line: Line = [(f"{'':<{_SYMBOL}}{one.name:<{longest}}  ρ {number(one.ratio)} ", "text")]
        line.append((f"{mark(one):<{marked}}", "alert" if one.clipped else "muted"))
        if one.in_loss and seen is not None:
            plain, kept = one.ratio * seen, min(max(one.ratio, low), high) * seen
            terms = f"-min({number(plain)}, {number(kept)}) = " if width >= _TERMS_FROM else "L "
            line += [(f"  {terms}", "text"), (number(-min(plain, kept)), "strong")]
        yield line
