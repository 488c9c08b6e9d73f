"""Helpers for the tests of the labelling screens: an application with nothing else, and stores to show."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path, PurePath
from typing import Any, ClassVar

from preferences_helper import add_label
from textual import events
from textual.app import App
from textual.pilot import Pilot
from textual.screen import Screen
from textual.widgets import Input, Static
from waiting import until

from trainer.preferences.records import Comparison, Judgement, Preference
from trainer.preferences.store import PreferenceStore
from workbench.kit.theming import ALL_STYLES, ThemedApp

SMALL, USUAL, WIDE = (60, 20), (80, 24), (120, 36)
SIZES = [SMALL, USUAL, WIDE]
HOSTILE = "[/x] \x1b[31m [@click=app.quit]go[/] \u202e\x9b"
NOTHING = object()


class Host(ThemedApp[None]):
    """Application with one screen, whose answer is in `answer`; NOTHING while it is open."""

    CSS_PATH: ClassVar[list[str | PurePath]] = [*ALL_STYLES]
    answer: Any = NOTHING

    def on_mount(self) -> None:
        self.animation_level = "none"

    def take(self, answer: object) -> None:
        self.answer = answer

    async def answered(self, pilot: Pilot[None]) -> Any:
        """Return the answer, once there is one."""
        await until(pilot, lambda: self.answer is not NOTHING)
        return self.answer


@asynccontextmanager
async def opened(screen: Screen[Any], size: tuple[int, int] = WIDE) -> AsyncIterator[tuple[Host, Pilot[None]]]:
    app = Host()
    async with app.run_test(size=size) as pilot:
        app.push_screen(screen, app.take)
        await pilot.pause()
        yield app, pilot


async def answer_to(screen: Screen[Any], *keys: str) -> Any:
    """Return what `screen` answers to these keys."""
    async with opened(screen) as (app, pilot):
        await pilot.press(*keys)
        return await app.answered(pilot)


def text_of(app: App[Any]) -> str:
    """Return the terminal's text, line by line."""
    strips = app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in strip).rstrip() for strip in strips)


async def paste(pilot: Pilot[Any], field: Input, text: str) -> None:
    """Replace the text of a field, as pasting on a terminal would."""
    field.focus()
    field.value = ""
    pilot.app.post_message(events.Paste(text))
    await until(pilot, lambda: bool(field.value) or not text)


def status(app: App[Any]) -> str:
    """Return the line that says what enter does, or what is wrong."""
    return str(app.screen.query_one("#status", Static).render())


def keep(store: Path, choices: Sequence[str]) -> None:
    """Put a labelled pair into the store for each choice."""
    with PreferenceStore(store) as opened_store:
        for number, choice in enumerate(choices):
            comparison = Comparison(prompt=f"prompt {number}", completions=("x", "y"))
            judgement = Judgement.chosen(choice, labeller="ann")  # type: ignore[arg-type]
            add_label(opened_store, Preference(comparison=comparison, judgement=judgement))


def kept(store: Path) -> list[Preference]:
    """Return the contents of the store."""
    with PreferenceStore(store, create=False) as opened_store:
        return list(opened_store.preferences(with_skips=True))


def is_obeyed(shown: str) -> bool:
    """Return whether control characters of a text reached the terminal."""
    return bool({"\x1b", "\x9b", "\u202e", "\r"} & set(shown))
