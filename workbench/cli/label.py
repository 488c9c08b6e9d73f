"""`ppo-workbench label`: the workbench, opened to judge which completion is better."""

from __future__ import annotations

import argparse
import math
import os
from dataclasses import replace
from pathlib import Path

from trainer.errors import UsageError
from trainer.files import may_exist
from trainer.preferences.queues import disputed_keys
from trainer.preferences.records import SessionRecord
from trainer.preferences.rows import guidelines_hash
from trainer.preferences.sessions import list_sessions
from trainer.preferences.store import STORE, PreferenceStore
from trainer.runs.folder import open_run
from workbench.cli.config import runs_dir
from workbench.cli.parser import add, dir_override, whole_number
from workbench.cli.ui import open_workbench
from workbench.labelling.plans import (
    QUEUES,
    REPEATS,
    SessionOptions,
    UserQueue,
    default_labeller,
    labeller_name,
    labelling_material,
    login_name,
    planned,
    read_guidelines,
)
from workbench.opening import Opening


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.set_defaults(execute=run)
    for option, metavar, help_text in (
        ("--labeller", "NAME", "your name (default: the last labeller in the store, else your login name)"),
        ("--run", "RUN", "run whose samples to judge: folder or name (default: the newest)"),
        ("--data", "SOURCE", "pairs to judge: a .jsonl, .json, .csv or .parquet file, a folder or a datasets name"),
        ("--model", "RUN", "reward model for uncertain (default: the newest)"),
        ("--guidelines", "FILE", "text file, shown first and saved with the labels"),
        ("--store", "FILE", "the store (default: preferences.db, in this folder)"),
    ):
        parser.add_argument(option, metavar=metavar, help=help_text)
    parser.add_argument(
        "--column",
        dest="columns",
        metavar="ROLE=NAME",
        action="append",
        default=[],
        help="name of a column of --data, as in prompt=question; roles: prompt, a, b, chosen, rejected",
    )
    parser.add_argument(
        "--queue",
        dest="queues",
        metavar="NAME[=WEIGHT]",
        nargs="+",
        action="extend",
        default=[],
        help=f"sources of items, mixed by weight: {', '.join(QUEUES)} (default: samples of a run, pairs of --data)",
    )
    add(parser, "--dir")
    add(parser, "--limit", type=whole_number(0), help="number of items (default: all)")
    repeats = f"share of items that repeat one you labelled (default: {REPEATS})"
    parser.add_argument("--repeats", metavar="SHARE", type=float, help=repeats)


def run(args: argparse.Namespace) -> int:
    """Open the workbench on the Label pane and return the exit code. Raises TrainerError."""
    return open_workbench(opening(args))


def opening(args: argparse.Namespace) -> Opening:
    """Return what to open: a session if the options name its items, else the screen that asks. Raises TrainerError."""
    path = (Path(args.store) if args.store else Path.cwd() / STORE).resolve()
    kept, flagged, disputed = list[SessionRecord](), tuple[str, ...](), tuple[str, ...]()
    if may_exist(path):
        with PreferenceStore(path) as store:
            kept, flagged = list_sessions(store), tuple(store.flagged())
            disputed = tuple(disputed_keys(store))
    elif not (path.parent.is_dir() and os.access(path.parent, os.W_OK)):
        raise UsageError(f"cannot create '{path}': its folder is missing or read-only; name another with --store")
    given = "" if args.labeller is None else labeller_name(args.labeller)
    labeller = given or labeller_name(default_labeller(kept))
    if args.guidelines:
        read_guidelines(args.guidelines)  # report a mistake at once
    where = runs_dir(args)
    options = replace(_options(args, where), labeller=given, flagged=flagged, disputed=disputed, store=path)
    if args.run or args.data or options.queues:
        new = planned(replace(options, labeller=labeller))
        assert new.plan is not None
        wanted = labeller, new.plan, guidelines_hash(new.text)
        for one in kept:
            if one.left and (one.labeller, replace(one.plan, seed=new.plan.seed), one.guidelines) == wanted:
                options = replace(options, labeller=labeller, resume=one.id)
                break
        else:
            if given or labeller == login_name():  # else it may be somebody else: ask
                options = new
    return Opening(watch=options.run, overrides=() if options.run else tuple(dir_override(args)), label=options)


def _options(args: argparse.Namespace, where: Path) -> SessionOptions:
    """Return the options; a run or a reward model that is needed but not named is the newest one."""
    queues: list[tuple[UserQueue, float]] = []
    for text in args.queues:
        name, equals, weight = text.partition("=")
        queue = next((queue for queue in QUEUES if queue == name), None)
        if queue is None:
            raise UsageError(f"--queue {text}: must be one of {', '.join(QUEUES)}")
        try:
            value = float(weight) if equals else 1.0
        except ValueError:
            value = math.nan
        if not 0 < value < math.inf:
            raise UsageError(f"--queue {text}: the weight must be a number above 0, as in {name}=2")
        queues.append((queue, value))
    names = {queue for queue, _ in queues}
    if len(names) < len(queues):
        raise UsageError("--queue: a queue is named twice; give it one weight")
    run = open_run(args.run, where).root if args.run else None
    model = open_run(args.model, where).root if args.model else None
    needs_run = bool(names - {"dataset", "flagged", "disputed"})
    if needs_run and not (run and model):
        found = labelling_material(where)
        run = run or next(iter(found.runs), None)
        model = model or next(iter(found.models), None)
    return SessionOptions(
        queues=tuple(queues),
        run=run,
        data=args.data or "",
        columns=tuple(args.columns),
        model=model,
        limit=args.limit or 0,
        repeats=REPEATS if args.repeats is None else args.repeats,
        guidelines=args.guidelines or "",
    )
