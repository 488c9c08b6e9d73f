"""Custom keys: what a keys.toml may say, what is refused, and that Textual then obeys it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from textual.app import App
from textual.binding import Binding

from workbench.kit.keys import PRESETS, load_keymap, own_bindings

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
