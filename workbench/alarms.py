"""Alarms of a run in words, for the screen and for headless displays. Nothing here is made safe to print."""

from __future__ import annotations

import math

from trainer.events import Alarm, Event, RolledBack, SettingChanged
from workbench.metrics import METRICS

SIGNS = {"info": "·", "warning": "⚠", "error": "✖"}
STANDS = 20
"""Iterations that an alarm stands for: it is told when it begins, its end is not."""

_SPELT = {"kl": "KL", "nan": "NaN"}


def title(alarm: Alarm) -> str:
    """What the alarm is called: `KL high` of `kl_high`."""
    return " ".join(_SPELT.get(word, word) for word in alarm.code.split("_"))


def evidence(alarm: Alarm) -> list[tuple[str, str]]:
    """The numbers that the alarm rests on: what each is called, and its value with its unit."""
    return [_written(name, value) for name, value in alarm.evidence.items()]


def stands_after(alarm: Alarm, event: Event) -> bool:
    """Whether `alarm`, which stood, still does once `event` was told.

    A rollback ends it, a change of a setting that one of its fixes sets, another alarm of its code, and time.
    """
    match event:
        case RolledBack():
            return False
        case SettingChanged():
            return all(fix.key != event.key for fix in alarm.fixes if fix.action == "set")
        case Alarm():
            return event.code != alarm.code
    iteration = getattr(event, "iteration", alarm.iteration)
    return bool(iteration < alarm.iteration + STANDS)


def _written(name: str, value: float) -> tuple[str, str]:
    metric = next((metric for metric in METRICS if metric.field == name), None)
    if metric is None:
        return name.replace("_", " "), f"{value:.4g}" if math.isfinite(value) else str(value)
    shown = value * metric.factor
    text = metric.text(shown) if math.isfinite(shown) else str(value)
    return metric.label, f"{text} {metric.unit}".rstrip()
