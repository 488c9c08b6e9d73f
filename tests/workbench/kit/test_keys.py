"""Custom keys, the page of all keys, and the footer with those that apply now."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path, PurePath
from typing import ClassVar

import pytest
from apart import ROOT
from textual import actions
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.pilot import Pilot
from textual.widgets import Button, Input
from waiting import until

from workbench.app import WorkbenchApp
from workbench.kit.footer import KeyFooter
from workbench.kit.keys import PRESETS, load_keymap, own_bindings
from workbench.kit.theming import ALL_STYLES, ThemedApp
from workbench.screen.main_screen import MainScreen

MAIN = {"run.start": "space", "run.pause": "space", "run.step": "s", "run.stop": "x", "app.help": "f1,question_mark"}
LIST = {"list.up": "up", "list.down": "down", "list.search": "slash"}
KNOWN = [
    (owner, Binding(key, "", id=name))
    for owner, keys in (("Main", MAIN), ("List", LIST))
    for name, text in keys.items()
    for key in text.split(",")
]


def load(
    tmp_path: Path, text: str, bindings: Iterable[tuple[str, Binding]] = KNOWN
) -> tuple[dict[str, str], list[str]]:
    path = tmp_path / "keys.toml"
    path.write_text(text, encoding="utf-8")
    return load_keymap(path, bindings)


def test_without_a_file_there_is_no_keymap(tmp_path: Path) -> None:
    assert load_keymap(tmp_path / "keys.toml", KNOWN) == ({}, [])


@pytest.mark.parametrize(
    ("entries", "keymap", "problem"),
    [
        ('"list.search" = "?, ctrl+f"', {"list.search": "question_mark,ctrl+f"}, ""),  # in Textual's names
        ('"list.down" = "shift+ctrl+down,é"', {"list.down": "ctrl+shift+down,é"}, ""),
        ('list.search = "f"', {"list.search": "f"}, ""),
        ('"run.step" = "n"\n"run.stop" = "nokey"', {"run.step": "n"}, "run.stop = 'nokey': unknown key nokey"),
        # areas and classes
        ('"run.step" = "x"', {}, "run.step: x is also the key of run.stop: change one of them"),
        ('"run.stop" = "p"\n"run.step" = "p"', {"run.stop": "p"}, "run.step: p is also the key of run.stop"),
        ('"app.help" = "s"', {}, "app.help: s is also the key of run.step"),
        ('"list.search" = "s"', {"list.search": "s"}, ""),
        ('"run.step" = "x"\n"run.stop" = "s"', {"run.step": "x", "run.stop": "s"}, ""),
        ('"run.start" = "p"\n"run.pause" = "p"', {"run.start": "p", "run.pause": "p"}, ""),
    ],
)
def test_keys_apply_unless_they_belong_to_another_binding_of_the_area_or_class(
    tmp_path: Path, entries: str, keymap: dict[str, str], problem: str
) -> None:
    found, problems = load(tmp_path, f"[keys]\n{entries}")
    assert found == keymap
    assert len(problems) == bool(problem)
    assert not problem or problems[0].startswith(f"keys.toml: {problem}")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('[keys]\n"run.puase" = "p"', "keys.toml: run.puase is not a binding: did you mean run.pause?"),
        ('[keys]\n"zzz" = "p"', "keys.toml: zzz is not a binding"),
        ('[keys]\n"run.step" = 5', 'keys.toml: run.step = 5: write keys in quotes, like "space,p"'),
        (
            '[keys]\n"run.step" = "spce"',
            "keys.toml: run.step = 'spce': unknown key spce: did you mean space?",
        ),
        (
            '[keys]\n"run.step" = "Ctrl+D"',
            "keys.toml: run.step = 'Ctrl+D': unknown key Ctrl+D: did you mean ctrl+d?",
        ),
        ('[keys]\n"run.step" = "shift+g"', "keys.toml: run.step = 'shift+g': unknown key shift+g: write G"),
        ('[keys]\n"run.step" = "gg"', "keys.toml: run.step = 'gg': unknown key gg"),
        (
            '[keys]\n"run.step" = "p,"',
            "keys.toml: run.step = 'p,': a key is missing: write one or more, like \"space,p\"; write a comma as comma",
        ),
        ("kyes = 1", "keys.toml: kyes is not a key of this file: did you mean keys?: bindings go under [keys]"),
        ("keys = 1", "keys.toml: keys = 1: write it as a table, [keys]"),
        ('preset = "emacs"', "keys.toml: preset = 'emacs': write one of vim"),
        ("preset = 1", "keys.toml: preset = 1: write one of vim"),
        ("[keys", "keys.toml: cannot be read: "),
        (f"keys = {'[' * 3000}", "keys.toml: cannot be read: nested deeper than 32"),
    ],
)
def test_a_problem_is_one_line_and_changes_nothing(tmp_path: Path, text: str, problem: str) -> None:
    keymap, problems = load(tmp_path, text)
    assert keymap == {}
    assert len(problems) == 1
    assert problems[0].startswith(problem)
    assert problem.endswith(": ") or problems[0] == problem


def test_a_file_that_cannot_be_read_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "keys.toml").mkdir()
    assert load_keymap(tmp_path / "keys.toml", KNOWN) == ({}, ["keys.toml: cannot be read: Is a directory"])
    (tmp_path / "bytes.toml").write_bytes(b"\xff")
    assert load_keymap(tmp_path / "bytes.toml", KNOWN) == (
        {},
        ["bytes.toml: cannot be read: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"],
    )


def test_a_problem_shows_control_characters_and_does_not_obey_them(tmp_path: Path) -> None:
    _, problems = load(tmp_path, '[keys]\n"a\\u001b[31m" = "p"\n"run.step" = "\\u001b"')
    assert len(problems) == 2
    assert all(problem.isprintable() for problem in problems)


async def test_moving_one_of_the_sharing_bindings_leaves_the_others_where_they_are(tmp_path: Path) -> None:
    class Probe(App[None]):
        BINDINGS = [  # noqa: RUF012
            Binding("space", "start", id="run.start"),
            Binding("space", "pause", id="run.pause"),
        ]
        done = ""

        def action_start(self) -> None:
            self.done += "start "

        def action_pause(self) -> None:
            self.done += "pause "

    async with (app := Probe()).run_test() as pilot:
        app.set_keymap(load(tmp_path, '[keys]\n"run.pause" = "p"')[0])
        await pilot.press("space", "p")
        assert app.done == "start pause "


def test_the_file_overrides_its_preset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.toml").write_text('[keys]\n"list.up" = "k"\n"list.down" = "j"', encoding="utf-8")
    monkeypatch.setattr("workbench.kit.keys.PRESETS", tmp_path)
    assert load(tmp_path, 'preset = "mine"\n[keys]\n"list.up" = "i"') == ({"list.down": "j", "list.up": "i"}, [])
    keymap, problems = load(tmp_path, 'preset = "mine"\n[keys]\n"list.search" = "j"')
    assert keymap == {"list.up": "k", "list.down": "j"}
    assert problems == ["keys.toml: list.search: j is also the key of list.down: change one of them"]
    keymap, problems = load(tmp_path, 'preset = "mine"\n[keys]\n"list.up" = "j"')
    assert keymap == {"list.down": "j"}
    assert problems == ["keys.toml: list.up: j is also the key of list.down: change one of them"]


@pytest.mark.parametrize("preset", sorted(path.stem for path in PRESETS.glob("*.toml")))
def test_a_shipped_preset_names_bindings_of_the_app_and_has_no_conflict(preset: str, tmp_path: Path) -> None:
    keymap, problems = load(tmp_path, f'preset = "{preset}"', own_bindings())
    assert problems == []
    assert len(keymap) > 10
    assert {"j", "k"} <= {key for keys in keymap.values() for key in keys.split(",")}


def test_an_id_means_one_action() -> None:
    actions: dict[str, set[str]] = {}
    for _, binding in own_bindings():
        actions.setdefault(binding.id or "", set()).add(binding.action)
    assert {name: found for name, found in actions.items() if len(found) > 1} == {}


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


class Keys(ThemedApp[None]):
    CSS_PATH: ClassVar[list[str | PurePath]] = [*ALL_STYLES]
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("a,A", "press('a')", "go on", tooltip="Goes on"),
        Binding("b", "press('b')", "[/x] back"),
        Binding("c", "never", "not now"),
        Binding("d", "press('d')", "hidden", show=False),
        Binding("escape,n", "press('esc')", "close"),
        Binding("q,ctrl+q", "app.leave", "quit", tooltip="Leave"),
        Binding("question_mark,f1", "app.help", "help", show=False),
    ]
    pressed = ""
    never: bool | None = None  # whether that key can be used

    def __init__(self, *, field: bool = False) -> None:
        super().__init__()
        self.field = field

    def compose(self) -> ComposeResult:
        yield Input() if self.field else Button("x")
        yield KeyFooter()

    def action_leave(self) -> None: ...

    def action_help(self) -> None: ...

    def action_press(self, key: str) -> None:
        self.pressed += key

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return self.never if action == "never" else True


async def shown(app: Keys, pilot: Pilot[None]) -> str:
    """Return the footer's line, once the keys are known."""
    await pilot.pause()
    footer = app.query_one(KeyFooter)
    await until(pilot, lambda: "quit" in str(footer.content))
    return "".join(segment.text for segment in footer.render_line(0))


async def test_keys_are_shown_once_each_and_escape_palette_help_and_quit_at_the_right_end_at_every_width() -> None:
    app = Keys()
    async with app.run_test(size=(90, 5)) as pilot:
        line = await shown(app, pilot)
        assert line.startswith(" ⏎ press button  a go on  b [/x] back  c not now "), "enter, even if a widget hides it"
        assert line.endswith("▏esc close  ^p commands  ? help  q quit ")
        assert "hidden" not in line
        assert len(line) == 90
        enter = " ⏎ press button "
        for width, start in ((89, " a go on  b [/x] back  c not now ▏"), (88, " a go on  b [/x] back  … ")):
            await pilot.resize_terminal(width, 5)
            line = await shown(app, pilot)
            assert line.startswith(enter + start)
            assert line.endswith("▏esc close  ^p commands  ? help  q quit ")
        await pilot.resize_terminal(69, 5)
        assert await shown(app, pilot) == enter + " a go on  …  ▏esc close  ^p commands  ? help  q quit "


async def test_while_text_is_typed_only_keys_that_are_no_text_are_shown() -> None:
    app = Keys(field=True)
    async with app.run_test(size=(60, 5)) as pilot:
        assert (await shown(app, pilot)).rstrip().endswith("esc close  ^p commands  f1 help  ^q quit")


async def test_a_click_presses_the_key_and_the_mouse_over_it_says_what_it_does() -> None:
    app = Keys()
    async with app.run_test(size=(90, 5)) as pilot:
        line = await shown(app, pilot)
        footer = app.query_one(KeyFooter)
        await pilot.hover(footer, offset=(line.index("go on"), 0))
        assert footer.tooltip == "Goes on"
        for words in ("go on", "back", "not now"):
            await pilot.click(footer, offset=(line.index(words), 0))
        await until(pilot, lambda: app.pressed == "ab")
        await pilot.click(footer, offset=(line.index("▏"), 0))
        await pilot.hover(footer, offset=(line.index("▏"), 0))
        assert footer.tooltip is None
        assert app.pressed == "ab"


async def test_keys_appear_and_disappear_as_they_begin_and_cease_to_apply() -> None:
    app = Keys()
    async with app.run_test(size=(90, 5)) as pilot:
        assert "not now" in await shown(app, pilot), "muted"
        app.never = False
        app.refresh_bindings()
        await until(pilot, lambda: "not now" not in str(app.query_one(KeyFooter).content))
