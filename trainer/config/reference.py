"""Reference of all options, generated from the schema: as rows, as docs/configuration.md and as a JSON schema.

`python -m trainer.config.reference > docs/configuration.md` updates the page.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from trainer.config import SCHEMAS
from trainer.config.fields import CONFIG_FORMAT, LARGEST_INT, PATTERNS, Section
from trainer.config.reward_sources import SOURCES
from trainer.config.schema import Config

_TYPES = {"integer": "whole number", "boolean": "true or false", "array": "list", "object": "table"}
_BOUNDS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "greater than {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "less than {}",
}

_INTRODUCTION = """\
<!-- Made by `python -m trainer.config.reference > docs/configuration.md`: edit the schema, not this page. -->

# Configuration

One configuration in TOML describes everything that a run does. Every option has a default, so a file only needs
the options that differ:

```toml
[model]
path = "mlx-community/Qwen3-0.6B-bf16"

[data]
prompts = "prompts.jsonl"

[reward]
sources = [
    "rewards.py:helpfulness",                          # a Python function
    { kind = "length", target = 120, weight = 0.2 },   # plus 0.2 times the score of a target length
]

[ppo]
kl_coef = 0.1
```

The value of an option comes from, in increasing priority:

1. its default, in the tables below;
2. the preset or the file: `--config quickstart` names a preset that ships with the program, `--config my-run.toml`
   a file of yours. A file does not build on a preset;
3. `--set`: `--set ppo.kl_coef=0.1 --set "rollout.stop=['END', 'STOP']"`. The value is TOML. A word that is not TOML
   is a string, and so is any value of a string option. A list replaces the whole list.

The program writes `schema = 1` at the top of each run's configuration. A file of a later version is rejected with an
error that names it. Your own files need no number: without one, a file is of version 1.

Errors stop a run before it starts, and are all shown at once: unknown keys, values of the wrong type or out of
range, and options that conflict. `rollout.batch_size` must be a multiple of both `rollout.samples_per_prompt` and
`ppo.minibatches`, and `optim.buffer_tokens` must hold a whole batch. Numbers must be finite, and whole numbers at
most 2147483647. Paths are relative to the working folder, and `~` is your home folder. A file may have up to 256 KiB,
in UTF-8. A run saves its configuration in its folder, as `config.toml`.

*Live* options can be changed during a run.

The options of PPO come first, then those of [reward models](#reward-models) and [DPO](#dpo).
"""

_KINDS = {
    "reward-model": """\
# Reward models

The configuration of `ppo-workbench reward-model train`; `ppo-workbench config schema --kind reward-model` prints it.
""",
    "dpo": """\
# DPO

The configuration of `ppo-workbench dpo`. `[rollout]` and `[reward]` set how samples are drawn and scored, to compare
with PPO; they are not trained on.
""",
}


class Setting(NamedTuple):
    """One option, in words; a cell without content is empty."""

    key: str
    """`ppo.kl_coef`; `reward.sources[].kind=length` is a kind of source, whose own fields follow it."""
    type: str
    help: str
    schema: dict[str, Any]
    """JSON Schema of its value; empty for a kind of source."""
    rule: str = ""
    default: str = ""
    """In TOML; empty for an option that must be given."""
    unit: str = ""
    live: bool = False
    source: str = ""
    """Where the default comes from."""
    advice: str = ""

    @property
    def name(self) -> str:
        """Name in its table."""
        return self.key.rpartition(".")[2]


def reference_rows(schema: type[Section] = Config) -> list[Setting]:
    """Return every option in the order of `schema`; the kinds of reward source follow `reward.sources`."""
    rows: list[Setting] = []
    for table, section in _tables(schema):
        for row in _section_rows(section, f"{table}."):
            rows.append(row)
            for kind, source in SOURCES.items() if row.key == "reward.sources" else ():
                rows.append(Setting(f"reward.sources[].kind={kind}", "table", _first_line(source), {}))
                known = {shown.key for shown in rows}
                rows += [of for of in _section_rows(source, "reward.sources[].") if of.key not in known]
    return rows


def reference_markdown() -> str:
    """Return docs/configuration.md: an introduction and one table for each section of each kind of run."""
    parts = [_INTRODUCTION]
    for kind, schema in SCHEMAS.items():
        parts += [_KINDS[kind]] if kind in _KINDS else []
        rows = reference_rows(schema)
        for table, section in _tables(schema):
            heading, _, purpose = _first_line(section).partition(": ")
            parts.append(f"## {heading}\n\n{purpose[:1].upper()}{purpose[1:]}\n")
            lines = ["| option | type | default | live | what it does |", "|---|---|---|---|---|"]
            for row in rows:
                if row.key.startswith(f"{table}."):
                    default = f"{f'`{row.default}`' if row.default else 'required;'} {row.unit}".rstrip("; ")
                    source = f"Default from: {row.source}." if row.source else ""
                    description = " ".join(filter(None, (row.help, row.advice, source)))
                    allowed, default = ", ".join(filter(None, (row.type, row.rule))), default * (row.type != "table")
                    cells = (f"`{row.key}`", allowed, default, "live" * row.live, description)
                    lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
            parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def json_schema(schema: type[Section] = Config) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a configuration file, for editors that check TOML by one."""
    content = schema.model_json_schema()
    about = "Version of the file; a file of a newer version is refused."
    number = {"type": "integer", "minimum": 1, "maximum": CONFIG_FORMAT.version, "description": about}
    content["properties"] = {CONFIG_FORMAT.key: number} | content["properties"]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **content}


def _tables(schema: type[Section]) -> Iterator[tuple[str, type[Section]]]:
    for name, field in schema.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):  # not the kind of run
            yield name, field.annotation


def _section_rows(section: type[Section], prefix: str) -> Iterator[Setting]:
    for name, schema in section.model_json_schema()["properties"].items():
        if "const" in schema:  # the kind of a reward source has a row of its own
            continue
        strings = schema.get("items", {}).get("type") == "string"
        yield Setting(
            key=prefix + name,
            type="list of strings" if strings else _TYPES.get(schema["type"], schema["type"]),
            rule=_rule(schema),
            default=json.dumps(schema["default"]) if "default" in schema else "",  # the same in TOML
            unit=schema["unit"],
            live=schema["live"],
            help=schema["description"],
            source=schema["source"],
            advice=schema["advice"],
            schema=schema,
        )


def _rule(schema: dict[str, Any]) -> str:
    """Return the rule of a value, in the words of the messages; empty if any value of its type is allowed."""
    bounds = {name: schema[name] for name in _BOUNDS if schema.get(name) not in (None, LARGEST_INT)}
    rules = [_BOUNDS[name].format(bound) for name, bound in bounds.items()]
    if schema.get("minLength") or schema.get("minItems"):
        rules.append("not empty")
    if "pattern" in schema:
        rules.append(PATTERNS[schema["pattern"]].removeprefix("must be "))
    items = schema.get("items", {})
    choices = schema.get("enum") or items.get("enum")
    if choices:
        rules.append(f"{'any' if items else 'one'} of {', '.join(choices)}")
    if items.get("minLength"):
        rules.append("none of them empty")
    return ", ".join(rules)


def _first_line(section: Any) -> str:
    return (section.__doc__ or "").partition("\n")[0]


if __name__ == "__main__":
    print(reference_markdown(), end="")  # noqa: T201
