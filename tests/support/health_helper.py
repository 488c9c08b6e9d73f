"""Runs for the tests of trainer/monitoring: iterations of a healthy run, some of their numbers changed."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from typing import Any

from scripted_run import iteration

from trainer.config import Config, validate
from trainer.events import Alarm, Alert, Event, Iteration
from trainer.monitoring import Monitor

ADAPTIVE = {"ppo": {"iterations": 100, "kl_controller": "adaptive", "kl_target": 6.0}}
FLAT = {"score_mean": lambda n: 0.1, "parts": lambda n: {"lexicon": 0.1 + 0.01 * (n % 2)}}
LONGER = {"response_length": lambda n: 33.0 if n > 20 else 20.0, "truncated": lambda n: 0.0}


def config_of(**tables: dict[str, Any]) -> Config:
    return validate({"ppo": {"iterations": 100}, **tables})


def healthy(count: int, seed: int = 0, **changes: Callable[[int], Any]) -> list[Iteration]:
    """Return a run like the quickstart's: score and KL rise, everything else is noise around a constant.

    changes: of fields, as functions of the iteration's number.
    """
    draw, drawn_surprise = random.Random(seed), random.Random(f"surprise {seed}")
    rows = []
    for number in range(1, count + 1):
        risen = 1 - math.exp(-number / 20)
        values = {
            "score_mean": 0.1 + 0.5 * risen + draw.gauss(0, 0.1),
            "score_std": 0.4 + draw.gauss(0, 0.05),
            "score_min": -0.7,
            "score_max": 0.9,
            "kl": (number > 1) * max(8 * risen + draw.gauss(0, 1.0), -0.1),
            "kl_coef": 0.05,
            "entropy": 3.4 - 0.5 * risen + draw.gauss(0, 0.2),
            "clip_fraction": 0.22 if number < 3 else 0.03 + abs(draw.gauss(0, 0.02)),
            "explained_variance": (number > 1) * draw.gauss(-0.1 + 0.3 * risen, 0.25),
            "value_loss": 0.1 + abs(draw.gauss(0, 0.03)),
            "ratio_mean": 1 + draw.gauss(0, 0.01),
            "log_ratio_max": 2.3,
            "grad_norm": 3 + abs(draw.gauss(0, 0.5)),
            "grad_norm_max": 4 + abs(draw.gauss(0, 0.5)),
            "response_length": 32.0,
            "truncated": 1.0,
            "sampler_mismatch": 1e-5,
            "steps": 2,
            "skipped_steps": 0,
            "spiked_steps": 0,
            "tokens_per_second": (15 if number == 1 else 25) + draw.gauss(0, 3),
            "seconds": {"generate": 9.0, "update": 4.0},
            "advantage_std": 0.3,
            "epochs_done": 2.0,
            "length_correlation": draw.uniform(-0.8, 0.8),
            "repetition": abs(draw.gauss(0.05, 0.03)),
            "unique": 1.0,
            "parts": {"lexicon": 0.1 + 0.5 * risen + draw.gauss(0, 0.1)},
        }
        values |= {name: change(number) for name, change in changes.items()}
        surprise = {"surprise": values["entropy"] + drawn_surprise.gauss(0, 0.1), "surprise_error": 0.1}
        rows.append(iteration(number, **surprise | values))
    return rows


def alerts_of(monitor: Monitor, events: Iterable[Event]) -> list[Alert]:
    """Return the alerts of `events`, each taken right after the event that causes it, as in a run."""
    found = []
    for event in events:
        for alert in monitor.take(event):
            found.append(alert)
            monitor.take(alert)
    return found


def alarms(events: Iterable[Event], config: Config | None = None) -> list[Alarm]:
    config = config or config_of()
    return [alert for alert in alerts_of(Monitor(lambda: config), events) if isinstance(alert, Alarm)]


def reported(events: Iterable[Event], config: Config | None = None) -> list[tuple[int, str, str]]:
    return [(alarm.iteration, alarm.code, alarm.level) for alarm in alarms(events, config)]


def one(events: Iterable[Event], config: Config | None = None) -> Alarm:
    (alarm,) = alarms(events, config)
    return alarm


def from_20(then: Any, before: Any) -> Callable[[int], Any]:
    """Return a series that is `before` for the first 20 iterations and `then` afterwards."""
    return lambda number: then if number > 20 else before


def ranks(*waiting: float, seconds: float = 20.0) -> list[dict[str, Any]]:
    """Return what ranks a, b, c report that waited so long."""
    names = [f"rank {rank} ({host})" for rank, host in enumerate("abc")]
    rest = {"seconds": seconds, "sent": 1, "memory_bytes": 1}
    return [{"host": host, "waiting": wait, **rest} for host, wait in zip(names, waiting, strict=False)]


def in_40(then: Any, else_: Any) -> Callable[[int], Any]:
    return lambda number: then if number == 40 else else_
