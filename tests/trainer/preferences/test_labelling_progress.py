"""Progress of a session equals what its definition says, counted slowly."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from trainer.preferences.records import Choice, Comparison, Item, Judgement, Preference, Progress, SessionItem
from trainer.preferences.sessions import PAUSE, measure_progress

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


def test_messages_are_as_long_as_their_contents() -> None:
    texts = [{"role": "assistant", "content": "much longer"}], "shorter"
    item = labelled(1, "a")
    comparison = replace(item.item.comparison, completions=texts)
    found = progress([replace(item, item=replace(item.item, comparison=comparison))])
    assert (found.longer.count, found.longer.total) == (1, 1)


def test_repeats_are_compared_with_the_first_label() -> None:
    said: list[tuple[Choice, Choice]] = [("a", "a"), ("b", "a"), ("b", "b"), ("tie", "tie"), ("both_bad", "tie")]
    firsts = [labelled(n, first) for n, (first, _) in enumerate(said, start=1)]
    again = [labelled(n + 50, choice, repeats=n) for n, (_, choice) in enumerate(said, start=1)]
    skips = [labelled(90, "skip"), labelled(91, "a", repeats=90), labelled(92, "skip", repeats=1)]
    found = progress(firsts + again + skips)
    assert (found.same.count, found.same.total) == (3, 5), "a skip says nothing"
    assert found.kappa == pytest.approx((3 / 5 - 6 / 25) / (1 - 6 / 25))


def test_a_repeat_of_an_undone_label_is_compared_with_nothing() -> None:
    items = [labelled(1), labelled(2), labelled(3, repeats=1), labelled(4, repeats=2), labelled(5, repeats=4)]
    assert progress(items).same.total == 3
    assert progress([items[0], *items[2:]]).same.total == 2
    assert progress([items[0], items[2], items[4]]).same.total == 1


def test_rankings_count_as_repeats_and_for_no_side() -> None:
    def ranked(id_: int, ranking: tuple[tuple[int, ...], ...], repeats: int = 0) -> SessionItem:
        one = labelled(id_, texts=("x", "yy", "z"), order=(2, 0, 1), repeats=repeats)
        assert one.label is not None
        return replace(one, label=replace(one.label, judgement=replace(one.label.judgement, ranking=ranking)))

    items = [ranked(1, ((2,), (0, 1))), ranked(2, ((2,), (1, 0)), 1), ranked(3, ((0, 2), (1,)), 1)]
    found = progress(items)
    assert (found.same.count, found.same.total) == (1, 2)
    assert (found.left_side.total, found.longer.total) == (0, 0)
