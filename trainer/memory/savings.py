"""Changes of a configuration that make it fit the memory, the cheapest first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar, cast

from trainer.config import AnyConfig, Config

_MOST = 3
Configured = TypeVar("Configured", bound=AnyConfig)
Ladder = tuple[str, list[Any], str]  # a setting, ever cheaper values, and the price of the change


class Saving(NamedTuple):
    """A change of one setting."""

    key: str  # dotted
    value: Any
    peak: int  # bytes, after this change and, in `together`, those before it
    price: str  # what the change costs besides


class Savings(NamedTuple):
    """Changes that make a configuration fit: any one of `alone`, or all of `together`. Both are empty if none do."""

    alone: list[Saving]
    together: list[Saving]


def savings(config: AnyConfig, peak: Callable[[AnyConfig], int], room: int, *, gpu: bool) -> Savings:
    """Return the cheapest changes with which `peak`, the bytes of a configuration, is at most `room`.

    gpu: whether it runs on one, where packed weights take less memory. A change goes no further than it must.
    """
    alone = []
    for key, values, price in _ladders(config, gpu=gpu):
        tried = ((value, peak(changed(config, key, value))) for value in values)
        fitting = next(((value, size) for value, size in tried if size <= room), None)
        if fitting is not None:
            alone.append(Saving(key, *fitting, price))
    if alone:
        return Savings(alone[:_MOST], [])
    return Savings([], _together(config, peak, room, list(_ladders(config, gpu=gpu))))


def _together(config: AnyConfig, peak: Callable[[AnyConfig], int], room: int, ladders: list[Ladder]) -> list[Saving]:
    """Return changes that fit together; empty if nothing does.

    It takes the settings to their cheapest value one after the other until the peak fits, then each as far back as the
    room allows, the first one last.
    """

    def size_of(values: dict[str, Any]) -> int:
        tried = config
        for key, value in values.items():
            tried = changed(tried, key, value)
        return peak(tried)

    chosen: dict[str, Any] = {}
    for key, values, _ in ladders:
        chosen[key] = values[-1]
        if size_of(chosen) <= room:
            break
    else:
        return []
    for key, values, _ in reversed(ladders[: len(chosen)]):
        without = {other: value for other, value in chosen.items() if other != key}
        if size_of(without) <= room:
            chosen = without
        else:
            chosen[key] = next(value for value in values if size_of(chosen | {key: value}) <= room)
    prices = {key: price for key, _, price in ladders}
    found: list[Saving] = []
    for place, (key, value) in enumerate(chosen.items(), 1):
        size = size_of(dict(list(chosen.items())[:place]))
        found.append(Saving(key, value, size, prices[key]))
    return found


def changed(config: Configured, key: str, value: Any) -> Configured:
    """Return `config` with another value of the dotted `key`, unchecked."""
    section, _, name = key.partition(".")
    table = getattr(config, section).model_copy(update={name: value})
    return cast("Configured", config.model_copy(update={section: table}))


def _ladders(config: AnyConfig, *, gpu: bool) -> Iterator[Ladder]:
    """Yield what can be changed, the lowest price first."""
    model = config.model
    if ladder := _halved(config.optim.micro_batch_tokens, 64):
        yield "optim.micro_batch_tokens", ladder, "the same numbers, in smaller parts"
    if isinstance(config, Config):
        slots = min(config.rollout.slots, config.rollout.batch_size)
        if ladder := _halved(slots, 1):
            yield "rollout.slots", ladder, "fewer responses at a time: slower generation"
    if not config.optim.grad_checkpoint:
        yield "optim.grad_checkpoint", [True], "the same numbers, updates half as long again"
    if model.dtype == "float32" or (model.dtype == "auto" and not gpu):
        yield "model.dtype", ["bfloat16"], "rounded weights" if gpu else "rounded weights, and slow on a CPU"
    if gpu and model.quantize != "4-bit":
        yield "model.quantize", ["8-bit", "4-bit"][model.quantize != "off" :], "weights of fewer bits"
    if isinstance(config, Config):
        key, value, price = "rollout.max_new_tokens", config.rollout.max_new_tokens, "shorter responses"
    else:
        key, value, price = "data.max_tokens", config.data.max_tokens, "only the end of long comparisons"
    if ladder := _halved(value, 16):
        yield key, ladder, price


def _halved(value: int, least: int) -> list[int]:
    """Return the halves of `value`, ever smaller, down to `least`."""
    values = []
    while (value := value // 2) >= least:
        values.append(value)
    return values
