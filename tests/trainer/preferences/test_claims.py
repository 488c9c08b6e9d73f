"""Claims on comparisons: files beside the store, of which only those that nobody holds are removed."""

from __future__ import annotations

from pathlib import Path

from trainer.preferences.claims import Claim


def test_only_claims_that_nobody_holds_are_removed(tmp_path: Path) -> None:
    names = [f"preferences.db-claim-{end}" for end in ("notes", "1-0123abcd.txt", "1-ABCD0123", "x-0123abcd")]
    for name in [*names, "preferences.db-claim-1-0123abcd"]:
        (tmp_path / name).write_text("a labeller's own")
    claim = Claim(tmp_path / "preferences.db", "ann")
    assert claim.take("a comparison")
    claim.release()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)
