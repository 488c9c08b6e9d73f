"""The steps of a reward model as aligned lines."""

from __future__ import annotations

from trainer.events import RewardModelStep

_COLUMNS = (  # heading, unit, width, format
    ("loss", "nats", 6, ".3f"),
    ("accuracy", "", 8, ".3f"),
    ("lead", "logits", 6, "+.2f"),
    ("grad", "", 7, ".2f"),
    ("lr", "", 8, ".1e"),
    ("speed", "tok/s", 6, ".0f"),
    ("memory", "GB", 6, ".1f"),
    ("time", "s", 7, ".1f"),
)
_STEP_WIDTH = 11


def heading() -> str:
    """Two lines: the columns' names and their units."""
    names = "step".rjust(_STEP_WIDTH) + "".join(name.rjust(width + 2) for name, _, width, _ in _COLUMNS)
    units = " " * _STEP_WIDTH + "".join(unit.rjust(width + 2) for _, unit, width, _ in _COLUMNS)
    return f"{names}\n{units.rstrip()}"


def row(step: RewardModelStep, total: int) -> str:
    """The numbers of `step`, right-aligned under `heading`."""
    values = (
        step.loss,
        step.accuracy,
        step.lead,
        step.grad_norm,
        step.learning_rate,
        step.tokens_per_second,
        step.memory_bytes / 1e9,
        step.seconds,
    )
    cells = zip(values, _COLUMNS, strict=True)
    return f"{step.iteration}/{total}".rjust(_STEP_WIDTH) + "".join(
        f"{value:{form}}".rjust(width + 2) for value, (_, _, width, form) in cells
    )
