"""A new configuration in three questions: what each answer means, what is refused and why, and the way back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from textual.widgets import Input
from waiting import until
from workbench_app import HOME, screen_text, workbench

from trainer.config import validate
from trainer.errors import TrainerError
from workbench.config.pane import ConfigPane
from workbench.kit.dialog import AnswerScreen, ConfirmScreen
from workbench.runs.loop import HomeLoop
from workbench.runs.new_configuration import Option, questions


def option(title: str, reward_models: tuple[Path, ...] = ()) -> Option:
    (found,) = [one for options in questions(reward_models).values() for one in options if one.title == title]
    return found


def write_files() -> None:
    for folder in ("model", "bare", "no-weights"):
        Path(folder).mkdir()
    Path("model/config.json").write_text("{}")
    Path("model/model.safetensors").write_bytes(b"")
    Path("no-weights/config.json").write_text("{}")
    Path("good.jsonl").write_text(json.dumps({"prompt": "Once", "mood": "glad"}) + "\n")
    Path("other.jsonl").write_text(json.dumps({"question": "Why?", "number": 3}) + "\n")
    Path("two.jsonl").write_text(json.dumps({"question": "Why?", "answer": "So"}) + "\n")
    Path("chat.jsonl").write_text(json.dumps({"prompt": [{"role": "user", "content": "Hi"}]}) + "\n")
    Path("lines.txt").write_text("One day\nOne night\n")
    Path("blank.jsonl").write_text('{"prompt": "  "}\n')
    Path("one.py").write_text("import nothing_there\ndef score(**_): ...\ndef _help(): ...\n")
    Path("several.py").write_text("def a(): ...\ndef b(): ...\n")
    Path("broken.py").write_text("def a(:\n")


def settings_of(title: str, text: str = "") -> dict[str, Any]:
    return option(title).settings(text)


def test_every_answer_gives_valid_settings() -> None:
    write_files()
    given = [
        settings_of("Starter"),
        settings_of("Story openings"),
        settings_of("Cheerful words"),
        settings_of("Another model", "model"),
        settings_of("Another model", "owner/name-1.5"),
        settings_of("Your own", "good.jsonl"),
        settings_of("Your own", "lines.txt"),
        settings_of("Your own", "chat.jsonl"),
        settings_of("Your own", "story-openings"),
        settings_of("Your own", "other.jsonl"),
        settings_of("A length", "40"),
        settings_of("A pattern", "joy|[a-z]+"),
        settings_of("Your own function", "one.py"),
        settings_of("Your own function", "several.py:b"),
        option("rm", (Path("runs/rm"),)).settings(""),
    ]
    for settings in given:
        tables: dict[str, Any] = {}
        for key, value in settings.items():
            section, _, name = key.partition(".")
            tables.setdefault(section, {})[name] = value
        validate(tables)
    assert settings_of("Your own", "other.jsonl")["data.column"] == "question"
    named = {"data.prompts": "two.jsonl", "data.column": "answer"}
    assert settings_of("Your own", "two.jsonl:answer") == named
    assert settings_of("Your own function", "one.py") == {"reward.sources": ["one.py:score"]}, "and it was not run"
    assert settings_of("A length", "40") == {"reward.sources": [{"kind": "length", "target": 40}]}
    assert given[-1] == {"reward.sources": [{"kind": "model", "path": "runs/rm"}]}


@pytest.mark.parametrize(
    ("title", "text", "words"),
    [
        ("Another model", "nowhere", "'nowhere' is not a folder, and not a name as in owner/name"),
        ("Another model", "./nowhere/at-all", "is not a folder"),
        ("Another model", "bare", "'bare' has no config.json"),
        ("Another model", "no-weights", "has no weights"),
        ("Another model", "\0", "is not a folder"),
        ("Another model", "x" * 300, "cannot be read"),
        ("Your own", "nowhere.jsonl", "no such file"),
        ("Your own", "two.jsonl", "the columns are question, answer; name one, as in two.jsonl:question"),
        ("Your own", "two.jsonl:anser", "no column 'anser': the columns are question, answer"),
        ("Your own", "blank.jsonl", "is empty: remove the row"),
        ("Your own", "storyopenings", "did you mean 'story-openings'?"),
        ("A length", "forty", "'forty': must be a whole number"),
        ("A length", "-3", "= -3: must be at least 0"),
        ("A length", "99999999999", "= 99999999999: must be at most"),
        ("A pattern", "(", "is not a regular expression"),
        ("Your own function", "nowhere.py:score", "no file 'nowhere.py'"),
        ("Your own function", "several.py", "name a function of 'several.py': it has a, b"),
        ("Your own function", "several.py:c", "has no function 'c': it has a, b"),
        ("Your own function", "broken.py:a", "is not Python, line 1"),
        ("Your own function", "\0.py:a", "no file"),
    ],
)
def test_what_would_not_train_is_refused_with_the_reason(title: str, text: str, words: str) -> None:
    write_files()
    with pytest.raises(TrainerError) as refused:
        option(title).settings(text)
    assert words in str(refused.value)


def asked(screen: Any, number: int) -> bool:
    return isinstance(screen.app.screen, AnswerScreen) and f"{number} of 3" in screen_text(screen.app.screen)


async def test_three_questions_make_a_configuration_that_opens_with_its_changes_shown() -> None:
    write_files()
    async with workbench(size=(80, 24), pane=HOME) as (screen, pilot):

        async def to_own_answer() -> None:
            await pilot.press("down", "enter")
            await until(pilot, lambda: isinstance(screen.app.screen.focused, Input))

        await until(pilot, lambda: "1 Prompts" in screen_text(screen))
        await pilot.press("g")
        await until(pilot, lambda: asked(screen, 1))
        await to_own_answer()
        await pilot.press(*"bare", "enter")
        await until(pilot, lambda: "✖ 'bare' has no config.json" in screen_text(screen.app.screen))
        screen.app.screen.query_one(Input).value = "model"
        await pilot.press("enter")
        await until(pilot, lambda: asked(screen, 2))
        await pilot.press("escape")
        await until(pilot, lambda: asked(screen, 1))
        await to_own_answer()
        assert screen.app.screen.query_one(Input).value == "model"
        await pilot.press("escape")
        await until(pilot, lambda: asked(screen, 1))
        await to_own_answer()
        await pilot.press("enter")
        await until(pilot, lambda: asked(screen, 2))
        await pilot.press("enter")
        await until(pilot, lambda: asked(screen, 3))
        await to_own_answer()
        await pilot.press("4", "0", "enter")
        await until(pilot, lambda: screen.app.screen is screen)
        pane = screen.query_one(ConfigPane)
        assert pane.has_focus_within
        assert {key for key, change in pane.document.changes.items() if change.unsaved} == {
            "model.path",
            "reward.sources",
        }
        assert pane.document.config is not None
        assert pane.document.get("model.path") == "model"
        await pilot.press("f9", "g")
        await until(pilot, lambda: isinstance(screen.app.screen, ConfirmScreen))
        await pilot.press("escape")
        await until(pilot, lambda: screen.app.screen is screen)
        assert pane.document.dirty


async def test_escape_before_the_first_question_changes_nothing_and_a_file_is_the_base(tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text("[ppo]\niterations = 7\n")
    async with workbench(source=str(mine), size=(80, 24), pane=HOME) as (screen, pilot):
        await until(pilot, lambda: bool(screen.query_one(HomeLoop).selected))
        await pilot.press("g")
        await until(pilot, lambda: asked(screen, 1))
        await pilot.press("escape")
        await until(pilot, lambda: screen.app.screen is screen)
        assert not screen.config.document.dirty
        await pilot.press("g")
        for number in (1, 2, 3):
            await until(pilot, lambda number=number: asked(screen, number))  # type: ignore[misc]
            await pilot.press("enter")
        await until(pilot, lambda: screen.query_one(ConfigPane).has_focus_within)
        document = screen.config.document
        assert (document.path, document.get("ppo.iterations")) == (mine, 7)
