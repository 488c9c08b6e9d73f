"""`ppo-workbench estimate`: the memory of a run by part and phase, and what makes it fit."""

from __future__ import annotations

import argparse
import json
import math

from trainer.config import SCHEMAS, AnyConfig
from trainer.errors import UsageError
from trainer.memory.estimate import Saving, cheapest_saving
from trainer.memory.footprint import Footprint
from trainer.memory.shape import shape_of
from workbench.cli.config import configuration, kind_of
from workbench.cli.parser import add
from workbench.config.estimates import Estimate, estimate, footprint_of, has_gpu
from workbench.numbers import gigabytes
from workbench.system import output
from workbench.system.machine import room_for
from workbench.text import visible

_COLUMN = 9


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.set_defaults(execute=run)
    add(parser, "--config", metavar="PRESET_OR_FILE", help="preset or file")
    add(parser, "--set")
    parser.add_argument("--kind", choices=tuple(SCHEMAS), help="kind of run (default: the file's own, or ppo)")
    parser.add_argument(
        "--memory", type=float, metavar="GB", help="memory to fit (default: model.memory_limit, or else this machine's)"
    )
    parser.add_argument("--json", action="store_true", help="print bytes as JSON")


def run(args: argparse.Namespace) -> int:
    """Print the estimate; return 3 if it does not fit, or if the size of the model is not known. Raises UsageError."""
    if args.memory is not None and not 0 < args.memory < math.inf:
        raise UsageError(f"--memory {args.memory:g}: must be a number of GB above 0")
    config: AnyConfig = configuration(args, SCHEMAS[args.kind or kind_of(args.config_given) or "ppo"])
    needed = estimate(config)
    room = round(args.memory * 1e9) if args.memory else room_for(config.model)
    memory = needed.memory
    fits = memory is not None and memory.peak <= room
    saving = None if memory is None or fits else _saving(config, room)
    if args.json:
        output.data(json.dumps(_plain(needed, room, saving), indent=2))
    elif memory is None:
        output.data(f"Memory unknown: {visible(needed.basis.rpartition('; ')[2])}")
    else:
        advice = [] if fits else [_advice(saving)]
        output.data("\n".join([visible(needed.basis), "", *table(memory), "", verdict(memory, room), *advice]))
    return 0 if fits else 3


def table(memory: Footprint) -> list[str]:
    """Return the parts in lines and the phases in columns, in GB, with the totals last."""
    parts = list(dict.fromkeys(part for phase in memory.phases.values() for part in phase))
    wide = max(map(len, parts))
    lines = [f"{'GB':<{wide}}" + "".join(f"{phase:>{_COLUMN}}" for phase in memory.phases)]
    for part in parts:
        sizes = [phase.get(part, 0) for phase in memory.phases.values()]
        lines.append(f"{part:<{wide}}" + "".join(f"{_cell(size):>{_COLUMN}}" for size in sizes))
    totals = [memory.peak_of(phase) for phase in memory.phases]
    return [*lines, f"{'total':<{wide}}" + "".join(f"{_cell(size):>{_COLUMN}}" for size in totals)]


def verdict(memory: Footprint, room: int) -> str:
    """Return whether the peak fits."""
    says = "fits" if memory.peak <= room else "does not fit"
    return f"about {gigabytes(memory.peak)}, in the phase {memory.phase}, of {gigabytes(room)}: {says}"


def _saving(config: AnyConfig, room: int) -> Saving | None:
    shape, _ = shape_of(config.model.path)
    return shape and cheapest_saving(config, lambda other: footprint_of(other, shape).peak, room, gpu=has_gpu())


def _advice(saving: Saving | None) -> str:
    if saving is None:
        return "no single setting makes it fit"
    value = str(saving.value).lower()  # as TOML writes true
    return f"--set {saving.key}={value} makes it fit, with {gigabytes(saving.peak)}: {saving.price}"


def _plain(needed: Estimate, room: int, saving: Saving | None) -> dict[str, object]:
    """Return the estimate as values of JSON, in bytes."""
    memory = needed.memory
    return {
        "basis": needed.basis,
        "room": room,
        "peak": memory and memory.peak,
        "phase": memory and memory.phase,
        "phases": memory and memory.phases,
        "fits": memory is not None and memory.peak <= room,
        "saving": saving and saving._asdict(),
    }


def _cell(size: int) -> str:
    return f"{size / 1e9:.3f}" if size else "-"
