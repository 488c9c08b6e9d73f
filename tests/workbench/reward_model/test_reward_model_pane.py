"""The reward model pane: which run it shows, what its keys do, how it looks, and its list of held-out pairs.

UPDATE_SNAPSHOTS=1 rewrites tests/snapshots/; look at the difference before you keep it.
"""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import Any

import pytest
from preference_samples import labelled, reward_config
from reward_pane_app import REPORT, Run, Workbench, evaluation, look, pair, settle, some_pairs, step, workbench
from scripted_run import ended, started
from snapshots import SNAPSHOTS, check
from textual.widgets import Input
from waiting import until

from trainer.engine.training import train
from trainer.errors import StorageError
from trainer.events import Event, PhaseProgress, StateChanged
from trainer.preferences.formats import read_preferences
from trainer.reward_model.predictions import HELD_OUT, read_predictions
from trainer.runs.folder import RunFolder, rename_run
from trainer.runs.sinks import ProgressFile
from workbench.kit.cursor_list import FilterField
from workbench.kit.saving import write_lines
from workbench.reward_model.charts import RewardCharts
from workbench.reward_model.pairs import RewardPairList, RewardPairText, chosen_pairs, export_rows
from workbench.run.run_listing import RunListing, read_runs
from workbench.run.run_on_disk import RunOnDisk
from workbench.run.view import RunView


def charts(app: Workbench) -> list[str]:
    """Return the names of the charts shown, from the left and then below."""
    titles = re.findall(r"held-out accuracy|training ·|calibration ·|rewards ·", app.screen_text)
    return [title.removesuffix(" ·") for title in titles]


async def test_the_pane_matches_its_snapshot() -> None:
    Run("old", 1).train()
    Run("liked", 2).train()
    async with workbench((120, 40)) as (app, pilot):
        await pilot.press("down", "m")
        check(app.screen_text, SNAPSHOTS / "reward-model.txt")


async def test_the_pane_shows_what_a_training_leaves(tmp_path: Path) -> None:
    config = reward_config(tmp_path, "run.name=a", "data.eval_fraction=0.3")
    train(config, preferences=labelled(60))
    async with workbench() as (app, pilot):
        assert "step 6 of 6   42 comparisons, 18 held out" in app.text("heading")
        found = read_predictions(tmp_path / "runs/a" / HELD_OUT)
        assert f"{100 * found.report.accuracy.value:.1f}%" in app.screen_text
        assert app.pane.selected == found.pairs[0]
        await pilot.press("l")
        assert app.asked == [(found.pairs[0].key,)]


async def test_without_a_reward_model_the_way_to_one_is_shown() -> None:
    async with workbench((100, 30)) as (app, pilot):
        assert "No reward models in" in app.screen_text
        assert "reward-model train" in app.screen_text
        assert not app.query_one(RewardCharts).display
        await pilot.press("enter", "l", "L", "m", "left", "right", "v", "n", "escape")
        assert app.asked == []


async def test_the_newest_run_is_shown_and_left_and_right_go_through_the_others() -> None:
    for day, name in enumerate("abc", 1):
        Run(name, day).train()
    async with workbench() as (app, pilot):
        seen = [app.text("heading")]
        for key in ("left", "left", "left", "right", "right", "right"):
            await pilot.press(key)
            await settle(pilot)
            seen.append(app.text("heading"))
        assert [heading[0] for heading in seen] == ["c", "b", "a", "a", "b", "c", "c"]
        assert "✓ done   step 75 of 75   600 comparisons, 200 held out   run 1 of 3" in seen[0]
        assert "run 3 of 3" in seen[2]
        await pilot.press("left")
        Run("d", 4)
        await look(pilot)
        assert app.text("heading").startswith("b "), "which was chosen"
        rename_run(RunFolder(Path("runs/b")), "e")
        await look(pilot)
        assert app.text("heading").startswith("d "), "what was chosen is there no more"
        Run("f", 5)
        await look(pilot)
        assert app.text("heading").startswith("f "), "a run that begins is shown"


async def test_a_live_run_is_followed_from_its_start_and_can_be_stopped() -> None:
    run = Run("live", 1, steps=4)
    with run.folder.lock():
        async with workbench() as (app, pilot):
            assert "Held-out pairs appear after the first evaluation" in app.screen_text
            assert "no steps yet" in app.screen_text
            sink = ProgressFile(run.folder.progress)
            sink.emit(PhaseProgress(iteration=0, phase="score", done=3, total=12))
            run.report(evaluation(0, accuracy=0.5, accuracy_low=0.4, accuracy_high=0.6))
            run.keep([pair(1, -1.0), pair(2, 1.0)], iteration=0)
            await look(pilot)
            assert "● loading the model   step 0 of 4   score 25%" in app.text("heading")
            assert "✗ 1 of 2" in app.text("pairs")
            run.report(StateChanged(state="training"), step(1), step(2), evaluation(2))
            sink.emit(PhaseProgress(iteration=3, phase="update", done=1, total=2))
            await look(pilot)
            assert "● training   step 2 of 4   12s left   update 50%" in app.text("heading")
            await pilot.press("down")
            run.keep([pair(3, -2.0), pair(1, -1.0), pair(2, 1.0)], iteration=2)
            await look(pilot)
            assert app.pane.selected is not None
            assert "Question 2" in str(app.pane.selected.prompt), "the cursor stays with its pair"
            assert app.listed.cursor == 2
            await pilot.press("X", "n")
            await settle(pilot)
            assert not list(run.folder.control.glob("*.json"))
            await pilot.press("X", "y")
            await settle(pilot)
            [request] = run.folder.control.glob("*.json")
            assert '"stop"' in request.read_text()
    run.report(ended("stopped", 2))
    async with workbench() as (app, pilot):
        assert app.pane.check_action("stop", ()) is False


async def test_an_open_pair_shows_its_newest_numbers_and_closes_when_it_is_no_longer_listed() -> None:
    run = Run("live", 1, steps=4)
    with run.folder.lock():
        async with workbench() as (app, pilot):
            run.report(evaluation(0, accuracy=0.5))
            run.keep([pair(1, -1.0), pair(2, 1.0)], iteration=0)
            await look(pilot)
            await pilot.press("enter")
            assert "Question 1" in app.opened
            before = app.opened
            run.report(step(1), step(2), evaluation(2))
            run.keep([pair(2, -3.0), pair(1, -2.0)], iteration=2)
            await look(pilot)
            assert "Question 1" in app.opened
            assert app.opened != before
            run.report(step(3), evaluation(3))
            run.keep([pair(2, -3.0)], iteration=3)
            await look(pilot)
            assert app.opened == ""


async def test_a_run_without_held_out_pairs_shows_what_its_journal_contains() -> None:
    run = Run("a", 1)
    run.report(step(1), evaluation(1, accuracy=0.71))
    async with workbench() as (app, pilot):
        assert "71.0%" in app.screen_text
        assert "No held-out pairs: set data.eval_fraction." in app.screen_text
        await pilot.press("l", "enter")
        assert app.asked == []


async def test_the_run_on_the_screen_is_chosen_whatever_its_folder() -> None:
    Run("a", 1).train(), Run("b", 2).train()
    async with workbench() as (app, pilot):
        for kind, name in (("ppo", "b"), ("reward-model", "a")):
            view = RunView()
            view.take(started(folder=str(Path("runs/a").resolve()), run_kind=kind))
            app.pane.show_run(view)
            await settle(pilot)
            assert app.text("heading").startswith(f"{name} ")
        app.pane.set_runs_dir(Path("elsewhere"))
        await settle(pilot)
        assert "No reward models in" in app.screen_text
        app.pane.reader.choose(Path("runs/b"))
        await settle(pilot)
        assert app.text("heading").startswith("b   ✓ done")


async def test_the_selected_pair_or_the_marked_ones_are_asked_for_again() -> None:
    run = Run("a", 1)
    pairs = [pair(number, number - 3.5) for number in range(6)]
    twice = pair(1, -2.0, chosen_reward=9.0)  # another labeller's judgement of the same comparison
    run.keep([*pairs, twice, pair(9, -9.0, is_tie=True)])
    async with workbench() as (app, pilot):
        await pilot.press("l", "m", "down", "down", "m", "up", "l", "L")
        key = [one.key for one in pairs]
        assert app.asked == [(key[0],), (key[0], key[1]), (key[0], key[1], key[2], key[3])]
        assert "◆ 2 marked" in app.text("pairs")
        assert app.screen_text.count("◆  ") == 3, "both pairs of the comparison have the mark"
        await pilot.press("m", "l")
        assert app.asked[-1] == (key[0],), "the mark was taken away again"
        await pilot.press("y")
        copied = app.listed.selected
        assert copied is not None
        assert app.clipboard.startswith(f"[prompt]\n{copied.prompt}\n\n[chosen, reward ")
        assert str(copied.rejected) in app.clipboard


async def test_a_pair_is_read_whole_and_the_next_one_after_it() -> None:
    run = Run("a", 1)
    run.keep([pair(1, -2.0, chosen="\x1b[31m[b]" + "word " * 500), pair(2, -1.0), pair(3, 1.0)])
    async with workbench((80, 24)) as (app, pilot):
        await pilot.press("enter")
        assert "␛[31m[b]word word" in app.opened
        assert "because the sea is" not in app.opened
        await pilot.press("end")
        assert "because the sea is" in app.opened
        await pilot.press("n")
        assert "Question 2" in app.opened
        await pilot.press("n", "n", "N", "N")
        assert "Question 1" in app.opened
        await pilot.press("m", "l")
        assert len(app.asked[0]) == 1
        await pilot.press("escape")
        assert app.opened == ""
        assert app.listed.has_focus


async def test_where_there_is_little_room_one_chart_is_shown_at_a_time() -> None:
    Run("a", 1).train()
    async with workbench((80, 24)) as (app, pilot):
        seen = []
        for _ in range(5):
            seen += charts(app)
            await pilot.press("v")
        assert seen == ["held-out accuracy", "training", "calibration", "rewards", "held-out accuracy"]
        await pilot.resize_terminal(120, 40)
        await pilot.pause()
        assert charts(app) == ["held-out accuracy", "training", "calibration", "rewards"]
        before = app.screen_text
        await pilot.press("v")
        assert app.screen_text == before
        await pilot.resize_terminal(60, 20)
        await pilot.pause()
        assert len(charts(app)) == 1
        assert app.listed.size.height >= 5


async def test_a_slow_folder_blocks_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    Run("a", 1).train()
    waiting, go_on = threading.Event(), threading.Event()

    def slow(*given: Any) -> RunListing | None:
        waiting.set()
        go_on.wait(30)
        return read_runs(*given)

    monkeypatch.setattr("workbench.reward_model.run_reader.read_runs", slow)
    app = Workbench()
    async with app.run_test(size=(80, 24)) as pilot:
        try:
            app.pane.reader.choose(Path("runs/a"))
            while not (waiting.is_set() and app.pane.reader.live is not None):
                await pilot.pause(0.01)
            app.pane.take_focus()
            await pilot.press("down", "enter")
            assert app.opened != ""
            assert app.pane.reader.runs == []
        finally:
            go_on.set()
        await settle(pilot)
        assert [run.name for run in app.pane.reader.runs] == ["a"]


async def test_a_pending_result_is_not_replaced_by_a_look_that_finds_nothing_new(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Run("a", 1).train()
    ticks = ["the clock"]
    app = Workbench()

    def take_while_the_clock_ticks(source: RunOnDisk) -> list[Event]:
        found = take(source)
        if ticks:
            ticks.clear()
            app.call_from_thread(app.pane.read)
        return found

    take = RunOnDisk.take
    monkeypatch.setattr(RunOnDisk, "take", take_while_the_clock_ticks)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        assert ticks == []
        assert app.pane.reader.live is False
        assert "63.0%" in app.screen_text


async def test_damage_is_reported_above_what_can_be_shown() -> None:
    run = Run("a\u202e", 1).train()
    (run.folder.root / "held_out.parquet").write_bytes(b"nothing")
    async with workbench() as (app, pilot):
        assert "✖" in app.text("problem")
        assert "held_out.parquet' is damaged" in app.text("problem")
        assert "\u202e" not in app.screen_text
        assert "63.0%" in app.screen_text
        run.keep(some_pairs(), report=REPORT)
        with run.folder.lock():  # it goes on
            await look(pilot)
        assert app.text("problem") == ""


async def test_a_hidden_pane_reads_nothing() -> None:
    Run("a", 1).train()
    app = Workbench()
    async with app.run_test(size=(80, 24)) as pilot:
        app.pane.display = False
        await settle(pilot)
        Run("b", 2).train()
        await look(pilot)
        assert "b" not in [run.name for run in app.pane.reader.runs]
        app.pane.display = True
        await pilot.pause()
        await look(pilot)
        assert app.text("heading").startswith("b ")


def listed(app: Workbench) -> list[str]:
    """Return the prompts listed, from the top."""
    return [str(pair.prompt) for pair in app.pane.listed]


def test_pairs_are_sorted_with_ties_last_and_filtered_by_all_words() -> None:
    wrong = pair(1, -2.0, chosen_tokens=9, rejected_tokens=9)
    unsure = pair(2, 0.1, chosen_tokens=30, rejected_tokens=2, chosen="Blue is SCATTERED.")
    sure = pair(3, 3.0, chosen_tokens=5, rejected_tokens=6)
    tie = pair(4, 0.0, is_tie=True, chosen_tokens=90, rejected_tokens=1)
    given = [wrong, unsure, sure, tie]
    assert chosen_pairs(given, " ", "most wrong first", reverse=False) is given
    assert chosen_pairs(given, "", "least sure first", reverse=False) == [unsure, wrong, sure, tie]
    assert chosen_pairs(given, "", "most unequal lengths first", reverse=False) == [unsure, sure, wrong, tie]
    assert chosen_pairs(given, "", "most wrong first", reverse=True) == given[::-1]
    assert chosen_pairs(given, "scattered blue", "most wrong first", reverse=False) != []
    assert chosen_pairs(given, "scattered. blue", "most wrong first", reverse=False) == [unsure]
    assert chosen_pairs(given, "question nowhere", "least sure first", reverse=False) == []


def test_exported_pairs_can_be_imported_as_preferences(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "p"}]
    answers = [[{"role": "assistant", "content": text}] for text in "xy"]
    talk = pair(2, prompt=messages, chosen=answers[0], rejected=answers[1])
    pairs = [pair(1, prompt="p \x1b[31m\u2028"), talk, pair(3, 0.0, is_tie=True)]
    path = tmp_path / "pairs.jsonl"
    write_lines(path, export_rows(pairs))
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(row["lead"], row["chosen_reward"], row["key"]) for row in rows] == [
        (one.lead, one.chosen_reward, one.key) for one in pairs
    ]
    found = list(read_preferences(str(path)))
    assert [preference.comparison.prompt for preference in found] == [one.prompt for one in pairs]
    assert [preference.comparison.completions for preference in found] == [(one.chosen, one.rejected) for one in pairs]
    assert [preference.judgement.choice for preference in found] == ["a", "a", "tie"]
    with pytest.raises(StorageError):
        write_lines(path, export_rows(pairs))


async def test_the_keys_filter_sort_and_export_the_list(tmp_path: Path) -> None:
    Run("liked").train()
    async with workbench((120, 40)) as (app, pilot):
        usual = listed(app)
        await pilot.press("slash", *"question", "space", "1")
        await until(pilot, lambda: 0 < len(listed(app)) < len(usual))
        filtered = listed(app)
        assert f"{len(filtered)} with these words" in app.screen_text
        await pilot.press("enter", "o")
        await until(pilot, lambda: "least sure first" in app.screen_text)
        assert sorted(listed(app)) == sorted(filtered)
        leads = [abs(one.lead) for one in app.pane.listed]
        assert leads == sorted(leads)
        await pilot.press("O")
        await until(pilot, lambda: "least sure first, reversed" in app.screen_text)
        await pilot.press("x")
        await until(pilot, lambda: app.screen.query(Input).first(Input).value == "pairs.jsonl")
        await pilot.press("enter")
        await until(pilot, lambda: Path("pairs.jsonl").exists())
        await until(pilot, lambda: len(app.screen_stack) == 1)
        assert len(Path("pairs.jsonl").read_text().splitlines()) == len(filtered)
        await pilot.press("escape")
        await until(pilot, lambda: len(listed(app)) == len(usual))
        assert not app.query_one(FilterField).display
        await pilot.press("slash", *"nowhere")
        await until(pilot, lambda: "No pair has these words." in app.screen_text)
        await pilot.press("escape")
        await until(pilot, lambda: len(listed(app)) == len(usual))


async def test_a_wide_pane_shows_the_selected_pair_beside_the_list() -> None:
    Run("liked").train()
    async with workbench((200, 60)) as (app, pilot):
        text = app.query_one(RewardPairText)
        assert text.display
        for key in ("down", "down", "up"):
            await pilot.press(key)
            assert app.pane.selected is not None
            assert str(app.pane.selected.prompt) in app.opened
        assert text.region.x >= app.query_one(RewardPairList).region.right
        assert app.focused is app.query_one(RewardPairList)
        await pilot.press("enter")
        await until(pilot, lambda: app.focused is text)
        await pilot.press("escape")
        await until(pilot, lambda: app.focused is app.query_one(RewardPairList))
        assert text.display
        await pilot.resize_terminal(120, 40)
        await until(pilot, lambda: not text.display)
