"""What the label pane keeps: notes, flags and rankings of each item, and whether facts are shown after the choice."""

from __future__ import annotations

from pathlib import Path

from label_session import FakeSession, item, items, labelling

from trainer.errors import StorageError
from trainer.preferences.records import Origin
from workbench.kit.screen_settings import ScreenSettings

FACTS = (Origin(source="run", writer="policy"), Origin(source="run", writer="reference"))


async def test_note_flag_and_half_a_ranking_are_there_again_when_their_item_returns() -> None:
    session = FakeSession([*items(1), item("a", "b", "c"), *items(1)])
    async with labelling(session) as (app, pilot):
        await pilot.press("1", "f", "3", "1")
        app.pane.draft = app.pane.draft._replace(note="unsure")
        await app.pane.go_to(0)
        await pilot.pause()
        assert app.reported("hint") == "your label: 1 is better, ⏎ keeps it"
        await pilot.press("f")
        await pilot.press("u")
        assert "flagged" not in app.reported("hint"), "the label is gone, and so is what was typed on top of it"
        await pilot.press("2")
        assert app.reported("hint") == "ranking: 3 > 1   ⚑ flagged   note: unsure"
        app.pane.end()
        await pilot.pause()
        app.pane.begin(session, session.now())  # type: ignore[arg-type]
        await pilot.pause()
        assert app.reported("hint") == "ranking: 3 > 1   ⚑ flagged   note: unsure"
        await pilot.press("2")
        saved = session.judgements[1]
        assert (saved.ranking, saved.flags, saved.note) == (((2,), (0,), (1,)), ("flagged",), "unsure")
        assert app.reported("hint") == "", "nothing of it is on the next item"


async def test_keeping_a_label_saves_a_changed_flag_and_nothing_else() -> None:
    session = FakeSession(items(3))
    async with labelling(session) as (app, pilot):
        app.seconds = 4
        await pilot.press("2")
        await app.pane.go_to(0)
        await pilot.press("enter")
        assert session.calls == ["label 0"], "nothing has changed"
        await app.pane.go_to(0)
        app.seconds = 90
        await pilot.press("f", "enter")
        assert session.calls == ["label 0", "relabel 0"]
        saved = session.judgements[0]
        assert (saved.choice, saved.flags, saved.seconds) == ("b", ("flagged",), 4)
        assert "left 1" in app.text
        session.refusal = StorageError("disk full")
        await app.pane.go_to(0)
        await pilot.press("f", "enter")
        assert "Not saved" in app.reported("problem")
        assert "left 0" in app.text


async def test_facts_after_the_choice_can_be_off_and_are_remembered(tmp_path: Path) -> None:
    session = FakeSession([item("x", "y", origins=FACTS, columns={"scores": [0.8, 0.3]}), *items(2)])
    async with labelling(session) as (app, pilot):
        await pilot.press("1")
        assert app.reported("last") == "last: 1 is better   1: policy, score 0.80   2: reference, score 0.30"
        await pilot.press("b")
        assert app.reported("last") == "last: 1 is better"
        assert not app.pane.facts_shown
        await pilot.press("b")
        assert "policy" in app.reported("last")
    ScreenSettings(label_facts=False).save(tmp_path)
    assert not ScreenSettings.load(tmp_path).label_facts
    (tmp_path / "workbench.toml").write_text("label_facts = 'no'")
    assert ScreenSettings.load(tmp_path).label_facts


async def test_y_copies_the_texts_and_nothing_that_is_hidden() -> None:
    chat = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "Hm."}]
    session = FakeSession([item("one [/x]", "two", prompt=chat, order=(1, 0), origins=FACTS)])
    async with labelling(session) as (app, pilot):
        await pilot.press("y")
        assert app.clipboard == "[prompt]\nuser: Why?\n\nassistant: Hm.\n\n[1]\ntwo\n\n[2]\none [/x]"


async def test_the_last_choice_is_right_below_the_texts_and_the_badge_counts_what_waits() -> None:
    long = "word " * 2000
    session = FakeSession([*items(1), item("x", "y", prompt="short"), item(long, long)])
    async with labelling(session, size=(200, 60)) as (app, pilot):
        assert app.pane.badge.text == "3"
        await pilot.press("1")
        lines = app.text.splitlines()
        (texts,) = [place for place, line in enumerate(lines) if " x " in line and " y " in line]
        assert "last: 1 is better" in lines[texts + 2], "below the rule that ends the texts"
        await pilot.press("2")
        lines = app.text.splitlines()
        assert "last: 2 is better" in lines[-4], "a long text keeps the line on the screen"
        assert app.pane.badge.text == "1"
        app.pane.end()
        await pilot.pause()
        assert app.pane.badge.text == ""
