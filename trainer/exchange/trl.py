"""Files of an export for TRL: the run's settings translated by the table in trl.toml, the script to go on, the README.

No setting is dropped without a reason: `translated` refuses a table that lacks one. As a program, this module prints
the table of docs/other-engines.md.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Callable, Iterator
from importlib import resources
from typing import Any, Literal, NamedTuple

from trainer.config.problems import setting_keys
from trainer.config.reward_sources import AnySource, ModelSource
from trainer.config.schema import Config

VERSION = "1.12.0"
TRAINERS = {"gae": "PPO", "grpo": "GRPO", "rloo": "RLOO"}
"""TRL's trainers by ppo.estimator; there is none for the others."""
SETTINGS = tomllib.loads(resources.files("trainer.exchange").joinpath("trl.toml").read_text(encoding="utf-8"))
"""Content of trl.toml: cells by section, then by our key."""
_DEFAULTS = Config()

Kind = Literal["there", "lost", "off", "elsewhere"]


class RunFacts(NamedTuple):
    """The configuration of a run, and its exported models with paths relative to the export."""

    config: Config
    base: str = "base"  # folder or hub name of the model under the adapter, for transformers
    reward_model: str = ""  # empty: no reward model, or more than one
    reward_function: str = ""  # 'file.py:function', if that is the whole reward
    value_model: str = ""  # empty if no critic is exported


class Cell(NamedTuple):
    """Cell of the table: the names of a setting in TRL, or the reason why it has none. trl.toml explains the fields."""

    to: str = ""
    value: Any = None
    empty: Any = None
    by: str = ""
    choices: dict[str, Any] | None = None
    when: str = ""
    note: str = ""
    no: str = ""
    off: Any = ...
    elsewhere: str = ""


class Translated(NamedTuple):
    """Setting of a run, translated for TRL.

    kind: there, by the names of TRL; lost, because TRL has nothing for a value that changes this run; off, where the
    value changes nothing; or elsewhere. note: where it means something else there, or why it is not there.
    """

    key: str
    value: Any
    kind: Kind
    note: str
    there: dict[str, Any]


def translated(facts: RunFacts) -> list[Translated]:
    """Return what becomes of each setting in the trainer of the run's estimator, which must be one of TRAINERS."""
    trainer, found = TRAINERS[facts.config.ppo.estimator].lower(), []
    for key in setting_keys():
        ours, there = value_of(facts.config, key), dict[str, Any]()
        kind: Kind = "elsewhere"
        notes = []
        for cell in cells_of(key, trainer):
            name, choice = cell.when.removeprefix("not "), str(ours).lower() if isinstance(ours, bool) else ours
            if name and (bool(ours) if name == "set" else _CONDITIONS[name](facts)) == cell.when.startswith("not "):
                continue
            if cell.elsewhere:
                notes.append(cell.elsewhere)
            elif cell.no:
                off = value_of(_DEFAULTS, key) if cell.off == "default" else cell.off
                kind = "off" if ours == off else "lost"
                notes.append(cell.no)
            elif cell.choices is not None and choice not in cell.choices:
                kind = "lost"
                notes.append(f"{cell.to} has no such value (counterparts: {', '.join(cell.choices)})")
            else:
                kind = "there"
                there[cell.to] = ours
                if cell.choices:
                    there[cell.to] = cell.choices[choice]
                elif cell.by:
                    there[cell.to] = _CONVERSIONS[cell.by](facts, ours)
                elif cell.value is not None:
                    there[cell.to] = cell.value
                elif cell.empty is not None and not ours:
                    there[cell.to] = None if cell.empty == "none" else cell.empty
                notes += [cell.note] if cell.note else []
        note = "; ".join(notes) if notes or there else "off in this run"
        found.append(Translated(key, ours, kind, note, there))
    return found


def cells_of(key: str, trainer: str) -> list[Cell]:
    """Return what the setting `key` becomes in a trainer, in lower case. Raises KeyError if the table lacks it."""
    for name in (key, f"{key.partition('.')[0]}.*"):
        for section in (trainer, "trl"):
            if name in SETTINGS[section]:
                cells = SETTINGS[section][name]
                cells = cells if isinstance(cells, list) else [cells]
                return [Cell(to=cell) if isinstance(cell, str) else Cell(**cell) for cell in cells]
        if name in SETTINGS["elsewhere"]:
            return [Cell(elsewhere=SETTINGS["elsewhere"][name])]
    raise KeyError(key)


def value_of(config: Config, key: str) -> Any:
    """Return the value of the setting `key`."""
    table, _, name = key.partition(".")
    return getattr(getattr(config, table), name)


def only_source(config: Config) -> AnySource | None:
    """Return the source that is the whole reward, if it is one of weight 1."""
    counted = [source for source in config.reward.sources if source.weight]
    return counted[0] if len(counted) == 1 and counted[0].weight == 1 else None


def _one_reward_model(facts: RunFacts) -> bool:
    return isinstance(only_source(facts.config), ModelSource) and bool(facts.reward_model)


def markdown() -> Iterator[str]:
    """Yield the table as Markdown: names of settings, - where there is no counterpart, nothing where none is needed."""
    yield "| setting | PPO | GRPO and RLOO |"
    yield "|---|---|---|"
    for key in setting_keys():
        texts = []
        for trainers in (("ppo",), ("grpo", "rloo")):
            cells = [cell for trainer in trainers for cell in cells_of(key, trainer)]
            names = dict.fromkeys(cell.to for cell in cells if cell.to)
            texts.append(", ".join(f"`{name}`" for name in names) or ("-" if any(cell.no for cell in cells) else ""))
        if any(texts):
            yield f"| {key} | {' | '.join(texts)} |"


def trl_files(facts: RunFacts, rows: list[Translated]) -> dict[str, str]:
    """Return the files for TRL by their path in the export: the settings, and the script that goes on with them."""
    settings = {name: value for row in rows for name, value in row.there.items()}
    about = {
        "trainer": f"{TRAINERS[facts.config.ppo.estimator]}Config",
        "base": facts.base,
        "reward_model": facts.reward_model if _one_reward_model(facts) else "",
        "reward_function": facts.reward_function,
        "value_model": facts.value_model,
        "dtype": "bfloat16" if settings["bf16"] else "float32",
        "settings": settings,
    }
    script = resources.files("trainer.exchange").joinpath("trl_train.txt").read_text(encoding="utf-8")
    return {"trl/config.json": json.dumps(about, indent=2) + "\n", "trl/train.py": script.replace("{version}", VERSION)}


def readme(source: str, contents: dict[str, str], warnings: list[str], rows: list[Translated] | None) -> Iterator[str]:
    """Yield the lines of an export's README.md. source: run and checkpoint; contents: what is in it, by path.

    rows: the settings in TRL; empty for a run that has none there, None where TRL has no trainer for its estimator.
    """
    yield from (f"# Export of {source}", "", "| path | content |", "|---|---|")
    yield from (f"| {path} | {what} |" for path, what in contents.items())
    if warnings:
        yield from ("", *(f"- {warning}" for warning in warnings))
    if rows is None:
        yield from ("", f"TRL {VERSION} has no trainer for this run's ppo.estimator. Data and models are here.")
    if not rows:
        return
    yield from ("", f"## TRL {VERSION}", "", "`python trl/train.py`")
    for kind, title, columns in (
        ("there", "", "| setting | here | there | |"),
        ("lost", "Lost: settings that change this run and have no counterpart", "| setting | here | why |"),
        ("off", "Without a counterpart, but off in this run", "| setting | here | why |"),
        ("elsewhere", "Elsewhere, or about this program alone", "| setting | here | where |"),
    ):
        if shown := [row for row in rows if row.kind == kind]:
            yield from ("", *([title, ""] if title else []), columns, "|---" * (columns.count("|") - 1) + "|")
            for row in shown:
                there = ", ".join(f"`{name} = {_text(value)}`" for name, value in row.there.items())
                cells = [row.key, _text(row.value), *([there] if kind == "there" else []), row.note]
                yield f"| {' | '.join(cells)} |"


def _text(value: Any) -> str:
    text = json.dumps(value, default=lambda one: one.model_dump(), ensure_ascii=False)
    return text.replace("|", "\\|").replace("\n", " ")


_CONDITIONS: dict[str, Callable[[RunFacts], bool]] = {
    "adaptive": lambda f: f.config.ppo.kl_controller == "adaptive",
    "cispo": lambda f: f.config.ppo.policy_loss == "cispo",
    "prefix scores": lambda f: f.config.prefix_stride > 0,
    "reward model": _one_reward_model,
    "known reward": lambda f: _one_reward_model(f) or bool(f.reward_function),
}
"""Conditions by name, besides "set": our value is not empty."""

_CONVERSIONS: dict[str, Callable[[RunFacts, Any], Any]] = {  # of our value
    "bound": lambda f, ours: 1 + (ours or f.config.ppo.clip),
    "episodes": lambda f, ours: ours * f.config.rollout.batch_size,
    "minibatch": lambda f, ours: ours // f.config.ppo.minibatches,
    "reward_model": lambda f, _: f.reward_model,
    "save_strategy": lambda _, ours: "steps" if ours else "no",
    "steps": lambda f, ours: ours * f.config.ppo.epochs * f.config.ppo.minibatches,
    "stop_token": lambda _, ours: None if ours else "eos",
    "symmetric": lambda _, ours: [-ours, ours],
    "warmup_iterations": lambda f, ours: math.ceil(ours / (f.config.ppo.epochs * f.config.ppo.minibatches)),
}

if __name__ == "__main__":
    print("\n".join(markdown()))  # noqa: T201
