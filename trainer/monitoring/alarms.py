"""Which alarms of a run are open, as its events tell it."""

from __future__ import annotations

from collections.abc import Iterable

from trainer.events import Alarm, Event, RolledBack, RunEnded, RunStarted, SettingChanged

STANDS = 20
"""Iterations that an alarm stands for: it is told when it begins, its end is not."""

_SEVERITY = {"info": 0, "warning": 1, "error": 2}


def severity(level: str) -> int:
    """A number that is higher for a worse level; one that only a newer version has counts as a warning."""
    return _SEVERITY.get(level, _SEVERITY["warning"])


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


def open_alarms(events: Iterable[Event]) -> dict[str, str]:
    """Code and level of the alarms that stand after `events`, or whose sign a run had to its end; the worst first."""
    standing: list[Alarm] = []
    left: dict[str, str] = {}
    for event in events:
        standing = [alarm for alarm in standing if stands_after(alarm, event)]
        match event:
            case Alarm():
                standing.append(event)
            case RunStarted():
                left = {}
                standing = [alarm for alarm in standing if alarm.iteration <= (event.resumed_at or 0)]
            case RunEnded():
                left = event.alarms
    found = left | {alarm.code: alarm.level for alarm in standing}
    return dict(sorted(found.items(), key=lambda item: -severity(item[1])))
