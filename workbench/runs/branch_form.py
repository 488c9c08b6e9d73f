"""Content of the branch dialog, without Textual: the checkpoints of a run, and the meaning of the typed settings."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from trainer.config.reference import ReferenceRow, reference_rows
from trainer.config.schema import RunConfig
from trainer.errors import UsageError
from trainer.events import Event, Iteration
from trainer.ppo_run.branching import Plan, Wanted, can_change, config_at, plan_branches, plan_warnings
from trainer.runs.checkpoint_index import best_checkpoint, checkpoints, iteration_of
from trainer.runs.folder import TRASH, RunFolder, read_config
from trainer.runs.journal import read_journal
from trainer.runs.listing import PPO, RECENT, last_mean, summary_of
from workbench.run.config_differences import value_text
from workbench.run.sentences import change_words, state_text
from workbench.system.output import PROGRAM

SEEDS = 3  # in the command for several seeds


class BranchPoint(NamedTuple):
    """A checkpoint to branch from; score and KL are means of the last five iterations up to it, NaN if unknown."""

    iteration: int
    score: float
    kl: float  # nats per sequence
    is_best: bool


class Parent(NamedTuple):
    """A run that can be branched."""

    folder: RunFolder
    past: Sequence[Event]  # its journal
    iterations: int  # as configured
    points: Sequence[BranchPoint]  # newest first, at least one

    @property
    def first(self) -> int:
        """Place of the newest checkpoint after which there are iterations left to train; 0 if there is none."""
        left = (place for place, point in enumerate(self.points) if point.iteration < self.iterations)
        return next(left, 0)


class Outlook(NamedTuple):
    """What a branch would train, what it changes, and warnings, in sentences for the dialog."""

    what: str
    changes: str
    warnings: Sequence[str]


def read_parent(path: Path) -> Parent:
    """Read the run in `path` and its whole checkpoints.

    Raises UsageError for a run that cannot be branched from the screen, ConfigError, StorageError.
    """
    folder = RunFolder(path.resolve())
    if folder.root.parent.name == TRASH:
        raise UsageError(f"{folder.name} is in the trash: restore it, then branch it")
    raw = read_config(folder)
    if (kind := str(raw.get("kind", PPO))) != PPO:
        raise UsageError(f"{folder.name} is of kind '{kind}': only PPO runs can be branched")
    if folder.is_live():
        raise UsageError(
            f"{folder.name} is being trained by another process: branch it once it has ended, "
            f"or in a terminal with {PROGRAM} branch"
        )
    found = checkpoints(folder)
    if not found.paths:
        why = "; ".join(found.problems.values()) or "it has no checkpoint yet"
        raise UsageError(f"cannot branch {folder.name}: {why}; resume it, and save one")
    _settings()  # not first while a key waits
    past = read_journal(folder.events).events
    ran = {event.iteration: event for event in past if isinstance(event, Iteration)}
    best = best_checkpoint(folder)
    points = [_point(path, ran, is_best=path == best) for path in reversed(found.paths)]
    iterations = config_at(folder, past, points[0].iteration).ppo.iterations
    return Parent(folder, past, iterations, points)


def _point(checkpoint: Path, ran: Mapping[int, Iteration], *, is_best: bool) -> BranchPoint:
    number = iteration_of(checkpoint)
    near = range(number - RECENT + 1, number + 1) if number in ran else ()
    last = [ran[before] for before in near if before in ran]
    score, kl = last_mean([event.score_mean for event in last]), last_mean([event.kl for event in last])
    return BranchPoint(number, score, kl, is_best)


def outlook(parent: Parent, wanted: Wanted) -> Outlook:
    """Return what a request for one branch would do. Nothing is written. Raises as `plan_branches`."""
    plan = plan_branches(parent.folder, wanted)
    [branch] = plan.branches
    first, last = wanted.at + 1, branch.config.ppo.iterations
    which = f"iterations {first} to {last}" if last > first else f"iteration {first}"
    what = f"{branch.name} trains {which} with the run's seed, {branch.config.run.seed}."
    if not branch.is_new:
        before = summary_of(RunFolder(parent.folder.root.with_name(branch.name)))
        does = "shows" if before.state in ("done", "training") else "continues"
        what = f"{branch.name} is this branch already ({state_text(before)}): enter {does} it."
    return Outlook(what, _changes(plan), plan_warnings(plan))


def _changes(plan: Plan) -> str:
    changes = [change_words(key, old, new) for key, (old, new) in plan.changes.items()]
    return ", ".join(changes) or "No setting is changed: it does the same as the run from there on."


def assignments(text: str) -> list[str]:
    """Split typed settings at spaces outside of quotes and brackets. Spaces around the = do not count."""
    found: list[str] = []
    for word in _words(text):
        if found and (word.startswith("=") or found[-1].endswith("=")):
            found[-1] += word
        else:
            found.append(word)
    return found


def _words(text: str) -> Iterator[str]:
    word, quote, depth = "", "", 0
    for character in text:
        if quote:
            escapes = len(word) - len(word.rstrip("\\")) if quote == '"' else 0
            if character == quote and escapes % 2 == 0:
                quote = ""
        elif character in "'\"" and word[-1:] in ("", "=", "[", "{", ",", " "):
            quote = character
        elif character in "[{":
            depth += 1
        elif character in "]}":
            depth -= 1
        elif character.isspace() and depth <= 0:
            if word:
                yield word
            word, depth = "", 0
            continue
        word += character
    if word:
        yield word


def word_at_end(text: str) -> str:
    """Return the setting that is being typed at the end of `text`; empty if the last one is complete."""
    found = assignments(text)
    return found[-1] if found and text.endswith(found[-1]) else ""


def completions(word: str) -> list[str]:
    """Return the keys that `word` may become: those that begin with it, then those whose name does, or has it."""
    if not word or "=" in word:
        return []
    keys = _settings()
    ranks = (
        [key for key in keys if key.startswith(word)],
        [key for key in keys if key.partition(".")[2].startswith(word)],
        [key for key in keys if word in key],
    )
    return list(dict.fromkeys(key for rank in ranks for key in rank))


def about(parent: Parent, at: int, key: str) -> str:
    """Return the value of a setting after iteration `at`, what it is for and what it may be; empty if it is unknown."""
    if (row := _settings().get(key)) is None:
        return ""
    facts = [f"{key} was {value_at(parent, at, key)} after iteration {at}", row.rule, row.unit]
    return f"{' · '.join(filter(None, facts))}\n{row.help}"


def value_at(parent: Parent, at: int, key: str) -> str:
    """Return the value of a setting after iteration `at`, as it is typed; empty if the key is unknown."""
    table, _, name = key.partition(".")
    values = config_at(parent.folder, parent.past, at).model_dump().get(table, {})
    return _typed(values[name]) if key in _settings() and name in values else ""


def _typed(value: Any) -> str:
    is_word = isinstance(value, str) and value and not any(map(str.isspace, value))
    return value if is_word else value_text(value)


@functools.cache
def _settings() -> dict[str, ReferenceRow]:
    """Return the settings that a branch can change; the number of iterations has a field of its own."""
    rows = (row for row in reference_rows() if "[]" not in row.key and row.key != "ppo.iterations")
    return {row.key: row for row in rows if can_change(row.key)}


def branch_command(folder: RunFolder, wanted: Wanted) -> str:
    """Return the command for `wanted` with several seeds, and with controls if settings change."""
    by_name = folder.root.parent == Path(RunConfig().dir).absolute() and not folder.name.startswith("-")
    options = [option for assignment in wanted.overrides for option in ("--set", assignment)]
    if wanted.iterations is not None:
        options += ["--iterations", str(wanted.iterations)]
    if wanted.overrides:
        options.append("--control")
    run = folder.name if by_name else str(folder.root)
    return shlex.join([PROGRAM, "branch", run, "--at", str(wanted.at), *options, "--seeds", str(SEEDS)])


def left_text(parent: Parent, at: int) -> str:
    """Return how many iterations the run has left after `at`."""
    left = parent.iterations - at
    return f"{left}: those that the run has left" if left > 0 else "the run has none left: enter a number"
