"""The three questions of a new configuration: their answers, and the checks of what was typed."""

from __future__ import annotations

import ast
import asyncio
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from textual.app import App

from trainer.config.problems import located_problems
from trainer.config.schema import DataConfig
from trainer.data import load_prompts, shipped_sets
from trainer.data.readers import source_rows
from trainer.errors import TrainerError, UsageError, storage_error
from workbench.kit.dialog import AnswerScreen, Reply, TextPromptScreen
from workbench.kit.saving import given_path
from workbench.text import visible

_ROWS = 20  # rows of a file of prompts that are read
_COUNT = re.compile(r"-?\d{1,99}")  # of tokens; the schema says which are allowed
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_PATH = re.compile(r"[~./]|.*/.*/")  # what a name on the hub does not look like
_WEIGHTS = ("*.safetensors", "*.npz")

Settings = dict[str, Any]
"""Settings by key, as in `model.path`, that an answer stands for."""


class Option(NamedTuple):
    """An answer to a question. field: what its text field asks for; empty if it needs none.

    settings: checks the text and returns the settings. It blocks on files; raises TrainerError.
    """

    title: str
    text: str
    settings: Callable[[str], Settings]
    field: str = ""


def questions(reward_models: Sequence[Path]) -> dict[str, list[Option]]:
    """Return the questions with their answers. reward_models: the folders of those in this workspace, newest first."""
    models = []
    for folder in reward_models:
        settings = partial(_reward, {"kind": "model", "path": str(folder)})
        models.append(Option(visible(folder.name), "reward model trained here", settings))
    return {
        "Which model?": [
            Option("Starter", "SmolLM2-135M: trains on a laptop", lambda _: {"model.path": "starter"}),
            Option("Another model", "a folder, or a name on the Hugging Face hub", _model, "folder or owner/name"),
        ],
        "Which prompts?": [
            Option(
                "Story openings", "beginnings to go on from, packaged", lambda _: {"data.prompts": "story-openings"}
            ),
            Option(
                "Your own",
                "a file (.jsonl, .txt, .csv, .parquet) or a dataset",
                _prompts,
                "file or dataset, or file:column",
            ),
        ],
        "What is rewarded?": [
            Option("Cheerful words", "the sentiment lexicon, packaged", partial(_reward, "lexicon")),
            Option(
                "A length",
                "responses near a number of tokens",
                lambda text: _reward({"kind": "length", "target": int(text) if _COUNT.fullmatch(text) else text}),
                "tokens, such as 40",
            ),
            Option(
                "A pattern",
                "responses in which a regular expression is found",
                lambda text: _reward({"kind": "regex", "pattern": text}),
                "regular expression",
            ),
            *models,
            Option("Your own function", "in a Python file", _function, "rewards.py:score"),
        ],
    }


def _model(text: str) -> Settings:
    """Check a folder with a model, or the form of a name on the hub, which is downloaded at the first start."""
    path = _existing(text)
    if path is not None and path.is_dir():
        if not (path / "config.json").is_file():
            raise UsageError(f"'{text}' has no config.json: name the folder of a model")
        if not any(found for kind in _WEIGHTS for found in path.glob(kind)):
            raise UsageError(f"'{text}' has no weights (*.safetensors): name the folder of a model")
    elif _PATH.match(text) or not _HUB_NAME.fullmatch(text):
        raise UsageError(f"'{text}' is not a folder, and not a name as in owner/name")
    return _checked({"model.path": text})


def _prompts(text: str) -> Settings:
    """Check that the first rows of a file or dataset have a prompt; choose its column if that has another name.

    Raises UsageError if it has several: `prompts.csv:question` names one.
    """
    sets = shipped_sets()
    column = "prompt"
    if ":" in text and text not in sets and _existing(text) is None:
        text, _, column = text.rpartition(":")
    if text not in sets:
        first = next(iter(source_rows(text, "train", column=column, prompt_sets=sets)), None)
        columns = first.columns if first is not None else {}
        fitting = [name for name, value in columns.items() if isinstance(value, str)]
        if columns and column not in columns:
            if column != "prompt" or len(fitting) != 1:
                names = list(map(str, columns))
                listed = ", ".join(names)
                raise UsageError(f"no column '{column}': the columns are {listed}; name one, as in {text}:{names[0]}")
            column = fitting[0]
    settings = {"data.prompts": text, "data.column": column}
    _checked(settings)
    load_prompts(DataConfig(prompts=text, column=column, limit=_ROWS))
    return settings


def _function(text: str) -> Settings:
    """Check that a Python file has the function, without running it. `rewards.py` alone means its only function."""
    file, _, name = text.partition(":")
    path = _existing(file)
    if path is None or not path.is_file():
        raise UsageError(f"no file '{file}': write it as rewards.py:score")
    with storage_error(f"cannot read '{file}'"):
        content = path.read_bytes()
    try:
        tree = ast.parse(content, file)
    except (SyntaxError, ValueError, RecursionError) as error:
        line = getattr(error, "lineno", None)
        raise UsageError(f"'{file}' is not Python{f', line {line}' if line else ''}: {error}") from None
    names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")]
    if not name and len(names) == 1:
        name = names[0]
    if name not in names:
        found = f"it has {', '.join(names)}" if names else "it has none"
        wanted = f"'{file}' has no function '{name}'" if name else f"name a function of '{file}'"
        raise UsageError(f"{wanted}: {found}")
    return _reward(f"{file}:{name}")


def _reward(source: object, _: str = "") -> Settings:
    """Return the settings of one source of rewards, whatever was typed."""
    return _checked({"reward.sources": [source]})


def _checked(settings: Settings) -> Settings:
    """Return `settings` if they are valid. Raises UsageError with the first problem."""
    tables: dict[str, dict[str, Any]] = {}
    for key, value in settings.items():
        section, _, name = key.partition(".")
        tables.setdefault(section, {})[name] = value
    if problems := located_problems(tables):
        raise UsageError(problems[0].message)
    return settings


def _existing(text: str) -> Path | None:
    """Return the path if there is something. Raises StorageError for one that the system refuses."""
    path = given_path(text)
    with storage_error(f"'{text}' cannot be read"):
        return path if path.exists() else None


async def ask_for_settings(app: App[Any], reward_models: Sequence[Path]) -> Settings | None:
    """Ask the questions one after the other; return what the answers stand for, or None if the user closes the first.

    Escape goes back. What was typed is there again.
    """
    asked, answers, typed = [*questions(reward_models).items()], list[Settings](), dict[str, str]()
    while len(answers) < len(asked):
        title, options = asked[len(answers)]
        heading = f"New configuration, {len(answers) + 1} of {len(asked)}: {title}"
        replies = [Reply(str(place), option.title, option.text) for place, option in enumerate(options)]
        chosen = await app.push_screen_wait(AnswerScreen(heading, replies))
        if chosen is None and not answers:
            return None
        if chosen is None:
            answers.pop()
        elif (option := options[int(chosen)]).field:
            found: Settings = {}
            question, accept = f"{option.title}: {option.field}", partial(_accepted, option, found)
            prompt = TextPromptScreen(question, typed.get(title, ""), submit=accept)
            if (text := await app.push_screen_wait(prompt)) is not None:
                typed[title] = text
                answers.append(found)
        else:
            answers.append(option.settings(""))
    return {key: value for answer in answers for key, value in answer.items()}


async def _accepted(option: Option, found: Settings, text: str) -> str:
    """Put the settings of what was typed into `found`; return why it cannot be used, if it cannot."""
    try:
        found |= await asyncio.to_thread(option.settings, text.strip())
    except TrainerError as error:
        return " ".join(str(error).split())
    return ""
