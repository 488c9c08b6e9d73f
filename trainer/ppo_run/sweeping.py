"""Sweeps: PPO runs with every combination of some values of settings, each on the same seeds.

A sweep is planned as a whole before anything trains. Planning imports no tensor library.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from trainer.config import Config, load_config, parse_overrides, resolve_paths, with_later_seed
from trainer.config.fields import PATTERNS, RUN_NAME
from trainer.config.loading import value_of, with_overrides
from trainer.config.problems import short
from trainer.errors import ConfigError, UsageError
from trainer.files import parse_toml
from trainer.plurals import counted
from trainer.runs.folder import RunFolder, name_of

SUFFIX = ".sweep.json"
MOST = 1024  # runs of one sweep

_LONGEST_NAME = 200  # bytes of a run's name; a file system allows 255, and files beside the run take some
_LONGEST_VALUE = 40  # characters of a value in a name
_REFUSED = {
    "run.seed": "use --seeds K, which trains the seed of the configuration and those after it",
    "run.name": "each run is named after the sweep and its settings; use --name",
    "run.dir": "all runs of a sweep are in one folder; use --dir",
    "data.eval_seed": "all runs of a sweep hold out the same prompts; use --set",
}


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
    """A plan: all runs in the order in which they train, each combination with its first seed before the second."""

    name: str
    runs_dir: Path
    jobs: int  # runs that train at once, unless a later command says otherwise
    runs: Sequence[SweepRun]

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

    @property
    def seeds(self) -> list[int]:
        """Seeds of the runs, each once."""
        return list(dict.fromkeys(run.config.run.seed for run in self.runs))

    def folder(self, run: SweepRun) -> RunFolder:
        """Return the folder of a run, which need not exist."""
        return RunFolder(self.runs_dir / run.name)


class _Varied(NamedTuple):
    """A setting that varies: its values, and how each is spelled in messages and in names."""

    key: str
    values: list[Any]
    texts: list[str]
    in_names: list[str]


def plan_sweep(
    source: str, overrides: Sequence[str], vary: Sequence[str], *, seeds: int = 1, name: str = "", jobs: int = 1
) -> Sweep:
    """Plan a sweep of the preset or file `source` with `overrides`, assignments as of --set. Nothing is written.

    vary: assignments of several values, `key=a,b` or `key=[a, b]` in TOML. Raises UsageError for mistakes in them and
    for names that runs cannot have, ConfigError with every rule that a combination breaks, and RewardError.
    """
    varied = [_varied(text) for text in vary]
    _check(varied, overrides, seeds)
    labels = [dict(zip((one.key for one in varied), texts, strict=True)) for texts in _product(varied, "texts")]
    configs = [_pinned(resolve_paths(config, Path.cwd())) for config in _configs(source, overrides, varied, labels)]
    if configs[0].run.seed < 0:
        raise UsageError(
            "run.seed = -1 draws a seed, and a sweep has fixed ones: choose the first with --set run.seed=0"
        )
    name = name or configs[0].run.name or name_of(source)
    if not re.fullmatch(RUN_NAME, name):
        raise UsageError(f"--name {name!r}: {PATTERNS[RUN_NAME]}")
    combinations = _names(varied)
    settings = [_settings(config, (one.key for one in varied)) for config in configs]
    _check_distinct(labels, settings, combinations)
    runs = []
    for number in range(seeds):
        for combination, of_run, config in zip(combinations, settings, configs, strict=True):
            runs.append(named_run(name, Path(config.run.dir), combination, of_run, with_later_seed(config, number)))
    return Sweep(name, Path(configs[0].run.dir), jobs, runs)


def with_more_seeds(sweep: Sweep, seeds: int) -> Sweep:
    """Return a plan with the runs of `sweep`, and after them those of the seeds that come next, `seeds` in all.

    Raises UsageError if `sweep` has as many seeds already, or would have too many runs.
    """
    before = len(sweep.seeds)
    if seeds <= before:
        raise UsageError(f"--seeds {seeds}: sweep '{sweep.name}' has {counted(before, 'seed')} already; name more")
    _check_size(len(sweep.combinations) * seeds)
    firsts = [found[0] for found in sweep.combinations.values()]
    more = [
        named_run(sweep.name, sweep.runs_dir, one.combination, one.settings, with_later_seed(one.config, number))
        for number in range(before, seeds)
        for one in firsts
    ]
    return sweep._replace(runs=[*sweep.runs, *more])


def _varied(text: str) -> _Varied:
    """Read an assignment of several values. Raises UsageError."""
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
        texts = [str(value).lower() if isinstance(value, bool) else str(value) for value in values]
    else:
        texts = [piece.strip() for piece in rest.split(",")]
        values = [value_of(parts, piece) for piece in texts]
        if not all(texts):
            raise UsageError(f"{given}: has an empty value; an array in TOML can have one, as in {key}=['', 'a']")
    if len(values) < 2:
        raise UsageError(f"{given}: fewer than two values vary nothing; use --set, or add a value")
    for place, value in enumerate(values):
        for earlier, text_of_earlier in zip(values[:place], texts, strict=False):
            if value == earlier and isinstance(value, bool) == isinstance(earlier, bool):
                one, other = short(text_of_earlier), short(texts[place])
                what = f"{one} is given twice" if one == other else f"{one} and {other} are the same value"
                raise UsageError(f"--vary {key}: {what}; name each value once")
    return _Varied(key, values, texts, _in_names(values, texts))


def _in_names(values: Sequence[Any], texts: Sequence[str]) -> list[str]:
    """Return the texts of values as names of runs may have them: of paths the ends, if these are distinct."""
    short_ones = [_in_name(value, text, whole=False) for value, text in zip(values, texts, strict=True)]
    if len({name.casefold() for name in short_ones}) == len(values):
        return short_ones
    return [_in_name(value, text, whole=True) for value, text in zip(values, texts, strict=True)]


def _in_name(value: Any, text: str, *, whole: bool) -> str:
    """Return the text of a value. A number stays as it is spelled, without a +. whole: with the folders of paths."""
    if isinstance(value, bool | int | float):
        return re.sub(r"[^\w.\-]+", "-", text.replace("+", ""))
    words = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    if not whole:
        words = re.sub(r'[^"]*/(?=[^"])', "", words)  # JSON has its texts in quotes
    pieces = re.findall(r"[\w.\-]+", words)
    return "-".join(pieces)[-_LONGEST_VALUE:].lstrip("-.") or "empty"


def _check(varied: Sequence[_Varied], overrides: Sequence[str], seeds: int) -> None:
    """Raise UsageError for settings that are given twice, and for too many runs."""
    if not varied:
        raise UsageError("a sweep varies something: give --vary KEY=VALUE,VALUE, as in --vary ppo.kl_coef=0.02,0.05")
    keys = [one.key for one in varied]
    for place, key in enumerate(keys):
        if key in keys[:place]:
            raise UsageError(f"--vary {key} is given twice: name all its values in one, separated by commas")
    for assignment in overrides:
        if (key := assignment.partition("=")[0].strip()) in keys:
            raise UsageError(f"--set {key} and --vary {key}: give only one of them")
    _check_size(math.prod(len(one.values) for one in varied) * seeds)


def _check_size(runs: int) -> None:
    if runs > MOST:
        raise UsageError(f"this sweep has {counted(runs, 'run')}, and the most are {MOST:,}: vary less")


def _product(varied: Sequence[_Varied], field: str) -> Iterator[tuple[Any, ...]]:
    """Yield the combinations of `values`, `texts` or `in_names`; the last setting varies first."""
    return itertools.product(*(getattr(one, field) for one in varied))


def _configs(
    source: str, overrides: Sequence[str], varied: Sequence[_Varied], labels: Sequence[Mapping[str, str]]
) -> list[Config]:
    """Return the configuration of each combination. Raises UsageError, and ConfigError with every problem once."""
    tables = parse_overrides([*overrides])
    configs: list[Config] = []
    problems: dict[str, list[str]] = {}
    for values, label in zip(_product(varied, "values"), labels, strict=True):
        own = as_tables(dict(zip((one.key for one in varied), values, strict=True)))
        try:
            if configs:  # the source may be a pipe, which can be read once
                configs.append(with_overrides(configs[0], own))
            else:
                both = {name: {**tables.get(name, {}), **own.get(name, {})} for name in {**tables, **own}}
                configs.append(load_config(source, both))
        except ConfigError as error:
            for problem in error.problems:
                problems.setdefault(problem, []).append(_in_words(label))
    if problems:
        raise ConfigError([_problem(source, text, found, len(labels)) for text, found in problems.items()])
    return configs


def _problem(source: str, text: str, found: Sequence[str], combinations: int) -> str:
    """Return the line about a rule that the combinations `found` break; one that all break is not about them."""
    if len(found) == combinations:
        return f"{source}: {text}"
    more = f" (and in {counted(len(found) - 1, 'other combination')})" if len(found) > 1 else ""
    return f"combination {found[0]}: {text}{more}"


def _in_words(label: Mapping[str, str]) -> str:
    return ", ".join(f"{key} = {short(text)}" for key, text in label.items())


def _pinned(config: Config) -> Config:
    """Return `config` with the present checkpoints of its reward models, so that all runs have the same reward."""
    if config.model.value_init or any(source.kind == "model" for source in config.reward.sources):
        from trainer.rewards.model_reward import with_checkpoints  # here: it imports mlx

        return with_checkpoints(config)
    return config


def _names(varied: Sequence[_Varied]) -> list[str]:
    """Return each combination as it is in names."""
    keys = short_keys([one.key for one in varied])
    return [
        "_".join(f"{key}-{text}" for key, text in zip(keys, texts, strict=True))
        for texts in _product(varied, "in_names")
    ]


def _check_distinct(
    labels: Sequence[Mapping[str, str]], settings: Sequence[Mapping[str, Any]], combinations: Sequence[str]
) -> None:
    """Raise UsageError if two combinations are the same, or would get one name on a disk that ignores case."""
    seen: dict[str, int] = {}
    named: dict[str, int] = {}
    for place, (of_run, combination) in enumerate(zip(settings, combinations, strict=True)):
        if (other := seen.setdefault(json.dumps(of_run), place)) != place:
            both = f"{_in_words(labels[other])} and {_in_words(labels[place])}"
            raise UsageError(f"--vary: {both} are the same; name each value once")
        if (other := named.setdefault(combination.casefold(), place)) != place:
            both = f"{_in_words(labels[other])} and {_in_words(labels[place])}"
            raise UsageError(
                f"--vary: the runs of {both} would both be named '{combination}'; name one of the values otherwise, or "
                "train them as two sweeps"
            )


def _settings(config: Config, keys: Iterable[str]) -> dict[str, Any]:
    """Return the values of settings, with paths as they were resolved."""
    tables = config.model_dump()
    return {key: tables[table][name] for key in keys for table, _, name in [key.partition(".")]}


def short_keys(keys: Sequence[str]) -> list[str]:
    """Return dotted keys without their tables, except for those that would then be the same."""
    last = [key.rpartition(".")[2] for key in keys]
    return [key if last.count(name) > 1 else name for key, name in zip(keys, last, strict=True)]


def named_run(sweep: str, runs_dir: Path, combination: str, settings: Mapping[str, Any], config: Config) -> SweepRun:
    """Name a run and put it in its folder. Raises UsageError for a name that is too long."""
    name = f"{sweep}_{combination}_seed-{config.run.seed}"
    if len(os.fsencode(name)) > _LONGEST_NAME:
        way_out = "use a shorter --name, or vary less"
        raise UsageError(f"run name '{short(name)}' is longer than {_LONGEST_NAME} bytes: {way_out}")
    place = config.run.model_copy(update={"name": name, "dir": str(runs_dir)})
    return SweepRun(combination, settings, config.model_copy(update={"run": place}))


def as_tables(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by dotted key as tables."""
    tables: dict[str, Any] = {}
    for key, value in settings.items():
        table, _, name = key.partition(".")
        tables.setdefault(table, {})[name] = value
    return tables
