"""Numbered preferences, and programs that write them from other processes.

`preferences_helper.py write STORE LABELLER COUNT` prints the id and the prompt of each label once it is saved.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from trainer.preferences import connection
from trainer.preferences.records import Choice, Comparison, Judgement, Origin, Preference
from trainer.preferences.store import PreferenceStore

CHOICES: tuple[Choice, ...] = ("a", "b", "tie", "both_bad", "skip")
_WORDS = ("the", "wind", "turned", "a", "page", "of", "her", "letter", "and", "left", "it", "open")


def preferences(n: int, seed: int = 0, labeller: str = "ann") -> Iterator[Preference]:
    """Return `n` judged pairs, each with its own prompt; now and then a tie, both bad or a skip."""
    rng = random.Random(seed)
    for number in range(n):
        choice = rng.choices(CHOICES, (45, 45, 5, 3, 2))[0]
        yield preference(
            f"{seed}-{number}: {_text(rng, 12)}", _text(rng, 30), _text(rng, 30), choice, labeller=labeller
        )


def preference(
    prompt: str = "Once",
    first: str = "upon a time",
    second: str = "more",
    choice: Choice = "a",
    *,
    labeller: str = "ann",
) -> Preference:
    """Return a judged pair whose completions both have an origin."""
    origins = tuple(
        Origin(source="run", run="quickstart-0001", iteration=3, row=row, writer="policy") for row in (0, 1)
    )
    return Preference(
        comparison=Comparison(prompt=prompt, completions=(first, second), origins=origins),
        judgement=Judgement.chosen(choice, labeller=labeller, seconds=2.5, order_shown=(1, 0)),
    )


def add_label(store: PreferenceStore, label: Preference) -> int:
    """Add a label outside of any session, with the present time unless it has one; return its id."""
    now = time.time()
    if label.judgement.time is None:
        label = replace(label, judgement=replace(label.judgement, time=now))
    with store.transaction():
        return store.append_label(now, *store.find_or_add(label))


class StoredEvent(NamedTuple):
    """An entry of a store's log. key: of the comparison."""

    id: int
    time: float
    kind: str
    key: str
    labeller: str
    source: str
    undoes: int | None
    session: int | None
    position: int | None


def stored_events(store: PreferenceStore) -> list[StoredEvent]:
    """Return the whole log of a store from its beginning."""
    rows = store.rows(
        """SELECT e.id, e.time, e.kind, c.key, e.labeller, e.source, e.undoes, e.session, e.position
        FROM events e JOIN comparisons c ON c.id = e.comparison ORDER BY e.id"""
    )
    return [StoredEvent(*row) for row in rows]


def program(*arguments: object) -> subprocess.Popen[str]:
    """Start this file as a program in another process."""
    command = [sys.executable, __file__, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finished(process: subprocess.Popen[str]) -> str:
    """Return what `process` printed, after checking that it ended well."""
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return output


def _text(rng: random.Random, words: int) -> str:
    return " ".join(rng.choices(_WORDS, k=words))


def _write(path: Path, labeller: str, numbers: Iterator[int], output: int) -> None:
    with PreferenceStore(path) as store:
        for number in numbers:
            prompt = f"{labeller} {number}"
            id_ = add_label(store, preference(prompt, labeller=labeller))
            os.write(output, f"{id_} {prompt}\n".encode())


if __name__ == "__main__":
    connection.BUSY_SECONDS = 120.0  # SQLite does not queue writers: on a slow disk one of them may wait long
    match sys.argv[1:]:
        case ["write", store, labeller, count]:
            _write(Path(store), labeller, iter(range(int(count))), sys.stdout.fileno())
