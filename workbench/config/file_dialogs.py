"""Dialogs that open and save the configuration of the pane, and ask before anything is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from textual.app import App
from textual.notifications import SeverityLevel

from trainer.errors import TrainerError
from trainer.plurals import counted
from workbench.config.document import ConfigDocument
from workbench.config.files import OverwriteError, Source, read_text, sources
from workbench.kit.dialog import Answer, AnswerScreen, TextPromptScreen
from workbench.kit.file_names import no_name
from workbench.kit.wait_screen import WaitScreen
from workbench.text import visible


class Editor(Protocol):
    """Widget that edits a configuration, as far as the dialogs use it."""

    @property
    def app(self) -> App[Any]: ...
    @property
    def document(self) -> ConfigDocument: ...
    def notify(self, message: str, *, severity: SeverityLevel = "information", markup: bool = True) -> None: ...
    def run_worker(self, work: Any, *, group: str) -> object: ...
    def take_typed(self) -> None: ...
    def document_changed(self) -> None: ...
    def refresh_view(self) -> None: ...


class FileDialogs:
    """Open, save and save as for the document of `pane`. open_source: requests that the app opens another one."""

    def __init__(self, pane: Editor, open_source: Callable[[str], object]) -> None:
        self._pane = pane
        self._open_source = open_source
        self._writing = asyncio.Lock()  # two saves at once would each take the other's for another program's

    @property
    def _document(self) -> ConfigDocument:
        return self._pane.document

    def open(self) -> None:
        """Choose a preset or a file."""
        self._pane.app.push_screen(WaitScreen(self._open))

    async def _open(self) -> None:
        app, path = self._pane.app, self._document.path
        found = await asyncio.to_thread(sources, Path(), *([path.parent] if path else []))
        answers = [Answer(one.source, one.name, _about(one)) for one in found] + [Answer("", "another file …")]
        source = await app.push_screen_wait(AnswerScreen("Open a configuration", answers))
        if source == "":
            folder = f"{path.parent}/" if path else ""
            name = await app.push_screen_wait(TextPromptScreen("Open a file", folder, no_name, _unreadable))
            source = name and name.strip()
        if source:
            self._open_source(source)

    def save(self, then: Callable[[], object] = lambda: None) -> None:
        """Save the file; save a preset or a copy as a new file. Call `then` once nothing is unsaved."""
        if (path := self._document.path) is None:
            self.save_as(then)
        else:
            self._pane.run_worker(self._save(path, then), group="save")

    def save_as(self, then: Callable[[], object] = lambda: None) -> None:
        """Ask for a name and save the document under it; call `then` once that is done."""
        path = self._document.path or Path(f"my-{self._document.preset or 'run'}.toml")

        def saved(name: str | None) -> None:
            if name is not None:
                then()

        self._pane.app.push_screen(TextPromptScreen("Save as", str(path), no_name, self._save_as), saved)

    async def _save(self, path: Path, then: Callable[[], object]) -> None:
        if problem := await self._problem_of_saving(path):
            self._pane.notify(visible(problem), severity="error", markup=False)
        elif not self._document.dirty:
            then()

    async def _save_as(self, name: str) -> str:
        path = Path(name.strip())
        return await self._problem_of_saving(path, f"{path} exists: choose another name")

    async def _problem_of_saving(self, path: Path, kept: str = "") -> str:
        """Save the document; return why that failed. kept: the result if the user keeps the existing file."""
        document = self._document
        try:
            try:
                await self._write(document, path)
            except OverwriteError as error:
                if not await self._is_settled(error, document, path):
                    return kept
        except TrainerError as error:
            return str(error)
        return ""

    async def _is_settled(self, error: OverwriteError, document: ConfigDocument, path: Path) -> bool:
        """Ask what to do about the existing file, and do it; return False if the user cancels."""
        answers = [Answer("stay", "Cancel", "keep the file"), Answer("overwrite", "Overwrite", "replace the file")]
        if error.path == document.path:
            answers.insert(1, Answer("reload", "Reload", "from disk; undo restores your changes"))
        match await self._pane.app.push_screen_wait(AnswerScreen(str(error), answers)):
            case "overwrite":
                await self._write(document, path, overwrite=True)
            case "reload":
                document.replace(*await asyncio.to_thread(read_text, error.path, str(error.path)))
                self._pane.document_changed()
            case _:
                return False
        return True

    async def _write(self, document: ConfigDocument, path: Path, *, overwrite: bool = False) -> None:
        """Write the document, with the text that was just typed, in a thread. Raises TrainerError."""
        async with self._writing:
            self._pane.take_typed()
            save = document.to_save(path)
            document.saved(await asyncio.to_thread(save.write, overwrite=overwrite))
        problems = len(document.problems)
        suffix = f", with {counted(problems, 'problem')}" if problems else ""
        self._pane.notify(f"Saved {visible(str(document.path))}{suffix}", markup=False)
        self._pane.refresh_view()


def _about(source: Source) -> str:
    place = "preset" if source.folder is None else f"in {source.folder}/" if source.folder.parts else "in this folder"
    return f"{place}: {source.purpose}" if source.purpose else place


async def _unreadable(text: str) -> str:
    """Return why the file cannot be opened, or ""; the form shows problems in the configuration itself."""
    try:
        await asyncio.to_thread(ConfigDocument.open, text.strip())
    except TrainerError as error:
        return str(error)
    return ""
