"""Panes: the strip of all of them and the state of the run beside it; leaving one early; how often it reads."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
import scripted_run
from label_screens import NOTHING, Host
from scripted_run import alarm, ended, iteration, started
from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message
from textual.widgets import Static
from waiting import until
from workbench_app import screen_text, workbench

from trainer.events import Event, PhaseProgress, StateChanged
from workbench.app import WorkbenchApp
from workbench.kit import pane
from workbench.kit.pane import Badge, MountedWhole, Pane, Throttled
from workbench.kit.pane_strip import Tab, TopLines, fitted, status_pieces, strip_of
from workbench.kit.theming import ThemedApp
from workbench.labelling.dialogs import GuidelinesScreen
from workbench.opening import Opening
from workbench.run.view import RunView
from workbench.training.pane import TrainingPane


@pytest.mark.parametrize("steps", range(8))
async def test_leaving_while_the_screen_opens_causes_no_error(steps: int) -> None:
    app = WorkbenchApp(Opening())
    async with app.run_test():
        while app.main is None:
            await asyncio.sleep(0)
        for _ in range(steps):
            await asyncio.sleep(0)
        app.exit()
    assert not app.report.getvalue()


async def test_of_two_quick_keys_the_first_answers_and_the_second_does_not_close_the_screen_below() -> None:
    app = Host()
    async with app.run_test() as pilot:
        below = app.screen
        app.push_screen(dialog := GuidelinesScreen("Be fair."), app.take)
        dialog.dismiss(True)  # faster than the screen
        dialog.dismiss(False)
        await until(pilot, lambda: app.answer is not NOTHING and not dialog.is_attached)
        assert app.answer is True
        assert app.screen is below


async def test_a_dialog_that_is_answered_under_another_one_is_closed_when_it_is_on_top_again() -> None:
    app = Host()
    async with app.run_test() as pilot:
        below = app.screen
        app.push_screen(dialog := GuidelinesScreen("Be fair."), app.take)
        app.push_screen(over := GuidelinesScreen("Be quick."))
        await until(pilot, lambda: over.is_mounted)
        dialog.dismiss(True)
        await pilot.pause()
        assert app.screen is over
        assert app.answer is NOTHING
        over.dismiss(False)
        await until(pilot, lambda: app.screen is below)
        assert app.answer is True


class Asked(Message):
    """Make the pane read, for its title."""


class Reader(MountedWhole, Vertical):
    """Pane that has read after `steps` turns of the event loop."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self._steps = steps

    def compose(self) -> ComposeResult:
        yield Static(id="title")

    @on(Asked)
    def start(self) -> None:
        self.run_worker(self._read())

    async def _read(self) -> None:
        for _ in range(self._steps):
            await asyncio.sleep(0)
        self.query_one("#title", Static).update("read")


@pytest.mark.parametrize("steps", range(16))
async def test_reading_that_ends_while_its_pane_is_removed_causes_no_error(steps: int) -> None:
    reader = Reader(steps)
    async with ThemedApp[None]().run_test() as pilot:
        await pilot.app.mount(reader)
        reader.query_one("#title").post_message(Asked())  # begins it while the application closes


async def test_a_second_reading_does_not_begin_while_one_is_under_way() -> None:
    go_on, limit = threading.Event(), Throttled()
    first = asyncio.create_task(limit.read(lambda: go_on.wait(60)))
    await asyncio.sleep(0)  # the first has begun
    assert await limit.read(lambda: "second") is None
    go_on.set()
    assert await first is True


@pytest.mark.parametrize(("rests", "again"), [(True, None), (False, "again")])
async def test_a_costly_reading_is_repeated_only_after_a_rest(
    rests: bool, again: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pane, "_REST", 1e6)
    limit = Throttled(rests=rests)
    assert await limit.read(_costly) == "found"
    assert await limit.read(lambda: "again") == again


async def test_a_reading_that_fails_is_repeated() -> None:
    limit = Throttled()
    with pytest.raises(ZeroDivisionError):
        await limit.read(lambda: 1 // 0)
    assert await limit.read(lambda: "found") == "found"


def _costly() -> str:
    began = time.thread_time()
    while time.thread_time() - began < 0.001:
        pass
    return "found"


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


def view(*events: object) -> RunView:
    result = RunView()
    for event in events:
        result.take(event)  # type: ignore[arg-type]
    return result


def status_text(view: RunView, width: int = 200, note: str = "") -> str:
    return fitted(status_pieces(view, note=note), width).plain


TRAINING = (started(), StateChanged(state="training"), iteration(3))


def test_it_names_the_run_and_what_it_does() -> None:
    assert status_text(view()) == "no run yet"
    assert "● stopping" in status_text(view(*TRAINING), note="stopping")
    assert status_text(view(started(name="[red]x[/]\x1b[2J"))).startswith("[red]x[/]␛[2J")


def test_a_training_run_shows_state_iteration_phase_time_left_speed_and_memory() -> None:
    shown = status_text(view(*TRAINING, PhaseProgress(iteration=4, phase="update", done=1, total=2)))
    assert " ".join(shown.split()) == (
        "quickstart-0001 ● training iteration 3/12 update ━━━━━━━━──────── ETA 3m 18s 142 tok/s 1.6 GB"
    )


def test_nothing_in_the_line_moves_while_a_run_trains() -> None:
    def places(*events: object) -> list[int]:
        shown = status_text(view(*TRAINING, *events))
        return [shown.index(word) + len(word) for word in ("quickstart", "iteration", "ETA", "tok/s")]

    later = iteration(10, tokens_per_second=1316.0, seconds={"generate": 0.1})
    phases = [PhaseProgress(iteration=11, phase=phase, done=0, total=1) for phase in ("generate", "score", "evaluate")]
    states = [StateChanged(state=state) for state in ("saving", "evaluating")]
    assert {tuple(places(*events)) for events in ([], [later], *([later, one] for one in (*phases, *states)))} == {
        tuple(places())
    }


def test_a_run_that_starts_says_what_it_does_until_it_trains() -> None:
    loading = StateChanged(state="loading")
    assert status_text(view(loading)) == "new run  ◌ loading the model"
    assert status_text(view(loading), note="stopping") == "new run  ◌ stopping"
    assert "● training" in status_text(view(loading, *TRAINING))
    resumed = view(*TRAINING, ended("stopped"), loading)
    assert status_text(resumed).startswith("quickstart-0001  ◌ loading the model   iteration 3/12   ")


def test_an_interrupted_run_has_the_sign_of_the_list_and_no_time_left() -> None:
    assert status_text(view(*TRAINING), note="interrupted").startswith(
        "quickstart-0001  ! interrupted   iteration 3/12   142 tok/s"
    )


@pytest.mark.parametrize("done", [-(10**6), 10**6])
def test_a_bar_keeps_its_length_whatever_the_progress(done: int) -> None:
    shown = status_text(view(*TRAINING, PhaseProgress(iteration=4, phase="update", done=done, total=1)))
    assert (shown + "━").count("━") + shown.count("─") == 17


@pytest.mark.parametrize(("state", "sign"), [("paused", "‖"), ("failed", "✖"), ("done", "✓"), ("stopped", "■")])
def test_each_state_has_a_sign_of_its_own(state: str, sign: str) -> None:
    shown = view(*TRAINING, ended(state)) if state != "paused" else view(*TRAINING, StateChanged(state="paused"))
    assert f"{sign} {state}" in status_text(shown)


def test_the_worst_alarm_whichever_came_last_is_beside_the_state_with_the_number_of_others() -> None:
    one, two = view(*TRAINING, alarm(3)), view(*TRAINING, alarm(3), alarm(4, code="truncation", level="error"))
    assert status_text(one, 80).startswith("quickstart-0001  ● training     ⚠ KL high   iteration  3/12")
    assert "   ✖ truncation and 1 more   iteration" in status_text(two)
    assert "␛[2J [b]" in status_text(view(*TRAINING, alarm(3, code="\x1b[2J_[b]")))
    reported = (alarm(3, code="no_signal"), alarm(2, level="error"), alarm(3, code="step_nan", level="error"))
    assert "   ✖ step NaN and 2 more   " in status_text(view(*TRAINING, reported[1], reported[2], reported[0]))
    assert "   ✖ step NaN and 2 more   " in status_text(view(*TRAINING, reported[1], reported[0], reported[2]))


def test_a_run_that_ended_with_an_error_has_no_green_tick() -> None:
    reported = alarm(3, level="error")
    assert "✓ done   ⚠ KL high" in status_text(view(*TRAINING, alarm(3), ended()))
    assert "⚠ done   ✖ KL high" in status_text(view(*TRAINING, reported, ended()))
    left = ended(iteration=90, alarms={"kl_high": "error"})
    assert "⚠ done   ✖ KL high" in status_text(view(*TRAINING, reported, left))
    assert "⚠ done, KL high   iteration" in status_text(view(*TRAINING, left)), (
        "of a long journal the end alone was read"
    )
    assert "✓ done   iteration" in status_text(view(*TRAINING, reported, iteration(70), ended(iteration=70)))


@pytest.mark.parametrize("width", [1, 10, 40, 60, 80, 100])
def test_it_never_exceeds_its_width_and_keeps_the_first_things(width: int) -> None:
    line = fitted(status_pieces(view(*TRAINING)), width)
    assert line.cell_length <= width
    assert line.plain[: min(width, 15) - 1] == "quickstart-0001"[: min(width, 15) - 1]
