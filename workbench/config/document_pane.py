"""Pane that opens and saves a configuration, and asks before anything is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import ClassVar

from textual import work
from textual.binding import Binding, BindingType
from textual.message import Message

from trainer.config import preset_names
from trainer.errors import TrainerError
from workbench.config.document import ConfigDocument, OverwriteError
from workbench.kit.answer_screen import Answer, AnswerScreen
from workbench.kit.pane import Pane
from workbench.kit.text_prompt import TextPromptScreen
from workbench.text import visible


class DocumentPane(Pane):
    """Pane that edits and saves a document; the app opens another one."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("w,ctrl+s", "save", "save", id="config.save", tooltip="Save the file; a preset as a file of your own"),
        Binding("W", "save_as", "save as", show=False, id="config.save-as", tooltip="Save under another name"),
        Binding("o", "open", "open", id="config.open", tooltip="Open a preset or another file"),
    ]

    class OpenRequested(Message):
        """Request to edit another preset or file; unsaved changes may be discarded."""

        def __init__(self, source: str) -> None:
            super().__init__()
            self.source = source

    class Saved(Message):
        """The document was written to `path`."""

        def __init__(self, path: Path) -> None:
            super().__init__()
            self.path = path

    def __init__(self, document: ConfigDocument, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.document = document

    def take_typed(self) -> None:
        """Copy text that was just typed into the document, before it is saved."""

    def document_changed(self) -> None:
        """Show the document again, because it was reloaded from its file."""

    def document_saved(self) -> None:
        """Update what depends on unsaved changes, because the document was saved."""

    def action_open(self) -> None:
        """Choose a preset or a file."""
        answers = [Answer(name, name, "preset") for name in preset_names()] + [Answer("", "another file …")]
        self.app.push_screen(AnswerScreen("Open which configuration?", answers), self._open)

    def _open(self, source: str | None) -> None:
        if source == "":
            folder = str(self.document.path.parent) + "/" if self.document.path else ""
            self.app.push_screen(TextPromptScreen("Open which file?", folder, _no_file, _unreadable), self._open_file)
        elif source is not None and self.document.dirty:
            answers = [Answer("go", "Open", "the changes are lost"), Answer("stay", "Go on editing")]
            question = f"{self.document.name} has unsaved changes"

            def act(answer: str | None) -> None:
                if answer == "go":
                    self.post_message(self.OpenRequested(source))

            self.app.push_screen(AnswerScreen(question, answers), act)
        elif source is not None:
            self.post_message(self.OpenRequested(source))

    def _open_file(self, name: str | None) -> None:
        if name is not None:
            self._open(name.strip())

    def action_save(self) -> None:
        """Save the file; save a preset or a copy as a new file."""
        if self.document.path is None:
            self.action_save_as()
            return
        try:
            self._write(self.document.save)
        except OverwriteError as error:
            self._settle(error)
        except TrainerError as error:
            self._complain(error)

    def action_save_as(self) -> None:
        async def save(name: str) -> str:
            path = Path(name.strip())
            write = partial(self.document.save_as, path)
            try:
                self._write(write)
            except OverwriteError as error:
                try:
                    settled = await self._is_settled(error, write)
                except TrainerError as worse:
                    return str(worse)
                return "" if settled else f"{path} is there already: choose another name"
            except TrainerError as error:
                return str(error)
            return ""

        path = self.document.path or Path(f"my-{self.document.preset or 'run'}.toml")
        self.app.push_screen(TextPromptScreen("Save as", str(path), _no_name, save))

    def _write(self, save: Callable[..., None], *, overwrite: bool = False) -> None:
        """Save the document with the text that was just typed. Raises TrainerError."""
        self.take_typed()
        save(overwrite=overwrite)
        self._tell_saved()

    @work(exclusive=True, group="save")
    async def _settle(self, error: OverwriteError) -> None:
        try:
            await self._is_settled(error, self.document.save)
        except TrainerError as worse:
            self._complain(worse)

    async def _is_settled(self, error: OverwriteError, save: Callable[..., None]) -> bool:
        """Ask what to do about the existing file, and do it; return False if the user cancels."""
        match await self.app.push_screen_wait(AnswerScreen(str(error), self._ways_out(error))):
            case "overwrite":
                self._write(save, overwrite=True)
            case "reload":
                self.document.reload()
                self.document_changed()
            case _:
                return False
        return True

    def _complain(self, error: TrainerError) -> None:
        self.notify(visible(str(error)), severity="error", markup=False)

    def _ways_out(self, error: OverwriteError) -> list[Answer]:
        answers = [Answer("stay", "Cancel", "leave the file alone"), Answer("overwrite", "Overwrite", "it is lost")]
        if error.path == self.document.path:
            answers.insert(1, Answer("reload", "Take it over", "edit what it says now; undo goes back"))
        return answers

    def _tell_saved(self) -> None:
        assert self.document.path is not None
        count = len(self.document.problems)
        problems = f", with {count} problem{'s' * (count > 1)}" if count else ""
        self.notify(f"saved {visible(str(self.document.path))}{problems}", markup=False)
        self.post_message(self.Saved(self.document.path))
        self.document_saved()


def _no_name(text: str) -> str:
    return "" if text.strip() else "must not be empty"


def _no_file(text: str) -> str:
    try:
        return "" if Path(text.strip()).expanduser().is_file() else "no such file"
    except RuntimeError:
        return "no such home folder"


async def _unreadable(text: str) -> str:
    """Return why the file cannot be opened, or ""; the form shows problems in the configuration itself."""
    try:
        await asyncio.to_thread(ConfigDocument.open, text.strip())
    except TrainerError as error:
        return str(error)
    return ""
