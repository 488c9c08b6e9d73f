"""Configurations: what is accepted, what each refusal says, and the way to TOML and back."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from apart import ROOT
from config_files import config_problems, save_config

from trainer.config import Config, config_warnings, load_config, parse_overrides, preset_names, resolve_paths, validate
from trainer.config.fields import CONFIG_FORMAT
from trainer.config.reference import json_schema, reference_markdown, reference_rows
from trainer.config.reward_sources import LexiconSource, ModelSource, PythonSource, RegexSource
from trainer.errors import ConfigError, UsageError

PROPERTIES: dict[str, dict[str, Any]] = {
    f"{table}.{name}": schema
    for table, field in Config.model_fields.items()
    for name, schema in field.annotation.model_json_schema()["properties"].items()
}
NASTY = "Ünï \"double\" 'single' \\ \n\ttab\r\x01 # = [x] 中"
BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
ABOVE_ONE = ("ppo.dual_clip", "ppo.ratio_threshold", "ppo.importance_cap")  # or 0, which switches them off

GROUPS: dict[str, dict[str, Any]] = {"ppo": {"estimator": "grpo"}, "rollout": {"samples_per_prompt": 2}}
COMPANIONS: dict[str, dict[str, dict[str, Any]]] = {  # settings that an option requires
    "model.value_init": {"model": {"value_model": "adapter"}},
    "ppo.kl_in": {"ppo": {"kl_estimator": "k3"}},
    "rollout.dynamic": GROUPS,
    "data.curriculum": GROUPS,
}


def tables(key: str, value: Any) -> dict[str, Any]:
    """Return `ppo.clip` and 0.1 as `{"ppo": {"clip": 0.1}}`."""
    table, _, name = key.partition(".")
    found = {other: dict(settings) for other, settings in COMPANIONS.get(key, {}).items()}
    found.setdefault(table, {})[name] = value
    return found


def value_of(config: Config, key: str) -> Any:
    table, _, name = key.partition(".")
    return getattr(getattr(config, table), name)


def blames(key: str, value: Any) -> list[str]:
    """Return the problems of a one-setting configuration that are that setting's own, not its neighbours'."""
    own = re.compile(rf"{re.escape(key)}(\[0\])? = .*: must ", re.DOTALL)
    return [problem for problem in config_problems(tables(key, value)) if own.match(problem)]


def another_value(key: str) -> Any:
    """Return a valid value of the option that is not its default."""
    schema = PROPERTIES[key]
    default = schema["default"]
    if key == "reward.sources":
        return [
            {"kind": "python", "path": "a.py:f", "weight": -0.1},
            {"kind": "length", "target": 7, "tolerance": 3, "weight": 1e-7},
            {"kind": "regex", "pattern": r'^"\w+"\s', "count": True, "ignore_case": True, "weight": 2.0},
            {"kind": "lexicon", "weight": 3.0},
        ]
    if "enum" in schema:
        return next(choice for choice in schema["enum"] if choice != default)
    if "pattern" in schema:
        return "run-1.b_2"
    return {
        "boolean": lambda: not default,
        "integer": lambda: default + 1,
        "number": lambda: default / 2 + (1e-9 if default or key not in ABOVE_ONE else 1.5),
        "string": lambda: NASTY,
        "array": lambda: schema["items"].get("enum", [NASTY, "END"]),
        "object": lambda: {"enable_thinking": False, NASTY: [1, 0.5, NASTY, {"a": True}]},
    }[schema["type"]]()


# TOML and back


@pytest.mark.parametrize("key", PROPERTIES)
def test_every_option_survives_toml_and_back(key: str, tmp_path: Path) -> None:
    value = another_value(key)
    config = validate(tables(key, value))
    assert value_of(config, key) != value_of(Config(), key)

    save_config(config, tmp_path / "config.toml")

    assert load_config(tmp_path / "config.toml") == config
    written = tomllib.loads((tmp_path / "config.toml").read_text(encoding="utf-8"))
    table, _, name = key.partition(".")
    assert written[table][name] == value


def test_a_saved_configuration_spells_out_every_option_below_its_header(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    save_config(Config(), path, "ppo-workbench 0.1.0\n[not a table]")
    assert path.read_text(encoding="utf-8").splitlines()[:2] == ["# ppo-workbench 0.1.0", "# [not a table]"]
    written = tomllib.loads(path.read_text(encoding="utf-8"))
    assert written.pop("schema") == CONFIG_FORMAT.version
    assert {f"{table}.{name}" for table, values in written.items() for name in values} == set(PROPERTIES)
    load_config(path).rollout.stop.append("END")
    assert load_config(path) == Config(), "two configurations share no list"


# Types and ranges


PROBLEMS = [  # assignments, and parts of the one problem that they cause
    ("ppo.kl_coef=-1", "ppo.kl_coef = -1: must be at least 0"),
    ("ppo.clip=0", "ppo.clip = 0: must be greater than 0"),
    ("ppo.clip=inf", "ppo.clip = inf: must be a finite number"),
    ("optim.beta1=1", "optim.beta1 = 1: must be less than 1"),
    ("ppo.epochs=true", "ppo.epochs = true: must be a whole number"),
    ("data.shuffle=1", "data.shuffle = 1: must be true or false"),
    ("data.column=''", "data.column = '': must not be empty"),
    ("data.too_long=cut", "data.too_long = 'cut': must be one of 'drop', 'truncate' or 'error'"),
    ("rollout.stop=['END','']", "rollout.stop[1] = '': must not be empty"),
    ("run.name=a/b", "run.name = 'a/b': must be letters, digits, '_', '-' and '.', and begin with neither '-' nor '.'"),
    ("model.dtype=float16", "model.dtype = 'float16': must be one of 'auto', 'float32' or 'bfloat16'"),
    # Rules between options
    ("ppo.dual_clip=0.5", "ppo.dual_clip = 0.5 would bound losses ... use a number above 1, or 0"),
    ("ppo.ratio_threshold=0.5", "ppo.ratio_threshold = 0.5 would skip every minibatch ... above 1, or 0"),
    ("ppo.importance_cap=0.5", "ppo.importance_cap = 0.5 would cut weights ... above 1, or 0"),
    ("ppo.policy_loss=cispo ppo.ratio=sequence", "ppo.ratio = 'sequence' ... 'cispo' ... use 'token'"),
    ("ppo.policy_loss=cispo ppo.dual_clip=3", "ppo.dual_clip = 3 ... 'cispo' ... use 0"),
    ("ppo.estimator=rloo", "rollout.samples_per_prompt = 1 ... 'rloo' ... at least 2"),
    ("ppo.estimator=reinforce rollout.batch_size=1", "rollout.batch_size = 1 ... at least 2"),
    ("rollout.dynamic=2", "rollout.dynamic = 2 ... 'gae' ... use 0, or 'grpo'"),
    ("data.curriculum=true", "data.curriculum = true ... 'gae' ... use false, or 'grpo'"),
    (
        "rollout.dynamic=2 ppo.estimator=grpo rollout.samples_per_prompt=4 reward.normalize=batch",
        "reward.normalize = 'batch' ... rollout.dynamic ... 'running'",
    ),
    ("ppo.estimator=remax reward.normalize=batch", "reward.normalize ... 'remax'"),
    ("ppo.estimator=remax ppo.whiten_rewards=true", "ppo.whiten_rewards ... 'remax' ... 'running'"),
    ("ppo.kl_in=loss", "ppo.kl_estimator = 'k1' ... 'full', 'k3' or 'k2'"),
    ("ppo.kl_estimator=full", "ppo.kl_estimator = 'full' ... ppo.kl_in = 'loss'"),
    ("ppo.prefix_scores=1 reward.normalize=batch", "ppo.prefix_scores ... 'running'"),
    ("ppo.prefix_scores=1 ppo.whiten_rewards=true", "ppo.prefix_scores ... 'running'"),
    ("ppo.kl_controller=adaptive ppo.kl_coef=0.0", "ppo.kl_coef = 0 ... 'adaptive'"),
    ("model.value_init=x", "model.value_model = 'fitted' ... 'adapter'"),
    ("reward.overlong_tokens=48", "reward.overlong_tokens = 48 ... less than rollout.max_new_tokens = 48"),
    # Reward sources
    ("reward.sources=['lexicn']", "reward.sources[0] = 'lexicn': must be 'file.py:function', 'lexicon' or a table"),
    ("reward.sources=[{kind=3}]", "reward.sources[0] = {'kind': 3}: must be"),
    ("reward.sources=['a.py:']", "reward.sources[0].path = 'a.py:': must be 'file.py:function' or 'package.module:"),
    ("reward.sources=['length']", "reward.sources[0].target is missing: a source of kind 'length' needs it"),
    ("reward.sources=[{kind='regex',pattern='('}]", "reward.sources[0].pattern = '(': is not a regular expression: "),
    ("reward.sources=[{kind='regex',pattern='a{99999999999}'}]", "reward.sources[0].pattern = 'a{99999999999}'"),
    ("reward.sources=[{kind='lexicon',weight='1'}]", "reward.sources[0].weight = '1': must be a number"),
    ("reward.sources=[{kind='lexicon',weight=nan}]", "reward.sources[0].weight = nan: must be a finite number"),
    # Unknown keys
    ("ppo.kl_coeff=1", "unknown key 'ppo.kl_coeff': did you mean 'ppo.kl_coef'?"),
    ("ppo.KL_Coef=1", "unknown key 'ppo.KL_Coef': did you mean 'ppo.kl_coef'?"),
    ("ppo.lambda=1", "unknown key 'ppo.lambda': did you mean 'ppo.lam'?"),
    ("eval.evry=1", "unknown key 'eval.evry': did you mean 'eval.every'?"),
    ("optim.kl_coef=1", "unknown key 'optim.kl_coef': did you mean 'ppo.kl_coef'?"),
    ("rolout.batch_size=4", "unknown key 'rolout': did you mean 'rollout'?"),
    ("checkpoint.xyz=1", "unknown key 'checkpoint.xyz': 'ppo-workbench config schema' lists all keys"),
    ("ppo.giraffe.a=1", "unknown key 'ppo.giraffe': 'ppo-workbench config schema' lists all keys"),
    (
        "reward.sources=[{kind='regex',pattern='a',ignorecase=true}]",
        "unknown key 'reward.sources[0].ignorecase': did you mean 'reward.sources[0].ignore_case'?",
    ),
]


@pytest.mark.parametrize(("assignments", "parts"), PROBLEMS)
def test_a_problem_names_value_rule_and_way_out(assignments: str, parts: str) -> None:
    (problem,) = config_problems(parse_overrides(assignments.split()))
    assert all(part in problem for part in parts.split(" ... ")), problem


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        ({"kl_coef": 1}, "unknown key 'kl_coef': did you mean 'ppo.kl_coef'?"),
        ({"zebra": 1}, "unknown key 'zebra': 'ppo-workbench config schema' lists all keys"),
        *(({"ppo": value}, f"ppo = {value!r}: must be a table") for value in (3, [1], "x", None)),
    ],
)
def test_a_table_of_another_name_or_type_is_refused(raw: dict[str, Any], problem: str) -> None:
    assert config_problems(raw) == [problem]


@pytest.mark.parametrize(
    ("assignments", "parts"),
    [
        ("rollout.top_p=0.9", "top_p ... it is biased"),
        ("optim.micro_batch_tokens=559", "less than the longest sequence of 560 tokens"),
        ("ppo.whiten_rewards=true", "ppo.whiten_rewards ... = 8 ... fewer than 16 sequences are noise"),
        ("ppo.whiten_advantages=true rollout.batch_size=4", "ppo.whiten_advantages ... = 4 ... noise"),
        ("ppo.estimator=grpo rollout.samples_per_prompt=4", "ppo.whiten_advantages ... 'grpo' ... once more"),
        ("ppo.ratio=sequence", "ppo.clip = 0.2 hardly ever clips ... 3e-4"),
        ("ppo.ratio=sequence ppo.clip=0.001", ""),
        ("ppo.estimator=reinforce ppo.critic_warmup=2", "ppo.critic_warmup ... no critic"),
        ("ppo.critic_warmup=100", "ppo.critic_warmup = 100 ... does not learn"),
        ("reward.normalize=batch eval.every=5 eval.reference=false", "reward.normalize = 'batch' ... eval.reference"),
        ("convergence.on_kl=rollback", "[convergence] ... eval.every"),
        ("optim.value_lr=3e-4 ppo.value_coef=0.2", "'fitted' ... optim.value_lr and ppo.value_coef"),
        ("optim.value_lr=3e-4 ppo.value_coef=0.2 model.value_model=head", ""),
        ("rollout.top_p=0.9 ppo.kl_coef=0", ""),
        ("rollout.batch_size=16 ppo.whiten_rewards=true", ""),
        ("optim.micro_batch_tokens=560", ""),
        ("", ""),
    ],
)
def test_unwise_options_alone_cause_a_warning_with_the_reason(assignments: str, parts: str) -> None:
    warnings = config_warnings(validate(parse_overrides(assignments.split())))
    assert len(warnings) == bool(parts)
    assert all(part in warning for warning in warnings for part in parts.split(" ... ")), warnings


@pytest.mark.parametrize(
    ("key", "good", "bad"),
    [
        ("run.name", ["", "a", "run-1.b_2", "läufe"], ["..", ".", ".hidden", "a/b", "a b", "a\n", "../a"]),
        ("model.path", ["starter", "a b"], [""]),
        ("model.lora_targets", [["q_proj"]], [[], [""]]),
        ("rollout.stop", [[], ["END"]], [[""], [3]]),
        ("run.trackers", [[], ["wandb"]], [["mlflow"]]),
        ("health.ignore", [[], ["kl_high", "throughput"]], [["kl_hihg"], [""], "kl_high"]),
        ("reward.sources", [["lexicon"]], [[], [3], ["sentiment"], [{}]]),
    ],
)
def test_names_and_lists_have_the_rules_of_their_use(key: str, good: list[Any], bad: list[Any]) -> None:
    assert [value for value in good if blames(key, value)] == []
    assert [value for value in bad if not blames(key, value)] == []


def test_a_refusal_stays_one_short_line_whatever_the_value() -> None:
    for raw in (tables("ppo.epochs", "x\n" * 1000), tables("ppo.epochs", 10**300), {"a\nb": 1}):
        (problem,) = config_problems(raw)
        assert "\n" not in problem
        assert len(problem) < 160


# Reward sources


def test_reward_sources_are_tables_or_short_strings() -> None:
    raw = ["lexicon", "rewards.py:score", "my.rewards:score", {"kind": "regex", "pattern": "a", "weight": 2}]
    assert validate(tables("reward.sources", raw)).reward.sources == [
        LexiconSource(),
        PythonSource(path="rewards.py:score"),
        PythonSource(path="my.rewards:score"),
        RegexSource(pattern="a", weight=2.0),
    ]


# All at once


def test_all_problems_are_reported_together_and_each_once() -> None:
    raw = {
        "modl": {},
        "ppo": {"kl_coeff": 1, "clip": -1, "epochs": "4", "gamma": 2, "minibatches": 3},
        "rollout": {"temperature": True, "stop": ["", 1]},
        "data": 3,
        "reward": {"sources": ["lexicn", {"kind": "length"}, {"kind": "regex", "pattern": "(", "wait": 1}]},
        "run": {"seed": -5},
    }
    expected = [
        "unknown key 'modl'",
        "unknown key 'ppo.kl_coeff'",
        "ppo.clip",
        "ppo.epochs",
        "ppo.gamma",
        "ppo.minibatches = 3 does not divide rollout.batch_size = 8",
        "rollout.temperature",
        "rollout.stop[0]",
        "rollout.stop[1]",
        "data",
        "reward.sources[0] ",
        "reward.sources[1].target",
        "reward.sources[2].pattern",
        "unknown key 'reward.sources[2].wait'",
        "run.seed",
    ]
    before = json.dumps(raw)
    problems = config_problems(raw)
    assert json.dumps(raw) == before
    assert len(problems) == len(expected)
    for start in expected:
        assert sum(problem.startswith(start) for problem in problems) == 1, start


def test_no_more_than_fifty_problems_are_reported() -> None:
    problems = config_problems({"ppo": {f"unknown{number}": 1 for number in range(60)}})
    assert (len(problems), problems[-1]) == (51, "and 10 more: fix these first")


# Rules between options


def test_batches_divide_evenly_or_the_divisors_are_listed() -> None:
    for key in ("ppo.minibatches", "rollout.samples_per_prompt"):
        for size, parts in itertools.product((1, 6, 12, 13), range(1, 14)):
            raw: dict[str, Any] = {"rollout": {"batch_size": size}, "ppo": {}}
            raw[key.partition(".")[0]][key.partition(".")[2]] = parts
            problems = config_problems(raw)
            if size % parts == 0:
                assert problems == []
                continue
            (problem,) = problems
            rule, _, way_out = problem.partition("; use ")
            assert rule == f"{key} = {parts} does not divide rollout.batch_size = {size}"
            assert [int(n) for n in re.findall(r"\d+", way_out)] == [n for n in range(1, size + 1) if size % n == 0]
    assert config_problems({"rollout": {"batch_size": 64}, "ppo": {"minibatches": 6}}) == [
        "ppo.minibatches = 6 does not divide rollout.batch_size = 64; use 1, 2, 4, 8, 16, 32 or 64"
    ]


def test_a_buffer_that_is_too_small_names_two_ways_out_that_work() -> None:
    def problems(batch_size: int, buffer_tokens: int) -> list[str]:
        return config_problems(
            {
                "data": {"max_prompt_tokens": 60},
                "rollout": {"batch_size": batch_size, "max_new_tokens": 40},
                "optim": {"buffer_tokens": buffer_tokens},
            }
        )

    assert problems(8, 550) == [
        "optim.buffer_tokens = 550 does not hold rollout.batch_size = 8 sequences of up to 100 tokens: "
        "raise it to 800 or lower rollout.batch_size to at most 5"
    ]
    assert problems(8, 800) == problems(5, 550) == []
    assert problems(8, 799)
    assert problems(6, 550)
    assert problems(1, 99)[0].endswith("raise it to 100 or shorten data.max_prompt_tokens and rollout.max_new_tokens")


@pytest.mark.parametrize(
    "rollout",
    [{"rollout": {"batch_size": 0}}, {"rollout": {"batchsize": 30}}, {"rolout": {"batch_size": 30}}, {"rollout": 30}],
)
def test_a_rule_between_options_does_not_blame_the_default_of_a_broken_one(rollout: dict[str, Any]) -> None:
    (problem,) = config_problems({**rollout, "ppo": {"minibatches": 3}})
    assert "does not divide" not in problem
    whole = {"rollout": {"batch_size": 6, "top_p": 2}, "ppo": {"minibatches": 4}}
    assert config_problems(whole) == [
        "rollout.top_p = 2: must be at most 1",
        "ppo.minibatches = 4 does not divide rollout.batch_size = 6; use 1, 2, 3 or 6",
    ]


@pytest.mark.parametrize(
    ("settings", "stride"),
    [
        ("", 1),
        ("rollout.max_new_tokens=64", 1),
        ("rollout.max_new_tokens=65", 2),
        ("rollout.max_new_tokens=1000", 16),
        ("reward.sources=[{kind='regex',pattern='a'},{kind='length',target=3}]", 1),
        ("reward.sources=['lexicon','rewards.py:score']", 0),
        ("reward.sources=['rewards.py:score'] ppo.prefix_scores=8", 8),
        ("reward.sources=[{kind='model',path='folder'}]", 0),
        ("reward.normalize=batch", 0),
        ("ppo.whiten_rewards=true rollout.batch_size=16", 0),
        ("ppo.estimator=reinforce", 0),
        ("ppo.estimator=reinforce ppo.prefix_scores=8", 0),
        ("ppo.prefix_scores=0", 0),
    ],
)
def test_prefix_scores_come_where_all_rewards_are_cheap_unless_told_otherwise(settings: str, stride: int) -> None:
    assert validate(parse_overrides(["rollout.max_new_tokens=32", *settings.split()])).prefix_stride == stride


# --set


@pytest.mark.parametrize(
    ("assignment", "key", "value"),
    [
        ("ppo.kl_coef=0.1", "ppo.kl_coef", 0.1),
        (" ppo . kl_coef = 1e-3 ", "ppo.kl_coef", 1e-3),
        ("ppo.whiten_rewards=true", "ppo.whiten_rewards", True),
        ("ppo.kl_estimator=k3", "ppo.kl_estimator", "k3"),
        ("reward.normalize=off", "reward.normalize", "off"),
        ("model.path=Qwen/Qwen3-0.6B", "model.path", "Qwen/Qwen3-0.6B"),
        ("run.name=7", "run.name", "7"),
        ("run.name='7'", "run.name", "7"),
        ("run.name=", "run.name", ""),
        ('data.system="a=b\\n"', "data.system", "a=b\n"),
        ("data.system=it's", "data.system", "it's"),
        ("rollout.stop=['END', \"x\"]", "rollout.stop", ["END", "x"]),
        (
            "reward.sources=[{kind='length', target=5}]",
            "reward.sources",
            [{"kind": "length", "target": 5}],
        ),
    ],
)
def test_an_assignment_is_toml_or_a_bare_word(assignment: str, key: str, value: Any) -> None:
    overrides = parse_overrides([assignment])
    assert overrides == parse_overrides([f"{key}=1", assignment]) == tables(key, value)
    assert config_problems(overrides) == []


@pytest.mark.parametrize("assignment", ["ppo", "ppo=1", "ppo.clip", "=1", ".clip=1", "ppo.=1", "ppo..clip=1", ""])
def test_an_assignment_without_table_key_or_value_is_refused(assignment: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_overrides([assignment])
    assert str(caught.value) == f"--set {assignment}: must be table.key=value, as in --set ppo.kl_coef=0.1"


def test_an_assignment_below_a_value_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^--set ppo\.clip\.x=1: 'clip' was set to a value before"):
        parse_overrides(["ppo.clip=0.1", "ppo.clip.x=1"])


@pytest.mark.parametrize("value", ["three", "", "3\nx=4", "9" * 5000, "[" * 5000])
def test_a_value_that_is_not_toml_is_read_as_a_string(value: str) -> None:
    (problem,) = config_problems(parse_overrides([f"ppo.epochs={value}"]))
    assert problem.startswith("ppo.epochs = '")
    assert problem.endswith(": must be a whole number")


def test_overrides_replace_values_of_the_file_and_leave_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "my.toml"
    path.write_text("[ppo]\nclip = -1  # broken\nlam = 0.9\n[rollout]\nstop = ['a', 'b']\n")
    config = load_config(path, parse_overrides(["ppo.clip=0.3", "rollout.stop=['c']", "run.seed=5"]))
    assert (config.ppo.clip, config.ppo.lam, config.rollout.stop, config.run.seed) == (0.3, 0.9, ["c"], 5)


# Presets and files


def test_the_shipped_presets_are_there() -> None:
    assert set(preset_names()) == {"quickstart", "grpo", "qwen3-0.6b", "qwen3-1.7b", "qwen3-8b-4bit"}
    assert load_config("quickstart").model.path == "starter"


@pytest.mark.parametrize("content", [b"[ppo\nclip = 1", b"a = \xe9", b"a = " + b"9" * 5000, b"a = " + b"[" * 5000])
def test_a_file_that_is_not_toml_says_why_in_one_line(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "my.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert re.fullmatch(rf"{re.escape(str(path))}: not TOML: .+", str(caught.value))


# Paths


def test_files_become_absolute_and_names_stay(tmp_path: Path) -> None:
    for name in ("model", "sft", "starter"):
        (tmp_path / name).mkdir()
    for name in ("prompts.jsonl", "rewards.py"):
        (tmp_path / name).touch()
    raw = {
        "model": {"path": "model", "adapter": "sft"},
        "data": {"prompts": "prompts.jsonl"},
        "reward": {"sources": ["rewards.py:score", "my.rewards:score", "gone.py:score", "lexicon"]},
        "run": {"dir": "runs"},
    }
    config = resolve_paths(validate(raw), tmp_path)
    assert config.model.path == str(tmp_path / "model")
    assert config.model.adapter == str(tmp_path / "sft")
    assert config.data.prompts == str(tmp_path / "prompts.jsonl")
    assert config.run.dir == str(tmp_path / "runs")
    assert [getattr(source, "path", None) for source in config.reward.sources] == [
        f"{tmp_path / 'rewards.py'}:score",
        "my.rewards:score",
        "gone.py:score",
        None,
    ]
    assert resolve_paths(config, tmp_path / "model") == config

    for path, prompts in (("starter", "story-openings"), ("Qwen/Qwen3-0.6B", "org/prompts-v1.0")):
        names = resolve_paths(validate({"model": {"path": path}, "data": {"prompts": prompts}}), tmp_path)
        assert (names.model.path, names.data.prompts, names.model.adapter) == (path, prompts, "")


def test_a_tilde_is_the_home_folder_in_every_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    model = {"kind": "model", "path": "~/rm", "ensemble": ["~/other"]}
    raw = {
        "run": {"dir": "~/runs"},
        "model": {"path": "~/model", "adapter": "~/adapter"},
        "data": {"prompts": "~/p.jsonl"},
        "reward": {"sources": ["~/rewards.py:score", model]},
    }
    config = resolve_paths(validate(raw), Path.cwd())
    python, trained = config.reward.sources
    assert isinstance(python, PythonSource)
    assert isinstance(trained, ModelSource)
    found = [config.run.dir, config.model.path, config.model.adapter, config.data.prompts, python.path, *trained.paths]
    assert found == [
        f"{tmp_path}/{end}" for end in ("runs", "model", "adapter", "p.jsonl", "rewards.py:score", "rm", "other")
    ]


def test_a_folder_with_a_colon_in_its_name_works(tmp_path: Path) -> None:
    base = tmp_path / "a:b"
    base.mkdir()
    (base / "rewards.py").touch()
    for folder, path in ((base, "rewards.py:score"), (tmp_path, "a:b/rewards.py:score")):
        config = resolve_paths(validate(tables("reward.sources", [path])), folder)
        assert config.reward.sources == [PythonSource(path=f"{base}/rewards.py:score")]


# The reference


def test_every_option_has_help_and_says_whether_it_is_live() -> None:
    for key, schema in PROPERTIES.items():
        assert isinstance(schema["live"], bool), key
        assert re.fullmatch(r"[A-Za-z0-9'.].*\.", schema["description"]), key
        assert len(schema["description"]) <= 160, key


def test_only_settings_that_the_next_iteration_can_apply_are_live() -> None:
    live = {row.key for row in reference_rows() if row.live}
    assert {"ppo.kl_coef", "ppo.clip", "optim.policy_lr", "rollout.temperature"} <= live
    assert not {key for key in live if key.partition(".")[0] in ("model", "data", "run")}
    assert not {"rollout.batch_size", "ppo.minibatches", "ppo.iterations"} & live


def test_the_page_of_the_reference_is_in_step_with_the_schema() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert page == reference_markdown(), "run: python -m trainer.config.reference > docs/configuration.md"
    (example,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    assert config_problems(tomllib.loads(example)) == []


def test_the_json_schema_is_closed_and_takes_the_short_form_of_a_source() -> None:
    schema = json_schema()
    assert json.loads(json.dumps(schema)) == schema
    assert all(table["additionalProperties"] is False for table in [schema, *schema["$defs"].values()])
    assert {"type": "string"} in schema["$defs"]["RewardConfig"]["properties"]["sources"]["items"]["anyOf"]


def test_the_configuration_imports_no_tensors_and_no_screen() -> None:
    heavy = "{'mlx', 'mlx_lm', 'numpy', 'torch', 'transformers', 'datasets', 'textual', 'rich', 'workbench'}"
    code = f"import sys, trainer.config, trainer.config.reference; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
