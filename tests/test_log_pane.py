"""The log pane follows the file of native output and what Python code prints, as text."""

from __future__ import annotations

from pathlib import Path

from textual.app import App, ComposeResult
from textual.widgets import RichLog

from workbench.panes.log import LogPane


class LogApp(App[None]):
    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def compose(self) -> ComposeResult:
        yield LogPane(self.path)


def lines(app: App[None]) -> list[str]:
    return [strip.text.rstrip() for strip in app.query_one(RichLog).lines]


async def test_it_shows_what_was_added_since_the_start_and_obeys_none_of_it(tmp_path: Path) -> None:
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
