"""`ppo-workbench estimate` and `doctor`: the memory of a run, and what this machine would train on."""

from __future__ import annotations

import argparse
import json
import math

from trainer.config import SCHEMAS, AnyConfig
from trainer.errors import UsageError
from trainer.memory.estimate import cheapest_saving
from trainer.memory.footprint import Footprint
from trainer.memory.shape import shape_of
from workbench.cli.config import configuration, kind_of
from workbench.cli.parser import add
from workbench.config.estimates import estimate, footprint_of, has_gpu
from workbench.system import output
from workbench.system.machine import room_for
from workbench.text import gigabytes, visible

_COLUMN = 9


def add_estimate(parser: argparse.ArgumentParser) -> None:
    """Add the options of `estimate`."""
    parser.set_defaults(execute=run_estimate)
    add(parser, "--config", metavar="PRESET_OR_FILE", help="preset or file")
    add(parser, "--set")
    parser.add_argument("--kind", choices=tuple(SCHEMAS), help="kind of run (default: the file's own, or ppo)")
    parser.add_argument(
        "--memory", type=float, metavar="GB", help="memory to fit (default: model.memory_limit, or else this machine's)"
    )
    add(parser, "--json", help="print bytes as JSON")


def run_estimate(args: argparse.Namespace) -> int:
    """Print the memory of a run by part and phase, and what makes it fit. Raises UsageError.

    Return 3 if it does not fit, or if the size of the model is not known.
    """
    if args.memory is not None and not 0 < args.memory < math.inf:
        raise UsageError(f"--memory {args.memory:g}: must be a number of GB above 0")
    config: AnyConfig = configuration(args, SCHEMAS[args.kind or kind_of(args.config_given) or "ppo"])
    needed = estimate(config)
    room = round(args.memory * 1e9) if args.memory else room_for(config.model)
    memory, saving = needed.memory, None
    fits = memory is not None and memory.peak <= room
    if memory and not fits and (shape := shape_of(config.model.path)[0]):
        saving = cheapest_saving(config, lambda other: footprint_of(other, shape).peak, room, gpu=has_gpu())
    if args.json:
        values = {
            "basis": needed.basis,
            "room": room,
            "peak": memory and memory.peak,
            "phase": memory and memory.phase,
            "phases": memory and memory.phases,
            "fits": fits,
            "saving": saving and saving._asdict(),
        }
        output.data(json.dumps(values, indent=2))
    elif memory is None:
        output.data(f"Memory unknown: {visible(needed.basis.rpartition('; ')[2])}")
    else:
        says = "fits" if fits else "does not fit"
        verdict = f"about {gigabytes(memory.peak)}, in the phase {memory.phase}, of {gigabytes(room)}: {says}"
        output.data("\n".join([visible(needed.basis), "", *_table(memory), "", verdict]))
        if saving:
            setting = f"{saving.key}={str(saving.value).lower()}"  # as TOML writes true
            output.data(f"--set {setting} makes it fit, with {gigabytes(saving.peak)}: {saving.price}")
        elif not fits:
            output.data("no single setting makes it fit")
    return 0 if fits else 3


def _table(memory: Footprint) -> list[str]:
    """Return the parts in lines and the phases in columns, in GB, with the totals last."""
    rows: dict[str, list[int]] = {
        part: [phase.get(part, 0) for phase in memory.phases.values()]
        for part in dict.fromkeys(part for phase in memory.phases.values() for part in phase)
    }
    rows["total"] = [sum(parts.values()) for parts in memory.phases.values()]
    wide = max(map(len, rows))
    lines = [f"{'GB':<{wide}}" + "".join(f"{phase:>{_COLUMN}}" for phase in memory.phases)]
    for part, sizes in rows.items():
        cells = (f"{size / 1e9:.3f}" if size else "-" for size in sizes)
        lines.append(f"{part:<{wide}}" + "".join(f"{cell:>{_COLUMN}}" for cell in cells))
    return lines


def add_doctor(parser: argparse.ArgumentParser) -> None:
    """Add no options: `doctor` has none."""
    parser.set_defaults(execute=run_doctor)


def run_doctor(_: argparse.Namespace) -> int:
    """Print one line for each check; return 3 if one failed, because training would fail too."""
    from trainer.doctor import checks

    failed = False
    for check in checks():
        failed = failed or check.status == "fail"
        way_out = f": {visible(check.advice)}" if check.advice else ""
        output.data(f"{check.status:<4}  {check.name:<9}  {visible(check.detail)}{way_out}")
    return 3 if failed else 0
