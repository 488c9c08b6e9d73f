"""All problems of a configuration at once, each with its key, value, rule and way out."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError

from trainer.config.conflicts import conflicts
from trainer.config.fields import CONFIG_FORMAT, PATTERNS, FileSection, Section
from trainer.config.reward_sources import SOURCES
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
    "dict_type": "must be a table",
    "model_type": "must be a table",
    "literal_error": "must be one of {expected}",
    "string_too_short": "must not be empty",
    "too_short": "must not be empty",
}
Schema = TypeVar("Schema", bound=FileSection)
_MOST = 50  # problems reported; guessing what an unknown key was meant to be takes half a millisecond
_SOURCE_RULE = f"must be 'file.py:function', 'lexicon' or a table whose kind is one of {', '.join(SOURCES)}"


class SettingProblem(NamedTuple):
    """One problem of a configuration."""

    key: str
    """`ppo.kl_coef` or `reward.sources[0].pattern`; for a rule between settings, the one to change."""
    message: str
    """The whole line: key, value, rule and a way out."""


def validate(raw: dict[str, Any]) -> Config:
    """Return the configuration of a PPO run that `raw` describes, as `validate_as` does."""
    return validate_as(Config, raw)


def validate_as(schema: type[Schema], raw: dict[str, Any], source: str = "") -> Schema:
    """Return the configuration that `raw` (tables of plain values) describes; `source` names it in messages.

    Raises ConfigError with every problem.
    """
    if problems := located_problems(raw, schema):
        raise ConfigError([problem.message for problem in problems], source)
    return schema.model_validate(raw)


def located_problems(raw: dict[str, Any], schema: type[Section] = Config) -> list[SettingProblem]:
    """Return the problems of `raw` (tables of plain values), each with its key."""
    found = list(_version_problems(raw))
    broken: set[str] = set()
    try:
        config = schema.model_validate(raw)
    except ValidationError as error:
        problems, pruned = error.errors(include_url=False), copy.deepcopy(raw)
        for place, problem in enumerate(problems):
            key = _key(problem["loc"])
            broken.add(key)
            if place < _MOST:
                found.append(SettingProblem(key, _message(problem, raw, schema)))
                if problem["type"] == "extra_forbidden":
                    # The value of the key that was meant is unknown too.
                    broken.add(_guess(key, problem["loc"], schema))
            _remove(pruned, problem["loc"])
        if more := problems[_MOST:]:
            found.append(SettingProblem(_key(more[0]["loc"]), f"and {len(more)} more: fix these first"))
        # Rules between fields are checked with defaults in place of broken fields, which are not reported twice.
        config = schema.model_validate(pruned)
    return found + [
        SettingProblem(keys[0], message)
        for keys, message in conflicts(config)
        if not any({key, key.partition(".")[0]} & broken for key in keys)
    ]


def _version_problems(raw: dict[str, Any]) -> Iterator[SettingProblem]:
    """Yield the problem of a file that is of another version than this program writes."""
    key, present = CONFIG_FORMAT.key, CONFIG_FORMAT.version
    version = raw.get(key, present)
    if type(version) is not int or version < 1:
        yield SettingProblem(key, f"{key} = {shown(version)}: must be a whole number from 1 to {present}")
    elif version > present:
        yield SettingProblem(key, f"{key} = {version}: a newer version wrote this file: update ppo-workbench")


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


def _key(loc: tuple[int | str, ...]) -> str:
    """Return `reward.sources[0].pattern` for pydantic's path, leaving out the branch name that a union adds."""
    parts = [p for i, p in enumerate(loc) if not (p in SOURCES and i and isinstance(loc[i - 1], int))]
    return "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in parts).removeprefix(".")


def _message(problem: Any, raw: dict[str, Any], schema: type[Section]) -> str:
    loc, kind, context = problem["loc"], problem["type"], problem.get("ctx", {})
    key = _key(loc)
    if kind == "extra_forbidden":
        if guess := _guess(key, loc, schema):
            way_out = f"did you mean '{guess}'?"
        else:
            way_out = "'ppo-workbench config schema' lists all keys"
        return f"unknown key {shown(key)}: {way_out}"
    if kind == "missing":  # only kinds of reward source have fields without a default
        return f"{key} is missing: a source of kind '{loc[-2]}' needs it"
    if len(loc) == 3:  # an element of a list, in the user's own spelling
        return f"{key} = {shown(raw[loc[0]][loc[1]][loc[2]])}: {_rule(kind, context, problem['msg'])}"
    return f"{key} = {shown(problem['input'])}: {_rule(kind, context, problem['msg'])}"


def _rule(kind: str, context: dict[str, Any], otherwise: str) -> str:
    if kind in ("union_tag_invalid", "union_tag_not_found", "model_attributes_type"):
        return _SOURCE_RULE
    if kind == "string_pattern_mismatch":
        return PATTERNS[context["pattern"]]
    if kind not in _RULES:
        return otherwise.removeprefix("Value error, ")
    whole = {name: int(value) for name, value in context.items() if isinstance(value, float) and value.is_integer()}
    return _RULES[kind].format(**context | whole)


def shown(value: Any) -> str:
    """Return a value as messages show it: booleans as in TOML, at most 80 characters."""
    return short(str(value).lower() if isinstance(value, bool) else repr(value))


def short(text: str) -> str:
    """Cut `text` to 80 characters for a message."""
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
