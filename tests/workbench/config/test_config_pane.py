"""The form and the TOML of the Config pane: rows, editing, views, search, problems, and settings of a run."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from colors import SPECS, contrast
from config_app import Session, opened, settings
from rich.cells import cell_len
from textual.color import Color
from textual.widgets import OptionList
from waiting import until
from workbench_app import workbench

from trainer.config import PRESETS
from workbench.config.document import ConfigDocument
from workbench.config.fields import BASIC, fields_by_key
from workbench.config.form import ConfigForm, FieldEditor
from workbench.config.pane import ConfigPane
from workbench.config.rows import ConfigRows, FieldRow, Row, row_line, rows_of
from workbench.config.views import TomlView
from workbench.kit.cursor_list import FilterField
from workbench.kit.dialog import AnswerScreen
from workbench.kit.saving import completed
from workbench.kit.theming import shipped_themes
from workbench.system.environment import ScreenSettings

STORIES = Path(__file__).parents[3] / "benchmarks" / "stories.toml"
NARROW = (38, 30)


@pytest.fixture(autouse=True)
def usual_quickstart(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the quickstart usual settings, which tests step and edit: its own change with what learns best."""
    presets = tmp_path_factory.mktemp("shipped") / "presets"
    shutil.copytree(PRESETS, presets)
    shutil.copyfile(STORIES, presets / "quickstart.toml")
    for module in ("trainer.config.loading", "workbench.config.document"):
        monkeypatch.setattr(f"{module}.PRESETS", presets)


# Rows


@pytest.mark.parametrize("width", [30, 36, 55, 56, 68, 107, 108, 200])
def test_every_row_takes_the_width_it_is_given(width: int) -> None:
    document = ConfigDocument.open("quickstart")
    document.set("run.name", "名前" * 60)
    document.set("ppo.epochs", -1)
    for row in rows_of(document, view="all"):
        pieces = row_line(row, width)
        length = sum(cell_len(text) for text, _ in pieces)
        assert length <= width, row
        if isinstance(row, FieldRow) and width in (56, 68, 108, 200):
            assert length in (min(width, 68), width)


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
        allowed = "allowed: at least 0, at most 100 · score per nat kl_coef"
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
        assert " lora_rank " not in s.text()
        assert "▸ model" in s.text()
        await s.press("enter")
        assert " lora_rank " in s.text()
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
        line = view.cursor_location[0]
        await s.press("end", "1")
        assert s.document.get("ppo.kl_coef") == 0.051
        assert "0.051" in s.row("kl_coef")
        assert sum(one.document for one in s.messages(ConfigForm.Changed)) == 1
        s.app.query_one(ConfigRows).focus()
        await s.press("right")
        assert "kl_coef = 0.06" in view.text
        assert view.cursor_location == (line, 14)  # the line got shorter
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
        assert "the TOML has an error" not in s.help()


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


EVERY = len(fields_by_key())


def keys(rows: list[Row]) -> list[str]:
    return [row.key for row in rows if isinstance(row, FieldRow)]


def test_the_basic_settings_are_few_and_nothing_that_matters_is_hidden() -> None:
    assert 12 <= len(BASIC) <= 18
    assert {"model.path", "data.prompts", "reward.sources", "ppo.iterations", "optim.policy_lr"} <= BASIC
    document = ConfigDocument.open("quickstart")
    assert set(keys(rows_of(document))) == BASIC
    assert keys(rows_of(document, "all")) == list(fields_by_key())
    assert rows_of(document, "changed") == []
    assert "ppo.gamma" in keys(rows_of(document, query="discount")), "a search finds all"
    document.set("ppo.gamma", 0.9)
    document.set("health.pause", True)
    document.set("ppo.minibatches", 3)
    document.set("eval.best_of", 0)
    changed = {"ppo.minibatches", "ppo.gamma", "eval.best_of", "health.pause"}
    more = {"optim.eps", "ppo.clip"}
    for view, expected in (("basic", BASIC | changed | more), ("changed", changed | more)):
        found = keys(rows_of(document, view, keep="optim.eps", sent=["ppo.clip"]))
        assert sorted(found) == sorted(expected)


def test_a_setting_that_is_only_written_differently_is_not_changed() -> None:
    text = '[reward]\nsources = [{ kind = "lexicon", weight = 1.0 }]\n[ppo]\nclip = 0.3\n'
    document = ConfigDocument(f"{text}[run]\ndir = {str(Path('runs').absolute())!r}\n")
    assert keys(rows_of(document, "changed")) == ["ppo.clip"]
    document.set("reward.sources", [{"kind": "lexicon", "weight": 2.0}])
    document.set("run.dir", "elsewhere")
    assert keys(rows_of(document, "changed")) == ["reward.sources", "ppo.clip", "run.dir"]


def at(s: Session) -> str:
    row = s.app.query_one(ConfigRows).selected
    return row.key if row else ""


async def test_the_view_shows_basic_settings_all_or_the_changed_ones() -> None:
    async with opened("quickstart", (80, 24), shows_all=False) as s:
        rows = s.app.query_one(ConfigRows)
        assert f"{len(BASIC)} of {EVERY} shown, v shows all" in s.text()
        assert " value_model " not in s.text()
        assert "lora_scale, lora_targets" in s.help(), "which names the settings of the section"
        assert at(s) == "model"
        await s.press("v")
        assert " shown, v" not in s.text()
        assert " value_model " in s.text()
        await s.press("v")
        assert "No changed settings" in s.text()
        await s.press("v")

        await s.go_to("ppo.gamma")  # a hidden one, as the command palette does
        assert at(s) == "ppo.gamma"
        assert f"{len(BASIC) + 1} of {EVERY} shown" in s.text()
        line = rows.line
        await s.press("left", "v")
        assert (at(s), rows.line) == ("ppo.gamma", line), "the list above got longer"
        await s.press("v")
        assert ("▾ ppo" in s.text(), "▾ optim" in s.text(), " lam " in s.text()) == (True, False, False)
        assert f"1 of {EVERY} shown, v shows basic" in s.text()
        assert "•1 changed" in s.text()
        await s.press("backspace")
        assert at(s) == "ppo.gamma", "the next key must not reach another setting"
        assert s.document.get("ppo.gamma") == 1

        await s.press("slash", *"lambda", "enter")
        assert " shown, v" not in s.text()
        assert at(s) == "ppo.lam"
        await s.press("escape")
        assert at(s) == "ppo.lam"
        s.pane.show_document(ConfigDocument.open("quickstart"))
        assert "ppo." not in at(s)


async def test_y_copies_the_setting_or_the_section_as_toml(monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[str] = []
    async with opened("quickstart", (80, 40)) as s:
        monkeypatch.setattr(s.app, "copy_to_clipboard", copied.append)
        for key in ("ppo.iterations", "data.shuffle", "reward.sources"):
            await s.go_to(key)
            await s.press("y")
        assert copied == ["ppo.iterations = 40", "data.shuffle = true", 'reward.sources = ["lexicon"]']
        await until(s.pilot, lambda: "Copied reward.sources" in s.text())
        s.document.set("data.system", 'say "hi"\n')
        await s.go_to("data.system")
        await s.press("y")
        assert tomllib.loads(copied[-1]) == {"data": {"system": 'say "hi"\n'}}
        await s.press("home", "y")
        assert len(tomllib.loads(copied[-1])["model"]) == sum(key.startswith("model.") for key in fields_by_key())


async def test_the_view_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PPO_WORKBENCH_CONFIG_DIR", str(tmp_path))
    assert not ScreenSettings.load(tmp_path).all_settings
    async with workbench(pane="config") as (screen, pilot):
        pane = screen.query_one(ConfigPane)
        assert pane.form.view == "basic"
        await pilot.press("v")
        await until(pilot, lambda: pane.form.view == "all")
    assert ScreenSettings.load(tmp_path).all_settings
    (tmp_path / "workbench.toml").write_text("all_settings = 3")
    assert not ScreenSettings.load(tmp_path).all_settings


async def test_search_shows_the_matches_and_goes_to_the_best() -> None:
    async with opened("quickstart", NARROW) as s:
        await s.press("slash", *"kl pen")
        shown = s.text()
        assert "kl_coef" in shown
        assert "lora_rank" not in shown
        await s.press("enter", "right")
        assert s.document.get("ppo.kl_coef") == 0.06
        await s.press("escape")
        assert s.pane.query_one(FilterField).display is False
        assert "minibatches" in s.text()
        assert s.app.query_one(ConfigRows).selected.key == "ppo.kl_coef"  # type: ignore[union-attr]
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


async def test_problems_are_listed_lead_to_their_settings_and_go_when_they_are_fixed(tmp_path: Path) -> None:
    path = tmp_path / "broken.toml"
    path.write_text("[optim]\npolicy_lr = 7\n[ppo]\nkl = 3\n")
    async with opened(str(path)) as s:
        assert "✖ optim.policy_lr = 7: must be at most 1" in s.text()
        assert "unknown key 'ppo.kl'" in s.text()
        view, keys = s.app.query_one(TomlView), []
        for key in ("e", "ctrl+n"):  # e is a letter in the TOML
            await s.press(key)
            row = s.app.query_one(ConfigRows).selected
            keys.append(f"line {view.cursor_location[0] + 1}" if view.display else row and row.key)
        assert keys == ["line 4", "optim.policy_lr"]
        problems = s.app.query_one(OptionList)
        document = ConfigDocument("[ppo]\nminibatches = 3\n[run]\ndir = ''\n")
        s.pane.show_document(document)
        await s.pilot.pause()
        problems.focus()
        await s.press("home", "enter")
        row = s.app.query_one(ConfigRows).selected
        assert row is not None
        assert row.key == document.problems[0].key
        for key in ("run.dir", "ppo.minibatches"):
            await s.go_to(key)
            await s.press("backspace")
        assert not problems.display
        assert s.app.active_bindings.get("e") is None


async def test_warnings_are_shown_and_block_nothing() -> None:
    async with opened("quickstart") as s:
        listed = s.app.query_one("#config-problems")
        assert not listed.display
        await s.go_to("ppo.whiten_rewards")
        await s.press("enter")
        assert "⚠ ppo.whiten_rewards" in s.text()
        assert s.document.config is not None


async def test_a_live_setting_is_sent_to_the_run_by_enter_and_by_nothing_else() -> None:
    async with opened("quickstart") as s:
        s.pane.set_running(True)
        await s.go_to("ppo.kl_coef")
        await s.press("right")
        assert s.app.query_one(FieldEditor).value == "0.06"
        assert "⏎ sends it to the run, esc discards it · allowed: at least 0" in s.help()
        assert s.messages(ConfigForm.LiveSettingChanged) == []
        assert s.document.get("ppo.kl_coef") == 0.05, "it is that of the run"
        await s.press("enter")
        [sent] = s.messages(ConfigForm.LiveSettingChanged)
        assert (sent.key, sent.value) == ("ppo.kl_coef", 0.06)
        assert " sent" in s.row("kl_coef")
        s.pane.show_run(settings(("ppo.kl_coef", 0.06)))
        await s.pilot.pause()
        assert " live" in s.row("kl_coef")
        await s.press("enter", "enter")  # the value that the run has
        assert " live" in s.row("kl_coef")
        assert len(s.messages(ConfigForm.LiveSettingChanged)) == 1


@pytest.mark.parametrize("away", ["escape", "down", "f6"])
async def test_a_live_setting_that_is_not_sent_is_restored(away: str) -> None:
    async with opened("quickstart") as s:
        s.pane.set_running(True)
        await s.go_to("ppo.kl_coef")
        await s.press("right")
        if away == "f6":
            s.app.set_focus(None)  # as another pane takes it
        elif away == "down":
            s.pane.form.rows.action_move(1)
        else:
            await s.press(away)
        await until(s.pilot, lambda: not s.app.query(FieldEditor) and "⏎ sends" not in s.help())
        assert "0.05" in s.row("kl_coef")
        assert s.messages(ConfigForm.LiveSettingChanged) == []


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


async def test_other_settings_wait_for_the_end_of_the_run() -> None:
    async with opened("quickstart", (120, 40)) as s:
        s.pane.set_running(True)
        await s.go_to("ppo.minibatches")
        for key in ("right", "enter", "backspace"):
            await s.press(key)
            assert "ppo.minibatches cannot change during a run: only settings marked live can" in s.help()
        assert not s.document.dirty
        await s.press("t")
        await s.press("x")
        assert s.app.query_one(TomlView).read_only
        assert not s.document.dirty
        assert s.app.heard == []
        await s.press("escape")
        assert "cannot change during a run" in s.help()
        s.pane.set_running(False)
        assert "cannot change during a run" not in s.help()
        await s.go_to("ppo.minibatches")
        await s.press("right")
        assert s.document.get("ppo.minibatches") == 2
        assert s.messages(ConfigForm.LiveSettingChanged) == []


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


async def test_nothing_is_undone_during_a_run() -> None:
    async with opened("quickstart") as s:
        await s.go_to("ppo.iterations")
        await s.press("right", "right", "u")
        s.pane.set_running(True)
        await s.press("u", "U")
        assert s.document.get("ppo.iterations") == 41
        assert s.messages(ConfigForm.LiveSettingChanged) == []
        s.pane.set_running(False)
        await s.press("u")
        assert s.document.get("ppo.iterations") == 40
