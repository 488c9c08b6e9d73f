"""Integrity checks of a preference store: the file, the schema and the contents of its rows."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing

from trainer.errors import StorageError
from trainer.preferences.connection import SCHEMA
from trainer.preferences.rows import (
    DAMAGES,
    choice_of,
    guidelines_hash,
    read_comparison,
    read_item,
    read_plan,
    read_preference,
)
from trainer.preferences.store import COMPARISON, PreferenceStore


def check_store(store: PreferenceStore) -> list[str]:
    """Return a line for each problem with the file or its contents; an empty list if there are none."""
    connection, found = store.connection, list[str]()
    try:
        found += [f"file: {line}" for (line,) in connection.execute("PRAGMA integrity_check") if line != "ok"]
        found += [
            f"{table} {row}: refers to a missing row of {parent}"
            for table, row, parent, _ in connection.execute("PRAGMA foreign_key_check")
        ]
        found += _schema(connection)
        for check in (_comparisons, _labels, _undos, _guidelines, _sessions, _items, _labelled_items):
            found += check(store)
    except (sqlite3.DatabaseError, UnicodeDecodeError, StorageError) as error:
        found.append(f"file: cannot be read to its end ({error})")
    return found


def _schema(connection: sqlite3.Connection) -> Iterator[str]:
    query = "SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"
    here = dict(connection.execute(query))
    with closing(sqlite3.connect(":memory:")) as new:
        for statement in SCHEMA:
            new.execute(statement)
        for name, sql in new.execute(query):
            if here.get(name) != sql:
                yield f"schema: '{name}' is {'changed' if name in here else 'missing'}"


def _comparisons(store: PreferenceStore) -> Iterator[str]:
    query = f"SELECT c.id, c.key, {COMPARISON} FROM comparisons c WHERE c.id > :after ORDER BY c.id"  # noqa: S608
    for id_, key, *values in store.paged(query):
        try:
            comparison = read_comparison(*values)
            if comparison.key != key:
                yield f"comparison {id_}: its key does not match its prompt and completions"
        except DAMAGES as error:
            yield f"comparison {id_}: cannot be read ({error!r})"


def _labels(store: PreferenceStore) -> Iterator[str]:
    query = f"""SELECT e.id, e.labeller, e.payload, e.choice, {COMPARISON}
        FROM events e JOIN comparisons c ON c.id = e.comparison
        WHERE e.id > :after AND e.kind = 'label' ORDER BY e.id"""  # noqa: S608
    for id_, labeller, payload, choice, *values in store.paged(query):
        try:
            comparison = read_comparison(*values)
        except DAMAGES:
            continue  # reported with the comparison
        try:
            preference = read_preference(id_, labeller, payload, comparison)
            if choice_of(preference.judgement) != choice:
                yield f"event {id_}: its choice '{choice}' does not match its payload"
        except DAMAGES as error:
            yield f"event {id_}: cannot be read ({error!r})"


def _undos(store: PreferenceStore) -> Iterator[str]:
    query = """SELECT u.id, u.undoes, e.kind, e.comparison = u.comparison AND e.id < u.id,
        e.session IS u.session AND e.position IS u.position
        FROM events u LEFT JOIN events e ON e.id = u.undoes
        WHERE u.id > :after AND u.kind = 'undo' ORDER BY u.id"""
    for id_, undoes, kind, fits, is_its_item in store.paged(query):
        if kind != "label":
            yield f"event {id_}: undoes {undoes}, which is not a label"
        elif not fits:
            yield f"event {id_}: undoes label {undoes} of another comparison, or a later one"
        elif not is_its_item:
            yield f"event {id_}: undoes label {undoes} of another item"


def _guidelines(store: PreferenceStore) -> Iterator[str]:
    query = "SELECT rowid, hash, text FROM guidelines WHERE rowid > :after ORDER BY rowid"
    for row, key, text in store.paged(query):
        if not isinstance(text, str) or guidelines_hash(text) != key:
            yield f"guidelines {row}: their hash does not match their text"


def _sessions(store: PreferenceStore) -> Iterator[str]:
    query = """SELECT s.id, s.plan,
        (SELECT count(*) = coalesce(max(i.position) + 1, 0) FROM session_items i WHERE i.session = s.id)
        FROM sessions s WHERE s.id > :after ORDER BY s.id"""
    for id_, plan, gapless in store.paged(query):
        try:
            read_plan(plan)
        except DAMAGES as error:
            yield f"session {id_}: its plan cannot be read ({error!r})"
        if not gapless:
            yield f"session {id_}: an item is missing"


def _items(store: PreferenceStore) -> Iterator[str]:
    query = f"""SELECT i.id, i.queue, i.payload, i.repeats, e.kind = 'label' AND e.comparison = i.comparison,
        {COMPARISON}
        FROM session_items i JOIN comparisons c ON c.id = i.comparison LEFT JOIN events e ON e.id = i.repeats
        WHERE i.id > :after ORDER BY i.id"""  # noqa: S608
    for id_, queue, payload, repeats, repeats_a_label, *values in store.paged(query):
        try:
            comparison = read_comparison(*values)
        except DAMAGES:
            continue  # reported with the comparison
        try:
            read_item(queue, payload, repeats, comparison)
        except DAMAGES as error:
            yield f"session item {id_}: cannot be read ({error!r})"
        if repeats is not None and not repeats_a_label:
            yield f"session item {id_}: repeats event {repeats}, which is not a label of its comparison"


def _labelled_items(store: PreferenceStore) -> Iterator[str]:
    query = """SELECT e.id, e.session, e.position, e.undoes, i.comparison = e.comparison AND s.labeller = e.labeller
        FROM events e LEFT JOIN sessions s ON s.id = e.session
        LEFT JOIN session_items i ON i.session = e.session AND i.position = e.position
        WHERE e.id > :after AND e.session IS NOT NULL ORDER BY e.id"""
    labels: dict[tuple[int, int], int] = {}  # not undone
    for id_, session, position, undoes, fits in store.paged(query):
        place = session, position
        if undoes is not None:
            if labels.get(place) == undoes:
                del labels[place]
        elif not fits:
            yield f"event {id_}: labels item {position} of session {session}, which is missing or another one"
        elif place in labels:
            yield f"event {id_}: labels item {position} of session {session}, which already has label {labels[place]}"
        else:
            labels[place] = id_
