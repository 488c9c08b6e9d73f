"""Application for the test of one widget, with the colours that a theme may leave out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from textual.app import App

from workbench.kit.theming import EXTRA_VARIABLES

Result = TypeVar("Result")


class ThemedApp(App[Result]):
    def set_keymap(self, keymap: Mapping[str, str]) -> None:
        self.keymap = keymap
        super().set_keymap(keymap)

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return EXTRA_VARIABLES
