"""The editors of the form: what they say about a value while it is typed."""

from __future__ import annotations

import threading

import pytest
from config_app import Session, opened
from textual.widgets import Static
from waiting import until

from workbench.config import pane
from workbench.config.fields import fields_by_key, limits
from workbench.config.form import FieldEditor


def note(s: Session) -> str:
    shown = s.app.query_one("#config-note", Static)
    return str(shown.render()) if shown.display else ""


def test_what_is_allowed_is_said_with_its_unit() -> None:
    fields = fields_by_key()
    assert limits(fields["ppo.kl_coef"]) == "at least 0, at most 100 · score per nat"
    assert limits(fields["ppo.iterations"]) == "at least 1"
    assert limits(fields["rollout.stop"]).startswith("items between commas, none")
    assert limits(fields["data.shuffle"]) == "true or false"
    assert limits(fields["data.system"]) == ""


async def test_the_range_and_then_the_broken_rule_are_shown_while_a_value_is_typed() -> None:
    async with opened("quickstart", (80, 40)) as s:
        await s.go_to("ppo.kl_coef")
        await s.press("enter")
        editor = s.app.query_one(FieldEditor)
        assert note(s) == "at least 0, at most 100 · score per nat"
        assert s.app.active_bindings["enter"].binding.description == "set"
        assert s.app.query_one("#config-note").region.y == editor.region.y + 1
        await s.press("minus", "1")
        assert note(s) == "✖ kl_coef must be at least 0"
        await s.press("backspace", "backspace", "x")
        assert note(s) == "✖ kl_coef must be a number"
        await s.press("backspace", "2")
        assert note(s) == "at least 0, at most 100 · score per nat"
        await s.press("enter")
        assert s.document.get("ppo.kl_coef") == 2
        assert note(s) == ""


async def test_what_a_change_needs_is_imported_in_a_thread_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []
    monkeypatch.setattr(pane, "load_writer", lambda: threads.append(threading.current_thread()))
    async with opened("quickstart") as s:
        await until(s.pilot, lambda: len(threads) == 1)
        assert threads != [threading.main_thread()]
