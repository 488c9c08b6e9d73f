"""Flagged comparisons: those whose newest label has the flag."""

from __future__ import annotations

from pathlib import Path

from trainer.preferences.records import Comparison, Judgement, Preference
from trainer.preferences.store import PreferenceStore


def test_the_newest_label_of_a_comparison_decides_whether_it_is_flagged(tmp_path: Path) -> None:
    one, other, third = (Comparison(prompt=prompt, completions=("x", "y")) for prompt in "abc")
    with PreferenceStore(tmp_path / "preferences.db") as store:

        def label(comparison: Comparison, labeller: str, *flags: str, note: str = "", choice: str = "a") -> int:
            judgement = Judgement.chosen(choice, labeller=labeller, flags=flags, note=note)  # type: ignore[arg-type]
            return store.add(Preference(comparison=comparison, judgement=judgement))

        assert store.flagged() == []
        label(other, "ann", "flagged")
        label(one, "ann", "flagged", choice="skip")
        label(third, "ann", "odd", note='"flags": flagged')
        assert store.flagged() == [other.key, one.key]
        lifted = label(other, "bob")
        assert store.flagged() == [one.key]
        store.undo(lifted, "bob")
        assert store.flagged() == [other.key, one.key]
        again = label(one, "bob", "flagged")
        assert store.flagged() == [other.key, one.key]
        store.undo(again, "bob")
        assert store.flagged() == [other.key, one.key]
