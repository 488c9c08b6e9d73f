"""Labelling sessions in a preference store: what they ask and in which order, and the labels given so far."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from statistics import median
from typing import Any

from trainer.confidence import wilson_interval
from trainer.errors import DataError, UsageError
from trainer.preferences.agreement import cohen_kappa
from trainer.preferences.records import (
    Item,
    Judgement,
    Outcome,
    Preference,
    Progress,
    SessionItem,
    SessionPlan,
    SessionRecord,
    Share,
    length_in_characters,
)
from trainer.preferences.rows import (
    as_json,
    as_utf8,
    guidelines_hash,
    payload,
    read,
    read_judgement,
    stored,
    stored_item,
    stored_plan,
    values_of,
)
from trainer.preferences.store import COMPARISON, LABELS, PreferenceStore

_SESSIONS = """SELECT s.id, s.time, s.labeller, s.plan, coalesce(s.guidelines, ''),
    (SELECT coalesce(max(i.position) + 1, 0) FROM session_items i WHERE i.session = s.id),
    (SELECT coalesce(sum(CASE e.kind WHEN 'label' THEN 1 ELSE -1 END), 0) FROM events e WHERE e.session = s.id)
    FROM sessions s"""
_CURRENT = "e.kind = 'label' AND NOT EXISTS (SELECT 1 FROM events u WHERE u.undoes = e.id)"
# Items from `:first` on that need a label: those without one, unless the labeller judged their comparison outside the
# session; for the queue "again", only since the session began. Repeats always need one: they measure self-agreement.
_LEFT = f"""SELECT i.position FROM session_items i JOIN sessions s ON s.id = i.session
    WHERE i.session = :session AND i.position >= :first AND NOT EXISTS (
        SELECT 1 FROM events e WHERE e.session = i.session AND e.position = i.position AND {_CURRENT})
    AND (i.repeats IS NOT NULL OR NOT EXISTS (
        SELECT 1 FROM events e WHERE e.comparison = i.comparison AND e.labeller = s.labeller
        AND e.session IS NOT i.session AND (i.queue <> 'again' OR e.time >= s.time) AND {_CURRENT}))"""  # noqa: S608
# Items with their labels.
_ITEMS = f"""SELECT i.position, i.queue, i.repeats, i.payload, {COMPARISON}, e.id, e.labeller, e.payload
    FROM session_items i JOIN comparisons c ON c.id = i.comparison
    LEFT JOIN events e ON e.session = i.session AND e.position = i.position AND {_CURRENT}
    WHERE i.session = :session"""  # noqa: S608  our own names
_STANDING = f"SELECT e.id FROM events e WHERE e.session = ? AND {_CURRENT} ORDER BY e.id"  # noqa: S608
_NEWEST = f"SELECT e.id, e.position FROM events e WHERE e.session = ? AND {_CURRENT} ORDER BY e.id DESC LIMIT 1"  # noqa: S608
_ITEM = """INSERT INTO session_items (session, position, comparison, queue, payload, repeats)
    VALUES (?, ?, ?, ?, ?, ?)"""
_ITEM_COUNT = "SELECT coalesce(max(position) + 1, 0) FROM session_items WHERE session = ?"
_REPEATED = "SELECT repeats FROM session_items WHERE session = ? AND repeats IS NOT NULL"


def list_sessions(store: PreferenceStore) -> list[SessionRecord]:
    """Return the sessions in `store`, the newest first."""
    records = [_record(store, row) for row in store.rows(f"{_SESSIONS} ORDER BY s.id DESC")]
    return [LabelSession(store, one).record if one.left else one for one in records]


def begin_session(store: PreferenceStore, labeller: str, plan: SessionPlan, guidelines: str = "") -> LabelSession:
    """Begin a session without items. guidelines: the text that the labeller follows; stored once, by its hash."""
    connection, text = store.connection, as_utf8(guidelines)
    key = guidelines_hash(text)
    with store.transaction():
        if key and not connection.execute("SELECT 1 FROM guidelines WHERE hash = ?", (key,)).fetchone():
            connection.execute("INSERT INTO guidelines (hash, text) VALUES (?, ?)", (key, text))
        session_id = store.insert(
            "INSERT INTO sessions (time, labeller, plan, guidelines) VALUES (?, ?, ?, ?)",
            (time.time(), as_utf8(labeller), as_json(asdict(plan)), key or None),
        )
        return open_session(store, session_id)


def open_session(store: PreferenceStore, session_id: int) -> LabelSession:
    """Open the session `session_id` to continue it. Raises UsageError if there is none."""
    rows = store.rows(f"{_SESSIONS} WHERE s.id = ?", (session_id,))
    if not rows:
        raise UsageError(f"no labelling session {session_id} in '{store.path}': name an existing one, or begin one")
    return LabelSession(store, _record(store, rows[0]))


def guidelines_text(store: PreferenceStore, key: str) -> str:
    """Return the guidelines with this hash; empty for the empty hash. Raises UsageError if the store has none."""
    if not key:
        return ""
    rows = store.rows("SELECT text FROM guidelines WHERE hash = ?", (key,))
    if not rows:
        raise UsageError(f"no guidelines {key} in '{store.path}': use those of a session there")
    return str(rows[0][0])


class LabelSession:
    """A session of one labeller, for the thread that opened its store; made by `begin_session` and `open_session`.

    Methods that write do so durably, or raise and change nothing in the store; after an error within a transaction of
    the caller's, open it again. Several processes may have it open; its record has their changes once it is opened
    again.
    """

    def __init__(self, store: PreferenceStore, record: SessionRecord) -> None:
        self._store = store
        self._begun = record
        self._items, self._done = record.items, record.done
        self._open = {"session": record.id, "first": 0}  # every position before `first` has a label, or needs none
        self._labelled: dict[int, SessionItem] = {}  # those counted so far, undone ones included, by the label's id

    @property
    def record(self) -> SessionRecord:
        """Current record of the session."""
        ((left,),) = self._store.rows(f"SELECT count(*) FROM ({_LEFT})", self._open)  # noqa: S608  our own names
        elsewhere = self._items - self._done - left
        return replace(self._begun, items=self._items, done=self._done, elsewhere=elsewhere)

    def put(self, items: Sequence[Item]) -> None:
        """Append all of `items` or none. Raises DataError if one makes no sense.

        A comparison that the session has already is passed over unless it is a repeat. Where the store has a comparison
        in another order, the item's order is mapped to that one.
        """
        store = self._store
        with store.transaction():
            ((position,),) = store.rows(_ITEM_COUNT, (self._begun.id,))
            served = self.served()
            for item in items:
                if not item.repeats:
                    if item.comparison.key in served:
                        continue
                    served.add(item.comparison.key)
                skip = Judgement(verdict="skip", order_shown=item.order)
                comparison, shown = store.find_or_add(Preference(comparison=item.comparison, judgement=skip))
                if len(item.order) != (k := len(item.comparison.completions)):
                    raise DataError(
                        f"cannot ask this item: its order shows {len(item.order)} of {k} completions; show all"
                    )
                repeated = "SELECT 1 FROM events WHERE id = ? AND comparison = ? AND kind = 'label'"
                if item.repeats and not store.rows(repeated, (item.repeats, comparison)):
                    raise DataError(
                        f"cannot ask this item: {item.repeats}, which it repeats, is not a label of its comparison"
                    )
                values = (self._begun.id, position, comparison, item.queue, payload(shown), item.repeats or None)
                store.insert(_ITEM, values)
                position += 1
        self._items = position

    def next_open(self) -> SessionItem | None:
        """Return the first item still to be judged; None if there is none."""
        found = self._store.rows(f"{_LEFT} ORDER BY i.position LIMIT 1", self._open)
        self._open["first"] = found[0][0] if found else self._items
        return self.item(found[0][0]) if found else None

    def newest(self) -> SessionItem | None:
        """Return the most recently labelled item; None if none has a label."""
        return next(iter(self.history(limit=1)), None)

    def item(self, position: int) -> SessionItem:
        """Return the item at `position`. Raises UsageError if there is none."""
        found = self._read("AND i.position = :position", position=position)
        if not found:
            raise UsageError(f"session {self._begun.id} has no item {position + 1}: it has {self._items}")
        return found[0]

    def label(self, item: SessionItem, judgement: Judgement) -> SessionItem:
        """Store the judgement of `item`, in place of the label that it has, and return the item with it.

        Labeller, guidelines and the order shown come from the session and the item; a judgement without a time gets the
        present one. Raises UsageError if the item was labelled since it was read, or judged in another session.
        """
        now, store, begun = time.time(), self._store, self._begun
        judgement = replace(
            judgement,
            labeller=begun.labeller,
            guidelines=begun.guidelines,
            order_shown=item.item.order,
            time=now if judgement.time is None else judgement.time,
        )
        judgement = read_judgement(values_of(judgement), len(item.item.order), "cannot save this label")
        label = Preference(comparison=item.item.comparison, judgement=judgement)
        with store.transaction():
            place = {"session": begun.id, "first": item.position, "position": item.position}
            if item.label is not None:
                store.undo(item.label.id, begun.labeller)
            elif not store.rows(f"{_LEFT} AND i.position = :position", place):
                raise UsageError(
                    f"item {item.position + 1} has a label, or was judged in another session: label the next one"
                )
            query = "SELECT comparison FROM session_items WHERE session = :session AND position = :position"
            ((comparison,),) = store.rows(query, place)
            id_ = store.append_label(now, comparison, label, "", begun.id, item.position)
        self._done += item.label is None
        return replace(item, label=replace(label, id=id_))

    def undo(self) -> int | None:
        """Undo the newest label and return its position; None if there is none."""
        with self._store.transaction():
            newest = self._store.rows(_NEWEST, (self._begun.id,))
            if not newest:
                return None
            ((label, position),) = newest
            self._store.undo(label, self._begun.labeller)
        self._open["first"], self._done = min(self._open["first"], position), self._done - 1
        return int(position)

    def history(self, limit: int = -1) -> list[SessionItem]:
        """Return the items with a label, the most recently labelled first; -1 for all."""
        return self._read("AND e.id IS NOT NULL ORDER BY e.id DESC LIMIT :limit", limit=limit)

    def served(self) -> set[str]:
        """Return the keys of the comparisons that were added, except repeats."""
        rows = self._store.rows(
            """SELECT c.key FROM session_items i JOIN comparisons c ON c.id = i.comparison
            WHERE i.session = ? AND i.repeats IS NULL""",
            (self._begun.id,),
        )
        return {key for (key,) in rows}

    def progress(self, left: int | None) -> Progress:
        """Return the session's progress. left: number of items still to be judged; None if not known."""
        standing = [id_ for (id_,) in self._store.rows(_STANDING, (self._begun.id,))]
        for item in self._read("AND e.id > :known ORDER BY e.id", known=max(self._labelled, default=0)):
            if item.label is not None:
                self._labelled[item.label.id] = item
        repeated = self._store.rows(f"{LABELS} AND e.id IN ({_REPEATED})", (self._begun.id,))
        firsts = {label.id: label.judgement.outcome for label in (self._store.label(*row) for row in repeated)}
        return measure_progress([self._labelled[id_] for id_ in standing if id_ in self._labelled], firsts, left)

    def _read(self, condition: str, **values: int | None) -> list[SessionItem]:
        """Return the items for which `condition` of `_ITEMS` holds, with their labels. Raises StorageError."""
        found = []
        for position, *row in self._store.rows(f"{_ITEMS} {condition}", {**values, "session": self._begun.id}):
            columns, (label, labeller, judgement) = row[:5], row[5:]
            try:
                item = stored_item(*columns)
                given = None
                if label is not None:
                    given = replace(stored(judgement, *columns[3:], labeller=labeller), id=label)
            except DataError:
                raise self._store.unreadable(f"item {position} of session {self._begun.id}") from None
            found.append(SessionItem(position=position, item=item, label=given))
        return found


def _record(store: PreferenceStore, row: tuple[Any, ...]) -> SessionRecord:
    id_, began, labeller, plan, guidelines, items, done = row
    values = {"id": id_, "labeller": labeller, "guidelines": guidelines, "began": began, "items": items, "done": done}
    try:
        return read(SessionRecord, values | {"plan": stored_plan(plan)}, "row")
    except DataError:
        raise store.unreadable(f"session {id_}") from None


PAUSE = 300.0  # seconds; a longer gap between two labels is a pause
_RECENT = 50  # newest labels, which the speed is measured on


def measure_progress(items: Sequence[SessionItem], firsts: Mapping[int, Outcome], left: int | None) -> Progress:
    """Return the progress of a session.

    items: those with a label, in the order of labelling. firsts: outcomes of the labels that they repeat, by id, if
    these are not undone. left: number of items still to be judged; None if not known.
    """
    labels = [(one.item, one.label.judgement) for one in items if one.label is not None]
    times = [judgement.time for _, judgement in labels if judgement.time is not None]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    worked = [0 <= gap <= PAUSE for gap in gaps]  # the clock may have been set back
    recent = [gap for gap, work in zip(gaps[-_RECENT + 1 :], worked[-_RECENT + 1 :], strict=True) if work]
    per_hour = 3600 * len(recent) / sum(recent) if sum(recent) else math.nan  # NaN without two labels in a row
    pauses = [place for place, work in enumerate(worked) if not work]
    # Only of pairs of which one was chosen.
    chosen = [(item, judgement.ranking[0][0]) for item, judgement in labels if judgement.choice in ("a", "b")]
    lengths = [(list(map(length_in_characters, item.comparison.completions)), place) for item, place in chosen]
    repeats = [
        (first, judgement.outcome)
        for item, judgement in labels
        if (first := firsts.get(item.repeats, "skip")) != "skip" and judgement.verdict != "skip"
    ]
    seconds = [judgement.seconds for _, judgement in labels if judgement.seconds is not None]
    return Progress(
        done=len(labels),
        left=left,
        per_hour=per_hour,
        median_seconds=median(seconds) if seconds else math.nan,
        eta_seconds=math.nan if left is None else left / per_hour * 3600,
        streak=len(gaps) - pauses[-1] if pauses else len(times),
        left_side=_share([item.order[0] == place for item, place in chosen]),
        longer=_share([count[place] == max(count) for count, place in lengths if count[0] != count[1]]),
        same=_share([first == again for first, again in repeats]),
        kappa=cohen_kappa([first for first, _ in repeats], [again for _, again in repeats]).value,
    )


def _share(so: Sequence[bool]) -> Share:
    count, total = sum(so), len(so)
    return Share(count, total, count / total if total else math.nan, *wilson_interval(count, total))
