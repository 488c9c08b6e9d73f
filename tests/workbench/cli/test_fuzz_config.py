"""Random configurations and --set strings, mostly damaged: each is accepted or refused, in time and without a bug."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random
from typing import Any

import pytest
import tomli_w
from config_files import save_config
from fuzzing import NASTY, damaged, randoms, within

from trainer.config import (
    SCHEMAS,
    Config,
    config_warnings,
    load_config,
    parse_overrides,
    preset_names,
    resolve_paths,
)
from trainer.config.fields import Section
from trainer.config.loading import PRESETS, load_config_as
from trainer.config.problems import setting_keys
from trainer.errors import ConfigError, UsageError
from workbench.config.document import ConfigDocument

VALUES: tuple[Any, ...] = (
    0, 1, -1, 2**31, 2**63, 10**400, 0.0, -0.0, 1e-300, 1e308, float("nan"), float("inf"), True, False, "", " ", "-rf",
    "x" * 5000, "~nosuchuser/x", "/", "..", "a\0b", "\ud7ff\U0010ffff", "starter", "lexicon", "a.py:f", ":",
    {}, {"a": {}}, [], [[]], [1], ["a"], [{}], ["lexicon"] * 300, [{"kind": "length"}],
    [{"kind": "regex", "pattern": "("}], [{"kind": "regex", "pattern": "(a*)*" * 50}], [{"kind": []}], [[[[[]]]]],
)  # fmt: skip


@pytest.fixture(scope="module")
def whole() -> list[bytes]:
    """Return texts to damage: the presets, and every option of each kind of run spelt out."""
    spelt_out = [tomli_w.dumps(schema().model_dump()).encode() for schema in SCHEMAS.values()]
    return [(PRESETS / f"{name}.toml").read_bytes() for name in preset_names()] + spelt_out


def test_a_damaged_file_is_accepted_or_refused(whole: list[bytes], tmp_path: Path) -> None:
    taken = 0
    for random in randoms("config files", 300):
        (tmp_path / "c.toml").write_bytes(content := damaged(random.choice(whole), random))
        with within(5, content):
            taken += _is_taken(random.choice(list(SCHEMAS)), tmp_path)
    assert taken  # otherwise only the parser is exercised


def test_assignments_are_accepted_or_refused(tmp_path: Path) -> None:
    keys = list(setting_keys())
    for random in randoms("assignments", 1000):
        words = [f"{random.choice(keys)}={_text(random)}" for _ in range(random.randint(1, 3))]
        # As from a shell: bytes that are not UTF-8 become half surrogate pairs.
        words = [os.fsdecode(damaged(os.fsencode(word), random)) for word in words]
        with within(5, words):
            try:
                save_config(load_config("quickstart", parse_overrides(words)), tmp_path / "saved.toml")
            except (ConfigError, UsageError) as refusal:
                _check_reported(refusal)


def _is_taken(kind: str, folder: Path) -> bool:
    """Return whether c.toml is accepted; if so, check that it can be saved and read back unchanged."""
    schema: type[Section] = SCHEMAS[kind]
    file = folder / "c.toml"
    try:
        config = load_config_as(schema, file)
    except (ConfigError, UsageError) as refusal:
        _check_reported(refusal)
        _check_shown(file, kind, taken=False)
        return False
    _check_shown(file, kind, taken=True)
    if isinstance(config, Config):
        config_warnings(config)
        resolve_paths(config, folder)
    save_config(config, file)
    assert load_config_as(schema, file) == config
    return True


def _check_shown(file: Path, kind: str, *, taken: bool) -> None:
    """Check that the editor opens the configuration, whatever is in it, and lists problems where there are any."""
    try:
        document = ConfigDocument.open(file)
    except UsageError as refusal:
        _check_reported(refusal)
        return
    if document.kind == kind == "ppo":
        assert taken == (not document.problems)
    assert document.lines is not None


def _check_reported(refusal: Exception) -> None:
    lines = str(refusal).splitlines()
    assert 1 <= len(lines) <= 60
    assert max(map(len, lines)) < 1000, lines


def _text(random: Random) -> str:
    value = random.choice(VALUES)
    if isinstance(value, str) or random.random() < 0.3:
        return str(value)[:6000] if isinstance(value, str) else random.choice(NASTY).decode(errors="surrogateescape")
    return tomli_w.dumps({"v": value})[4:].strip()
