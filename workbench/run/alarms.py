"""Alarms of a run in words, for the screen and for headless displays. Only `state_text` is made safe to print."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from trainer.events import Alarm
from trainer.monitoring.alarms import severity
from trainer.runs.listing import RunSummary
from workbench.run.metrics import METRICS
from workbench.text import visible

SIGNS = {"info": "·", "warning": "⚠", "error": "✖"}
_LONGEST = 100  # characters of a state that are shown
_SPELT = {"kl": "KL", "nan": "NaN"}


def title(alarm: Alarm) -> str:
    """Return the title of the alarm: `KL high` for `kl_high`."""
    return spelt(alarm.code)


def spelt(code: str) -> str:
    """Return the title of alarms with this code."""
    return " ".join(_SPELT.get(word, word) for word in code.split("_"))


def evidence(alarm: Alarm) -> list[tuple[str, str]]:
    """Return the numbers that the alarm is based on: the label of each, and its value with its unit."""
    return [_written(name, value) for name, value in alarm.evidence.items()]


def urgent_first(alarms: Sequence[Alarm]) -> list[Alarm]:
    """Sort the most severe first, and within one level the newest first. alarms: newest last."""
    newest_first = alarms[::-1]
    return sorted(newest_first, key=lambda alarm: -severity(alarm.level))


def errors(alarms: Mapping[str, str]) -> str:
    """Name the errors among the open alarms (code -> level) in few words: `KL high +1`; empty without an error."""
    codes = [code for code, level in alarms.items() if level == "error"]
    return f"{spelt(codes[0])}{f' +{len(codes) - 1}' if len(codes) > 1 else ''}" if codes else ""


def state_text(run: RunSummary) -> str:
    """Return the state of a run and what is wrong with it: `done, KL high`. An unknown state is shown as it is."""
    damaged = "damaged" if run.damaged else ""
    return ", ".join(filter(None, (visible(run.state[:_LONGEST]), visible(errors(run.alarms)), damaged)))


def _written(name: str, value: float) -> tuple[str, str]:
    metric = next((metric for metric in METRICS if metric.field == name), None)
    if metric is None:
        return name.replace("_", " "), f"{value:.4g}" if math.isfinite(value) else str(value)
    shown = value * metric.factor
    text = metric.text(shown) if math.isfinite(shown) else str(value)
    return metric.label, f"{text} {metric.unit}".rstrip()
