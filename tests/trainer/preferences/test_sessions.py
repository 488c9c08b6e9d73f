"""Sessions in the store: ordered items, labels that name them, undo, history, several windows, and progress."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from preferences_helper import add_label, stored_events

from trainer.errors import DataError, StorageError, UsageError
from trainer.preferences.agreement import measure_agreement
from trainer.preferences.records import (
    Choice,
    Comparison,
    Item,
    Judgement,
    Origin,
    Preference,
    Progress,
    QueuePlan,
    SessionItem,
    SessionPlan,
)
from trainer.preferences.sessions import (
    PAUSE,
    LabelSession,
    begin_session,
    guidelines_text,
    list_sessions,
    measure_progress,
    open_session,
)
from trainer.preferences.store import PreferenceStore, check_store

PLAN = SessionPlan(
    queues=(
        QueuePlan(queue="samples", weight=2.0, source="runs/r", model="m", keys=("k",)),
        QueuePlan(queue="again"),
    ),
    repeats=0.1,
    random=0.3,
    limit=7,
    seed=3,
)
A, B, TIE = (Judgement.chosen(choice) for choice in ("a", "b", "tie"))


def item(prompt: str = "Once", *, order: tuple[int, ...] = (0, 1), repeats: int = 0) -> Item:
    origins = (Origin(run="r", row=0), Origin(run="r", row=1))
    comparison = Comparison(prompt=prompt, completions=("x", "y"), origins=origins, columns={"score": [1.0, 2.0]})
    return Item(comparison=comparison, queue="repeat" if repeats else "samples", order=order, repeats=repeats)


def items(n: int) -> list[Item]:
    return [item(f"prompt {number}") for number in range(n)]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[PreferenceStore]:
    with PreferenceStore(tmp_path / "preferences.db") as store:
        yield store


@pytest.fixture
def session(store: PreferenceStore) -> LabelSession:
    """Make a session with five items."""
    session = begin_session(store, "ann", PLAN, "Be kind.")
    session.put(items(5))
    return session


def current(session: LabelSession) -> int | None:
    found = session.next_open()
    return None if found is None else found.position


def label(session: LabelSession, position: int, judgement: Judgement) -> int:
    """Label the item at `position`, or change its label; return the id of the label."""
    made = session.label(session.item(position), judgement).label
    assert made is not None
    return made.id


def positions(session: LabelSession) -> list[int]:
    return [one.position for one in session.history()]


def test_sessions_are_listed_newest_first_with_their_progress(store: PreferenceStore) -> None:
    first = begin_session(store, "ann", PLAN, "Be kind.")
    second = begin_session(store, "bob", SessionPlan(queues=()))
    first.put(items(3))
    for position, judgement in enumerate((A, Judgement.chosen("skip"))):
        label(first, position, judgement)
    label(first, 0, B)
    assert list_sessions(store) == [second.record, first.record]
    record = first.record
    assert (record.labeller, record.plan, record.items, record.done) == ("ann", PLAN, 3, 2)
    assert record.began == pytest.approx(stored_events(store)[0].time, abs=60)
    assert guidelines_text(store, record.guidelines) == "Be kind."
    assert second.record.guidelines == guidelines_text(store, "") == ""


def test_the_same_guidelines_are_kept_once(store: PreferenceStore) -> None:
    texts = ("Be kind.", "Be kind.", "Be curt.\ud800\x00", "")
    hashes = [begin_session(store, "ann", PLAN, text).record.guidelines for text in texts]
    assert hashes[0] == hashes[1] != hashes[2]
    assert guidelines_text(store, hashes[2]) == "Be curt.\\ud800\x00", "as the labeller's name, which has a UTF-8 form"
    assert check_store(store) == []


def test_missing_sessions_guidelines_and_items_are_reported(store: PreferenceStore, session: LabelSession) -> None:
    with pytest.raises(UsageError, match="no labelling session 9 in"):
        open_session(store, 9)
    with pytest.raises(UsageError, match="no guidelines f00 in"):
        guidelines_text(store, "f00")
    for position in (-1, 5):
        with pytest.raises(UsageError, match=r"session 1 has no item -?\d+: it has 5"):
            session.item(position)
        with pytest.raises(UsageError, match="has no item"):
            label(session, position, A)


def test_an_item_comes_back_as_it_was_put_in(store: PreferenceStore) -> None:
    session = begin_session(store, "ann", PLAN)
    ranked = Item(
        comparison=Comparison(prompt=[{"role": "user", "content": "\x1b\ud800"}], completions=("x", "y", "x", "")),
        queue="uncertain",
        order=(2, 0, 3, 1),
    )
    session.put([item(order=(1, 0)), ranked])
    again = open_session(store, session.record.id)
    assert [again.item(position).item for position in (0, 1)] == [item(order=(1, 0)), ranked]


def test_an_item_takes_the_order_of_the_store_and_keeps_its_own_origins_and_columns(store: PreferenceStore) -> None:
    add_label(store, Preference(comparison=Comparison(prompt="Once", completions=("y", "x")), judgement=A))
    session = begin_session(store, "ann", PLAN)
    session.put([item(order=(0, 1))])
    found = session.item(0).item
    assert found.comparison.completions == ("y", "x")
    assert [found.comparison.completions[place] for place in found.order] == ["x", "y"], "as it was to be shown"
    assert [origin.row for origin in found.comparison.origins] == [1, 0]
    label(session, 0, B)
    kept = session.item(0).label
    assert kept is not None
    assert kept.comparison == found.comparison
    assert (kept.comparison.columns, kept.judgement.order_shown) == ({"score": [1.0, 2.0]}, (1, 0))


@pytest.mark.parametrize(
    ("wrong", "rule"),
    [
        (item(order=(0,)), "its order shows 1 of 2 completions"),
        (item(order=(0, 2)), "order_shown"),
        (item(repeats=99), "99, which it repeats, is not a label of its comparison"),
        (replace(item(), comparison=Comparison(prompt="p", completions=("x",))), "a list of two or more"),
    ],
)
def test_invalid_items_are_refused_with_all_others_of_the_same_write(
    store: PreferenceStore, session: LabelSession, wrong: Item, rule: str
) -> None:
    with pytest.raises(DataError, match=rule):
        session.put([item("fine"), wrong])
    assert session.record.items == 5
    session.put([item("fine")])
    assert session.item(5).item.comparison.prompt == "fine"
    assert check_store(store) == []


def test_only_a_label_of_the_same_comparison_is_repeated(store: PreferenceStore, session: LabelSession) -> None:
    undo = store.undo(label(session, 0, A), "ann")
    for event in (undo, label(session, 1, A)):
        with pytest.raises(DataError, match=f"{event}, which it repeats, is not a label of its comparison"):
            session.put([item("prompt 0", repeats=event)])


def test_a_label_says_who_by_what_guidelines_how_shown_and_when(store: PreferenceStore, session: LabelSession) -> None:
    session.put([item("swapped", order=(1, 0))])
    given = Judgement.chosen("b", strength=3, note="n", flags=("f",), seconds=1.5, labeller="eve", time=12.5)
    id_ = label(session, 5, given)
    (kept,) = store.preferences()
    assert kept.id == id_
    filled = replace(given, labeller="ann", guidelines=session.record.guidelines, order_shown=(1, 0))
    assert kept.judgement == filled
    assert session.item(5).label == kept
    assert label(session, 0, A) == id_ + 1
    now = session.history(1)[0].label
    assert now is not None
    assert now.judgement.time == pytest.approx(stored_events(store)[-1].time, abs=60)


def test_the_next_item_is_the_first_without_a_label_and_a_skip_is_a_label(session: LabelSession) -> None:
    assert current(session) == 0
    for position in (0, 2, 1):
        label(session, position, A)
    assert current(session) == 3
    label(session, 3, Judgement.chosen("skip"))
    label(session, 4, TIE)
    assert session.next_open() is None
    session.put(items(6)[5:])
    assert current(session) == 5
    assert session.record.done == 5


def test_a_comparison_that_the_session_has_is_not_added_again(session: LabelSession) -> None:
    session.put(items(7)[3:])
    assert session.record.items == 7
    assert [session.item(position).item.comparison.prompt for position in (5, 6)] == ["prompt 5", "prompt 6"]


def test_an_item_that_was_judged_elsewhere_is_not_asked(store: PreferenceStore, session: LabelSession) -> None:
    add_label(store, preferred := Preference(comparison=items(1)[0].comparison, judgement=replace(A, labeller="ann")))
    add_label(store, Preference(comparison=items(2)[1].comparison, judgement=replace(A, labeller="bob")))
    assert (current(session), session.record.elsewhere, session.record.left) == (1, 1, 4)
    with pytest.raises(UsageError, match="item 1 has a label, or was judged in another session: label the next one"):
        label(session, 0, B)
    unlabelled = session.item(1)
    label(session, 1, A)
    with pytest.raises(UsageError, match="item 2 has a label"):
        session.label(unlabelled, B)
    assert [label.judgement.choice for label in store.labels_of(preferred.comparison.key)] == ["a"]


def test_two_processes_can_continue_one_session(store: PreferenceStore, session: LabelSession) -> None:
    with PreferenceStore(store.path) as elsewhere:
        other, first = open_session(elsewhere, session.record.id), session.item(0)
        label(other, 0, A)
        with pytest.raises(UsageError, match="item 1 has a label, or was judged in another session: label the next"):
            session.label(first, B)
        assert current(session) == 1
        other.put(items(7))
        session.put(items(8))
        assert [session.item(place).item.comparison.prompt for place in (5, 6, 7)] == [f"prompt {n}" for n in (5, 6, 7)]
        label(session, 7, B)
        assert (other.undo(), session.undo(), session.undo()) == (7, 0, None)
        assert session.progress(None).done == 0
    assert check_store(store) == []


def test_undo_goes_back_label_by_label_to_the_beginning(store: PreferenceStore, session: LabelSession) -> None:
    for position in (0, 3, 1):
        label(session, position, A)
    assert [session.undo() for _ in range(4)] == [1, 3, 0, None]
    assert (current(session), session.record.done, positions(session)) == (0, 0, [])
    assert list(store.preferences(with_skips=True)) == []
    log = [(e.kind, e.session, e.position) for e in stored_events(store)]
    assert log == [("label", 1, 0), ("label", 1, 3), ("label", 1, 1), ("undo", 1, 1), ("undo", 1, 3), ("undo", 1, 0)]
    label(session, 0, B)
    assert current(session) == 1
    assert check_store(store) == []


def test_relabelling_undoes_the_old_label_and_is_the_newest(store: PreferenceStore, session: LabelSession) -> None:
    first = [label(session, position, A) for position in range(3)]
    new = label(session, 1, B)
    kept = {one.position: one.label and (one.label.id, one.label.judgement.choice) for one in session.history()}
    assert kept == {1: (new, "b"), 2: (first[2], "a"), 0: (first[0], "a")}
    assert positions(session) == [1, 2, 0]
    assert session.record.done == 3
    assert [e.undoes for e in stored_events(store) if e.kind == "undo"] == [first[1]]
    assert session.undo() == 1
    assert current(session) == 1
    with pytest.raises(DataError, match="groups of the places 0 to 1"):
        label(session, 0, Judgement(ranking=((0,),)))
    assert session.item(0).label is not None, "the undo went with the label that could not be kept"
    assert check_store(store) == []


def test_history_begins_with_the_newest_label(session: LabelSession) -> None:
    for position in (4, 0, 2, 1):
        label(session, position, A)
    assert [one.position for one in session.history()] == [1, 2, 0, 4]


def test_a_repeats_label_is_kept_beside_the_first_and_counts_as_self_agreement(
    store: PreferenceStore, session: LabelSession
) -> None:
    firsts = [label(session, position, A) for position in (0, 1)]
    session.put([item(f"prompt {n}", order=(1, 0), repeats=first) for n, first in enumerate(firsts)])
    label(session, 5, A)
    label(session, 6, B)
    assert [p.judgement.choice for p in store.labels_of(item("prompt 1").comparison.key)] == ["a", "b"]
    (ann,) = measure_agreement(store.preferences()).selves
    assert (ann.units, ann.observed) == (2, 0.5)
    assert session.progress(None).same.value == 0.5
    assert session.served() == {one.comparison.key for one in items(5)}


def test_updated_progress_equals_that_of_a_session_read_again(store: PreferenceStore, session: LabelSession) -> None:
    session.progress(None)
    timed = (replace(judgement, time=float(when), seconds=when / 7) for when, judgement in enumerate((A, B, TIE, A, B)))
    for position, judgement in enumerate(timed):
        label(session, position, judgement)
    session.undo()
    label(session, 1, replace(A, time=9.0, seconds=2.0))
    assert session.progress(3).done == 4
    assert repr(session.progress(3)) == repr(open_session(store, 1).progress(3)), "a NaN equals nothing"


def test_a_repeat_is_compared_with_active_labels_of_earlier_sessions(
    store: PreferenceStore, session: LabelSession
) -> None:
    kept, undone = (label(session, position, A) for position in (0, 1))
    later = begin_session(store, "ann", PLAN)
    later.put([item(f"prompt {n}", repeats=first) for n, first in enumerate((kept, undone))])
    store.undo(undone, "ann")
    for position in (0, 1):
        label(later, position, A)
    assert later.progress(None).same.total == 1
    assert later.served() == set(), "a repeat is not what was put in"


def test_a_refused_write_changes_nothing_and_can_be_made_again(store: PreferenceStore, session: LabelSession) -> None:
    label(session, 0, A)
    (pages,) = store.connection.execute("PRAGMA page_count").fetchone()
    store.connection.execute(f"PRAGMA max_page_count = {pages}")
    long = replace(B, note="n" * 99_999)
    for write in (lambda: label(session, 1, long), lambda: label(session, 0, long), lambda: session.put(items(999))):
        with pytest.raises(StorageError, match="the disk is full; free space"):
            write()
    assert (session.record.items, positions(session), current(session)) == (5, [0], 1)
    store.connection.execute("PRAGMA max_page_count = 1000000")
    label(session, 1, long)
    label(session, 0, long)
    assert positions(session) == [0, 1]
    assert check_store(store) == []


CHOICES: tuple[Choice, ...] = ("a", "b", "tie", "both_bad", "skip")


def labelled(
    id_: int,
    choice: Choice = "a",
    *,
    time: float | None = None,
    seconds: float | None = 2.0,
    order: tuple[int, ...] = (0, 1),
    texts: tuple[str, ...] = ("long", "x"),
    repeats: int = 0,
) -> SessionItem:
    comparison = Comparison(prompt="p", completions=texts)
    judgement = Judgement.chosen(choice, time=10.0 * id_ if time is None else time, seconds=seconds, order_shown=order)
    return SessionItem(
        position=id_,
        item=Item(comparison=comparison, queue="repeat" if repeats else "samples", order=order, repeats=repeats),
        label=Preference(comparison=comparison, judgement=judgement, id=id_),
    )


def progress(items: list[SessionItem], left: int | None = None) -> Progress:
    firsts = {one.label.id: one.label.judgement.outcome for one in items if one.label is not None}
    return measure_progress(items, firsts, left)


def test_without_labels_nothing_is_known() -> None:
    found = progress([])
    assert (found.done, found.left, found.streak) == (0, None, 0)
    unknown = (found.per_hour, found.median_seconds, found.eta_seconds, found.kappa, found.same.value, found.longer.low)
    assert all(map(math.isnan, unknown))
    assert math.isnan(progress([labelled(1)], left=5).eta_seconds), "one label tells no speed"


def test_speed_is_that_of_the_last_fifty_labels_without_pauses() -> None:
    slow = [labelled(n, time=100.0 * n) for n in range(60)]
    quick = [labelled(60 + n, time=6000.0 + 10 * n) for n in range(25)]
    after_a_pause = [labelled(85 + n, time=60_000.0 + 10 * n) for n in range(25)]
    found = progress(slow + quick + after_a_pause, left=36)
    assert found.per_hour == pytest.approx(360)
    assert found.eta_seconds == pytest.approx(360)
    assert found.streak == 25
    assert progress(slow).per_hour == pytest.approx(36)


def test_five_minutes_are_not_a_pause_yet() -> None:
    two = [labelled(1, time=0.0), labelled(2, time=PAUSE)]
    assert (progress(two).streak, progress(two).per_hour) == (2, pytest.approx(12))
    late = [two[0], labelled(2, time=PAUSE + 0.1)]
    assert progress(late).streak == 1
    assert math.isnan(progress(late).per_hour)


def test_sides_and_lengths_are_those_of_the_choice() -> None:
    items = [
        labelled(1, "a", order=(0, 1)),  # the left one, and the longer one
        labelled(2, "a", order=(1, 0)),  # the right one, and the longer one
        labelled(3, "b", order=(1, 0)),  # the left one, and the shorter one
        labelled(4, "b", order=(1, 0), texts=("x", "y")),  # the left one, of two of a length
        labelled(5, "tie"),
        labelled(6, "both_bad"),
        labelled(7, "skip"),
    ]
    found = progress(items)
    assert (found.left_side.count, found.left_side.total) == (3, 4)
    assert (found.longer.count, found.longer.total) == (2, 3)
    assert found.left_side.value == 0.75
    assert (found.left_side.low, found.left_side.high) == pytest.approx((0.3006, 0.9544), abs=1e-4)
    assert found.done == 7


def test_repeats_are_compared_with_the_first_label() -> None:
    said: list[tuple[Choice, Choice]] = [("a", "a"), ("b", "a"), ("b", "b"), ("tie", "tie"), ("both_bad", "tie")]
    firsts = [labelled(n, first) for n, (first, _) in enumerate(said, start=1)]
    again = [labelled(n + 50, choice, repeats=n) for n, (_, choice) in enumerate(said, start=1)]
    skips = [labelled(90, "skip"), labelled(91, "a", repeats=90), labelled(92, "skip", repeats=1)]
    found = progress(firsts + again + skips)
    assert (found.same.count, found.same.total) == (3, 5), "a skip says nothing"
    assert found.kappa == pytest.approx((3 / 5 - 6 / 25) / (1 - 6 / 25))


def test_rankings_count_as_repeats_and_for_no_side() -> None:
    def ranked(id_: int, ranking: tuple[tuple[int, ...], ...], repeats: int = 0) -> SessionItem:
        one = labelled(id_, texts=("x", "yy", "z"), order=(2, 0, 1), repeats=repeats)
        assert one.label is not None
        return replace(one, label=replace(one.label, judgement=replace(one.label.judgement, ranking=ranking)))

    items = [ranked(1, ((2,), (0, 1))), ranked(2, ((2,), (1, 0)), 1), ranked(3, ((0, 2), (1,)), 1)]
    found = progress(items)
    assert (found.same.count, found.same.total) == (1, 2)
    assert (found.left_side.total, found.longer.total) == (0, 0)
