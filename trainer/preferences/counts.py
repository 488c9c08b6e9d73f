"""How much is in a preference store."""

from __future__ import annotations

import sqlite3
from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Counts:
    """How much there is. All but `comparisons` and `undone` is of the labels that stand, skips among them."""

    comparisons: int
    labels: int
    skips: int
    undone: int  # labels
    choices: dict[str, int]  # a and b are places in the comparison's completions; "ranking": of more than two
    labellers: dict[str, int]


def counts_of(connection: sqlite3.Connection) -> Counts:
    """The counts at one moment; sqlite3.DatabaseError as the database has it."""
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
