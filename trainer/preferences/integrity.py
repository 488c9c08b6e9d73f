"""Integrity checks of a preference store: the file, the schema and the contents of its rows."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any

from trainer.errors import DataError, StorageError
from trainer.preferences.connection import SCHEMA
from trainer.preferences.rows import DAMAGES, guidelines_hash, stored_comparison, stored_item, stored_label, stored_plan
from trainer.preferences.store import COMPARISON, PreferenceStore

# Problems that SQL finds alone: a line each.
_LINES = (
    """SELECT 'event ' || u.id || ': undoes ' || CASE
        WHEN e.kind IS NOT 'label' THEN u.undoes || ', which is not a label'
        WHEN e.comparison <> u.comparison OR e.id >= u.id THEN
            'label ' || u.undoes || ' of another comparison, or a later one'
        ELSE 'label ' || u.undoes || ' of another item' END
    FROM events u LEFT JOIN events e ON e.id = u.undoes WHERE u.kind = 'undo' AND (e.kind IS NOT 'label'
        OR e.comparison <> u.comparison OR e.id >= u.id OR e.session IS NOT u.session OR e.position IS NOT u.position)
    ORDER BY u.id""",
    """SELECT 'session ' || session || ': an item is missing' FROM session_items
    GROUP BY session HAVING count(*) <> max(position) + 1""",
    """SELECT 'session item ' || i.id || ': repeats event ' || i.repeats || ', which is not a label of its comparison'
    FROM session_items i LEFT JOIN events e ON e.id = i.repeats AND e.kind = 'label' AND e.comparison = i.comparison
    WHERE i.repeats IS NOT NULL AND e.id IS NULL ORDER BY i.id""",
    """SELECT 'event ' || e.id || ': labels item ' || e.position || ' of session ' || e.session
        || ', which is missing or another one'
    FROM events e LEFT JOIN sessions s ON s.id = e.session
    LEFT JOIN session_items i ON i.session = e.session AND i.position = e.position
    WHERE e.session IS NOT NULL AND e.kind = 'label'
    AND (i.comparison = e.comparison AND s.labeller = e.labeller) IS NOT TRUE ORDER BY e.id""",
    """SELECT 'event ' || max(e.id) || ': labels item ' || e.position || ' of session ' || e.session
        || ', which already has label ' || min(e.id)
    FROM events e WHERE e.session IS NOT NULL AND e.kind = 'label'
    AND NOT EXISTS (SELECT 1 FROM events u WHERE u.undoes = e.id)
    GROUP BY e.session, e.position HAVING count(*) > 1""",
)
_ROWS = {  # queries of rows that are read one by one, by what they are called
    "comparison": f"SELECT c.id, c.key, {COMPARISON} FROM comparisons c WHERE c.id > :after ORDER BY c.id",  # noqa: S608
    "event": f"""SELECT e.id, e.labeller, e.payload, e.choice, {COMPARISON}
        FROM events e JOIN comparisons c ON c.id = e.comparison
        WHERE e.id > :after AND e.kind = 'label' ORDER BY e.id""",  # noqa: S608
    "guidelines": "SELECT rowid, hash, text FROM guidelines WHERE rowid > :after ORDER BY rowid",
    "session": "SELECT id, plan FROM sessions WHERE id > :after ORDER BY id",
    "session item": f"""SELECT i.id, i.queue, i.payload, i.repeats, {COMPARISON}
        FROM session_items i JOIN comparisons c ON c.id = i.comparison WHERE i.id > :after ORDER BY i.id""",  # noqa: S608
}


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
        for what, query in _ROWS.items():
            for id_, *values in store.paged(query):
                try:
                    problem = _problem(what, *values)
                except DAMAGES as error:
                    problem = f"cannot be read ({error if isinstance(error, DataError) else repr(error)})"
                if problem:
                    found.append(f"{what} {id_}: {problem}")
        found += [line for query in _LINES for (line,) in store.rows(query)]
    except (sqlite3.DatabaseError, UnicodeDecodeError, StorageError) as error:
        found.append(f"file: cannot be read to its end ({error})")
    return found


def _problem(what: str, *values: Any) -> str:
    """Return the problem with a row of `_ROWS`; empty for none. Raises one of DAMAGES if it cannot be read."""
    if what == "guidelines":
        key, text = values
        fits = isinstance(text, str) and guidelines_hash(text) == key
        return "" if fits else "their hash does not match their text"
    if what == "session":
        stored_plan(*values)
        return ""
    if what == "comparison":
        key, *columns = values
        return "" if stored_comparison(*columns).key == key else "its key does not match its prompt and completions"
    try:
        comparison = stored_comparison(*values[3:])
    except DAMAGES:
        return ""  # reported with the comparison
    if what == "session item":
        queue, payload, repeats = values[:3]
        stored_item(queue, payload, repeats, comparison)
        return ""
    labeller, payload, choice = values[:3]
    fits = (stored_label(0, labeller, payload, comparison).judgement.choice or "ranking") == choice
    return "" if fits else f"its choice '{choice}' does not match its payload"


def _schema(connection: sqlite3.Connection) -> Iterator[str]:
    query = "SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"
    here = dict(connection.execute(query))
    with closing(sqlite3.connect(":memory:")) as new:
        for statement in SCHEMA:
            new.execute(statement)
        for name, sql in new.execute(query):
            if here.get(name) != sql:
                yield f"schema: '{name}' is {'changed' if name in here else 'missing'}"
