"""The strip of panes: all of them at every size, the current one marked, badges, clicks; and the state beside it."""

from __future__ import annotations

import scripted_run
from scripted_run import alarm, iteration, started
from waiting import until
from workbench_app import screen_text, workbench

from trainer.events import Event, StateChanged
from workbench.kit.pane import Badge, Pane
from workbench.kit.pane_strip import Tab, TopLines, strip_of
from workbench.training.pane import TrainingPane

TITLES = ("Home", "Config", "Training", "Samples", "Label", "Reward model", "Runs", "Log")
TABS = [Tab(title.lower(), title, f"F{n}", Badge()) for n, title in enumerate(TITLES, 2)]


def text(tabs: list[Tab], width: int) -> str:
    texts = strip_of(tabs, width)
    assert sum(text.cell_length for text in texts) <= width
    return " ".join(text.plain.strip() for text in texts)


def test_the_keys_go_before_the_names_are_cut_and_the_longest_names_are_cut_first() -> None:
    assert text(TABS, 100) == "Home F2 Config F3 Training F4 Samples F5 Label F6 Reward model F7 Runs F8 Log F9"
    assert text(TABS, 66) == "Home Config Training Samples Label Reward model Runs Log"
    assert text(TABS, 64) == "Home Config Training Samples Label Reward Runs Log"
    assert text(TABS, 52) == "Home Confi Train Sampl Label Rewar Runs Log"
    assert text(TABS, 24) == "H C T S L R R L"


def test_badges_have_their_columns_at_every_width() -> None:
    tabs = [tab._replace(badge=Badge("12", "warning")) if tab.title == "Label" else tab for tab in TABS]
    for width in range(28, 120):
        assert "·12" in text(tabs, width)


async def test_every_pane_is_named_and_marked_and_a_click_or_a_parenthesis_goes_to_it() -> None:
    async with workbench(scripted_run.wait) as (screen, pilot):
        strip, panes = screen.query_one(TopLines), [pane.id for pane in screen.query(Pane)]
        for size in ((80, 24), (120, 40), (200, 60), (60, 20)):
            await pilot.resize_terminal(*size)
            await until(pilot, lambda width=size[0]: strip.size.width == width)  # type: ignore[misc]
            for place in range(len(panes)):
                tab, start, end = strip.places[place]
                await pilot.click(strip, offset=((start + end) // 2, 0))
                await until(pilot, lambda pane=tab.id: screen.query_one(f"#{pane}").has_focus_within)  # type: ignore[misc]

                def marked(place: int = place) -> bool:
                    tab, start, end = strip.places[place]
                    line = screen_text(screen).splitlines()[0]
                    return line[start:end].startswith(f"▸{tab.title[:3]}") and line.count("▸") == 1

                await until(pilot, marked)
            assert [tab.id for tab, _, _ in strip.places] == panes
        for key, pane in (("right_parenthesis", panes[0]), ("left_parenthesis", panes[-1])):
            await pilot.press(key)
            await until(pilot, lambda pane=pane: strip.current == pane)  # type: ignore[misc]


async def test_an_alarm_is_a_badge_wherever_the_user_is_and_the_state_of_the_run_is_beside_the_panes() -> None:
    async with workbench(size=(120, 40)) as (screen, pilot):

        def show(*events: Event) -> None:
            for event in events:
                screen.supervisor.view.take(event)
            screen.panes.show_run()

        lines = screen_text(screen).splitlines()
        assert lines[0].endswith("no run yet")
        assert "╭" in lines[1]
        await pilot.press("f8")
        show(started(), StateChanged(state="training"), iteration(3), alarm(3))
        await until(pilot, lambda: "Training·⚠" in screen_text(screen).splitlines()[0])
        await until(pilot, lambda: "iteration 3/12" in screen_text(screen).splitlines()[1])
        show(alarm(4, code="truncation", level="error"))
        await until(pilot, lambda: "Training·✖2" in screen_text(screen).splitlines()[0])
        assert not screen.query_one(TrainingPane).display
        await pilot.resize_terminal(200, 60)
        await until(pilot, lambda: "iteration 3/12" in screen_text(screen).splitlines()[0])
        assert "╭" in screen_text(screen).splitlines()[1]
        screen.query_one("#label", Pane).badge = Badge("12")
        await until(pilot, lambda: "Label·12" in screen_text(screen).splitlines()[0])
