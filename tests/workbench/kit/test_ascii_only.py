"""The screen in ASCII: as wide as before, and every part of it still there."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from waiting import until

import workbench
from workbench.app import WorkbenchApp
from workbench.kit.theming import ascii_text
from workbench.opening import Opening
from workbench.system.environment import needs_ascii


@given(st.text())
def test_a_text_is_as_wide_as_before(text: str) -> None:
    assert ascii_text(text).isascii()
    assert cell_len(ascii_text(text)) == cell_len(text)


def test_every_sign_of_the_program_has_one_of_its_own() -> None:
    sources = "".join(path.read_text() for path in Path(workbench.__file__).parent.rglob("*.py"))
    signs = {char for char in sources if not char.isascii() and not char.isalpha() and cell_len(char)}
    assert len(signs) > 40
    assert {char for char in signs if ascii_text(char) == "?"} <= {"¡", "¬", "®", "҂", "˿"}, (
        "those are examples in code"
    )


def test_curves_and_letters_stay_legible() -> None:
    assert ascii_text("⠉⣀⡇⣿⠀") == "'.:# "
    assert ascii_text("╭─┬│ Zoë ▁▄█ 語") == "+-+| Zoe _-# ??"


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"PPO_WORKBENCH_ASCII": "1"}, True),
        ({"TERM": "linux"}, True),
        ({"PPO_WORKBENCH_ASCII": "", "TERM": "xterm"}, False),
        ({"PPO_WORKBENCH_ASCII": "0", "TERM": "linux"}, False),
    ],
)
def test_the_environment_decides(environment: dict[str, str], expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("locale.getencoding", lambda: "utf-8")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert needs_ascii() is expected
    monkeypatch.setenv("PPO_WORKBENCH_ASCII", "")
    monkeypatch.setattr("locale.getencoding", lambda: "ISO-8859-1")
    assert needs_ascii()


async def test_the_whole_screen_is_ascii() -> None:
    app = WorkbenchApp(Opening(), ascii_only=True)
    async with app.run_test(size=(120, 36)) as pilot:
        await until(pilot, lambda: app.main is not None and app.main.ready)
        await pilot.press("f3", "f9")
        lines = ["".join(part.text for part in strip) for strip in app.screen._compositor.render_strips()]
        assert "Training" in "".join(lines)
        assert "".join(lines).isascii(), [line for line in lines if not line.isascii()]
        assert lines[-1].split()[:2] == ["enter", "choose"], "the sign of the enter key would look like another key"
