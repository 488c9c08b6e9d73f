"""The label pane on a real session: the store holds what the keys said, in their order."""

from __future__ import annotations

import contextlib
import random
import sqlite3
from pathlib import Path

from label_session import item, labelling, until
from textual import events

from trainer.preferences.items import QueuePlan, SessionPlan
from trainer.preferences.records import Judgement
from trainer.preferences.store import PreferenceStore
from workbench.kit.wait_screen import WaitScreen
from workbench.labelling.session_thread import SessionThread

PLAN = SessionPlan(queues=(QueuePlan(queue="dataset"),))
CHOICES = {"1": 0, "2": 1, "equals_sign": "tie", "0": "both_bad", "space": "skip"}


def chosen(text: str, order: tuple[int, ...], key: str) -> str:
    """Return what the store must hold: the text that the key pointed to, or the verdict."""
    side = CHOICES[key]
    return f"{'ab'[order[side]]} {text}" if isinstance(side, int) else side


def reported(judgement: Judgement, texts: tuple[str, ...]) -> str:
    choice = judgement.choice
    return texts["ab".index(choice)] if choice in ("a", "b") else str(choice)


async def test_the_store_holds_what_the_keys_said(tmp_path: Path) -> None:
    rng = random.Random(1)
    orders = [rng.choice([(0, 1), (1, 0)]) for _ in range(20)]
    given = [item(f"a {n}", f"b {n}", prompt=f"p {n}", order=order) for n, order in enumerate(orders)]
    path = tmp_path / "preferences.db"
    session = SessionThread(path)
    try:
        session.begin("ann", PLAN, "Be fair.").result()
        state = session.put(given).result()
        keys = rng.choices(list(CHOICES), k=20)
        async with labelling(session, state=state) as (app, pilot):
            for key in keys[:10]:
                await pilot.press(key)
            await pilot.press("u", "u", "u")
            for key in keys[7:15]:
                app.post_message(events.Key(key, None))  # typed ahead
            await until(lambda: app.pane.session.item is not None and app.pane.session.item.position == 15)
            await app.pane.session.go_to(3)
            await pilot.pause()
            keys[3] = "2"
            await pilot.press("2")
            await until(lambda: app.pane.session.item is not None and app.pane.session.item.position == 15)
            for key in keys[15:]:
                await pilot.press(key)
            await until(lambda: app.pane.session.state is not None and app.pane.session.state.progress.done == 20)
            assert "20 done" in app.text
    finally:
        session.close()
        session.join()
    with PreferenceStore(path) as store:
        standing = {str(one.comparison.prompt): one for one in store.preferences(with_skips=True)}
    assert len(standing) == 20
    for number, (key, order) in enumerate(zip(keys, orders, strict=True)):
        label = standing[f"p {number}"]
        texts = tuple(str(text) for text in label.comparison.completions)
        assert reported(label.judgement, texts) == chosen(str(number), order, key)
        shown_texts = [texts[place] for place in label.judgement.order_shown]
        assert shown_texts == [f"{'ab'[place]} {number}" for place in order]
        assert label.judgement.labeller == "ann"
        assert label.judgement.guidelines


async def test_a_session_that_was_closed_keeps_the_item_on_the_screen(tmp_path: Path) -> None:
    path = tmp_path / "preferences.db"
    session = SessionThread(path)
    try:
        session.begin("ann", PLAN).result()
        state = session.put([item("one", "two"), item("three", "four")]).result()
        async with labelling(session, state=state) as (app, pilot):
            session.close()
            await pilot.press("1")
            await until(lambda: "labelling has ended" in app.text)
            assert "one" in app.text
    finally:
        session.close()
        session.join()


async def test_a_locked_store_stops_neither_the_screen_nor_the_next_label(tmp_path: Path) -> None:
    path = tmp_path / "preferences.db"
    session = SessionThread(path)
    try:
        session.begin("ann", PLAN, "Be fair.").result()
        state = session.put([item(f"a {n}", f"b {n}", prompt=f"p {n}") for n in range(3)]).result()
        async with labelling(session, state=state, patience=0.05) as (app, pilot):
            with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
                other.execute("BEGIN IMMEDIATE")
                await pilot.press("1")
                await until(lambda: "Still saving: 1 is better" in app.text)
                await pilot.press("2", "f", "e", "u", "a")
                await pilot.press("g")
                await until(lambda: isinstance(app.screen, WaitScreen))
                await until(lambda: app.reported("problem") == "Still loading...")
                await pilot.press("escape")
                await until(lambda: not app.reported("problem"))
                assert "a 0" in app.text
                other.execute("ROLLBACK")
            await until(lambda: "a 1" in app.text)
            assert app.reported("hint") == "", "the flag was typed for the item that is gone"
            await pilot.press("2")
            await until(lambda: "a 2" in app.text)
    finally:
        session.close()
        session.join()
    with PreferenceStore(path) as store:
        assert [label.judgement.choice for label in store.preferences()] == ["a", "b"]


async def test_two_windows_on_one_session_work_side_by_side(tmp_path: Path) -> None:
    path = tmp_path / "preferences.db"
    sessions = [SessionThread(path), SessionThread(path)]
    try:
        first = sessions[0].begin("ann", PLAN).result()
        state = sessions[0].put([item(f"a {n}", f"b {n}", prompt=f"p {n}") for n in range(4)]).result()
        other = sessions[1].resume(first.record.id).result()
        async with labelling(sessions[0], state=state) as (app, pilot):
            for position in range(2):
                other = sessions[1].label(position, Judgement.chosen("b")).result()
            await pilot.press("1")
            await until(lambda: "another window" in app.text)
            assert "a 3" in app.text, "the other window shows the one before"
            await pilot.press("1")
            await until(lambda: "another session shows it" in app.text)
            assert "another window" not in app.text
        assert other.record.done == 2
        assert sessions[1].state().result().record.done == 3
    finally:
        for session in sessions:
            session.close()
            session.join()
