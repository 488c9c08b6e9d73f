"""A reward model in place of what has rewarded a run so far."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from workbench.text import visible


def rewarded_by(model: Path, before: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Reward sources by which the reward model in the run `model` alone counts.

    Those that counted before are still measured, with a weight of 0, so that the charts tell how they fare; another
    reward model is let go of, for it costs memory.
    """
    kept = [{**source, "weight": 0.0} for source in before if source["kind"] != "model"]
    return [{"kind": "model", "path": str(model.resolve())}, *kept]


def told(before: Sequence[dict[str, Any]], after: Sequence[dict[str, Any]]) -> str:
    """What that changes, in a sentence each."""
    now = [source_name(source) for source in before if source.get("weight", 1.0)]
    still = [source_name(source) for source in after if not source.get("weight", 1.0)]
    sentences = [f"It is rewarded by {' + '.join(now)} now."] if now else []
    if still:
        sentences.append(f"{', '.join(still)}: measured as before, but without weight.")
    return "\n".join(sentences)


def source_name(source: dict[str, Any]) -> str:
    """A source in a word or two; names from disk are made visible."""
    return visible(Path(source["path"]).name if "path" in source else source["kind"])
