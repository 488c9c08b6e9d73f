"""The start of labelling: plans of what was named, and the form that begins or resumes a session."""

from __future__ import annotations

import getpass
import math
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from label_material import add_checkpoint, reward_model, run_with_samples
from label_screens import HOSTILE, NOTHING, SIZES, SMALL, Host, answer_to, is_obeyed, opened, paste, status, text_of
from preference_rows import write_lines
from scripted_run import make_run
from textual.widgets import Input, OptionList, Select
from waiting import until

from trainer.errors import DataError, UsageError
from trainer.preferences.records import Queue, QueuePlan, SessionPlan, SessionRecord
from workbench.kit.footer import KeyFooter
from workbench.labelling.plans import (
    QUEUES,
    SessionOptions,
    UserQueue,
    default_labeller,
    labeller_name,
    labelling_material,
    plan_line,
    planned,
    read_guidelines,
)
from workbench.labelling.start_screen import LabelStartScreen, QueueList

PLAN = SessionPlan(queues=(QueuePlan(queue="samples", source="/runs/a-0001"),))
PAIR = {"prompt": "p", "a": "x", "b": "y"}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def record(number: int, labeller: str = "ann", **changes: Any) -> SessionRecord:
    values: dict[str, Any] = {"plan": PLAN, "guidelines": "", "began": 1.7e9, "items": 43, "done": 31}
    return SessionRecord(id=number, labeller=labeller, **values | changes)


async def begin_at_once(_: SessionOptions) -> str:
    return ""


def start(
    runs: Sequence[Path] = (), sessions: Sequence[SessionRecord] = (), labeller: str = "ann", **more: Any
) -> LabelStartScreen:
    options = replace(more.pop("options", SessionOptions()), labeller=labeller)
    given: dict[str, Any] = {"options": options, "begin": begin_at_once}
    return LabelStartScreen(runs, Path("preferences.db"), sessions, **given | more)


def starts(app: Host) -> list[str]:
    rows = app.screen.query_one("#starts", OptionList)
    return [str(rows.get_option_at_index(place).prompt) for place in range(rows.option_count)]


def field(app: Host, name: str) -> Input:
    return app.screen.query_one(f"#{name}", Input)


def plan(answer: object) -> SessionPlan:
    assert isinstance(answer, SessionOptions)
    assert answer.plan is not None
    return answer.plan


async def test_a_guessed_labeller_is_asked_for_before_anything_begins() -> None:
    sessions = [record(5, "bob"), record(3)]
    async with opened(start([run_with_samples("a-0001")], sessions, asks=True)) as (app, pilot):
        assert app.focused is field(app, "labeller")
        assert "resumes session 3 as ann" in status(app)
        await pilot.press(*"bob")  # typing replaces the guess
        await until(pilot, lambda: "session 5 as bob" in status(app))
        field(app, "labeller").value = "eve"
        await until(pilot, lambda: "begins a new session as eve" in status(app))
        assert starts(app) == ["new session"]
        await pilot.press("enter")
        assert (await app.answered(pilot)).labeller == "eve"


async def test_enter_continues_the_newest_session_of_the_labeller_that_has_items_left() -> None:
    sessions = [record(5, "bob"), record(4, done=43), record(3), record(2)]
    async with opened(start([run_with_samples("a-0001")], sessions)) as (app, pilot):
        assert [row.split("  ")[0] for row in starts(app)] == ["resume 3", "resume 2", "new session"]
        assert "resumes session 3 as ann" in status(app)
        await pilot.press("enter")
        assert await app.answered(pilot) == SessionOptions(labeller="ann", resume=3)


async def test_without_a_session_enter_begins_one_on_the_samples_of_the_newest_run() -> None:
    runs, name = [run_with_samples("b-0002"), run_with_samples("a-0001")], "ana 👩\u200d💻"  # it keeps its joiner
    answer = await answer_to(start(runs, labeller=name), "enter")
    begun = plan(answer)
    assert begun.queues == (QueuePlan(queue="samples", source=str(runs[0])),)
    assert (answer.labeller, begun.repeats, begun.random, begun.limit) == (name, 0.05, 0.2, 0)


async def test_what_a_judge_disputes_is_offered_only_where_there_is_some() -> None:
    runs = [run_with_samples("b-0002")]
    async with opened(start(runs)) as (app, _):
        assert app.screen.query_one(QueueList).option_count == len(QUEUES) - 1
    options = SessionOptions(queues=(("disputed", 1.0),), disputed=("k", "l"))
    async with opened(start(runs, options=options)) as (app, pilot):
        prompt = app.screen.query_one(QueueList).get_option_at_index(len(QUEUES) - 1).prompt
        assert "2 pairs on which a judge disagrees with the labels" in str(prompt)
        await pilot.press("enter")
        answer = await app.answered(pilot)
        assert plan(answer).queues == (QueuePlan(queue="again", keys=("k", "l")),)


async def test_the_columns_of_the_data_are_named_in_the_form(folder: Path) -> None:
    write_lines(Path("poll.jsonl"), {"question": "p", "left": "x", "right": "y"})
    async with opened(start(options=SessionOptions(data="poll.jsonl", columns=("a=left",)))) as (app, pilot):
        await pilot.press("enter")
        await until(pilot, lambda: "no column 'prompt'" in status(app) or "the columns are question" in status(app))
        assert field(app, "columns").value == "a=left"
        field(app, "columns").value = "prompt=question, a=left , b=right"
        await pilot.press("enter")
        await app.answered(pilot)
        columns = ("prompt=question", "a=left", "b=right")
        source = str(folder / "poll.jsonl")
        assert plan(app.answer).queues == (QueuePlan(queue="dataset", source=source, columns=columns),)


async def test_naming_data_adds_it_to_a_new_session_and_taking_it_away_leaves_it_out(folder: Path) -> None:
    write_lines(Path("pairs.jsonl"), PAIR)
    run = run_with_samples("a-0001")
    async with opened(start([run], [record(3)])) as (app, pilot):
        queues = app.screen.query_one(QueueList)
        field(app, "data").value = "pairs.jsonl"
        await until(pilot, lambda: set(queues.selected) == {"samples", "dataset"})
        assert "begins a new session" in status(app)
        field(app, "data").value = ""
        await until(pilot, lambda: set(queues.selected) == {"samples"})
        field(app, "data").value = "pairs.jsonl"
        field(app, "data").focus()
        await until(pilot, lambda: "dataset" in queues.selected)
        await pilot.press("enter")
        await app.answered(pilot)
        assert [(one.queue, one.source) for one in plan(app.answer).queues] == [
            ("samples", str(run)),
            ("dataset", str(folder / "pairs.jsonl")),
        ]


async def test_a_new_session_is_chosen_field_by_field_with_the_keyboard_alone() -> None:
    runs = [run_with_samples("b-0002"), run_with_samples("a-0001")]
    model = reward_model("m1")
    async with opened(start(runs, [record(3)], options=SessionOptions(model=model))) as (app, pilot):
        await pilot.press("tab", "space", *["down"] * 3, "space")  # no samples, but uncertain pairs
        await pilot.press("tab", "enter", "down", "enter")  # the other run
        await pilot.press("tab", "tab", "tab", "tab", *"20", "tab", *"10")
        assert "begins a new session" in status(app)
        await pilot.press("enter")
        begun = plan(await app.answered(pilot))
        [queue] = begun.queues
        assert (queue.queue, queue.source, queue.model) == ("uncertain", str(runs[1]), str(model))
        assert (begun.limit, begun.repeats) == (20, 0.1)


async def test_unavailable_queues_say_what_they_need_and_cannot_be_added() -> None:
    async with opened(start([run_with_samples("a-0001")])) as (app, pilot):
        shown = text_of(app)
        assert "needs a reward model" in shown
        app.screen.query_one(QueueList).focus()
        assert "[✓] samples" in shown
        assert "[ ] dataset" in shown
        await pilot.press("space", "enter")
        await until(pilot, lambda: "no queue is chosen" in status(app))
        assert "[ ] samples" in text_of(app)
        await pilot.press("end", "space")
        await until(pilot, lambda: set(app.screen.query_one(QueueList).selected) == {"dataset"})
    async with opened(start()) as (app, pilot):
        assert app.focused is field(app, "data"), "without runs and data"
        await pilot.press("enter")
        await until(pilot, lambda: "queue dataset: no data is named" in status(app))
        assert app.answer is NOTHING
        assert set(app.screen.query_one(QueueList).selected) == {"dataset"}


async def test_the_first_item_is_shown_as_soon_as_its_data_is_named_and_else_why_there_is_none() -> None:
    write_lines(Path("pairs.jsonl"), PAIR | {"a": f"left {HOSTILE}", "b": "right"})
    async with opened(start()) as (app, pilot):
        await until(pilot, lambda: "no data is named" in text_of(app))
        await paste(pilot, field(app, "data"), "pai")
        await until(pilot, lambda: "pairs.jsonl" in text_of(app))
        await pilot.press("right")
        assert field(app, "data").value == "pairs.jsonl"
        await until(pilot, lambda: "left [/x] ␛[31m" in text_of(app) and "right" in text_of(app))
        assert not is_obeyed(text_of(app))
        await paste(pilot, field(app, "columns"), "a=nothing")
        await until(pilot, lambda: "the columns are prompt, a, b" in " ".join(text_of(app).split()))
        for odd in ("~nobody-of-that-name/x", "x" * 5000):
            await paste(pilot, field(app, "data"), odd)
            await until(pilot, lambda: "once the session begins" in text_of(app))
        await pilot.resize_terminal(*SMALL)
        await until(pilot, lambda: "first item" not in text_of(app))
        assert "begins a new session" in text_of(app), "the fields have the room"
    async with opened(start([run_with_samples("a-0001")], [record(4)])) as (app, pilot):
        await until(pilot, lambda: "Session 4 goes on where it was left" in text_of(app))


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("labeller", " ", "labeller ''"),
        ("limit", "-3", "limit = -3"),
        ("repeats", "80", "repeats = 0.8"),
        ("guidelines", "no.md", "guidelines 'no.md'"),
        ("data", "no.jsonl", "no such file"),
        ("data", "[/x]\x1b.jsonl", "[/x]␛.jsonl"),
    ],
)
async def test_an_invalid_field_is_reported_and_can_be_fixed(name: str, text: str, problem: str) -> None:
    async with opened(start([run_with_samples("a-0001")])) as (app, pilot):
        before = field(app, name).value
        await paste(pilot, field(app, name), text)
        await pilot.press("ctrl+r")
        await until(pilot, lambda: problem in status(app))
        assert app.answer is NOTHING
        assert not is_obeyed(text_of(app))
        field(app, name).value = before
        await until(pilot, lambda: "✖" not in status(app))
        await pilot.press("ctrl+r")
        await app.answered(pilot)


async def test_a_key_that_overtakes_the_message_about_a_field_uses_the_fields_content() -> None:
    async with opened(start([run_with_samples("a-0001")], [record(3)])) as (app, pilot):
        begin = app.screen.action_begin  # as a key does, with the message about the field still on its way
        field(app, "labeller").value = ""
        begin()
        await pilot.pause()
        assert "labeller ''" in status(app)
        field(app, "labeller").value = "bob"
        begin()
        await app.answered(pilot)
        assert (app.answer.labeller, app.answer.resume) == ("bob", 0)


async def test_the_screen_begins_with_the_options_of_the_command_line() -> None:
    run = run_with_samples("a-0001")
    Path("g.md").write_text("Be fair.")
    write_lines(Path("pairs.jsonl"), PAIR)
    wanted = SessionOptions(
        run=run, data="pairs.jsonl", queues=(("dataset", 3.0),), limit=9, repeats=0.1, guidelines="g.md"
    )
    async with opened(start([run_with_samples("b-0002")], options=wanted)) as (app, pilot):
        assert app.screen.query_one("#run", Select).value == run
        await pilot.press("enter")
        begun = plan(await app.answered(pilot))
        assert [(one.queue, one.weight) for one in begun.queues] == [("dataset", 3.0)]
        assert (begun.limit, begun.repeats) == (9, 0.1)


@pytest.mark.parametrize("size", SIZES)
async def test_everything_is_visible_and_hostile_names_are_text(size: tuple[int, int]) -> None:
    hostile = SessionPlan(queues=(QueuePlan(queue="samples", source=f"/runs/{HOSTILE.replace('/', '')}"),))
    sessions = [record(number, HOSTILE, plan=hostile) for number in range(9, 0, -1)]
    screen = start([Path(f"/runs/{HOSTILE}")], sessions, options=SessionOptions(data=HOSTILE), labeller=HOSTILE)
    async with opened(screen, size) as (app, _):
        for widget in app.screen.query("Input, Select, OptionList, #status, KeyFooter"):
            if type(widget).__name__ != "SelectOverlay":
                assert app.screen.region.contains_region(widget.region), widget
                assert widget.region.height > 0
        rows = [*app.screen.query("Input, #starts, QueueList, #status"), app.screen.query_one(KeyFooter)]
        assert len({widget.region.y for widget in rows}) == len(rows) - 1  # two inputs share a line
        assert not is_obeyed(text_of(app))
        assert "[/x]" in text_of(app)
        used = [*app.screen.query(Input), *app.screen.query("Select, #starts, QueueList")]
        assert len(used) == 9
        assert all(widget.tooltip for widget in used)


def test_a_run_suggests_its_samples_and_data_its_pairs_and_both_a_mixture(folder: Path) -> None:
    run, data = run_with_samples("a"), write_lines(Path("pairs.jsonl"), PAIR)
    samples = QueuePlan(queue="samples", source=str(run))
    pairs = QueuePlan(queue="dataset", source=str(folder / "pairs.jsonl"))
    assert planned(SessionOptions(run=run)).plan.queues == (samples,)
    assert planned(SessionOptions(data=data)).plan.queues == (pairs,)
    assert planned(SessionOptions(run=run, data=data)).plan.queues == (samples, pairs)


def test_a_plan_says_what_was_wanted_and_has_a_seed_of_its_own() -> None:
    wanted = SessionOptions(run=run_with_samples("a"), queues=(("samples", 2.5),), limit=7, repeats=0.1)
    plan = planned(wanted).plan
    assert (plan.queues[0].weight, plan.limit, plan.repeats, plan.random) == (2.5, 7, 0.1, 0.2)
    assert len({plan.seed, *(planned(wanted).plan.seed for _ in range(4))}) > 1


@pytest.mark.parametrize(
    ("wanted", "problem"),
    [
        (SessionOptions(), "nothing to label: name data, or a run"),
        (SessionOptions(run=Path("runs/a"), limit=-1), "limit = -1"),
        (SessionOptions(run=Path("runs/a"), repeats=0.6), "repeats = 0.6"),
        (SessionOptions(run=Path("runs/a"), repeats=math.nan), "repeats = nan"),
        (SessionOptions(queues=(("samples", 1.0),)), "queue samples: no run is named"),
        (SessionOptions(queues=(("dataset", 1.0),)), "queue dataset: no data is named"),
        (SessionOptions(run=Path("runs/a"), queues=(("samples", 1.0),), data="x.jsonl"), "add the queue dataset"),
        (SessionOptions(run=Path("runs/bare")), "'bare' has no samples"),
        (
            SessionOptions(run=Path("runs/a"), queues=(("policy-reference", 1.0),)),
            "'a' is not running and has no checkpoint",
        ),
        (SessionOptions(run=Path("runs/a"), queues=(("uncertain", 1.0),)), "queue uncertain: needs a reward model"),
        (
            SessionOptions(run=Path("runs/a"), queues=(("uncertain", 1.0),), model=Path("runs/bare")),
            "'bare' is not a trained reward model",
        ),
    ],
)
def test_what_cannot_be_asked_is_reported_in_one_line(wanted: SessionOptions, problem: str) -> None:
    run_with_samples("a")
    make_run("bare")
    with pytest.raises(UsageError) as raised:
        planned(wanted)
    assert problem in str(raised.value)
    assert "\n" not in str(raised.value)


def test_queues_that_need_a_model_name_it() -> None:
    run, model = run_with_samples("a"), reward_model("m1")
    add_checkpoint(run)
    queues: Any = tuple((name, 1.0) for name in ("samples", "uncertain", "policy-reference"))
    found = planned(SessionOptions(run=run, model=model, queues=queues)).plan.queues
    assert [(queue.source, queue.model) for queue in found] == [(str(run), ""), (str(run), str(model)), (str(run), "")]


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [("no.jsonl", None, "no such file"), ("x.jsonl", "", "has no rows"), ("x.jsonl", "oops\n", "x.jsonl:1: not JSON")],
)
def test_unreadable_data_is_reported(name: str, content: str | None, problem: str) -> None:
    if content is not None:
        Path(name).write_text(content)
    with pytest.raises(DataError, match=problem):
        planned(SessionOptions(data=name))


def test_the_newest_runs_and_reward_models_come_first_and_runs_without_samples_are_left_out() -> None:
    for age in ("z-old", "a-new"):
        run_with_samples(age)
        reward_model(f"{age}-model")
    make_run("bare")
    make_run("unfinished-model", run_kind="reward-model")
    runs, models = labelling_material(Path("runs"))
    assert [run.name for run in runs] == ["a-new", "z-old"]
    assert [model.name for model in models] == ["a-new-model", "z-old-model"]
    assert labelling_material(Path("nowhere")) == ([], [])


def test_the_labeller_is_the_last_one_of_the_store_else_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(getpass, "getuser", lambda: "eve")
    assert default_labeller([record(2, "bob"), record(1, "ann")]) == "bob"
    assert default_labeller([]) == "eve"

    def nobody() -> str:
        raise KeyError("uid 1234")

    monkeypatch.setattr(getpass, "getuser", nobody)
    assert labeller_name(default_labeller([]))


def test_a_name_of_a_labeller_is_one_printable_line() -> None:
    for name in ("", "  ", "x" * 61, "a\x1b[31m", "a\nb", "a\u202eb", "\u200d"):
        with pytest.raises(UsageError, match="printable characters") as raised:
            labeller_name(name)
        assert str(raised.value).isprintable()
    for known in ("Ann Ü", "علی\u200cرضا", "ශ්\u200dරී", "ana 👩\u200d💻", "N\u00e9e", "שרה", "田中 太郎"):
        assert labeller_name(f" {known} ") == known
    assert labeller_name("Ne\u0301e") == "N\u00e9e"


def test_guidelines_are_read_as_they_are() -> None:
    Path("g.md").write_bytes("\ufeffBe fair.\r\n".encode())
    assert read_guidelines("g.md") == "Be fair.\n"
    contents = {b"": "empty", b" \n": "empty", b"\xff\xfe\x00": "UTF-8", b"x" * 200_001: "200 kB"}
    for number, content in enumerate(contents):
        Path(str(number)).write_bytes(content)
    os.mkfifo("pipe")  # refused without waiting
    problems = {
        "no.md": "No such file",
        "pipe": "not a regular file",
        "~nobody-of-that-name/g.md": "~nobody-of-that-name",
    }
    for name, problem in (problems | dict(zip("0123", contents.values(), strict=True))).items():
        with pytest.raises(UsageError, match=problem):
            read_guidelines(name)


def test_every_queue_is_described_in_a_few_words_and_no_name_is_obeyed() -> None:
    kept: list[Queue] = [queue for queue in QUEUES if queue not in ("flagged", "disputed")]
    plan = SessionPlan(queues=tuple(QueuePlan(queue=queue, source="/runs/a\x1b", keys=("k",)) for queue in kept))
    line = plan_line(plan)
    assert line.count("a␛") == len(kept)
    assert line.isprintable()
    assert plan_line(SessionPlan(queues=(QueuePlan(queue="again", keys=("k", "l")),))) == "2 comparisons again"


@pytest.mark.parametrize(
    ("queue", "why"),
    [
        ("flagged", "no item is flagged: flag some while you label"),
        ("disputed", "no pair is disputed: hold a judge against the labels by judge check"),
    ],
)
def test_flagged_and_disputed_items_are_asked_again_by_their_keys(queue: UserQueue, why: str) -> None:
    plan = planned(SessionOptions(queues=((queue, 2.0),), **{queue: ("k", "l")})).plan
    assert plan.queues == (QueuePlan(queue="again", weight=2.0, keys=("k", "l")),)
    with pytest.raises(UsageError, match=why):
        planned(SessionOptions(queues=((queue, 1.0),)))
