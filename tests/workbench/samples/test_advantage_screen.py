"""The formulas of an advantage show a token's own numbers, and they add up."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import pytest
from charts import texts
from rich.cells import cell_len
from styles_helper import styles_path
from textual.app import App
from token_samples import SETTINGS, explained_token, sample_without_critic, token_sample

from trainer.runs.samples import TOKEN_COLUMNS
from workbench.kit.theming import ThemedApp
from workbench.run.sample_table import TokenSample
from workbench.samples.advantage_screen import (
    AdvantageScreen,
    AdvantageSum,
    formula_lines,
    group_lines,
    number,
    term_lines,
)
from workbench.samples.token_facts import TokenFacts, advantage_terms, sentence, token_label


def sample(length: int = 8, row: int = 0, *, held: dict[str, Any] | None = None, **changes: Any) -> TokenSample:
    return replace(token_sample(row=row, length=length, **changes), settings=replace(SETTINGS, **held or {}))


class Laying(ThemedApp[None]):
    CSS_PATH = styles_path("inspector.tcss")
    answer: int | None = None

    def on_mount(self) -> None:
        self.animation_level = "none"  # as in the workbench

    def ask(self, of: TokenSample, index: int) -> AdvantageScreen:
        screen = AdvantageScreen(of, index)
        self.push_screen(screen, self.take)
        return screen

    def take(self, answer: int | None) -> None:
        self.answer = answer


def drawn(app: App[Any]) -> list[str]:
    """Return the lines of the sum that are on the screen."""
    widget = app.screen.query_one(AdvantageSum)
    height = widget.scrollable_content_region.height
    return ["".join(segment.text for segment in widget.render_line(y)).rstrip() for y in range(height)]


def value_of(symbol: str, lines: list[str]) -> float:
    """Return the result of a formula: the last number of its line, or of the line below."""
    place = next(place for place, line in enumerate(lines) if line.startswith(f"{symbol} "))
    line = lines[place] if re.search(r"= -?\d+\.\d{4}( nats)?$", lines[place]) else lines[place + 1]
    return float(line.removesuffix(" nats").split()[-1])


@pytest.mark.parametrize("width", [55, 75, 106])
@pytest.mark.parametrize("row", [0, 2])
@pytest.mark.parametrize("index", [0, 3, 7])
@pytest.mark.parametrize("estimator", ["k1", "k2", "k3", "abs"])
def test_the_formulas_give_the_saved_numbers(width: int, row: int, index: int, estimator: str) -> None:
    facts = TokenFacts(sample(row=row, held={"kl_estimator": estimator, "whiten_rewards": True}), index)
    lines = texts(formula_lines(facts, width))
    assert all(cell_len(line) <= width for line in lines)
    for symbol, expected in (
        ("KL_t", facts.kl),
        ("raw", facts.raw_reward),
        ("r_t", facts.reward),
        ("δ_t", facts.td_error),
        ("A_t", facts.advantage),
        ("G_t", facts.return_),
        ("Â_t", facts.whitened_advantage),
    ):
        assert value_of(symbol, lines) == pytest.approx(expected, abs=5.1e-5), symbol


@pytest.mark.parametrize("width", [75, 106])
def test_the_numbers_in_a_formula_make_its_result(width: int) -> None:
    held = {"kl_coef": 0.05, "gamma": 0.9, "whiten_advantages": False}
    last = texts(formula_lines(TokenFacts(sample(held=held), 7), width))
    assert any("-β KL_t + score" in line for line in last)
    for symbol in ("KL_t", "r_t", "δ_t", "G_t"):
        place = next(place for place, line in enumerate(last) if line.startswith(symbol))
        text = last[place] if last[place].count("=") == 3 else last[place + 1]
        *_, filled, result = text.removesuffix(" nats").split(" = ")
        filled = filled.rpartition("= ")[2].replace("·", "*")
        assert re.fullmatch(r"[-+*/(). \d]+", filled)
        assert eval(filled) == pytest.approx(float(result), abs=2.1e-4)


@pytest.mark.parametrize("width", [55, 75, 106])
@pytest.mark.parametrize("index", [0, 3, 5])
@pytest.mark.parametrize(
    ("estimator", "symbols"),
    [
        ("reinforce", ["G_t", "b", "A_t"]),
        ("rloo", ["R", "b", "A_t"]),
        ("remax", ["G_t", "b", "A_t"]),
        ("grpo", ["R", "b", "s", "A_t"]),
    ],
)
def test_without_a_critic_the_formulas_are_those_of_the_estimator(
    width: int, index: int, estimator: str, symbols: list[str]
) -> None:
    facts = TokenFacts(sample_without_critic(estimator, gamma=0.9), index)
    lines = texts(formula_lines(facts, width))
    assert all(cell_len(line) <= width for line in lines)
    assert [line.split()[0] for line in lines if re.match(r"(δ_t|G_t|R|b|s|A_t) ", line)] == symbols
    assert not any("V(s" in line or "λ" in line for line in lines)
    expected = {
        "G_t": facts.return_,
        "R": facts.total_reward,
        "b": facts.baseline,
        "s": facts.advantage_scale,
        "A_t": facts.advantage,
    }
    for symbol in symbols:
        assert value_of(symbol, lines) == pytest.approx(expected[symbol], abs=5.1e-5), symbol
    if width == 106:
        line = next(line for line in lines if line.startswith("A_t"))
        assert eval(line.split(" = ")[-2]) == pytest.approx(facts.advantage, abs=3e-4)


@pytest.mark.parametrize("width", [55, 75, 90, 106, 130])
@pytest.mark.parametrize("advantage", [0.4, -0.4])
def test_the_loss_is_that_of_the_runs_clip_and_kl(width: int, advantage: float) -> None:
    ratios = [[1.0, 1.25, 1.5, 3.5, 0.5]] * 8
    held = {
        "epochs": 5,
        "whiten_advantages": False,
        "clip_high": 0.28,
        "dual_clip": 3.0,
        "kl_in": "loss",
        "kl_estimator": "k3",
        "importance_cap": 2.0,
        "loss_aggregation": "sequence",
    }
    of = sample(held=held, advantages=[advantage] * 8, ratios=ratios, sampler_logprobs=[-3.0] * 8, logprobs=[-2.9] * 8)
    facts = TokenFacts(of, 2)
    lines = texts(formula_lines(facts, width))
    assert all(cell_len(line) <= width for line in lines)
    definition = " ".join(line.strip() for line in lines[next(n for n, x in enumerate(lines) if x.startswith("L ")) :])
    kept = "min(ρ A_t, clip(ρ, 0.8, 1.28) A_t)"
    kept = kept if advantage > 0 else f"max({kept}, 3 A_t)"
    assert f"= -w {kept} + β KL_t, ρ = π / π_old" in re.sub(" +", " ", definition)
    assert definition.endswith("averaged over the tokens of each response, then over the responses of the minibatch")
    shown = [line for line in lines if "  epoch " in line]
    gap = of.numbers["ref_logprobs"][2] + 2.9
    for line, ratio in zip(shown, ratios[0], strict=True):
        low_high = min(ratio * advantage, min(max(ratio, 0.8), 1.28) * advantage)
        bounded = max(low_high, 3 * advantage) if advantage < 0 else low_high
        log_r = gap - math.log(ratio)
        loss = -math.exp(0.1) * bounded + 0.05 * (math.exp(log_r) - 1 - log_r)
        assert float(line.split()[-1]) == pytest.approx(loss, abs=5.1e-5)
    clipped = ["epoch 3", "epoch 4"] if advantage > 0 else ["epoch 4", "epoch 5"]
    assert [line.split("  ")[3] for line in shown if "✂" in line] == clipped


def test_the_exact_kl_in_the_loss_is_not_that_of_the_token() -> None:
    of = sample(held={"kl_in": "loss", "kl_estimator": "full", "epochs": 1}, ratios=[[1.0]] * 8)
    lines = texts(formula_lines(TokenFacts(of, 2), 130))
    assert any(line.startswith("KL_t  = log π - log π_ref ") for line in lines)
    assert any(line.startswith("L ") and "+ β KL(π, π_ref) of all tokens" in line for line in lines)
    assert [line.split() for line in lines if "  epoch " in line] == [["epoch", "1", "ρ", "1.0000"]]  # and no loss


def test_an_epoch_without_a_step_and_a_file_without_settings_say_so() -> None:
    of = sample(held={"epochs": 2}, ratios=[[1.0, math.nan]] * 8)
    assert texts(formula_lines(TokenFacts(of, 2), 75))[-1].split() == ["epoch", "2", "ρ", "NaN", "no", "step"]
    lines = " ".join(texts(formula_lines(TokenFacts(replace(of, settings=None), 0), 75)))
    assert "has no settings such as gamma and lambda" in lines
    assert "KL_t" not in lines


def test_terms_whose_weight_prints_as_zero_share_a_line_and_still_add_up() -> None:
    facts = TokenFacts(sample(400), 0)
    terms, lines = advantage_terms(facts.sample, 0), texts(term_lines(facts, 75))
    shown = len(lines) - 3  # without an empty line, the headings and the rest
    assert terms[shown - 1].weight >= 5e-5 > terms[shown].weight
    rest = lines[-1].split()
    assert rest[:4] == ["…", str(400 - shown), "more", "terms"]
    assert float(rest[-2]) == pytest.approx(sum(term.product for term in terms[shown:]), abs=5.1e-5)
    assert float(rest[-1]) == pytest.approx(terms[-1].running, abs=5.1e-5)
    assert len(term_lines(TokenFacts(sample(400, held={"lam": 1.0}), 0), 75)) == 402
    assert len(term_lines(TokenFacts(sample(shown + 1), 0), 75)) == shown + 3, "one term has its own line"


def test_a_zero_has_no_sign() -> None:
    assert [number(x) for x in (-0.00001, 0.0, -1.0, math.nan, None)] == ["0.0000", "0.0000", "-1.0000", "NaN", "?"]


@pytest.mark.parametrize("width", [55, 75, 106])
@pytest.mark.parametrize("estimator", ["gae", "reinforce", "rloo", "remax", "grpo"])
def test_the_sum_is_laid_out_term_by_term(estimator: str, width: int) -> None:
    of = sample() if estimator == "gae" else sample_without_critic(estimator, gamma=0.9)
    whole = estimator in ("rloo", "grpo")
    rows = [line.split() for line in texts(term_lines(TokenFacts(of, 2), width))[2:]]
    for row, term in zip(rows, advantage_terms(of, 2), strict=True):
        assert int(row[0]) == (term.token + 1 if whole else term.token - 2)
        assert row[1] == token_label(of, term.token)
        numbers = [term.x, term.running] if whole else [term.weight, term.x, term.product, term.running]
        assert [float(x) for x in row[2:]] == pytest.approx(numbers, abs=5.1e-5)


@pytest.mark.parametrize("width", [55, 106])
@pytest.mark.parametrize(
    ("estimator", "held", "rows"),
    [
        ("grpo", {}, [(0.75, 0.25, 1.0), (0.0, 0.25, -0.5), (0.25, 0.25, 0.0)]),  # deviation 0.5
        ("grpo", {"group_std": False}, [(0.75, 0.25, 0.5), (0.0, 0.25, -0.25), (0.25, 0.25, 0.0)]),
        ("rloo", {}, [(0.75, 0.125, 0.625), (0.0, 0.5, -0.5), (0.25, 0.375, -0.125)]),
    ],
)
def test_a_group_is_a_table_of_its_rewards_baselines_and_advantages(
    width: int, estimator: str, held: dict[str, Any], rows: list[tuple[float, ...]]
) -> None:
    of = sample_without_critic(estimator, **held)
    scale = of.advantage_scale if held.get("group_std", True) else 1.0
    of = replace(of, sample=1, group=[0.75, 0.0, 0.25, math.nan], advantage_scale=scale)
    lines = texts(group_lines(TokenFacts(of, 2), width))[2:]
    assert all(cell_len(line) <= width for line in lines)
    found = [[float(x) for x in line.split()[-3:]] for line in lines[:3]]
    assert found == [pytest.approx(row, abs=5.1e-5) for row in rows]
    assert ["this one" in line for line in lines] == [False, True, False, False]
    assert lines[3].split() == ["4", "left", "out"]
    assert group_lines(TokenFacts(sample(), 2), width) == []


def test_a_group_that_scores_alike_teaches_nothing_and_says_so() -> None:
    alike = replace(explained_token(advantage=0.0, estimator="grpo").sample, group=[0.5, 0.5])
    assert "all responses to the prompt have the same reward" in sentence(TokenFacts(alike, 0))


@pytest.mark.parametrize(
    ("held", "definition", "ratio", "loss"),
    [
        ({"ratio": "sequence"}, "ρ = geometric mean of π / π_old over the response", math.sqrt(1.5 * 0.6), 0.4),
        ({"policy_loss": "cispo"}, "min(ρ, 1.2) A_t log π, ρ = π / π_old", 1.5, 1.2 * 0.4 * (-2.9 + math.log(1.5))),
    ],
)
def test_the_loss_is_that_of_the_runs_ratio_and_policy_loss(
    held: dict[str, Any], definition: str, ratio: float, loss: float
) -> None:
    held = {"epochs": 1, "whiten_advantages": False} | held
    of = sample(2, held=held, advantages=[0.4] * 2, ratios=[[1.5], [0.6]], logprobs=[-2.9] * 2)
    lines = texts(formula_lines(TokenFacts(of, 0), 120))
    assert re.sub(" +", " ", next(line for line in lines if line.startswith("L "))).endswith(definition)
    row = next(line for line in lines if "epoch 1" in line).split()
    loss = ratio * loss if "ratio" in held else loss
    assert (float(row[3]), float(row[-1])) == pytest.approx((ratio, -loss), abs=1e-4)


async def test_arrows_go_to_the_neighbours_and_escape_gives_the_token_reached() -> None:
    app = Laying()
    async with app.run_test(size=(80, 24)) as pilot:
        screen = app.ask(sample(), 6)
        await pilot.pause()
        first = drawn(app)
        await pilot.press("right", "right", "right")
        assert "token 8 of 8" in str(screen.query_one(AdvantageSum).border_title)
        assert drawn(app) != first
        await pilot.press("left")
        assert "token 7 of 8" in str(screen.query_one(AdvantageSum).border_title)
        assert drawn(app) == first
        await pilot.press("left", "escape")
        await pilot.pause()
        assert app.answer == 5
        assert not isinstance(app.screen, AdvantageScreen)


async def test_ten_thousand_terms_are_scrolled_by_key() -> None:
    app = Laying()
    async with app.run_test(size=(80, 24)) as pilot:
        screen = app.ask(sample(10_000, held={"lam": 1.0}), 0)
        await pilot.pause()
        widget = screen.query_one(AdvantageSum)
        top = drawn(app)
        await pilot.press("end")
        assert drawn(app)[-1].split()[:4] == ["…", "9,000", "more", "terms"]
        await pilot.press("pageup", "up", "down", "pagedown", "up")
        assert widget.scroll_offset.y == widget.max_scroll_y - 1
        await pilot.press("home")
        assert drawn(app) == top


@pytest.mark.parametrize("text", ["[/x]", "[@click=app.quit]x[/]", "\x1b[31m", "日本語" * 30, "\u202e", "\n", ""])
async def test_hostile_tokens_and_numbers_are_shown_and_not_obeyed(text: str) -> None:
    app = Laying()
    columns = {name: [math.nan, math.inf, -math.inf, 1e308, -1e308, 0.0] for name in TOKEN_COLUMNS}
    async with app.run_test(size=(80, 24)) as pilot:
        app.ask(sample(6, token_texts=[text] * 6, ratios=[[math.nan, math.inf]] * 6, **columns), 0)
        for _ in range(6):
            await pilot.press("end")
            assert all(cell_len(line) <= 80 and line.isprintable() for line in drawn(app))
            await pilot.press("right")
