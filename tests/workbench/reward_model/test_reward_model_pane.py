"""The reward model pane: which run it shows, what its keys do, how it looks, and its list of held-out pairs.

UPDATE_SNAPSHOTS=1 rewrites tests/snapshots/; look at the difference before you keep it.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from preference_samples import labelled, reward_config
from reward_pane_app import REPORT, Run, Workbench, evaluation, look, pair, settle, some_pairs, step, workbench
from scripted_run import ended, started
from snapshots import SNAPSHOTS, check
from textual.widgets import Input
from tiny import make_checkpoint
from waiting import until

from trainer.config import load_config, parse_overrides
from trainer.config.loading import load_config_as
from trainer.config.pairs import RewardModelConfig
from trainer.config.problems import validate_as
from trainer.engine import inbox
from trainer.engine.training import train
from trainer.errors import StorageError
from trainer.events import PhaseProgress, RewardModelEvaluation, RewardModelStep, StateChanged
from trainer.preferences.formats import read_preferences
from trainer.preferences.store import PreferenceStore
from trainer.reward_model.loaded import load_reward_model
from trainer.reward_model.predictions import HELD_OUT, read_predictions
from trainer.runs.folder import RunFolder, rename_run
from trainer.runs.journal import read_journal
from trainer.runs.sinks import ProgressFile
from workbench.config.fields import toml_line
from workbench.kit.cursor_list import FilterField
from workbench.kit.saving import write_lines
from workbench.reward_model.charts import RewardCharts
from workbench.reward_model.pairs import RewardPairList, RewardPairText, chosen_pairs, export_rows
from workbench.reward_model.training import RewardTraining, settings_for
from workbench.run.view import RunView


def charts(app: Workbench) -> list[str]:
    """Return the names of the charts shown, from the left and then below."""
    titles = re.findall(r"held-out accuracy|calibration  |◆ held out|rewards  ", app.screen_text)
    return [title.strip() for title in titles]


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
        assert "━━━━━━ 6/6 steps  42 comparisons, 18 held out" in app.text("heading")
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
        assert "✓ done  ━━━━━━ 75/75 steps  600 comparisons, 200 held out  run 1 of 3" in seen[0]
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
            assert app.text("verdict") == "No verdict before the first evaluation."
            sink = ProgressFile(run.folder.progress)
            sink.emit(PhaseProgress(iteration=0, phase="score", done=3, total=12))
            run.report(evaluation(0, accuracy=0.5, accuracy_low=0.4, accuracy_high=0.6))
            run.keep([pair(1, -1.0), pair(2, 1.0)], iteration=0)
            await look(pilot)
            assert "● loading the model  25%  ────── 0/4 steps  X stop" in app.text("heading")
            assert "✗ 1 of 2" in app.text("pairs")
            run.report(StateChanged(state="training"), step(1), step(2), evaluation(2))
            sink.emit(PhaseProgress(iteration=3, phase="update", done=1, total=2))
            await look(pilot)
            assert "● training, update  50%  ━━━─── 2/4 steps     12s left  X stop" in app.text("heading")
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
        assert app.text("heading").startswith("b  ✓ done")


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
        text = app.query_one(RewardPairText)

        def is_wrapped_beside_its_bar() -> bool:
            return text.show_vertical_scrollbar and text.virtual_size.width == text.scrollable_content_region.width

        await pilot.press("enter")
        await until(pilot, lambda: "␛[31m[b]word word" in app.opened and is_wrapped_beside_its_bar())
        assert "because the sea is" not in app.opened
        await pilot.press("end")
        await until(pilot, lambda: "because the sea is" in app.opened)
        await pilot.press("n")
        await until(pilot, lambda: "Question 2" in app.opened)
        await pilot.press("n", "n", "N", "N")
        await until(pilot, lambda: "Question 1" in app.opened)
        await pilot.press("m", "l")
        await until(pilot, lambda: [len(keys) for keys in app.asked] == [1])
        await pilot.press("escape")
        await until(pilot, lambda: app.opened == "")
        assert app.listed.has_focus


async def test_where_there_is_little_room_one_chart_is_shown_at_a_time() -> None:
    Run("a", 1).train()
    async with workbench((80, 24)) as (app, pilot):
        seen = []
        for _ in range(5):
            seen += charts(app)
            await pilot.press("v")
        assert seen == ["held-out accuracy", "calibration", "◆ held out", "rewards", "held-out accuracy"]
        await pilot.resize_terminal(120, 40)
        await pilot.pause()
        assert charts(app) == ["held-out accuracy", "calibration", "◆ held out", "rewards"]
        before = app.screen_text
        await pilot.press("v")
        assert app.screen_text == before
        await pilot.resize_terminal(60, 20)
        await pilot.pause()
        assert len(charts(app)) == 1
        assert app.listed.size.height >= 5


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


QUICK = {
    "train.batch_size": 8,
    "train.epochs": 1,
    "optim.lr": 0.01,
    "model.lora_scale": 4.0,
    "data.eval_fraction": 0.25,
    "eval.every": 2,
}


def wait_until(holds: Callable[[], bool], seconds: float = 300) -> None:
    """Wait until something holds."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it never came to hold"
        time.sleep(0.02)


def lines_of(training: RewardTraining) -> list[str]:
    """Return the lines that a training reports up to its end, each once."""
    reported: list[str] = []

    def look() -> bool:
        if (line := training.progress()) not in reported:
            reported.append(line)
        return training.done

    wait_until(look)
    return [*reported, training.end()[1]]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Make a store of labels beside a model."""
    make_checkpoint(tmp_path / "model", scale=0.3)
    with PreferenceStore(tmp_path / "preferences.db") as store:
        store.add_many(labelled(48), source="")
    return tmp_path / "preferences.db"


def settings(folder: Path, **more: object) -> list[str]:
    overrides = [f"model.path={folder / 'model'}", "data.template={enable_thinking = false}"]
    found = settings_for(48, load_config("quickstart", parse_overrides(overrides))) | QUICK | more
    return [toml_line(key, value) for key, value in found.items()]


def test_a_training_reports_its_progress_and_leaves_a_model(store: Path, tmp_path: Path) -> None:
    earlier = tmp_path / "runs" / "labels-0007"
    earlier.mkdir(parents=True)
    (earlier / "config.toml").touch()
    training = RewardTraining(store, tmp_path / "runs", settings(tmp_path))
    assert os.getpriority(os.PRIO_PROCESS, training.process.pid) >= 10
    assert os.getsid(training.process.pid) != os.getsid(0), "no terminal can end it"
    reported = lines_of(training)
    assert training.run == tmp_path / "runs/labels-0008"
    assert load_reward_model(training.run).is_finished
    events = read_journal(training.run / "events.jsonl").events
    before, *_, after = [event for event in events if isinstance(event, RewardModelEvaluation)]
    steps = sum(isinstance(event, RewardModelStep) for event in events)
    assert reported[-1] == (
        f"labels-0008: trained, held-out accuracy {100 * before.accuracy:.0f}% before, {100 * after.accuracy:.0f}% "
        f"after ({100 * after.accuracy_low:.0f} to {100 * after.accuracy_high:.0f}%, {after.pairs} pairs)"
    )
    assert reported[0] == "labels-0008: loading the labels and the model"
    assert all(f"of {steps}, loss 0." in line for line in reported if ": step " in line)
    config = load_config_as(RewardModelConfig, training.run / "config.toml")
    assert (config.data.preferences, config.train.batch_size) == (str(store), 8)
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["labels-0007", "labels-0008"]


def test_a_store_without_labels_is_reported_in_one_line_and_leaves_no_run(tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "model")
    PreferenceStore(tmp_path / "preferences.db").close()
    training = RewardTraining(tmp_path / "preferences.db", tmp_path / "runs", settings(tmp_path))
    last = lines_of(training)[-1]
    assert last.startswith("labels-0001: failed: ")
    assert "preferences" in last
    assert "\n" not in last
    assert list(tmp_path.glob("runs/*")) == []


def test_a_training_that_is_stopped_or_killed_says_so(store: Path, tmp_path: Path) -> None:
    long = settings(tmp_path, **{"train.epochs": 100, "train.patience": 0})
    training = RewardTraining(store, tmp_path / "runs", long)
    wait_until(lambda: "step" in training.progress())
    inbox.send(training.run, "stop", reason="enough of it")
    wait_until(lambda: training.done)
    state, line = training.end()
    assert (state, line.partition(", ")[0]) == ("stopped", "labels-0001: enough of it")

    training = RewardTraining(store, tmp_path / "runs", long)
    wait_until(lambda: "step" in training.progress())
    os.kill(training.process.pid, signal.SIGKILL)
    wait_until(lambda: training.done)
    assert training.end() == ("failed", "labels-0002: ended by signal 9")


def test_a_reward_model_on_a_runs_backbone_has_its_model_and_its_prompts() -> None:
    overrides = ['model.path=a "quoted" folder', "model.quantize=8-bit", "data.system=Be kind.", "data.chat=always"]
    found = settings_for(9, load_config("quickstart", parse_overrides(overrides)))
    config = RewardModelConfig()
    for key, value in found.items():
        table, _, name = key.partition(".")
        assert hasattr(getattr(config, table), name)
        assert value is not None
    assert found["model.path"] == 'a "quoted" folder'
    assert found["model.quantize"] == "8-bit"
    assert (found["data.system"], found["data.chat"]) == ("Be kind.", "always")


def test_few_labels_get_more_epochs_and_many_get_one() -> None:
    for labels, epochs in ((1, 10), (40, 10), (140, 4), (560, 1), (100_000, 1)):
        assert settings_for(labels)["train.epochs"] == epochs
    assert "data.eval_fraction" in settings_for(100)
    assert "data.eval_fraction" not in settings_for(1000)
    assert validate_as(
        RewardModelConfig, parse_overrides([f"{k}={v}" for k, v in settings_for(9).items()], RewardModelConfig)
    )
