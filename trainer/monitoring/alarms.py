"""Active alarms of a run, from its events: those that a user should still look at."""

from __future__ import annotations

from collections.abc import Iterable

from trainer.events import Alarm, Event, RolledBack, RunEnded, RunStarted, SettingChanged

ACTIVE_ITERATIONS = 20
"""Iterations for which an alarm stays active: events report its beginning, not its end."""

_SEVERITY = {"info": 0, "warning": 1, "error": 2}


def severity(level: str) -> int:
    """Return a number that is higher for a worse level; a level of a newer version counts as a warning."""
    return _SEVERITY.get(level, _SEVERITY["warning"])


def is_active_after(alarm: Alarm, event: Event) -> bool:
    """Return whether `alarm`, active before `event`, is still active after it.

    It ends with a rollback, a change of a setting that one of its fixes sets, another alarm of its code, or time.
    """
    match event:
        case RolledBack():
            return False
        case SettingChanged():
            return all(fix.key != event.key for fix in alarm.fixes if fix.action == "set")
        case Alarm():
            return event.code != alarm.code
    iteration = getattr(event, "iteration", alarm.iteration)
    return bool(iteration < alarm.iteration + ACTIVE_ITERATIONS)


def active_alarms(events: Iterable[Event]) -> dict[str, str]:
    """Return code and level of the alarms active after `events`, the worst first.

    They include those that `RunEnded` lists as unresolved.
    """
    active: list[Alarm] = []
    unresolved: dict[str, str] = {}
    for event in events:
        active = [alarm for alarm in active if is_active_after(alarm, event)]
        match event:
            case Alarm():
                active.append(event)
            case RunStarted():
                unresolved = {}
                active = [alarm for alarm in active if alarm.iteration <= (event.resumed_at or 0)]
            case RunEnded():
                unresolved = event.alarms
    found = unresolved | {alarm.code: alarm.level for alarm in active}
    return dict(sorted(found.items(), key=lambda item: -severity(item[1])))
