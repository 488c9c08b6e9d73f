"""The README and the commands of an export: what went over, what did not, and how to go on."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from importlib import resources
from typing import Any, NamedTuple

from trainer.exchange.prompts import HELD_OUT, TRAIN
from trainer.exchange.settings import TRL_CONFIGS, RunFacts, Translation, one_reward_model, translated, value_of

ENGINES = ("trl", "openrlhf", "verl")
POLICY = "policy"
PARTS = ("base", "reward-model", "value-model")
"""Models of an export that are not always there; the policy is."""

_EXPORT = "@EXPORT@"  # in scripts, the folder of the export
_VERSIONS = {"trl": "TRL 1.12.0", "openrlhf": "OpenRLHF 0.11.2", "verl": "verl 0.9.1"}
_MERGED = "policy-merged"  # OpenRLHF reads no adapter
_MACHINES: dict[str, dict[str, Any]] = {  # one GPU for everything; not ours to know
    "openrlhf": {
        "actor.num_gpus_per_node": 1,
        "ref.num_gpus_per_node": 1,
        "reward.num_gpus_per_node": 1,
        "critic.num_gpus_per_node": 1,
        "vllm.num_engines": 1,
        "train.colocate_all": True,
        "vllm.enable_sleep": True,
        "vllm.gpu_memory_utilization": 0.5,
    },
    "verl": {
        "trainer.n_gpus_per_node": 1,
        "trainer.nnodes": 1,
        "actor_rollout_ref.rollout.name": "vllm",
        "actor_rollout_ref.rollout.tensor_model_parallel_size": 1,
        "actor_rollout_ref.rollout.load_format": "safetensors",  # as verl's guide to LoRA asks
        "reward.reward_model.rollout.name": "vllm",
        "reward.reward_model.rollout.tensor_model_parallel_size": 1,
    },
}


class Engine(NamedTuple):
    """Export for one trainer: its settings, and files by their path in the export."""

    name: str
    translation: Translation | None  # None: it has no trainer for the run's estimator
    files: dict[str, str]


def engine(name: str, facts: RunFacts) -> Engine:
    """Return the export of a run's settings for the trainer `name`, one of ENGINES."""
    if name == "trl":
        config = TRL_CONFIGS.get(facts.config.ppo.estimator)
        if config is None:
            return Engine(name, None, {})
        translation = translated(facts, config.removesuffix("Config").lower())
        return Engine(name, translation, _trl_files(config, facts, translation))

    def inside(path: str) -> str:  # Ray's workers have a folder of their own
        return f"{_EXPORT}/{path}" if path in (*PARTS, POLICY) else path

    here = facts._replace(
        base=inside(facts.base),
        policy=inside(facts.policy),
        reward_model=inside(facts.reward_model),
        value_model=inside(facts.value_model),
    )
    settings = translated(here, name).values
    build = {"openrlhf": _openrlhf_script, "verl": _verl_script}[name]
    return Engine(name, translated(facts, name), {f"{name}/train.sh": build(here, settings)})


def _trl_files(config: str, facts: RunFacts, translation: Translation) -> dict[str, str]:
    about = {
        "trainer": config,
        "base": facts.base,
        "reward_model": facts.reward_model if one_reward_model(facts) else "",
        "reward_function": facts.reward_function,
        "value_model": facts.value_model,
        "dtype": "bfloat16" if translation.values["bf16"] else "float32",
        "settings": translation.values,
    }
    script = resources.files("trainer.exchange").joinpath("trl_train.txt").read_text(encoding="utf-8")
    version = _VERSIONS["trl"].partition(" ")[2]
    return {"trl/config.json": json.dumps(about, indent=2) + "\n", "trl/train.py": script.replace("{version}", version)}


def _openrlhf_script(facts: RunFacts, settings: dict[str, Any]) -> str:
    merged = f"{_EXPORT}/{_MERGED}"
    merge = ["python3", "-m", "openrlhf.cli.lora_combiner", "--model_path", facts.base]
    merge += ["--lora_path", facts.policy, "--output_path", merged]
    files = {"data.prompt_dataset": f"{_EXPORT}/{TRAIN}.jsonl", "ckpt.output_dir": f"{_EXPORT}/openrlhf/output"}
    files |= {"actor.model_name_or_path": merged, "ckpt.path": f"{_EXPORT}/openrlhf/checkpoints"}
    train = ["python3", "-m", "openrlhf.cli.train_ppo_ray", *_flags(settings | files)]
    return _script(merge, train, list(_flags(_MACHINES["openrlhf"])))


def _verl_script(facts: RunFacts, settings: dict[str, Any]) -> str:
    data = f"{_EXPORT}/verl"
    evaluated = HELD_OUT if facts.held_out else TRAIN  # verl always wants a file
    files = {"data.train_files": f"{data}/{TRAIN}.parquet", "data.val_files": f"{data}/{evaluated}.parquet"}
    whole = files | settings | {"trainer.default_local_dir": f"{data}/output"}
    train = ["python3", "-m", "verl.trainer.main_ppo", *_overrides(whole)]
    return _script(train, list(_overrides(_MACHINES["verl"])))


def _flags(settings: dict[str, Any]) -> Iterator[str]:
    """Yield command-line flags: a truth is a flag alone, a list has several values, None and False are left out."""
    for name, value in settings.items():
        if value is None or value is False:
            continue
        words = [] if value is True else value if isinstance(value, list) else [value]
        yield " ".join([f"--{name}", *(shlex.quote(str(word)) for word in words)])


def _overrides(settings: dict[str, Any]) -> Iterator[str]:
    """Yield hydra overrides."""
    for name, value in settings.items():
        yield shlex.quote(f"{name}={_hydra(value)}")


def _hydra(value: Any) -> str:
    """Return `value` in the grammar of hydra's overrides."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_hydra(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_hydra, value)) + "]"
    if isinstance(value, str) and not re.fullmatch(r"[\w./@-]+", value):
        return "'" + value.replace("'", "\\'") + "'"
    return "null" if value is None else str(value)


def _script(*commands: list[str]) -> str:
    """Return a shell script of `commands`; the last list continues the last command: the settings of the machine."""
    *before, train, machine = commands
    lines = ["#!/bin/sh", 'cd "$(dirname "$0")/.." || exit', "set -e"]
    lines += [shlex.join(command) for command in before]
    lines += [
        "# The last lines are for one GPU: change them to your machine.",
        " \\\n  ".join([" ".join(train[:3]), *train[3:], *machine]),
    ]
    return "\n".join(lines).replace(_EXPORT, '"$PWD"') + "\n"


def readme(source: str, facts: RunFacts, engines: list[Engine], contents: dict[str, str], warnings: list[str]) -> str:
    """Return README.md of an export. source: run and checkpoint; contents: what is in it, by path."""
    lines = [f"# Export of {source}", "", "| path | content |", "|---|---|"]
    lines += [f"| {path} | {what} |" for path, what in contents.items()]
    if warnings:
        lines += ["", *(f"- {warning}" for warning in warnings)]
    for one in engines:
        lines += ["", *_engine_lines(one, facts)]
    return "\n".join(lines) + "\n"


def _engine_lines(one: Engine, facts: RunFacts) -> Iterator[str]:
    name = _VERSIONS[one.name]
    yield f"## {name}"
    yield ""
    if one.translation is None:
        yield f"{name} has no trainer for ppo.estimator = '{facts.config.ppo.estimator}'. Data and models are here."
        return
    translation = one.translation
    yield f"`{'python trl/train.py' if one.name == 'trl' else f'sh {one.name}/train.sh'}`"
    yield from ("", "| setting | here | there | |", "|---|---|---|---|")
    ours: dict[str, list[str]] = {}
    for theirs, keys in translation.sources.items():
        for key in keys:
            ours.setdefault(key, []).append(f"`{theirs} = {_cell(translation.values[theirs])}`")
    for key, found in ours.items():
        here, note = _cell(value_of(facts.config, key)), translation.notes.get(key, "")
        yield f"| {key} | {here} | {', '.join(found)} | {note} |"
    for in_use, title in (
        (True, "Lost: settings that change this run and have no counterpart"),
        (False, "Without a counterpart, but off in this run"),
    ):
        rows = [one for one in translation.missing if one.in_use == in_use]
        if rows:
            yield from ("", title, "", "| setting | here | why |", "|---|---|---|")
            yield from (f"| {row.key} | {_cell(row.value)} | {row.why} |" for row in rows)
    yield from ("", "Elsewhere, or about this program alone", "", "| setting | where |", "|---|---|")
    yield from (f"| {key} | {where} |" for key, where in translation.elsewhere.items())


def _cell(value: Any) -> str:
    text = json.dumps(value, default=lambda one: one.model_dump(), ensure_ascii=False)
    return text.replace("|", "\\|").replace("\n", " ")
