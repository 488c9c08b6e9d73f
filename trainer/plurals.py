"""Counts with their nouns, the same in messages, on the screen and in headless output."""

from __future__ import annotations


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return `count` with its noun: 1 label, 2 labels, 12,000 labels. plural: where it is not the noun with an s."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"
