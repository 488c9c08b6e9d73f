"""Translation of a run's settings into those of other trainers, by the table in settings.toml.

Nothing is dropped without a reason: `translated` refuses a table that lacks a setting. As a program, this module prints
the table of docs/other-engines.md.
"""

from __future__ import annotations

import functools
import math
import tomllib
from collections.abc import Callable, Iterator
from importlib import resources
from typing import Any, NamedTuple

from trainer.config.problems import setting_keys
from trainer.config.reward_sources import AnySource, ModelSource
from trainer.config.schema import Config

TRL_CONFIGS = {"gae": "PPOConfig", "grpo": "GRPOConfig", "rloo": "RLOOConfig"}  # by ppo.estimator; others have none
TABLES = ("ppo", "grpo", "rloo", "openrlhf", "verl")  # the first three are TRL's
_SHARED = {"ppo": ("trl", "all"), "grpo": ("trl", "all"), "rloo": ("trl", "all")}
_DEFAULTS = Config()


class RunFacts(NamedTuple):
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


class Cell(NamedTuple):
    """Translation of a setting for another trainer, or why it has none; settings.toml explains the fields."""

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

    def applies(self, facts: RunFacts, key: str) -> bool:
        """Return whether the cell applies to a run, by its condition."""
        name = self.when.removeprefix("not ")
        holds = bool(value_of(facts.config, key)) if name == "set" else not name or _CONDITIONS[name](facts)
        return holds != self.when.startswith("not ")


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


def translated(facts: RunFacts, table: str) -> Translation:
    """Return the settings of another trainer for a run. table: one of TABLES."""
    found = Translation({}, {}, {}, [], {})
    for key in setting_keys():
        ours = value_of(facts.config, key)
        cells = [cell for cell in cells_of(key, table) if cell.applies(facts, key)]
        if not cells:
            found.elsewhere[key] = "off, as by the other trainer's default"
        for cell in cells:
            choice = str(ours).lower() if isinstance(ours, bool) else ours
            if cell.elsewhere:
                found.elsewhere[key] = cell.elsewhere
            elif cell.no:
                off = value_of(_DEFAULTS, key) if cell.off == "default" else cell.off
                found.missing.append(Missing(key, ours, cell.no, in_use=ours != off))
            elif cell.choices is not None and choice not in cell.choices:
                known = ", ".join(cell.choices)
                found.missing.append(Missing(key, ours, f"{cell.to} has no such value (counterparts: {known})", True))
            else:
                found.values[cell.to] = cell.choices[choice] if cell.choices else _converted(cell, facts, ours)
                found.sources[cell.to] = (*found.sources.get(cell.to, ()), key)
                if cell.note:
                    found.notes[key] = cell.note
    return found


def cells_of(key: str, table: str) -> list[Cell]:
    """Return what the setting `key` becomes, in one of TABLES. Raises KeyError if the table lacks it."""
    for name in (key, f"{key.partition('.')[0]}.*"):
        columns = settings_table().get(name, {})
        for column in (table, *_SHARED.get(table, ("all",))):
            if column in columns:
                cells = columns[column] if isinstance(columns[column], list) else [columns[column]]
                return [Cell(to=cell) if isinstance(cell, str) else Cell(**cell) for cell in cells]
    raise KeyError(key)


@functools.cache
def settings_table() -> dict[str, dict[str, Any]]:
    """Return the content of settings.toml: cells by our key, then by the trainer."""
    return tomllib.loads(resources.files("trainer.exchange").joinpath("settings.toml").read_text(encoding="utf-8"))


def value_of(config: Config, key: str) -> Any:
    """Return the value of the setting `key`."""
    table, _, name = key.partition(".")
    return getattr(getattr(config, table), name)


def only_source(config: Config) -> AnySource | None:
    """Return the source that is the whole reward, if it is one of weight 1."""
    counted = [source for source in config.reward.sources if source.weight]
    return counted[0] if len(counted) == 1 and counted[0].weight == 1 else None


def one_reward_model(facts: RunFacts) -> bool:
    """Return whether the reward is exactly the score of one reward model."""
    return isinstance(only_source(facts.config), ModelSource) and bool(facts.reward_model)


def markdown() -> Iterator[str]:
    """Yield the table as Markdown: names of settings, - where there is no counterpart, nothing where none is needed."""
    columns = {
        "PPO in TRL": ("ppo",),
        "GRPO and RLOO in TRL": ("grpo", "rloo"),
        "OpenRLHF": ("openrlhf",),
        "verl": ("verl",),
    }
    yield f"| setting | {' | '.join(columns)} |"
    yield "|---" * (len(columns) + 1) + "|"
    for key in setting_keys():
        texts = []
        for tables in columns.values():
            cells = [cell for table in tables for cell in cells_of(key, table)]
            names = dict.fromkeys(cell.to.replace("actor_rollout_ref", "a_r_r") for cell in cells if cell.to)
            texts.append(", ".join(f"`{name}`" for name in names) or ("-" if any(cell.no for cell in cells) else ""))
        if any(texts):
            yield f"| {key} | {' | '.join(texts)} |"


def _converted(cell: Cell, facts: RunFacts, ours: Any) -> Any:
    if cell.by:
        return _CONVERSIONS[cell.by](facts, ours)
    if cell.value is not None:
        return cell.value
    if cell.empty is not None and not ours:
        return None if cell.empty == "none" else cell.empty
    return ours


def _minibatch(facts: RunFacts) -> int:
    """Return the sequences of an optimiser step."""
    return facts.config.rollout.batch_size // facts.config.ppo.minibatches


def _steps(facts: RunFacts) -> int:
    """Return the optimiser steps of the run."""
    ppo = facts.config.ppo
    return ppo.iterations * ppo.epochs * ppo.minibatches


def _prompts(facts: RunFacts) -> int:
    """Return the prompts of an iteration."""
    return max(1, facts.config.rollout.batch_size // facts.config.rollout.samples_per_prompt)


def _longest(facts: RunFacts) -> int:
    """Return the most tokens of prompt and response together."""
    return facts.config.data.max_prompt_tokens + facts.config.rollout.max_new_tokens


def _openrlhf_estimator(facts: RunFacts) -> str:
    ppo = facts.config.ppo
    if ppo.estimator == "grpo":
        return "group_norm" if ppo.group_std else "dr_grpo"
    if ppo.estimator == "reinforce":
        return "reinforce" if ppo.whiten_advantages else "flash_reinforce"
    return ppo.estimator


_CONDITIONS: dict[str, Callable[[RunFacts], bool]] = {
    "critic": lambda f: f.config.ppo.estimator == "gae",
    "value model": lambda f: f.config.ppo.estimator == "gae" and bool(f.value_model),
    "adaptive": lambda f: f.config.ppo.kl_controller == "adaptive",
    "reward model": one_reward_model,
    "known reward": lambda f: one_reward_model(f) or bool(f.reward_function),
    "loss": lambda f: f.config.ppo.kl_in == "loss",
    "messages": lambda f: f.messages,
    "overlong": lambda f: f.config.reward.overlong_penalty > 0,
    "whitened": lambda f: f.config.ppo.estimator in ("gae", "reinforce"),
    "grpo": lambda f: f.config.ppo.estimator == "grpo",
    "remax": lambda f: f.config.ppo.estimator == "remax",
}
"""Conditions by name, besides "set": our value is not empty."""

_CONVERSIONS: dict[str, Callable[[RunFacts, Any], Any]] = {  # of our value
    "base": lambda f, _: f.base,
    "betas": lambda f, _: [f.config.optim.beta1, f.config.optim.beta2],
    "clip_high": lambda f, ours: ours or f.config.ppo.clip,
    "clip_range": lambda f, ours: [f.config.ppo.clip, ours],
    "critic_base": lambda f, _: f.value_model or f.base,
    "episodes": lambda f, ours: ours * f.config.rollout.batch_size,
    "eps": lambda _, ours: {"eps": ours},
    "estimator": lambda f, _: _openrlhf_estimator(f),
    "from_zero": lambda _, ours: [0.0, ours],
    "is_tested": lambda f, ours: bool(ours and f.held_out),
    "kl_target_per_token": lambda f, _: f.config.ppo.kl_target / f.config.rollout.max_new_tokens,
    "loggers": lambda _, ours: ["console", *ours],
    "longest": lambda f, _: _longest(f),
    "lora_alpha": lambda f, _: round(f.config.model.lora_rank * f.config.model.lora_scale),
    "lora_targets": lambda _, ours: sorted({target.rpartition(".")[2] for target in ours}),
    "messages": lambda f, _: f.messages,
    "minibatch": lambda f, _: _minibatch(f),
    "passes": lambda f, ours: math.ceil(ours * _prompts(f) / f.prompts),
    "policy": lambda f, _: f.policy,
    "prompts_per_iteration": lambda f, _: _prompts(f),
    "prompts_per_step": lambda f, _: max(1, _minibatch(f) // f.config.rollout.samples_per_prompt),
    "reward_model": lambda f, _: f.reward_model,
    "save_strategy": lambda _, ours: "steps" if ours else "no",
    "steps": lambda f, _: _steps(f),
    "stop_token": lambda _, ours: None if ours else "eos",
    "symmetric": lambda _, ours: [-(ours or 1e6), ours or 1e6],
    "test_every": lambda f, ours: ours if ours and f.held_out else -1,
    "tokens": lambda f, ours: max(ours, _longest(f)),
    "value_model": lambda f, _: f.value_model,
    "warmup_iterations": lambda f, ours: math.ceil(ours / (f.config.ppo.epochs * f.config.ppo.minibatches)),
    "warmup_ratio": lambda f, ours: ours / _steps(f),
}

if __name__ == "__main__":
    print("\n".join(markdown()))  # noqa: T201
