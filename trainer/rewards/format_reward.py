"""Rewards for the form of a response: tags such as think and answer."""

from __future__ import annotations

from collections.abc import Callable

from trainer.config.reward_sources import FormatSource
from trainer.reward_types import RewardInput, Verdict


def format_verdict(source: FormatSource) -> Callable[[RewardInput], Verdict]:
    """Return the check of a response."""
    marks = [mark for tag in source.tags for mark in (f"<{tag}>", f"</{tag}>")]

    def verdict(row: RewardInput) -> Verdict:
        rest = row.completion
        for place, tag in enumerate(source.tags):
            if place or not source.opened:
                before, found, rest = rest.partition(f"<{tag}>")
                if not found or before.strip():
                    return Verdict(0.0, f"text before <{tag}>" if found else f"no <{tag}>")
            inside, found, rest = rest.partition(f"</{tag}>")
            if not found:
                return Verdict(0.0, f"no </{tag}>")
            if not inside.strip():
                return Verdict(0.0, f"nothing in <{tag}>")
            if within := next((mark for mark in marks if mark in inside), ""):
                return Verdict(0.0, f"{within} inside <{tag}>")
        return Verdict(0.0, f"text after </{tag}>") if rest.strip() else Verdict(1.0, "the tags are right")

    return verdict
