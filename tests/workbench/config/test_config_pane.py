"""The form and the TOML of the Config pane: rows, editing, paths."""

from __future__ import annotations

from pathlib import Path

import pytest
from colors import SPECS, contrast
from config_app import opened
from rich.cells import cell_len
from textual.color import Color
from waiting import until

from workbench.config.document import ConfigDocument
from workbench.config.fields import fields_by_key
from workbench.config.form import ConfigForm, FieldEditor, completed
from workbench.config.rows import ConfigRows, FieldRow, row_line, rows_of
from workbench.config.views import TomlView
from workbench.kit.dialog import AnswerScreen
from workbench.kit.theming import shipped_themes

pytestmark = pytest.mark.usefixtures("usual_quickstart")

NARROW = (38, 30)


# Rows


@pytest.mark.parametrize("width", [30, 36, 55, 56, 76, 115, 116, 200])
def test_every_row_takes_the_width_it_is_given(width: int) -> None:
    document = ConfigDocument.open("quickstart")
    document.set("run.name", "名前" * 60)
    document.set("ppo.epochs", -1)
    for row in rows_of(document, view="all"):
        pieces = row_line(row, width)
        length = sum(cell_len(text) for text, _ in pieces)
        assert length <= width, row
        if isinstance(row, FieldRow) and width in (56, 76, 116, 200):
            assert length in (min(width, 76), width)


def test_a_row_shows_what_changed_against_preset_and_file_and_what_is_wrong() -> None:
    document = ConfigDocument.open("quickstart")
    document.set("ppo.minibatches", 3)
    rows = {row.key: row for row in rows_of(document, view="all") if isinstance(row, FieldRow)}
    changed = rows["ppo.minibatches"]
    assert (changed.was, changed.unsaved, changed.locked) == ("1", True, False)
    assert "does not divide" in changed.problem
    line = "".join(text for text, _ in row_line(changed, 60))
    assert line.startswith("✖* minibatches ")
    assert "was 1  3" in line
    assert not rows["ppo.kl_coef"].was
    folded = {row.key: row for row in rows_of(document, "all", folded={"ppo"})}
    assert "ppo.minibatches" not in folded
    head = "".join(text for text, _ in row_line(folded["ppo"], 60))
    assert "✖ 1" in head
    assert "• 1 changed" in head


# Editing


async def test_a_number_is_edited_in_place_and_escape_leaves_it() -> None:
    async with opened("quickstart") as s:
        await s.go_to("ppo.kl_coef")
        await s.press("enter")
        await s.write("0.2")
        await s.press("escape")
        assert not s.document.dirty
        assert not s.app.query(FieldEditor)
        assert s.app.heard == []
        await s.press("enter")
        editor = s.app.query_one(FieldEditor)
        assert editor.value == "0.05"
        line = s.text().split("\n")[editor.region.y]
        assert "kl_coef" in line[: editor.region.x]
        await s.write("0.2")
        s.app.app_focus = False  # a look at another window
        await s.pilot.pause()
        s.app.app_focus = True
        await until(s.pilot, lambda: s.app.focused is editor)
        await s.press("enter")
        assert s.document.get("ppo.kl_coef") == 0.2
        assert "was 0.05  0.2 score per nat" in s.row("kl_coef")
        assert s.row("kl_coef").startswith("•*")
        assert sum(one.document for one in s.messages(ConfigForm.Changed)) == 1
        assert not s.app.query(FieldEditor)
        assert isinstance(s.app.focused, ConfigRows)


@pytest.mark.parametrize("size", [(38, 18), (80, 24), (120, 40)])
async def test_the_help_shows_what_is_allowed_and_then_the_rule_that_the_typed_value_breaks(
    size: tuple[int, int],
) -> None:
    async with opened("quickstart", size) as s:
        await s.go_to("ppo.kl_coef")
        await s.press("enter")
        assert s.app.active_bindings["enter"].binding.description == "set"
        allowed = "at least 0, at most 100 · score per nat kl_coef"
        assert s.help().startswith(allowed)
        await s.press("minus", "1")
        assert s.help().startswith("✖ kl_coef must be at least 0")
        assert "✖ kl_coef must be at least 0" in s.text()
        await s.press("enter")
        assert s.app.query_one(FieldEditor).value == "-1"
        assert s.document.get("ppo.kl_coef") == 0.05
        await s.press("backspace", "backspace", "x")
        assert s.help().startswith("✖ kl_coef must be a number")
        await s.press("backspace", "2")
        assert s.help().startswith(allowed)
        await s.press("enter")
        assert s.document.get("ppo.kl_coef") == 2
        assert s.help().startswith("kl_coef")


async def test_left_and_right_step_a_value_and_each_step_can_be_undone() -> None:
    async with opened("quickstart") as s:
        await s.go_to("optim.policy_lr")
        await s.press("right", "plus")
        assert s.document.get("optim.policy_lr") == 5e-4
        await s.press("left", "minus", "left")
        assert s.document.get("optim.policy_lr") == 2e-4
        await s.press("u", "u", "u")
        assert s.document.get("optim.policy_lr") == 5e-4
        await s.press("U")
        assert s.document.get("optim.policy_lr") == 4e-4


async def test_a_switch_toggles_a_choice_is_taken_from_a_list_and_a_list_edited_as_text() -> None:
    async with opened("quickstart", NARROW) as s:
        await s.go_to("data.shuffle")
        await s.press("enter")
        assert s.document.get("data.shuffle") is False
        await s.press("right")
        assert s.document.get("data.shuffle") is True
        await s.go_to("optim.schedule")
        await s.press("enter")
        assert isinstance(s.app.screen, AnswerScreen)
        await s.press("down", "down", "enter")
        assert s.document.get("optim.schedule") == "cosine"
        await s.press("enter", "up", "escape", "left")
        assert s.document.get("optim.schedule") == "linear"
        await s.press("backspace")
        assert s.document.changes == {}, "backspace restores the value of the preset"
        await s.go_to("model.lora_targets")
        await s.press("enter")
        assert s.app.query_one(FieldEditor).value == "q_proj, k_proj, v_proj, o_proj"
        await s.write("q_proj, up_proj")
        await s.press("enter")
        assert s.document.get("model.lora_targets") == ["q_proj", "up_proj"]


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


def test_a_path_is_completed_to_existing_files(tmp_path: Path) -> None:
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "a.jsonl").touch()
    (tmp_path / "rewards.py").touch()
    (tmp_path / ".hidden").touch()
    (tmp_path / "evil\x1b").touch()
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
        await s.write("pro")
        await until(s.pilot, lambda: "prompts prompts.jsonl" in s.text())
        await s.press("tab", "enter")
        assert s.document.get("data.prompts") == "prompts.jsonl"


# TOML


async def test_form_and_toml_are_two_views_of_one_document() -> None:
    async with opened("quickstart", (120, 40)) as s:
        await s.go_to("ppo.kl_coef")
        await s.press("t")
        view = s.app.query_one(TomlView)
        assert view.document.get_line(view.cursor_location[0]) == "kl_coef = 0.05"
        await s.press("end", "1")
        assert s.document.get("ppo.kl_coef") == 0.051
        assert "0.051" in s.row("kl_coef")
        assert sum(one.document for one in s.messages(ConfigForm.Changed)) == 1
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
        assert not s.app.query_one(TomlView).display


async def test_reward_sources_are_edited_as_toml_and_the_form_follows_its_cursor() -> None:
    async with opened("quickstart", (120, 40)) as s:
        await s.go_to("reward.sources")
        await s.press("enter")
        view = s.app.query_one(TomlView)
        assert s.app.focused is view
        assert view.document.get_line(view.cursor_location[0]) == 'sources = ["lexicon"]'
        while view.document.get_line(view.cursor_location[0]) != "kl_coef = 0.05":
            await s.press("down")
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
        assert "the TOML has an error" in s.help()
        await s.press("u")
        assert not s.document.syntax_error


async def test_toml_is_coloured_by_token_and_can_be_read_in_every_theme() -> None:
    text = '[ppo] # c\nclip = 1\n[data]\nsystem = "x"\nshuffle = true\n'
    async with opened(ConfigDocument(text), (120, 40)) as s:
        await s.press("t")
        view = s.app.query_one(TomlView)
        for name, theme in shipped_themes().items():
            if SPECS[name].ansi:
                continue
            s.app.register_theme(theme)
            s.app.theme = name
            await s.pilot.pause()
            ground = view.background_colors[1]
            colours = {
                span.style.color  # type: ignore[union-attr]
                for line in range(5)
                for span in view.get_line(line).spans
            }
            assert min(contrast(Color.from_rich_color(colour), ground) for colour in colours if colour) >= 4.5, name
            assert len(colours) >= 4
