"""Translation of a run's settings into those of another trainer, by a table with a row for every setting.

A row says what the setting becomes (`To`), why it becomes nothing (`No`), or where else it is (`Elsewhere`). Nothing is
dropped without a reason: `translated` refuses a table that lacks a setting.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from trainer.config.problems import setting_keys
from trainer.config.schema import Config


class Facts(NamedTuple):
    """Input of a translation: the configuration, and the exported files with paths relative to the export."""

    config: Config
    prompts: int = 1  # to train on
    held_out: int = 1  # prompts
    messages: bool = False  # prompts are chat messages
    base: str = "base"  # folder or hub name of the model under the adapter, for transformers
    policy: str = "policy"
    reward_model: str = ""  # empty: no reward model, or more than one
    reward_function: str = ""  # 'file.py:function', if that is the whole reward
    value_model: str = ""  # empty if no critic is exported


Value = Callable[[Facts], Any]
Row = Sequence["To | No | Elsewhere"]
Table = Mapping[str, Row]


class To(NamedTuple):
    """A setting of the other trainer.

    value: computes its value; choices: its value for each of ours, in place of `value`; neither: our value.
    when: whether it applies. note: where it means something slightly different.
    """

    name: str
    value: Value | None = None
    choices: Mapping[Any, Any] | None = None
    when: Callable[[Facts], bool] = lambda facts: True
    note: str = ""


class No(NamedTuple):
    """No counterpart. off: the value at which nothing is lost; without one, something always is. when: as in `To`."""

    why: str
    off: Any = ...
    when: Callable[[Facts], bool] = lambda facts: True


class Elsewhere(NamedTuple):
    """Nothing is lost: another part of the export has it, or it is about this program alone. when: as in `To`."""

    where: str
    when: Callable[[Facts], bool] = lambda facts: True


class Missing(NamedTuple):
    """A setting without a counterpart. in_use: whether its value changes this run."""

    key: str
    value: Any
    why: str
    in_use: bool


class Translation(NamedTuple):
    """Settings of another trainer, what each comes from, and what has no counterpart."""

    values: dict[str, Any]  # by the other trainer's name, in the order of our settings
    sources: dict[str, tuple[str, ...]]  # our keys by their name
    notes: dict[str, str]  # by our key
    missing: list[Missing]
    elsewhere: dict[str, str]  # why, by our key


_DEFAULTS = Config()
DEFAULT: Any = object()
"""As `No.off`: the setting's default."""
_SCREEN = "about this program's own screen, folders and alarms"
_MEMORY = "about this program's own memory; the results are the same"
_USED = "the exported prompts are those that the run used"
_REPORTS = "no other trainer reports this"
OWN: Table = MappingProxyType(
    {
        "convergence.*": [No("no other trainer watches a run and ends it or rolls it back", DEFAULT)],
        "health.*": [Elsewhere(_SCREEN)],
        "run.*": [Elsewhere(_SCREEN)],
        "model.memory_limit": [Elsewhere(_MEMORY)],
        "rollout.slots": [Elsewhere(_MEMORY)],
        "optim.buffer_tokens": [Elsewhere(_MEMORY)],
        "data.prompts": [Elsewhere(_USED)],
        "data.column": [Elsewhere("the exported files have the column prompt")],
        "data.split": [Elsewhere(_USED)],
        "data.limit": [Elsewhere(_USED)],
        "data.too_long": [Elsewhere(_USED)],
        "data.eval_fraction": [Elsewhere("the held-out prompts are in a file of their own")],
        "data.eval_seed": [Elsewhere("the held-out prompts are in a file of their own")],
        "data.system": [Elsewhere("it is in the exported prompts")],
        "data.skip_broken": [Elsewhere(_USED)],
        "checkpoint.best": [Elsewhere("about this program's own checkpoints")],
        "eval.reference": [No(_REPORTS, DEFAULT)],
        "eval.best_of": [No(_REPORTS, DEFAULT)],
        "ppo.ratio_threshold": [No("no other trainer skips minibatches by their mean ratio", 0.0)],
        "ppo.target_approx_kl": [No("no other trainer ends the epochs early", 0.0)],
        "ppo.prefix_scores": [No("no other trainer adds the score so far to its values", 0)],
        "ppo.bootstrap_truncated": [No("no other trainer values the state after a cut response", False)],
    }
)


def translated(facts: Facts, table: Table) -> Translation:
    """Return the settings of another trainer for a run. Raises KeyError for a setting that `table` lacks."""
    values: dict[str, Any] = {}
    sources: dict[str, tuple[str, ...]] = {}
    notes: dict[str, str] = {}
    missing: list[Missing] = []
    elsewhere: dict[str, str] = {}
    for key in setting_keys():
        ours = value_of(facts.config, key)
        rows = [one for one in row_of(key, table) if one.when(facts)]
        if not rows:
            elsewhere[key] = "off, as by the other trainer's default"
        for one in rows:
            if isinstance(one, Elsewhere):
                elsewhere[key] = one.where
            elif isinstance(one, No):
                off = value_of(_DEFAULTS, key) if one.off is DEFAULT else one.off
                missing.append(Missing(key, ours, one.why, in_use=ours != off))
            elif one.choices is not None and ours not in one.choices:
                known = ", ".join(map(str, one.choices))
                missing.append(Missing(key, ours, f"{one.name} has no such value (counterparts: {known})", in_use=True))
            else:
                found = one.choices[ours] if one.choices is not None else one.value(facts) if one.value else ours
                values[one.name] = found
                sources[one.name] = (*sources.get(one.name, ()), key)
                if one.note:
                    notes[key] = one.note
    return Translation(values, sources, notes, missing, elsewhere)


def row_of(key: str, table: Table) -> Row:
    """Return the row of the setting `key` in `table` or OWN. Raises KeyError."""
    for rows in (table, OWN):
        for name in (key, f"{key.partition('.')[0]}.*"):
            if name in rows:
                return rows[name]
    raise KeyError(key)


def value_of(config: Config, key: str) -> Any:
    """Return the value of the setting `key`."""
    table, _, name = key.partition(".")
    return getattr(getattr(config, table), name)
