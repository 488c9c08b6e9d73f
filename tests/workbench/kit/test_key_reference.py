"""The page of all keys is up to date, and each binding has its words and its action."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys

import pytest
from apart import ROOT
from textual import actions

from workbench.app import WorkbenchApp
from workbench.kit.keys import own_bindings
from workbench.screen.main_screen import MainScreen


def test_the_page_of_keys_is_up_to_date() -> None:
    printed = subprocess.run([sys.executable, ROOT / "docs" / "keys.py"], capture_output=True, text=True, check=True)
    assert (ROOT / "docs" / "keys.md").read_text() == printed.stdout, "run: python docs/keys.py > docs/keys.md"


@pytest.mark.parametrize("owner", sorted({owner for owner, _ in own_bindings()}))
def test_every_binding_has_words_and_an_action_that_exists(owner: str) -> None:
    module, _, name = owner.rpartition(".")
    classes = vars(importlib.import_module(module))
    own = classes[name]
    for binding in (binding for known, binding in own_bindings() if known == owner):
        assert re.fullmatch(r"[a-z][a-z-]*\.[a-z][a-z0-9_-]*", binding.id or ""), binding
        assert binding.description, binding
        assert binding.tooltip, binding
        target, action, _ = actions.parse(binding.action)
        kinds = {"app": [WorkbenchApp], "screen": [MainScreen, *classes.values()]}.get(target, [own])
        assert any(hasattr(kind, f"action_{action}") for kind in kinds), f"{owner} {binding.id}: no action_{action}"
