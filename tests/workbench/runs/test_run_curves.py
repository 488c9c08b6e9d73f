"""Large curves fill what a large terminal leaves below the table of runs."""

from __future__ import annotations

import time

import pytest
from runs_app import RunsApp
from waiting import until
from workbench_app import settle
from workspace_runs import write_workspace

from workbench.kit.drawing import Drawn
from workbench.run import run_listing
from workbench.runs.pane import RunsPane
from workbench.runs.table import RunTable


def rows(curves: Drawn) -> list[str]:
    return [curves.render_line(y).text for y in range(curves.size.height)]


async def test_large_curves_of_the_selected_run_or_the_marked_ones_fill_a_large_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_workspace(time.time())
    read: list[str] = []
    glance_at = run_listing.glance_at
    monkeypatch.setattr(run_listing, "glance_at", lambda run: read.append(run.name) or glance_at(run))
    app = RunsApp()
    async with app.run_test(size=(120, 40)) as pilot:
        pane, curves, table = app.query_one(RunsPane), app.query_one("#run-curves", Drawn), app.query_one(RunTable)
        await until(pilot, lambda: len(table.items) == 4)
        await pilot.press("end")
        await until(pilot, lambda: rows(curves)[0].split()[:2] == ["score", "1.000"])
        assert "KL 3.00" in rows(curves)[0]
        assert any("┤" in row for row in rows(curves)), "the y axis has numbers"
        assert rows(curves)[-1].count("└1") == 2
        assert curves.region.bottom == pane.content_region.bottom
        assert table.size.height == 5, "the heading and four runs"

        await pilot.press("m", "up", "m")
        await until(pilot, lambda: rows(curves)[0].split() == ["━", "old", "━", "absurd"])
        legend = [segment.style for segment in curves.render_line(0) if segment.text.startswith("━")]
        assert len({style.color for style in legend if style}) == 2
        assert app.query_one("#run-comparison").region.bottom <= curves.region.y
        await settle(pilot)
        pane.refresh_runs()
        pane._look()
        await settle(pilot)
        assert read.count("old") == 1, "a journal that has not changed is not read again"

        for size in ((80, 24), (200, 20)):
            await pilot.resize_terminal(*size)
            await settle(pilot)
            assert not curves.display
            assert table.region.bottom <= app.query_one("#run-detail").region.y
            assert app.query_one("#run-comparison").region.bottom <= pane.content_region.bottom
