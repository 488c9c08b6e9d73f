"""Measure the token view: milliseconds to show a sample, switch the channel and scroll, each to the painted frame.

Run: .venv/bin/python benchmarks/bench_tokens.py

The widget and its legend fill a screen of 120 x 36. A frame is painted once the application has produced its
characters; the driver discards them. Textual paints at most 60 times a second, so a time can include some waiting.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import ClassVar

from rich.console import RenderableType
from textual.app import App, ComposeResult
from textual.pilot import Pilot
from textual.screen import Screen

from workbench.kit.theme_file import load_themes
from workbench.kit.theming import ALL_STYLES, EXTRA_VARIABLES, apply_themes
from workbench.run.sample_table import TokenSample
from workbench.samples.sample_view import TokenLegend
from workbench.samples.token_text import TokenText

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests" / "support"))
from token_samples import token_sample

SIZE = (120, 36)
TARGETS = {"show": 50, "channel": 30}  # ms, for 4,096 tokens


class Probe(App[None]):
    """Application with only the token view and its legend."""

    CSS_PATH: ClassVar = ALL_STYLES

    def __init__(self) -> None:
        super().__init__()
        self.painted = asyncio.Event()

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """Return the variables that the stylesheets use."""
        return EXTRA_VARIABLES

    def compose(self) -> ComposeResult:
        """Yield the text and, below it, its legend."""
        yield (text := TokenText())
        yield TokenLegend(text)

    def on_token_text_channel_changed(self) -> None:
        """Update the legend, as the Samples pane does."""
        self.query_one(TokenLegend).refresh(layout=True)

    def _display(self, screen: Screen[object], renderable: RenderableType | None) -> None:
        super()._display(screen, renderable)
        self.painted.set()


async def painted(app: Probe, pilot: Pilot[None], act: Callable[[], object]) -> tuple[float, float]:
    """Call `act` and return the milliseconds until its frame is painted: by the clock, and of CPU time."""
    await pilot.pause()
    app.painted.clear()
    began, worked = time.perf_counter(), time.process_time()
    act()
    await app.painted.wait()
    return 1e3 * (time.perf_counter() - began), 1e3 * (time.process_time() - worked)


async def measure(tokens: int, rounds: int) -> None:
    """Print the medians for samples of `tokens` tokens."""
    samples = [token_sample(row=row, length=tokens) for row in range(rounds + 1)]
    taken: dict[str, list[tuple[float, float]]] = {"show": [], "channel": [], "page": []}
    app = Probe()
    async with app.run_test(size=SIZE) as pilot:
        apply_themes(app, load_themes(Path())[0])
        app.theme = "workbench"
        text = app.query_one(TokenText)
        text.focus()

        def channel(name: str) -> Callable[[], None]:
            return lambda: setattr(text, "channel", name)

        def show(sample: TokenSample) -> Callable[[], None]:
            return lambda: text.show(sample)

        for sample in samples:
            taken["show"].append(await painted(app, pilot, show(sample)))
            for name in ("kl", "entropy", "advantage"):
                taken["channel"].append(await painted(app, pilot, channel(name)))
            for _ in range(5):
                taken["page"].append(await painted(app, pilot, lambda: text.action_page(1)))
    print(f"{tokens} tokens, median of {rounds} rounds: ms to the frame (CPU time)")
    for action, times in taken.items():
        warm = times[len(times) // len(samples) :]  # the first round is a warm-up
        target = f"   target {TARGETS[action]} ms" if action in TARGETS and tokens == 4096 else ""
        print(f"  {action:8} {median(t for t, _ in warm):7.1f} ({median(cpu for _, cpu in warm):5.1f}){target}")


def main() -> None:
    """Measure samples of 4,096 and of 10,000 tokens."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15, help="samples of each length (default: %(default)s)")
    rounds = parser.parse_args().rounds
    print(f"load {os.getloadavg()[0]:.1f}")
    for tokens in (4096, 10_000):
        asyncio.run(measure(tokens, rounds))


if __name__ == "__main__":
    main()
