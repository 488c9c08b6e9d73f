"""Items of labelling sessions as rows of a preference store: appended, and read with their labels."""

from __future__ import annotations

from dataclasses import replace

from trainer.errors import DataError
from trainer.preferences.connection import storage_errors
from trainer.preferences.event_log import COMPARISON, EventLog
from trainer.preferences.items import Item, SessionItem
from trainer.preferences.records import Judgement, Preference
from trainer.preferences.rows import (
    DAMAGES,
    as_json,
    checked,
    item_values,
    placed,
    read_comparison,
    read_item,
    read_preference,
)


def append_session_item(log: EventLog, session: int, position: int, item: Item) -> None:
    """Append `item`, within a transaction. Raises DataError if it makes no sense."""
    shown = Preference(comparison=item.comparison, judgement=Judgement(verdict="skip", order_shown=item.order))
    checked(shown)
    k = len(item.comparison.completions)
    if len(item.order) != k:
        raise DataError(f"an item that cannot be asked: its order shows {len(item.order)} of {k} completions; show all")
    found = log.find_or_add(item.comparison)
    if item.repeats and not _is_label(log, item.repeats, found.id):
        raise DataError(
            f"an item that cannot be asked: it repeats {item.repeats}, no label of its comparison; name one"
        )
    shown = placed(shown, found.comparison)
    stored = replace(item, comparison=shown.comparison, order=shown.judgement.order_shown)
    payload = as_json(item_values(stored, found.comparison))
    log.connection.execute(
        """INSERT INTO session_items (session, position, comparison, queue, payload, repeats)
        VALUES (?, ?, ?, ?, ?, ?)""",
        (session, position, found.id, item.queue, payload, item.repeats or None),
    )


def read_session_item(log: EventLog, session: int, position: int, label: int | None) -> SessionItem:
    """Read the item at `position`, which must exist, with the label of this id, which must be one of its own."""
    with storage_errors(log.path):
        row = log.connection.execute(
            f"""SELECT i.queue, i.payload, i.repeats, e.labeller, e.payload, {COMPARISON}
            FROM session_items i JOIN comparisons c ON c.id = i.comparison LEFT JOIN events e ON e.id = :label
            WHERE i.session = :session AND i.position = :position""",  # noqa: S608  our own names
            {"session": session, "position": position, "label": label},
        ).fetchone()
    try:
        queue, payload, repeats, labeller, said, *values = row
        comparison = read_comparison(*values)
        item = read_item(queue, payload, repeats, comparison)
        preference = None if label is None else read_preference(label, labeller, said, comparison)
    except DAMAGES:
        raise log.unreadable(f"item {position} of session {session}") from None
    return SessionItem(position=position, item=item, label=preference)


def standing_judgement(log: EventLog, label: int) -> Judgement | None:
    """Return the judgement of the label with this id; None if it is undone."""
    with storage_errors(log.path):
        row = log.connection.execute(
            f"""SELECT e.labeller, e.payload, {COMPARISON} FROM events e JOIN comparisons c ON c.id = e.comparison
            WHERE e.id = ? AND e.kind = 'label' AND NOT EXISTS (SELECT 1 FROM events u WHERE u.undoes = e.id)""",  # noqa: S608
            (label,),
        ).fetchone()
    if row is None:
        return None
    try:
        labeller, payload, *values = row
        return read_preference(label, labeller, payload, read_comparison(*values)).judgement
    except DAMAGES:
        raise log.unreadable(f"label {label}") from None


def _is_label(log: EventLog, event: int, comparison: int) -> bool:
    query = "SELECT 1 FROM events WHERE id = ? AND comparison = ? AND kind = 'label'"
    return log.connection.execute(query, (event, comparison)).fetchone() is not None
