"""All problems of a configuration at once, each with its key, value, rule and way out."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError

from trainer.config.fields import CONFIG_FORMAT, PATTERNS, FileSection, Section
from trainer.config.reward_sources import SOURCES
from trainer.config.schema import Config
from trainer.errors import ConfigError
from trainer.plurals import counted

_SMALL_BATCH = 16  # sequences; statistics of a smaller batch are noise: PPO concepts reference, "Whitening"
_SMALLEST_BATCH = 8  # sequences, for advantages: each token has its own
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
    "model_type": "must be a table",
    "literal_error": "must be one of {expected}",
    "string_too_short": "must not be empty",
    "too_short": "must not be empty",
}
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
    found = list(_version_problems(raw))
    broken: set[str] = set()
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
                    replaced = replacement(problem["loc"], problem["input"])
                    broken.add(replaced[0] if replaced else _guess(key, problem["loc"], schema))
            _remove(pruned, problem["loc"])
        if more := problems[_MOST:]:
            found.append(SettingProblem(_key(more[0]["loc"]), f"and {len(more)} more: fix these first"))
        # Rules between fields are checked with defaults in place of broken fields, which are not reported twice.
        config = schema.model_validate(pruned)
    # Only PPO has rules between settings.
    conflicts = [*_sizes(config), *_algorithm(config), *_bounds(config)] if isinstance(config, Config) else []
    return found + [
        SettingProblem(keys[0], message)
        for keys, message in conflicts
        if not any({key, key.partition(".")[0]} & broken for key in keys)
    ]


def _version_problems(raw: dict[str, Any]) -> Iterator[SettingProblem]:
    """Yield the problem of a file that is of another version than this program writes."""
    key, present = CONFIG_FORMAT.key, CONFIG_FORMAT.version
    version = raw.get(key, present)
    if type(version) is not int or version < 1:
        yield SettingProblem(key, f"{key} = {shown(version)}: must be a whole number from 1 to {present}")
    elif version > present:
        yield SettingProblem(key, f"{key} = {version}: a newer version wrote this file: update ppo-workbench")
    elif version < present:
        way_out = "'ppo-workbench config show --config FILE' prints it in the current version"
        yield SettingProblem(key, f"{key} = {version}: an older version wrote this file: {way_out}")


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
        if replaced := replacement(loc, problem["input"]):
            way_out = f"its replacement is {replaced[0]} = {shown(replaced[1])}"
        elif guess := _guess(key, loc, schema):
            way_out = f"did you mean '{guess}'?"
        else:
            way_out = "'ppo-workbench config schema' lists all keys"
        return f"unknown key {shown(key)}: {way_out}"
    if kind == "missing":  # only kinds of reward source have fields without a default
        return f"{key} is missing: a source of kind '{loc[-2]}' needs it"
    if len(loc) == 3:  # an element of a list, in the user's own spelling
        return f"{key} = {shown(raw[loc[0]][loc[1]][loc[2]])}: {_rule(kind, context, problem['msg'])}"
    return f"{key} = {shown(problem['input'])}: {_rule(kind, context, problem['msg'])}"


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


def replacement(loc: tuple[int | str, ...], value: Any) -> tuple[str, Any] | None:
    """Return key and value of what replaces a setting of an earlier version; None if none had it."""
    if len(loc) != 2:
        return None
    table, name = map(str, loc)
    now = CONFIG_FORMAT.current({table: {name: value}}, "")[table]
    return next(((f"{table}.{other}", now[other]) for other in now.keys() - {name}), None)


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


# Rules between settings


class Conflict(NamedTuple):
    """A broken rule between fields."""

    keys: tuple[str, ...]
    """The one to change comes first."""
    message: str


def config_warnings(config: FileSection) -> list[str]:
    """Return a warning for each setting of its file that is read with another value, and each risky combination.

    A risky combination is allowed but likely to disappoint.
    """
    if not isinstance(config, Config):
        return list(config.replaced)
    return [
        *config.replaced,
        *_sampling_warnings(config),
        *_estimator_warnings(config),
        *_course_warnings(config),
    ]


def _sizes(config: Config) -> Iterator[Conflict]:
    rollout, ppo, optim = config.rollout, config.ppo, config.optim
    for key, value in (
        ("rollout.samples_per_prompt", rollout.samples_per_prompt),
        ("ppo.minibatches", ppo.minibatches),
    ):
        if rollout.batch_size % value:
            divisors = [str(n) for n in range(1, rollout.batch_size + 1) if rollout.batch_size % n == 0]
            yield Conflict(
                (key, "rollout.batch_size"),
                f"{key} = {value} does not divide rollout.batch_size = {rollout.batch_size}; use "
                + " or ".join(filter(None, (", ".join(divisors[:-1]), divisors[-1]))),
            )
    longest = config.data.max_prompt_tokens + rollout.max_new_tokens
    if rollout.batch_size * longest > optim.buffer_tokens:
        smaller = (
            f"lower rollout.batch_size to at most {optim.buffer_tokens // longest}"
            if optim.buffer_tokens >= longest
            else "shorten data.max_prompt_tokens and rollout.max_new_tokens"
        )
        yield Conflict(
            ("optim.buffer_tokens", "rollout.batch_size", "rollout.max_new_tokens", "data.max_prompt_tokens"),
            f"optim.buffer_tokens = {optim.buffer_tokens} does not hold rollout.batch_size = "
            f"{rollout.batch_size} sequences of up to {longest} tokens: raise it to "
            f"{rollout.batch_size * longest} or {smaller}",
        )


def _algorithm(config: Config) -> Iterator[Conflict]:
    rollout, ppo = config.rollout, config.ppo
    if ppo.estimator in ("rloo", "grpo") and rollout.samples_per_prompt < 2:
        yield Conflict(
            ("rollout.samples_per_prompt", "ppo.estimator"),
            f"rollout.samples_per_prompt = {rollout.samples_per_prompt} leaves ppo.estimator = '{ppo.estimator}' "
            "nothing to compare a response with; use at least 2 (4 to 8 are usual), or 'reinforce' or 'remax'",
        )
    if ppo.estimator == "reinforce" and rollout.batch_size < 2:
        yield Conflict(
            ("rollout.batch_size", "ppo.estimator"),
            f"rollout.batch_size = {rollout.batch_size} leaves ppo.estimator = 'reinforce' no other sequence for its "
            "baseline; use at least 2",
        )
    if ppo.estimator == "remax" and config.reward.normalize == "batch":
        yield Conflict(
            ("reward.normalize", "ppo.estimator"),
            "reward.normalize = 'batch' scales the greedy responses of ppo.estimator = 'remax' by themselves, and they "
            "cannot serve as a baseline; use 'off' or 'running'",
        )
    if ppo.estimator == "remax" and ppo.whiten_rewards:
        yield Conflict(
            ("ppo.whiten_rewards", "ppo.estimator"),
            "ppo.whiten_rewards = true changes the scale of the rewards but not of the greedy responses' scores, which "
            "ppo.estimator = 'remax' subtracts; leave it off and use reward.normalize = 'running'",
        )
    if ppo.kl_in == "loss" and ppo.kl_estimator not in ("k2", "k3", "full"):
        yield Conflict(
            ("ppo.kl_estimator", "ppo.kl_in"),
            f"ppo.kl_estimator = '{ppo.kl_estimator}' has no gradient that lowers the KL when ppo.kl_in = 'loss'; use "
            "'full', 'k3' or 'k2'",
        )
    if ppo.kl_in == "reward" and ppo.kl_estimator == "full":
        yield Conflict(
            ("ppo.kl_estimator", "ppo.kl_in"),
            "ppo.kl_estimator = 'full' does not depend on the token that was drawn, so as a reward it teaches nothing "
            "about it; use ppo.kl_in = 'loss', or 'k1'",
        )
    if ppo.prefix_scores and config.reward.normalize == "batch":
        yield Conflict(
            ("reward.normalize", "ppo.prefix_scores"),
            "reward.normalize = 'batch' scales scores by their own batch, and those of ppo.prefix_scores belong to "
            "none; use 'off' or 'running'",
        )
    if ppo.prefix_scores and ppo.whiten_rewards:
        yield Conflict(
            ("ppo.whiten_rewards", "ppo.prefix_scores"),
            "ppo.whiten_rewards = true changes the scale of the rewards but not of ppo.prefix_scores; leave it off and "
            "use reward.normalize = 'running'",
        )
    if ppo.kl_controller == "adaptive" and ppo.kl_coef == 0:
        yield Conflict(
            ("ppo.kl_coef", "ppo.kl_controller"),
            "ppo.kl_coef = 0 disables ppo.kl_controller = 'adaptive', which only multiplies it; use 0.05, for example",
        )
    if config.model.value_init and config.model.value_model != "adapter":
        yield Conflict(
            ("model.value_model", "model.value_init"),
            f"model.value_model = '{config.model.value_model}' has no adapter to initialise from model.value_init: "
            "use 'adapter'",
        )


def _bounds(config: Config) -> Iterator[Conflict]:
    """Check settings that 0 switches off and that small positive numbers would break."""
    ppo, reward, rollout = config.ppo, config.reward, config.rollout
    for name, value, why in (
        ("dual_clip", ppo.dual_clip, "would bound losses that clipping leaves alone"),
        ("ratio_threshold", ppo.ratio_threshold, "would skip every minibatch: ratios start at 1"),
        ("importance_cap", ppo.importance_cap, "would cut weights, which start at 1"),
    ):
        if value and not (value > 1 or (name == "importance_cap" and value == 1)):
            yield Conflict(
                (f"ppo.{name}",), f"ppo.{name} = {value:g} {why}; use a number above 1, or 0 to switch it off"
            )
    if reward.overlong_tokens >= rollout.max_new_tokens:
        yield Conflict(
            ("reward.overlong_tokens", "rollout.max_new_tokens"),
            f"reward.overlong_tokens = {reward.overlong_tokens} leaves no length without a penalty; use less than "
            f"rollout.max_new_tokens = {rollout.max_new_tokens}",
        )


def _sampling_warnings(config: Config) -> Iterator[str]:
    rollout, ppo, optim = config.rollout, config.ppo, config.optim
    if ppo.kl_coef > 0 and (rollout.top_p < 1 or rollout.top_k > 0):
        yield (
            "rollout.top_p or rollout.top_k filters the sampled distribution, but the KL is computed over "
            "the whole distribution, so it is biased and may be negative"
        )
    for name, is_on, least in (
        ("whiten_rewards", ppo.whiten_rewards, _SMALL_BATCH),
        ("whiten_advantages", ppo.whiten_advantages, _SMALLEST_BATCH),
    ):
        if is_on and rollout.batch_size < least:
            yield (
                f"ppo.{name} with rollout.batch_size = {rollout.batch_size}: statistics of fewer than {least} "
                "sequences are noise"
            )
    longest = config.data.max_prompt_tokens + rollout.max_new_tokens
    if optim.micro_batch_tokens < longest:
        yield (
            f"optim.micro_batch_tokens = {optim.micro_batch_tokens} is less than the longest sequence of "
            f"{longest} tokens: a micro-batch of one such sequence exceeds it"
        )


def _estimator_warnings(config: Config) -> Iterator[str]:
    ppo, model = config.ppo, config.model
    if ppo.estimator == "grpo" and ppo.whiten_advantages:
        yield (
            "ppo.whiten_advantages scales the advantages of ppo.estimator = 'grpo' once more, over the whole batch: "
            "set it to false for GRPO as published"
        )
    if ppo.estimator != "gae":
        unused = [
            name
            for name, is_set in (
                ("model.value_model", model.value_model != "head"),
                ("model.value_init", bool(model.value_init)),
                ("ppo.critic_warmup", ppo.critic_warmup > 0),
                ("ppo.bootstrap_truncated", ppo.bootstrap_truncated),
            )
            if is_set
        ]
        if unused:
            yield f"{' and '.join(unused)} have no effect: ppo.estimator = '{ppo.estimator}' has no critic"
    elif ppo.critic_warmup >= ppo.iterations:
        yield (
            f"ppo.critic_warmup = {ppo.critic_warmup} takes all ppo.iterations = {ppo.iterations}: the policy does not "
            "learn"
        )


def _course_warnings(config: Config) -> Iterator[str]:
    convergence, checkpoint = config.convergence, config.checkpoint
    rolls_back = "rollback" in (
        convergence.on_target,
        convergence.on_plateau,
        convergence.on_collapse,
        convergence.on_degradation,
        convergence.on_kl,
    )
    if config.eval.every and config.reward.normalize == "batch" and not config.eval.reference:
        yield (
            "reward.normalize = 'batch' gives every evaluation without the reference a mean score of 0: "
            "set eval.reference to true"
        )
    keeps_best = checkpoint.best != "off" and config.eval.every > 0
    if rolls_back and not keeps_best:
        kept = f"only {counted(checkpoint.keep, 'checkpoint')}" if checkpoint.keep else "no best checkpoint"
        yield f"[convergence] may roll back, but the run keeps {kept}: set eval.every, and checkpoint.best to 'score'"
