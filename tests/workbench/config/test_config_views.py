"""The settings that the Config pane shows: the basic ones, all, and first what differs from the preset."""

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
from workbench.config.rows import CHANGED, ConfigRows, FieldRow, Row, SectionRow, rows_of
from workbench.config.views import FieldHelp, TomlView
from workbench.kit.screen_settings import ScreenSettings

pytestmark = pytest.mark.usefixtures("usual_quickstart")

EVERY = len(fields_by_key())


def keys(rows: list[Row]) -> list[str]:
    return [row.spot for row in rows if isinstance(row, FieldRow)]


def test_the_basic_settings_are_few_and_nothing_that_matters_is_hidden() -> None:
    assert 12 <= len(BASIC) <= 18
    assert {"model.path", "data.prompts", "reward.sources", "ppo.iterations", "optim.policy_lr"} <= BASIC
    document = ConfigDocument.open("quickstart")
    assert set(keys(rows_of(document))) == BASIC
    assert set(keys(rows_of(document, view="all"))) == set(fields_by_key())
    assert "ppo.gamma" in keys(rows_of(document, query="discount")), "a search finds all"
    document.set("ppo.gamma", 0.9)
    document.set("health.pause", True)
    document.set("ppo.minibatches", 3)
    document.set("eval.best_of", 0)
    found = keys(rows_of(document, keep="optim.eps", sent=["ppo.clip"], proposed={"ppo.lam": 0.9}))
    assert {"ppo.gamma", "health.pause", "eval.best_of", "optim.eps", "ppo.clip", "ppo.lam"} <= set(found)
    changed = ["changed ppo.minibatches", "changed ppo.gamma", "changed eval.best_of", "changed health.pause"]
    assert found[:4] == changed
    assert len(found) == len(set(found)) == len(BASIC) + 6 + 4


def test_what_differs_from_the_preset_comes_first_unless_nothing_does() -> None:
    document = ConfigDocument.open("quickstart")
    assert rows_of(document)[0].key != CHANGED
    document.set("ppo.kl_coef", 0.2)
    document.set("ppo.gamma", 0.9)
    head, *rows = rows_of(document)
    assert isinstance(head, SectionRow)
    assert (head.title, head.purpose, head.changed) == (
        "Changed settings",
        "from the preset (also in their sections)",
        2,
    )
    assert [row.spot for row in rows[:2]] == ["changed ppo.kl_coef", "changed ppo.gamma"]
    assert "ppo.kl_coef" in [row.spot for row in rows[2:]], "also in its section"
    folded = rows_of(document, folded={CHANGED})
    assert [row.key for row in folded[:2]] == [CHANGED, "model"]
    assert rows_of(document, query="kl")[0].key != CHANGED
    assert rows_of(ConfigDocument("[ppo]\nclip = 0.3\n"))[0].purpose == "from the defaults (also in their sections)"  # type: ignore[union-attr]


def test_a_setting_that_is_only_written_differently_is_not_changed(tmp_path: Path) -> None:
    text = '[reward]\nsources = [{ kind = "lexicon", weight = 1.0 }]\n[ppo]\nclip = 0.3\n'
    document = ConfigDocument(f"{text}[run]\ndir = {str(Path('runs').absolute())!r}\n")
    assert [row.spot for row in rows_of(document)[:3]] == [CHANGED, "changed ppo.clip", "model"]
    document.set("reward.sources", [{"kind": "lexicon", "weight": 2.0}])
    document.set("run.dir", "elsewhere")
    assert [key for key, change in document.changes.items() if change.from_preset] == [
        "reward.sources",
        "ppo.clip",
        "run.dir",
    ]


def at(s: Session) -> str:
    row = s.app.query_one(ConfigRows).selected
    assert row is not None
    return row.spot


async def test_the_view_shows_basic_or_all_and_changes_first_while_the_cursor_stays_in_its_line() -> None:
    async with opened("quickstart", (80, 24), shows_all=False) as s:
        rows = s.app.query_one(ConfigRows)
        assert f"{len(BASIC)} of {EVERY} shown, v shows all" in s.text()
        assert "gamma" not in s.text()
        assert at(s) == "model"
        await s.press("v")
        assert "shows all" not in s.text()
        assert "value_model" in s.text()
        await s.press("v")
        assert "value_model" not in s.text()

        await s.go_to("ppo.gamma")  # a hidden one, as the command palette does
        assert at(s) == "ppo.gamma"
        assert f"{len(BASIC) + 1} of {EVERY} shown" in s.text()
        line = rows.line
        await s.press("left")
        assert (at(s), rows.line) == ("ppo.gamma", line), "the list above got two lines longer"
        await s.press("right")
        assert (at(s), rows.line) == ("ppo.gamma", line)
        assert not s.document.changes
        assert rows._items[0].key == "model"

        await s.press("left", "home")
        assert at(s) == CHANGED
        assert "Changed settings" in s.text()
        await s.press("down", "left")
        assert at(s) == "changed ppo.gamma"
        assert s.document.get("ppo.gamma") == 0.98
        await s.press("backspace")
        assert at(s) == "changed ppo.gamma", "the next key must not reach another setting"
        assert s.document.get("ppo.gamma") == 1
        await s.press("left", "enter")
        await s.write("0.5")
        await s.press("enter")
        assert s.document.get("ppo.gamma") == 0.5
        await s.press("up", "enter")
        assert "▸ Changed settings" in s.text()

        await s.press("slash", *"lambda", "enter")
        assert "shows all" not in s.text()
        assert at(s) == "ppo.lam"
        await s.press("escape")
        assert at(s) == "ppo.lam"
        s.pane.show_document(ConfigDocument.open("quickstart"))
        assert at(s) == "model"


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
        s.document.set("ppo.epochs", 3)
        s.pane.document_changed()
        await s.press("home", "y", "enter")
        assert tomllib.loads(copied[-1]) == {"data": {"system": 'say "hi"\n'}, "ppo": {"epochs": 3}}
        await s.press("down", "y")
        assert len(tomllib.loads(copied[-1])["model"]) == sum(key.startswith("model.") for key in fields_by_key())


async def test_the_view_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PPO_WORKBENCH_CONFIG_DIR", str(tmp_path))
    assert not ScreenSettings.load(tmp_path).all_settings
    async with workbench(pane="config") as (screen, pilot):
        pane = screen.query_one(ConfigPane)
        assert not pane.shows_all
        await pilot.press("v")
        await until(pilot, lambda: pane.shows_all)
    assert ScreenSettings.load(tmp_path).all_settings
    (tmp_path / "workbench.toml").write_text("all_settings = 3")
    assert not ScreenSettings.load(tmp_path).all_settings


async def test_the_current_pane_is_wide_and_its_help_beside_the_form_where_there_is_room() -> None:
    async with workbench(size=(200, 60), pane="config") as (screen, pilot):
        pane, form, about = screen.config, screen.query_one("#config-form"), screen.query_one(FieldHelp)

        def is_beside() -> bool:
            return about.region.x == form.region.right and about.region.height == form.region.height

        await until(pilot, lambda: pane.size.width >= 100 and is_beside())
        assert form.size.width >= 60
        pane.focus_field("ppo.kl_coef")
        await until(pilot, lambda: "default from: PPO concepts" in screen_text(screen))
        await pilot.press("t")  # the TOML needs the room
        await until(pilot, lambda: about.region.y >= form.region.bottom and bool(pane.query(TomlView)))
        assert form.display
        pane.form.rows.focus()
        await pilot.press("z")
        await until(pilot, lambda: about.region.y == form.region.y and form.display and pane.size.width == 198)
        await pilot.press("escape", "z", "f3")
        await until(pilot, lambda: pane.size.width < 70 and about.region.y >= form.region.bottom)
        for size, width in (((120, 40), 60), ((80, 24), 78)):
            await pilot.press("f2")
            await pilot.resize_terminal(*size)
            await until(pilot, lambda width=width: pane.size.width == width)  # type: ignore[misc]
            assert about.region.y >= form.region.bottom
        await pilot.resize_terminal(120, 40)
        await until(pilot, lambda: not screen.query_one("#samples").display and pane.size.width == 60)
        await pilot.press("f4")
        await until(pilot, lambda: screen.query_one("#samples").display and pane.size.width < 40)
