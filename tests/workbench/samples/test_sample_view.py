"""An open sample is shown token by token, explained, marked, copied, drawn and exported."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from samples_app import Run, Workbench, open_sample, opened, samples_pane, settle, show
from textual.widgets import Input, Static
from token_samples import SETTINGS, sample_row
from waiting import until

from trainer.runs.samples import write_samples
from workbench.kit.banner import Banner
from workbench.kit.dialog import AnswerScreen, TextPromptScreen
from workbench.kit.drawing import Drawn
from workbench.run.bookmarks import Bookmarks
from workbench.samples import pane
from workbench.samples.advantage_screen import AdvantageScreen
from workbench.samples.channels import channel_scale
from workbench.samples.prompt_history import PromptHistoryScreen
from workbench.samples.sample_list import SampleList
from workbench.samples.sample_view import SampleView, facts_text, inspector_lines
from workbench.samples.token_facts import TokenFacts
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
        await pilot.press("n")
        await settle(pilot)
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
        await pilot.press("escape")
        await settle(pilot)
        assert "of 2" in app.drawn, "closed, the newest is followed as before"
        await pilot.press("enter")
        await settle(pilot)
        app.pane.show_iteration(1)  # as the charts do
        await settle(pilot)
        assert app.query_one(SampleList).display
        run.write(3, "of 3")
        await show(pilot, run)
        assert "of 1" in app.drawn, "asked for, so it stays"


async def test_a_double_click_opens_a_sample_and_the_others_are_a_key_away(run: Run) -> None:
    async with samples_pane(run, "zero", "one", "two", size=(60, 24)) as (app, pilot):
        await pilot.click(SampleList, offset=(5, 1), times=2)
        seen = []
        for key in ("", "n", "n", "n", "N"):
            await pilot.press(*filter(None, [key]))
            await settle(pilot)
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
        await pilot.press("b")
        await settle(pilot)
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
        await pilot.press("b")
        await settle(pilot)
        assert text.shared
        await pilot.press("escape")
        await opened(pilot, other)
        assert not text.shared, "that of another run"


async def test_bookmarks_that_cannot_be_written_are_reported_and_nothing_is_marked(run: Run) -> None:
    async with samples_pane(run) as (app, pilot):
        run.write(1, "zero")
        (run.folder.root / ".bookmarks.json.tmp").mkdir()
        await opened(pilot, run)
        await pilot.press("m")
        await settle(pilot)
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
        assert lines[0].startswith("'·[b]␛[31m'  id 101")
        assert any(line.split() == ["advantage", f"{advantage:.4f}"] for line in lines)
        assert any("ushed" in line for line in lines)
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
        await pilot.press("h")
        await settle(pilot)
        assert isinstance(app.screen, PromptHistoryScreen)
        await pilot.press("down", "enter")
        await settle(pilot)
        assert app.pane.opened is not None
        assert app.pane.opened.key == (1, 0)
        await pilot.press("h")  # again, from the sample that is open and not from the list's
        await settle(pilot)
        await pilot.press("enter")
        await settle(pilot)
        assert app.pane.opened is not None
        assert app.pane.opened.key == (1, 0)


async def test_a_question_is_about_the_prompt_or_the_place_of_the_cursor(run: Run) -> None:
    async with samples_pane(run, "zero one two") as (app, pilot):
        await pilot.press("a")
        await settle(pilot)
        await opened(pilot, run)
        await pilot.press("p")
        await settle(pilot)
        await pilot.press("right", "f")
        await settle(pilot)
        of_the_list, of_the_prompt, of_the_place = app.asked
        assert (of_the_list[0].key, of_the_list[1]) == ((1, 0), None)
        assert of_the_prompt == (app.pane.opened, None)
        assert of_the_place == (app.pane.opened, 1)


@pytest.mark.parametrize(("choice", "rows"), [([], [0]), (["down"] * 2, [0, 1, 2]), (["down"] * 4, [2])])
async def test_an_export_is_this_sample_those_listed_or_those_marked(
    run: Run, choice: list[str], rows: list[int], tmp_path: Path
) -> None:
    async with samples_pane(run, "zero", "one", "two", size=(100, 30)) as (app, pilot):
        await pilot.press("end", "down", "down", "m")
        await settle(pilot)
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
            await pilot.press("enter")
            await settle(pilot)
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
        await pilot.press("n")
        await settle(pilot)
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
