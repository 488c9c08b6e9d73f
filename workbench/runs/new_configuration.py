"""The three questions of a new configuration: their answers, the checks of what was typed, and the dialog of each."""

from __future__ import annotations

import ast
import asyncio
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input, OptionList, Static

from trainer.config.problems import located_problems
from trainer.config.schema import DataConfig
from trainer.data import load_prompts, shipped_sets
from trainer.data.readers import source_rows
from trainer.errors import TrainerError, UsageError
from workbench.kit.dialog import Dialog, PlainInput
from workbench.text import visible

_ROWS = 20  # rows of a file of prompts that are read
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


class SetupQuestion(NamedTuple):
    """A question with its answers."""

    title: str
    options: Sequence[Option]


def questions(reward_models: Sequence[Path]) -> list[SetupQuestion]:
    """Return the questions. reward_models: the folders of those in this workspace, the newest first."""
    models = [
        Option(
            visible(folder.name),
            "reward model trained here",
            lambda _, folder=folder: _source({"kind": "model", "path": str(folder)}),  # type: ignore[misc]
        )
        for folder in reward_models
    ]
    return [
        SetupQuestion(
            "Which model?",
            [
                Option("Starter", "SmolLM2-135M: trains on a laptop", lambda _: {"model.path": "starter"}),
                Option("Another model", "a folder, or a name on the Hugging Face hub", _model, "folder or owner/name"),
            ],
        ),
        SetupQuestion(
            "Which prompts?",
            [
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
        ),
        SetupQuestion(
            "What is rewarded?",
            [
                Option("Cheerful words", "the sentiment lexicon, packaged", lambda _: _source("lexicon")),
                Option("A length", "responses near a number of tokens", _length, "tokens, such as 40"),
                Option(
                    "A pattern",
                    "responses in which a regular expression is found",
                    lambda text: _source({"kind": "regex", "pattern": text}),
                    "regular expression",
                ),
                *models,
                Option("Your own function", "in a Python file", _function, "rewards.py:score"),
            ],
        ),
    ]


def _model(text: str) -> Settings:
    """Check a folder with a model, or the form of a name on the hub, which is downloaded at the first start."""
    path = _expanded(text)
    if path.is_dir():
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
    if ":" in text and text not in sets and not _expanded(text).exists():
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


def _length(text: str) -> Settings:
    """Check a number of tokens."""
    if not text.isdecimal() or len(text) > 6:
        raise UsageError(f"'{text}' is not a number of tokens: write one such as 40")
    return _source({"kind": "length", "target": int(text)})


def _function(text: str) -> Settings:
    """Check that a Python file has the function, without running it. `rewards.py` alone means its only function."""
    file, _, name = text.partition(":")
    path = _expanded(file)
    if not path.is_file():
        raise UsageError(f"no file '{file}': write it as rewards.py:score")
    try:
        tree = ast.parse(path.read_bytes(), file)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        raise UsageError(f"'{file}' is not Python{f', line {line}' if line else ''}: {error}") from None
    except (OSError, RecursionError) as error:
        raise UsageError(f"cannot read '{file}': {error}") from None
    names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")]
    if not name and len(names) == 1:
        name = names[0]
    if name not in names:
        found = f"it has {', '.join(names)}" if names else "it has none"
        wanted = f"'{file}' has no function '{name}'" if name else f"name a function of '{file}'"
        raise UsageError(f"{wanted}: {found}")
    return _source(f"{file}:{name}")


def _source(source: object) -> Settings:
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


def _expanded(text: str) -> Path:
    """Return the path. Raises UsageError for one that the system refuses."""
    try:
        path = Path(text).expanduser()
        path.exists()
    except (OSError, RuntimeError, ValueError) as error:
        raise UsageError(f"'{text}' cannot be read: {error}") from None
    return path


class Given(NamedTuple):
    """An answer: its place in the list, the text that was typed, and the settings that it stands for."""

    place: int
    text: str
    settings: Settings


class SetupScreen(Dialog[Given | None]):
    """Asks one question. Its result is the answer, once that has been checked; None to go back.

    number, count: of the question. before: the answer when it was asked the last time.
    """

    TITLE = "New configuration"
    HELP = "Three questions: model, prompts, reward. The answers open in Config as unsaved changes."
    DOCS = "quickstart"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "back", id="setup.back", tooltip="Go back one question; before the first, close"),
    ]

    def __init__(self, question: SetupQuestion, number: int, count: int, before: Given | None = None) -> None:
        super().__init__()
        self._question, self._number, self._count = question, number, count
        self._before = before

    def compose(self) -> ComposeResult:
        options = self._question.options
        wide = max(len(option.title) for option in options) + 2
        with Vertical(classes="dialog"):
            heading = f"New configuration, {self._number} of {self._count}: {self._question.title}"
            yield Static(heading, markup=False, classes="question")
            yield OptionList(
                *(Content.assemble((f"{option.title:{wide}}", "bold"), option.text) for option in options),
                compact=True,
            )
            yield PlainInput(self._before.text if self._before else "", compact=True)
            yield Static(markup=False, classes="detail")

    def on_mount(self) -> None:
        listed = self.query_one(OptionList)
        listed.highlighted = self._before.place if self._before else 0
        listed.focus()
        self._show_field()

    @property
    def _option(self) -> Option:
        return self._question.options[self.query_one(OptionList).highlighted or 0]

    @on(OptionList.OptionHighlighted)
    @on(Input.Changed)
    def _show_field(self) -> None:
        """Show the text field if the answer under the cursor needs one, and what enter does."""
        field = self.query_one(PlainInput)
        field.display = bool(self._option.field)
        field.placeholder = self._option.field
        self.workers.cancel_group(self, "check")
        last = self._number == self._count
        self._say(
            self.hint(
                ("enter", "open in Config" if last else "next question"),
                ("setup.back", "cancel" if self._number == 1 else "back"),
            )
        )

    @on(OptionList.OptionSelected)
    def _choose(self) -> None:
        self._show_field()
        field = self.query_one(PlainInput)
        if self._option.field and not field.value.strip():
            field.focus()
        else:
            self._check()

    @on(Input.Submitted)
    def _submit(self) -> None:
        if self.query_one(PlainInput).value.strip():
            self._check()
        else:
            self._say(Content(f"✖ Enter {self._option.field}"))

    @work(exclusive=True, group="check")
    async def _check(self) -> None:
        place = self.query_one(OptionList).highlighted or 0
        option, text = self._option, self.query_one(PlainInput).value.strip()
        self._say(Content("Checking …"))
        try:
            settings = await asyncio.to_thread(partial(option.settings, text))
        except TrainerError as error:
            self._say(Content(f"✖ {visible(' '.join(str(error).split()))}"))
            if option.field:
                self.query_one(PlainInput).focus()
            return
        self.dismiss(Given(place, text, settings))

    def _say(self, line: Content) -> None:
        self.query_one(".detail", Static).update(line)
