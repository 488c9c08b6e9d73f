"""Reward sources of `reward.sources`: one table each, distinguished by its kind; a plain string is shorthand."""

from __future__ import annotations

import contextlib
import re
from ipaddress import ip_address
from typing import Annotated, Any, ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, field_validator

from trainer.config.fields import FUNCTION, LARGEST_INT, FilePath, Section, TemplateOptions, Text, setting

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


class JudgeSource(_Weighted):
    """0 to 1 by a language model that follows a rubric: marks, or the share of its group that a response beats."""

    kind: Literal["judge"] = "judge"
    rubric: FilePath = setting(..., "TOML file with the criteria, their weights and the scale.", min_length=1)
    model: str = setting(
        ...,
        "Its name at the endpoint; without a url a folder in mlx-lm's format, a hub name or 'starter'.",
        min_length=1,
    )
    url: str = setting(
        "http://localhost:11434/v1",
        "Base URL of an OpenAI-compatible endpoint, with its /v1; empty: the model runs here, by MLX.",
    )
    key_env: str = setting("", "Environment variable with the endpoint's API key; empty if it needs none.")
    mode: Literal["pointwise", "pairwise"] = setting(
        "pointwise",
        "Grade each response, or compare those to one prompt two by two, twice with the sides swapped.",
    )
    opponents: int = setting(
        0, "Others of its group that each response is compared with, at least; 0: all of them.", ge=0
    )
    temperature: float = setting(0.0, "Temperature of its answers.", ge=0, le=2)
    max_tokens: int = setting(1024, "Longest answer, with what the model thinks before it.", unit="tokens", ge=16)
    structured: bool = setting(True, "Ask the endpoint to hold answers to the rubric's JSON Schema.")
    options: TemplateOptions = setting(
        {},
        "More fields of each request, as in { reasoning_effort = 'low' }; without a url, options of the chat template.",
    )
    concurrency: int = setting(8, "Requests under way at a time.", ge=1, le=256)
    timeout: float = setting(60.0, "Time for one answer.", unit="s", gt=0, le=3600)
    retries: int = setting(4, "Failed requests after which the run pauses until the judge answers.", ge=0, le=20)
    input_price: float = setting(0.0, "Price of what the judge reads.", unit="per million tokens", ge=0)
    output_price: float = setting(0.0, "Price of what the judge writes.", unit="per million tokens", ge=0)

    @field_validator("url")
    @classmethod
    def _is_base(cls, url: str) -> str:
        parts = urlsplit(url)  # raises ValueError for what is no URL
        if not url:
            return url
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
            raise ValueError("must be a URL such as http://localhost:11434/v1")
        if parts.username is not None or parts.query or parts.fragment:
            raise ValueError("must have no user name, password, query or fragment: name the key's variable in key_env")
        return url.rstrip("/")

    @field_validator("key_env")
    @classmethod
    def _is_name(cls, name: str) -> str:
        if name and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise ValueError("must be the name of an environment variable, not the key itself")
        return name

    @property
    def is_here(self) -> bool:
        """Return whether the judge is on this machine."""
        host = urlsplit(self.url).hostname or ""
        with contextlib.suppress(ValueError):
            return ip_address(host).is_loopback
        return host == "localhost" or not self.url


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
    "judge": JudgeSource,
}
VerifiedSource = MathSource | ChoiceSource | JsonSource | FormatSource | CodeSource
"""A source that checks an answer, and says why it scores as it does."""
AnySource = PythonSource | LexiconSource | LengthSource | RegexSource | ModelSource | VerifiedSource | JudgeSource
RewardSource = Annotated[
    Annotated[AnySource, Field(discriminator="kind")],
    BeforeValidator(_from_string, json_schema_input_type=AnySource | str),
]
