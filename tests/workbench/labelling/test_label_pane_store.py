"""The label pane on a real session: the store holds what the keys said, in their order."""

from __future__ import annotations

import contextlib
import random
import sqlite3
from pathlib import Path

from label_session import item, kept_session, labelling, until
from textual import events

from trainer.preferences.store import PreferenceStore

CHOICES = {"1": 0, "2": 1, "equals_sign": "tie", "0": "both_bad", "space": "skip"}


async def test_the_store_holds_what_the_keys_said(tmp_path: Path) -> None:
    rng = random.Random(1)
    orders = [rng.choice([(0, 1), (1, 0)]) for _ in range(20)]
    given = [item(f"a {n}", f"b {n}", prompt=f"p {n}", order=order) for n, order in enumerate(orders)]
    path, keys = tmp_path / "preferences.db", rng.choices(list(CHOICES), k=20)
    with kept_session(path, given, "Be fair.") as (session, state):
        async with labelling(session, state=state) as (app, pilot):
            await pilot.press(*keys[:10])
            await pilot.press("u", "u", "u")
            for key in keys[7:15]:
                app.post_message(events.Key(key, None))  # typed ahead
            await until(lambda: app.pane.item is not None and app.pane.item.position == 15)
            await app.pane.go_to(3)
            await pilot.pause()
            keys[3] = "2"
            await pilot.press("2")
            await until(lambda: app.pane.item is not None and app.pane.item.position == 15)
            await pilot.press(*keys[15:])
            await until(lambda: app.pane.state is not None and app.pane.state.progress.done == 20)
            assert "20 of 20" in app.text
    with PreferenceStore(path) as store:
        standing = {str(one.comparison.prompt): one for one in store.preferences(with_skips=True)}
    assert len(standing) == 20
    for number, (key, order) in enumerate(zip(keys, orders, strict=True)):
        label = standing[f"p {number}"]
        texts, side = label.comparison.completions, CHOICES[key]
        chosen = texts[label.judgement.ranking[0][0]] if isinstance(side, int) else label.judgement.choice
        assert chosen == (f"{'ab'[order[side]]} {number}" if isinstance(side, int) else side)
        assert [texts[place] for place in label.judgement.order_shown] == [f"{'ab'[place]} {number}" for place in order]
        assert label.judgement.labeller == "ann"
        assert label.judgement.guidelines


async def test_a_session_that_was_closed_keeps_the_item_on_the_screen(tmp_path: Path) -> None:
    with kept_session(tmp_path / "preferences.db", [item("one", "two"), item("three", "four")]) as (session, state):
        async with labelling(session, state=state) as (app, pilot):
            session.close()
            await pilot.press("1")
            await until(lambda: "labelling has ended" in app.text)
            assert "one" in app.text


async def test_a_locked_store_stops_neither_the_screen_nor_the_next_label(tmp_path: Path) -> None:
    path, given = tmp_path / "preferences.db", [item(f"a {n}", f"b {n}", prompt=f"p {n}") for n in range(3)]
    with kept_session(path, given, "Be fair.") as (session, state):
        async with labelling(session, state=state, patience=0.05) as (app, pilot):
            with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
                other.execute("BEGIN IMMEDIATE")
                await pilot.press("1")
                await until(lambda: "Still saving: 1 is better" in app.text)
                await pilot.press("2", "f", "e", "u", "a")
                assert "a 0" in app.text
                other.execute("ROLLBACK")
            await until(lambda: "a 1" in app.text)
            assert app.reported("hint") == "", "the flag was typed for the item that is gone"
            await until(lambda: not app.pane.busy)
            await pilot.press("2")
            await until(lambda: "a 2" in app.text)
    with PreferenceStore(path) as store:
        assert [label.judgement.choice for label in store.preferences()] == ["a", "b"]
