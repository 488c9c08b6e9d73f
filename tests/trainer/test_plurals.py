"""Nouns agree with their counts."""

from __future__ import annotations

import pytest

from trainer.plurals import counted


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 labels"), (1, "1 label"), (2, "2 labels"), (12_000, "12,000 labels")]
)
def test_nouns_agree_with_their_count(count: int, text: str) -> None:
    assert counted(count, "label") == text


def test_an_irregular_plural_can_be_given() -> None:
    assert counted(2, "entry", "entries") == "2 entries"
