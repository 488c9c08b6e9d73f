"""Search, help and problems of the Config pane."""

from __future__ import annotations

from pathlib import Path

import pytest
from config_app import opened
from textual.widgets import OptionList

from workbench.config.document import ConfigDocument
from workbench.config.rows import ConfigRows
from workbench.config.views import TomlView
from workbench.kit.cursor_list import FilterField

pytestmark = pytest.mark.usefixtures("usual_quickstart")

NARROW = (38, 30)


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
