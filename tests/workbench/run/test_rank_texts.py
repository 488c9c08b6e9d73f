"""Texts of the ranks of a run on several processes."""

from __future__ import annotations

from typing import Any

import views
from scripted_run import ended, iteration, started
from textual.widgets import Static
from training_bench import Bench, opened, view_of

from workbench.headless import summary
from workbench.run.sentences import rank_texts


def ranks(count: int, host: str = "studio") -> list[dict[str, Any]]:
    """Return what some ranks report; the first of them waits for the others."""
    rest = {"seconds": 42.0, "sent": 12_300_000, "memory_bytes": 3_400_000_000}
    return [{"host": f"rank {n} ({host})", "waiting": 21.0 if n == 0 else 2.1, **rest} for n in range(count)]


def test_a_line_has_host_time_share_of_waiting_memory_and_bytes() -> None:
    assert rank_texts(iteration(1, ranks=ranks(2))) == [
        "rank 0 (studio)  works 21s  waits 50%  3.4 GB  sends 12.3 MB",
        "rank 1 (studio)  works 40s  waits 5%  3.4 GB  sends 12.3 MB",
    ]
    assert rank_texts(iteration(1, ranks=[{"host": "\x1b[31m"}])) == ["␛[31m  works -  waits -"]


async def test_the_pane_shows_them_below_the_metrics() -> None:
    async with Bench().run_test(size=(80, 24)) as pilot:
        pane = await opened(pilot, view_of(40, ranks=ranks(2)))
        lines = pilot.app.query_one("#ranks", Static)
        assert str(lines.render()).splitlines() == rank_texts(iteration(40, ranks=ranks(2)))
        assert lines.region.height == 2
        await pilot.press("enter")
        assert not pilot.app.query_one("#ranks").display, "a large chart has the pane to itself"
        await pilot.press("escape")
        pane.show_run(view_of(40))
        await pilot.pause()
        assert not pilot.app.query_one("#ranks").display, "of one process there is nothing to compare"


def test_headless_displays_have_them_too() -> None:
    view = views.view_of(started(), iteration(1, ranks=ranks(2)), ended("done", 1))
    assert "rank 1 (studio)  works 40s  waits 5%" in views.drawn(view)
    assert ("ranks", "rank 0 (studio)  works 21s  waits 50%  3.4 GB  sends 12.3 MB") in summary(view)
    view.take(iteration(2))
    assert "ranks" not in dict(summary(view))
