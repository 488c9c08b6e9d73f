"""Random configurations, --set strings and preference stores, mostly damaged: read or refused, never a bug."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest
import tomli_w
from config_files import save_config
from fuzzing import NASTY, damaged, outcome, randoms, within
from preferences_helper import add_label, preference, preferences

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
from trainer.config.pairs import PreferenceDataConfig
from trainer.config.problems import setting_keys
from trainer.errors import ConfigError, TrainerError, UsageError
from trainer.pairs.comparisons import load_preferences
from trainer.preferences.records import Item, Judgement, QueuePlan, SessionPlan
from trainer.preferences.sessions import begin_session, guidelines_text, list_sessions, open_session
from trainer.preferences.store import PreferenceStore, check_store
from workbench.cli.main import main
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


TABLES = ("comparisons", "events", "guidelines", "sessions", "session_items", "sqlite_master")


@pytest.fixture(scope="module")
def whole_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a store with labels, an undo, guidelines and a session under way."""
    path = tmp_path_factory.mktemp("whole_store") / "preferences.db"
    with PreferenceStore(path) as store:
        store.add_many(preferences(30), source="a file")
        store.undo(add_label(store, preference("to be undone")), "ann")
        session = begin_session(store, "ann", SessionPlan(queues=(QueuePlan(queue="samples"),)), "Be kind.")
        session.put([Item(comparison=preference(f"{n}").comparison, queue="samples", order=(1, 0)) for n in range(5)])
        session.label(session.item(0), Judgement.chosen("a", labeller="ann"))
    return path


def test_a_store_with_damaged_bytes_is_read_or_reported_as_damaged(whole_store: Path, tmp_path: Path) -> None:
    content = whole_store.read_bytes()
    for random in randoms("store bytes", 30):
        path = tmp_path / "preferences.db"
        path.write_bytes(_flipped(content, random) if random.random() < 0.8 else damaged(content, random))
        _use(path, random)


def test_a_store_with_values_of_another_kind_is_read_or_reported_as_damaged(whole_store: Path, tmp_path: Path) -> None:
    for random in randoms("store values", 40):
        path = tmp_path / "preferences.db"
        shutil.copy(whole_store, path)
        _overwrite(path, random)
        _use(path, random)


def _use(path: Path, random: Random) -> None:
    """Run some of what commands and screen do with the store: each ends well or with an error for the user."""
    store, out = str(path), str(path.with_name("out.jsonl"))
    before = {other.name for other in path.parent.iterdir()}
    commands: list[list[str]] = [
        ["list", "--limit", "100"],
        ["list", "--json"],
        ["check"],
        ["card"],
        ["agreement", "--json"],
        ["export", out, "--force", "--provenance", "--format", random.choice(("trl", "k-way", "hh", "ultrafeedback"))],
    ]
    with within(20, path.name):
        for words in random.sample(commands, 3):
            outcome(main, ["preferences", *words, "--store", store])
        for use in random.sample(USES, 4):
            with contextlib.suppress(TrainerError), PreferenceStore(path, create=random.random() < 0.5) as opened:
                use(opened)
        with contextlib.suppress(TrainerError):
            list(load_preferences(PreferenceDataConfig(preferences=store)))
    after = {other.name for other in path.parent.iterdir()} - before
    assert after <= {"out.jsonl", f"{path.name}-wal", f"{path.name}-shm", f"{path.name}-journal"}, after


def _label(store: PreferenceStore) -> None:
    for record in list_sessions(store):
        guidelines_text(store, record.guidelines)
        session = open_session(store, record.id)
        list(session.history())
        session.progress(3)
        if item := session.next_open():
            session.label(item, Judgement.chosen("b"))
            session.undo()


USES: list[Callable[[PreferenceStore], object]] = [
    _label,
    lambda store: add_label(store, preference("new")),
    lambda store: store.add_many(preferences(5), source="a file"),
    lambda store: store.undo(3, "bob"),
    lambda store: store.counts(),
    lambda store: check_store(store),
    lambda store: store.comparison(preference("0").comparison.key),
    lambda store: list(store.preferences(labeller="ann", with_skips=True)),
    lambda store: store.labels_of(preference("0").comparison.key),
    lambda store: list_sessions(store),
]


def _flipped(content: bytes, random: Random) -> bytes:
    """Change one to eight bytes, half of them in the first page, where the schema is."""
    changed = bytearray(content)
    for _ in range(random.randint(1, 8)):
        changed[random.randrange(4096 if random.random() < 0.5 else len(changed))] ^= 1 << random.randrange(8)
    return bytes(changed)


def _overwrite(path: Path, random: Random) -> None:
    """Put values of any type, and text that is not UTF-8, in one to three places of any table."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for pragma in ("ignore_check_constraints = ON", "foreign_keys = OFF", "writable_schema = ON"):
            connection.execute(f"PRAGMA {pragma}")
        for (trigger,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            connection.execute(f"DROP TRIGGER {trigger}")
        for _ in range(random.randint(1, 3)):
            table = random.choice(TABLES)
            columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
            value = random.choice(
                ("x'00ff'", "CAST(x'fffe' AS TEXT)", "NULL", "-1", "1e308", "9223372036854775807", "?")
            )
            nasty = random.choice(NASTY).decode(errors="replace")
            column = random.choice(columns)
            if value == "?" and random.random() < 0.7:
                value = f"substr({column}, 1, {random.randrange(40)}) || ? || substr({column}, {random.randrange(60)})"
            rows = f"rowid IN (SELECT rowid FROM {table} ORDER BY rowid LIMIT 1 OFFSET {random.randrange(6)})"
            with contextlib.suppress(sqlite3.DatabaseError):
                connection.execute(f"UPDATE {table} SET {column} = {value} WHERE {rows}", (nasty,) * value.count("?"))
