"""First meeting of a run's ranks: whether they are the same program on the same data, and what differs if not."""

from __future__ import annotations

import hashlib
import json
import platform
import socket
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from trainer.distributed.ranks import Ranks
from trainer.errors import RankError

_PACKAGES = ("ppo-workbench", "mlx", "mlx-lm", "transformers")
_BLOCKS, _BLOCK = 16, 1 << 20  # of a file of weights that are read for its hash
_LATE = 5.0  # seconds between clocks that are worth a word


class Facts(NamedTuple):
    """Properties of a rank that all ranks compare before they train."""

    host: str
    versions: dict[str, str]
    model: dict[str, str]  # hashes of the model's files, by name
    data: str  # hash of the prompts or preferences
    time: float  # seconds since 1970


def facts_of(model: Path, data: Sequence[Any]) -> Facts:
    """Return the facts of this process. model: its folder; data: prompts or preferences as they were read."""
    versions = {name: metadata.version(name) for name in _PACKAGES}
    digest = hashlib.sha256()
    for row in data:
        digest.update(json.dumps(row, default=str).encode())
    return Facts(
        host=socket.gethostname(),
        versions={**versions, "Python": ".".join(platform.python_version_tuple()[:2])},
        model={file.name: _hash_of(file) for file in sorted(model.iterdir()) if _is_of_a_model(file)},
        data=digest.hexdigest()[:16],
        time=time.time(),
    )


def meet(ranks: Ranks, facts: Facts) -> list[str]:
    """Exchange `facts`; return warnings, one line each. Raises RankError, the same on every rank, if they differ.

    From here on, messages name the hosts.
    """
    found = [Facts(*other) for other in ranks.gather(facts)]
    ranks.hosts = [f"rank {rank} ({other.host})" for rank, other in enumerate(found)]
    for rank, other in enumerate(found[1:], 1):
        if difference := _difference(found[0], other):
            what, first, here = difference
            raise RankError(
                f"{what} is {first} on {ranks.hosts[0]} and {here} on {ranks.hosts[rank]}: every rank needs the same"
            )
    late = max(found, key=lambda other: abs(other.time - found[0].time))
    off = late.time - found[0].time
    if abs(off) <= _LATE:
        return []
    return [
        f"the clock of {late.host} is {abs(off):.0f} s {'ahead' if off > 0 else 'behind'}: times in logs will differ"
    ]


def meet_others(ranks: Ranks, model: Path, data: Sequence[Any], limit: int) -> tuple[int, list[str]]:
    """Check that the ranks fit each other; return the smallest limit of memory, bytes, and warnings.

    model, data: as for `facts_of`; limit: the memory that this rank may take.
    """
    if ranks.alone:
        return limit, []
    warnings = meet(ranks, facts_of(model, data))
    return min(ranks.gather(limit)), warnings


def _difference(first: Facts, other: Facts) -> tuple[str, str, str] | None:
    """Return the first thing in which two ranks differ, and what it is on each; None if they fit."""
    pairs = [
        ("the version of", first.versions, other.versions),
        ("the model's file", first.model, other.model),
    ]
    for what, ours, theirs in pairs:
        for name in sorted(ours.keys() | theirs.keys()):
            one, two = ours.get(name, "missing"), theirs.get(name, "missing")
            if one != two:
                return f"{what} {name}", one, two
    return None if first.data == other.data else ("the data (its hash)", first.data, other.data)


def _is_of_a_model(file: Path) -> bool:
    return file.suffix in (".safetensors", ".json", ".model", ".jinja") and file.is_file()


def _hash_of(file: Path) -> str:
    """Return a hash of a file's size and of blocks of it, at equal distances; of all of it if it is small."""
    size = file.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with file.open("rb") as content:
        if size <= _BLOCKS * _BLOCK:
            digest.update(content.read())
        else:
            for block in range(_BLOCKS):
                content.seek(block * (size - _BLOCK) // (_BLOCKS - 1))
                digest.update(content.read(_BLOCK))
    return digest.hexdigest()[:16]
