"""Record of an evaluation: plain numbers, which screens read without loading a model."""

from __future__ import annotations

import functools
import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import TypeAdapter

_ABSENT = ("ties", "untrained")


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Share of `pairs` whose better completion scores higher, with Wilson's 95% interval.

    The interval treats pairs as independent.
    """

    name: str
    pairs: int
    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class CalibrationBin:
    """Pairs in which the model gives its preferred completion a probability from `low` to `high`."""

    low: float
    high: float
    pairs: int
    confidence: float  # mean of these probabilities
    accuracy: float  # how often that completion is the better one


@dataclass(frozen=True, slots=True)
class Baseline:
    """Accuracy and log-loss of a simpler model on the same pairs."""

    accuracy: float
    log_loss: float  # nats


@dataclass(frozen=True, slots=True)
class TieMass:
    """Mean probability of a tie, over pairs labelled as ties and over decided pairs."""

    ties: int
    on_ties: float
    on_decided: float


@dataclass(frozen=True, slots=True)
class RewardModelReport:
    """An evaluation. Log-losses and calibration cover the decided pairs, given that they are decided."""

    accuracy: Accuracy
    log_loss: float  # nats a pair; guessing gives 0.693
    calibration_error: float  # mean |confidence - accuracy| over the bins, weighted by pairs
    calibration: list[CalibrationBin]
    by_length: list[Accuracy]
    by_source: list[Accuracy]
    ties: TieMass | None
    length: Baseline  # by length alone
    untrained: Baseline | None

    def as_dict(self) -> dict[str, Any]:
        """Return plain values; numbers that are not finite become None, since JSON lacks them."""
        plain: dict[str, Any] = _plain(asdict(self))
        return plain


def report_from_dict(values: Any) -> RewardModelReport:
    """Rebuild a report from `as_dict`, with missing numbers as NaN. Raises ValueError for anything else."""
    return _adapter().validate_python(_numbers(values))


@functools.cache
def _adapter() -> TypeAdapter[RewardModelReport]:
    from pydantic import TypeAdapter

    return TypeAdapter(RewardModelReport)


def _numbers(value: Any) -> Any:
    """Replace None by NaN, except in the fields that are None when absent."""
    if isinstance(value, dict):
        return {name: item if item is None and name in _ABSENT else _numbers(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_numbers(item) for item in value]
    return math.nan if value is None else value


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value
