"""The log pane follows the file of native output and what Python code prints, as text."""

from __future__ import annotations

from pathlib import Path

from scripted_run import alarm, ended, iteration, started
from textual.app import App, ComposeResult
from textual.widgets import RichLog

from trainer.events import Alert, Decision, Event, RolledBack
from workbench.log.pane import LogPane
from workbench.run.view import RunView


class LogApp(App[None]):
    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def compose(self) -> ComposeResult:
        yield LogPane(self.path)


def lines(app: App[None]) -> list[str]:
    return [strip.text.rstrip() for strip in app.query_one(RichLog).lines]


async def test_the_pane_shows_what_was_added_since_the_start_and_obeys_none_of_it(tmp_path: Path) -> None:
    log = tmp_path / "workbench.log"
    log.write_text("of a session before\n")
    app = LogApp(log)
    async with app.run_test() as pilot:
        with log.open("a") as file:
            file.write("one [b]\x1b[2J\n 10 %\r 20 %\n")
        app.query_one(LogPane).read_new()
        print("printed by Python")
        await pilot.pause()
        assert lines(app) == ["one [b]␛[2J", " 20 %", "printed by Python"]


async def test_a_log_that_is_cut_or_very_long_is_shown_from_its_end(tmp_path: Path) -> None:
    log = tmp_path / "workbench.log"
    log.write_text("a" * 100)
    app = LogApp(log)
    async with app.run_test() as pilot:
        log.write_text("cut\n")
        app.query_one(LogPane).read_new()
        with log.open("a") as file:
            file.write("b" * 5_000_000 + "\nlast\n")
        app.query_one(LogPane).read_new()
        await pilot.pause()
        assert lines(app)[0] == "cut"
        assert lines(app)[-1] == "last"
        assert len("".join(lines(app))) < 3000


async def test_a_long_line_is_wrapped(tmp_path: Path) -> None:
    app = LogApp(tmp_path / "workbench.log")
    async with app.run_test(size=(40, 10)) as pilot:
        app.query_one(LogPane).write("word " * 20)
        await pilot.pause()
        assert [len(line) <= 40 for line in lines(app)] == [True] * 3


async def test_a_line_longer_than_any_message_shows_that_it_was_cut(tmp_path: Path) -> None:
    app = LogApp(tmp_path / "workbench.log")
    async with app.run_test(size=(100, 30)) as pilot:
        app.query_one(LogPane).write("x" * 5000)
        await pilot.pause()
        assert sum(line.count("x") for line in lines(app)) == 1999
        assert any(line.rstrip().endswith("x…") for line in lines(app))


def view_of(*events: Event) -> RunView:
    view = RunView()
    for event in events:
        view.take(event)
    return view


async def test_each_message_of_a_run_gets_one_line_and_is_not_obeyed(tmp_path: Path) -> None:
    app = LogApp(tmp_path / "workbench.log")
    view = view_of(started(), iteration(1), alarm(1, message="a\x1b[2J\nb [b]c[/b]", advice="Lower it.", fixes=[]))
    reason = "the score fell back"
    async with app.run_test(size=(120, 30)) as pilot:
        pane = app.query_one(LogPane)
        pane.show_run(view)
        pane.show_run(view)
        view.take(
            Decision(
                iteration=2,
                level="info",
                code="convergence_degradation",
                message=reason,
                rule="degradation",
                action="rollback",
                evidence={},
            )
        )
        view.take(RolledBack(iteration=2, to=1, reason=reason))
        pane.show_run(view)
        await pilot.pause()
        assert lines(app) == [
            "quickstart-0001: iteration 1: warning: KL high: a␛[2J␊b [b]c[/b]",
            "quickstart-0001: iteration 1: advice: Lower it.",
            "quickstart-0001: iteration 2: decision to roll back: the score fell back",
            "quickstart-0001: iteration 2: rolled back to iteration 1: the score fell back",
        ]


async def test_lines_are_not_repeated_when_a_run_resumes_but_are_for_another_run(tmp_path: Path) -> None:
    app = LogApp(tmp_path / "workbench.log")
    reported = Alert(iteration=5, level="info", code="x", message="reported")
    view = view_of(started(), reported, alarm(6), ended("stopped", 6))
    async with app.run_test(size=(120, 30)) as pilot:
        pane = app.query_one(LogPane)
        pane.show_run(view)
        await pilot.pause()
        before = lines(app)
        view.take(started(resumed_at=4))
        pane.show_run(view)
        await pilot.pause()
        assert lines(app) == before
        view.take(Alert(iteration=5, level="info", code="x", message="again"))
        pane.show_run(view)
        pane.show_run(view_of(started(name="other"), reported))
        await pilot.pause()
        new = ["quickstart-0001: iteration 5: note: again", "other: iteration 5: note: reported"]
        assert lines(app) == [*before, *new]


async def test_a_run_that_replaces_another_is_shown_from_its_start(tmp_path: Path) -> None:
    app = LogApp(tmp_path / "workbench.log")
    view = view_of(started(), alarm(1, fixes=[]), alarm(2, fixes=[]))
    async with app.run_test(size=(120, 30)) as pilot:
        pane = app.query_one(LogPane)
        pane.show_run(view)
        view.take(started(name="new"))
        view.take(Alert(iteration=1, level="info", code="x", message="reported"))
        pane.show_run(view)
        await pilot.pause()
        assert [line for line in lines(app) if line.startswith("new")] == ["new: iteration 1: note: reported"]
