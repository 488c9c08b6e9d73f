"""Blindness: before the choice nothing on the screen but the texts themselves tells the completions apart."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from label_session import FakeSession, Labelling, item, items, labelling, until

from trainer.preferences.records import Item, Origin
from workbench.kit.footer import KeyFooter

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
