"""Counts of what is in a preference store."""

from __future__ import annotations

import sqlite3
from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Counts:
    """Counts of a store. All but `comparisons` and `undone` cover the labels that are not undone, including skips."""

    comparisons: int
    labels: int
    skips: int
    undone: int  # labels
    choices: dict[str, int]  # a and b are places in the comparison's completions; "ranking": of more than two
    labellers: dict[str, int]


def counts_of(connection: sqlite3.Connection) -> Counts:
    """Return the counts as of one moment. Raises sqlite3.DatabaseError."""
    (comparisons, _, _), (undone, _, _), *standing = connection.execute(
        """SELECT count(*), NULL, NULL FROM comparisons
        UNION ALL SELECT count(*), NULL, NULL FROM events WHERE kind = 'undo'
        UNION ALL SELECT count(*), e.choice, e.labeller FROM events e
            WHERE e.kind = 'label' AND NOT EXISTS (SELECT 1 FROM events u WHERE u.undoes = e.id)
            GROUP BY e.choice, e.labeller"""
    ).fetchall()
    choices, labellers = Counter[str](), Counter[str]()
    for labels, choice, labeller in standing:
        choices[choice] += labels
        labellers[labeller] += labels
    return Counts(comparisons, choices.total(), choices["skip"], undone, dict(choices), dict(labellers))
