"""Configurations from presets, files and `--set key=value`; saved as TOML."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from trainer.config.fields import CONFIG_FORMAT, Section
from trainer.config.problems import Schema, short, validate_as
from trainer.config.schema import Config
from trainer.errors import ConfigError, UsageError
from trainer.files import DEEPEST, TOML_BYTES, parse_toml, read_regular

PRESETS = Path(__file__).parent.parent / "presets"


def preset_names() -> list[str]:
    """Return the names of the shipped presets."""
    return sorted(path.stem for path in PRESETS.glob("*.toml"))


def load_config(source: str | Path, overrides: dict[str, Any] | None = None) -> Config:
    """Load a preset or a TOML file, with `overrides` (tables of `parse_overrides`) on top.

    Raises UsageError if there is no such preset or file, ConfigError with every problem of its content.
    """
    return load_config_as(Config, source, overrides, preset_names())


def load_config_as(
    schema: type[Schema],
    source: str | Path,
    overrides: dict[str, Any] | None = None,
    presets: Sequence[str] = (),
) -> Schema:
    """Load the configuration of any kind of run, as `load_config` does; presets: the preset names it accepts."""
    content = read_source(PRESETS / f"{source}.toml" if str(source) in presets else Path(source), source, presets)
    try:
        raw = parse_toml(content)
    except ValueError as error:  # tomllib lets errors of int() and str.decode() through
        raise ConfigError([f"not TOML: {error}"], str(source)) from None
    own = schema.model_fields["kind"].default if "kind" in schema.model_fields else "ppo"
    if isinstance(kind := raw.get("kind"), str) and kind != own:
        raise UsageError(f"'{source}' configures a run of kind '{kind}', not '{own}': name another configuration")
    return validate_as(schema, merged(raw, overrides or {}), str(source))


def read_source(path: Path, source: str | Path, presets: Sequence[str] = ()) -> bytes:
    """Return the content of `path`. Raises UsageError, which calls it `source` and names the `presets`."""
    try:
        return read_regular(path, TOML_BYTES, given=True)
    except FileNotFoundError:
        if not presets:
            raise UsageError(f"no file '{source}': name a configuration in TOML") from None
        raise UsageError(f"no preset or file '{source}': the presets are {', '.join(presets)}") from None
    except OSError as error:
        raise UsageError(f"cannot read configuration '{source}': {error.strerror}") from None


def with_overrides(config: Schema, overrides: dict[str, Any]) -> Schema:
    """Return `config` with `overrides`, tables of `parse_overrides`, on top. Raises ConfigError with every problem."""
    return validate_as(type(config), merged(config.model_dump(), overrides))


def differences(before: Config, after: Config) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Yield the settings in which `after` differs from `before`: the key, and both values."""
    old, new = before.model_dump(), after.model_dump()
    for table, settings in old.items():
        for name, value in settings.items() if isinstance(settings, dict) else ():
            if new[table][name] != value:
                yield f"{table}.{name}", (value, new[table][name])


def parse_overrides(assignments: list[str], schema: type[Section] = Config) -> dict[str, Any]:
    """Return tables from `["ppo.kl_coef=0.1", "rollout.stop=['END']"]`: values are TOML, bare words are strings.

    Raises UsageError for an assignment that is not `table.key=value`.
    """
    tables: dict[str, Any] = {}
    for assignment in assignments:
        if any("\ud800" <= character <= "\udfff" for character in assignment):  # for bytes that are not UTF-8
            raise UsageError(f"--set {short(assignment)}: must be text in UTF-8")
        key, equals, text = assignment.partition("=")
        parts = [part.strip() for part in key.split(".")]
        if not equals or len(parts) < 2 or not all(parts):
            raise UsageError(f"--set {short(assignment)}: must be table.key=value, as in --set ppo.kl_coef=0.1")
        if len(parts) > DEEPEST:
            raise UsageError(f"--set {short(assignment)}: a key of {len(parts)} parts; it must be table.key=value")
        node = tables
        for part in parts[:-1]:
            node = node.setdefault(part, {})
            if not isinstance(node, dict):
                was = f"{short(part)!r} was set to a value before and is not a table"
                raise UsageError(f"--set {short(assignment)}: {was}")
        node[parts[-1]] = value_of(parts, text.strip(), schema)
    return tables


def config_text(config: Section, header: str = "") -> str:
    """Return `config` as TOML with every field; `header` goes above as comment lines."""
    comments = "".join(f"# {line}\n" for line in header.splitlines())
    version = {CONFIG_FORMAT.key: CONFIG_FORMAT.version}
    return f"{comments}\n{tomli_w.dumps(version | config.model_dump())}".lstrip("\n")


def resolve_paths(config: Schema, base: Path) -> Schema:
    """Return a configuration of any kind with paths relative to `base` made absolute, so that its run can be resumed.

    Raises ConfigError if an absolute path is too long.
    """
    raw = config.model_dump()
    model, data = raw["model"], raw["data"]
    for key in ("adapter", "policy_init", "value_init"):
        if key in model:
            model[key] = _absolute(model[key], base)
    if model["path"] != "starter":  # a name, even beside a folder called so
        model["path"] = _absolute(model["path"], base)
    if "preferences" in data:
        data["preferences"] = _absolute(data["preferences"], base)
    elif Path(data["prompts"]).suffix:
        data["prompts"] = _absolute(data["prompts"], base)
    if "reward" in raw:
        for source in raw["reward"]["sources"]:
            if source["kind"] == "python":
                file, _, function = source["path"].rpartition(":")
                source["path"] = f"{_absolute(file, base)}:{function}"
            elif source["kind"] == "model":
                source["path"] = _absolute(source["path"], base)
                source["ensemble"] = [_absolute(path, base) for path in source["ensemble"]]
            elif source["kind"] == "judge":
                source["rubric"] = _absolute(source["rubric"], base)
                if not source["url"] and source["model"] != "starter":
                    source["model"] = _absolute(source["model"], base)
            elif source["kind"] == "json":
                source["json_schema"] = _absolute(source["json_schema"], base)
    raw["run"]["dir"] = os.path.realpath(base / raw["run"]["dir"])  # Path.resolve raises for a loop of links
    return validate_as(type(config), raw)


def _absolute(path: str, base: Path) -> str:
    """Return `path` made absolute by `base`, or unchanged if it is empty or nothing is there."""
    try:
        return str((base / path).resolve()) if path and (base / path).exists() else path
    except (OSError, RuntimeError):  # a loop of links or a closed folder: opening the file reports it
        return path


def value_of(parts: Sequence[str], text: str, schema: type[Section] = Config) -> Any:
    """Return the value that `text` gives the setting whose key has these parts: TOML, or else the text itself."""
    section = schema.model_fields.get(parts[0])
    field = getattr(section.annotation, "model_fields", {}).get(".".join(parts[1:])) if section else None
    quoted = text[:1] in ("'", '"')
    if field is not None and field.annotation is str and not quoted:
        return text  # run.name=7 is a name
    try:
        parsed = parse_toml(f"value = {text}")
    except ValueError:
        return text
    return parsed["value"] if len(parsed) == 1 else text  # a second line is not part of the value


def merged(base: dict[str, Any], top: dict[str, Any]) -> dict[str, Any]:
    """Return the tables of `base` with those of `top` on top, at any depth."""
    result = dict(base)
    for key, value in top.items():
        inner = result.get(key)
        result[key] = merged(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return result
