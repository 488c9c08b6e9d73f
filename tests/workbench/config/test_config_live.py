"""Settings that may change during a run, and those that wait for its end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from config_app import opened, settings
from waiting import until

from workbench.config.form import ConfigForm, FieldEditor
from workbench.config.views import TomlView

pytestmark = pytest.mark.usefixtures("usual_quickstart")


async def test_the_keys_that_send_and_discard_a_live_setting_are_the_users() -> None:
    async with opened("quickstart") as s:
        s.app.set_keymap({"config-editor.submit": "f9", "config-editor.cancel": "f10"})
        s.pane.set_running(True)
        await s.go_to("ppo.kl_coef")
        await s.press("right")
        assert "F9 sends it to the run, F10 discards it" in s.help()


async def test_a_live_setting_is_sent_to_the_run_by_enter_and_by_nothing_else() -> None:
    async with opened("quickstart") as s:
        s.pane.set_running(True)
        await s.go_to("ppo.kl_coef")
        await s.press("right")
        assert s.app.query_one(FieldEditor).value == "0.06"
        assert "⏎ sends it to the run, esc discards it · at least 0" in s.help()
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


async def test_the_presets_value_waits_for_enter_too() -> None:
    async with opened("quickstart") as s:
        s.document.set("ppo.kl_coef", 0.3)
        s.pane.set_running(True)
        await s.go_to("ppo.kl_coef")
        await s.press("backspace")
        assert s.app.query_one(FieldEditor).value == "0.05"
        assert s.document.get("ppo.kl_coef") == 0.3
        await s.press("enter")
        assert [(one.key, one.value) for one in s.messages(ConfigForm.LiveSettingChanged)] == [("ppo.kl_coef", 0.05)]


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
        s.pane.set_running(False)
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
