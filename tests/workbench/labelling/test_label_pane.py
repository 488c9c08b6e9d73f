"""The keys of the label pane: what each one decides, that the next item is there at once, that nothing is lost.

UPDATE_SNAPSHOTS=1 rewrites tests/snapshots/; look at the difference before you keep it.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from label_session import FakeSession, Labelling, item, items, kept_session, labelling, until
from snapshots import SNAPSHOTS, check, contrasts, drawn
from textual import events

from trainer.errors import StorageError, UsageError
from trainer.preferences.records import Item, Judgement, Origin, Preference, Share
from trainer.preferences.store import PreferenceStore
from workbench.kit.footer import KeyFooter
from workbench.kit.theming import DEFAULT_THEME, shipped_themes
from workbench.system.environment import ScreenSettings

FULL = StorageError("'preferences.db' cannot be written: the disk is full: make room and try again")


DECISIONS = {
    **dict.fromkeys(("1", "left"), ("b", 1)),
    **dict.fromkeys(("2", "right"), ("a", 1)),
    **dict.fromkeys(("exclamation_mark", "shift+left", "less_than_sign"), ("b", 3)),
    **dict.fromkeys(("at", "greater_than_sign", "shift+right"), ("a", 3)),
    **dict.fromkeys(("equals_sign", "e"), ("tie", 1)),
    "0": ("both_bad", 1),
    "space": ("skip", 1),
}


async def test_a_key_is_a_decision_and_shows_the_next_item() -> None:
    pairs = [item(f"a text {n}.", f"b text {n}.", order=(1, 0)) for n in range(len(DECISIONS) + 1)]
    session = FakeSession(pairs)
    async with labelling(session) as (app, pilot):
        for n, (key, (choice, strength)) in enumerate(DECISIONS.items()):
            app.seconds += 7.5
            await pilot.press(key)
            judgement = session.judgements[n]
            assert (judgement.choice, judgement.strength) == (choice, strength), key
            assert (judgement.order_shown, judgement.seconds) == ((1, 0), 7.5)
            assert f"a text {n + 1}." in app.text
            assert f"a text {n}." not in app.text
        assert app.pane.state is not None
        assert app.pane.state.last == replace(session.items[n], label=session.labels[n][1])


async def test_the_choice_is_marked_on_its_side_for_a_moment_while_the_next_item_is_judged() -> None:
    def headings() -> list[str]:
        heading = next(line for line in app.text.splitlines() if "┬" in line)
        return [" ".join(side.strip("│─━ ").split()) for side in heading.split("┬")]

    session = FakeSession(items(6))
    async with labelling(session) as (app, pilot):
        assert headings() == ["1", "2"]
        app.pane.flash = 60
        marks = [("1", ["1 ✓", "2"]), ("2", ["1", "2 ✓"]), ("equals_sign", ["1 =", "2 ="]), ("0", ["1 ✗", "2 ✗"])]
        for n, (key, marked) in enumerate([*marks, ("space", ["1", "2"])], 1):
            await pilot.press(key)
            assert f"left {n}" in app.text
            assert headings() == marked
        await pilot.press("u", "u", "2")
        assert headings() == ["1", "2 ✓"]
        await pilot.press("u")
        assert headings() == ["1", "2"]
        app.pane.flash = 0.01
        await pilot.press("1")
        await until(lambda: headings() == ["1", "2"])


async def test_a_click_on_a_key_in_the_pane_presses_it() -> None:
    session = FakeSession(items(3))
    async with labelling(session, size=(80, 24)) as (app, pilot):
        keys = app.reported("keys")
        for place, text in enumerate(("first", "second", "both bad")):
            await pilot.click("#label-keys", offset=(keys.index(text) - 2 + 1, 0))
            await until(lambda place=place: place in session.judgements)
        assert [one.choice for one in session.judgements.values()] == ["a", "b", "both_bad"]


async def test_undo_goes_back_to_any_depth_and_restores_notes() -> None:
    session = FakeSession(items(3))
    async with labelling(session) as (app, pilot):
        await pilot.press("f", "1", "2", "1")
        await pilot.press("u")
        assert "left 2" in app.text
        assert "flagged" not in app.reported("hint")
        await pilot.press("u", "u")
        assert session.labels == []
        assert "left 0" in app.text
        assert "flagged" in app.reported("hint")
        await pilot.press("u")
        assert session.calls.count("undo") == 3, "there is nothing left to undo"
        await pilot.press("2")
        assert (session.judgements[0].choice, session.judgements[0].flags) == ("b", ("flagged",))
        session.refusal = FULL
        await pilot.press("u")
        assert "Label not undone" in app.reported("problem")
        assert list(session.judgements) == [0]
        assert "left 1" in app.text


async def test_three_or_more_are_ranked_by_their_digits() -> None:
    three = [item(f"a {n}", f"b {n}", f"c {n}") for n in range(3)]
    ten = item(*map(str, range(10)))
    session = FakeSession([item("a", "b", "c", "d", order=(3, 2, 1, 0)), *three, ten, *items(1)])
    async with labelling(session) as (app, pilot):
        assert "type the digits, best first, = between equals" in app.reported("hint")
        await pilot.press("2", "equals_sign", "2", "4", "3")
        assert "ranking: 2 = 4 > 3" in app.reported("hint")
        await pilot.press("backspace", "1")
        assert not session.labels
        await pilot.press("3")
        await pilot.press("4", "9", "3", "1", "r", "1", "2", "3", "equals_sign", "2", "0")
        assert "10 completions are too many to rank: space skips" in app.reported("hint")
        await pilot.press("1", "2", "space")
        assert "left 0" in app.text
    *ranked, bad, skipped = session.judgements.values()
    assert [one.ranking for one in ranked] == [((0, 2), (3,), (1,)), ((0,), (1,), (2,)), ((0, 1, 2),)]
    assert (bad.verdict, skipped.verdict) == ("both_bad", "skip")


async def test_a_refused_label_stays_with_its_reason_and_can_be_made_again() -> None:
    session = FakeSession([*items(1), item("a", "b", "c"), *items(1)])
    async with labelling(session) as (app, pilot):
        session.refusal = FULL
        await pilot.press("f")
        for _ in range(5):
            app.post_message(events.Key("1", None))  # those typed ahead do not judge the item that stays
        reason = "✖ Not saved: 1 is better. 'preferences.db' cannot be written: the disk is full"
        await until(lambda: reason in app.reported("problem"))
        await pilot.pause()
        assert session.calls == ["label 0"]
        assert "left 0" in app.text
        assert "flagged" in app.reported("hint")
        session.refusal = None
        await until(lambda: not app.pane.busy)
        await pilot.press("1")
        assert not app.reported("problem")
        assert (session.judgements[0].choice, session.judgements[0].flags) == ("a", ("flagged",))
        session.refusal = FULL
        await pilot.press("1", "2", "3")
        assert "Not saved: 1 > 2 > 3" in app.reported("problem")
        session.refusal = None
        await until(lambda: not app.pane.busy)
        await pilot.press("3", "2", "1")
        assert session.judgements[1].ranking == ((2,), (1,), (0,))


async def test_an_item_that_was_judged_in_another_window_makes_way_for_the_next() -> None:
    session = FakeSession(items(2))
    async with labelling(session) as (app, pilot):
        session.refusal = UsageError("item 1 has a label: label the next one")
        await pilot.press("1")
        await until(lambda: "Not saved: 1 is better" in app.reported("problem"))
        elsewhere = Preference(comparison=session.items[0].item.comparison, judgement=Judgement.chosen("b"))
        session.labels.append((0, elsewhere))
        session.now()
        await until(lambda: "left 1" in app.text)
        assert "item 1 has a label" in app.reported("problem")


async def test_an_answer_for_a_session_that_was_left_shows_nothing() -> None:
    session, other = FakeSession(items(3)), FakeSession([item("x", "y", prompt="of the other one")])
    async with labelling(session, patience=0.2) as (app, pilot):
        session.held = []
        app.post_message(events.Key("1", None))
        await until(lambda: bool(session.held))
        app.pane.end()
        app.pane.begin(other, other.now())  # type: ignore[arg-type]
        await pilot.press("f")  # once the patience with the one before is over
        assert app.reported("problem") == ""
        session.held.pop()()
        await pilot.press("2")
        assert other.judgements[0].choice == "b"


async def test_keys_beyond_the_session_are_requests_and_without_one_no_key_judges() -> None:
    async with labelling() as (app, pilot):
        await pilot.press("1", "equals_sign", "u", "f", "a", "d", "v", "y", "g", "h", "l", "enter")
        assert app.requested == ["start"]
        assert "⏎ begins or resumes a session" in app.text
        session = FakeSession(items(2))
        app.pane.begin(session, session.now())  # type: ignore[arg-type]
        await pilot.press("t", "T", "i", "x", "l", "enter", "g")
        assert app.requested[1:] == ["train", "use", "import", "export", "leave"]
        assert app.notified == ["This session has no guidelines; name a text file when you begin one"]
        app.pane.end()
        await pilot.pause()
        assert "No labelling session open" in app.text
        assert "ann" not in app.text


async def test_items_are_waited_for_counted_as_they_become_known_and_come_to_an_end() -> None:
    session = FakeSession([], ended=False, waiting="the policy writes pair 3")
    async with labelling(session, size=(200, 60)) as (app, pilot):
        assert "the policy writes pair 3..." in app.text
        session.report(waiting="the policy writes pair 4", left_out=("row 3 of [/x]\x1b has one completion",))
        await until(lambda: "the policy writes pair 4..." in app.text)
        await pilot.press("1", "u", "f", "d")
        session.figures = {"left": None, "per_hour": 911.0}
        session.put(items(2))
        await until(lambda: "left 0" in app.text)
        assert app.pane.badge.text == "2"
        await pilot.press("f")
        session.figures |= {"left": 912, "eta_seconds": 3600.0}
        session.report()
        await until(lambda: app.pane.badge.text == "912")
        assert "0 of 912" in app.reported("progress")
        assert "ETA 1h 00m" in app.reported("progress")
        assert "⚑ flagged" in app.reported("hint"), "the item stays as it is"
        session.report(ended=True, problem="the run has [no] more samples\x1b")
        await pilot.press("1", "2")
        assert "2 items judged, none left." in app.text
        assert "the run has [no] more samples␛" in app.text
        await pilot.press("1")
        assert len(session.labels) == 2
        await pilot.press("u")
        assert "left 1" in app.text
        assert app.notified.count("row 3 of [/x]␛ has one completion") == 1


async def test_seconds_begin_when_the_pane_comes_into_sight() -> None:
    session = FakeSession(items(2))
    async with labelling(session) as (app, pilot):
        app.pane.display = False
        await until(lambda: not app.pane.region)
        app.seconds = 600
        app.pane.display = True
        await until(lambda: bool(app.pane.region))  # laid out again
        await pilot.pause()  # and says so
        app.pane.take_focus()
        app.seconds = 604.25
        await pilot.press("1")
        assert session.judgements[0].seconds == 4.25


async def test_hints_name_remapped_keys() -> None:
    async with labelling() as (app, pilot):
        app.set_keymap({"label.first": "j", "label.tie": "k"})
        session = FakeSession([item("same", "same"), *items(2)])
        app.pane.display = False
        await pilot.pause()
        app.pane.display = True
        await pilot.pause()
        app.pane.take_focus()
        app.pane.begin(session, session.now())  # type: ignore[arg-type]
        await pilot.pause()
        assert "identical texts: k is a tie" in app.reported("hint")
        assert " ".join(app.reported("keys").split()) == "j first 2 second k tie 0 both bad space skip < > strongly"
        await pilot.press("k", "j", "1")
        assert [judgement.choice for judgement in session.judgements.values()] == ["tie", "a"]


async def test_note_flag_and_half_a_ranking_are_there_again_when_their_item_returns() -> None:
    note = "too [/short]\x1b[31m"
    session = FakeSession([*items(1), item("a", "b", "c"), *items(1)])
    async with labelling(session) as (app, pilot):
        await pilot.press("1", "f", "3", "1")
        app.pane.draft = app.pane.draft._replace(note=note)
        await app.pane.go_to(0)
        await pilot.pause()
        assert app.reported("hint") == "your label: 1 is better, ⏎ keeps it"
        await pilot.press("f")
        await pilot.press("u")
        assert "flagged" not in app.reported("hint"), "the label is gone, and so is what was typed on top of it"
        await pilot.press("2")
        assert app.reported("hint") == "ranking: 3 > 1   ⚑ flagged   note: too [/short]␛[31m"
        app.pane.end()
        await pilot.pause()
        app.pane.begin(session, session.now())  # type: ignore[arg-type]
        await pilot.pause()
        assert app.reported("hint") == "ranking: 3 > 1   ⚑ flagged   note: too [/short]␛[31m"
        await pilot.press("2")
        saved = session.judgements[1]
        assert (saved.ranking, saved.flags, saved.note) == (((2,), (0,), (1,)), ("flagged",), note)
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
    chat = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "Hm."}]
    origins = (Origin(source="run", writer="reference"), Origin(source="run", writer="policy"))
    one = item("two [/x]", "one", prompt=chat, order=(1, 0), origins=origins, columns={"scores": [0.3, 0.8]})
    session = FakeSession([one, *items(2)])
    async with labelling(session) as (app, pilot):
        await pilot.press("y", "1")
        assert app.clipboard == "[prompt]\nuser: Why?\n\nassistant: Hm.\n\n[1]\none\n\n[2]\ntwo [/x]", "no facts"
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


RATES = {"done": 31, "left": 169, "per_hour": 212.0, "median_seconds": 9.0, "eta_seconds": 2870.0, "streak": 31}
SHARES = {
    "left_side": Share(14, 28, 0.5, 0.33, 0.67),
    "longer": Share(18, 25, 0.72, 0.52, 0.86),
    "same": Share(4, 4, 1.0, 0.51, 1.0),
}


def written() -> list[Item]:
    """Write a pair that was judged, one of chat messages, and four completions."""
    origins = (
        Origin(source="run", run="quickstart-0003", iteration=12, row=3, writer="policy"),
        Origin(source="run", run="quickstart-0003", iteration=12, row=4, writer="reference"),
    )
    columns = {"scores": [0.81, 0.27], "lengths": [43, 31]}
    return [
        item("first", "second", order=(1, 0), origins=origins, columns=columns),
        item(
            "Sunlight looks white, but it is made of all the colours of the rainbow. The air bounces blue around the "
            "most, so blue comes at us from everywhere.",
            "The sky appears blue due to Rayleigh scattering, which is inversely proportional to the fourth power of "
            "the wavelength.",
            prompt=[
                {"role": "system", "content": "Answer in one or two sentences."},
                {"role": "user", "content": "Explain to a child why the sky is blue."},
            ],
        ),
        item("One.", "Two words.", "Three words, no more.", "日本 四.", prompt="Count to ten. 🎉"),
    ]


async def test_the_pane_matches_its_snapshot() -> None:
    session = FakeSession(written(), guidelines="hash")
    session.figures = {**RATES, **SHARES, "kappa": 1.0}
    async with labelling(session, size=(120, 40)) as (app, pilot):
        for theme in shipped_themes().values():
            app.register_theme(theme)
        app.theme = DEFAULT_THEME
        await pilot.press("1")
        check(app.text, SNAPSHOTS / "label-pair.txt")
        await pilot.press("d", "f")
        assert min(contrasts(drawn(app.screen))) >= 3  # type: ignore[arg-type]
        await pilot.press("f", "d", "1", "3", "equals_sign")
        check(app.text, SNAPSHOTS / "label-ranking.txt")


PROMPT = "Explain to a child why the sky is blue."
TEXTS = (
    "Sunlight looks white, but it is made of all the colours of the **rainbow**.\n\n- The air bounces blue.",
    "The sky appears blue due to *Rayleigh scattering*, which is inversely proportional to the fourth power.",
)
POLICY = Origin(source="run", run="quickstart-0003", iteration=12, checkpoint="step-000011", writer="policy")
REFERENCE = Origin(source="run", run="baseline-0001", iteration=3, checkpoint="step-000002", writer="reference")
FACTS = ("0.81", "0.27", "43", "97", "policy", "reference", "quickstart-0003", "baseline-0001", "step-0000", "7.25")
KEYS = ("d", "v", "d", "v", "p", "p", "f", "f", "down", "pagedown", "up", "end", "home")


def pair(*, swapped: bool, order: tuple[int, int] = (0, 1), queue: str = "policy-reference") -> Item:
    """Return the same two texts; swapped: what is known of one is known of the other."""
    turn = -1 if swapped else 1
    columns = {
        "scores": [0.81, 0.27][::turn],
        "lengths": [43, 97][::turn],
        "reward models": [7.25, -7.25][::turn],
        "chosen": 0 if swapped else 1,
    }
    origins = (POLICY, REFERENCE)[::turn]
    return item(*TEXTS, prompt=PROMPT, order=order, origins=origins, columns=columns, queue=queue)  # type: ignore[arg-type]


async def seen(one: Item, size: tuple[int, int], *, after: bool = False, keys: Sequence[str] = KEYS) -> list[str]:
    """Return the whole screen at first, after each of `keys`, after an undo, and when its label may be changed.

    after: also with the next item.
    """
    session = FakeSession([one, *items(2)], guidelines="hash")
    async with labelling(session, size=size) as (app, pilot):
        screens = [await shown(app)]
        for key in keys:
            await pilot.press(key)
            screens.append(await shown(app))
        await pilot.press("1", "u")
        screens.append(await shown(app))
        await pilot.press("1")
        await app.pane.go_to(0)
        await pilot.pause()
        screens.append(await shown(app))
        if after:
            await pilot.press("enter")
            screens.append(await shown(app))
        return screens


async def shown(app: Labelling) -> str:
    """Return the screen once the footer, which hears of them later, shows the keys that apply."""
    current = asyncio.Event()
    app.screen.bindings_updated_signal.subscribe(app.query_one(KeyFooter), lambda _: current.set())
    app.screen.refresh_bindings()
    await until(current.is_set)
    return app.text


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
async def test_swapping_all_that_is_hidden_changes_nothing_on_the_screen(size: tuple[int, int]) -> None:
    one, other = [await seen(pair(swapped=swapped), size) for swapped in (False, True)]
    assert one == other
    assert len(one) == len(KEYS) + 3


async def test_nothing_that_is_hidden_is_on_the_screen_before_the_choice() -> None:
    *before, after = await seen(pair(swapped=False), (120, 40), after=True)
    assert not any(fact in screen for screen in before for fact in FACTS)
    assert "1: policy, iteration 12, score 0.81" in after
    assert "2: reference, iteration 3, score 0.27" in after


async def test_text_that_does_not_fit_is_cut_on_both_sides_alike() -> None:
    session = FakeSession([pair(swapped=False), *items(1)])
    for size, whole in (((120, 40), False), ((200, 60), True)):
        session.labels.clear()
        async with labelling(session, size=size) as (app, pilot):
            await pilot.press("1")
            one, other = app.reported("last").split("   ")[1:]
            assert one.startswith("1: policy, iteration 12, score")
            assert other.startswith("2: reference, iteration 3, score")
            assert one.endswith("quickstart-0003") == other.endswith("baseline-0001") == whole


async def test_the_queue_an_item_comes_from_is_not_shown() -> None:
    first = await seen(pair(swapped=False), (120, 40), keys=())
    for queue in ("samples", "dataset", "uncertain", "again", "repeat"):
        assert await seen(pair(swapped=False, queue=queue), (120, 40), keys=()) == first


async def test_two_orders_of_an_item_differ_only_in_the_positions() -> None:
    orders: list[tuple[int, int]] = [(0, 1), (1, 0)]
    one, other = [await seen(pair(swapped=False, order=order), (120, 40)) for order in orders]
    for screen, swapped in zip(one[: len(KEYS) + 1], other, strict=False):
        assert exchanged(screen) == swapped.splitlines()
    assert one != other


def exchanged(screen: str) -> list[str]:
    """Return the screen's lines with the texts of left and right exchanged."""
    lines = []
    for line in screen.splitlines():
        if len(line) == 120 and line[59] == "│":
            line = line[0] + line[60:118] + "│" + line[1:59] + line[118:]
        lines.append(line)
    return lines


@pytest.mark.parametrize("again", [TEXTS, TEXTS[::-1], (TEXTS[0], "another one"), ("another one", TEXTS[1])])
async def test_facts_about_the_last_item_stay_hidden_if_one_of_its_completions_comes_again(
    again: tuple[str, str],
) -> None:
    session = FakeSession([pair(swapped=False), item(*again, prompt=PROMPT, queue="repeat"), *items(2)])
    async with labelling(session) as (app, pilot):
        await pilot.press("1")
        assert app.reported("last") == ""
        assert not any(fact in app.text for fact in FACTS)
        await pilot.press("2")
        assert app.reported("last") == "last: 2 is better"
