"""Declaration of a configuration field: default, rule, help, unit, source, and whether it is live."""

from __future__ import annotations

import json
import os
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic.config import JsonDict

from trainer.files import FileFormat

CONFIG_FORMAT = FileFormat("schema")
"""Format of a configuration file, of any kind of run."""

RUN_NAME = r"^(\w[\w.\-]*)?$"
FUNCTION = r"^.+:[A-Za-z_]\w*$"
PATTERNS = {  # the rule of each pattern, in words
    RUN_NAME: "must be letters, digits, '_', '-' and '.', and begin with neither '-' nor '.'",
    FUNCTION: "must be 'file.py:function' or 'package.module:function'",
}

LARGEST_INT = 2**31 - 1
"""Largest whole number allowed: arrays count their elements in 32 bits, and no setting needs more."""

_LONGEST_NAME, _LONGEST_PATH = 255, 1023  # bytes; every supported system allows these


def _usable_path(path: str) -> str:
    """Return `path` with ~ expanded. Raises ValueError now for a name that no file can have, not when it is opened."""
    if "\0" in path:
        raise ValueError("must not contain the character NUL")
    if len(os.fsencode(path)) > _LONGEST_PATH or any(len(os.fsencode(p)) > _LONGEST_NAME for p in path.split("/")):
        raise ValueError(
            f"is too long: use at most {_LONGEST_PATH} bytes for a path and {_LONGEST_NAME} for each name in it"
        )
    expanded = os.path.expanduser(path)  # noqa: PTH111  it does not raise
    if path.startswith("~") and expanded == path and len(path) > 1:
        user = path[1:].partition("/")[0]
        raise ValueError(f"refers to the home folder of an unknown user, {user!r}; write the full path")
    return expanded


TEMPLATE_RESERVED = {
    *("conversation", "messages", "tokenize", "add_generation_prompt", "continue_final_message", "tokenizer_kwargs"),
    *("return_dict", "return_tensors", "return_assistant_tokens_mask", "padding", "truncation", "max_length"),
}
"""Arguments of a chat template that the program sets."""


def _usable_options(options: dict[str, Any]) -> dict[str, Any]:
    if reserved := sorted(TEMPLATE_RESERVED & options.keys()):
        raise ValueError(f"must be without '{reserved[0]}', which the program sets")
    try:
        json.dumps(options, allow_nan=False)
    except (TypeError, ValueError):
        raise ValueError("must be a table of texts, finite numbers, true or false, and lists of them") from None
    return options


TemplateOptions = Annotated[dict[str, Any], AfterValidator(_usable_options)]
"""Options of a chat template, by name."""

Text = Annotated[str, Field(min_length=1)]
FilePath = Annotated[str, AfterValidator(_usable_path)]
"""A path, or a name that stands for one."""


class Section(BaseModel):
    """A TOML table, frozen: unknown keys are errors, types are strict (no "3" for 3), numbers are finite."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, validate_default=True, allow_inf_nan=False)


class FileSection(Section):
    """All tables of a configuration file. The file's version number is not a setting and is excluded."""

    @model_validator(mode="before")
    @classmethod
    def _without_version(cls, raw: Any) -> Any:
        return {key: raw[key] for key in raw if key != CONFIG_FORMAT.key} if isinstance(raw, dict) else raw


def setting(
    default: Any,
    help: str,
    *,
    unit: str = "",
    live: bool = False,
    source: str = "",
    advice: str = "",
    **rules: Any,
) -> Any:
    """Declare a field of a section.

    help: one line, shown wherever the field is; unit: of the value; live: may change during a run;
    source: where the default comes from; advice: when to raise or lower it; rules: pydantic's ge, gt, le, lt,
    min_length and pattern (one of PATTERNS). Without le or lt, a whole number is at most LARGEST_INT.
    """
    if isinstance(default, int) and not isinstance(default, bool) and not {"le", "lt"} & rules.keys():
        rules["le"] = LARGEST_INT
    extra: JsonDict = {"unit": unit, "live": live, "source": source, "advice": advice}
    return Field(default, description=help, json_schema_extra=extra, **rules)


TEMPLATE = setting(
    {},
    "Options of the chat template for all rows, as in { enable_thinking = false }. A row adds its own in the columns "
    "chat_template_kwargs and tools.",
)
"""Field of a section with data."""
