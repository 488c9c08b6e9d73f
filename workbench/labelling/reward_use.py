"""Replacement of a run's reward sources by a reward model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from workbench.text import visible


def rewarded_by(model: Path, before: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return reward sources in which only the reward model in the run `model` counts.

    The previous sources stay with a weight of 0, so that the charts still show them. Previous reward models are removed
    because they cost memory.
    """
    kept = [{**source, "weight": 0.0} for source in before if source["kind"] != "model"]
    return [{"kind": "model", "path": str(model.resolve())}, *kept]


def told(before: Sequence[dict[str, Any]], after: Sequence[dict[str, Any]]) -> str:
    """Describe the change of the reward sources, one sentence per line."""
    now = [source_name(source) for source in before if source.get("weight", 1.0)]
    still = [source_name(source) for source in after if not source.get("weight", 1.0)]
    sentences = [f"It is rewarded by {' + '.join(now)} now."] if now else []
    if still:
        sentences.append(f"{', '.join(still)}: measured as before, but without weight.")
    return "\n".join(sentences)


def source_name(source: dict[str, Any]) -> str:
    """Return a short name of a source; names from disk are made visible."""
    return visible(Path(source["path"]).name if "path" in source else source["kind"])
