"""Configurations that can be opened, and the dialogs that open and save one and ask before anything is lost."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from trainer.config import PRESETS, Config, preset_names
from trainer.errors import TrainerError, UsageError
from trainer.files import parse_toml, read_given
from trainer.plurals import counted
from workbench.config.changes import ConfigEditor
from workbench.config.document import ConfigDocument, OverwriteError, read_text
from workbench.kit.dialog import AnswerScreen, Reply, TextPromptScreen
from workbench.kit.saving import no_name
from workbench.text import visible

_MOST = 50  # files of a folder that are looked into


class Source(NamedTuple):
    """A preset or a file that can be opened."""

    source: str
    name: str
    folder: Path | None
    """None for a preset."""
    purpose: str


def sources(*folders: Path) -> list[Source]:
    """Return the presets, then the configurations in `folders`, with the purpose that their first comment gives."""
    found = [Source(name, name, None, _purpose(PRESETS / f"{name}.toml")) for name in preset_names()]
    seen = set[Path]()
    for folder in folders:
        if (real := folder.resolve()) not in seen:
            seen.add(real)
            paths = [path for path in _toml_files(folder) if _is_configuration(path)]
            found += [Source(str(path), path.name, folder, _purpose(path)) for path in paths]
    return found


def _toml_files(folder: Path) -> Iterable[Path]:
    with contextlib.suppress(OSError):
        paths = [path for path in folder.iterdir() if path.suffix == ".toml" and not path.name.startswith(".")]
        return sorted(paths)[:_MOST]
    return ()


def _is_configuration(path: Path) -> bool:
    try:
        return bool(parse_toml(read_given(path)).keys() & Config.model_fields.keys())
    except (OSError, ValueError):
        return False


def _purpose(path: Path) -> str:
    """Return the comment at the start of the file, in one line; empty if there is none."""
    with contextlib.suppress(UsageError):
        lines = takewhile(lambda line: line.startswith("#"), read_text(path, str(path))[0].split("\n"))
        return " ".join(line.strip("# \t") for line in lines)
    return ""


def open_another(pane: ConfigEditor) -> None:
    """Let the user choose a preset or a file, and ask the app to open it."""
    path = pane.document.path

    async def ask() -> None:
        found = await asyncio.to_thread(sources, Path(), *([path.parent] if path else []))
        answers = [Reply(one.source, one.name, _about(one)) for one in found] + [Reply("", "another file …")]
        source = await pane.app.push_screen_wait(AnswerScreen("Open a configuration", answers))
        if source == "":
            folder = f"{path.parent}/" if path else ""
            source = await pane.app.push_screen_wait(TextPromptScreen("Open a file", folder, no_name, _unreadable))
        if source:
            pane.request_open(source.strip())

    pane.run_worker(ask(), group="dialog", exclusive=True)


def save(pane: ConfigEditor, then: Callable[[], object] = lambda: None) -> None:
    """Save the pane's file; save a preset or a copy as a new file. Call `then` once nothing is unsaved."""
    if (path := pane.document.path) is None:
        save_as(pane, then)
        return

    async def write() -> None:
        if problem := await _problem_of_saving(pane, path):
            pane.notify(visible(problem), severity="error", markup=False)
        elif not pane.document.dirty:
            then()

    pane.run_worker(write(), group="save")


def save_as(pane: ConfigEditor, then: Callable[[], object] = lambda: None) -> None:
    """Ask for a name and save the document under it; call `then` once that is done."""
    path = pane.document.path or Path(f"my-{pane.document.preset or 'run'}.toml")

    async def write(name: str) -> str:
        path = Path(name.strip())
        return await _problem_of_saving(pane, path, f"{path} exists: choose another name")

    def saved(name: str | None) -> None:
        if name is not None:
            then()

    pane.app.push_screen(TextPromptScreen("Save as", str(path), no_name, write), saved)


async def _problem_of_saving(pane: ConfigEditor, path: Path, kept: str = "") -> str:
    """Save the document; return why that failed. kept: the result if the user keeps the existing file."""
    document = pane.document
    try:
        try:
            await _write(pane, document, path)
        except OverwriteError as error:
            answers = [
                Reply("stay", "Cancel", "keep the file"),
                Reply("overwrite", "Overwrite", "replace the file"),
            ]
            if error.path == document.path:
                answers.insert(1, Reply("reload", "Reload", "from disk; undo restores your changes"))
            match await pane.app.push_screen_wait(AnswerScreen(str(error), answers)):
                case "overwrite":
                    await _write(pane, document, path, overwrite=True)
                case "reload":
                    document.replace(*await asyncio.to_thread(read_text, error.path, str(error.path)))
                    pane.document_changed()
                case _:
                    return kept
    except TrainerError as error:
        return str(error)
    return ""


async def _write(pane: ConfigEditor, document: ConfigDocument, path: Path, *, overwrite: bool = False) -> None:
    """Write the document, with the text that was just typed, in a thread. Raises TrainerError."""
    async with pane.writing:
        pane.take_typed()
        document.saved(await asyncio.to_thread(document.to_save(path, overwrite=overwrite)))
    problems = len(document.problems)
    suffix = f", with {counted(problems, 'problem')}" if problems else ""
    pane.notify(f"Saved {visible(str(document.path))}{suffix}", markup=False)
    pane.refresh_view()


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
