"""Reward sources of `reward.sources`: one table each, distinguished by its kind; a plain string is shorthand."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, field_validator

from trainer.config.fields import FUNCTION, LARGEST_INT, FilePath, Section, Text, setting

_Model = Annotated[FilePath, Field(min_length=1)]


class _Weighted(Section):
    weight: float = setting(1.0, "Weight of this source in the sum.", ge=-1_000_000, le=1_000_000)


class PythonSource(_Weighted):
    """A function `(prompts, completions, **columns) -> list[float]`; a list of lists gives token rewards."""

    kind: Literal["python"] = "python"
    path: FilePath = setting(..., "'file.py:function' or 'package.module:function'.", pattern=FUNCTION)


class LexiconSource(_Weighted):
    """Sentiment of the completion by the VADER lexicon: -1 (sad) to 1 (cheerful)."""

    kind: Literal["lexicon"] = "lexicon"


class LengthSource(_Weighted):
    """-d / (d + tolerance), d = |tokens - target|: 0 at the target, -0.5 at tolerance, towards -1."""

    kind: Literal["length"] = "length"
    target: int = setting(..., "Desired length of the response.", unit="tokens", ge=0, le=LARGEST_INT)
    tolerance: int = setting(16, "Distance from the target at which the score is -0.5.", unit="tokens", ge=1)


class RegexSource(_Weighted):
    """1 if the pattern is found in the completion, else 0; `count` gives the number of matches instead."""

    kind: Literal["regex"] = "regex"
    pattern: str = setting(..., "Python regular expression.", min_length=1)
    count: bool = setting(False, "Score the number of matches.")
    ignore_case: bool = setting(False, "Ignore case.")

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str) -> str:
        try:
            re.compile(pattern)
        except (re.error, OverflowError, RecursionError) as error:
            raise ValueError(f"is not a regular expression: {error}") from error
        return pattern


class ModelSource(_Weighted):
    """A reward model: `path` is a run of `reward-model train`, a checkpoint, or a sequence-classification model."""

    kind: Literal["model"] = "model"
    path: FilePath = setting(
        ...,
        "Folder of a reward model's run (its newest checkpoint), of one checkpoint, or of a model with one label.",
        min_length=1,
    )
    ensemble: list[_Model] = setting([], "More reward models; their disagreement is saved in the samples.")
    combine: Literal["mean", "min"] = setting(
        "mean",
        "Score of an ensemble: mean, or min, which is high only if all agree.",
        source="Coste et al. 2024, Reward model ensembles help mitigate overoptimization",
    )
    chat: Literal["auto", "always", "never"] = setting(
        "auto", "When to apply the chat template of a sequence-classification model, as data.chat."
    )

    @property
    def paths(self) -> list[str]:
        """All members of the ensemble."""
        return [self.path, *self.ensemble]


class MathSource(_Weighted):
    """1 if the response's last \\boxed{} equals the reference answer, by math-verify; 0 for another one, or no box."""

    kind: Literal["math"] = "math"
    answer: str = setting("answer", "Column of the data with the reference answer.", min_length=1)

    @property
    def column(self) -> str:
        """Column of the data that it needs; empty if none."""
        return self.answer


class ChoiceSource(_Weighted):
    """1 if the response chooses the letter of the reference answer, else 0: in a box, in answer tags, or in words."""

    kind: Literal["choice"] = "choice"
    answer: str = setting("answer", "Column of the data with the reference answer.", min_length=1)

    @property
    def column(self) -> str:
        """Column of the data that it needs; empty if none."""
        return self.answer


class JsonSource(_Weighted):
    """1 if the response, or its last fenced block, is JSON that fits a JSON Schema and equals a reference, else 0."""

    kind: Literal["json"] = "json"
    json_schema: str = setting("{}", "JSON Schema, or the path of its file; {} allows any JSON.", min_length=1)
    reference: str = setting("", "Column of the data with the JSON that is expected; empty: only the schema counts.")

    @property
    def column(self) -> str:
        """Column of the data that it needs; empty if none."""
        return self.reference


class FormatSource(_Weighted):
    """1 if the response is made of tags with text in them, each once and in this order, and nothing else; else 0."""

    kind: Literal["format"] = "format"
    tags: list[Text] = setting(["think", "answer"], "Names of the tags.", min_length=1)
    opened: bool = setting(False, "The first tag is opened by the chat template, so the response begins inside it.")
    column: ClassVar[str] = ""


class CodeSource(_Weighted):
    """1 if the program in the response passes the tests of its row, else 0; run apart, within limits. Linux only."""

    kind: Literal["code"] = "code"
    tests: str = setting(
        "tests",
        "Column of the data with the tests: Python statements, or a list of them or of input and output.",
        min_length=1,
    )
    partial: bool = setting(False, "Score the share of the tests that pass, instead of 1 for all of them and 0 else.")
    timeout: float = setting(10.0, "Time for all tests of a program.", unit="s", gt=0, le=600)
    memory: int = setting(512, "Memory of each process of a program.", unit="MiB", ge=64)
    processes: int = setting(8, "Processes and threads of a program.", ge=1)
    files: int = setting(16, "Size of a file, and of all files together.", unit="MiB", ge=1)

    @property
    def column(self) -> str:
        """Column of the data that it needs; empty if none."""
        return self.tests


def _from_string(value: Any) -> Any:
    """Expand shorthand such as 'lexicon' and 'rewards.py:score' to the table that it abbreviates."""
    if not isinstance(value, str):
        return value
    return {"kind": "python", "path": value} if ":" in value else {"kind": value}


CHEAP = (LexiconSource, LengthSource, RegexSource)
"""Sources that may be asked for each token of a response, because they only read its text."""
SOURCES: dict[str, type[Section]] = {
    "python": PythonSource,
    "lexicon": LexiconSource,
    "length": LengthSource,
    "regex": RegexSource,
    "model": ModelSource,
    "math": MathSource,
    "choice": ChoiceSource,
    "json": JsonSource,
    "format": FormatSource,
    "code": CodeSource,
}
VerifiedSource = MathSource | ChoiceSource | JsonSource | FormatSource | CodeSource
"""A source that checks an answer, and says why it scores as it does."""
AnySource = PythonSource | LexiconSource | LengthSource | RegexSource | ModelSource | VerifiedSource
RewardSource = Annotated[
    Annotated[AnySource, Field(discriminator="kind")],
    BeforeValidator(_from_string, json_schema_input_type=AnySource | str),
]
