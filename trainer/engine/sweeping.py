"""Sweeps: PPO runs with every combination of some values of settings, each on the same seeds.

A sweep is planned as a whole before anything trains. Its plan is in `NAME.sweep.json` beside the runs, so that a later
command knows what is missing. Imports no tensor library.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from trainer.config import Config, load_config, parse_overrides, resolve_paths, validate, with_later_seed
from trainer.config.fields import CONFIG_FORMAT, PATTERNS, RUN_NAME, Section
from trainer.config.loading import differences, value_of, with_overrides
from trainer.config.problems import short, shown
from trainer.engine.live_settings import live_keys
from trainer.errors import ConfigError, StorageError, UsageError, counted, storage_error, writing
from trainer.files import FileFormat, lock, open_file, parse_toml, read_json, whole_file
from trainer.runs.checkpoint_files import damage_of
from trainer.runs.folder import RunFolder, check_name_is_free, name_of

SUFFIX = ".sweep.json"
MOST = 1024  # runs of one sweep

_FORMAT = FileFormat("sweep")
_LONGEST_NAME = 200  # bytes of a run's name; a file system allows 255, and files beside the run take some
_LONGEST_VALUE = 40  # characters of a value in a name
_REFUSED = {
    "run.seed": "use --seeds K, which trains the seed of the configuration and those after it",
    "run.name": "each run is named after the sweep and its settings; use --name",
    "run.dir": "all runs of a sweep are in one folder; use --dir",
    "data.eval_seed": "all runs of a sweep hold out the same prompts; use --set",
}
# Settings in which the configuration of a run may have come to differ from the plan, besides the live ones.
_FREE = ("ppo.iterations", "checkpoint.every", "eval.every", "run.trackers", "run.name", "run.dir")

Values = Mapping[str, Mapping[str, Any]]
"""Settings that vary: by dotted key, then by their text in the names of runs, the values."""


class SweepRun(NamedTuple):
    """One run of a sweep."""

    combination: str  # its settings as they are in its name
    settings: Mapping[str, Any]  # those that vary, by dotted key
    config: Config  # with name, folder and seed

    @property
    def name(self) -> str:
        """Name of the run, which tells its settings and its seed."""
        return self.config.run.name


class Sweep(NamedTuple):
    """A plan: the product of the values of some settings, times seeds."""

    name: str
    runs_dir: Path
    jobs: int  # runs that train at once, unless a later command says otherwise
    vary: Values
    seeds: int
    runs: Sequence[SweepRun]  # in the order in which they train, each combination with its first seed first

    @property
    def file(self) -> Path:
        """File of the plan, beside the runs."""
        return self.runs_dir / f"{self.name}{SUFFIX}"

    @property
    def combinations(self) -> dict[str, list[SweepRun]]:
        """Runs of each combination, by its text in their names."""
        found: dict[str, list[SweepRun]] = {}
        for run in self.runs:
            found.setdefault(run.combination, []).append(run)
        return found

    def folder(self, run: SweepRun) -> RunFolder:
        """Return the folder of a run, which need not exist."""
        return RunFolder(self.runs_dir / run.name)


def plan_sweep(
    source: str, overrides: Sequence[str], vary: Sequence[str], *, seeds: int = 1, name: str = "", jobs: int = 1
) -> Sweep:
    """Plan a sweep of the preset or file `source` with `overrides`, assignments as of --set. Nothing is written.

    vary: assignments of several values, `key=a,b` or `key=[a, b]` in TOML. Raises UsageError for mistakes in them and
    for names that runs cannot have, ConfigError with every rule that a combination breaks, and RewardError.
    """
    if not vary:
        raise UsageError("a sweep varies something: give --vary KEY=VALUE,VALUE, as in --vary ppo.kl_coef=0.02,0.05")
    values: dict[str, Mapping[str, Any]] = {}
    for text in vary:
        key, of_key = _varied(text)
        if key in values:
            raise UsageError(f"--vary {key} is given twice: name all its values in one, separated by commas")
        values[key] = of_key
    for assignment in overrides:
        if (key := assignment.partition("=")[0].strip()) in values:
            raise UsageError(f"--set {key} and --vary {key}: give only one of them")
    return _sweep(source, name, None, jobs, values, seeds, tables=parse_overrides([*overrides]))


def with_more_seeds(sweep: Sweep, seeds: int) -> Sweep:
    """Return a plan with the runs of `sweep`, and after them those of the seeds that come next, `seeds` in all.

    Raises UsageError if `sweep` has as many seeds already, or would have too many runs.
    """
    if seeds <= sweep.seeds:
        raise UsageError(f"--seeds {seeds}: sweep '{sweep.name}' has {counted(sweep.seeds, 'seed')} already; name more")
    return _sweep("", sweep.name, sweep.runs_dir, sweep.jobs, sweep.vary, seeds, sweep.runs[0].config)


def saved_sweep(name: str, runs_dir: Path) -> Sweep | None:
    """Read the plan of the sweep `name`; None if there is none.

    Raises UsageError for a name that none can have, ConfigError if this version has other rules than the one that
    planned it, StorageError if the file is damaged.
    """
    if not name or not re.fullmatch(RUN_NAME, name):
        raise UsageError(f"{name!r} is not the name of a sweep: it {PATTERNS[RUN_NAME]}")
    runs_dir = Path(os.path.realpath(runs_dir))
    path = runs_dir / f"{name}{SUFFIX}"
    try:
        raw = _FORMAT.current(read_json(path), f"'{path}'")
        saved = _SavedSweep.model_validate(raw)
        first = validate(CONFIG_FORMAT.current(saved.config, f"'{path}'"))
        return _sweep("", name, runs_dir, saved.jobs, saved.vary, saved.seeds, first)
    except FileNotFoundError:
        return None
    except ConfigError as error:
        raise ConfigError(error.problems, str(path)) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or damage_of(error)
        raise StorageError(
            f"cannot read the plan '{path}': {reason}; remove it, and the same command plans again"
        ) from None


def sweep_names(runs_dir: Path) -> list[str]:
    """Return the names of the sweeps whose plans are in `runs_dir`."""
    with contextlib.suppress(OSError):
        return sorted(path.name.removesuffix(SUFFIX) for path in runs_dir.glob(f"*{SUFFIX}"))
    return []


def check_same(wanted: Sweep, saved: Sweep) -> None:
    """Raise UsageError, with the first difference, unless both plans train the same. jobs may differ."""
    trained = []
    for sweep in (wanted, saved):  # its seeds, the values of each setting that varies, and the other settings
        first = sweep.runs[0].config
        tables = first.model_dump(exclude={"run": {"name", "dir", "seed"}})
        settings = {f"{table}.{name}": shown(value) for table, of in tables.items() for name, value in of.items()}
        values = {key: ", ".join(sorted(map(json.dumps, of.values()))) for key, of in sweep.vary.items()}
        seeds = {"--seeds": f"{counted(sweep.seeds, 'seed')} from {first.run.seed}"}
        trained.append(seeds | settings | values)
    ours, theirs = trained
    for key, old in theirs.items():
        if (new := ours[key]) != old:
            begins = wanted.runs[0].config.run.seed == saved.runs[0].config.run.seed
            more = key == "--seeds" and begins and wanted.seeds > saved.seeds
            way_out = f"add seeds with --resume {saved.name} --seeds {wanted.seeds}" if more else "use another --name"
            raise UsageError(
                f"sweep '{saved.name}' in '{saved.runs_dir}' is another one: {key} is {old}, not {new}; {way_out}, or "
                f"finish that one with --resume {saved.name}"
            )


def check_folders(sweep: Sweep) -> None:
    """Raise UsageError if the name of a run is in use by one that is not of this sweep. Raises StorageError."""
    for run in sweep.runs:
        folder = sweep.folder(run)
        if not folder.config.is_file():
            check_name_is_free(run.config)
            continue
        for key, (planned, found) in differences(run.config, load_config(folder.config)):
            if key not in (*live_keys(), *_FREE):
                raise UsageError(
                    f"run '{run.name}' in '{sweep.runs_dir}' is not of this sweep: {key} = {shown(found)}, not "
                    f"{shown(planned)}; use another --name, or rename that run"
                )


def save_sweep(sweep: Sweep) -> None:
    """Write the plan, whole or not at all. Raises StorageError."""
    config = sweep.runs[0].config
    tables = {"run": config.run.model_copy(update={"name": "", "dir": "runs"})}  # where the file is, and as it is named
    content = {
        _FORMAT.key: _FORMAT.version,
        "jobs": sweep.jobs,
        "seeds": sweep.seeds,
        "vary": sweep.vary,
        "config": {CONFIG_FORMAT.key: CONFIG_FORMAT.version, **config.model_copy(update=tables).model_dump()},
    }
    with writing(f"'{sweep.file}'", ", or choose another folder with --dir"):
        sweep.runs_dir.mkdir(parents=True, exist_ok=True)
        with whole_file(sweep.file, sync=True) as file:
            file.write(f"{json.dumps(content, indent=1)}\n".encode())


@contextlib.contextmanager
def held(sweep: Sweep) -> Iterator[None]:
    """Lock the saved plan within the block, so that no other process trains the sweep. The lock ends with the process.

    Raises UsageError if another process holds it, StorageError if the file cannot be locked.
    """
    with contextlib.ExitStack() as stack:
        with storage_error(f"cannot lock '{sweep.file}'", "choose a local folder with --dir"):
            file = open_file(sweep.file, os.O_RDWR)  # some file systems lock only what may be written
            stack.callback(os.close, file)
            try:
                lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UsageError(
                    f"sweep '{sweep.name}' is being trained by another process: stop it first, or wait"
                ) from None
        yield


def short_keys(keys: Sequence[str]) -> list[str]:
    """Return dotted keys without their tables, except for those that would then be the same."""
    last = [key.rpartition(".")[2] for key in keys]
    return [key if last.count(name) > 1 else name for key, name in zip(keys, last, strict=True)]


class _SavedSweep(Section):
    """The file of a plan. config: the tables of config.toml, of the first run."""

    sweep: int
    jobs: Annotated[int, Field(ge=1)]
    seeds: Annotated[int, Field(ge=1)]
    vary: Annotated[
        dict[str, Annotated[dict[Annotated[str, Field(pattern=r"^[\w.\-]+$")], Any], Field(min_length=1)]],
        Field(min_length=1),
    ]
    config: dict[str, Any]


def _sweep(
    source: str,
    name: str,
    runs_dir: Path | None,
    jobs: int,
    vary: Values,
    seeds: int,
    first: Config | None = None,
    tables: Mapping[str, Mapping[str, Any]] | None = None,
) -> Sweep:
    """Build the plan: the configuration of each combination, and then its runs.

    source, tables: preset or file, with settings, of the first combination that can be loaded, unless `first` is that
    of a saved plan; the others differ from it in what varies. Raises UsageError, and ConfigError with every problem
    once.
    """
    if (size := math.prod(map(len, vary.values())) * seeds) > MOST:
        raise UsageError(f"this sweep has {counted(size, 'run')}, and the most are {MOST:,}: vary less")
    keys, is_new, tables = [*vary], first is None, tables or {}
    resolved: dict[str, dict[str, Any]] = {key: {} for key in keys}
    combinations: list[tuple[str, dict[str, Any], Config]] = []
    problems: dict[str, list[str]] = {}
    count = 0
    for texts in itertools.product(*vary.values()):
        count += 1
        settings = {key: vary[key][text] for key, text in zip(keys, texts, strict=True)}
        own: dict[str, dict[str, Any]] = {}
        for key, value in settings.items():
            table, _, field = key.partition(".")
            own.setdefault(table, {})[field] = value
        try:
            if first is None:  # the source may be a pipe, which can be read once
                config = load_config(
                    source, {of: {**tables.get(of, {}), **own.get(of, {})} for of in {**tables, **own}}
                )
            else:
                config = with_overrides(first, own)
        except ConfigError as error:
            label = ", ".join(f"{key} = {short(_text(value))}" for key, value in settings.items())
            for problem in error.problems:
                problems.setdefault(problem, []).append(label)
            continue
        if config.run.seed < 0:
            raise UsageError(
                "run.seed = -1 draws a seed, and a sweep has fixed ones: choose the first with --set run.seed=0"
            )
        if is_new:  # with whole paths and the present checkpoints of its reward models, the same in all runs
            config = resolve_paths(config, Path.cwd())
            if config.model.value_init or any(source.kind == "model" for source in config.reward.sources):
                from trainer.rewards.model_reward import with_checkpoints  # here: it imports mlx

                config = with_checkpoints(config)
        first = first or config
        dump = config.model_dump()
        for key, text in zip(keys, texts, strict=True):
            table, _, field = key.partition(".")
            settings[key] = resolved[key][text] = dump[table][field]
        combination = "_".join(f"{key}-{text}" for key, text in zip(short_keys(keys), texts, strict=True))
        combinations.append((combination, settings, config))
    if problems:
        found = []
        for problem, labels in problems.items():
            more = f" (and in {counted(len(labels) - 1, 'other combination')})" if len(labels) > 1 else ""
            found.append(problem if len(labels) == count else f"combination {labels[0]}: {problem}{more}")
        raise ConfigError(found, source)
    base = combinations[0][2]
    name = name or base.run.name or name_of(source)
    if not re.fullmatch(RUN_NAME, name):
        raise UsageError(f"--name {name!r}: {PATTERNS[RUN_NAME]}")
    runs_dir = runs_dir or Path(base.run.dir)
    runs = []
    for number in range(seeds):
        for combination, settings, config in combinations:
            seeded = with_later_seed(config, number)
            own_name = f"{name}_{combination}_seed-{seeded.run.seed}"
            if len(os.fsencode(own_name)) > _LONGEST_NAME:
                way_out = "use a shorter --name, or vary less"
                raise UsageError(f"run name '{short(own_name)}' is longer than {_LONGEST_NAME} bytes: {way_out}")
            place = seeded.run.model_copy(update={"name": own_name, "dir": str(runs_dir)})
            runs.append(SweepRun(combination, settings, seeded.model_copy(update={"run": place})))
    return Sweep(name, runs_dir, jobs, resolved, seeds, runs)


def _varied(text: str) -> tuple[str, dict[str, Any]]:
    """Read an assignment of several values: its key, and the values by their texts in names. Raises UsageError."""
    given = f"--vary {short(text)}"
    key, equals, rest = (part.strip() for part in text.partition("="))
    parts = [part.strip() for part in key.split(".")]
    if not (equals and rest and len(parts) > 1 and all(parts)) or any("\ud800" <= one <= "\udfff" for one in text):
        raise UsageError(f"{given}: must be table.key=value,value, as in --vary ppo.kl_coef=0.02,0.05")
    key = ".".join(parts)
    if key in _REFUSED:
        raise UsageError(f"--vary {key} cannot vary: {_REFUSED[key]}")
    if rest.startswith("["):
        try:
            values = parse_toml(f"value = {rest}")["value"]
        except ValueError:
            raise UsageError(f"{given}: not an array in TOML, as in {key}=[['a', 'b'], ['c']]") from None
        texts = [_text(value) for value in values]
    else:
        texts = [piece.strip() for piece in rest.split(",")]
        values = [value_of(parts, piece) for piece in texts]
        if not all(texts):
            raise UsageError(f"{given}: has an empty value; an array in TOML can have one, as in {key}=['', 'a']")
    if len(values) < 2:
        raise UsageError(f"{given}: fewer than two values vary nothing; use --set, or add a value")
    for place, value in enumerate(values):
        if value in values[:place]:
            one = short(texts[values.index(value)])
            raise UsageError(f"--vary {key}: {one} and {short(texts[place])} are the same value; name each value once")
    for whole in (False, True):
        names = [_in_name(value, text, whole=whole) for value, text in zip(values, texts, strict=True)]
        folded = [name.casefold() for name in names]
        if len({*folded}) == len(values):
            return key, dict(zip(names, values, strict=True))
    same = next(name for name in folded if folded.count(name) > 1)
    raise UsageError(
        f"--vary {key}: two runs would both be named '{short_keys([key])[0]}-{same}'; name one of the values "
        "otherwise, or train them as two sweeps"
    )


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _in_name(value: Any, text: str, *, whole: bool) -> str:
    """Return the text of a value as names of runs may have it. A number stays as it is spelled, without a +.

    whole: with the folders of paths.
    """
    if isinstance(value, bool | int | float):
        return re.sub(r"[^\w.\-]+", "-", text.replace("+", ""))
    words = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    if not whole:
        words = re.sub(r'[^"]*/(?=[^"])', "", words)  # JSON has its texts in quotes
    pieces = re.findall(r"[\w.\-]+", words)
    return "-".join(pieces)[-_LONGEST_VALUE:].lstrip("-.") or "empty"
