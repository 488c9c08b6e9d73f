"""Schema of preference stores, and the migrations to it from each older one.

Version 0 is a table `labels` of pairs, without the version in the file. Version 1 is a log of events on comparisons,
which the database itself keeps append-only. Version 2 adds labelling sessions: what they ask, and which events belong
to them.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from trainer.errors import StorageError
from trainer.preferences.connection import create_private, transaction
from trainer.preferences.records import Comparison

APPLICATION_ID = int.from_bytes(b"PPOw")  # in the file's header, so that `file` and we recognise it
_LABELS = ["id", "time", "labeller", "prompt", "first", "second", "choice", "undone"]
_CHOICES = {"first": "a", "second": "b", "tie": "tie", "both_bad": "both_bad", "skip": "skip"}
_RANKINGS = {"a": [[0], [1]], "b": [[1], [0]], "tie": [[0, 1]]}

_SCHEMA_1 = (
    """CREATE TABLE comparisons (
        id INTEGER PRIMARY KEY,
        key TEXT NOT NULL UNIQUE,   -- the same for these completions in any order
        prompt TEXT NOT NULL,       -- this and all below: JSON
        completions TEXT NOT NULL,
        origins TEXT NOT NULL,
        columns TEXT NOT NULL
    )""",
    """CREATE TABLE events (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        time REAL NOT NULL,         -- when it was written, seconds since 1970
        kind TEXT NOT NULL CHECK (kind IN ('label', 'undo')),
        comparison INTEGER NOT NULL REFERENCES comparisons (id),
        labeller TEXT NOT NULL,
        source TEXT NOT NULL,
        choice TEXT CHECK (choice IN ('a', 'b', 'tie', 'both_bad', 'skip', 'ranking')),  -- of a label, for counting
        payload TEXT NOT NULL,      -- the judgement as JSON; its places are those in the comparison's completions
        undoes INTEGER UNIQUE REFERENCES events (id),
        CHECK ((kind = 'undo') = (undoes IS NOT NULL)),
        CHECK ((kind = 'label') = (choice IS NOT NULL))
    )""",
    "CREATE INDEX events_of_comparison ON events (comparison)",
    *(
        f"CREATE TRIGGER {table}_no_{verb} BEFORE {verb} ON {table} BEGIN "
        f"SELECT RAISE(ABORT, '{table} are append-only'); END"
        for table in ("comparisons", "events")
        for verb in ("update", "delete")
    ),
    # INSERT OR REPLACE deletes without firing the triggers above.
    """CREATE TRIGGER comparisons_no_replace BEFORE INSERT ON comparisons
        WHEN EXISTS (SELECT 1 FROM comparisons WHERE id = NEW.id OR key = NEW.key)
        BEGIN SELECT RAISE(ABORT, 'comparisons are append-only'); END""",
    """CREATE TRIGGER events_no_replace BEFORE INSERT ON events
        WHEN EXISTS (SELECT 1 FROM events WHERE id = NEW.id OR undoes = NEW.undoes)
        BEGIN SELECT RAISE(ABORT, 'events are append-only'); END""",
)

_SCHEMA_2 = (
    """CREATE TABLE guidelines (
        hash TEXT PRIMARY KEY,
        text TEXT NOT NULL
    )""",
    """CREATE TABLE sessions (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        time REAL NOT NULL,         -- when it was begun, seconds since 1970
        labeller TEXT NOT NULL,
        plan TEXT NOT NULL,         -- JSON
        guidelines TEXT REFERENCES guidelines (hash)
    )""",
    """CREATE TABLE session_items (
        id INTEGER PRIMARY KEY,
        session INTEGER NOT NULL REFERENCES sessions (id),
        position INTEGER NOT NULL CHECK (position >= 0),
        comparison INTEGER NOT NULL REFERENCES comparisons (id),
        queue TEXT NOT NULL,
        payload TEXT NOT NULL,      -- JSON: the order shown; origins and columns, if others than the comparison's
        repeats INTEGER REFERENCES events (id),  -- the label that is asked for again
        UNIQUE (session, position)
    )""",
    # The item that a label is made on; an undo has that of the label that it undoes.
    "ALTER TABLE events ADD COLUMN session INTEGER REFERENCES sessions (id)",
    "ALTER TABLE events ADD COLUMN position INTEGER CHECK ((position IS NULL) = (session IS NULL))",
    "CREATE INDEX events_of_session ON events (session) WHERE session IS NOT NULL",
    *(
        f"CREATE TRIGGER {table}_no_{verb} BEFORE {verb} ON {table} BEGIN "
        f"SELECT RAISE(ABORT, '{table} are append-only'); END"
        for table in ("guidelines", "sessions", "session_items")
        for verb in ("update", "delete")
    ),
    *(
        f"CREATE TRIGGER {table}_no_replace BEFORE INSERT ON {table} WHEN EXISTS (SELECT 1 FROM {table} "  # noqa: S608
        f"WHERE {same}) BEGIN SELECT RAISE(ABORT, '{table} are append-only'); END"
        for table, same in (
            ("guidelines", "rowid = NEW.rowid OR hash = NEW.hash"),
            ("sessions", "id = NEW.id"),
            ("session_items", "id = NEW.id OR (session = NEW.session AND position = NEW.position)"),
        )
    ),
)


def schema_version(connection: sqlite3.Connection, path: Path) -> int:
    """Return the version of the store; 0 for an empty file.

    Raises StorageError for a newer version, or another program's file.
    """
    version, owner, tables, labels = connection.execute(
        """SELECT (SELECT user_version FROM pragma_user_version),
                  (SELECT application_id FROM pragma_application_id),
                  (SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name <> 'sqlite_sequence'),
                  (SELECT group_concat(name) FROM pragma_table_info('labels'))"""
    ).fetchone()
    if owner != APPLICATION_ID and (
        (owner, version) != (0, 0) or (tables and (tables, labels) != (1, ",".join(_LABELS)))
    ):
        raise StorageError(f"'{path}' is a database of another program: name another file")
    if version > VERSION:
        raise StorageError(
            f"'{path}' was written by a newer version (store version {version}, known up to {VERSION}): "
            "update ppo-workbench"
        )
    return int(version)


def migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Bring the store to VERSION in one transaction: a crash leaves it as it was.

    First, a file that is not empty is copied to NAME.vN.bak beside it, where N is its version. Raises StorageError if
    the copy cannot be written or the store's contents cannot be understood, and sqlite3.DatabaseError.
    """
    if schema_version(connection, path) == VERSION:
        return
    with transaction(connection):
        version = schema_version(connection, path)  # another process may have migrated by now
        if version == VERSION:
            return
        if connection.execute("SELECT 1 FROM sqlite_master").fetchone():
            _keep_copy(path, version)
        try:
            for migration in MIGRATIONS[version:]:
                migration(connection)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StorageError(
                f"'{path}' of version {version} cannot be migrated ({error!r}): "
                "it was left unchanged; repair it, or name another file"
            ) from None
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {VERSION}")


def _keep_copy(path: Path, version: int) -> None:
    """Copy the store as it is on disk. The copy has another name until it is complete."""
    target = path.with_name(f"{path.name}.v{version}.bak")
    part = target.with_name(f"{target.name}.part")
    try:
        part.unlink(missing_ok=True)
        create_private(part)
        # On a connection of its own: SQLite cannot copy from one that writes.
        with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(part)) as copy:
            source.backup(copy)
        part.replace(target)
    except OSError as error:
        raise StorageError(
            f"cannot copy '{path}' to '{target}' before migrating it: {error.strerror}; make the folder writable"
        ) from None


def _to_events(connection: sqlite3.Connection) -> None:
    """Migrate version 0 to 1. Labels keep their ids; each undone label gets an event that undoes it."""
    for statement in _SCHEMA_1:
        connection.execute(statement)
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'labels'").fetchone():
        return
    undone = []
    for id_, time, labeller, prompt, first, second, choice, was_undone in connection.execute(
        f"SELECT {', '.join(_LABELS)} FROM labels ORDER BY id"  # noqa: S608  our own names
    ).fetchall():
        comparison, swapped = _comparison_1(connection, prompt, first, second)
        choice = _CHOICES[choice]
        if swapped:
            choice = {"a": "b", "b": "a"}.get(choice, choice)
        payload = {"verdict": choice if choice in ("both_bad", "skip") else "ranked", "strength": 1, "time": time}
        if choice in _RANKINGS:
            payload["ranking"] = _RANKINGS[choice]
        values = (id_, time, "label", comparison, labeller, "", choice, json.dumps(payload), None)
        connection.execute("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", values)
        if was_undone:
            undone.append((time, "undo", comparison, labeller, "", None, "{}", id_))
    connection.executemany(
        "INSERT INTO events (time, kind, comparison, labeller, source, choice, payload, undoes) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        undone,
    )
    connection.execute("DROP TABLE labels")


def _comparison_1(connection: sqlite3.Connection, prompt: str, first: str, second: str) -> tuple[int, bool]:
    """Return a comparison's id in version 1, added if need be, and whether its completions are swapped there."""
    key = Comparison(prompt=prompt, completions=(first, second)).key
    row = connection.execute("SELECT id, completions FROM comparisons WHERE key = ?", (key,)).fetchone()
    if row is not None:
        return row[0], json.loads(row[1]) != [first, second]
    cursor = connection.execute(
        "INSERT INTO comparisons (key, prompt, completions, origins, columns) VALUES (?, ?, ?, '[]', '{}')",
        (key, json.dumps(prompt), json.dumps([first, second])),
    )
    assert cursor.lastrowid is not None
    return cursor.lastrowid, False


def _to_sessions(connection: sqlite3.Connection) -> None:
    """Migrate version 1 to 2. Events stay as they are, without a session."""
    for statement in _SCHEMA_2:
        connection.execute(statement)


MIGRATIONS: list[Callable[[sqlite3.Connection], None]] = [_to_events, _to_sessions]
"""MIGRATIONS[n] brings version n to n + 1. It spells out what it writes, so that it works when the records change."""

VERSION = len(MIGRATIONS)
