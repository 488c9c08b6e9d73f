"""Plans of new labelling sessions, made from what the user names on the start screen or the command line."""

from __future__ import annotations

import getpass
import io
import os
import secrets
import threading
import unicodedata
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

from trainer.errors import DataError, UsageError, counted
from trainer.files import open_regular
from trainer.preferences.queues import QueueContext
from trainer.preferences.records import Item, QueuePlan, SessionPlan, SessionRecord
from trainer.runs.checkpoint_files import checkpoints, newest_checkpoint
from trainer.runs.folder import RunFolder
from trainer.runs.listing import PPO, list_runs
from trainer.runs.samples import kept_iterations
from workbench.text import visible

UserQueue = Literal["samples", "policy-reference", "dataset", "uncertain", "flagged", "disputed"]
"""A queue that a user can choose; the last two become "again" with the keys of what is flagged or disputed."""

QUEUES: dict[UserQueue, str] = {
    "samples": "responses of the run, newest first",
    "policy-reference": "policy against reference, written now",
    "dataset": "pairs from a file or dataset",
    "uncertain": "samples that a reward model is unsure of",
    "flagged": "items flagged for a second look, once more",
    "disputed": "pairs on which a judge disagrees with the labels",
}
"""Queues that a user can choose, each with a description."""

REPEATS = SessionPlan(queues=()).repeats
MOST_REPEATS = 0.5
_PATIENCE = 5.0  # seconds for the first item
_LONGEST_NAME = 60  # characters
_LARGEST_GUIDELINES = 200_000  # bytes: guidelines are meant to be read


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOptions:
    """User's options for a new session, and its plan once it is made; or the session to resume.

    labeller: as given; empty if it is not. queues: with their weights; if empty, run and data decide. columns: names of
    the columns of the data, as in "prompt=question". model: folder of the reward model of "uncertain". guidelines: the
    path of a text file; its text is in `text` once there is a plan. flagged, disputed: keys of the comparisons that are
    flagged in the store, and of those that a judge disputes. resume: id of a session. store: where labels are kept;
    None: in the working folder.
    """

    labeller: str = ""
    queues: tuple[tuple[UserQueue, float], ...] = ()
    run: Path | None = None
    data: str = ""
    columns: tuple[str, ...] = ()
    model: Path | None = None
    limit: int = 0
    repeats: float = REPEATS
    guidelines: str = ""
    flagged: tuple[str, ...] = ()
    disputed: tuple[str, ...] = ()
    plan: SessionPlan | None = None
    text: str = ""
    resume: int = 0
    store: Path | None = None


class Material(NamedTuple):
    """Folders of runs with samples to judge, now or later, and of reward models; the newest first."""

    runs: list[Path]
    models: list[Path]


def labelling_material(runs_dir: Path) -> Material:
    """Find the runs in `runs_dir` that can be labelled, and the reward models. Reads ends of journals.

    Raises StorageError.
    """
    runs = sorted(list_runs(runs_dir), key=lambda run: (run.started or 0.0, run.name), reverse=True)
    return Material(
        [run.folder.root for run in runs if run.kind == PPO and (run.folder.is_live() or kept_iterations(run.folder))],
        [run.folder.root for run in runs if run.kind == "reward-model" and checkpoints(run.folder).paths],
    )


def planned(options: SessionOptions) -> SessionOptions:
    """Return `options` with a plan, which has a random seed, and the guidelines' text.

    Checks the samples, the checkpoints and the first row of the data. Takes seconds if `datasets` has to load the data.
    Raises UsageError for a plan that is not possible, DataError for data that cannot be read.
    """
    text = read_guidelines(options.guidelines) if options.guidelines else ""
    if options.limit < 0:
        raise UsageError(f"limit = {options.limit}: give a whole number, 0 for no limit")
    if not 0 <= options.repeats <= MOST_REPEATS:
        raise UsageError(f"repeats = {options.repeats:g}: give a share from 0 to {MOST_REPEATS:g}, such as 0.05")
    given: dict[UserQueue, object] = {"samples": options.run, "dataset": options.data}
    queues = options.queues or [(queue, 1.0) for queue, source in given.items() if source]
    if not queues:
        raise UsageError("nothing to label: name data, or a run that saves its samples")
    if options.data and "dataset" not in dict(queues):
        raise UsageError(f"'{options.data}' is not used: add the queue dataset, or leave the data out")
    if options.columns and not options.data:
        raise UsageError("columns are named, but no data: name a file, a folder or a dataset")
    plan = SessionPlan(
        queues=tuple(_queue_plan(queue, weight, options) for queue, weight in queues),
        repeats=options.repeats,
        limit=options.limit,
        seed=secrets.randbelow(2**31),
    )
    return replace(options, plan=plan, text=text)


def first_item(options: SessionOptions, store: Path) -> tuple[Item | None, str]:
    """Return an item as a new session would show it first, or None and why it is not known.

    For a thread: it reads files, but asks no model and loads no dataset by its name. Raises TrainerError.
    """
    from trainer.preferences.queues.mixture import Mixture  # it imports NumPy

    is_file = os.path.isfile(os.path.expanduser(options.data))  # noqa: PTH111, PTH113  pathlib's raise for odd names
    can_show = {"samples": True, "dataset": is_file or not options.data}
    plans = tuple(_queue_plan(queue, weight, options) for queue, weight in options.queues if can_show.get(queue))
    ready = threading.Event()
    context = QueueContext(options.labeller, store, wake=ready.set)
    with closing(Mixture(SessionPlan(queues=plans), context)) as mixture:
        while (item := mixture.draw()) is None and not mixture.exhausted and ready.wait(_PATIENCE):
            ready.clear()
        is_over = mixture.exhausted and len(plans) == len(options.queues)
        later = "You have judged all pairs of these sources" if is_over else "It comes once the session begins"
        return item, "; ".join(mixture.problems) or later


def plan_line(plan: SessionPlan) -> str:
    """Describe the queues of a plan and their sources in a few words; names from disk are made visible."""
    words = {"samples": "samples of {}", "policy-reference": "policy against reference of {}", "dataset": "{}"}
    parts = [
        f"{counted(len(queue.keys), 'comparison')} again"
        if queue.queue == "again"
        else words.get(queue.queue, f"{queue.queue} samples of {{}}").format(Path(queue.source).name)
        for queue in plan.queues
    ]
    return visible(" + ".join(parts)) or "nothing"


def default_labeller(sessions: Sequence[SessionRecord]) -> str:
    """Return the labeller of the first (newest) of a store's `sessions`, or else the user's login name."""
    return sessions[0].labeller if sessions else login_name()


def login_name() -> str:
    """Return the user's login name. A `default_labeller` of another name may be somebody else: ask."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in some containers
        return "me"


def labeller_name(text: str) -> str:
    """Return `text`, stripped, as the name of a labeller. Raises UsageError if it is not a valid name.

    Accents are composed: one keyboard writes é as a letter, another as two, and they would be two labellers.
    """
    if problem := labeller_problem(text):
        raise UsageError(problem)
    return unicodedata.normalize("NFC", text.strip())


def labeller_problem(text: str) -> str:
    """Return why `text` is not a valid name of a labeller; empty if it is."""
    name = text.strip()
    letters = name.replace("\u200c", "").replace("\u200d", "")  # joiners, as in Persian, Sinhala and emoji
    if letters.strip() and len(name) <= _LONGEST_NAME and letters.isprintable():
        return ""
    return f"labeller '{visible(name)}': give a name of 1 to {_LONGEST_NAME} printable characters"


def read_guidelines(path: str) -> str:
    """Read the guidelines in the file at `path`. Raises UsageError if it is unreadable, too large or empty."""
    way_out = "name a text file"
    try:
        file = Path(path).expanduser()
        if file.stat().st_size > _LARGEST_GUIDELINES:
            raise UsageError(f"guidelines '{path}': larger than {_LARGEST_GUIDELINES // 1000} kB: {way_out}")
        with io.TextIOWrapper(open_regular(file), encoding="utf-8-sig") as content:
            text = content.read()
    except (OSError, RuntimeError) as error:  # RuntimeError: ~ of an unknown user
        raise UsageError(f"guidelines '{path}': {getattr(error, 'strerror', None) or error}: {way_out}") from None
    except ValueError:
        raise UsageError(f"guidelines '{path}': not UTF-8 text: {way_out}") from None
    if not text.strip():
        raise UsageError(f"guidelines '{path}': the file is empty: {way_out}")
    return text


def _queue_plan(queue: UserQueue, weight: float, options: SessionOptions) -> QueuePlan:
    if queue == "dataset":
        source = _readable(options.data, options.columns)
        return QueuePlan(queue=queue, weight=weight, source=source, columns=options.columns)
    if queue == "flagged":
        if not options.flagged:
            raise UsageError("queue flagged: no item is flagged: flag some while you label")
        return QueuePlan(queue="again", weight=weight, keys=options.flagged)
    if queue == "disputed":
        if not options.disputed:
            raise UsageError("queue disputed: no pair is disputed: hold a judge against the labels by judge check")
        return QueuePlan(queue="again", weight=weight, keys=options.disputed)
    if options.run is None:
        raise UsageError(f"queue {queue}: no run is named: name one that saves its samples")
    run = options.run.resolve()
    folder = RunFolder(run)
    if not folder.is_live():
        if not kept_iterations(folder):
            raise UsageError(f"queue {queue}: '{run.name}' has no samples: choose a run with run.save_samples = true")
        if queue == "policy-reference" and not checkpoints(folder).paths:
            raise UsageError(f"queue {queue}: '{run.name}' is not running and has no checkpoint: choose another run")
    if queue != "uncertain":
        return QueuePlan(queue=queue, weight=weight, source=str(run))
    if options.model is None:
        raise UsageError(f"queue {queue}: needs a reward model: train one with ppo-workbench reward-model train")
    model = options.model.resolve()
    newest, damaged = newest_checkpoint(RunFolder(model))
    if damaged:
        raise UsageError(f"queue {queue}: '{model.name}': {'; '.join(damaged)}; name one of its other checkpoints")
    checkpoint = newest or model
    if not (checkpoint / "reward_model.json").is_file():
        raise UsageError(f"queue {queue}: '{model.name}' is not a trained reward model: name a run that is")
    return QueuePlan(queue=queue, weight=weight, source=str(run), model=str(model))


def _readable(source: str, columns: Sequence[str]) -> str:
    """Return `source`, a path made absolute. Raises DataError if it has no row that can be labelled."""
    if not source:
        raise UsageError("queue dataset: no data is named: give a file, a folder or a datasets name")
    from trainer.preferences.formats import ColumnNames, read_preferences

    names = ColumnNames.of(columns)
    reading = read_preferences(source, columns=names, skip_broken=True, unjudged=True)
    if next(iter(reading), None) is None:
        raise DataError(f"'{source}' has no pair to label; {reading.problems[0]}")
    path = Path(source).expanduser()
    return str(path.resolve()) if path.exists() else source
