"""Labelling in the whole workbench: sessions, training on the labels, and use of the trained model."""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import Future
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from label_material import reward_model
from preference_samples import labelled, reward_config
from preferences_helper import add_label
from reward_pane_app import evaluation, step
from runs_helper import Recorder, tiny_config
from scripted_run import ended, make_run, started, steered
from textual.pilot import Pilot
from textual.widgets import Input, OptionList
from tiny import make_checkpoint
from waiting import until
from workbench_app import press_when_asked, screen_text, settle, start_run, workbench

from trainer.engine.control import Control
from trainer.engine.training import train
from trainer.errors import Interrupted
from trainer.events import Alarm, Alert, Event, Iteration, RewardModelEvaluation, SamplesWritten, SettingChanged
from trainer.preferences.records import Comparison, Judgement, Origin, Preference
from trainer.preferences.sessions import begin_session, list_sessions
from trainer.preferences.store import PreferenceStore
from trainer.questions import Answer, Question
from trainer.runs.folder import RunFolder
from trainer.runs.samples import read_samples
from workbench.config.pane import ConfigPane
from workbench.kit.banner import Banner
from workbench.kit.dialog import ConfirmScreen, TextPromptScreen
from workbench.labelling.dialogs import GuidelinesScreen
from workbench.labelling.pane import LabelPane
from workbench.labelling.plans import SessionOptions, planned
from workbench.labelling.start_screen import LabelStartScreen
from workbench.reward_model.pane import RewardModelPane
from workbench.reward_model.training import quality_text
from workbench.run.view import RunView
from workbench.runs.table import RunTable
from workbench.screen.main_screen import MainScreen

pytestmark = pytest.mark.usefixtures("workspace")


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make an empty working folder with pairs to label."""
    monkeypatch.chdir(tmp_path)
    rows = [{"prompt": f"prompt {n}", "chosen": f"good {n}", "rejected": f"bad {n}"} for n in range(30)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def opening(labeller: str = "anna", *, guidelines: str = "", limit: int = 0) -> SessionOptions:
    """Return options that start a session on the pairs at once."""
    plan = replace(planned(SessionOptions(data="pairs.jsonl", repeats=0, limit=limit)).plan, seed=7)
    return SessionOptions(labeller=labeller, plan=plan, text=guidelines, store=Path("preferences.db").resolve())


def labels() -> list[tuple[str, str]]:
    """Return labeller and preferred completion of each label."""
    with PreferenceStore(Path("preferences.db"), create=False) as store:
        return [
            (p.judgement.labeller, str(p.comparison.completions[p.judgement.ranking[0][0]]))
            for p in store.preferences()
        ]


async def at_item(screen: MainScreen, pilot: Pilot[str], position: int) -> LabelPane:
    """Wait until the item at `position` is to be judged and keys are taken, and return the pane."""
    pane = screen.query_one(LabelPane)
    await until(pilot, lambda: pane.item is not None and pane.item.position == position and not pane.busy)
    return pane


async def judge_good(screen: MainScreen, pilot: Pilot[str], position: int) -> None:
    """Choose the good one of the two."""
    pane = await at_item(screen, pilot, position)
    await pilot.press("1" if "good" in str(pane.texts.completions[0]) else "2")
    await until(pilot, lambda: (pane.item is None or pane.item.position != position) and not pane.busy)


async def test_a_session_that_the_command_names_begins_and_resumes_at_the_same_item() -> None:
    async with workbench(label=opening()) as (screen, pilot):
        for position in range(3):
            await judge_good(screen, pilot, position)
        await pilot.press("u")
        await judge_good(screen, pilot, 2)
        await pilot.press("h")
        await until(pilot, lambda: [rows.option_count for rows in screen.app.screen.query(OptionList)] == [3])
        await pilot.press("down", "down", "enter")
        pane = await at_item(screen, pilot, 0)
        await pilot.press("2" if "good" in str(pane.texts.completions[0]) else "1")
        await at_item(screen, pilot, 3)
        await pilot.press("l")
        await until(pilot, lambda: pane.worker is None)
        assert "3 done" not in screen_text(screen)
    assert sorted(preferred[:4] for _, preferred in labels()) == ["bad ", "good", "good"]
    again = replace(opening(), plan=None, resume=1)
    async with workbench(label=again) as (screen, pilot):
        await at_item(screen, pilot, 3)
        await until(pilot, lambda: "3 done" in screen_text(screen))


async def test_guidelines_of_a_new_session_are_read_first_and_can_be_read_again() -> None:
    async with workbench(label=opening(guidelines="prefer the good ones")) as (screen, pilot):
        await until(pilot, lambda: isinstance(screen.app.screen, GuidelinesScreen))
        await pilot.press("escape")
        await until(pilot, lambda: screen.app.screen is screen)
        await settle(pilot)
        with PreferenceStore(Path("preferences.db")) as store:
            assert list_sessions(store) == []
        screen.labelling.open()
        await until(pilot, lambda: isinstance(screen.app.screen, GuidelinesScreen))
        await pilot.press("enter")
        await at_item(screen, pilot, 0)
        await pilot.press("g")
        await until(pilot, lambda: isinstance(screen.app.screen, GuidelinesScreen))


async def test_a_stray_key_between_two_judgements_stops_no_run() -> None:
    async with workbench(steered, label=opening()) as (screen, pilot):
        await at_item(screen, pilot, 0)
        await pilot.press("f3")
        await start_run(pilot)
        await until(pilot, lambda: screen.supervisor.under_way)
        await pilot.press("f5", "X", "c", "s", "space")
        await at_item(screen, pilot, 1)  # space skipped
        assert screen.supervisor.view.state != "paused"
        assert not any(screen.check_action("ask", (request,)) for request in ("pause", "step", "checkpoint", "stop"))
        await pilot.press("f3")
        assert screen.check_action("ask", ("stop",))


async def test_without_labels_and_models_the_keys_say_what_to_do() -> None:
    async with workbench() as (screen, pilot):
        await pilot.press("f5", "t")
        await until(pilot, lambda: "no labels to train on yet" in screen_text(screen))
        await pilot.press("T")
        await until(pilot, lambda: "No trained reward model yet" in screen_text(screen))
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(screen.app.screen, LabelStartScreen))
        await pilot.press("escape")
        await until(pilot, lambda: screen.app.screen is screen)


async def test_training_is_asked_first_and_a_second_key_starts_no_second_one(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = list[object](), threading.Event()

    def start(*given: object) -> SimpleNamespace:
        begun.append(given)
        go_on.wait(30)
        return SimpleNamespace(
            run=Path("runs", "labels-0001").absolute(), progress=lambda: "labels-0001: loading", done=False
        )

    monkeypatch.setattr("workbench.screen.labelling_controller.RewardTraining", start)
    with PreferenceStore(Path("preferences.db")) as store:
        store.add_many(labelled(12), source="")
    async with workbench() as (screen, pilot):
        for key in ("n", "y"):
            assert begun == []
            await pilot.press("f5", "t")
            await until(pilot, lambda: isinstance(screen.app.screen, ConfirmScreen))
            await pilot.pause()
            text = screen_text(screen.app.screen)
            assert "Train a reward model on 12 labels?" in text
            assert "⚠ With fewer than 100 labels" in text
            await press_when_asked(pilot, key)
            await until(pilot, lambda: not isinstance(screen.app.screen, ConfirmScreen))
        await until(pilot, lambda: bool(begun))
        await pilot.press("t", "t")
        go_on.set()
        await until(pilot, lambda: "Training labels-0001" in screen_text(screen))
        assert len(begun) == 1


async def test_what_ends_or_fails_beside_the_labelling_is_reported() -> None:
    async with workbench() as (screen, pilot):
        labelling, banner = screen.labelling, screen.query_one(Banner)
        labelling.worker.win_rate_problem = "the run's folder is read-only"
        labelling.watch()
        assert "Win rate not reported to the run: the run's folder is read-only" in str(banner.render())
        labelling.worker.win_rate_problem = ""
        labelling.watch()
        assert not banner.display
        end = "failed", "labels-0001: no memory"
        training: Any = SimpleNamespace(run=Path("labels-0001"), done=False, end=lambda: end)
        labelling.training = training
        labelling.watch()
        assert labelling.training is training
        training.done = True
        labelling.watch()
        assert labelling.training is None
        await until(pilot, lambda: banner.display)
        assert "no memory" in str(banner.render())
        labelling.worker.bug = RuntimeError("a bug")
        with pytest.raises(RuntimeError, match="a bug"):
            labelling.watch()
        labelling.worker.bug = None


def test_what_is_weak_about_a_reward_model_is_said_before_it_is_used() -> None:
    view = RunView()
    for event in (
        started(run_kind="reward-model", iterations=30),
        step(1),
        evaluation(1, pairs=4, accuracy=0.5, accuracy_low=0.15, accuracy_high=0.85),
    ):
        view.take(event)
    assert quality_text(view, None).splitlines() == [
        "⚠ Not finished: step 1 of 30.",
        "⚠ 4 held-out pairs: too few to tell. Label 7,740 more.",
    ]
    view.take(ended("done", 30))
    view.take(evaluation(30, accuracy=0.63, accuracy_low=0.56, accuracy_high=0.69, length_accuracy=0.7))
    assert quality_text(view, None) == "⚠ Right on 63% of 200 held-out pairs (56 to 69%), no better than length alone."
    view.take(evaluation(30, accuracy=0.63, accuracy_low=0.56, accuracy_high=0.69))
    assert quality_text(view, None) == "Right on 63% of 200 held-out pairs (56 to 69%), better than length alone."
    assert quality_text(RunView(), None).endswith("⚠ No pairs were held out: nothing says how good it is.")


async def test_without_a_run_the_configuration_on_the_screen_takes_the_reward_model() -> None:
    model = reward_model("liked")
    async with workbench() as (screen, pilot):
        await pilot.press("f5", "T")
        await until(pilot, lambda: isinstance(screen.app.screen, ConfirmScreen))
        await until(pilot, lambda: "⚠ Not finished: step 2 of 12." in screen_text(screen.app.screen))
        assert "No verdict before the first evaluation." in screen_text(screen.app.screen)
        await press_when_asked(pilot, "y")
        await until(pilot, lambda: screen.app.screen is screen)
        config = screen.query_one(ConfigPane).document.config
        assert config is not None
        (source,) = [source.model_dump() for source in config.reward.sources]
        assert (source["kind"], source["path"]) == ("model", str(model))


async def test_the_live_run_takes_the_reward_model_and_keeps_measuring_the_old_reward() -> None:
    model = reward_model("liked")
    make_run("quickstart-0001")
    async with workbench(steered) as (screen, pilot):
        await start_run(pilot)
        await until(pilot, lambda: screen.supervisor.folder is not None)
        await pilot.press("f5", "T")
        await until(pilot, lambda: isinstance(screen.app.screen, ConfirmScreen))
        await press_when_asked(pilot, "n")
        await until(pilot, lambda: screen.app.screen is screen)
        await pilot.press("T")
        await until(pilot, lambda: isinstance(screen.app.screen, ConfirmScreen))
        await press_when_asked(pilot, "y")
        await until(pilot, lambda: bool(screen.supervisor.view.settings))
        (changed,) = screen.supervisor.view.settings
        assert changed.key == "reward.sources"
        new, old = changed.value
        assert (new["kind"], new["path"], new.get("weight", 1.0)) == ("model", str(model), 1.0)
        assert (old["kind"], old["weight"]) == ("lexicon", 0.0)


def somebody_else_labels(labeller: str) -> None:
    """Begin another labeller's session, which becomes the newest of the store."""
    with PreferenceStore(Path("preferences.db")) as store:
        begin_session(store, labeller, planned(SessionOptions(data="pairs.jsonl")).plan)


async def test_a_comparison_is_labelled_again_by_whoever_sits_at_the_keyboard() -> None:
    async with workbench(label=opening("anna")) as (screen, pilot):
        await judge_good(screen, pilot, 0)
        with PreferenceStore(Path("preferences.db"), create=False) as store:
            (preference,) = store.preferences()
        somebody_else_labels("bob")
        await pilot.press("l")  # anna has left the session and still is the one who labels
        screen.query_one(RewardModelPane).post_message(RewardModelPane.LabelAgain((preference.comparison.key,)))
        pane = screen.query_one(LabelPane)
        await until(pilot, lambda: pane.state is not None and pane.state.record.id == 3 and pane.item is not None)
        assert pane.item is not None
        assert pane.item.item.comparison.key == preference.comparison.key
        await judge_good(screen, pilot, 0)
    assert [labeller for labeller, _ in labels()] == ["anna", "anna"]


@pytest.mark.parametrize("typed", ["anna", ""])
async def test_labelling_again_asks_for_the_labeller_where_unknown(typed: str) -> None:
    async with workbench(label=opening("anna")) as (screen, pilot):
        await judge_good(screen, pilot, 0)
    with PreferenceStore(Path("preferences.db"), create=False) as store:
        (preference,) = store.preferences()
    somebody_else_labels("bob")
    async with workbench() as (screen, pilot):
        screen.query_one(RewardModelPane).post_message(RewardModelPane.LabelAgain((preference.comparison.key,)))
        await until(
            pilot, lambda: isinstance(pilot.app.screen, TextPromptScreen) and bool(pilot.app.screen.query(Input))
        )
        asked = pilot.app.screen.query_one(Input)
        assert asked.value == "bob"
        asked.value = typed
        await pilot.press("enter")
        if typed:
            await judge_good(screen, pilot, 0)
        else:
            assert isinstance(pilot.app.screen, TextPromptScreen), "nobody has no name"
    assert [labeller for labeller, _ in labels()] == ["anna"] * (2 if typed else 1)


async def test_runs_and_models_are_those_of_the_folder_that_the_configuration_names(workspace: Path) -> None:
    model = reward_model("liked")
    model.parent.rename("elsewhere")
    make_run("somewhere-else")
    async with workbench(overrides=("run.dir=elsewhere",)) as (screen, pilot):
        await pilot.press("f7")
        table = screen.query_one(RunTable)
        await until(pilot, lambda: table.selected is not None and table.selected.name == "liked")
        await pilot.press("f6")
        await until(
            pilot, lambda: [run.folder.name for run in screen.query_one(RewardModelPane).reader.runs] == ["liked"]
        )
        screen.labelling.request("use")
        await until(pilot, lambda: isinstance(pilot.app.screen, ConfirmScreen) and bool(pilot.app.screen.query("#no")))
        await until(pilot, lambda: "Use liked as the reward" in screen_text(pilot.app.screen))  # type: ignore[arg-type]
        await pilot.press("escape")
        document = screen.query_one(ConfigPane).document
        document.set("run.dir", "runs")
        await pilot.press("f7")
        await until(pilot, lambda: table.selected is not None and table.selected.name == "somewhere-else")


async def test_a_run_that_is_watched_is_listed_with_those_beside_it(workspace: Path) -> None:
    make_run("a-0001")
    make_run("a-0002")
    Path("runs").rename("elsewhere")
    make_run("b-0001")
    async with workbench(watch=Path("elsewhere/a-0001")) as (screen, pilot):
        await pilot.press("f7")
        table = screen.query_one(RunTable)
        await until(pilot, lambda: {run.name for run in table.items} == {"a-0001", "a-0002"})
        await screen.steering.follow(Path("runs/b-0001"))
        await until(pilot, lambda: {run.name for run in table.items} == {"b-0001"})


class FakePolicies:
    """Stand-in for the thread of a loaded model."""

    made: ClassVar[list[FakePolicies]] = []

    def __init__(self, folder: Path) -> None:
        self.folder, self.closed = folder.resolve(), False
        self.made.append(self)

    def ask(self, question: Question) -> Future[Answer]:
        return Future()

    def close(self) -> None:
        self.closed = True


async def test_of_the_runs_that_are_labelled_one_at_most_has_its_model_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workbench.screen.labelling_controller.PolicyThread", FakePolicies)
    monkeypatch.setattr(FakePolicies, "made", [])
    question = Question(prompt="one")
    async with workbench() as (screen, pilot):
        asked = [screen.labelling.ask_model(Path(name), question) for name in ("runs/a", "runs/a", "runs/b")]
        assert [(one.folder.name, one.closed) for one in FakePolicies.made] == [("a", True), ("b", False)]
        screen.labelling.request("leave")
        await until(pilot, lambda: FakePolicies.made[1].closed)
        assert [future.cancelled() for future in asked] == [True] * 3, "what the session asked is written no further"
        (left := threading.Event()).set()
        with pytest.raises(Interrupted, match="labelling has ended"):
            await asyncio.to_thread(screen.labelling.ask_run, Path("runs/a"), question, left)
        assert len(FakePolicies.made) == 2, "a question that comes late loads no model"


LABELLED, LEARNT = 6, 20
"""Iterations whose samples are judged, and those after them."""
SETTINGS = (
    f"ppo.iterations={LABELLED + LEARNT}",
    "ppo.epochs=4",
    "ppo.kl_coef=0.002",
    "rollout.batch_size=32",
    "rollout.samples_per_prompt=4",
    "rollout.max_new_tokens=4",
    "rollout.ignore_stop=true",
    "optim.policy_lr=0.02",
    "optim.value_lr=0.01",
    "model.lora_scale=4",
    'model.lora_targets=["q_proj", "v_proj", "o_proj", "up_proj", "down_proj"]',
    "checkpoint.every=0",
    "eval.every=0",
    "run.alternatives=0",
)


def liked(completion: str) -> float:
    """Return how much the labeller likes a text, by a rule that nobody else knows: its share of ASCII characters."""
    return sum(character.isascii() for character in completion) / max(len(completion), 1)


def completions(run: RunFolder, iteration: int) -> dict[str, list[str]]:
    """Return what was written in an iteration, by prompt."""
    found: dict[str, list[str]] = {}
    for row in read_samples(run.samples_file(iteration)).to_pylist():
        found.setdefault(row["prompt"], []).append(row["completion"])
    return found


def label(run: RunFolder, store: PreferenceStore, iteration: int) -> None:
    """Judge every two completions of a prompt that the rule tells apart."""
    origin = Origin(source="run", run=run.name, iteration=iteration, writer="policy")
    for prompt, texts in completions(run, iteration).items():
        for pair in combinations(texts, 2):
            lead = liked(pair[0]) - liked(pair[1])
            if abs(lead) >= 0.1:
                comparison = Comparison(prompt=prompt, completions=pair, origins=(origin, origin))
                judgement = Judgement.chosen("a" if lead > 0 else "b", labeller="script")
                add_label(store, Preference(comparison=comparison, judgement=judgement))


def learn(folder: Path, store: Path) -> tuple[float, float]:
    """Train the reward model `liked` on the labels; return its held-out accuracy before and after."""
    make_checkpoint(folder / "judge", scale=0.3)  # smaller weights give hidden states that are easier to read
    reported = Recorder()
    settings = (f"data.preferences={store}", "data.eval_fraction=0.3", "train.epochs=3", "train.batch_size=4")
    train(reward_config(folder, "run.name=liked", f"model.path={folder}/judge", *settings), sinks=[reported])
    evaluations = reported.of(RewardModelEvaluation)
    return evaluations[0].accuracy, evaluations[-1].accuracy


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_run_that_uses_a_reward_model_of_the_labels_learns_the_hidden_rule(seed: int, tmp_path: Path) -> None:
    run, store, control = RunFolder(tmp_path / "runs/a"), tmp_path / "preferences.db", Control()
    accuracy: list[float] = []

    def watch(event: Event) -> None:
        if not isinstance(event, SamplesWritten) or event.iteration > LABELLED:
            return
        with PreferenceStore(store) as labels:
            label(run, labels, event.iteration)
        if event.iteration == LABELLED:
            accuracy.extend(learn(tmp_path, store))
            control.set("reward.sources", [{"kind": "model", "path": str(tmp_path / "runs/liked")}])

    other = f'reward.sources=["{tmp_path}/rewards.py:constant"]'
    recorder = Recorder(watch)
    train(tiny_config(tmp_path, "run.name=a", f"run.seed={seed}", other, *SETTINGS), sinks=[recorder], control=control)

    assert accuracy[1] > max(accuracy[0], 0.65)
    assert [change.iteration for change in recorder.of(SettingChanged)] == [LABELLED + 1]
    assert [alert for alert in recorder.of(Alert) if not isinstance(alert, Alarm)] == []  # nothing was refused
    assert {part for iteration in recorder.of(Iteration)[LABELLED:] for part in iteration.parts} == {"model:liked"}
    scores = [
        fmean(liked(text) for texts in completions(run, number).values() for text in texts)
        for number in range(1, LABELLED + LEARNT + 1)
    ]
    assert fmean(scores[-5:]) > fmean(scores[:LABELLED]) + 0.1
