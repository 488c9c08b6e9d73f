"""Configurations that can be opened, and opening, saving and reloading them without blocking the screen."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from textual.widgets import Input, OptionList
from waiting import until
from workbench_app import press_when_asked, screen_text, workbench

from trainer.config import preset_names
from workbench.config import files as documents
from workbench.config.document import ConfigDocument
from workbench.config.files import sources
from workbench.config.pane import ConfigPane
from workbench.kit.dialog import AnswerScreen, TextPromptScreen
from workbench.screen.dialogs import UnsavedScreen

MINE = "# Mine learns\n# to rhyme.\n\n[ppo]\nepochs = 2\n"


def test_presets_and_the_configurations_of_a_folder_are_listed_with_their_purpose(tmp_path: Path) -> None:
    folder = tmp_path / "more"
    folder.mkdir()
    (folder / "mine.toml").write_text(MINE)
    (folder / "bare.toml").write_text("[model]\n")
    (folder / "pyproject.toml").write_text("[project]\n")
    (folder / "broken.toml").write_text("= 1")
    (folder / "folder.toml").mkdir()
    (folder / ".hidden.toml").write_text(MINE)
    found = sources(folder, folder / "..", folder / ".." / "more", tmp_path / "absent")
    presets = [one for one in found if one.folder is None]
    assert [one.name for one in presets] == preset_names()
    assert all(len(one.purpose.split()) > 5 for one in presets)
    own = [(one.source, one.name, one.folder, one.purpose) for one in found if one.folder is not None]
    assert own == [
        (str(folder / "bare.toml"), "bare.toml", folder, ""),
        (str(folder / "mine.toml"), "mine.toml", folder, "Mine learns to rhyme."),
    ]


def test_what_is_edited_while_a_thread_writes_the_file_stays_unsaved(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(MINE)
    document = ConfigDocument.open(path)
    document.set("ppo.epochs", 3)
    write = document.to_save(path)
    document.set("ppo.epochs", 4)
    document.saved(*write())
    assert "epochs = 3" in path.read_text()
    assert document.dirty
    assert document.changes["ppo.epochs"].unsaved
    document.saved(*document.to_save()())  # nobody else has written the file
    assert "epochs = 4" in path.read_text()
    assert not document.dirty


async def test_a_file_is_opened_over_unsaved_changes_after_one_question_and_no_file_blocks_the_screen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Path("mine.toml").write_text(MINE)
    threads: list[threading.Thread] = []

    def noted(name: str) -> None:
        real = getattr(documents, name)
        monkeypatch.setattr(
            documents, name, lambda *more, **how: (threads.append(threading.current_thread()), real(*more, **how))[1]
        )

    async with workbench(pane="config") as (screen, pilot):
        noted("read_source")
        noted("whole_file")
        pane = screen.query_one(ConfigPane)

        async def choose(wanted: str) -> None:
            await pilot.press("p")
            await until(pilot, lambda: isinstance(screen.app.screen, AnswerScreen))
            options = screen.app.screen.query_one(OptionList)
            titles = [str(option.prompt) for option in options.options]
            assert "in this folder: Mine learns to rhyme." in "\n".join(titles)
            options.highlighted = next(place for place, title in enumerate(titles) if title.startswith(wanted))
            await until(pilot, lambda: wanted in screen_text(screen.app.screen))  # type: ignore[arg-type]
            await pilot.press("enter")

        pane.document.set("ppo.epochs", 9)
        for answer, epochs in (("n", 9), ("y", 2)):
            await choose("mine.toml")
            await until(pilot, lambda: isinstance(screen.app.screen, UnsavedScreen))
            await press_when_asked(pilot, answer)
            await until(pilot, lambda: screen.app.screen is screen)
            assert pane.document.get("ppo.epochs") == epochs
        for number in range(40):  # more than the screen has lines
            Path(f"mine-{number}.toml").write_text(MINE)
        await choose("another file")
        await until(pilot, lambda: isinstance(screen.app.screen, TextPromptScreen))
        screen.app.screen.query_one(Input).value = "absent.toml"
        await pilot.press("enter")
        refused = "no preset or file 'absent.toml'"
        await until(pilot, lambda: refused in str(screen.app.screen.query_one(".detail").render()))
        await pilot.press("escape")
        await until(pilot, lambda: screen.app.screen is screen)
        pane.document.set("ppo.epochs", 5)
        await pilot.press("w")
        await until(pilot, lambda: not pane.document.dirty)
        assert "epochs = 5" in Path("mine.toml").read_text()
        assert threads
        assert threading.main_thread() not in threads
