"""A store of labels, and how a judge with a taste of its own grades and compares them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from judge_server import graded

from trainer.preferences.records import Comparison, Judgement, Preference
from trainer.preferences.store import PreferenceStore

LABELS = [  # better and worse
    ("good and long", "bad"),
    ("good", "bad and long"),
    ("bad", "good"),  # the person disagrees with the judge
    ("fine", "fine "),  # a judge of fine things: no difference
    ("odd", "good"),  # no answer
    ("left one", "left two"),  # it chooses the left one
]


def grade(response: str) -> str:
    marks = {"good": 9, "bad": 2, "fine": 5, "left": 5}
    mark = next((mark for word, mark in marks.items() if word in response), None)
    return "What?" if mark is None else graded(mark, mark)


def choose(left: str, right: str) -> str:
    if "left" in left:
        side = "A"
    else:
        marks = [json.loads(grade(text)) if "odd" not in text else None for text in (left, right)]
        if None in marks:
            return "What?"
        first, second = (one["kind"] for one in marks)
        side = "A" if first > second else "B" if second > first else "tie"
    return json.dumps({"reason": "So.", "kind": side, "short": "tie"})


def made(folder: Path) -> Path:
    """Make a store of the labels, a tie and a ranking of none."""
    path = folder / "preferences.db"
    with PreferenceStore(path) as store:
        for place, (better, worse) in enumerate(LABELS):
            pair = Comparison(prompt=f"Question {place}?", completions=tuple(sorted((better, worse))))
            choice: Any = "a" if pair.completions[0] == better else "b"
            judgement = Judgement.chosen(choice, labeller="ann", time=1000.0 + place)
            store.add_many([Preference(comparison=pair, judgement=judgement)], source="test")
        tied = Comparison(prompt="Tied?", completions=("x", "y"))
        judgement = Judgement.chosen("tie", labeller="ann", time=2000.0)
        store.add_many([Preference(comparison=tied, judgement=judgement)], source="test")
    return path
