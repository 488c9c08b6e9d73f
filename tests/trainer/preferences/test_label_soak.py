"""A session of five hundred labels, killed again and again, holds what the labeller decided and nothing else."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import label_soak_helper
from label_soak_helper import GUIDELINES, ITEMS, decision, is_repeat, prompt
from preferences_helper import stored_events

from trainer.preferences.formats import read_preferences, write_preferences
from trainer.preferences.records import Judgement
from trainer.preferences.sessions import guidelines_text, list_sessions, open_session
from trainer.preferences.store import PreferenceStore, check_store


def said(judgement: Judgement) -> tuple[object, ...]:
    return judgement.choice, judgement.strength, judgement.note


def test_five_hundred_labels_survive_being_killed_at_any_moment(tmp_path: Path) -> None:
    path = tmp_path / "preferences.db"
    command = [sys.executable, label_soak_helper.__file__, str(path), "7"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    kills = lines.count("killed")
    reported = [
        (verb, int(id_), int(position)) for verb, id_, position in (line.split() for line in lines if " " in line)
    ]
    assert kills > 15
    assert len(reported) > ITEMS + 50, "some were undone or changed"

    with PreferenceStore(path) as store:
        assert check_store(store) == []
        (record,) = list_sessions(store)
        session = open_session(store, record.id)
        assert (record.items, record.done, session.next_open()) == (ITEMS, ITEMS, None)
        assert guidelines_text(store, record.guidelines) == GUIDELINES

        labels = {e.id: e.position for e in stored_events(store) if e.kind == "label"}
        undos = Counter(e.position for e in stored_events(store) if e.kind == "undo")
        acknowledged = {id_: position for verb, id_, position in reported if verb == "label"}
        assert acknowledged.items() <= labels.items()
        assert Counter(position for verb, _, position in reported if verb == "undo") <= undos
        assert len(labels) - len(acknowledged) <= kills, "one at most of each process was kept and not yet told"
        assert len(labels) == ITEMS + undos.total()

        history = {one.position: one for one in session.history(limit=ITEMS + 1)}
        standing = {position: one.label for position, one in history.items() if one.label is not None}
        assert {p: said(label.judgement) for p, label in standing.items()} == {
            position: said(decision(position)) for position in range(ITEMS)
        }
        assert all(one.label and one.label.judgement.order_shown == one.item.order for one in history.values())
        assert session.progress(None).same.total == sum(
            "skip" not in (decision(p).choice, decision(p - 30).choice) for p in filter(is_repeat, range(ITEMS))
        )
        export = tmp_path / "all.jsonl"
        write_preferences(store.preferences(with_skips=True), export, format="k-way")

    exported = Counter((p.comparison.prompt, *said(p.judgement)) for p in read_preferences(str(export)))
    assert exported == Counter((prompt(position), *said(decision(position))) for position in range(ITEMS))
