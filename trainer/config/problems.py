"""All problems of a configuration at once, each with its key, value, rule and way out."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError

from trainer.config.fields import PATTERNS, Section
from trainer.config.reward_sources import SOURCES
from trainer.config.rules import Conflict, conflicts
from trainer.config.schema import Config
from trainer.errors import ConfigError

_RULES = {  # pydantic's error types, in our words
    "greater_than_equal": "must be at least {ge}",
    "greater_than": "must be greater than {gt}",
    "less_than_equal": "must be at most {le}",
    "less_than": "must be less than {lt}",
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "string_type": "must be a string",
    "list_type": "must be a list",
    "model_type": "must be a table",
    "literal_error": "must be one of {expected}",
    "string_too_short": "must not be empty",
    "too_short": "must not be empty",
}
Schema = TypeVar("Schema", bound=Section)
_MOST = 50  # problems reported; guessing what an unknown key was meant to be takes half a millisecond
_SOURCE_RULE = f"must be 'file.py:function', 'lexicon' or a table whose kind is one of {', '.join(SOURCES)}"


class SettingProblem(NamedTuple):
    """One problem of a configuration."""

    key: str
    """`ppo.kl_coef` or `reward.sources[0].pattern`; for a rule between settings, the one to change."""
    message: str
    """The whole line: key, value, rule and a way out."""


def validate(raw: dict[str, Any], source: str = "") -> Config:
    """Return the configuration that `raw` (tables of plain values) describes; `source` names it in messages.

    Raises ConfigError with every problem.
    """
    return validate_as(Config, raw, source)


def validate_as(schema: type[Schema], raw: dict[str, Any], source: str = "") -> Schema:
    """Validate the configuration of any kind of run, as `validate` does."""
    if problems := located_problems(raw, schema):
        raise ConfigError([problem.message for problem in problems], source)
    return schema.model_validate(raw)


def config_problems(raw: dict[str, Any]) -> list[str]:
    """Return the problems of `raw`, one line each; empty if there are none."""
    return [problem.message for problem in located_problems(raw)]


def located_problems(raw: dict[str, Any], schema: type[Section] = Config) -> list[SettingProblem]:
    """Return the problems of `raw` (tables of plain values), each with its key."""
    try:
        return [
            SettingProblem(conflict.keys[0], conflict.message) for conflict in _conflicts(schema.model_validate(raw))
        ]
    except ValidationError as error:
        problems = error.errors(include_url=False)
    pruned = copy.deepcopy(raw)
    broken = set()
    for place, problem in enumerate(problems):
        key = _key(problem["loc"])
        broken.add(key)
        if problem["type"] == "extra_forbidden" and place < _MOST:
            # The value of the key that was meant is unknown too.
            broken.add(_guess(key, problem["loc"], schema))
        _remove(pruned, problem["loc"])
    # Rules between fields are checked with defaults in place of broken fields, which are not reported twice.
    told = [SettingProblem(_key(problem["loc"]), _message(problem, raw, schema)) for problem in problems[:_MOST]]
    if more := problems[_MOST:]:
        told.append(SettingProblem(_key(more[0]["loc"]), f"and {len(more)} more: mend these first"))
    return told + [
        SettingProblem(conflict.keys[0], conflict.message)
        for conflict in _conflicts(schema.model_validate(pruned))
        if not any({key, key.partition(".")[0]} & broken for key in conflict.keys)
    ]


def broken_rule(key: str, value: Any) -> str:
    """Return the rule that `value` breaks as the setting `key`, as in `must be at least 0`; "" if it breaks none.

    Rules between settings are not checked.
    """
    table, _, name = key.partition(".")
    try:
        Config.model_validate({table: {name: value}})
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        return _rule(problem["type"], problem.get("ctx", {}), problem["msg"])
    return ""


def setting_keys(model: type[BaseModel] = Config, prefix: str = "") -> Iterator[str]:
    """Yield all dotted keys, such as `ppo.kl_coef`, in the order of the schema."""
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from setting_keys(field.annotation, f"{prefix}{name}.")
        else:
            yield prefix + name


def _conflicts(config: Section) -> list[Conflict]:
    return list(conflicts(config)) if isinstance(config, Config) else []  # only PPO has rules between settings


def _key(loc: tuple[int | str, ...]) -> str:
    """Return `reward.sources[0].pattern` for pydantic's path, leaving out the branch name that a union adds."""
    parts = [p for i, p in enumerate(loc) if not (p in SOURCES and i and isinstance(loc[i - 1], int))]
    return "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in parts).removeprefix(".")


def _message(problem: Any, raw: dict[str, Any], schema: type[Section]) -> str:
    loc, kind, context = problem["loc"], problem["type"], problem.get("ctx", {})
    key = _key(loc)
    if kind == "extra_forbidden":
        guess = _guess(key, loc, schema)
        way_out = f"did you mean '{guess}'?" if guess else "'ppo-workbench config schema' lists all keys"
        return f"unknown key {_shown(key)}: {way_out}"
    if kind == "missing":  # only kinds of reward source have fields without a default
        return f"{key} is missing: a source of kind '{loc[-2]}' needs it"
    if len(loc) == 3:  # an element of a list, in the user's own spelling
        return f"{key} = {_shown(raw[loc[0]][loc[1]][loc[2]])}: {_rule(kind, context, problem['msg'])}"
    return f"{key} = {_shown(problem['input'])}: {_rule(kind, context, problem['msg'])}"


def _rule(kind: str, context: dict[str, Any], otherwise: str) -> str:
    if kind in ("union_tag_invalid", "union_tag_not_found", "model_attributes_type"):
        return _SOURCE_RULE
    if kind == "string_pattern_mismatch":
        return PATTERNS[context["pattern"]]
    return _RULES[kind].format(**context) if kind in _RULES else otherwise.removeprefix("Value error, ")


def _shown(value: Any) -> str:
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _guess(key: str, loc: tuple[int | str, ...], schema: type[Section]) -> str:
    """Return the key probably meant by an unknown one: a similar name in its table, or in any; "" if there is none."""
    table, _, name = key.lower().rpartition(".")
    if len(loc) > 3:  # inside a reward source
        near = [f"{table}.{field}" for field in SOURCES[str(loc[3])].model_fields]
    else:
        near = [k for k in [*schema.model_fields, *setting_keys(schema)] if k.rpartition(".")[0] == table]
    for candidates, cutoff in ((near, 0.6), (list(setting_keys(schema)), 0.8)):
        names = [candidate.rpartition(".")[2] for candidate in candidates]
        if close := difflib.get_close_matches(name, names, n=1, cutoff=cutoff):
            return candidates[names.index(close[0])]
    return ""


def _remove(raw: dict[str, Any], loc: tuple[int | str, ...]) -> None:
    """Remove what is at pydantic's path from `raw`; one broken element of a list removes the whole list."""
    node: Any = raw
    for i, part in enumerate(loc):
        if not isinstance(node, dict) or part not in node:
            return
        if i == len(loc) - 1 or not isinstance(node[part], dict):
            del node[part]
            return
        node = node[part]
