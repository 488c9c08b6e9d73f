"""Lines of the ranks of a run on several processes."""

from __future__ import annotations

from typing import Any

import pytest
from rich.cells import cell_len
from scripted_run import ended, iteration, started
from snapshots import SNAPSHOTS, check
from training_bench import Bench, opened, shown, view_of

from workbench.headless.rich import dashboard
from workbench.headless.summary import summary
from workbench.kit.lines import plain
from workbench.run.rank_numbers import rank_numbers
from workbench.run.view import RunView
from workbench.training.rank_lines import RankLines, lines_wanted, rank_lines


def ranks(count: int, host: str = "studio") -> list[dict[str, Any]]:
    """Return what some ranks report; the first of them waits for the others."""
    rest = {"seconds": 42.0, "sent": 12_300_000, "memory_bytes": 3_400_000_000}
    return [{"host": f"rank {n} ({host})", "waiting": 21.0 if n == 0 else 2.1, **rest} for n in range(count)]


def drawn(count: int, width: int, height: int, host: str = "studio") -> list[str]:
    numbers = rank_numbers(iteration(1, ranks=ranks(count, host)))
    return [plain(line) for line in rank_lines(numbers, width, height)]


def test_a_line_has_host_time_share_of_waiting_memory_and_bytes() -> None:
    first, second = drawn(2, 120, 2)
    assert "rank 0 (studio)" in first
    assert [text in first for text in ("works 21s", "waits 50%", "3.4 GB", "sends 12.3 MB")] == [True] * 4
    assert "waits 5%" in second
    assert second.count("█") == pytest.approx(1.9 * first.count("█"), abs=1), "the bar is the time that it worked"


@pytest.mark.parametrize("width", [20, 30, 42, 60, 80, 200])
@pytest.mark.parametrize("host", ["a", "a-host-with-a-very-long-name.example", "日本"])
def test_lines_fit_their_width_and_keep_what_matters_most(width: int, host: str) -> None:
    for line in drawn(3, width, 3, host):
        assert cell_len(line) <= width
        assert width < 42 or ("rank" in line and "works" in line)


def test_ranks_without_a_line_are_counted() -> None:
    assert lines_wanted(rank_numbers(iteration(1, ranks=ranks(16))), 20) == 4
    lines = drawn(16, 80, 4)
    assert len(lines) == 4
    assert lines[-1].strip() == "and 13 ranks more"


def test_unknown_numbers_are_dashes() -> None:
    (line,) = (plain(line) for line in rank_lines(rank_numbers(iteration(1, ranks=[{"host": 5}])), 80, 1))
    assert "works -" in line
    assert "waits -" in line


async def test_the_pane_shows_them_below_the_metrics() -> None:
    async with Bench().run_test(size=(80, 24)) as pilot:
        pane = await opened(pilot, view_of(40, ranks=ranks(2)))
        check(await shown(pilot), SNAPSHOTS / "ranks-80x24.txt")
        await pilot.press("enter")
        assert not pilot.app.query_one(RankLines).display, "a large chart has the pane to itself"
        await pilot.press("escape")
        pane.show_run(view_of(40))
        await pilot.pause()
        assert not pilot.app.query_one(RankLines).display, "of one process there is nothing to compare"


def test_headless_displays_have_them_too(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    view = RunView()
    for event in (started(), iteration(1, ranks=ranks(2)), ended("done", 1)):
        view.take(event)
    console = Console(width=100)
    console.print(dashboard(view, 100))
    assert "rank 1 (studio)  works 40s  waits 5%" in capsys.readouterr().out
    assert ("ranks", "rank 0 (studio), works 21s, waits 50%, 3.4 GB, sends 12.3 MB") in summary(view)
    view.take(iteration(2))
    assert "ranks" not in dict(summary(view))
