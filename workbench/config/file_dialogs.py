"""Dialogs that open and save the configuration of the pane, and ask before anything is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from textual.app import App
from textual.notifications import SeverityLevel

from trainer.config import preset_names
from trainer.errors import TrainerError
from trainer.plurals import counted
from workbench.config.document import ConfigDocument, OverwriteError
from workbench.kit.dialog import Answer, AnswerScreen, TextPromptScreen
from workbench.kit.wait_screen import WaitScreen
from workbench.text import visible


class Editor(Protocol):
    """Widget that edits a configuration, as far as the dialogs use it."""

    @property
    def app(self) -> App[Any]: ...
    @property
    def document(self) -> ConfigDocument: ...
    def notify(self, message: str, *, severity: SeverityLevel = "information", markup: bool = True) -> None: ...
    def take_typed(self) -> None: ...
    def document_changed(self) -> None: ...
    def refresh_view(self) -> None: ...


class FileDialogs:
    """Open, save and save as for the document of `pane`. open_source: requests that the app opens another one."""

    def __init__(self, pane: Editor, open_source: Callable[[str], object]) -> None:
        self._pane = pane
        self._open_source = open_source

    @property
    def _document(self) -> ConfigDocument:
        return self._pane.document

    def open(self) -> None:
        """Choose a preset or a file."""
        self._pane.app.push_screen(WaitScreen(self._open))

    async def _open(self) -> None:
        app = self._pane.app
        answers = [Answer(name, name, "preset") for name in preset_names()] + [Answer("", "another file …")]
        source = await app.push_screen_wait(AnswerScreen("Open a configuration", answers))
        if source == "":
            folder = f"{self._document.path.parent}/" if self._document.path else ""
            name = await app.push_screen_wait(TextPromptScreen("Open a file", folder, _no_file, _unreadable))
            source = name and name.strip()
        if source and self._document.dirty:
            answers = [Answer("open", "Open", "discard the changes"), Answer("stay", "Keep editing")]
            question = AnswerScreen(f"{self._document.name} has unsaved changes", answers)
            if await app.push_screen_wait(question) != "open":
                return
        if source:
            self._open_source(source)

    def save(self) -> None:
        """Save the file; save a preset or a copy as a new file."""
        if self._document.path is None:
            self.save_as()
            return
        try:
            self._write(self._document.save)
        except OverwriteError as error:
            self._pane.app.push_screen(WaitScreen(partial(self._overwrite, error)))
        except TrainerError as error:
            self._show_error(error)

    def save_as(self) -> None:
        """Ask for a name and save the document under it."""
        path = self._document.path or Path(f"my-{self._document.preset or 'run'}.toml")
        self._pane.app.push_screen(TextPromptScreen("Save as", str(path), _no_name, self._save_as))

    async def _save_as(self, name: str) -> str:
        path = Path(name.strip())
        save = partial(self._document.save_as, path)
        try:
            try:
                self._write(save)
            except OverwriteError as error:
                if not await self._is_settled(error, save):
                    return f"{path} exists: choose another name"
        except TrainerError as error:
            return str(error)
        return ""

    async def _overwrite(self, error: OverwriteError) -> None:
        try:
            await self._is_settled(error, self._document.save)
        except TrainerError as worse:
            self._show_error(worse)

    async def _is_settled(self, error: OverwriteError, save: Callable[..., None]) -> bool:
        """Ask what to do about the existing file, and do it; return False if the user cancels."""
        answers = [Answer("stay", "Cancel", "keep the file"), Answer("overwrite", "Overwrite", "replace the file")]
        if error.path == self._document.path:
            answers.insert(1, Answer("reload", "Reload", "from disk; undo restores your changes"))
        match await self._pane.app.push_screen_wait(AnswerScreen(str(error), answers)):
            case "overwrite":
                self._write(save, overwrite=True)
            case "reload":
                self._document.reload()
                self._pane.document_changed()
            case _:
                return False
        return True

    def _write(self, save: Callable[..., None], *, overwrite: bool = False) -> None:
        """Save the document with the text that was just typed. Raises TrainerError."""
        self._pane.take_typed()
        save(overwrite=overwrite)
        problems = len(self._document.problems)
        suffix = f", with {counted(problems, 'problem')}" if problems else ""
        self._pane.notify(f"Saved {visible(str(self._document.path))}{suffix}", markup=False)
        self._pane.refresh_view()

    def _show_error(self, error: TrainerError) -> None:
        self._pane.notify(visible(str(error)), severity="error", markup=False)


def _no_name(text: str) -> str:
    return "" if text.strip() else "Enter a file name"


def _no_file(text: str) -> str:
    try:
        return "" if Path(text.strip()).expanduser().is_file() else "No such file"
    except RuntimeError:
        return "No such home folder"


async def _unreadable(text: str) -> str:
    """Return why the file cannot be opened, or ""; the form shows problems in the configuration itself."""
    try:
        await asyncio.to_thread(ConfigDocument.open, text.strip())
    except TrainerError as error:
        return str(error)
    return ""
