"""Comparisons and events of a preference store: found, and appended one by one, within transactions."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from trainer.errors import StorageError, UsageError
from trainer.preferences.connection import storage_errors, transaction
from trainer.preferences.records import Comparison, Preference
from trainer.preferences.rows import (
    DAMAGES,
    as_json,
    as_utf8,
    check_preference,
    choice_of,
    comparison_values,
    in_stored_order,
    judgement_values,
    label_values,
    read_comparison,
    read_preference,
)

PAGE = 500  # rows read at once
COMPARISON = "c.prompt, c.completions, c.origins, c.columns"
LABELS = f"""SELECT e.id, e.labeller, e.payload, {COMPARISON} FROM events e JOIN comparisons c ON c.id = e.comparison
    WHERE e.kind = 'label' AND NOT EXISTS (SELECT 1 FROM events u WHERE u.undoes = e.id)"""  # noqa: S608  our own names
"""The labels that are not undone."""


class Found(NamedTuple):
    """A comparison in the store, and a label on it."""

    id: int
    comparison: Comparison
    label: Preference  # its completions are in the order of `comparison`
    is_new: bool


@dataclass(frozen=True, slots=True)
class EventLog:
    """The log in the store at `path`.

    Call `insert`, `append_label`, `find_or_add` and `has_label` within a transaction.
    """

    connection: sqlite3.Connection
    path: Path

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Run the block in a transaction that holds the write lock, or as a part of the one already open.

        The changes are on disk when the outermost block ends; if that raises, nothing is written. SQLite errors become
        StorageErrors.
        """
        if self.connection.in_transaction:
            yield
        else:
            with storage_errors(self.path), transaction(self.connection):
                yield

    def rows(self, query: str, values: Sequence[Any] | Mapping[str, Any] = ()) -> list[Any]:
        """Return all rows of `query`. Raises StorageError."""
        with storage_errors(self.path):
            return self.connection.execute(query, values).fetchall()

    def paged(self, query: str, **values: Any) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of `query`, read page by page. Raises StorageError.

        No read transaction is open between two rows, so the log can be emptied. query: returns rows after `:after`, in
        the order of their first column, an id.
        """
        after = 0
        while True:
            rows = self.rows(f"{query} LIMIT {PAGE}", {**values, "after": after})
            yield from rows
            if len(rows) < PAGE:
                return
            after = rows[-1][0]

    def insert(self, query: str, values: Sequence[float | str | None]) -> int:
        """Insert a row and return its id."""
        id_ = self.connection.execute(query, values).lastrowid
        assert id_ is not None
        return id_

    def find_or_add(self, label: Preference) -> Found:
        """Return the label's comparison as it was first seen, in whatever order; add it if it is new.

        Raises DataError if the label makes no sense.
        """
        check_preference(label)
        values = comparison_values(label.comparison)
        row = self.connection.execute(
            f"SELECT c.id, {COMPARISON} FROM comparisons c WHERE c.key = ?",  # noqa: S608  our own names
            (values[0],),
        ).fetchone()
        if row is None:
            query = "INSERT INTO comparisons (key, prompt, completions, origins, columns) VALUES (?, ?, ?, ?, ?)"
            id_, stored = self.insert(query, values), label.comparison
        else:
            id_, stored = row[0], self.comparison(*row)
            if stored.key != values[0]:  # else places could not be mapped to its completions
                raise self.unreadable(f"comparison {id_}")
        return Found(id_, stored, in_stored_order(label, stored), is_new=row is None)

    def append_label(self, found: Found, source: str, now: float, item: tuple[int, int] | None = None) -> int:
        """Append the label of `found` and return its id. item: session and position of what it was made on."""
        judgement, payload = found.label.judgement, as_json(label_values(found.label, found.comparison))
        labeller, choice = as_utf8(judgement.labeller), choice_of(judgement)
        return self._append(
            now, "label", found.id, labeller, as_utf8(source), choice, payload, None, *(item or (None, None))
        )

    def undo(self, event_id: int, labeller: str) -> int:
        """Append that `labeller` undoes the label `event_id`, and return the id of that event.

        Raises UsageError if there is no such label or it is already undone.
        """
        with self.transaction():
            row = self.connection.execute(
                """SELECT kind, comparison, source, session, position,
                EXISTS (SELECT 1 FROM events u WHERE u.undoes = e.id) FROM events e WHERE id = ?""",
                (event_id,),
            ).fetchone()
            if row is None:
                raise UsageError(f"no label {event_id} in '{self.path}': give the id of a label")
            kind, comparison, source, session, position, undone = row
            if kind != "label":
                raise UsageError(f"event {event_id} is an undo, which cannot be undone: label the comparison again")
            if undone:
                raise UsageError(f"label {event_id} is undone already: label the comparison again to judge it")
            return self._append(
                time.time(), "undo", comparison, as_utf8(labeller), source, None, "{}", event_id, session, position
            )

    def has_label(self, found: Found, source: str) -> bool:
        """Return whether exactly the judgement of `found` is stored and not undone."""
        judgement = found.label.judgement
        payloads = self.connection.execute(
            """SELECT payload FROM events e WHERE comparison = ? AND kind = 'label' AND labeller = ? AND source = ?
            AND NOT EXISTS (SELECT 1 FROM events u WHERE u.undoes = e.id)""",
            (found.id, as_utf8(judgement.labeller), as_utf8(source)),
        )
        given = {"origins": None, "columns": None}  # with the label; they may differ
        values = judgement_values(judgement) | given
        try:
            return any(json.loads(payload) | given == values for (payload,) in payloads)
        except DAMAGES:
            raise self.unreadable(f"a label on comparison {found.id}") from None

    def comparison(self, id_: int, *values: str) -> Comparison:
        """Build the comparison `id_` from these columns. Raises StorageError if it is damaged."""
        try:
            return read_comparison(*values)
        except DAMAGES:
            raise self.unreadable(f"comparison {id_}") from None

    def label(self, id_: int, labeller: str, payload: str, *comparison: str) -> Preference:
        """Build the label `id_` from the columns of `LABELS`. Raises StorageError if it is damaged."""
        try:
            return read_preference(id_, labeller, payload, read_comparison(*comparison))
        except DAMAGES:
            raise self.unreadable(f"label {id_}") from None

    def unreadable(self, what: str) -> StorageError:
        """Return the error that reports `what` as damaged."""
        return StorageError(f"'{self.path}' is damaged: {what} cannot be read; check the store, or restore a copy")

    def _append(self, *values: float | str | None) -> int:
        query = """INSERT INTO events
            (time, kind, comparison, labeller, source, choice, payload, undoes, session, position)
            VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
        return self.insert(query, values)
