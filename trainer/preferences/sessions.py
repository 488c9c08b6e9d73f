"""Labelling sessions in a preference store: what they ask and in which order, and the labels given so far."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from trainer.errors import DataError, UsageError
from trainer.preferences.claims import Claim
from trainer.preferences.event_log import COMPARISON, LABELS
from trainer.preferences.items import Item, Progress, SessionItem, SessionPlan, SessionRecord
from trainer.preferences.labelling_progress import ProgressCounter
from trainer.preferences.records import Judgement, Preference
from trainer.preferences.rows import (
    DAMAGES,
    as_json,
    as_utf8,
    guidelines_hash,
    item_values,
    read_comparison,
    read_item,
    read_plan,
    read_preference,
)
from trainer.preferences.store import PreferenceStore

_SESSIONS = """SELECT s.id, s.time, s.labeller, s.plan, coalesce(s.guidelines, ''),
    (SELECT coalesce(max(i.position) + 1, 0) FROM session_items i WHERE i.session = s.id),
    (SELECT coalesce(sum(CASE e.kind WHEN 'label' THEN 1 ELSE -1 END), 0) FROM events e WHERE e.session = s.id)
    FROM sessions s"""
_EVENTS = (
    "SELECT id, position, undoes FROM events WHERE session = :session AND id > :after AND id <= :newest ORDER BY id"
)
_ADDED = """SELECT count(*), coalesce(max(position) + 1, :known) FROM session_items
    WHERE session = :session AND position >= :known"""
# Items that no longer need a label, because the labeller judged their comparison outside the session; for the queue
# "again", only since the session began. Repeats always need one: they measure self-agreement.
_ELSEWHERE = """SELECT i.position FROM session_items i JOIN sessions s ON s.id = i.session
    WHERE i.session = :session AND i.position BETWEEN :first AND :last AND i.repeats IS NULL AND EXISTS (
        SELECT 1 FROM events e WHERE e.comparison = i.comparison AND e.kind = 'label' AND e.labeller = s.labeller
        AND e.session IS NOT i.session AND (i.queue <> 'again' OR e.time >= s.time)
        AND NOT EXISTS (SELECT 1 FROM events u WHERE u.undoes = e.id))"""
# Items whose comparison has had an event outside the session. The + keeps SQLite from reading all items at each event.
_TOUCHED = """SELECT DISTINCT i.position FROM events e CROSS JOIN session_items i
    WHERE e.id > :after AND e.id <= :newest AND e.session IS NOT :session
    AND +i.session = :session AND i.comparison = e.comparison"""
# An item with its label.
_ITEM = f"""SELECT i.queue, i.payload, i.repeats, e.labeller, e.payload, {COMPARISON}
    FROM session_items i JOIN comparisons c ON c.id = i.comparison LEFT JOIN events e ON e.id = :label
    WHERE i.session = :session AND i.position = :position"""  # noqa: S608  our own names


def list_sessions(store: PreferenceStore) -> list[SessionRecord]:
    """Return the sessions in `store`, the newest first."""
    records = [_record(store, row) for row in store.log.rows(f"{_SESSIONS} ORDER BY s.id DESC")]
    return [open_session(store, one.id).record if one.left else one for one in records]


def begin_session(store: PreferenceStore, labeller: str, plan: SessionPlan, guidelines: str = "") -> LabelSession:
    """Begin a session without items. guidelines: the text that the labeller follows; stored once, by its hash."""
    connection, text = store.log.connection, as_utf8(guidelines)
    key = guidelines_hash(text)
    with store.log.transaction():
        if key and not connection.execute("SELECT 1 FROM guidelines WHERE hash = ?", (key,)).fetchone():
            connection.execute("INSERT INTO guidelines (hash, text) VALUES (?, ?)", (key, text))
        session_id = store.log.insert(
            "INSERT INTO sessions (time, labeller, plan, guidelines) VALUES (?, ?, ?, ?)",
            (time.time(), as_utf8(labeller), as_json(asdict(plan)), key or None),
        )
        return open_session(store, session_id)


def open_session(store: PreferenceStore, session_id: int) -> LabelSession:
    """Open the session `session_id` to continue it. Raises UsageError if there is none."""
    rows = store.log.rows(f"{_SESSIONS} WHERE s.id = ?", (session_id,))
    if not rows:
        raise UsageError(f"no labelling session {session_id} in '{store.path}': name an existing one, or begin one")
    return LabelSession(store, _record(store, rows[0]))


def guidelines_text(store: PreferenceStore, key: str) -> str:
    """Return the guidelines with this hash; empty for the empty hash. Raises UsageError if the store has none."""
    if not key:
        return ""
    rows = store.log.rows("SELECT text FROM guidelines WHERE hash = ?", (key,))
    if not rows:
        raise UsageError(f"no guidelines {key} in '{store.path}': use those of a session there")
    return str(rows[0][0])


class LabelSession:
    """A session of one labeller, for the thread that opened its store; made by `begin_session` and `open_session`.

    Several windows may have one session open, each with one of these: a method sees what the others have done. Methods
    that write do so durably, or raise and change nothing. The cost of a label does not grow with the session.
    """

    def __init__(self, store: PreferenceStore, record: SessionRecord) -> None:
        self._log = store.log
        self._begun = record
        self._items = 0
        self._labels: dict[int, int] = {}  # current label of each labelled position, in the order of labelling
        self._elsewhere: set[int] = set()  # positions without a label whose comparison was judged in another session
        self._first = 0  # every position before it is in one of these
        self._seen = 0  # the newest event that these take into account
        self._counter: ProgressCounter | None = None  # made on first use

    @property
    def record(self) -> SessionRecord:
        """Current record of the session."""
        self._follow()
        return replace(self._begun, items=self._items, done=len(self._labels), elsewhere=len(self._elsewhere))

    def put(self, items: Sequence[Item]) -> None:
        """Append all of `items` or none. Raises DataError if one makes no sense.

        A comparison that the session has already, because another window put it, is passed over unless it is a repeat.
        Where the store has a comparison in another order, the item's order is mapped to that one.
        """
        with self._log.transaction():
            self._follow()
            served, position = self.served(), self._items
            for item in items:
                if item.repeats or item.comparison.key not in served:
                    self._append_item(position, item)
                    position += 1
                if not item.repeats:
                    served.add(item.comparison.key)

    def next_open(self, claim: Claim | None = None, shown: int | None = None) -> SessionItem | None:
        """Return the first item still to be judged; None if there is none.

        claim: takes the item's comparison; items that another session shows are passed over until it releases them.
        shown: the position of the item on the screen, returned as long as it is still to be judged.
        """
        self._follow()
        for position in itertools.chain(() if shown is None else (shown,), range(self._first, self._items)):
            if position not in self._labels and position not in self._elsewhere:
                item = self._read(position, None)
                if claim is None or claim.take(item.item.comparison.key):
                    return item
            elif position == self._first:
                self._first += 1
        if claim is not None:
            claim.release()
        return None

    def newest(self) -> SessionItem | None:
        """Return the most recently labelled item; None if none has a label."""
        return next(iter(self.history(limit=1)), None)

    def item(self, position: int) -> SessionItem:
        """Return the item at `position`. Raises UsageError if there is none."""
        self._follow()
        if not 0 <= position < self._items:
            raise UsageError(f"session {self._begun.id} has no item {position + 1}: it has {self._items}")
        return self._read(position, self._labels.get(position))

    def label(self, position: int, judgement: Judgement) -> int:
        """Store the judgement of the item at `position` and return the label's id.

        Labeller, guidelines and the order shown come from the session and the item; a judgement without a time gets the
        present one. Raises UsageError if the item has a label, or its comparison was judged in another session.
        """
        with self._log.transaction():
            item = self.item(position)
            if item.label is not None:
                raise UsageError(
                    f"item {position + 1} has been labelled in another window: continue with the next one, "
                    "or change the label in the history"
                )
            if position in self._elsewhere:
                raise UsageError(f"item {position + 1} has been judged in another session: continue with the next one")
            return self._append_label(item, judgement)

    def relabel(self, position: int, judgement: Judgement) -> int:
        """Undo the item's label and store another judgement in its place, as `label` does.

        Raises UsageError if the item has no label.
        """
        with self._log.transaction():
            item = self.item(position)
            if item.label is None:
                raise UsageError(f"item {position + 1} has no label to change: label it first")
            self._log.undo(item.label.id, self._begun.labeller)
            return self._append_label(item, judgement)

    def undo(self) -> int | None:
        """Undo the newest label and return its position; None if there is none."""
        with self._log.transaction():
            self._follow()
            if not self._labels:
                return None
            position, label = next(reversed(self._labels.items()))
            self._log.undo(label, self._begun.labeller)
            return position

    def history(self, limit: int = 200, before: int | None = None) -> list[SessionItem]:
        """Return the items with a label, the most recently labelled first.

        before: id of a label; only items with an older one.
        """
        self._follow()
        newest_first = reversed(self._labels.items())
        older = (place for place in newest_first if before is None or place[1] < before)
        return [self._read(position, label) for position, label in itertools.islice(older, limit)]

    def served(self) -> set[str]:
        """Return the keys of the comparisons that were added, except repeats."""
        rows = self._log.rows(
            """SELECT c.key FROM session_items i JOIN comparisons c ON c.id = i.comparison
            WHERE i.session = ? AND i.repeats IS NULL""",
            (self._begun.id,),
        )
        return {key for (key,) in rows}

    def progress(self, left: int | None) -> Progress:
        """Return the session's progress. left: number of items still to be judged; None if not known."""
        self._follow()
        if self._counter is None:
            labelled = (self._read(position, label) for position, label in self._labels.items())
            self._counter = ProgressCounter(self._current_judgement, labelled)
        return self._counter.progress(left)

    def _follow(self) -> None:
        """Update to what any window has written since the last call."""
        log, session = self._log, self._begun.id
        ((newest,),) = log.rows("SELECT coalesce(max(id), 0) FROM events")
        unseen = {"session": session, "after": self._seen, "newest": newest, "known": self._items}
        events = log.rows(_EVENTS, unseen)
        ((added, items),) = log.rows(_ADDED, unseen)
        if items != self._items + added or any(position not in range(items) for _, position, _ in events):
            raise log.unreadable(f"session {session}")
        touched = log.rows(_TOUCHED, unseen) if self._items else []
        new, self._items, self._seen = range(self._items, items), items, newest
        changed = {position for (position,) in touched}
        for id_, position, undoes in events:
            if self._counter is not None:
                counted = self._read(position, id_ if undoes is None else undoes)
                self._counter.add(counted) if undoes is None else self._counter.remove(counted)
            if undoes is None:
                self._labels[position] = id_
            else:
                self._labels.pop(position, None)
            changed.add(position)
        if new:
            self._elsewhere |= self._judged_elsewhere(new[0], new[-1]) - self._labels.keys()
        for position in changed:
            self._elsewhere.discard(position)
            if position not in self._labels:
                self._elsewhere |= self._judged_elsewhere(position, position)
                self._first = min(self._first, position)

    def _judged_elsewhere(self, first: int, last: int) -> set[int]:
        """Return those of the items from `first` to `last` that no longer need a label."""
        values = {"session": self._begun.id, "first": first, "last": last}
        return {position for (position,) in self._log.rows(_ELSEWHERE, values)}

    def _append_label(self, item: SessionItem, judgement: Judgement) -> int:
        now = time.time()
        judgement = replace(
            judgement,
            labeller=self._begun.labeller,
            guidelines=self._begun.guidelines,
            order_shown=item.item.order,
            time=now if judgement.time is None else judgement.time,
        )
        found = self._log.find_or_add(Preference(comparison=item.item.comparison, judgement=judgement))
        return self._log.append_label(found, "", now, (self._begun.id, item.position))

    def _append_item(self, position: int, item: Item) -> None:
        log, k = self._log, len(item.comparison.completions)
        shown = Preference(comparison=item.comparison, judgement=Judgement(verdict="skip", order_shown=item.order))
        found = log.find_or_add(shown)
        if len(item.order) != k:
            raise DataError(f"cannot ask this item: its order shows {len(item.order)} of {k} completions; show all")
        repeated = "SELECT 1 FROM events WHERE id = ? AND comparison = ? AND kind = 'label'"
        if item.repeats and not log.rows(repeated, (item.repeats, found.id)):
            raise DataError(f"cannot ask this item: {item.repeats}, which it repeats, is not a label of its comparison")
        payload = as_json(item_values(found.label, found.comparison))
        log.connection.execute(
            """INSERT INTO session_items (session, position, comparison, queue, payload, repeats)
            VALUES (?, ?, ?, ?, ?, ?)""",
            (self._begun.id, position, found.id, item.queue, payload, item.repeats or None),
        )

    def _read(self, position: int, label: int | None) -> SessionItem:
        """Read the item at `position`, which must exist, with the label of this id, which must be one of its own."""
        rows = self._log.rows(_ITEM, {"session": self._begun.id, "position": position, "label": label})
        try:
            ((queue, payload, repeats, labeller, judgement, *values),) = rows
            comparison = read_comparison(*values)
            item = read_item(queue, payload, repeats, comparison)
            preference = None if label is None else read_preference(label, labeller, judgement, comparison)
        except DAMAGES:
            raise self._log.unreadable(f"item {position} of session {self._begun.id}") from None
        return SessionItem(position=position, item=item, label=preference)

    def _current_judgement(self, label: int) -> Judgement | None:
        """Return the judgement of the label with this id; None if it is undone."""
        rows = self._log.rows(f"{LABELS} AND e.id = ?", (label,))
        return self._log.label(*rows[0]).judgement if rows else None


def _record(store: PreferenceStore, row: tuple[Any, ...]) -> SessionRecord:
    id_, began, labeller, plan, guidelines, items, done = row
    try:
        read = read_plan(plan)
        if list(map(type, (began, labeller, guidelines, items, done))) != [float, str, str, int, int]:
            raise TypeError("a column is of another type")
    except DAMAGES:
        raise store.log.unreadable(f"session {id_}") from None
    return SessionRecord(
        id=id_, labeller=labeller, plan=read, guidelines=guidelines, began=began, items=items, done=done
    )
