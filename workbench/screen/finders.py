"""Finders of the command palette for runs, settings, presets, samples and the documentation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from textual.command import Hit, Hits, Provider
from textual.content import Content
from textual.screen import Screen

from workbench.config.fields import search
from workbench.config.files import sources
from workbench.config.pane import ConfigPane
from workbench.kit.command_provider import PaletteEntry, around, palette_line, rank
from workbench.kit.help import find_pages
from workbench.run.run_listing import read_runs
from workbench.runs.pane import RunsPane
from workbench.samples.pane import SamplesPane
from workbench.text import has_words, score_text, visible

_MOST = 20  # lines of a kind
_LONGEST = 500  # characters of a name or a detail


async def find_runs(screen: Screen[object], words: str) -> list[PaletteEntry]:
    """Find runs in the folder that the Runs pane lists."""
    pane = screen.query_one(RunsPane)
    listing = await asyncio.to_thread(read_runs, pane.runs_dir)
    return [
        PaletteEntry(run.name, detail, partial(pane.post_message, RunsPane.Requested("open", run.folder.root)))
        for run in (listing.runs if listing else ())
        if has_words(f"{run.name} {(detail := f'{run.state}   {run.model}   {run.reward}')}", words)
    ]


async def find_settings(screen: Screen[object], words: str) -> list[PaletteEntry]:
    """Find settings of the configuration."""
    show = screen.query_one(ConfigPane).focus_field
    return [PaletteEntry(one.key, one.help, partial(show, one.key), "config") for one in search(words)]


async def find_presets(screen: Screen[object], words: str) -> list[PaletteEntry]:
    """Find presets, while another configuration can be opened."""
    pane = screen.query_one(ConfigPane)
    found = await asyncio.to_thread(sources) if pane.check_action("open", ()) else []
    return [
        PaletteEntry(name, about, partial(pane.post_message, ConfigPane.OpenRequested(name)), "config")
        for name, about in ((preset.name, preset.purpose) for preset in found)
        if has_words(f"{name} {about}", words)
    ]


async def find_samples(screen: Screen[object], words: str) -> list[PaletteEntry]:
    """Find samples that the Samples pane has read."""
    pane = screen.query_one(SamplesPane)
    return [
        PaletteEntry(
            around(sample.prompt + sample.completion, words),
            f"iteration {sample.key.iteration}, row {sample.key.row + 1}, {score_text(sample.score)}",
            partial(pane.open_sample, sample.key),
            "samples",
        )
        for sample in await pane.find(words, _MOST)
    ]


FINDERS: dict[str, Callable[[Screen[object], str], Awaitable[Sequence[PaletteEntry]]]] = {
    "setting": find_settings,
    "preset": find_presets,
    "docs": find_pages,
    "run": find_runs,
    "sample": find_samples,
}
"""A function for each kind of thing: it returns those with all of the words, best first. The slowest are last."""


class Finder(Provider):
    """Provider of settings, presets, pages of the documentation, runs and samples. Their lines end with the kind."""

    async def search(self, query: str) -> Hits:
        first, _, rest = query.partition(" ")
        for kind, find in FINDERS.items():
            words = rest if first.casefold() == kind else query
            for place, found in enumerate((await find(self.screen, words))[:_MOST]):
                name, detail = (visible(text[:_LONGEST]) for text in (found.name, found.detail))
                line = palette_line(self.app, Content(name), detail, kind)
                yield Hit(rank(kind, name, query) - place, line, partial(self._open, found), text=f"{kind} {name}")

    async def _open(self, found: PaletteEntry) -> None:
        if found.pane:
            await self.app.run_action(f"screen.show_pane({found.pane!r})")
        found.open()
