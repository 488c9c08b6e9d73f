"""Files, sizes, hostile text and other kinds of run in the Config pane."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest
from config_app import Session, opened, settings
from config_files import save_config
from textual.widgets import Input, OptionList
from waiting import until
from workbench_app import press_when_asked, screen_text, workbench

from trainer.config import preset_names
from trainer.config.pairs import DPOConfig
from workbench.config import files as documents
from workbench.config.document import ConfigDocument
from workbench.config.files import sources
from workbench.config.form import ConfigForm
from workbench.config.pane import ConfigPane
from workbench.config.rows import ConfigRows
from workbench.config.views import TomlView
from workbench.kit.cursor_list import FilterField
from workbench.kit.dialog import AnswerScreen
from workbench.screen.dialogs import UnsavedScreen

HOSTILE = "[/x] [@click=app.quit]x[/] [red]\x1b[31m\u202e"
NARROW = (38, 30)


# Files


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text("schema = 1\n[ppo]\nepochs = 2  # two\n")
    return path


async def test_a_file_is_saved_and_a_preset_under_a_name_that_is_asked_for(mine: Path, tmp_path: Path) -> None:
    async with opened(str(mine)) as s:
        await s.go_to("ppo.epochs")
        await s.press("right")
        assert "*unsaved" in s.text()
        await s.press("w")
        await until(s.pilot, lambda: s.notices() == [f"Saved {mine}"])
        assert mine.read_text() == "schema = 1\n[ppo]\nepochs = 3  # two\n"
        assert "*unsaved" not in s.text()
        s.pane.show_document(ConfigDocument.open("quickstart"))
        await s.press("w")
        line = s.app.screen.query_one(Input)
        assert line.value == "my-quickstart.toml"
        line.value = str(tmp_path / "new.toml")
        await s.press("enter")
        await until(s.pilot, lambda: s.document.path == tmp_path / "new.toml")
        assert (tmp_path / "new.toml").exists()
        assert s.notices()[1:] == [f"Saved {tmp_path / 'new.toml'}"]


async def answer(s: Session, wanted: str) -> None:
    """Choose the answer whose text begins with `wanted`, once it is asked."""
    await until(s.pilot, lambda: isinstance(s.app.screen, AnswerScreen) and bool(s.app.screen.query(OptionList)))
    options = s.app.screen.query_one(OptionList)
    titles = [str(option.prompt) for option in options.options]
    options.highlighted = next(place for place, title in enumerate(titles) if title.startswith(wanted))
    await s.press("enter")


@pytest.mark.parametrize(("wanted", "on_disk", "epochs"), [("Cancel", 7, 3), ("Overwrite", 3, 3), ("Reload", 7, 7)])
async def test_overwriting_a_file_that_changed_meanwhile_needs_consent(
    wanted: str, on_disk: int, epochs: int, mine: Path
) -> None:
    async with opened(str(mine)) as s:
        await s.go_to("ppo.epochs")
        await s.press("right")
        mine.write_text("[ppo]\nepochs = 7\n")
        await s.press("w")
        await answer(s, wanted)
        await until(s.pilot, lambda: wanted == "Cancel" or not s.document.dirty)
        assert f"epochs = {on_disk}" in mine.read_text()
        assert s.document.get("ppo.epochs") == epochs


async def test_another_file_is_overwritten_only_with_consent(mine: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    other.write_text("precious")
    async with opened(str(mine)) as s:
        for wanted, left in (("Cancel", "precious"), ("Overwrite", mine.read_text())):
            await s.press("W")
            s.app.screen.query_one(Input).value = str(other)
            await s.press("enter")
            await answer(s, wanted)
            if wanted == "Overwrite":
                await until(s.pilot, lambda: s.document.path == other)
            assert other.read_text() == left


async def test_a_full_disk_is_reported_and_loses_nothing(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async with opened(str(mine)) as s:
        await s.go_to("ppo.epochs")
        await s.press("right")
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            await s.press("w")
            await until(s.pilot, lambda: any("No space left on device" in message for message in s.notices()))
        assert s.document.dirty
        assert not any("Saved" in message for message in s.notices())
        assert "epochs = 2" in mine.read_text()


# Anything at all


def nothing_to_obey(text: str) -> bool:
    return not any(character in text for character in "\x1b\u202e")


async def test_hostile_values_are_shown_and_not_obeyed(tmp_path: Path) -> None:
    document = ConfigDocument("")
    document.set("data.system", HOSTILE)
    document.set("run.name", HOSTILE)
    document.saved(*document.to_save(tmp_path / "[bold]evil.toml")())
    async with opened(document, (120, 60)) as s:
        await s.go_to("data.system")
        assert "[/x] [@click=app.qu…" in s.row("system")
        assert "[bold]evil.toml" in s.text()
        assert "✖ run.name = '[/x]" in s.text()
        assert nothing_to_obey(s.text())
        await s.press("enter")
        view = s.app.query_one(TomlView)
        assert view.has_focus  # not a text for one line
        assert "[/x] [@click=app.quit]x[/]" in s.text()
        assert nothing_to_obey(s.text())
        await s.go_to("ppo.kl_coef")
        await s.press("right", "w", "p", "escape")
        assert s.app.is_running
        assert nothing_to_obey(s.text())
        s.pane.show_document(ConfigDocument(f"# {HOSTILE}\n"))
        await s.pilot.pause()
        assert "✖ not TOML" in s.text()
        assert "# [/x] [@click=app.quit]x[/] [red]␛[31m" in s.text()
        assert nothing_to_obey(s.text())


@pytest.mark.parametrize("size", [(36, 16), (38, 18), (60, 20), (80, 24), (120, 36), (200, 60)])
async def test_the_pane_is_usable_at_every_size(size: tuple[int, int]) -> None:
    async with opened("quickstart", size) as s:
        await s.go_to("optim.policy_lr")
        await s.press("right")
        assert "policy_lr" in s.text()
        assert "5e-4" in s.text()
        assert "tokens/iteration" in s.text()
        assert s.app.query_one(ConfigRows).region.height >= 8
        await s.pilot.resize_terminal(80, 24)
        assert "policy_lr" in s.text()


async def test_text_typed_a_moment_ago_is_neither_overwritten_nor_left_unsaved(mine: Path) -> None:
    async with opened(str(mine), (120, 40)) as s:
        await s.press("t")
        view = s.app.query_one(TomlView)
        view.insert("# a note\n", (0, 0))  # its message is still on the way
        s.pane.action_save()
        await until(s.pilot, lambda: mine.read_text().startswith("# a note\nschema"))
        view.insert("# more\n", (0, 0))
        s.pane.show_run(settings())
        s.pane.set_running(True)
        assert view.text.startswith("# more\n# a note\n")
        assert s.document.text == view.text


async def test_steps_that_come_in_a_burst_all_count() -> None:
    async with opened("quickstart") as s:
        await s.go_to("ppo.epochs")
        for _ in range(5):
            s.pane.form.action_step(1)
        await s.pilot.pause()
        assert s.document.get("ppo.epochs") == 7


# Other kinds of run


@pytest.fixture
def of_dpo(tmp_path: Path) -> ConfigDocument:
    run = tmp_path / "preferred"
    run.mkdir()
    save_config(DPOConfig(), run / "config.toml")
    return ConfigDocument.of_run(run)


@pytest.mark.parametrize("size", [NARROW, (80, 24)])
async def test_the_configuration_of_another_kind_is_text_that_scrolls_and_that_no_key_changes(
    of_dpo: ConfigDocument, size: tuple[int, int]
) -> None:
    before = of_dpo.text
    async with opened(of_dpo, size) as s:
        text = s.text()
        assert "config.toml of preferred" in text
        assert "configuration of a dpo run" in " ".join(text.split())
        assert 'kind = "dpo"' in text
        assert "✖" not in text
        assert "No estimate" not in text
        assert not s.app.query_one(ConfigRows).is_on_screen
        s.pane.take_focus()
        await s.press(*"xtuUfeEw", "slash", "backspace", "delete", "enter", "escape", "ctrl+s", "ctrl+e", "ctrl+u")
        assert s.app.screen is s.app.screen_stack[0], "nothing asks under which name to save"
        await s.press(*["pagedown"] * 12)
        assert "trackers = []" in s.text()
        view = s.app.query_one(TomlView)
        assert (view.text, s.document.text, s.document.dirty) == (before, before, False)
        assert not any(one.document for one in s.messages(ConfigForm.Changed))


async def test_switching_from_another_kind_to_ppo_and_back_shows_each_as_it_is(of_dpo: ConfigDocument) -> None:
    before = of_dpo.text
    async with opened("quickstart", (80, 40)) as s:
        await s.go_to("ppo.epochs")
        await s.press("slash")
        await s.write("clip")
        s.pane.show_document(of_dpo)
        await s.pilot.pause()
        assert isinstance(s.app.focused, TomlView)
        assert not s.app.query_one(FilterField).display
        assert s.document.text == before
        s.pane.show_document(ConfigDocument.open("quickstart"))
        await s.pilot.pause()
        assert not s.app.query_one(TomlView).display
        assert s.app.query_one("#config-cost").display
        await s.go_to("ppo.epochs")
        assert isinstance(s.app.focused, ConfigRows)
        assert s.row("epochs")
        assert "dpo" not in s.text()


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
            assert "Mine learns to rhyme. In this folder." in "\n".join(titles)
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
        pane.document.set("ppo.epochs", 5)
        await pilot.press("w")
        await until(pilot, lambda: not pane.document.dirty)
        assert "epochs = 5" in Path("mine.toml").read_text()
        assert threads
        assert threading.main_thread() not in threads
