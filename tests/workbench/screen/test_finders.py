"""The command palette finds runs, settings, presets and samples, and opens them; names are text, never markup."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from scripted_run import make_run
from snapshots import written_run
from textual.command import CommandInput, CommandList, CommandPalette, Hit
from textual.geometry import Size
from textual.pilot import Pilot
from textual.screen import Screen
from waiting import until
from workbench_app import press_when_asked, settle, status, workbench

from workbench.config.pane import ConfigPane
from workbench.config.rows import ConfigRows, FieldRow
from workbench.kit.command_provider import PaletteEntry, around
from workbench.kit.dialog import ConfirmScreen
from workbench.samples.pane import SamplesPane
from workbench.screen import finders

HOSTILE = "[/x] [@click=app.quit]\x1b[31m\u202eabc\nnext \\"


async def choose(pilot: Pilot[Any], query: str, name: str) -> None:
    """Open what the palette lists first for `query`, once that begins with `name`."""
    await pilot.press("ctrl+p")
    await until(pilot, lambda: isinstance(pilot.app.screen, CommandPalette))
    palette = pilot.app.screen
    assert palette.query_one(CommandInput).placeholder.endswith("runs, settings, presets, samples and docs")
    palette.query_one(CommandInput).value = query

    def first() -> str:
        found = palette.query_one(CommandList)
        return str(found.get_option_at_index(0).prompt) if found.option_count else ""

    await until(pilot, lambda: first().startswith(name))
    await until(pilot, lambda: not [worker for worker in palette.workers if worker.node is palette])
    assert first().startswith(name)
    await pilot.press("enter")
    await until(pilot, lambda: pilot.app.screen is not palette)


async def palette_lines(pilot: Pilot[Any], query: str) -> list[str]:
    """Return what the palette lists for `query`."""
    await pilot.press("ctrl+p")
    await until(pilot, lambda: isinstance(pilot.app.screen, CommandPalette))
    palette = pilot.app.screen
    palette.query_one(CommandInput).value = query
    await pilot.pause()
    await until(pilot, lambda: not [worker for worker in palette.workers if worker.node is palette])
    found = palette.query_one(CommandList)
    return [str(option.prompt) for option in found.options]


async def test_the_palette_finds_and_opens_one_of_each_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written_run(Path("runs/past"))
    make_run("other")
    async with workbench(watch=Path("runs/past"), size=(80, 24)) as (screen, pilot):
        samples = screen.query_one(SamplesPane)
        await settle(pilot)
        await until(pilot, lambda: samples.check_action("bookmark", ()) is True)
        await choose(pilot, "sample triumph", "The concert last night")
        await until(pilot, lambda: samples.opened is not None)
        assert samples.display
        await choose(pilot, "setting ppo.kl_coef", "ppo.kl_coef")
        rows = screen.query_one(ConfigPane).query_one(ConfigRows)
        await until(pilot, lambda: rows.has_focus)
        assert isinstance(rows.selected, FieldRow)
        assert rows.selected.key == "ppo.kl_coef"
        screen.config.document.set("ppo.kl_coef", 0.5)
        await choose(pilot, "preset quickstart", "quickstart")
        await until(pilot, lambda: isinstance(pilot.app.screen, ConfirmScreen))
        await press_when_asked(pilot, "y")
        await until(pilot, lambda: screen.config.document.get("ppo.kl_coef") != 0.5)
        await choose(pilot, "run other", "other")
        await until(pilot, lambda: screen.supervisor.shows(Path("runs/other")))
        assert "other" in status(screen)


async def test_a_hit_is_text_on_one_line_and_never_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    async def find(_: object, words: str) -> list[PaletteEntry]:
        assert words == "x y", "the kind is not one of the words"
        return [PaletteEntry(HOSTILE, HOSTILE * 50, list)]

    monkeypatch.setattr(finders, "FINDERS", {"run": find})
    finder = finders.Finder(cast("Screen[Any]", SimpleNamespace(app=SimpleNamespace(size=Size(120, 40)))))
    (hit,) = [hit async for hit in finder.search("Run x y")]
    assert isinstance(hit, Hit)
    assert hit.help is None
    line = str(hit.prompt)
    assert line.startswith("[/x] [@click=app.quit]␛[3…")
    assert "  [/x] [@click=app.quit]␛[31m\\u202eabc␊next \\[/x]" in line
    assert line.endswith("…  run")
    assert len(line) == 106
    assert not [span for span in hit.prompt.spans if "click" in str(span.style)]  # type: ignore[union-attr]


def test_what_was_found_in_a_sample_is_near_the_start_of_the_line() -> None:
    assert around("Once upon a time", "UPON") == "Once upon a time"
    assert around("x" * 90 + "needle", "Needle other") == "…" + "x" * 30 + "needle"
    assert around("a" + "x" * 90 + "b a", "b a") == "…" + "x" * 30 + "b a", "the words as typed come first"
    assert around("", "") == ""


async def test_what_is_called_like_the_query_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run("a theme")
    firsts = {"theme": "Theme  ", "screen": "Screenshot  ", "Help": "help  ", "run a": "a theme", "seed": "run.seed"}
    async with workbench() as (_, pilot):
        for query, first in firsts.items():
            assert (await palette_lines(pilot, query))[0].startswith(first)
            await pilot.press("escape")


async def test_an_action_has_one_line_with_its_key_at_the_right() -> None:
    async with workbench(size=(80, 24)) as (_, pilot):
        lines = [line for line in await palette_lines(pilot, "zoom") if not line.endswith(" docs")]
        assert all("\n" not in line and len(line) <= 76 for line in lines)
        assert lines[0].startswith("zoom  ")
        assert "  Enlarge this pane" in lines[0]
        assert lines[0].endswith("  z")
        first, second = (await palette_lines(pilot, "quit"))[:2]
        assert first.startswith("quit  ")
        assert {*first.split()[-2:]} == {"q", "^q"}
        assert not second.startswith("quit  ")
