"""`ppo-workbench label`: what it opens, and that what cannot be labelled is reported before the screen opens."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest
from label_material import reward_model, run_with_samples
from preference_rows import write_lines
from preferences_helper import add_label

from trainer.errors import DataError, StorageError, TrainerError, UsageError
from trainer.preferences.records import Comparison, Item, Judgement, Preference, Queue, QueuePlan, SessionPlan
from trainer.preferences.sessions import begin_session, open_session
from trainer.preferences.store import PreferenceStore
from workbench.cli import label
from workbench.cli.main import parse
from workbench.labelling.plans import QUEUES, SessionOptions
from workbench.opening import Opening

PAIR = {"prompt": "p", "a": "x", "b": "y"}


def opening(*argv: str) -> tuple[Opening, SessionOptions]:
    opened = label.opening(parse(["label", *argv]))
    assert opened.label is not None
    return opened, opened.label


def begun(*argv: str) -> SessionPlan:
    """Return the plan of the session that the command line begins."""
    plan = opening(*argv)[1].plan
    assert plan is not None
    return plan


def left_open(options: SessionOptions) -> int:
    """Return the id of the planned session, begun and left with an unjudged item."""
    assert options.plan is not None
    with PreferenceStore(Path("preferences.db")) as store:
        session = begin_session(store, "ann", options.plan, options.text)
        comparison = Comparison(prompt="p", completions=("x", "y"))
        session.put([Item(comparison=comparison, queue="samples", order=(0, 1))])
        return session.record.id


def test_every_queue_can_be_chosen_except_those_that_the_program_fills() -> None:
    assert set(get_args(Queue)) ^ set(QUEUES) == {"again", "repeat", "flagged", "disputed"}


def test_without_options_the_screen_asks_and_nothing_is_made(tmp_path: Path) -> None:
    opened, to_label = opening()
    assert opened.watch is None
    assert to_label == SessionOptions(store=tmp_path / "preferences.db")
    assert not (tmp_path / "preferences.db").exists()


def test_the_screen_begins_with_the_given_options() -> None:
    Path("g.md").write_text("Be fair.")
    _, to_label = opening("--labeller", "ann", "--guidelines", "g.md", "--limit", "9", "--repeats", "0.1")
    assert (to_label.plan, to_label.resume, to_label.labeller) == (None, 0, "ann")
    assert (to_label.guidelines, to_label.limit, to_label.repeats) == ("g.md", 9, 0.1)


def test_a_run_is_labelled_at_once_and_shown() -> None:
    run = run_with_samples("a-0001")
    Path("g.md").write_text("Be fair.")
    opened, to_label = opening("--run", "a-0001", "--guidelines", "g.md", "--limit", "9")
    assert opened.watch == run
    assert to_label.text == "Be fair."
    plan = to_label.plan
    assert plan is not None
    assert [(queue.queue, queue.source) for queue in plan.queues] == [("samples", str(run))]
    assert (plan.limit, plan.repeats) == (9, 0.05)


def test_queues_are_mixed_by_weight_and_take_the_newest_run_and_reward_models() -> None:
    run, models = run_with_samples("a-0001"), [reward_model(f"m{number}") for number in range(4)]
    write_lines(Path("pairs.jsonl"), PAIR)
    queues = ["samples=3", "dataset", "--queue", "uncertain=0.5"]
    plan = begun("--data", "pairs.jsonl", "--queue", *queues)
    assert {queue.queue: queue.weight for queue in plan.queues} == {"samples": 3.0, "dataset": 1.0, "uncertain": 0.5}
    by_queue = {queue.queue: queue for queue in plan.queues}
    assert by_queue["samples"].source == str(run)
    assert by_queue["uncertain"].model == str(models[3])
    assert begun("--queue", "uncertain", "--model", "m2").queues[0].model == str(models[2])


def test_an_unfinished_session_is_continued_when_the_same_is_asked_again() -> None:
    run_with_samples("a-0001")
    Path("g.md").write_text("Be fair.")
    same = ["--run", "a-0001", "--labeller", "ann", "--guidelines", "g.md"]
    session = left_open(opening(*same)[1])
    again = opening(*same)[1]
    assert (again.labeller, again.resume, again.plan) == ("ann", session, None)
    for others in (
        ["--run", "a-0001", "--labeller", "ann"],
        ["--run", "a-0001", "--labeller", "bob", "--guidelines", "g.md"],
        [*same, "--limit", "5"],
    ):
        assert opening(*others)[1].resume == 0
        assert begun(*others)
    with PreferenceStore(Path("preferences.db")) as store:
        opened = open_session(store, session)
        opened.label(opened.item(0), Judgement.chosen("a"))
    assert begun(*same), "one that is finished is begun again"


def test_a_new_session_asks_who_labels_if_that_may_be_somebody_else_than_last_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LOGNAME", "eve")
    folder = run_with_samples("a-0001")
    assert begun("--run", "a-0001").queues, "nobody else has labelled here"
    session = left_open(opening("--run", "a-0001", "--labeller", "ann")[1])
    again = opening("--run", "a-0001")[1]
    assert (again.labeller, again.resume) == ("ann", session)
    to_label = opening("--run", "a-0001", "--limit", "5")[1]
    assert (to_label.plan, to_label.resume, to_label.labeller, to_label.limit) == (None, 0, "", 5)
    assert to_label.run == folder.resolve()
    assert begun("--run", "a-0001", "--limit", "5", "--labeller", "ann").limit == 5
    monkeypatch.setenv("LOGNAME", "ann")
    assert begun("--run", "a-0001", "--limit", "5").limit == 5


@pytest.mark.parametrize(
    ("argv", "kind", "problem"),
    [
        (["--queue", "sample"], UsageError, "--queue sample: must be one of samples, policy-reference"),
        (["--queue", "samples=0"], UsageError, "--queue samples=0: the weight"),
        (["--queue", "samples=nan"], UsageError, "--queue samples=nan: the weight"),
        (["--queue", "samples", "samples=2"], UsageError, "named twice"),
        (["--data", "nope.jsonl"], DataError, "no such file"),
        (["--guidelines", "nope.md"], UsageError, "nope.md"),
        (["--data", "pairs.jsonl", "--limit", "-1"], UsageError, "--limit -1: must be at least 0"),
        (["--queue", "dataset", "--column", "a=x"], UsageError, "columns are named, but no data"),
        (["--store", "nowhere/p.db"], UsageError, "its folder is missing"),
        (["--store", "pairs.jsonl"], StorageError, "not a preference store"),
    ],
)
def test_what_cannot_be_labelled_is_reported_in_one_line(
    argv: list[str], kind: type[TrainerError], problem: str
) -> None:
    write_lines(Path("pairs.jsonl"), PAIR)
    with pytest.raises(kind) as raised:
        opening(*argv)
    assert problem in str(raised.value)
    assert len(str(raised.value).splitlines()) == 1


def test_the_columns_of_the_data_can_be_named() -> None:
    write_lines(Path("poll.jsonl"), {"question": "p", "left": "x", "right": "y"})
    names = ("prompt=question", "a=left", "b=right")
    options = [part for name in names for part in ("--column", name)]
    plan = begun("--data", "poll.jsonl", *options)
    assert [one.columns for one in plan.queues] == [names]


def test_the_workbench_is_opened_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Opening] = []

    def open_workbench(opening: Opening) -> int:
        seen.append(opening)
        return 7

    monkeypatch.setattr(label, "open_workbench", open_workbench)
    assert label.run(parse(["label", "--labeller", "ann"])) == 7
    assert seen[0].label is not None
    assert seen[0].label.labeller == "ann"


def test_the_queue_of_flagged_items_asks_for_those_of_the_store() -> None:
    comparison = Comparison(prompt="p", completions=("x", "y"))
    with pytest.raises(UsageError, match="no item is flagged"):
        opening("--queue", "flagged")
    with PreferenceStore(Path("preferences.db")) as store:
        add_label(
            store,
            Preference(comparison=comparison, judgement=Judgement.chosen("a", labeller="ann", flags=("flagged",))),
        )
    assert begun("--queue", "flagged").queues == (QueuePlan(queue="again", keys=(comparison.key,)),)
