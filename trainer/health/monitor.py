"""Holds every rule against every event, and tells each alarm once."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from trainer.config.schema import Config
from trainer.events import Alarm, Event, RolledBack, RunStarted
from trainer.health.history import History
from trainer.health.rule import Level, Sign
from trainer.health.rules import RULES

AWAY = 10
"""Iterations without its sign after which an alarm is over, and is told again when it comes back."""


class _Told(NamedTuple):
    level: Level
    seen: int  # the iteration in which its sign was last there


class HealthMonitor:
    """Watches a run by its events: `take` each of them, in order.

    config_of: the configuration that holds now, [health] with it. An alarm is told when it begins, when a warning
    becomes an error, and again only after it has been away, or the run went back behind it.
    """

    def __init__(self, config_of: Callable[[], Config]) -> None:
        self._config_of = config_of
        self._history = History()
        self._told: dict[str, _Told] = {}

    def take(self, event: Event) -> list[Alarm]:
        """The alarms that `event` gives reason to tell, most urgent first."""
        anything_new = self._history.take(event)
        if isinstance(event, RolledBack) or (isinstance(event, RunStarted) and event.resumed_at is None):
            self._told.clear()
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
        news = told is None or (told.level, sign.level) == ("warning", "error")
        level = sign.level if news or told is None else told.level
        self._told[code] = _Told(level, now)
        return news

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
