"""All problems of a configuration at once, each with its key, value, rule and way out; and warnings."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError

from trainer.config.fields import CONFIG_FORMAT, PATTERNS, FileSection, Section
from trainer.config.reward_sources import SOURCES, JudgeSource
from trainer.config.schema import Config
from trainer.errors import ConfigError, StorageError, counted

_RULES = {  # pydantic's error types, in our words
    "greater_than_equal": "must be at least {ge}",
    "greater_than": "must be greater than {gt}",
    "less_than_equal": "must be at most {le}",
    "less_than": "must be less than {lt}",
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "string_type": "must be a string",
    "list_type": "must be a list",
    "dict_type": "must be a table",
    "model_type": "must be a table",
    "literal_error": "must be one of {expected}",
    "string_too_short": "must not be empty",
    "too_short": "must not be empty",
}
_SMALL_BATCH = 16  # sequences; statistics of a smaller batch are noise: PPO concepts reference, "Whitening"
_SMALLEST_BATCH = 8  # sequences, for advantages: each token has its own
_WIDE_CLIP = 0.05  # of a sequence's ratio; 150 times that of GSPO
Schema = TypeVar("Schema", bound=FileSection)
_MOST = 50  # problems reported; guessing what an unknown key was meant to be takes half a millisecond
_SOURCE_RULE = f"must be 'file.py:function', 'lexicon' or a table whose kind is one of {', '.join(SOURCES)}"


class SettingProblem(NamedTuple):
    """One problem of a configuration."""

    key: str
    """`ppo.kl_coef` or `reward.sources[0].pattern`; for a rule between settings, the one to change."""
    message: str
    """The whole line: key, value, rule and a way out."""


def validate(raw: dict[str, Any]) -> Config:
    """Return the configuration of a PPO run that `raw` describes, as `validate_as` does."""
    return validate_as(Config, raw)


def validate_as(schema: type[Schema], raw: dict[str, Any], source: str = "") -> Schema:
    """Return the configuration that `raw` (tables of plain values) describes; `source` names it in messages.

    Raises ConfigError with every problem.
    """
    if problems := located_problems(raw, schema):
        raise ConfigError([problem.message for problem in problems], source)
    return schema.model_validate(raw)


def located_problems(raw: dict[str, Any], schema: type[Section] = Config) -> list[SettingProblem]:
    """Return the problems of `raw` (tables of plain values), each with its key."""
    found, broken = list[SettingProblem](), set[str]()
    try:
        CONFIG_FORMAT.current(raw, "the file")
    except (StorageError, ValueError) as error:
        return [SettingProblem(CONFIG_FORMAT.key, str(error))]
    try:
        config = schema.model_validate(raw)
    except ValidationError as error:
        problems, pruned = error.errors(include_url=False), copy.deepcopy(raw)
        for place, problem in enumerate(problems):
            key = _key(problem["loc"])
            broken.add(key)
            if place < _MOST:
                found.append(SettingProblem(key, _message(problem, raw, schema)))
                if problem["type"] == "extra_forbidden":
                    # The value of the key that was meant is unknown too.
                    broken.add(_guess(key, problem["loc"], schema))
            _remove(pruned, problem["loc"])
        if more := problems[_MOST:]:
            found.append(SettingProblem(_key(more[0]["loc"]), f"and {len(more)} more: fix these first"))
        # Rules between fields are checked with defaults in place of broken fields, which are not reported twice.
        config = schema.model_validate(pruned)
    for keys, why in _conflicts(config) if isinstance(config, Config) else ():
        if not any({key, key.partition(".")[0]} & broken for key in keys):
            table, _, name = keys[0].partition(".")
            found.append(SettingProblem(keys[0], f"{keys[0]} = {shown(getattr(getattr(config, table), name))} {why}"))
    return found


def broken_rule(key: str, value: Any) -> str:
    """Return the rule that `value` breaks as the setting `key`, as in `must be at least 0`; "" if it breaks none.

    Rules between settings are not checked.
    """
    table, _, name = key.partition(".")
    try:
        Config.model_validate({table: {name: value}})
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        return _rule(problem["type"], problem.get("ctx", {}), problem["msg"])
    return ""


def setting_keys(model: type[BaseModel] = Config, prefix: str = "") -> Iterator[str]:
    """Yield all dotted keys, such as `ppo.kl_coef`, in the order of the schema."""
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from setting_keys(field.annotation, f"{prefix}{name}.")
        else:
            yield prefix + name


def _key(loc: tuple[int | str, ...]) -> str:
    """Return `reward.sources[0].pattern` for pydantic's path, leaving out the branch name that a union adds."""
    parts = [p for i, p in enumerate(loc) if not (p in SOURCES and i and isinstance(loc[i - 1], int))]
    return "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in parts).removeprefix(".")


def _message(problem: Any, raw: dict[str, Any], schema: type[Section]) -> str:
    loc, kind, context = problem["loc"], problem["type"], problem.get("ctx", {})
    key = _key(loc)
    if kind == "extra_forbidden":
        guess = _guess(key, loc, schema)
        way_out = f"did you mean '{guess}'?" if guess else "'ppo-workbench config schema' lists all keys"
        return f"unknown key {shown(key)}: {way_out}"
    if kind == "missing":  # only kinds of reward source have fields without a default
        return f"{key} is missing: a source of kind '{loc[-2]}' needs it"
    # An element of a list is in the user's own spelling.
    value = raw[loc[0]][loc[1]][loc[2]] if len(loc) == 3 else problem["input"]
    return f"{key} = {shown(value)}: {_rule(kind, context, problem['msg'])}"


def _rule(kind: str, context: dict[str, Any], otherwise: str) -> str:
    if kind in ("union_tag_invalid", "union_tag_not_found", "model_attributes_type"):
        return _SOURCE_RULE
    if kind == "string_pattern_mismatch":
        return PATTERNS[context["pattern"]]
    if kind not in _RULES:
        return otherwise.removeprefix("Value error, ")
    whole = {name: int(value) for name, value in context.items() if isinstance(value, float) and value.is_integer()}
    return _RULES[kind].format(**context | whole)


def shown(value: Any) -> str:
    """Return a value as messages show it: booleans as in TOML, at most 80 characters."""
    return short(str(value).lower() if isinstance(value, bool) else repr(value))


def short(text: str) -> str:
    """Cut `text` to 80 characters for a message."""
    return text if len(text) <= 80 else f"{text[:77]}..."


def _guess(key: str, loc: tuple[int | str, ...], schema: type[Section]) -> str:
    """Return the key probably meant by an unknown one: a similar name in its table, or in any; "" if there is none."""
    table, _, name = key.lower().rpartition(".")
    if len(loc) > 3:  # inside a reward source
        near = [f"{table}.{field}" for field in SOURCES[str(loc[3])].model_fields]
    else:
        near = [k for k in [*schema.model_fields, *setting_keys(schema)] if k.rpartition(".")[0] == table]
    for candidates, cutoff in ((near, 0.6), (list(setting_keys(schema)), 0.8)):
        names = [candidate.rpartition(".")[2] for candidate in candidates]
        if close := difflib.get_close_matches(name, names, n=1, cutoff=cutoff):
            return candidates[names.index(close[0])]
    return ""


def _remove(raw: dict[str, Any], loc: tuple[int | str, ...]) -> None:
    """Remove what is at pydantic's path from `raw`; one broken element of a list removes the whole list."""
    node: Any = raw
    for i, part in enumerate(loc):
        if not isinstance(node, dict) or part not in node:
            return
        if i == len(loc) - 1 or not isinstance(node[part], dict):
            del node[part]
            return
        node = node[part]


def _conflicts(config: Config) -> Iterator[tuple[Sequence[str], str]]:
    """Yield the broken rules between settings: their keys (the first is the one to change), and why, with a way out."""
    rollout, ppo, optim, reward = config.rollout, config.ppo, config.optim, config.reward
    size, new_tokens = rollout.batch_size, rollout.max_new_tokens
    *others, last = [str(n) for n in range(1, size + 1) if size % n == 0]
    choice = f"{', '.join(others)} or {last}" if others else last
    divided = f"does not divide rollout.batch_size = {size}; use {choice}"
    if size % rollout.samples_per_prompt:
        yield ("rollout.samples_per_prompt", "rollout.batch_size"), divided
    if size % ppo.minibatches:
        yield ("ppo.minibatches", "rollout.batch_size"), divided
    longest = config.data.max_prompt_tokens + new_tokens
    if size * longest > optim.buffer_tokens:
        sizes = ("optim.buffer_tokens", "rollout.batch_size", "rollout.max_new_tokens", "data.max_prompt_tokens")
        smaller = f"lower rollout.batch_size to at most {optim.buffer_tokens // longest}"
        if optim.buffer_tokens < longest:
            smaller = "shorten data.max_prompt_tokens and rollout.max_new_tokens"
        held = f"does not hold rollout.batch_size = {size} sequences of up to {longest} tokens"
        yield sizes, f"{held}: raise it to {size * longest} or {smaller}"
    if ppo.estimator in ("rloo", "grpo") and rollout.samples_per_prompt < 2:
        yield (
            ("rollout.samples_per_prompt", "ppo.estimator"),
            f"leaves ppo.estimator = '{ppo.estimator}' nothing to compare a response with; use at least 2 (4 to 8 are "
            "usual), or 'reinforce' or 'remax'",
        )
    compares = any(isinstance(one, JudgeSource) and one.mode == "pairwise" for one in reward.sources)
    if compares and rollout.samples_per_prompt < 2:
        yield (
            ("rollout.samples_per_prompt", "reward.sources"),
            "leaves a judge with mode = 'pairwise' nothing to compare a response with; use at least 2, or 'pointwise'",
        )
    for key, is_set in (("rollout.dynamic", rollout.dynamic > 0), ("data.curriculum", config.data.curriculum)):
        if is_set and ppo.estimator not in ("rloo", "grpo"):
            off = "0" if key == "rollout.dynamic" else "false"
            yield (
                (key, "ppo.estimator"),
                f"is for groups that teach nothing if they score alike, but ppo.estimator = '{ppo.estimator}' has no "
                f"groups; use {off}, or 'grpo' or 'rloo'",
            )
    if rollout.dynamic and reward.normalize == "batch":
        yield (
            ("reward.normalize", "rollout.dynamic"),
            "scales the responses to the prompts that rollout.dynamic adds by themselves; use 'off' or 'running'",
        )
    if ppo.estimator == "reinforce" and size < 2:
        yield (
            ("rollout.batch_size", "ppo.estimator"),
            "leaves ppo.estimator = 'reinforce' no other sequence for its baseline; use at least 2",
        )
    running = "use reward.normalize = 'running'"
    if ppo.estimator == "remax" and reward.normalize == "batch":
        yield (
            ("reward.normalize", "ppo.estimator"),
            "scales the greedy responses of ppo.estimator = 'remax' by themselves, and they cannot serve as a "
            "baseline; use 'off' or 'running'",
        )
    if ppo.estimator == "remax" and ppo.whiten_rewards:
        yield (
            ("ppo.whiten_rewards", "ppo.estimator"),
            "changes the scale of the rewards but not of the greedy responses' scores, which ppo.estimator = 'remax' "
            f"subtracts; leave it off and {running}",
        )
    if ppo.kl_in == "loss" and ppo.kl_estimator not in ("k2", "k3", "full"):
        yield (
            ("ppo.kl_estimator", "ppo.kl_in"),
            "has no gradient that lowers the KL when ppo.kl_in = 'loss'; use 'full', 'k3' or 'k2'",
        )
    if ppo.kl_in == "reward" and ppo.kl_estimator == "full":
        yield (
            ("ppo.kl_estimator", "ppo.kl_in"),
            "does not depend on the token that was drawn, so as a reward it teaches nothing about it; use ppo.kl_in = "
            "'loss', or 'k1'",
        )
    if config.prefix_stride and reward.normalize == "batch":
        yield (
            ("reward.normalize", "ppo.prefix_scores"),
            "scales scores by their own batch, and those of ppo.prefix_scores belong to none; use 'off' or 'running'",
        )
    if config.prefix_stride and ppo.whiten_rewards:
        yield (
            ("ppo.whiten_rewards", "ppo.prefix_scores"),
            f"changes the scale of the rewards but not of ppo.prefix_scores; leave it off and {running}",
        )
    if ppo.kl_controller == "adaptive" and ppo.kl_coef == 0:
        yield (
            ("ppo.kl_coef", "ppo.kl_controller"),
            "disables ppo.kl_controller = 'adaptive', which only multiplies it; use 0.05, for example",
        )
    if config.model.value_init and config.model.value_model != "adapter":
        keys = ("model.value_model", "model.value_init")
        yield keys, "has no adapter to initialise from model.value_init: use 'adapter'"
    above_one = "use a number above 1, or 0 to switch it off"
    if 0 < ppo.dual_clip <= 1:
        yield ("ppo.dual_clip",), f"would bound losses that clipping leaves alone; {above_one}"
    if ppo.policy_loss == "cispo" and ppo.ratio == "sequence":
        keys = ("ppo.ratio", "ppo.policy_loss")
        yield keys, "gives all tokens one weight, and ppo.policy_loss = 'cispo' is about that of each; use 'token'"
    if ppo.policy_loss == "cispo" and ppo.dual_clip:
        keys = ("ppo.dual_clip", "ppo.policy_loss")
        yield keys, "bounds a ratio that ppo.policy_loss = 'cispo' bounds already, by ppo.clip_high; use 0"
    if 0 < ppo.ratio_threshold <= 1:
        yield ("ppo.ratio_threshold",), f"would skip every minibatch: ratios start at 1; {above_one}"
    if 0 < ppo.importance_cap < 1:
        yield ("ppo.importance_cap",), f"would cut weights, which start at 1; {above_one}"
    if reward.overlong_tokens >= new_tokens:
        keys = ("reward.overlong_tokens", "rollout.max_new_tokens")
        yield keys, f"leaves no length without a penalty; use less than rollout.max_new_tokens = {new_tokens}"


def config_warnings(config: FileSection) -> list[str]:
    """Return a warning for each combination of settings that is allowed but likely to disappoint."""
    if not isinstance(config, Config):
        return []
    found = list[str]()
    rollout, ppo, optim, model, goals = config.rollout, config.ppo, config.optim, config.model, config.convergence
    size, has_critic, checkpoint = rollout.batch_size, ppo.estimator == "gae", config.checkpoint
    if ppo.kl_coef > 0 and (rollout.top_p < 1 or rollout.top_k > 0):
        found.append(
            "rollout.top_p or rollout.top_k filters the sampled distribution, but the KL is computed over the whole "
            "distribution, so it is biased and may be negative"
        )
    noise = f"with rollout.batch_size = {size}: statistics of fewer than"
    if ppo.whiten_rewards and size < _SMALL_BATCH:
        found.append(f"ppo.whiten_rewards {noise} {_SMALL_BATCH} sequences are noise")
    if ppo.whiten_advantages and size < _SMALLEST_BATCH:
        found.append(f"ppo.whiten_advantages {noise} {_SMALLEST_BATCH} sequences are noise")
    if config.eval.every and all(isinstance(s, JudgeSource) and s.mode == "pairwise" for s in config.reward.sources):
        found.append(
            "reward.sources has no score for held-out prompts, which have one response each: a judge with mode = "
            "'pairwise' needs several; set eval.every = 0, or add another source"
        )
    if optim.micro_batch_tokens < (longest := config.data.max_prompt_tokens + rollout.max_new_tokens):
        found.append(
            f"optim.micro_batch_tokens = {optim.micro_batch_tokens} is less than the longest sequence of {longest} "
            "tokens: a micro-batch of one such sequence exceeds it"
        )
    if ppo.estimator == "grpo" and ppo.whiten_advantages:
        found.append(
            "ppo.whiten_advantages scales the advantages of ppo.estimator = 'grpo' once more, over the whole batch: "
            "set it to false for GRPO as published"
        )
    if ppo.ratio == "sequence" and ppo.clip > _WIDE_CLIP:
        found.append(
            f"ppo.clip = {ppo.clip:g} hardly ever clips with ppo.ratio = 'sequence', whose means over a response stay "
            "near 1: GSPO uses ppo.clip = 3e-4 and ppo.clip_high = 4e-4"
        )
    unused = {
        "model.value_model": model.value_model != "fitted",
        "model.value_init": bool(model.value_init),
        "ppo.critic_warmup": ppo.critic_warmup > 0,
        "ppo.bootstrap_truncated": ppo.bootstrap_truncated,
    }
    if ignored := [name for name, is_set in unused.items() if is_set and not has_critic]:
        found.append(f"{' and '.join(ignored)} have no effect: ppo.estimator = '{ppo.estimator}' has no critic")
    of_steps = ("optim.value_lr", "ppo.value_coef", "ppo.relative_value_clip")
    changed = [key for key in of_steps if attrgetter(key)(config) != attrgetter(key)(Config())]
    if has_critic and model.value_model == "fitted" and changed:
        found.append(f"no steps train model.value_model = 'fitted', so nothing uses {' and '.join(changed)}")
    if has_critic and ppo.critic_warmup >= ppo.iterations:
        takes = f"ppo.critic_warmup = {ppo.critic_warmup} takes all ppo.iterations = {ppo.iterations}"
        found.append(f"{takes}: the policy does not learn")
    if config.eval.every and config.reward.normalize == "batch" and not config.eval.reference:
        found.append(
            "reward.normalize = 'batch' gives every evaluation without the reference a mean score of 0: set "
            "eval.reference to true"
        )
    actions = (goals.on_target, goals.on_plateau, goals.on_collapse, goals.on_degradation, goals.on_kl)
    if "rollback" in actions and (checkpoint.best == "off" or not config.eval.every):
        kept = f"only {counted(checkpoint.keep, 'checkpoint')}" if checkpoint.keep else "no best checkpoint"
        found.append(
            f"[convergence] may roll back, but the run keeps {kept}: set eval.every, and checkpoint.best to 'score'"
        )
    return found
