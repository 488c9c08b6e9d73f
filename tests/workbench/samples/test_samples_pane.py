"""The samples pane lists what the policy wrote, follows the newest iteration, and searches the whole run."""

from __future__ import annotations

import math
import threading
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from samples_app import Run, Workbench, press, samples_pane, settle, show
from scripted_run import samples, started
from textual.widgets import Static

from trainer.runs.folder import RunFolder
from trainer.runs.samples import write_samples
from workbench.kit.banner import Banner
from workbench.kit.cursor_list import FilterField
from workbench.run.sample_table import Sample, SampleKey, SampleTable
from workbench.run.view import RunView
from workbench.samples import sample_list
from workbench.samples.sample_list import SampleList, sample_facts, sample_lines
from workbench.samples.sample_view import SampleView

HOSTILE = "[/x] [@click=app.quit]x[/] \x1b[31m \x9b \u202eabc \u2028 שלום 🎉👨‍👩‍👧 e\u0301 日本語\t\n"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path / "run")


async def test_the_newest_iteration_is_followed_and_its_scores_are_shown(run: Run) -> None:
    async with samples_pane(run) as (app, pilot):
        await pilot.pause()
        assert "No samples yet" in app.drawn
        run.write(1, "first of one", "second of one")
        await show(pilot, run)
        assert "first of one" in app.drawn
        assert "score +0.20   KL  1.5 nats     3 tokens" in app.drawn
        assert app.heading == "iteration 1 · newest   2 samples   score 0.15, 0.10 to 0.20   KL 1.5 nats"
        run.write(2, "first of two")
        await show(pilot, run)
        assert "first of two" in app.drawn
        assert app.heard == [(1, [0.1, 0.2]), (2, [0.1])]
        await show(pilot, run)
        assert len(app.heard) == 2, "nothing changed, so nothing is read"
        run.write(2, "anew")
        await show(pilot, run)
        assert "anew" in app.drawn, "a resumed run repeated it"


async def test_earlier_and_later_iterations_are_those_with_samples(run: Run) -> None:
    async with samples_pane(run) as (app, pilot):
        for number in (2, 5, 9):
            run.write(number, f"of {number}")
        write_samples(run.folder.samples_file(12), [], 12)  # left behind by a run that was resumed from before
        await show(pilot, run)
        seen = []
        for key in ("left", "left", "left", "right", "right", "right", "left", "end"):
            await press(pilot, key)
            seen.append(app.heading.split()[1])
            assert f"of {seen[-1]}" in app.drawn
        assert seen == ["5", "2", "2", "5", "9", "9", "5", "9"]
        assert "newest" in app.heading.split()


async def test_a_chosen_iteration_stays_until_the_newest_is_followed_again(run: Run) -> None:
    async with samples_pane(run) as (app, pilot):
        run.write(1, "of 1")
        run.write(2, "of 2")
        await show(pilot, run)
        app.pane.show_iteration(1)
        await settle(pilot)
        run.write(3, "of 3")
        await show(pilot, run)
        assert "of 1" in app.drawn
        assert app.heading.startswith("iteration 1 · newest is 3")
        app.pane.show_iteration(None)
        await settle(pilot)
        assert "of 3" in app.drawn


async def test_a_run_that_keeps_no_files_shows_previews_and_no_scores() -> None:
    app = Workbench()
    view = RunView()
    view.take(started())
    view.take(samples(4, ("Once upon", " a preview")))
    async with app.run_test(size=(80, 24)) as pilot:
        app.pane.show_run(view)
        await pilot.pause()
        assert "a preview" in app.drawn
        assert "tokens" not in app.drawn
        assert "no files are saved" in app.heading
        app.pane.take_focus()
        await pilot.press("enter")
        assert app.query_one(SampleList).display
        assert any("run.save_samples = true" in reported for reported in app.reported)
        app.pane.show_iteration(2)
        await settle(pilot)
        assert "run.save_samples" in " ".join(app.drawn.split())
        await press(pilot, "end")
        assert "a preview" in app.drawn
        assert app.heard == []


async def test_a_missing_file_and_a_damaged_one_are_sentences_in_the_pane(run: Run) -> None:
    async with samples_pane(run, size=(60, 24)) as (app, pilot):
        run.announce(1)
        await show(pilot, run)
        assert "a run keeps them with" in " ".join(app.drawn.split())
        run.write(2, "of 2")
        run.folder.samples_file(2).write_bytes(b"PAR1 and nothing of use PAR1")
        await show(pilot, run)
        assert "damaged" in app.drawn
        assert app.heard == []
        await pilot.press("enter")
        assert not app.query_one(SampleView).display
        run.write(3, "of 3")
        await show(pilot, run)
        assert "of 3" in app.drawn


async def test_a_run_that_learns_from_pairs_is_not_said_to_write_samples_later(run: Run) -> None:
    async with samples_pane(run) as (app, pilot):
        view = RunView()
        view.take(started(name="judge", folder=str(run.folder.root), run_kind="reward-model"))
        app.pane.show_run(view)
        await pilot.pause()
        assert "A reward-model run learns from pairs and writes no samples." in app.drawn


async def test_another_run_starts_from_nothing_but_keeps_search_and_order(run: Run, tmp_path: Path) -> None:
    async with samples_pane(run, "of 1", size=(60, 20)) as (app, pilot):
        await pilot.press("o", "slash", *"of", "enter", "enter")
        other = Run(tmp_path / "other")
        await show(pilot, other)
        assert "No samples yet" in app.drawn
        assert app.heading.strip() == "by score ↓"
        other.write(1, "of the other", "another", "also of the other")
        await show(pilot, other)
        assert [sample.key.row for sample in app.query_one(SampleList).items] == [2, 0]
        assert app.heading.endswith("by score ↓")
        await pilot.press("o")
        assert app.heading.endswith("by KL ↓")


async def test_the_screen_responds_while_a_file_is_read_and_only_the_wanted_one_is_read_next(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, go_on, original = list[int](), threading.Event(), sample_list.read_batch

    def slow(folder: RunFolder, iteration: int) -> SampleTable:
        read.append(iteration)
        go_on.wait(timeout=300)
        return original(folder, iteration)

    monkeypatch.setattr(sample_list, "read_batch", slow)
    async with samples_pane(run, size=(60, 20)) as (app, pilot):
        for number in range(1, 6):
            run.write(number, f"of {number}")
            app.pane.show_run(run.view)
            await pilot.pause()
        assert app.heading == "iteration 5 · newest"
        app.pane.show_iteration(3)
        go_on.set()
        await settle(pilot)
        assert "of 3" in app.drawn
        assert "of 1" not in app.drawn, "read, but no longer wanted"
        assert read == [1, 3]


@pytest.mark.parametrize("size", [(38, 20), (80, 24), (200, 60)])
async def test_hostile_samples_are_drawn_within_the_pane_at_every_size(run: Run, size: tuple[int, int]) -> None:
    app = Workbench()
    async with app.run_test(size=size) as pilot:
        run.write(1, HOSTILE, "x" * 1_000_000, "", "\n\n\n", "🎉" * 500)
        await show(pilot, run)
        app.pane.take_focus()
        for keys in ([], ["down", "enter"], ["escape", "up", "enter"]):
            await press(pilot, *keys)
            view = app.query_one(SampleView)
            widget = view.text if view.display else app.query_one(SampleList)
            width = widget.scrollable_content_region.width
            assert {cell_len(widget.render_line(y).text) for y in range(widget.size.height)} == {width}
        assert "[@click=app.quit]x[/] ␛[31m" in "".join(line.strip() + " " for line in app.drawn.splitlines())
        assert app.is_running


async def test_the_search_lists_matches_and_reports_what_it_cannot_understand(run: Run) -> None:
    async with samples_pane(run, "much joy", "some pain", "joy again") as (app, pilot):
        await press(pilot, "slash", *"joy score>0.2")
        assert "joy again" in app.drawn
        assert "much joy" not in app.drawn
        assert "   1 of 3 samples   score 0.30, 0.30 to 0.30   " in app.heading, "of those that are listed"
        await press(pilot, *" scroe>1")
        problem = app.query_one("#samples-problem", Static)
        assert problem.display
        assert "did you mean score?" in str(problem.render())
        await press(pilot, "escape")
        assert "some pain" in app.drawn
        assert not app.query_one(FilterField).display
        assert app.query_one(SampleList).has_focus


async def test_the_order_goes_by_score_kl_and_length_and_turns_round(run: Run) -> None:
    async with samples_pane(run, "a b c", "d", "e f") as (app, pilot):

        def order() -> str:
            return "".join(str(sample.key.row) for sample in app.query_one(SampleList).items)

        seen = [order()]
        for key in ("o", "O", "o", "o", "O", "o"):
            await press(pilot, key)
            seen.append(order())
        assert seen == ["012", "210", "012", "012", "021", "120", "012"]


async def test_the_whole_run_is_listed_newest_first_and_searched(run: Run) -> None:
    async with samples_pane(run) as (app, pilot):
        for number in range(1, 131):
            run.write(number, f"joy of {number}", f"pain of {number}")
        run.folder.samples_file(7).write_bytes(b"PAR1 and nothing of use PAR1")
        await show(pilot, run)
        app.pane.take_focus()
        await press(pilot, "r")
        listed = app.query_one(SampleList)
        assert app.heading.startswith("whole run   258 samples")
        assert [sample.key for sample in listed.items[:3]] == [(130, 0), (130, 1), (129, 0)]
        assert [reported for reported in app.reported if "step-000007" in reported and "damaged" in reported]
        await press(pilot, "slash", *"joy it<=3", "enter")
        assert [sample.key for sample in listed.items] == [(3, 0), (2, 0), (1, 0)]
        assert "2·1" in app.drawn
        await press(pilot, "r")
        assert app.heading.startswith("iteration 130 · newest   0 of 2 samples")


async def test_a_mark_is_kept_in_the_run_and_can_be_searched_for(run: Run) -> None:
    async with samples_pane(run, "one", "two") as (app, pilot):
        await press(pilot, "down", "m")
        assert "2 ★   score" in app.drawn
        await press(pilot, "slash", *"is:marked", "enter")
        assert [sample.key for sample in app.query_one(SampleList).items] == [(1, 1)]
        app.set_keymap({"sample-filter.clear": "f12"})
        await press(pilot, "m")
        assert len(app.query_one(SampleList).items) == 0
        assert "No matching samples. Press F12 in the search to show all." in app.drawn, "the user's key"


async def test_the_next_outlier_is_that_of_the_iteration(run: Run) -> None:
    async with samples_pane(run, *["a b c"] * 7, "a " * 200, *["a b c"] * 7) as (app, pilot):
        await pilot.press("]")
        assert app.query_one(SampleList).cursor == 7
        await pilot.press("full_stop")
        assert app.query_one(SampleList).cursor == 7
        assert "No more outliers" in str(app.query_one(Banner).render())
        await pilot.press("down", "comma")
        assert app.query_one(SampleList).cursor == 7


WIDTHS = range(38, 201)


def listed(**changes: Any) -> Sample:
    values: dict[str, Any] = {
        "key": SampleKey(12, 2),
        "prompt": "Once upon a time",
        "completion": " there was joy.",
        "score": 0.81,
        "kl": 7.94,
        "length": 29,
        "truncated": False,
    }
    return Sample(**values | changes)


def test_facts_are_in_full_where_they_fit_and_short_where_not() -> None:
    cut = listed(truncated=True)
    assert sample_facts(cut) == "  3   score +0.81   KL  7.9 nats    29 tokens   ✂ cut short"
    assert sample_facts(cut, short=True) == "  3  +0.81  KL  7.9   29 tok  ✂"
    assert sample_facts(listed(), marked=True).startswith("  3 ★   score")
    assert sample_facts(listed(), iteration=True).startswith("   12·3   score")
    assert sample_facts(listed(score=math.nan, kl=math.inf, length=None)) == "  3   not scored   KL    - nats"
    long, short = listed(kl=12.5, length=108), listed(kl=-0.1, length=1, truncated=True)
    assert sample_facts(long).index(" nats") == sample_facts(short).index(" nats"), "facts stand in columns"
    assert sample_facts(short).index("✂") > len(sample_facts(long))


def test_a_sample_takes_the_same_lines_whatever_is_in_it() -> None:
    for one in (
        listed(),
        listed(prompt="", completion=""),
        listed(prompt=HOSTILE * 50, completion=HOSTILE * 50),
    ):
        for width in WIDTHS:
            lines = sample_lines(one, width)
            assert len(lines) == 5
            assert lines[4] == ""
            assert max(map(cell_len, lines)) <= width


def test_the_end_of_a_prompt_is_shown_without_its_template_and_the_start_of_a_completion() -> None:
    prompt = "<|im_start|>user\n" + "x" * 200 + " sky is blue?<|im_end|>\n<|im_start|>assistant\n"
    _, shown, first, second, _ = sample_lines(listed(prompt=prompt, completion="word " * 100), 40)
    assert shown.endswith("x sky is blue?")
    assert shown.startswith("…")
    assert cell_len(shown) == 40
    assert first == " ".join(["word"] * 8)
    assert second.endswith("…")
    _, shown, first, second, _ = sample_lines(listed(), 40)
    assert (shown, first.strip(), second) == ("Once upon a time", "there was joy.", ""), "whole where they fit"
    llama = "Why?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
    assert sample_lines(listed(prompt=llama), 40)[1] == "Why?"
    system = "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\n"
    assert sample_lines(listed(prompt=f"{system}Why?<|im_end|>\n<|im_start|>assistant\n"), 80)[1] == "Why?"
    assert sample_lines(listed(prompt="<|user|>Tell me: why?<|assistant|>"), 80)[1] == "Tell me: why?"
