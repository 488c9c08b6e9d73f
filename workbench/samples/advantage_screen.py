"""The dialog that explains the advantage of a token: the formulas, then its sum of TD errors or rewards by term."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator
from typing import ClassVar, NamedTuple

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.content import Content

from trainer.errors import counted
from trainer.runs.samples import SampleSettings
from workbench.kit.axes import number_text
from workbench.kit.dialog import Dialog
from workbench.kit.drawing import DRAWN, ScrolledLines, scroll_bindings
from workbench.kit.keys import bind
from workbench.run.sample_reader import PER_RESPONSE
from workbench.run.sample_table import TokenSample
from workbench.samples.token_facts import LARGEST_LOG_R, TokenFacts, advantage_terms, ratio_range, sentence, token_label
from workbench.text import Line, fit, notes

_SYMBOL, _DEFINITION = 6, 36  # columns
_ONE_LINE = 96  # columns: from here on definitions and numbers are aligned as two columns
_TERMS_FROM = 70  # columns: from here on both terms of a loss fit
_MORE_TERMS = 14  # columns for each further term
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
_ZERO = 0.5e-4  # a weight below this is printed as zero
_LISTED = 1000  # terms at most
_AHEAD, _NUMBER = 6, 12  # columns: the first column, and the widest number
_LEAST_NAME, _WIDEST_NAME = 6, 24  # columns


class AdvantageScreen(Dialog[int]):
    """Dialog that shows the formulas with a token's numbers; returns the index of the token shown last."""

    BINDINGS: ClassVar[list[BindingType]] = [
        bind("escape", "close", "close", "advantage.close", "Return to the sample at this token"),
        bind("left", "neighbour(-1)", "previous token", "advantage.earlier", "Explain the previous token"),
        bind("right", "neighbour(1)", "next token", "advantage.later", "Explain the next token"),
        bind("y", "copy", "copy", "advantage.copy", "Copy the whole calculation"),
    ]

    def __init__(self, sample: TokenSample, index: int) -> None:
        """Open at token `index`, counted from 0. Raises IndexError when the sample has no such token."""
        super().__init__()
        self._facts = TokenFacts(sample, index)
        self._sum = AdvantageSum(id="advantage")
        self._heading = ""

    def compose(self) -> ComposeResult:
        yield self._sum

    def on_mount(self) -> None:
        keys = [("advantage.earlier", "previous"), ("advantage.later", "next"), ("advantage.copy", "copy")]
        self._sum.border_subtitle = self.hint(*keys, ("advantage.close", "close"))
        self._show()

    def action_close(self) -> None:
        self.dismiss(self._facts.index)

    def action_neighbour(self, by: int) -> None:
        if 0 <= self._facts.index + by < self._facts.length:
            self._facts = TokenFacts(self._facts.sample, self._facts.index + by)
            self._show()

    def action_copy(self) -> None:
        self.copy(f"{self._heading}\n\n{self._sum.text}\n", "the calculation")

    def _show(self) -> None:
        facts = self._facts
        self._heading = f"Advantage of {facts.name}, token {facts.index + 1} of {facts.length}"
        self._sum.border_title = Content(self._heading)
        parts = formula_lines, group_lines, term_lines
        self._sum.show_lines(lambda width: [line for part in parts for line in part(facts, width)], from_start=False)


class AdvantageSum(ScrolledLines):
    """Scrollable explanation of one token's advantage."""

    CSS_NAME = "drawn"
    COMPONENT_CLASSES: ClassVar[set[str]] = DRAWN
    BINDINGS: ClassVar[list[BindingType]] = scroll_bindings("advantage", "up down page-up page-down first last")


class Formula(NamedTuple):
    """A quantity, its definition, the definition with numbers filled in (empty for none), and the result."""

    symbol: str
    definition: str
    filled: str
    result: float | None
    unit: str = ""


def formula_lines(facts: TokenFacts, width: int) -> list[Line]:
    """Return the sentence, then each formula in one line or two, then the loss pass by pass.

    width: columns; the numbers of a healthy run fit into 55.
    """
    lines: list[Line] = [[(text, "text")] for text in textwrap.wrap(sentence(facts), width)]
    if facts.settings is None:
        return [*lines, [], *notes(_NO_SETTINGS, width)]
    lines.append([])
    for formula in _formulas(facts, facts.settings):
        lines += _drawn(formula, width)
    return [*lines, *_loss(facts, facts.settings, width)]


def group_lines(facts: TokenFacts, width: int) -> list[Line]:
    """Return the table of the prompt's responses, with the reward, baseline and advantage of each; none without them.

    Those that are left out have no numbers.
    """
    sample, settings = facts.sample, facts.settings
    known = [total for total in sample.group if not math.isnan(total)]
    if settings is None or len(sample.group) < 2:
        return []
    lines: list[Line] = [[], [(_table_row("#", "response", ["R", "b", "A_t"], width), "muted")]]
    for place, total in enumerate(sample.group):
        baseline = (
            facts.baseline if settings.estimator == "grpo" else (math.fsum(known) - total) / max(len(known) - 1, 1)
        )
        advantage = None if baseline is None else (total - baseline) / (facts.advantage_scale or 1.0)
        own = place == sample.sample
        numbers = ["" if math.isnan(total) else number(x) for x in (total, baseline, advantage)]
        name = "this one" if own else "left out" if math.isnan(total) else ""
        lines.append([(_table_row(str(place + 1), name, numbers, width), "strong" if own else "text")])
    return lines


def term_lines(facts: TokenFacts, width: int) -> list[Line]:
    """Return the table of the terms that the advantage sums; none without settings.

    Terms whose weight prints as zero share the last line, and so do those after the first 1,000.
    """
    terms = advantage_terms(facts.sample, facts.index)
    if not terms:
        return []
    per_response = facts.estimator in PER_RESPONSE  # the sum is over all tokens, including this one
    if per_response:
        first, heads = "t", ["r_t", "sum"]
    else:
        first, heads = "l", [*(["(γλ)^l", "δ_{t+l}"] if facts.estimator == "gae" else ["γ^l", "r_{t+l}"])]
        heads += ["product", "sum"]
    lines: list[Line] = [[], [(_table_row(first, "token", heads, width), "muted")]]
    shown = next((place for place, term in enumerate(terms[:_LISTED]) if term.weight < _ZERO), _LISTED)
    if shown >= len(terms) - 1:
        shown = len(terms)  # a single last term has a line of its own
    for term in terms[:shown]:
        ahead, numbers = term.token - facts.index, [term.weight, term.x, term.product, term.running]
        role = "strong" if per_response and not ahead else "text"
        if per_response:
            ahead, numbers = term.token + 1, [term.x, term.running]
        name = token_label(facts.sample, term.token)
        lines.append([(_table_row(f"{ahead:,}", name, list(map(number, numbers)), width), role)])
    if shown < len(terms):
        total = terms[-1].running
        rest = [number(total - (terms[shown - 1].running if shown else 0.0)), number(total)]
        numbers_of_rest = rest if per_response else ["", "", *rest]
        name = f"{len(terms) - shown:,} more terms"
        lines.append([(_table_row("…", name, numbers_of_rest, width), "muted")])
    return lines


def number(x: float | None) -> str:
    """Format `x` with four decimals and no minus sign before a zero; "?" for None."""
    if x is None:
        return "?"
    text = number_text(x, 4, 10)
    return text if text.strip("-0.") else text.lstrip("-")


def _operand(x: float | None) -> str:
    """Format `x` as an operand, in parentheses if negative."""
    text = number(x)
    return f"({text})" if text.startswith("-") else text


def _formulas(facts: TokenFacts, settings: SampleSettings) -> Iterator[Formula]:
    yield Formula("KL_t", *_kl(facts, settings.kl_estimator), facts.kl, "nats")
    definition, filled = _reward(facts, settings)
    if settings.whiten_rewards:
        mean, std = _operand(settings.reward_mean), number(settings.reward_std)
        yield Formula("raw", definition, filled, facts.raw_reward)
        definition = "(raw - mean) / √(std² + 1e-8) + mean"
        filled = f"({number(facts.raw_reward)} - {mean}) / √({std}² + 1e-8) + {mean}"
    yield Formula("r_t", definition, filled, facts.reward)
    if settings.estimator == "gae":
        gamma, value = f"{settings.gamma:g}", _operand(facts.value)
        filled = f"{number(facts.reward)} + {gamma} · {_operand(facts.next_value)} - {value}"
        yield Formula("δ_t", "r_t + γ V(s_{t+1}) - V(s_t)", filled, facts.td_error)
        filled = f"{counted(facts.length - facts.index, 'term')}, below, γλ = {gamma} · {settings.lam:g}"
        yield Formula("A_t", "Σ (γλ)^l δ_{t+l}", filled, facts.advantage)
        yield Formula("G_t", "A_t + V(s_t)", f"{number(facts.advantage)} + {value}", facts.return_)
    else:
        yield from _without_critic(facts, settings)
    if settings.whiten_advantages:
        mean, std = _operand(settings.advantage_mean), number(settings.advantage_std)
        filled = f"({number(facts.advantage)} - {mean}) / √({std}² + 1e-8)"
        yield Formula("Â_t", "(A_t - mean) / √(std² + 1e-8)", filled, facts.whitened_advantage)
    if settings.importance_cap:
        filled = f"min(exp({number(facts.logprob)} - {_operand(facts.sampler_logprob)}), {settings.importance_cap:g})"
        yield Formula("w", f"min(π_old / π_sampler, {settings.importance_cap:g})", filled, facts.weight)


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
    }.get(estimator, (f"by {estimator}", "?"))


def _reward(facts: TokenFacts, settings: SampleSettings) -> tuple[str, str]:
    """Return the sum that makes the reward, and the same with numbers."""
    parts = []
    if settings.kl_in == "reward":
        parts.append(("-β KL_t", f"-{settings.kl_coef:g} · {_operand(facts.kl)}"))
    if facts.token_score:
        parts.append(("token's own", _operand(facts.token_score)))
    if facts.earns_score:
        parts.append(("score", _operand(facts.sequence_score)))
    definition, filled = (" + ".join(column) for column in zip(*parts, strict=True)) if parts else ("0", "")
    return definition + (" (the KL is in the loss)" if settings.kl_in == "loss" else ""), filled


def _without_critic(facts: TokenFacts, settings: SampleSettings) -> Iterator[Formula]:
    """Yield the return (or total reward), the baseline, and their difference."""
    if settings.estimator in PER_RESPONSE:
        earned, result = "R", facts.total_reward
        yield Formula("R", "Σ r_t of the whole response", f"{counted(facts.length, 'term')}, below", result)
    else:
        earned, result = "G_t", facts.return_
        filled = f"{counted(facts.length - facts.index, 'term')}, below, γ = {settings.gamma:g}"
        yield Formula("G_t", "Σ γ^l r_{t+l}", filled, result)
    group = f"{counted(len(facts.sample.group), 'response')}, below" if facts.sample.group else ""
    yield Formula("b", _BASELINES.get(settings.estimator, "the estimator's baseline"), group, facts.baseline)
    definition, filled = f"{earned} - b", f"{number(result)} - {_operand(facts.baseline)}"
    if settings.estimator == "grpo" and settings.group_std:
        yield Formula("s", "deviation of these R + 1e-4", group, facts.advantage_scale)
        definition, filled = f"({definition}) / s", f"({filled}) / {_operand(facts.advantage_scale)}"
    yield Formula("A_t", definition, filled, facts.advantage)


def _drawn(formula: Formula, width: int) -> list[Line]:
    """Draw the formula in one line where it fits, else in two."""
    result, unit = number(formula.result), f" {formula.unit}".rstrip()
    role = "strong" if formula.result is None or math.isfinite(formula.result) else "missing"
    definition = f"= {formula.definition:<{_DEFINITION}} " if width >= _ONE_LINE else f"= {formula.definition} "
    room = width - _SYMBOL - len(result + unit) - len("=  = ")
    head: Line = [
        (f"{formula.symbol:<{_SYMBOL}}", "strong"),
        (fit(definition, min(len(definition), width - _SYMBOL)), "muted"),
    ]
    filled = fit(formula.filled, min(len(formula.filled), max(room, 0)))
    tail: Line = [(f"= {filled} = " if filled else "= ", "text"), (result, role), (unit, "muted")]
    if len(definition) + len(formula.filled) <= room:
        return [[*head, *tail]]
    return [head, [(" " * _SYMBOL, "text"), *tail]]


def _loss(facts: TokenFacts, settings: SampleSettings, width: int) -> Iterator[Line]:
    """Yield the definition of L, its value in each pass, with the terms where there is room, and how it is averaged."""
    if not facts.passes:
        return
    low, high = ratio_range(settings)
    name, seen = "Â_t" if settings.whiten_advantages else "A_t", facts.loss_advantage
    digits = ".6g" if settings.ratio == "sequence" else ".4g"
    kept = f"min(ρ {name}, clip(ρ, {low:{digits}}, {high:{digits}}) {name})"
    if settings.policy_loss == "cispo":
        kept = f"min(ρ, {high:{digits}}) {name} log\xa0π"
    elif settings.dual_clip and seen is not None and seen < 0:
        kept = f"max({kept}, {settings.dual_clip:g}\xa0{name})"
    kl = "KL(π, π_ref) of all tokens" if settings.kl_estimator == "full" else "KL_t"
    kl = f" + β {kl}" if settings.kl_in == "loss" else ""
    ratio = "geometric mean of π\xa0/\xa0π_old over the response" if settings.ratio == "sequence" else "π\xa0/\xa0π_old"
    definition = f"= -{'w ' if settings.importance_cap else ''}{kept}{kl},  ρ\xa0=\xa0{ratio}"
    yield from _wrapped("L", definition, width)
    longest, marked = max(len(one.name) for one in facts.passes), max(len(one.mark) for one in facts.passes)
    for one in facts.passes:
        line: Line = [(f"{'':<{_SYMBOL}}{one.name:<{longest}}  ρ {number(one.loss_ratio)} ", "text")]
        line.append((f"{one.mark:<{marked}}", "warning" if one.clipped else "muted"))
        if (loss := one.loss) is not None:
            terms = "L "
            if width >= _TERMS_FROM + _MORE_TERMS * sum(x is not None for x in (loss.bound, loss.weight, loss.kl)):
                kept = f"min({number(loss.unclipped)}, {number(loss.clipped)})"
                kept = _operand(loss.unclipped) if loss.clipped is None else kept
                kept = kept if loss.bound is None else f"max({kept}, {number(loss.bound)})"
                weight = "" if loss.weight is None else f"{number(loss.weight)} · "
                terms = f"-{weight}{kept}{'' if loss.kl is None else f' + {_operand(loss.kl)}'} = "
            line += [(f"  {terms}", "text"), (number(loss.total), "strong")]
        yield line
    yield from _wrapped("", _AGGREGATIONS.get(settings.loss_aggregation, ""), width)


def _wrapped(symbol: str, text: str, width: int) -> Iterator[Line]:
    for place, part in enumerate(textwrap.wrap(text, max(width - _SYMBOL, 1), break_on_hyphens=False)):
        yield [(f"{'' if place else symbol:<{_SYMBOL}}", "strong"), (part.replace("\xa0", " "), "muted")]


def _table_row(ahead: str, name: str, numbers: list[str], width: int) -> str:
    column = min((width - _AHEAD - 2 - _LEAST_NAME) // len(numbers), _NUMBER)
    name = fit(name, max(min(width - _AHEAD - 2 - len(numbers) * column, _WIDEST_NAME), _LEAST_NAME))
    return f"{ahead:>{_AHEAD}}  {name}" + "".join(f" {text}".rjust(column) for text in numbers)
