"""An open sample is shown token by token, explained by the inspector, marked, copied and exported."""

from __future__ import annotations

import itertools
import json
import math
import re
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from charts import roles, texts
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from samples_app import Run, Workbench, open_sample, opened, press, samples_pane, settle, show
from textual.widgets import Input, Static
from token_samples import SETTINGS, sample_row, sample_without_critic, token_sample
from waiting import until

from trainer.runs.samples import TOKEN_COLUMNS, write_samples
from workbench.kit.banner import Banner
from workbench.kit.dialog import AnswerScreen, TextPromptScreen
from workbench.kit.drawing import DRAWN, Drawn
from workbench.run.bookmarks import Bookmarks
from workbench.run.sample_table import Alternative, TokenSample
from workbench.samples import pane
from workbench.samples.advantage_screen import AdvantageScreen
from workbench.samples.channels import channel_scale
from workbench.samples.prompt_history import PromptHistoryScreen
from workbench.samples.sample_list import SampleList
from workbench.samples.sample_view import SampleView, facts_text, inspector_lines
from workbench.samples.token_facts import TokenFacts, sentence
from workbench.text import plain


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    return Run(tmp_path / "run")


async def test_what_reward_functions_logged_is_shown_and_a_response_without_a_score_as_such(run: Run) -> None:
    app = Workbench()
    left_out = dict.fromkeys(("score", "sequence_score", "rewards", "values", "td_errors", "advantages", "returns"))
    extra = json.dumps({"judge": "good\x1b[2J", "words": 12})
    row = {**sample_row(0, prompt="Once"), **left_out, "ratios": None, "extra": extra}
    run.folder.root.mkdir()
    write_samples(run.folder.samples_file(1), [row, sample_row(1)], 1, SETTINGS)
    run.announce(1, 2)
    async with app.run_test(size=(120, 30)) as pilot:
        await opened(pilot, run)
        line = app.query_one("#sample-extra", Static)
        assert (line.display, str(line.content)) == (True, "judge: good␛[2J   words: 12")
        assert "not scored" in str(app.query_one("#sample-facts", Static).content)
        assert "NaN" not in facts_text(app.query_one(SampleView).facts)
        await press(pilot, "n")
        assert not line.display


async def test_enter_shows_one_token_by_token_and_escape_the_list_again(run: Run) -> None:
    async with samples_pane(run, size=(60, 24)) as (app, pilot):
        run.write(1, "short", "long " * 500 + "END")
        text = await opened(pilot, run, "down")
        assert text.has_focus
        assert "prompt 1" in app.drawn
        assert "END" not in app.drawn
        for _ in range(60):
            await pilot.press("pagedown")
        assert "END" in app.drawn
        assert text.cursor > 490
        await pilot.press("escape")
        assert app.query_one(SampleList).has_focus
        assert app.query_one(SampleList).cursor == 1


async def test_an_open_sample_stays_while_training_goes_on_until_an_iteration_is_chosen(run: Run) -> None:
    async with open_sample(run, "of 1", size=(60, 24)) as (app, pilot, _):
        run.write(2, "of 2")
        await show(pilot, run)
        assert "of 1" in app.drawn
        assert "newest is 2" in app.heading
        await press(pilot, "escape")
        assert "of 2" in app.drawn, "closed, the newest is followed as before"
        await press(pilot, "enter")
        app.pane.show_iteration(1)  # as the charts do
        await settle(pilot)
        assert app.query_one(SampleList).display
        run.write(3, "of 3")
        await show(pilot, run)
        assert "of 1" in app.drawn, "asked for, so it stays"


async def test_a_high_pane_keeps_the_list_above_an_open_sample(run: Run) -> None:
    async with open_sample(run, "zero", "one", "two", size=(110, 60)) as (app, pilot, text):
        listed, view = app.query_one(SampleList), app.query_one(SampleView)
        assert text.has_focus
        assert 0 < listed.region.bottom <= view.region.y
        await press(pilot, "n")
        assert listed.cursor == 1
        listed.focus()
        await press(pilot, "down", "enter")
        assert app.pane.opened is not None
        assert app.pane.opened.key.row == 2
        assert listed.has_focus, "the keys go on through the list"
        await pilot.resize_terminal(110, 40)
        await pilot.pause()
        assert not listed.region.area


async def test_a_double_click_opens_a_sample_and_the_others_are_a_key_away(run: Run) -> None:
    async with samples_pane(run, "zero", "one", "two", size=(60, 24)) as (app, pilot):
        await pilot.click(SampleList, offset=(5, 1), times=2)
        seen = []
        for key in ("", "n", "n", "n", "N"):
            await press(pilot, *filter(None, [key]))
            seen.append(app.pane.opened and app.pane.opened.key.row)
        assert seen == [0, 1, 2, 2, 1]


async def test_the_inspector_describes_the_token_under_the_cursor(run: Run) -> None:
    async with open_sample(run, "zero one two", size=(120, 40)) as (app, pilot, text):
        inspector = app.query_one(SampleView).inspector
        for index in range(3):
            for y, line in enumerate(inspector_lines(TokenFacts(text.sample, index), *inspector.size)):
                assert inspector.render_line(y).text.rstrip() == plain(line).rstrip()
            await pilot.press("right")
        assert text.cursor == 2
        assert inspector.region.x > text.region.right - 1, "beside the text where there is room"


async def test_the_scale_of_the_batch_is_that_of_all_its_tokens_and_ends_with_its_iteration_and_run(
    run: Run, tmp_path: Path
) -> None:
    app, other = Workbench(), Run(tmp_path / "other")
    async with app.run_test(size=(80, 24)) as pilot:
        run.write(1, "zero one", "two three four")
        text = await opened(pilot, run)
        own = text.scale("advantage")
        await press(pilot, "b")
        rows = [sample_row(0, texts=["zero", " one"], score=0.1), sample_row(1, texts=["two", " three", " four"])]
        advantages = [value for row in rows for value in row["advantages"]]
        assert "advantage" in text.shared
        shared, expected = text.scale("advantage"), channel_scale(advantages, diverging=True)
        assert shared is not None
        assert shared.high == pytest.approx(expected.high)
        assert (shared.least, shared.greatest) == pytest.approx((expected.least, expected.greatest))
        await pilot.press("i", "b")  # the ratio has a list for each token
        await settle(pilot)
        assert "ratio" in text.shared
        await pilot.press("a", "b")
        assert text.scale("advantage") == own
        run.write(2, "of 2")
        await pilot.press("escape")
        await opened(pilot, run)
        assert "ratio" not in text.shared
        other.write(2, "zero one", "two three four")
        await press(pilot, "b")
        assert text.shared
        await pilot.press("escape")
        await opened(pilot, other)
        assert not text.shared, "that of another run"


async def test_bookmarks_that_cannot_be_written_are_reported_and_nothing_is_marked(run: Run) -> None:
    async with samples_pane(run) as (app, pilot):
        run.write(1, "zero")
        (run.folder.root / ".bookmarks.json.tmp").mkdir()
        await opened(pilot, run)
        await press(pilot, "m")
        assert any("cannot write bookmarks" in reported for reported in app.reported)
        assert "★" not in str(app.query_one("#sample-facts", Static).render())


async def test_a_copy_is_the_sample_in_the_list_and_the_token_in_a_sample(run: Run) -> None:
    async with samples_pane(run, "a [b]\x1b[31m text\tend") as (app, pilot):
        await pilot.press("y")
        whole = "prompt 0a [b]␛[31m text\tend"
        assert app.clipboard == whole, "control characters are symbols, except for tabs"
        assert "Copied prompt and response" in str(app.query_one(Banner).render())
        assert not app.reported, "a toast would cover the text"
        text = await opened(pilot, run)
        await pilot.press("right", "y")
        assert text.sample is not None
        advantage = text.sample.numbers["advantages"][1]
        lines = app.clipboard.splitlines()
        assert lines[0].startswith("'·[b]␛[31m'  pushed")
        assert "2 of 3 · id 101" in app.clipboard
        assert any(line.split() == ["advantage", f"{advantage:.4f}"] for line in lines)
        await pilot.press("Y")
        assert app.clipboard == whole
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, AdvantageScreen))
        await pilot.press("y")
        assert app.clipboard.startswith("Advantage of '·[b]␛[31m', token 2 of 3\n")
        assert "A_t" in app.clipboard
        assert "Copied the calculation" in str(app.screen.query_one(Banner).render())


async def test_the_history_of_the_prompt_opens_the_sample_that_is_chosen_there(run: Run) -> None:
    async with samples_pane(run) as (app, pilot):
        run.write(1, "of 1")
        run.write(2, "of 2")
        await opened(pilot, run)
        await press(pilot, "h")
        assert isinstance(app.screen, PromptHistoryScreen)
        await press(pilot, "down", "enter")
        assert app.pane.opened is not None
        assert app.pane.opened.key == (1, 0)
        await pilot.press("h")  # again, from the sample that is open and not from the list's
        await settle(pilot)
        await press(pilot, "enter")
        assert app.pane.opened is not None
        assert app.pane.opened.key == (1, 0)


async def test_a_question_is_about_the_prompt_or_the_place_of_the_cursor(run: Run) -> None:
    async with samples_pane(run, "zero one two") as (app, pilot):
        await press(pilot, "a")
        await opened(pilot, run)
        await press(pilot, "p")
        await press(pilot, "right", "f")
        of_the_list, of_the_prompt, of_the_place = app.asked
        assert (of_the_list[0].key, of_the_list[1]) == ((1, 0), None)
        assert of_the_prompt == (app.pane.opened, None)
        assert of_the_place == (app.pane.opened, 1)


@pytest.mark.parametrize(("choice", "rows"), [([], [0]), (["down"] * 2, [0, 1, 2]), (["down"] * 4, [2])])
async def test_an_export_is_this_sample_those_listed_or_those_marked(
    run: Run, choice: list[str], rows: list[int], tmp_path: Path
) -> None:
    async with samples_pane(run, "zero", "one", "two", size=(100, 30)) as (app, pilot):
        await press(pilot, "end", "down", "down", "m")
        await pilot.press("home", "x")
        await until(pilot, lambda: isinstance(app.screen, AnswerScreen))
        await pilot.press(*choice, "enter")
        await until(pilot, lambda: isinstance(app.screen, TextPromptScreen))
        await pilot.press("enter")
        await until(pilot, lambda: any(tmp_path.glob("run-1-1*.jsonl")))
        (path,) = tmp_path.glob("run-1-1*.jsonl")
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        assert [line["row"] for line in lines] == rows


async def test_an_export_overwrites_no_file(run: Run, tmp_path: Path) -> None:
    (tmp_path / "mine.md").write_text("years of work")
    async with samples_pane(run, "zero", size=(100, 30)) as (app, pilot):
        await pilot.press("x", "down", "enter")
        await until(pilot, lambda: isinstance(app.screen, TextPromptScreen))
        app.screen.query_one(Input).value = "mine.md"
        await pilot.press("enter")
        await until(pilot, lambda: "it exists" in str(app.screen.query_one(".detail", Static).render()))
        assert (tmp_path / "mine.md").read_text() == "years of work"


async def test_a_missing_or_damaged_file_is_reported_and_the_list_stays(run: Run) -> None:
    async with samples_pane(run, "zero") as (app, pilot):
        path = run.folder.samples_file(1)
        whole = path.read_bytes()
        for content in (None, whole[: len(whole) // 2], whole.replace(b"PAR1", b"XXXX")):
            path.unlink(missing_ok=True)
            if content is not None:
                path.write_bytes(content)
            await press(pilot, "enter")
            assert app.query_one(SampleList).display
        assert len(app.reported) == 3
        run.write(2, "a later one")
        await show(pilot, run)
        await settle(pilot)
        assert "a later one" in app.drawn, "the list follows the run"
        assert all("step-000001" in reported and "\n" not in reported for reported in app.reported)


async def test_the_text_of_a_sample_is_selected_as_it_reads_without_blocks_and_breaks(run: Run) -> None:
    async with samples_pane(run, size=(30, 24)) as (app, pilot):
        run.write(1, "one two three four five six seven eight\nnine ten")
        text = await opened(pilot, run, "g")
        await pilot.press("g")
        first = next(y for y in range(text.size.height) if "one" in text.render_line(y).text)
        below = next(y for y in range(text.size.height) if "nine" in text.render_line(y).text)
        await pilot.mouse_down(text, offset=(0, first))
        await pilot.hover(text, offset=(5, below))
        await pilot.mouse_up(text, offset=(5, below))
        assert app.screen.get_selected_text() == "one two three four five six seven eight\nnine"
        assert text.cursor == 0


async def test_a_row_of_channels_shows_which_is_on_and_a_click_chooses_another(run: Run) -> None:
    async with open_sample(run, "zero one", values=None, size=(120, 24)) as (app, pilot, text):
        row = app.query_one("#channels", Drawn)

        def on() -> list[str]:
            return [segment.text for segment in row.render_line(0) if segment.style and segment.style.reverse]

        drawn = row.render_line(0).text
        assert on() == ["[a]dvantage"]
        assert "[k]" in drawn.lower()
        styles = {segment.text: segment.style for segment in row.render_line(0)}
        assert styles["[v]alue"].italic, "not recorded"
        await pilot.click(row, offset=(drawn.index("[r]eward") + 2, 0))
        assert (text.channel, on()) == ("reward", ["[r]eward"])
        assert text.has_focus
        await pilot.press("e")
        await pilot.pause()
        assert on() == ["[e]ntropy"]
        await pilot.resize_terminal(80, 24)
        await pilot.pause()
        keys = [segment.text for segment in row.render_line(0) if segment.style and segment.style.underline]
        assert keys == ["K", "a", "r", "t", "D", "i", "l"], "the recorded ones that are off"


async def test_the_inspector_has_the_rows_that_the_text_leaves_free(run: Run) -> None:
    async with samples_pane(run, size=(80, 50)) as (app, pilot):
        run.write(1, "one two", "long " * 900)
        text, inspector = await opened(pilot, run), app.query_one(SampleView).inspector
        await pilot.pause()
        short = inspector.size.height
        assert short == app.query_one(SampleView).size.height - text.virtual_size.height - 4
        assert text.size.height == text.virtual_size.height
        await press(pilot, "n")
        assert inspector.size.height == 14
        assert text.scroll_offset.y == 0, "opened at its top, though the text before had fewer rows"
        await pilot.resize_terminal(120, 50)
        await pilot.pause()
        assert inspector.size.height == app.query_one(SampleView).size.height - 2, "beside the text"


async def test_keys_pressed_while_a_sample_is_read_are_about_that_sample(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, original = threading.Event(), pane.read_token_sample
    async with open_sample(run, "zero", "one") as (app, pilot, _):

        def slow(*given: Any) -> Any:
            go_on.wait(timeout=300)
            return original(*given)

        monkeypatch.setattr(pane, "read_token_sample", slow)
        await pilot.press("n", "y", "m", "m", "m")
        assert app.clipboard == "prompt 1one"
        go_on.set()
        await settle(pilot)
        assert app.pane.opened is not None
        assert app.pane.opened.key == (1, 1)
        assert list(Bookmarks(run.folder)) == [(1, 1)]
        assert "★" in str(app.query_one("#sample-facts", Static).render())


WIDE = (44, 60)  # room for everything


def clipped(**changes: Any) -> TokenSample:
    """Return a sample with four epochs and a measurement after them; token 3 is clipped in the last two."""
    base = token_sample(length=6, **changes)
    shares = [(0.5, 0.4), (0.08, 0.03)]
    places = [
        [
            Alternative(token, f" w{token}", math.log(mine), math.log(theirs))
            for token, (mine, theirs) in zip((7, own), shares, strict=True)
        ]
        for own in base.tokens
    ]
    logprobs, ref_logprobs = [math.log(0.08)] * 6, [math.log(0.03)] * 6
    numbers = {**base.numbers, "logprobs": logprobs, "ref_logprobs": ref_logprobs, "sampler_logprobs": logprobs}
    numbers["kl"] = [mine - theirs for mine, theirs in zip(logprobs, ref_logprobs, strict=True)]
    numbers["advantages"] = [-0.41] * 6
    ratios = [[1.0, 1.1, 0.7, 0.6, 1.3]] * 6
    settings = replace(SETTINGS, epochs=4)
    return replace(base, numbers=numbers, alternatives=places, ratios=ratios, settings=settings)


def texts_of(of: TokenSample, index: int = 3, width: int = 44, height: int = 60) -> list[str]:
    return texts(inspector_lines(TokenFacts(of, index), width, height))


def value_of(lines: list[str], label: str) -> str:
    """Return what follows a label."""
    line = next(line for line in lines if line.strip().startswith(label))
    return re.sub(r"\s+", " ", line.strip().removeprefix(label)).strip()


def test_every_number_of_a_token_is_shown_with_its_unit() -> None:
    of = clipped()
    facts, lines = TokenFacts(of, 3), texts_of(of)
    head = " ".join(lines[:4])
    assert head.startswith(f"{facts.name}  pushed down until the clip stopped it in"), "the sentence first"
    assert "4 of 6 · id 103" in head
    for label, number in (
        ("value", facts.value),
        ("next", facts.next_value),
        ("TD error", facts.td_error),
        ("return", facts.return_),
        ("reward", facts.reward),
        ("KL penalty", facts.kl_penalty),
    ):
        assert value_of(lines, label) == f"{number:.4f}", label
    assert value_of(lines, "advantage") == "-0.4100"
    assert value_of(lines, "whitened") == "-1.0200 std"
    assert value_of(lines, "log-prob") == "-2.5257 nats 8%"
    assert value_of(lines, "reference") == "-3.5066 nats 3%"
    assert value_of(lines, "sampler") == "-2.5257 nats 8%"
    assert value_of(lines, "KL  ") == "0.9808 nats"
    assert value_of(lines, "entropy") == f"{facts.entropy:.4f} nats"


def test_a_clipped_ratio_is_marked_without_colour_unlike_one_that_is_only_outside() -> None:
    lines = texts_of(clipped())
    assert value_of(lines, "ratio epoch 2") == "1.1000 8.8%"
    assert value_of(lines, "ratio epoch 3") == "0.7000 ✂ clipped 5.6%"
    assert value_of(lines, "ratio epoch 4") == "0.6000 ✂ clipped 4.8%"
    assert value_of(lines, "ratio after") == "1.3000 outside 10%"
    narrow = texts_of(clipped(), width=38)
    assert value_of(narrow, "ratio epoch 3") == "0.7000 ✂ 5.6%"
    assert value_of(narrow, "ratio after") == "1.3000 out 10%"
    assert roles(inspector_lines(TokenFacts(clipped(), 3), 44, 60), "warning").split() == ["✂", "clipped"] * 2


def test_the_alternatives_are_a_table_with_the_written_token_marked() -> None:
    lines = texts_of(clipped())
    table = lines[next(place for place, line in enumerate(lines) if "likeliest" in line) :]
    assert [line.split() for line in table] == [
        ["likeliest", "policy", "reference"],
        ["'·w7'", "50%", "40%"],
        ["▸", "'·w103'", "8%", "3%"],
    ]
    ends = {line.rindex("%") for line in table[1:]}
    assert len(ends) == 1, "right-aligned"


def test_the_penalised_kl_is_shown_apart_only_where_it_differs() -> None:
    of = clipped()
    assert not any("by k" in line for line in texts_of(of))
    other = replace(of, settings=replace(SETTINGS, kl_estimator="k3"), numbers={**of.numbers, "kl": [0.25] * 6})
    assert value_of(texts_of(other), "KL  ") == "0.9808 nats"
    assert value_of(texts_of(other), "by k3") == "0.2500 nats"


def test_the_score_and_the_place_are_at_the_last_token() -> None:
    lines = texts_of(clipped(row=0), 5)
    assert "6 of 6 · stop · id 105" in "\n".join(lines[:5])
    assert value_of(lines, "score") == f"{TokenFacts(clipped(row=0), 5).sequence_score:.4f}"
    assert "6 of 6 · cut short · id 105" in "\n".join(texts_of(clipped(row=2), 5)[:5])
    assert not any(line.strip().startswith("score") for line in texts_of(clipped(), 4))


def test_a_whitened_reward_says_so_and_gives_its_raw_sum() -> None:
    of = clipped(token_scores=[0.25] * 6)
    lines = texts_of(replace(of, settings=replace(SETTINGS, whiten_rewards=True)))
    assert value_of(lines, "reward").endswith("whitened")
    assert value_of(lines, "token's own") == "0.2500"
    assert value_of(lines, "sum") == f"{-0.05 * math.log(8 / 3) + 0.25:.4f}"


@pytest.mark.parametrize("estimator", ["reinforce", "rloo", "remax", "grpo"])
def test_without_a_critic_the_baseline_is_shown_and_no_value(estimator: str) -> None:
    of = sample_without_critic(estimator)
    facts, lines = TokenFacts(of, 5), texts_of(of, 5)
    for absent in ("value", "next", "TD error"):
        assert not any(line.strip().startswith(absent) for line in lines)
    assert value_of(lines, "baseline") == "0.2500"
    assert value_of(lines, "advantage") == f"{facts.advantage:.4f}"
    assert value_of(lines, "return") == f"{facts.return_:.4f}"
    reported = {line.strip().split("  ")[0] for line in lines}
    assert ("all rewards" in reported) == (estimator in ("rloo", "grpo"))
    assert ("divided by" in reported) == (estimator == "grpo")


def test_a_kl_in_the_loss_and_a_weight_have_lines_of_their_own() -> None:
    of = clipped()
    held = replace(SETTINGS, kl_in="loss", kl_estimator="k3", importance_cap=2.0)
    lines = texts_of(replace(of, settings=held))
    assert not any("KL penalty" in line for line in lines)
    assert value_of(lines, "KL's push") == f"{-0.05 * (1 - 3 / 8):.4f}"
    assert value_of(lines, "weight") == "1.0000"


def test_an_epoch_without_a_step_and_numbers_that_are_none_are_marked() -> None:
    of = replace(
        clipped(values=[math.nan] * 6, entropy=[math.inf] * 6), ratios=[[1.0, 1.1, math.nan, math.nan, 1.1]] * 6
    )
    lines = texts_of(of)
    assert value_of(lines, "ratio epoch 3") == "× NaN no step"
    assert value_of(lines, "ratio after") == "1.1000 8.8%"
    assert value_of(lines, "value") == "× NaN"
    assert value_of(lines, "entropy") == "× +inf nats"
    assert "NaN" in roles(inspector_lines(TokenFacts(of, 3), 44, 60), "missing")


def test_numbers_missing_from_the_file_are_not_shown() -> None:
    bare = replace(clipped(), numbers={"logprobs": [-1.0] * 6}, settings=None, ratios=[], alternatives=[])
    assert [line.split()[0] for line in texts_of(bare)[1:] if line] == ["log-prob"]


@pytest.mark.parametrize(("width", "height"), [(36, 7), (36, 12), (38, 10), (44, 20)])
def test_a_low_place_keeps_the_token_the_sentence_and_the_most_telling_numbers(width: int, height: int) -> None:
    lines = texts_of(clipped(), width=width, height=height)
    assert len(lines) == height
    lines = [line for line in lines if line]
    assert lines[0].startswith(f"{TokenFacts(clipped(), 3).name}  pushed down")
    assert any(line.startswith("advantage") for line in lines)
    everything = texts_of(clipped(), width=width, height=60)
    assert [line for line in everything if line in lines] == [line for line in lines if line in everything], "in order"


def test_a_low_wide_place_sets_numbers_side_by_side() -> None:
    lines = texts_of(clipped(), width=100, height=8)
    assert len(lines) == 8
    beside = [line for line in lines if len(re.findall(r"-?\d\.\d{4}", line)) == 2]
    assert len(beside) >= 4
    for height in range(6, 14):
        for index in (3, 5):
            stacks = [line[46:] for line in texts_of(clipped(), index, 100, height)[2:] if line[46:].strip()]
            assert not stacks or not stacks[0].startswith(" "), "a part does not stand apart from its whole"
    one = texts_of(clipped(), width=44, height=8)
    assert len(re.findall(r"\d\.\d{4}", " ".join(lines))) > len(re.findall(r"\d\.\d{4}", " ".join(one)))


def test_more_height_drops_nothing_that_less_height_shows() -> None:
    of = clipped()
    for width in (36, 44):
        before: set[str] = set()
        for height in range(1, 50):
            lines = {line for line in texts_of(of, width=width, height=height) if line}
            assert all(any(line.startswith(shorter.removesuffix("…")) for line in lines) for shorter in before)
            before = lines


@pytest.mark.parametrize("width", [27, 34, 36, 44, 78])
def test_a_sentence_that_has_no_room_ends_with_an_ellipsis_and_none_is_cut_above_empty_lines(width: int) -> None:
    facts = TokenFacts(clipped(), 3)
    whole = [facts.name, *sentence(facts).split()]
    for height in range(1, 60):
        lines = texts_of(clipped(), width=width, height=height)
        reported = itertools.takewhile(lambda line: line and not re.search(r"\d\.\d{4}", line), lines)
        words = " ".join(line.partition("4 of 6")[0].rstrip() for line in reported).split()
        assert words == whole or words[-1].endswith("…")
    assert not any(line.endswith("…") for line in texts_of(clipped(), width=width, height=60))


def test_names_of_passes_are_whole_where_a_column_is_narrow() -> None:
    narrow, wide = (
        texts_of(clipped(), width=34, height=60),
        texts_of(clipped(), width=44, height=60),
    )
    assert [line.split()[:2] for line in wide if line.startswith("ratio")][1] == ["ratio", "epoch"]
    assert [line[:10] for line in narrow if line.startswith("ρ epoch")] == [f"ρ epoch {n} " for n in range(1, 5)]
    assert not any("…" in line for line in narrow)


@given(
    text=st.sampled_from(["[/x]", "\x1b[31m", "\u202eabc", "👨‍👩‍👧", "日本語" * 40, "\t\n"]) | st.text(max_size=8),
    number=st.floats() | st.sampled_from([1e308, -1e-308, math.nan]),
    width=st.integers(0, 130),
    height=st.integers(0, 40),
    index=st.integers(0, 5),
)
def test_nothing_overflows_whatever_the_file_holds(
    text: str, number: float, width: int, height: int, index: int
) -> None:
    of = clipped(texts=[text] * 6, **{name: [number] * 6 for name in TOKEN_COLUMNS})
    of = replace(of, alternatives=[[Alternative(1, text, number, number)]] * 6, ratios=[[number] * 5] * 6)
    lines = inspector_lines(TokenFacts(of, index), width, height)
    assert len(lines) <= height
    for line in lines:
        drawn = "".join(part for part, _ in line)
        assert cell_len(drawn) <= width
        assert not re.search("[\x00-\x1f\x7f-\x9f\u2028\u202e]", drawn)
        assert {f"drawn--{role}" for _, role in line} <= DRAWN
