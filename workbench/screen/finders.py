"""Finders of the command palette for runs, settings, presets, samples and the documentation."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import ClassVar

from textual.command import Provider

from workbench.config.fields import search
from workbench.config.files import sources
from workbench.config.pane import ConfigPane
from workbench.kit.command_provider import Finder, PaletteEntry, around
from workbench.kit.help import DocsFinder
from workbench.run.run_listing import read_runs
from workbench.runs.pane import RunsPane
from workbench.samples.pane import SamplesPane
from workbench.text import has_words, score_text


class RunFinder(Finder):
    """Finder of the runs in the folder that the Runs pane lists."""

    KIND: ClassVar[str] = "run"

    async def find(self, words: str) -> list[PaletteEntry]:
        pane = self.screen.query_one(RunsPane)
        listing = await asyncio.to_thread(read_runs, pane.runs_dir)
        return [
            PaletteEntry(run.name, detail, partial(pane.post_message, RunsPane.Requested("open", run.folder.root)))
            for run in (listing.runs if listing else ())
            if has_words(f"{run.name} {(detail := f'{run.state}   {run.model}   {run.reward}')}", words)
        ]


class SettingFinder(Finder):
    """Finder of the settings of the configuration."""

    KIND: ClassVar[str] = "setting"

    async def find(self, words: str) -> list[PaletteEntry]:
        show = self.screen.query_one(ConfigPane).focus_field
        return [
            PaletteEntry(field.key, field.help, self.at("config", partial(show, field.key))) for field in search(words)
        ]


class PresetFinder(Finder):
    """Finder of the presets, while another configuration can be opened."""

    KIND: ClassVar[str] = "preset"

    async def find(self, words: str) -> list[PaletteEntry]:
        pane = self.screen.query_one(ConfigPane)
        if not pane.check_action("open", ()):
            return []
        return [
            PaletteEntry(
                preset.name,
                preset.purpose,
                self.at("config", partial(pane.post_message, ConfigPane.OpenRequested(preset.name))),
            )
            for preset in await asyncio.to_thread(sources)
            if has_words(f"{preset.name} {preset.purpose}", words)
        ]


class SampleFinder(Finder):
    """Finder of the samples that the Samples pane has read."""

    KIND: ClassVar[str] = "sample"

    async def find(self, words: str) -> list[PaletteEntry]:
        pane = self.screen.query_one(SamplesPane)
        return [
            PaletteEntry(
                around(sample.prompt + sample.completion, words),
                f"iteration {sample.key.iteration}, row {sample.key.row + 1}, {score_text(sample.score)}",
                self.at("samples", partial(pane.open_sample, sample.key)),
            )
            for sample in await pane.find(words, self.MOST)
        ]


FINDERS: tuple[type[Provider], ...] = (RunFinder, SettingFinder, PresetFinder, SampleFinder, DocsFinder)
