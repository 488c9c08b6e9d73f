"""Journals of long runs without the training, for the tests of what opens them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TextIO

from scripted_run import ended, iteration, started

from trainer.events import CheckpointSaved, Event, SamplePreview, SamplesWritten, StateChanged

_PREVIEW = SamplePreview(
    prompt="From the top of the mountain, Thandi could see",
    completion=" a beautiful sunrise below the clouds. The lake below was magic, and he was loving it." * 2,
    score=0.92,
    kl=7.25,
    truncated=True,
)


def events_of(number: int) -> list[Event]:
    """Return the events of iteration `number` in the trainer's order, with metrics that vary by it."""
    path = f"samples/step-{number:06d}.parquet"
    wave = math.sin(number / 300)
    return [
        StateChanged(state="training"),
        SamplesWritten(iteration=number, path=path, rows=8, previews=[_PREVIEW] * 3),
        iteration(number, score_mean=0.5 * wave, kl=8 + wave + 1 / number, entropy=1.4 + number / 7e5),
        StateChanged(state="saving"),
        CheckpointSaved(iteration=number, path=f"checkpoints/step-{number:06d}", seconds=0.01),
    ]


def write_long_journal(path: Path, iterations: int) -> None:
    """Write the journal of a run of so many iterations, about 2 kB each, all with samples and a checkpoint."""
    with path.open("w", encoding="utf-8") as file:
        file.write('{"journal":1,"created":"2025-01-31T12:00:00.000000+00:00"}\n')
        _write(file, [started(iterations=iterations)], 0.0)
        for number in range(1, iterations + 1):
            _write(file, events_of(number), 20.0 * number)
        _write(file, [ended(iteration=iterations)], 20.0 * iterations)


def _write(file: TextIO, events: list[Event], at: float) -> None:
    for event in events:
        file.write(json.dumps({"time": at, **event.as_dict()}, separators=(",", ":")) + "\n")
