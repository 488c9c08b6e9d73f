"""How a field of the configuration is declared: default, rule, help, unit, source, and whether it is live."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.config import JsonDict

RUN_NAME = r"^([\w\-][\w.\-]*)?$"
FUNCTION = r"^.+:[A-Za-z_]\w*$"
PATTERNS = {  # the rule of each pattern, in words
    RUN_NAME: "must be letters, digits, '_', '-' and '.', and not begin with '.'",
    FUNCTION: "must be 'file.py:function' or 'package.module:function'",
}

Text = Annotated[str, Field(min_length=1)]


class Section(BaseModel):
    """A TOML table, frozen: unknown keys are errors, types are strict (no "3" for 3), numbers are finite."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, validate_default=True, allow_inf_nan=False)


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
    """A field of a section.

    help: one line, shown wherever the field is; unit: of the value; live: may change during a run;
    source: where the default comes from; advice: when to raise or lower it; rules: pydantic's ge, gt, le, lt,
    min_length and pattern (one of PATTERNS).
    """
    extra: JsonDict = {"unit": unit, "live": live, "source": source, "advice": advice}
    return Field(default, description=help, json_schema_extra=extra, **rules)
