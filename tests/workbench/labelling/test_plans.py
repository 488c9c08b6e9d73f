"""Session plans: built from what was named; what cannot be asked is reported before anybody waits for it."""

from __future__ import annotations

import getpass
import math
import os
from pathlib import Path
from typing import Any

import pytest
from label_material import add_checkpoint, reward_model, run_with_samples
from preference_rows import write_lines
from scripted_run import make_run

from trainer.errors import DataError, UsageError
from trainer.preferences.records import Queue, QueuePlan, SessionPlan, SessionRecord
from workbench.labelling.plans import (
    QUEUES,
    SessionOptions,
    default_labeller,
    labeller_name,
    labelling_material,
    plan_line,
    planned,
    read_guidelines,
)

PAIR = {"prompt": "p", "a": "x", "b": "y"}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def record(number: int = 1, labeller: str = "ann", **changes: Any) -> SessionRecord:
    values: dict[str, Any] = {"plan": SessionPlan(queues=()), "guidelines": "", "began": 0.0, "items": 12, "done": 4}
    return SessionRecord(id=number, labeller=labeller, **values | changes)


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
    kept: list[Queue] = [queue for queue in QUEUES if queue != "flagged"]
    plan = SessionPlan(queues=tuple(QueuePlan(queue=queue, source="/runs/a\x1b", keys=("k",)) for queue in kept))
    line = plan_line(plan)
    assert line.count("a␛") == len(kept)
    assert line.isprintable()
    assert plan_line(SessionPlan(queues=(QueuePlan(queue="again", keys=("k", "l")),))) == "2 comparisons again"


def test_flagged_items_are_asked_again_by_their_keys() -> None:
    plan = planned(SessionOptions(queues=(("flagged", 2.0),), flagged=("k", "l"))).plan
    assert plan.queues == (QueuePlan(queue="again", weight=2.0, keys=("k", "l")),)
    with pytest.raises(UsageError, match="no item is flagged: flag some while you label"):
        planned(SessionOptions(queues=(("flagged", 1.0),)))
