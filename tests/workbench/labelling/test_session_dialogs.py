"""Guidelines, notes and the list of labels: text is shown literally and never obeyed, and typed text is kept."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest
from label_screens import HOSTILE, NOTHING, SIZES, Host, answer_to, is_obeyed, opened, status, text_of
from textual import events
from textual.widgets import OptionList, Static, TextArea
from waiting import until

from trainer.errors import StorageError
from trainer.preferences.records import Comparison, Item, Judgement, Preference, SessionItem
from workbench.labelling.dialogs import GuidelinesScreen, LabelHistoryScreen, NoteScreen

LONG = "\n".join(f"Rule {number}: {HOSTILE} " + "words " * 40 for number in range(2_000))


@pytest.mark.parametrize(("key", "answer"), [("enter", True), ("escape", False), ("g", False)])
async def test_guidelines_are_closed_by_a_key(key: str, answer: bool) -> None:
    async with opened(GuidelinesScreen("Be fair.", begin=True)) as (app, pilot):
        assert "Be fair." in text_of(app)
        assert "starts labelling" in text_of(app)
        await pilot.press(key)
        assert await app.answered(pilot) is answer


@pytest.mark.parametrize("size", SIZES)
async def test_long_and_hostile_guidelines_are_scrolled_and_leave_the_keys_visible(size: tuple[int, int]) -> None:
    async with opened(GuidelinesScreen(LONG), size) as (app, pilot):
        shown = text_of(app)
        assert "Rule 0: [/x] ␛[31m [@click" in shown
        assert "closes" in shown
        assert not is_obeyed(shown)
        await pilot.press("pagedown", "pagedown")
        await until(pilot, lambda: "words" in text_of(app) and "Rule 0:" not in text_of(app))
        await pilot.press("x", "backspace")
        assert app.screen.query_one(TextArea).text.count("Rule") == 2_000


@pytest.mark.parametrize(
    ("note", "keys", "kept"),
    [
        ("was", ("space", *"good", "enter"), "was good"),
        ("was", ("space", *"good", "escape"), "was good"),
        ("", ("a", "ctrl+j", "b", "enter"), "a\nb"),
        ("was", (*["backspace"] * 3, "enter"), ""),
        *((note, ("x", "backspace", "escape"), None) for note in ("", "was", "one\r\ntwo\x1b")),  # unchanged
    ],
)
async def test_a_note_is_kept_whichever_way_it_is_left(note: str, keys: tuple[str, ...], kept: str | None) -> None:
    assert await answer_to(NoteScreen(note), *keys) == kept


@pytest.mark.parametrize("size", SIZES)
async def test_control_characters_of_a_note_are_shown_and_kept(size: tuple[int, int]) -> None:
    async with opened(NoteScreen(HOSTILE), size) as (app, pilot):
        assert not is_obeyed(text_of(app))
        app.post_message(events.Paste("\x1b[2J"))
        await until(pilot, lambda: "␛[2J" in text_of(app))
        assert not is_obeyed(text_of(app))
        await pilot.press("!", "enter")
        await app.answered(pilot)
        assert app.answer.startswith(HOSTILE)
        assert app.answer.endswith("!")


def labelled(
    position: int, choice: Any = "a", *, prompt: str = "", order: tuple[int, int] = (0, 1), **more: Any
) -> Any:
    """Return an item with a label whose id is one more than its position."""
    comparison = Comparison(prompt=prompt or f"prompt {position}", completions=(f"x{position}", f"y{position}"))
    judgement = Judgement.chosen(choice, order_shown=order, **more)
    item = Item(comparison=comparison, queue="samples", order=order)
    label = Preference(comparison=comparison, judgement=judgement, id=position + 1)
    return SessionItem(position=position, item=item, label=label)


class Session:
    """Stand-in that gives labels."""

    def __init__(self, items: list[SessionItem], problem: Exception | None = None) -> None:
        self.items, self.problem = items, problem

    def history(self) -> Future[list[SessionItem]]:
        future: Future[list[SessionItem]] = Future()
        if self.problem:
            future.set_exception(self.problem)
        else:
            future.set_result(self.items)
        return future


def history(*items: SessionItem, problem: Exception | None = None) -> LabelHistoryScreen:
    session: Any = Session(list(items), problem)
    return LabelHistoryScreen(session)


def rows(app: Host) -> list[str]:
    listed = app.screen.query_one(OptionList)
    return [str(listed.get_option_at_index(place).prompt) for place in range(listed.option_count)]


def detail(app: Host) -> str:
    return str(app.screen.query_one("#detail", Static).render())


async def test_a_label_is_described_by_the_sides_as_they_were_shown() -> None:
    prompt = f"{'word ' * 100}at the end"
    items = [
        labelled(4, "a", seconds=9.0, note="why not"),
        labelled(5, "b", order=(1, 0), strength=3),
        labelled(6, "skip", prompt=prompt),
    ]
    async with opened(history(*items)) as (app, pilot):
        await until(pilot, lambda: len(rows(app)) == 3)
        assert rows(app)[0].split() == ["5", "1", "is", "better", "9.0s", "“why", "not”", "prompt", "4"]
        assert rows(app)[1].split() == ["6", "1", "is", "strongly", "better", "-", "prompt", "5"]
        assert rows(app)[2].endswith(f"  …{prompt[-199:]}")
        assert " skipped " in rows(app)[2]
        await until(pilot, lambda: "1\nx4\n\n2\ny4" in detail(app))
        await pilot.press("down")
        await until(pilot, lambda: "1\ny5\n\n2\nx5" in detail(app))


async def test_enter_gives_the_position_of_the_label_and_escape_none() -> None:
    for keys, answer in ((["down", "enter"], 3), (["escape"], None), (["h"], None)):
        async with opened(history(labelled(7), labelled(3), labelled(5))) as (app, pilot):
            await until(pilot, lambda: len(rows(app)) == 3)
            await pilot.press(*keys)
            assert await app.answered(pilot) == answer


async def test_an_empty_history_and_an_unreadable_store_are_reported() -> None:
    async with opened(history()) as (app, pilot):
        await until(pilot, lambda: "No labels yet" in status(app))
        await pilot.press("enter")
        assert app.answer is NOTHING
    async with opened(history(problem=StorageError("'p.db' has been locked [/x]\x1b"))) as (app, pilot):
        await until(pilot, lambda: "✖ 'p.db' has been locked [/x]␛" in status(app))
        await pilot.press("escape")
        await until(pilot, lambda: app.answer is None)


@pytest.mark.parametrize("size", SIZES)
async def test_hostile_and_long_texts_leave_the_list_visible(size: tuple[int, int]) -> None:
    item = labelled(0, prompt=HOSTILE * 2_000, note=HOSTILE, flags=("odd",))
    async with opened(history(item), size) as (app, pilot):
        await until(pilot, lambda: "note: " in text_of(app))
        assert not is_obeyed(text_of(app))
        assert "⚑" in text_of(app)
        assert app.screen.query_one(OptionList).region.height >= 4
        assert app.screen.region.contains_region(app.screen.query_one("#status").region)


async def test_all_labels_are_listed_the_newest_first_or_those_with_the_words_of_the_filter() -> None:
    items = [labelled(place, flags=("flagged",) if place in (3, 7) else ()) for place in reversed(range(409))]
    async with opened(history(*items)) as (app, pilot):
        await until(pilot, lambda: status(app).startswith("409 labels;"))
        assert [row.split()[0] for row in rows(app)] == [str(one.position + 1) for one in items]
        await pilot.press("slash", *"flagged")
        await until(pilot, lambda: [row.split()[0] for row in rows(app)] == ["8", "4"])
        assert status(app) == "2 of 409 labels"
        await until(pilot, lambda: "x7" in detail(app))
        await pilot.press("enter", "escape")  # back to the list, then to all labels
        await until(pilot, lambda: len(rows(app)) == 409)
        assert app.answer is NOTHING
        await pilot.press("slash", *"flagged", "enter")
        await until(pilot, lambda: len(rows(app)) == 2)
        await pilot.press("down", "enter")
        await until(pilot, lambda: app.answer == 3)


async def test_a_label_is_copied_with_its_choice_and_note() -> None:
    async with opened(history(labelled(4, "b", note="too short"))) as (app, pilot):
        await until(pilot, lambda: bool(rows(app)))
        await pilot.press("y")
        wanted = "[prompt]\nprompt 4\n\n[1]\nx4\n\n[2]\ny4\n\n[choice]\n2 is better\n\n[note]\ntoo short"
        assert app.clipboard == wanted
