"""Guard of the screen's thread: it finds what waits for the file system, and nothing else."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest
from file_guard import files_on_this_thread
from workbench_app import settle, workbench

from trainer.files import unused
from workbench.kit.saving import write_lines
from workbench.log.pane import LogPane


async def test_files_are_found_on_the_thread_of_the_screen_only(tmp_path: Path) -> None:
    (taken := tmp_path / "a.txt").write_text("")
    with files_on_this_thread() as found:
        asyncio.get_running_loop().call_soon(write_lines, tmp_path / "b.txt", [])
        await asyncio.sleep(0)
    assert found == ["workbench/kit/saving.py:write_lines, open"]
    with files_on_this_thread() as found:
        await asyncio.to_thread(unused, taken)
        taken.read_text()  # by the test
    assert found == []


async def test_a_pane_that_reads_a_file_on_it_fails_each_test_of_the_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LogPane, "action_filter", partial(write_lines, Path("a.txt"), []))

    async def search_the_log() -> None:
        async with workbench(pane="log") as (_, pilot):
            await pilot.press("slash")
            await settle(pilot)

    with pytest.raises(AssertionError, match=r"saving.py:write_lines, open"):
        await search_the_log()
