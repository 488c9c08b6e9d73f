"""The settings that the Config pane shows: the basic ones, all, or those that differ from the preset."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from config_app import Session, opened
from waiting import until
from workbench_app import screen_text, workbench

from workbench.config.document import ConfigDocument
from workbench.config.fields import BASIC, fields_by_key
from workbench.config.pane import ConfigPane
from workbench.config.rows import ConfigRows, FieldRow, Row, rows_of
from workbench.config.views import TomlView
from workbench.system.environment import ScreenSettings

pytestmark = pytest.mark.usefixtures("usual_quickstart")

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
        assert "value_model" not in s.text()
        assert at(s) == "model"
        await s.press("v")
        assert " shown, v" not in s.text()
        assert "value_model" in s.text()
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


async def test_the_current_pane_is_wide_and_its_help_beside_the_form_where_there_is_room() -> None:
    async with workbench(size=(200, 60), pane="config") as (screen, pilot):
        pane, form, about = screen.config, screen.query_one("#config-form"), screen.query_one("#config-help")
        await until(pilot, lambda: pane.size.width >= 100 and about.region.x == form.region.right)
        assert about.region.height == form.region.height
        pane.focus_field("ppo.kl_coef")
        await until(pilot, lambda: "default from: PPO concepts" in screen_text(screen))
        await pilot.press("t")  # the TOML needs the room
        await until(pilot, lambda: about.region.y >= form.region.bottom and bool(pane.query(TomlView)))
        pane.form.rows.focus()
        await pilot.press("z")
        await until(pilot, lambda: about.region.y == form.region.y and form.display and pane.size.width == 198)
        await pilot.press("escape", "z", "f3")
        await until(pilot, lambda: pane.size.width < 70 and about.region.y >= form.region.bottom)
