"""Health monitor: checks every rule after every event and reports each alarm once."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from trainer.config.schema import Config
from trainer.events import Alarm, Event, RolledBack, RunStarted, SettingChanged
from trainer.monitoring.history import History
from trainer.monitoring.rule import Level, Sign
from trainer.monitoring.rules import RULES

AWAY = 10
"""Iterations without its sign after which an alarm is over; if it comes back, it is reported again."""

TRIED = 10
"""Iterations that a changed setting gets to help; an alarm whose sign persists is then reported again."""


class _Told(NamedTuple):
    level: Level
    seen: int  # last iteration with its sign
    keys: frozenset[str]  # settings that its fixes change
    tried: float = math.inf  # iteration in which one of them changed


class HealthMonitor:
    """Monitor of a run: `take` each of its events, in order.

    config_of: returns the current configuration, [health] included. An alarm is reported when it begins and when a
    warning becomes an error. It is reported again only after it was over, after a rollback, or if a change of one of
    the settings that it suggested did not help.
    """

    def __init__(self, config_of: Callable[[], Config]) -> None:
        self._config_of = config_of
        self._history = History()
        self._told: dict[str, _Told] = {}

    @property
    def open(self) -> dict[str, str]:
        """Code and level of the alarms that were reported and are not over."""
        return {code: told.level for code, told in self._told.items()} if self._config_of().health.alarms else {}

    def take(self, event: Event) -> list[Alarm]:
        """Return the alarms that `event` raises, most urgent first."""
        anything_new = self._history.take(event)
        if isinstance(event, RolledBack) or (isinstance(event, RunStarted) and event.resumed_at is None):
            self._told.clear()
        if isinstance(event, SettingChanged):
            for code, told in self._told.items():
                if event.key in told.keys:
                    self._told[code] = told._replace(tried=event.iteration)
        config = self._config_of()
        if not anything_new or not config.health.alarms:
            return []
        alarms = []
        for code, rule in RULES.items():
            sign = None if code in config.health.ignore else rule(self._history, config)
            if self._is_news(code, sign) and sign is not None:
                alarms.append(self._alarm(code, sign))
        return alarms

    def _is_news(self, code: str, sign: Sign | None) -> bool:
        told, now = self._told.get(code), self._history.iteration
        if sign is None:
            if told and now - told.seen >= AWAY:
                del self._told[code]
            return False
        worse = told is not None and (told.level, sign.level) == ("warning", "error")
        if told is None or worse or now - told.tried >= TRIED:
            self._told[code] = _Told(sign.level, now, frozenset(fix.key for fix in sign.fixes if fix and fix.key))
            return True
        self._told[code] = told._replace(seen=now)
        return False

    def _alarm(self, code: str, sign: Sign) -> Alarm:
        return Alarm(
            iteration=self._history.iteration,
            level=sign.level,
            code=code,
            message=sign.message,
            evidence={name: float(value) for name, value in sign.evidence.items() if math.isfinite(value)},
            advice=sign.advice,
            fixes=[fix for fix in sign.fixes if fix is not None],
        )
