"""What is wrong with a preference store: in the file, in the schema, in what the rows say."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from trainer.errors import DataError, StorageError
from trainer.preferences.connection import paged
from trainer.preferences.migrations import MIGRATIONS
from trainer.preferences.rows import DAMAGES, checked, choice_of, read_comparison, read_preference


def problems(connection: sqlite3.Connection, path: Path) -> list[str]:
    """A line for each problem; none when the store is whole."""
    found: list[str] = []
    try:
        found += [f"file: {line}" for (line,) in connection.execute("PRAGMA integrity_check") if line != "ok"]
        found += [
            f"{table} {row}: refers to a row of {parent} that is not there"
            for table, row, parent, _ in connection.execute("PRAGMA foreign_key_check")
        ]
        found += _schema(connection)
        found += _comparisons(connection, path)
        found += _labels(connection, path)
        found += _undos(connection, path)
    except (sqlite3.DatabaseError, StorageError) as error:
        found.append(f"file: cannot be read to its end ({error})")
    return found


def _schema(connection: sqlite3.Connection) -> Iterator[str]:
    query = "SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"
    here = dict(connection.execute(query))
    with closing(sqlite3.connect(":memory:")) as new:
        for migration in MIGRATIONS:
            migration(new)
        for name, sql in new.execute(query):
            if here.get(name) != sql:
                yield f"schema: '{name}' is {'changed' if name in here else 'missing'}"


def _comparisons(connection: sqlite3.Connection, path: Path) -> Iterator[str]:
    query = "SELECT id, key, prompt, completions, origins, columns FROM comparisons WHERE id > :after ORDER BY id"
    for id_, key, *values in paged(connection, path, query):
        try:
            comparison = read_comparison(*values)
            if comparison.key != key:
                yield f"comparison {id_}: its key is not that of its prompt and completions"
        except (*DAMAGES, DataError) as error:
            yield f"comparison {id_}: cannot be read ({error!r})"


def _labels(connection: sqlite3.Connection, path: Path) -> Iterator[str]:
    query = """SELECT e.id, e.labeller, e.payload, e.choice, c.prompt, c.completions, c.origins, c.columns
        FROM events e JOIN comparisons c ON c.id = e.comparison
        WHERE e.id > :after AND e.kind = 'label' ORDER BY e.id"""
    for id_, labeller, payload, choice, *values in paged(connection, path, query):
        try:
            comparison = read_comparison(*values)
        except DAMAGES:
            continue  # told of the comparison
        try:
            preference = read_preference(id_, labeller, payload, comparison)
            checked(preference)
            if choice_of(preference.judgement) != choice:
                yield f"event {id_}: its choice '{choice}' is not that of its payload"
        except (*DAMAGES, DataError) as error:
            yield f"event {id_}: cannot be read ({error!r})"


def _undos(connection: sqlite3.Connection, path: Path) -> Iterator[str]:
    query = """SELECT u.id, u.undoes, e.kind, e.comparison = u.comparison AND e.id < u.id
        FROM events u LEFT JOIN events e ON e.id = u.undoes
        WHERE u.id > :after AND u.kind = 'undo' ORDER BY u.id"""
    for id_, undoes, kind, fits in paged(connection, path, query):
        if kind != "label":
            yield f"event {id_}: undoes {undoes}, which is no label"
        elif not fits:
            yield f"event {id_}: undoes label {undoes} of another comparison, or a later one"
