"""The store of preferences: one SQLite file, `preferences.db`, an append-only log of labels and undos."""

from __future__ import annotations

import itertools
import sqlite3
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainer.errors import DataError, StorageError, UsageError
from trainer.preferences.connection import SCHEMA, connect, storage_errors
from trainer.preferences.records import FLAGGED, Comparison, Preference
from trainer.preferences.rows import (
    as_json,
    as_utf8,
    guidelines_hash,
    payload,
    preference_values,
    read_preference,
    stored,
    stored_item,
    stored_plan,
)

PAGE = 500  # rows read at once
COMPARISON = "c.prompt, c.completions"
LABELS = f"""SELECT e.id, e.labeller, e.payload, {COMPARISON} FROM events e JOIN comparisons c ON c.id = e.comparison
    WHERE e.kind = 'label' AND NOT EXISTS (SELECT 1 FROM events u WHERE u.undoes = e.id)"""  # noqa: S608  our own names
"""The labels that are not undone."""

_BATCH = 1000  # preferences per transaction; each transaction waits for the disk once
_SKIP = """'{"verdict":"skip"}'"""  # payload of a comparison without a label
_EVENT = """INSERT INTO events (time, kind, comparison, labeller, source, choice, payload, undoes, session, position)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
_OF_LABELLER = f"{LABELS} AND e.comparison = ? AND e.labeller = ? AND e.source = ?"
_BY_KEY = f"SELECT c.id, {_SKIP}, {COMPARISON} FROM comparisons c WHERE c.key = ?"  # noqa: S608  our own names
_COUNTS = """SELECT count(*), NULL, NULL FROM comparisons
    UNION ALL SELECT count(*), NULL, NULL FROM events WHERE kind = 'undo'
    UNION ALL SELECT count(*), e.choice, e.labeller FROM events e
        WHERE e.kind = 'label' AND NOT EXISTS (SELECT 1 FROM events u WHERE u.undoes = e.id)
        GROUP BY e.choice, e.labeller"""
_IMPORTS = """SELECT min(e.id), e.source, e.time, count(*), count(u.id)
    FROM events e LEFT JOIN events u ON u.undoes = e.id
    WHERE e.kind = 'label' AND e.source <> '' AND e.session IS NULL GROUP BY e.source, e.time ORDER BY min(e.id) DESC"""
_UNDO_IMPORT = """INSERT INTO events (time, kind, comparison, labeller, source, payload, undoes)
    SELECT :now, 'undo', e.comparison, :labeller, e.source, '{}', e.id FROM events e
    WHERE e.kind = 'label' AND e.source = :source AND e.time = :time AND e.session IS NULL
    AND NOT EXISTS (SELECT 1 FROM events u WHERE u.undoes = e.id) ORDER BY e.id"""

_ROWS = {  # queries of rows that are read one by one, by what they are called
    "comparison": f"SELECT c.id, c.key, {_SKIP}, {COMPARISON} FROM comparisons c WHERE c.id > :after ORDER BY c.id",  # noqa: S608
    "event": f"""SELECT e.id, e.labeller, e.choice, e.payload, {COMPARISON}
        FROM events e JOIN comparisons c ON c.id = e.comparison
        WHERE e.id > :after AND e.kind = 'label' ORDER BY e.id""",  # noqa: S608
    "guidelines": "SELECT rowid, hash, text FROM guidelines WHERE rowid > :after ORDER BY rowid",
    "session": "SELECT id, plan FROM sessions WHERE id > :after ORDER BY id",
    "session item": f"""SELECT i.id, i.queue, i.repeats, i.payload, {COMPARISON}
        FROM session_items i JOIN comparisons c ON c.id = i.comparison WHERE i.id > :after ORDER BY i.id""",  # noqa: S608
}


@dataclass(frozen=True, slots=True)
class Import:
    """An import. id: of its first label event. time: when it was made. labels: all that it added. undone: of these."""

    id: int
    source: str
    time: float  # seconds since 1970
    labels: int
    undone: int


@dataclass(frozen=True, slots=True)
class Counts:
    """Counts of a store. All but `comparisons` and `undone` cover the labels that are not undone, including skips."""

    comparisons: int
    labels: int
    skips: int
    undone: int  # labels
    choices: dict[str, int]  # a and b are places in the comparison's completions; "ranking": of more than two
    labellers: dict[str, int]


STORE = "preferences.db"
"""Name of the store of a folder, unless another one is named."""


class PreferenceStore(AbstractContextManager["PreferenceStore"]):
    """The preferences in the file `path`; a context manager, for the thread that opened it.

    Several processes and threads may read and write at once, each with a store of its own. A write is on disk when the
    method returns; it waits up to 30 s for another writer.

    Comparisons of the same completions to the same prompt are stored once, whatever their order: completions keep the
    order in which they were first seen, and the places of later judgements are mapped to it. Origins and columns are
    stored with each label whose own differ from the comparison's.

    create: create the store if there is none; it must be writable. Without it, a missing store raises UsageError, and a
    read-only one can be read. Every method raises StorageError if the file is locked, read-only, damaged or of a newer
    version.
    """

    def __init__(self, path: Path, *, create: bool = True) -> None:
        self.path = path
        self.connection = connect(path, create=create)

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; the last connection to close leaves everything in `path` itself."""
        self.connection.close()

    def add_many(self, preferences: Iterable[Preference], *, source: str) -> tuple[int, int]:
        """Store preferences that came from `source`; return how many were new, and how many duplicates.

        They are written in transactions of 1,000: an error leaves those before it. Duplicates are not added again: the
        same comparison judged the same, including the note and the seconds, by the same labeller from the same source.
        """
        count = duplicates = 0
        pending, now = iter(preferences), time.time()  # one time, by which `imports` knows what came together
        while batch := list(itertools.islice(pending, _BATCH)):  # the lock is not held while they are made
            added = 0
            with self.transaction():
                for preference in batch:
                    comparison, label = self.find_or_add(preference)
                    same = (comparison, as_utf8(label.judgement.labeller), as_utf8(source))
                    known = (self.label(*row).judgement for row in self.rows(_OF_LABELLER, same))
                    if label.judgement not in known:
                        self.append_label(now, comparison, label, source)
                        added += 1
            count, duplicates = count + added, duplicates + len(batch) - added
        return count, duplicates

    def undo(self, event_id: int, labeller: str) -> int:
        """Undo the label `event_id` as `labeller`, and return the id of the undo event.

        Raises UsageError if there is no such label or it is already undone. An undo cannot be undone; label the
        comparison again.
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
            of_label = (comparison, as_utf8(labeller), source, None, "{}", event_id, session, position)
            return self.insert(_EVENT, (time.time(), "undo", *of_label))

    def imports(self) -> list[Import]:
        """Return what `add_many` added, call by call, the newest first."""
        return [Import(*row) for row in self.rows(_IMPORTS)]

    def undo_import(self, wanted: Import, labeller: str) -> int:
        """Undo the labels of an import as `labeller`, all or none; return how many were not undone before.

        Importing the source again adds them again.
        """
        values = {"now": time.time(), "labeller": as_utf8(labeller), "source": wanted.source, "time": wanted.time}
        with self.transaction():
            return self.connection.execute(_UNDO_IMPORT, values).rowcount

    def preferences(
        self,
        *,
        labeller: str | None = None,
        source: str | None = None,
        run: str | None = None,
        with_skips: bool = False,
    ) -> Iterator[Preference]:
        """Yield the labels that are not undone, in the order of labelling.

        run: only labels on completions of the run with this name; the others cost little. Labels are read lazily, up to
        the newest one at the first read. A label that is undone meanwhile may still be yielded.
        """
        conditions, values = _selection(labeller, source)
        if run is not None:
            # Of a million labels, it is found in a second; to decode them all takes minutes.
            conditions += " AND instr(e.payload, :run)"
            values["run"] = as_json({"run": run}).strip("{}")
        if not with_skips:
            conditions += " AND e.choice <> 'skip'"
        ((last,),) = self.rows("SELECT max(id) FROM events")
        query = f"{LABELS} AND e.id > :after AND e.id <= :last{conditions} ORDER BY e.id"
        for row in self.paged(query, last=last, **values):
            yield self.label(*row)

    def newest(self, limit: int, *, labeller: str | None = None, source: str | None = None) -> list[Preference]:
        """Return the newest labels that are not undone, skips included, the last one first. limit: how many at most."""
        conditions, values = _selection(labeller, source)
        rows = self.rows(f"{LABELS}{conditions} ORDER BY e.id DESC LIMIT :limit", {**values, "limit": limit})
        return [self.label(*row) for row in rows]

    def comparison(self, key: str) -> Comparison | None:
        """Return the comparison with this key, with origins and columns of its newest label; None if it is new."""
        if labels := self.labels_of(key):
            return labels[-1].comparison
        rows = self.rows(_BY_KEY, (key,))
        return self.stored(f"comparison {rows[0][0]}", *rows[0][1:]).comparison if rows else None

    def labels_of(self, key: str) -> list[Preference]:
        """Return the labels of the comparison with this `Comparison.key`, in the order of labelling.

        Skips are included, undone labels are not.
        """
        return [self.label(*row) for row in self.rows(f"{LABELS} AND c.key = ? ORDER BY e.id", (key,))]

    def flagged(self) -> list[str]:
        """Return the keys of the comparisons whose newest label has the flag, in the order of labelling.

        A newer label without it lifts the flag, whoever made it.
        """
        # Most labels have no flags: those are passed over without decoding their payload.
        query = f"""{LABELS} AND e.id > :after AND e.payload LIKE '%"flags"%' AND NOT EXISTS (
            SELECT 1 FROM events n WHERE n.comparison = e.comparison AND n.kind = 'label' AND n.id > e.id
            AND NOT EXISTS (SELECT 1 FROM events u WHERE u.undoes = n.id)) ORDER BY e.id"""  # noqa: S608  our own names
        labels = (self.label(*row) for row in self.paged(query))
        return [label.comparison.key for label in labels if FLAGGED in label.judgement.flags]

    def counts(self) -> Counts:
        """Return the counts as of one moment."""
        (comparisons, _, _), (undone, _, _), *current = self.rows(_COUNTS)
        choices, labellers = Counter[str](), Counter[str]()
        for labels, choice, labeller in current:
            choices[choice] += labels
            labellers[labeller] += labels
        return Counts(comparisons, choices.total(), choices["skip"], undone, dict(choices), dict(labellers))

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Run the block in a transaction that holds the write lock, or as a part of the one already open.

        The changes are on disk when the outermost block ends; if that raises, nothing is written. SQLite errors become
        StorageErrors.
        """
        inner = self.connection.in_transaction
        if inner:
            yield
            return
        with storage_errors(self.path):
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self.connection.execute("COMMIT")
            except BaseException:
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")
                raise

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

    def find_or_add(self, label: Preference) -> tuple[int, Preference]:
        """Return the id of the label's comparison, which is added if it is new, and the label in the order stored.

        Raises DataError if the label makes no sense, for it would stay there.
        """
        label = read_preference(preference_values(label), "cannot save this preference")
        key = label.comparison.key
        if not (rows := self.rows(_BY_KEY, (key,))):
            values = (key, as_json(label.comparison.prompt), as_json(label.comparison.completions))
            return self.insert("INSERT INTO comparisons (key, prompt, completions) VALUES (?, ?, ?)", values), label
        ((id_, *columns),) = rows
        known = self.stored(f"comparison {id_}", *columns).comparison
        if known.key != key:  # else places could not be mapped to its completions
            raise self.unreadable(f"comparison {id_}")
        return id_, label.at(*(here for _, here in sorted(zip(known.order, label.comparison.order, strict=True))))

    def append_label(
        self,
        now: float,
        comparison: int,
        label: Preference,
        source: str = "",
        session: int | None = None,
        position: int | None = None,
    ) -> int:
        """Append a label on the comparison with this id, in its order; return the label's id."""
        labeller, choice = as_utf8(label.judgement.labeller), label.judgement.choice or "ranking"
        values = (now, "label", comparison, labeller, as_utf8(source), choice, payload(label), None, session, position)
        return self.insert(_EVENT, values)

    def stored(self, what: str, payload: str, *comparison: str, **more: Any) -> Preference:
        """Build a label, or a skip of an item, from a row's JSON. Raises StorageError that `what` is damaged."""
        try:
            return stored(payload, *comparison, **more)
        except DataError:
            raise self.unreadable(what) from None

    def label(self, id_: int, labeller: str, *columns: str) -> Preference:
        """Build the label `id_` from the columns of `LABELS`. Raises StorageError if it is damaged."""
        return replace(self.stored(f"label {id_}", *columns, labeller=labeller), id=id_)

    def unreadable(self, what: str) -> StorageError:
        """Return the error that reports `what` as damaged."""
        return StorageError(f"'{self.path}' is damaged: {what} cannot be read; check the store, or restore a copy")


def _selection(labeller: str | None, source: str | None) -> tuple[str, dict[str, Any]]:
    """Return conditions on `LABELS`, and their values."""
    wanted = {"labeller": labeller, "source": source}
    values: dict[str, Any] = {name: as_utf8(value) for name, value in wanted.items() if value is not None}
    return "".join(f" AND e.{name} = :{name}" for name in values), values


def check_store(store: PreferenceStore) -> list[str]:
    """Return a line for each problem with the file or its contents; an empty list if there are none."""
    connection, found = store.connection, list[str]()
    try:
        found += [f"file: {line}" for (line,) in connection.execute("PRAGMA integrity_check") if line != "ok"]
        found += [
            f"{table} {row}: refers to a missing row of {parent}"
            for table, row, parent, _ in connection.execute("PRAGMA foreign_key_check")
        ]
        query = "SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"
        here = dict(connection.execute(query))
        with closing(sqlite3.connect(":memory:")) as new:
            for statement in SCHEMA:
                new.execute(statement)
            changed = [name for name, sql in new.execute(query) if here.get(name) != sql]
        found += [f"schema: '{name}' is {'changed' if name in here else 'missing'}" for name in changed]
        for what, query in _ROWS.items():
            for id_, *values in store.paged(query):
                try:
                    problem = _problem(what, *values)
                except DataError as error:
                    problem = f"cannot be read ({error})"
                if problem:
                    found.append(f"{what} {id_}: {problem}")
    except (sqlite3.DatabaseError, UnicodeDecodeError, StorageError) as error:
        found.append(f"file: cannot be read to its end ({error})")
    return found


def _problem(what: str, *values: Any) -> str:
    """Return the problem with the columns of a row of `_ROWS`; empty for none. Raises DataError if it is unreadable."""
    match what, values:
        case "comparison", (key, *columns):
            return "" if stored(*columns).comparison.key == key else "its key does not match its prompt and completions"
        case "event", (labeller, choice, *columns):
            fits = (stored(*columns, labeller=labeller).judgement.choice or "ranking") == choice
            return "" if fits else f"its choice '{choice}' does not match its payload"
        case "guidelines", (key, text):
            fits = isinstance(text, str) and guidelines_hash(text) == key
            return "" if fits else "their hash does not match their text"
        case "session", (plan,):
            stored_plan(plan)
        case _, columns:
            stored_item(*columns)
    return ""
