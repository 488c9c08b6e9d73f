"""Rewards for JSON: a response against a JSON Schema and a reference, by jsonschema."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainer.config.reward_sources import JsonSource
from trainer.errors import RewardError, shortened
from trainer.files import read_json
from trainer.reward_types import RewardInput, Verdict

_FENCED = re.compile(r"```\w*\n(.*?)```", re.DOTALL)


def json_verdict(source: JsonSource) -> Callable[[RewardInput], Verdict]:
    """Return the check of a response. Raises RewardError for a schema that is not valid, or without jsonschema."""
    if importlib.util.find_spec("jsonschema") is None:
        raise RewardError(
            "reward source 'json': jsonschema is not installed: pip install 'ppo-workbench[verify]', or leave it out"
        )
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError, best_match
    from jsonschema.validators import validator_for
    from jsonschema_specifications import REGISTRY
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012

    def check_references(node: Any, resolver: Any) -> None:
        if isinstance(node, dict):
            if isinstance(node.get("$id"), str):
                resolver = resolver.in_subresource(DRAFT202012.create_resource(node))
            if isinstance(node.get("$ref"), str):
                resolver.lookup(node["$ref"])
        for inner in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
            check_references(inner, resolver)

    is_inline = source.json_schema.lstrip().startswith("{")
    try:
        schema: Any = _parsed(source.json_schema) if is_inline else read_json(Path(source.json_schema).expanduser())
        if not isinstance(schema, dict | bool):
            raise ValueError("must be a JSON object")
        kind = validator_for(schema, default=Draft202012Validator)
        kind.check_schema(schema)
        check_references(schema, REGISTRY.resolver_with_root(DRAFT202012.create_resource(schema)))
    except (OSError, ValueError, SchemaError, Unresolvable, RecursionError) as error:
        place = "" if is_inline else f" '{source.json_schema}'"
        found = f"{error.json_path}: {error.message}" if isinstance(error, SchemaError) else str(error)
        raise RewardError(f"reward source 'json': the JSON Schema{place} is not valid: {found}") from error
    fits = kind(schema, registry=REGISTRY)  # a registry of its own: the default fetches references from the network

    def verdict(row: RewardInput) -> Verdict:
        reference = None
        if source.reference:
            reference = row.columns.get(source.reference)
            try:
                reference = _parsed(reference) if isinstance(reference, str) else reference
            except (ValueError, RecursionError):
                reference = None
            if reference is None:
                return Verdict(None, f"no JSON in '{source.reference}'")
        try:
            value = _parsed(last_block(row.completion))
            if error := best_match(fits.iter_errors(value)):
                return Verdict(0.0, f"{error.json_path}: {error.message}")
            if reference is None or Draft202012Validator({"const": reference}).is_valid(value):
                return Verdict(1.0, "JSON as expected")
            expected, found = (shortened(json.dumps(one, ensure_ascii=False)) for one in (reference, value))
            return Verdict(0.0, f"expected {expected}, found {found}")
        except json.JSONDecodeError as error:
            return Verdict(0.0, f"no JSON: {error.msg} in line {error.lineno}")
        except ValueError as error:
            return Verdict(0.0, f"no JSON: {error}")
        except RecursionError:
            return Verdict(0.0, "JSON nested too deeply")

    return verdict


def last_block(text: str) -> str:
    """Return what is in the last fenced block of `text`, or all of it if there is none."""
    blocks = _FENCED.findall(text)
    return str(blocks[-1]) if blocks else text


def _parsed(text: str) -> Any:
    """Return the value of a JSON text. Raises ValueError, also for NaN and Infinity, and RecursionError."""

    def refuse(name: str) -> None:
        raise ValueError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refuse)
