"""The Config pane: form, TOML, search, problems, files, and what may change during a run."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from config_app import Session, opened
from config_files import save_config
from rich.cells import cell_len
from textual.binding import Binding
from textual.geometry import Region
from textual.widgets import Input, OptionList, Static
from waiting import until

from trainer.config import preset_names
from trainer.config.dpo import DPOConfig
from workbench.config.cost_lines import CostLines
from workbench.config.document import ConfigDocument
from workbench.config.fields import fields_by_key
from workbench.config.form import ChoiceList, FieldEditor, completed
from workbench.config.pane import ConfigPane
from workbench.config.rows import ConfigRows, FieldRow, SectionRow, Selection, row_line, rows_of
from workbench.config.views import ConfigReading, TomlView
from workbench.config.widgets import ProblemsList, SearchLine
from workbench.kit.dialog import AnswerScreen
from workbench.run.view import RunView

HOSTILE = "[/x] [@click=app.quit]x[/] [red]\x1b[31m\u202e"
NARROW = (38, 30)
ALL = Selection(everything=True)


def settings(*changes: tuple[str, Any]) -> RunView:
    """Return the state of a run in which these settings were changed."""
    view = RunView()
    view.settings.extend(cast("Any", SimpleNamespace(key=key, value=value)) for key, value in changes)
    return view


# Rows


@pytest.mark.parametrize("width", [30, 36, 55, 56, 76, 115, 116, 200])
def test_every_row_takes_the_width_it_is_given(width: int) -> None:
    document = ConfigDocument.open("quickstart")
    document.set("run.name", "名前" * 60)
    document.set("ppo.epochs", -1)
    for row in rows_of(document, ALL):
        pieces = row_line(row, width)
        length = sum(cell_len(text) for text, _ in pieces)
        assert length <= width, row
        if isinstance(row, FieldRow) and width in (56, 76, 116, 200):
            assert length in (min(width, 76), width)


def test_the_form_has_every_setting_under_its_section() -> None:
    rows = rows_of(ConfigDocument.open("quickstart"), ALL)
    assert [row.key for row in rows if isinstance(row, FieldRow)] == list(fields_by_key())
    assert sum(isinstance(row, SectionRow) for row in rows) == len({key.partition(".")[0] for key in fields_by_key()})


def test_a_row_shows_what_changed_against_preset_and_file_and_what_is_wrong() -> None:
    document = ConfigDocument.open("quickstart")
    document.set("ppo.minibatches", 3)
    rows = {row.key: row for row in rows_of(document, ALL) if isinstance(row, FieldRow)}
    changed = rows["ppo.minibatches"]
    assert (changed.was, changed.unsaved, changed.locked) == ("1", True, False)
    assert "does not divide" in changed.problem
    line = "".join(text for text, _ in row_line(changed, 60))
    assert line.startswith("✖* minibatches ")
    assert "was 1  3" in line
    assert not rows["ppo.kl_coef"].was
    folded = {row.spot: row for row in rows_of(document, Selection(everything=True, folded={"ppo"}))}
    assert "ppo.minibatches" not in folded
    assert "ppo.minibatches" not in folded
    head = "".join(text for text, _ in row_line(folded["ppo"], 60))
    assert "✖ 1" in head
    assert "• 1 changed" in head


# Editing


async def test_a_number_is_edited_in_place() -> None:
    async with opened("quickstart") as s:
        await s.go_to("ppo.kl_coef")
        await s.press("enter")
        editor = s.app.query_one(FieldEditor)
        assert editor.value == "0.05"
        line = s.text().split("\n")[editor.region.y]
        assert "kl_coef" in line[: editor.region.x]
        await s.write("0.2")
        await s.press("enter")
        assert s.document.get("ppo.kl_coef") == 0.2
        assert "was 0.05  0.2 score per nat" in s.row("kl_coef")
        assert s.row("kl_coef").startswith("•*")
        assert len(s.messages(ConfigPane.Changed)) == 1
        assert not s.app.query(FieldEditor)
        assert isinstance(s.app.focused, ConfigRows)


async def test_escape_leaves_the_value_as_it_was() -> None:
    async with opened("quickstart") as s:
        await s.go_to("ppo.kl_coef")
        await s.press("enter")
        await s.write("0.2")
        await s.press("escape")
        assert s.document.get("ppo.kl_coef") == 0.05
        assert not s.document.dirty
        assert not s.app.query(FieldEditor)
        assert s.app.heard == []


@pytest.mark.parametrize("size", [(38, 18), (80, 24), (120, 40)])
async def test_a_value_that_breaks_a_rule_stays_in_the_editor_with_the_rule_below(size: tuple[int, int]) -> None:
    async with opened("quickstart", size) as s:
        await s.go_to("ppo.clip")
        await s.press("enter")
        await s.write("-1")
        await s.press("enter")
        note = s.app.query_one("#config-note", Static)
        assert "✖ clip must be greater than 0" in s.text()
        assert note.region.y == s.app.query_one(FieldEditor).region.y + 1
        assert s.document.get("ppo.clip") == 0.2
        await s.write("0.3")
        assert "✖" not in str(note.render())
        await s.press("enter")
        assert s.document.get("ppo.clip") == 0.3


async def test_the_note_is_above_the_last_line() -> None:
    async with opened("quickstart") as s:
        await s.go_to("run.trackers")
        await s.press("enter")
        await s.write("mlflow")
        await s.press("enter")
        note = s.app.query_one("#config-note", Static)
        assert note.region.bottom <= s.app.query_one(ConfigRows).region.bottom
        assert "must be one of 'tensorboard', 'wandb' or 'trackio'" in s.text()


async def test_left_and_right_step_a_value_and_each_step_can_be_undone() -> None:
    async with opened("quickstart") as s:
        await s.go_to("optim.policy_lr")
        await s.press("right", "plus")
        assert s.document.get("optim.policy_lr") == 1e-3
        await s.press("left", "minus", "left")
        assert s.document.get("optim.policy_lr") == 2e-4
        await s.press("u", "u", "u")
        assert s.document.get("optim.policy_lr") == 1e-3
        await s.press("U")
        assert s.document.get("optim.policy_lr") == 5e-4


async def test_a_switch_toggles_at_once() -> None:
    async with opened("quickstart") as s:
        await s.go_to("data.shuffle")
        await s.press("enter")
        assert s.document.get("data.shuffle") is False
        await s.press("right")
        assert s.document.get("data.shuffle") is True


async def test_a_choice_is_taken_from_a_list() -> None:
    async with opened("quickstart", NARROW) as s:
        await s.go_to("optim.schedule")
        await s.press("enter")
        choices = s.app.query_one(ChoiceList)
        assert choices.highlighted == 0
        assert choices.region.bottom <= s.app.query_one(ConfigRows).region.bottom
        await s.press("down", "down", "enter")
        assert s.document.get("optim.schedule") == "cosine"
        await s.press("enter", "up", "escape")
        assert s.document.get("optim.schedule") == "cosine"
        await s.press("left")
        assert s.document.get("optim.schedule") == "linear"


async def test_a_list_is_edited_as_text_between_commas() -> None:
    async with opened("quickstart") as s:
        await s.go_to("model.lora_targets")
        await s.press("enter")
        assert s.app.query_one(FieldEditor).value == "q_proj, k_proj, v_proj, o_proj"
        await s.write("q_proj, up_proj")
        await s.press("enter")
        assert s.document.get("model.lora_targets") == ["q_proj", "up_proj"]


async def test_backspace_restores_the_value_of_the_preset() -> None:
    async with opened("quickstart") as s:
        await s.go_to("ppo.epochs")
        await s.press("right")
        assert s.document.get("ppo.epochs") == 3
        await s.press("backspace")
        assert s.document.get("ppo.epochs") == 2
        assert s.document.changes == {}


async def test_sections_fold() -> None:
    async with opened("quickstart") as s:
        await s.press("home", "left")
        assert "lora_rank" not in s.text()
        assert "▸ model" in s.text()
        await s.press("enter")
        assert "lora_rank" in s.text()
        await s.press("f")
        assert s.text().count("▸") == len({key.partition(".")[0] for key in fields_by_key()})
        await s.go_to("ppo.gamma")
        assert "gamma" in s.text()


async def test_moving_the_cursor_does_not_rebuild_the_form(monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened("quickstart") as s:
        made: list[object] = []
        monkeypatch.setattr(ConfigRows, "show", lambda *_: made.append(1))
        await s.press("down", "down", "pagedown", "end", "home", "down")
        assert made == []
        assert len(s.app.query("*")) < 25


async def test_a_click_goes_to_a_row_and_a_second_one_edits_it() -> None:
    async with opened("quickstart") as s:
        await s.pilot.click(ConfigRows, offset=(20, 5))
        await s.pilot.pause()
        row = s.app.query_one(ConfigRows).selected
        assert row is not None
        assert row.key == "model.lora_rank"
        await s.pilot.click(ConfigRows, offset=(20, 5))
        await s.pilot.pause()
        assert s.app.query_one(FieldEditor).field.key == "model.lora_rank"


# Paths


def test_a_path_is_completed_to_existing_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "a.jsonl").touch()
    (tmp_path / "rewards.py").touch()
    (tmp_path / ".hidden").touch()
    (tmp_path / "evil\x1b").touch()
    monkeypatch.chdir(tmp_path)
    assert completed("p") == "prompts/"
    assert completed("prompts/") == "prompts/a.jsonl"
    assert completed(f"{tmp_path}/rew") == f"{tmp_path}/rewards.py"
    assert completed("./r") == "./rewards.py"
    assert completed(".h") == ".hidden"
    for nothing in ("", "x", "evil", "absent/x", "~nobody-of-that-name/", "\0", "rewards.py/x"):
        assert completed(nothing) is None


async def test_tab_takes_the_suggested_path(tmp_path: Path) -> None:
    (tmp_path / "prompts.jsonl").touch()
    async with opened("quickstart", (120, 40)) as s:
        await s.go_to("data.prompts")
        await s.press("enter")
        await s.write(f"{tmp_path}/pro")
        await s.press("tab")  # at once: the suggestion may not be there yet
        editor = s.app.query_one(FieldEditor)
        await until(s.pilot, lambda: editor.value == f"{tmp_path}/prompts.jsonl")
        await s.press("enter")
        assert s.document.get("data.prompts") == f"{tmp_path}/prompts.jsonl"


# TOML


async def test_reward_sources_are_edited_as_toml_at_their_line() -> None:
    async with opened("quickstart") as s:
        await s.go_to("reward.sources")
        await s.press("enter")
        view = s.app.query_one(TomlView)
        assert s.app.focused is view
        assert view.document.get_line(view.cursor_location[0]) == 'sources = ["lexicon"]'


async def test_form_and_toml_are_two_views_of_one_document() -> None:
    async with opened("quickstart", (120, 40)) as s:
        await s.go_to("ppo.kl_coef")
        await s.press("t")
        view = s.app.query_one(TomlView)
        assert view.document.get_line(view.cursor_location[0]) == "kl_coef = 0.05"
        await s.press("end", "1")
        assert s.document.get("ppo.kl_coef") == 0.051
        assert "0.051" in s.row("kl_coef")
        assert len(s.messages(ConfigPane.Changed)) == 1
        s.app.query_one(ConfigRows).focus()
        await s.press("right")
        assert "kl_coef = 0.06" in view.text
        assert view.cursor_location == (18, 14)  # the line got shorter
        await s.press("u")
        assert "kl_coef = 0.051" in view.text
        view.focus()
        await s.press("ctrl+z")
        assert "kl_coef = 0.05\n" in view.text
        await s.press("ctrl+y")
        assert "kl_coef = 0.051" in view.text
        await s.press("ctrl+t")
        assert not s.app.query(TomlView)


async def test_the_form_and_the_help_follow_the_cursor_of_the_toml() -> None:
    async with opened("quickstart", (120, 40)) as s:
        await s.go_to("ppo.epochs")
        await s.press("t", "down")
        view = s.app.query_one(TomlView)
        assert view.document.get_line(view.cursor_location[0]) == "kl_coef = 0.05"
        row = s.app.query_one(ConfigRows).selected
        assert row is not None
        assert row.key == "ppo.kl_coef"
        assert "Strength of the KL penalty." in s.text()


@pytest.mark.parametrize(("width", "beside"), [(38, False), (80, False), (120, True)])
async def test_the_toml_is_beside_the_form_where_there_is_room(width: int, beside: bool) -> None:
    async with opened("quickstart", (width, 40)) as s:
        await s.press("t")
        assert s.app.query_one("#config-form").display is beside
        assert s.app.query_one(TomlView).region.width > 30
        await s.press("escape")
        assert s.app.query_one("#config-form").display
        assert isinstance(s.app.focused, ConfigRows)


async def test_an_error_in_the_toml_locks_the_form_until_it_is_fixed() -> None:
    async with opened("quickstart", (120, 40)) as s:
        await s.go_to("ppo.kl_coef")
        await s.press("t", "home", "=")
        assert s.document.syntax_error
        assert "✖ not TOML" in s.text()
        assert "No estimate until the problems are fixed" in s.text()
        s.app.query_one(ConfigRows).focus()
        await s.press("right", "enter")
        assert s.document.get("ppo.kl_coef") == 0.05
        assert "the TOML has an error" in s.text()
        await s.press("u")
        assert not s.document.syntax_error


async def test_toml_is_coloured_by_token() -> None:
    async with opened(ConfigDocument('[ppo] # c\nclip = 1\n[data]\nsystem = "x"\nshuffle = ?\n'), (120, 40)) as s:
        await s.press("t")
        view = s.app.query_one(TomlView)

        def color(line: int, column: int) -> Any:
            return view.get_line(line).get_style_at_offset(s.app.console, column).color

        colors = [color(0, 1), color(0, 7), color(1, 0), color(1, 7), color(3, 10), color(4, 10)]
        assert None not in colors
        assert len(set(colors)) == len(colors)


# Search, help, problems


async def test_search_shows_the_matches_and_goes_to_the_best() -> None:
    async with opened("quickstart", NARROW) as s:
        await s.press("slash", *"kl pen")
        shown = s.text()
        assert "kl_coef" in shown
        assert "lora_rank" not in shown
        await s.press("enter", "right")
        assert s.document.get("ppo.kl_coef") == 0.06
        await s.press("escape")
        assert s.pane.query_one(SearchLine).display is False
        assert "minibatches" in s.text()
        assert s.app.query_one(ConfigRows).selected.key == "ppo.kl_coef"  # type: ignore[union-attr]


async def test_a_search_that_finds_nothing_says_so_and_escape_ends_it() -> None:
    async with opened("quickstart") as s:
        await s.press("slash", *"qqq")
        assert "No matching settings" in s.text()
        await s.press("escape")
        assert "lora_rank" in s.text()
        assert isinstance(s.app.focused, ConfigRows)


async def test_the_help_describes_the_setting_under_the_cursor() -> None:
    async with opened("quickstart", (80, 40)) as s:
        await s.go_to("ppo.kl_coef")
        shown = s.text()
        for text in (
            "Strength of the KL penalty.",
            "KL too high: raise it. Nothing is learned: lower it.",
            "at least 0, at most 100 · score per nat · default 0.05 · live",
            "default from: PPO concepts reference",
        ):
            assert text in shown
        await s.press("down")
        assert "Estimator of the KL in the penalty." in s.text()


async def test_problems_are_listed_and_can_be_jumped_to(tmp_path: Path) -> None:
    path = tmp_path / "broken.toml"
    path.write_text("[optim]\npolicy_lr = 7\n[ppo]\nkl = 3\n")
    async with opened(str(path)) as s:
        assert "✖ optim.policy_lr = 7: must be at most 1" in s.text()
        assert "unknown key 'ppo.kl'" in s.text()
        keys = []
        for key in ("e", "ctrl+n"):  # e is a letter in the TOML
            await s.press(key)
            view = next(iter(s.app.query(TomlView)), None)
            row = s.app.query_one(ConfigRows).selected
            keys.append(f"line {view.cursor_location[0] + 1}" if view else row and row.key)
        assert keys == ["line 4", "optim.policy_lr"]


async def test_choosing_a_problem_jumps_to_it_and_fixing_it_removes_it() -> None:
    document = ConfigDocument("[ppo]\nminibatches = 3\n[run]\ndir = ''\n")
    async with opened(document) as s:
        problems = s.app.query_one(ProblemsList)
        assert problems.option_count == 2
        problems.focus()
        await s.press("home", "enter")
        row = s.app.query_one(ConfigRows).selected
        assert row is not None
        assert row.key == document.problems[0].key
        document_keys = {problem.key for problem in document.problems}
        assert document_keys == {"run.dir", "ppo.minibatches"}
        for key in document_keys:
            await s.go_to(key)
            await s.press("backspace")
        assert not problems.display
        assert s.app.active_bindings.get("e") is None


async def test_warnings_are_shown_and_block_nothing() -> None:
    async with opened("quickstart") as s:
        await s.go_to("ppo.whiten_rewards")
        await s.press("enter")
        assert "⚠ ppo.whiten_rewards" in s.text()
        assert s.document.config is not None


# Files


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text("schema = 2\n[ppo]\nepochs = 2  # two\n")
    return path


async def test_a_file_is_saved(mine: Path) -> None:
    async with opened(str(mine)) as s:
        await s.go_to("ppo.epochs")
        await s.press("right")
        assert "*unsaved" in s.text()
        await s.press("w")
        await until(s.pilot, lambda: s.notices() == [f"Saved {mine}"])
        assert mine.read_text() == "schema = 2\n[ppo]\nepochs = 3  # two\n"
        assert "*unsaved" not in s.text()


async def test_a_preset_is_saved_under_a_name_that_is_asked_for(tmp_path: Path) -> None:
    async with opened("quickstart") as s:
        await s.press("w")
        line = s.app.screen.query_one(Input)
        assert line.value == "my-quickstart.toml"
        line.value = str(tmp_path / "new.toml")
        await s.press("enter")
        await until(s.pilot, lambda: not s.document.dirty and s.document.path is not None)
        assert s.document.path == tmp_path / "new.toml"
        assert (tmp_path / "new.toml").exists()
        assert s.notices() == [f"Saved {tmp_path / 'new.toml'}"]


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


async def test_a_preset_is_chosen_from_a_list() -> None:
    async with opened("quickstart") as s:
        await s.press("p")
        await answer(s, "qwen3-0.6b")
        assert [message.source for message in s.messages(ConfigPane.OpenRequested)] == ["qwen3-0.6b"]


async def test_another_document_takes_the_place_of_the_first(mine: Path) -> None:
    async with opened("quickstart", (120, 40)) as s:
        await s.press("t")
        s.pane.show_document(ConfigDocument.open(mine))
        await s.pilot.pause()
        assert s.pane.document.path == mine
        assert s.app.query_one(TomlView).text == mine.read_text()
        assert "mine.toml" in s.text()
        await s.press("ctrl+z")
        assert s.pane.document.text == mine.read_text()


# During a run


async def test_the_key_that_sends_a_live_setting_is_the_users() -> None:
    async with opened("quickstart") as s:
        s.app.set_keymap({"config.send": "j", "config.back": "y"})
        s.pane.set_running(True)
        await s.go_to("ppo.kl_coef")
        await s.press("right")
        assert "j sends ppo.kl_coef to the run, y discards it" in s.text()


async def test_a_live_setting_is_sent_to_the_run_by_enter_and_by_nothing_else() -> None:
    async with opened("quickstart") as s:
        s.pane.set_running(True)
        await s.go_to("ppo.kl_coef")
        await s.press("right", "right", "left")
        assert "0.06" in s.row("kl_coef")
        assert "↵" in s.row("kl_coef")
        assert "⏎ sends ppo.kl_coef to the run, esc discards it" in s.text()
        assert s.messages(ConfigPane.LiveSettingChanged) == []
        assert s.document.get("ppo.kl_coef") == 0.05, "it is that of the run"
        await s.press("enter")
        [sent] = s.messages(ConfigPane.LiveSettingChanged)
        assert (sent.key, sent.value) == ("ppo.kl_coef", 0.06)
        assert " sent" in s.row("kl_coef")
        s.pane.show_run(settings(("ppo.kl_coef", 0.06)))
        await s.pilot.pause()
        assert " live" in s.row("kl_coef")
        assert len(s.messages(ConfigPane.LiveSettingChanged)) == 1


@pytest.mark.parametrize("away", ["escape", "down", "left", "f6"])
async def test_a_live_setting_that_is_not_sent_is_restored(away: str) -> None:
    async with opened("quickstart") as s:
        s.pane.set_running(True)
        await s.go_to("ppo.kl_coef")
        await s.press("right")
        if away == "f6":
            s.app.set_focus(None)  # as another pane takes it
        else:
            await s.press(away)
        await until(s.pilot, lambda: "0.05" in s.row("kl_coef") and "⏎ sends" not in s.text())
        assert "↵" not in s.row("kl_coef")
        s.pane.take_focus()
        await s.go_to("ppo.kl_coef")
        await s.press("enter", "escape")
        assert s.messages(ConfigPane.LiveSettingChanged) == []


async def test_the_presets_value_waits_for_enter_too() -> None:
    async with opened("quickstart") as s:
        s.document.set("ppo.kl_coef", 0.3)
        s.pane.set_running(True)
        await s.go_to("ppo.kl_coef")
        await s.press("backspace")
        assert "0.05" in s.row("kl_coef")
        assert s.document.get("ppo.kl_coef") == 0.3
        await s.press("enter")
        assert [(one.key, one.value) for one in s.messages(ConfigPane.LiveSettingChanged)] == [("ppo.kl_coef", 0.05)]


async def test_text_typed_into_a_value_while_the_run_ends_does_not_act_as_keys() -> None:
    async with opened("quickstart") as s:
        s.pane.set_running(True)
        await s.go_to("ppo.kl_coef")
        await s.press("enter", "0")
        s.pane.set_running(False)
        await s.press(".", "1", "u", "W")
        assert isinstance(s.app.focused, FieldEditor)
        assert s.app.focused.value.startswith("0.1")
        assert s.app.screen is s.app.screen_stack[0]


async def test_a_note_does_not_stay_when_the_pane_is_left() -> None:
    async with opened("quickstart", (120, 40)) as s:
        s.pane.set_running(True)
        await s.go_to("ppo.minibatches")
        await s.press("right")
        assert "cannot change during a run" in s.text()
        s.app.set_focus(None)
        await until(s.pilot, lambda: "cannot change during a run" not in s.text())


async def test_other_settings_wait_for_the_end_of_the_run() -> None:
    async with opened("quickstart", (120, 40)) as s:
        s.pane.set_running(True)
        await s.go_to("ppo.minibatches")
        for key in ("right", "enter", "backspace"):
            await s.press(key)
            assert "ppo.minibatches cannot change during a run: only settings marked live can" in s.text()
        assert not s.document.dirty
        await s.press("t")
        await s.press("x")
        assert s.app.query_one(TomlView).read_only
        assert not s.document.dirty
        assert s.app.heard == []
        await s.press("escape")
        s.pane.set_running(False)
        await s.go_to("ppo.minibatches")
        await s.press("right")
        assert s.document.get("ppo.minibatches") == 2
        assert s.messages(ConfigPane.LiveSettingChanged) == []


async def test_a_repaint_between_the_removal_of_the_toml_and_the_next_layout_does_not_fail() -> None:
    repaints: list[str] = []
    async with opened("quickstart", (120, 40)) as s:
        await s.press("t")
        toml = s.app.query_one(TomlView)
        leave = toml._message_loop_exit

        async def leave_and_repaint() -> None:
            await leave()
            toml.notify_style_update()  # as the loss of the focus does
            lines = toml.render_lines(Region(0, 0, *toml.size))  # as the compositor does until it lays out again
            repaints.append("".join(line.text for line in lines))

        toml._message_loop_exit = leave_and_repaint  # type: ignore[method-assign]
        await s.press("escape")
        assert [text.strip() for text in repaints] == [""]


async def test_changes_from_another_terminal_are_shown() -> None:
    async with opened("quickstart") as s:
        view = settings(("ppo.kl_coef", 0.3), ("ppo.clip", 0.1), ("ppo.kl_coef", 0.4), ("no.such", 1))
        s.pane.show_run(view)
        assert s.document.get("ppo.kl_coef") == 0.05  # no run of ours
        s.pane.set_running(True)
        s.pane.show_run(view)
        await s.pilot.pause()
        assert s.document.get("ppo.kl_coef") == 0.4
        assert s.document.get("ppo.clip") == 0.1
        await s.go_to("ppo.kl_coef")
        await s.press("left", "enter")
        changed = s.document.get("ppo.kl_coef")
        s.pane.show_run(view)  # nothing new in it
        assert s.document.get("ppo.kl_coef") == changed
        view.settings.append(cast("Any", SimpleNamespace(key="ppo.clip", value=0.3)))
        s.pane.show_run(view)
        assert (s.document.get("ppo.kl_coef"), s.document.get("ppo.clip")) == (changed, 0.3)


async def test_undo_during_a_run_informs_the_run_and_stops_before_settings_that_wait() -> None:
    async with opened("quickstart") as s:
        await s.go_to("ppo.iterations")
        await s.press("right")
        s.pane.set_running(True)
        await s.go_to("ppo.kl_coef")
        await s.press("right", "enter", "u")
        sent = [(message.key, message.value) for message in s.messages(ConfigPane.LiveSettingChanged)]
        assert sent == [("ppo.kl_coef", 0.06)]
        assert "0.05" in s.row("kl_coef")
        await s.press("enter")
        sent = [(message.key, message.value) for message in s.messages(ConfigPane.LiveSettingChanged)]
        assert sent == [("ppo.kl_coef", 0.06), ("ppo.kl_coef", 0.05)]
        await s.press("u")
        assert s.document.get("ppo.iterations") == 41
        assert "only a change of one live setting can be undone" in s.text()


async def test_undo_and_redo_without_a_step_change_nothing_during_a_run() -> None:
    async with opened("quickstart") as s:
        await s.go_to("ppo.kl_coef")
        await s.press("right", "u")
        s.pane.set_running(True)
        await s.press("u")
        assert s.document.get("ppo.kl_coef") == 0.05
        await s.press("U", "enter")
        assert [(one.key, one.value) for one in s.messages(ConfigPane.LiveSettingChanged)] == [("ppo.kl_coef", 0.06)]


# Anything at all


def nothing_to_obey(text: str) -> bool:
    return not any(character in text for character in "\x1b\u202e")


async def test_hostile_values_are_shown_and_not_obeyed(tmp_path: Path) -> None:
    document = ConfigDocument("")
    document.set("data.system", HOSTILE)
    document.set("run.name", HOSTILE)
    document.save(tmp_path / "[bold]evil.toml")
    async with opened(document, (120, 60)) as s:
        await s.go_to("data.system")
        assert r"[/x] [@click=app.quit]x[/] [red]␛[31m\u202e" in s.text()
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


async def test_a_file_with_escape_sequences_is_shown_literally(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text(f"# {HOSTILE}\n")
    async with opened(ConfigDocument.open(path), (120, 40)) as s:
        assert "✖ not TOML" in s.text()
        await s.press("t")
        assert "# [/x] [@click=app.quit]x[/] [red]␛[31m" in s.text()
        assert nothing_to_obey(s.text())


@pytest.mark.parametrize("size", [(36, 16), (38, 18), (60, 20), (80, 24), (120, 36), (200, 60)])
async def test_the_pane_is_usable_at_every_size(size: tuple[int, int]) -> None:
    async with opened("quickstart", size) as s:
        await s.go_to("optim.policy_lr")
        await s.press("right")
        assert "policy_lr" in s.text()
        assert "5e-4" in s.text()
        assert "tokens/it" in s.text()
        assert s.app.query_one(ConfigRows).region.height >= 8
        await s.pilot.resize_terminal(80, 24)
        assert "policy_lr" in s.text()


def bindings(*classes: Any) -> Iterable[Binding]:
    return (binding for kind in classes for binding in kind.__dict__["BINDINGS"])


def test_every_key_can_be_given_another_and_is_explained() -> None:
    classes = (ConfigPane, ConfigRows, FieldEditor, ChoiceList, SearchLine, AnswerScreen, TomlView)
    for binding in bindings(*classes):
        assert binding.id, binding
        assert binding.tooltip, binding
    taken = {key for binding in bindings(ConfigPane, ConfigRows) for key in binding.key.split(",")}
    assert not taken & {"space", "s", "c", "X", "z", "q", "ctrl+p", "ctrl+q", "tab", *map(str, range(10))}
    assert not {key for binding in bindings(TomlView) for key in binding.key.split(",")} & {"f6", "f7"}
    assert preset_names()


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
        rows = s.app.query_one(ConfigRows)
        for _ in range(5):
            rows.action_step(1)
        await s.pilot.pause()
        assert s.document.get("ppo.epochs") == 7


# Other kinds of run


@pytest.fixture
def of_dpo(tmp_path: Path) -> ConfigDocument:
    run = tmp_path / "preferred"
    run.mkdir()
    save_config(DPOConfig(), run / "config.toml")
    return ConfigDocument.of_run(run)


@pytest.mark.parametrize("size", [NARROW, (120, 40)])
async def test_the_configuration_of_another_kind_is_read_only_text_without_problems(
    of_dpo: ConfigDocument, size: tuple[int, int]
) -> None:
    async with opened(of_dpo, size) as s:
        text = s.text()
        assert "config.toml of preferred" in text
        assert "configuration of a dpo run" in " ".join(text.split())
        assert 'kind = "dpo"' in text
        assert "✖" not in text
        assert "No estimate" not in text
        assert not s.app.query_one(ProblemsList).display
        assert not s.app.query_one(ConfigRows).is_on_screen


async def test_the_text_of_another_kind_scrolls_and_no_key_changes_it(of_dpo: ConfigDocument) -> None:
    before = of_dpo.text
    async with opened(of_dpo, (80, 24)) as s:
        s.pane.take_focus()
        await s.press(*"xtuUfeEw", "slash", "backspace", "delete", "enter", "escape", "ctrl+s", "ctrl+e", "ctrl+u")
        assert s.app.screen is s.app.screen_stack[0], "nothing asks under which name to save"
        await s.press(*["pagedown"] * 9)
        assert "trackers = []" in s.text()
        view = s.app.query_one(TomlView)
        assert (view.text, s.document.text) == (before, before)
        assert not s.document.dirty
        assert not s.messages(ConfigPane.Changed)


async def test_switching_from_another_kind_to_ppo_and_back_shows_each_as_it_is(of_dpo: ConfigDocument) -> None:
    before = of_dpo.text
    async with opened("quickstart", (80, 40)) as s:
        await s.go_to("ppo.epochs")
        await s.press("slash")
        await s.write("clip")
        s.pane.show_document(of_dpo)
        await s.pilot.pause()
        assert isinstance(s.app.focused, TomlView)
        assert not s.app.query_one(SearchLine).display
        s.pane.set_running(True)
        s.pane.show_run(settings(("ppo.clip", 0.3)))
        s.pane.focus_field("kind")
        await s.pilot.pause()
        assert s.document.text == before
        s.pane.set_running(False)
        s.pane.show_document(ConfigDocument.open("quickstart"))
        await s.pilot.pause()
        assert not s.app.query_one(ConfigReading).display
        assert s.app.query_one(CostLines).display
        s.pane.take_focus()
        await s.press("down")
        assert isinstance(s.app.focused, ConfigRows)
        await s.go_to("ppo.epochs")
        assert s.row("epochs")
        assert "dpo" not in s.text()


async def test_the_cursor_stays_in_its_line_when_saving_adds_the_version_above_it(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("[ppo]\nepochs = 2\n")
    async with opened(str(path), (120, 40)) as s:
        await s.press("t")
        view = s.app.query_one(TomlView)
        view.move_cursor((1, 10))
        view.insert("3")
        s.pane.action_save()
        await until(s.pilot, lambda: view.text.startswith("schema = "))
        await s.press("4")
        assert "epochs = 234" in view.text
        assert view.text.startswith("schema = ")
