"""The settings as a form needs them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.config import Config
from trainer.config.problems import broken_rule, setting_keys
from workbench.config.fields import (
    as_text,
    editable,
    fields_by_key,
    limits,
    parse,
    search,
    sections,
    shown,
    stepped,
)

FIELDS = fields_by_key()


def test_every_setting_has_a_field_in_the_order_of_the_schema() -> None:
    assert list(FIELDS) == list(setting_keys())
    assert list(sections()) == list(Config.model_fields)
    assert sections()["ppo"] == "the algorithm."


@pytest.mark.parametrize("field", FIELDS.values(), ids=lambda field: field.key)
def test_the_text_of_a_default_means_the_default(field: Any) -> None:
    default = field.schema["default"]
    if editable(field, default):
        value = parse(field, as_text(field, default))
        assert value == default
        assert type(value) is type(default)


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("optim.policy_lr", " 3e-4 ", 3e-4),
        ("ppo.kl_coef", "1", 1.0),
        ("optim.buffer_tokens", "2_000_000", 2_000_000),
        ("optim.buffer_tokens", "2e6", 2_000_000),
        ("data.shuffle", "Off", False),
        ("model.lora_targets", "q_proj,  v_proj,", ["q_proj", "v_proj"]),
        ("rollout.stop", '["a, b", "\\n"]', ["a, b", "\n"]),
        ("rollout.stop", "", []),
        ("data.system", " two  spaces ", " two  spaces "),
        ("model.path", " folder/a b ", "folder/a b"),
    ],
)
def test_text_is_read_as_the_kind_of_its_field(key: str, text: str, value: Any) -> None:
    read = parse(FIELDS[key], text)
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    ("key", "text", "rule"),
    [
        ("ppo.kl_coef", "-1", "must be at least 0"),
        ("ppo.kl_coef", "many", "must be a number"),
        ("ppo.epochs", "2.5", "must be a whole number"),
        ("ppo.epochs", "1e400", "must be a whole number"),
        ("ppo.epochs", "9" * 5000, "must be a whole number"),
        ("data.shuffle", "maybe", "must be true or false"),
        ("model.dtype", "float64", "must be one of 'auto', 'float32' or 'bfloat16'"),
        ("model.path", "  ", "must not be empty"),
        ("run.trackers", "wandb, mlflow", "must be one of 'tensorboard', 'wandb' or 'trackio'"),
        ("rollout.stop", '["a"', 'must be items between commas, or a TOML array as in ["a", "b"]'),
        ("rollout.stop", '["a"]\nx = 1', 'must be items between commas, or a TOML array as in ["a", "b"]'),
    ],
)
def test_a_value_that_breaks_a_rule_is_refused_with_the_rule(key: str, text: str, rule: str) -> None:
    with pytest.raises(ValueError, match="must") as refused:
        parse(FIELDS[key], text)
    assert str(refused.value) == rule


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1)))
def test_any_list_of_texts_survives_being_text(values: list[str]) -> None:
    field = FIELDS["rollout.stop"]
    assert parse(field, as_text(field, values)) == values


def test_texts_of_several_lines_and_reward_sources_are_not_edited_on_one() -> None:
    assert not editable(FIELDS["data.system"], "a\nb")
    assert not editable(FIELDS["reward.sources"], ["lexicon"])
    assert not editable(FIELDS["rollout.stop"], ["\u202e"])
    assert editable(FIELDS["data.system"], "one line")
    assert editable(FIELDS["rollout.stop"], ["\n"])


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("optim.buffer_tokens", 1_000_000, "1_000_000"),
        ("optim.policy_lr", 1e-5, "1e-5"),
        ("optim.policy_lr", 0.00025, "2.5e-4"),
        ("optim.policy_lr", 0.001, "0.001"),
        ("data.system", "", "empty"),
        ("rollout.stop", [], "none"),
        ("data.shuffle", True, "true"),
        ("reward.sources", ["lexicon", {"kind": "length", "target": 3, "weight": 0.2}], "lexicon, length x 0.2"),
        ("ppo.epochs", {"a": [1, "x"]}, '{a = [1, "x"]}'),
    ],
)
def test_a_value_is_shown_readably(key: str, value: Any, text: str) -> None:
    assert shown(FIELDS[key], value) == text


def test_what_is_allowed_is_said_with_its_unit() -> None:
    assert limits(FIELDS["ppo.kl_coef"]) == "at least 0, at most 100 · score per nat"
    assert limits(FIELDS["rollout.stop"]).startswith("items between commas, none")
    assert limits(FIELDS["data.shuffle"]) == "true or false"
    assert limits(FIELDS["data.system"]) == ""


@pytest.mark.parametrize(
    ("key", "start", "direction", "expected"),
    [
        ("optim.policy_lr", 9e-6, 1, [1e-5, 2e-5, 3e-5]),
        ("optim.policy_lr", 2e-5, -1, [1e-5, 9e-6]),
        ("optim.policy_lr", 2e-6, -1, [1e-6, 0.0, 0.0]),
        ("optim.policy_lr", 0.0, 1, [1e-6, 2e-6]),
        ("ppo.kl_coef", 0.085, 1, [0.09, 0.1, 0.2]),
        ("rollout.temperature", 0.9, 1, [1.0, 1.1]),
        ("convergence.target_score", -2.0, 1, [-1.9, -1.8]),
        ("ppo.lam", 0.95, 1, [0.96, 0.97, 0.98, 0.99, 1.0, 1.0]),
        ("ppo.gamma", 0.005, -1, [0.0]),
        ("ppo.epochs", 2, -1, [1, 1]),
        ("rollout.max_new_tokens", 48, 1, [49, 50]),
        ("data.max_prompt_tokens", 512, 1, [520, 530]),
        ("run.seed", 0, -1, [-1, -1]),
        ("data.shuffle", True, 1, [False, True]),
        ("data.chat", "never", 1, ["auto", "always"]),
        ("data.system", "x", 1, ["x"]),
    ],
)
def test_steps_are_sensible_and_stay_in_range(key: str, start: Any, direction: int, expected: list[Any]) -> None:
    value = start
    for wanted in expected:
        value = stepped(FIELDS[key], value, direction)
        assert value == wanted
        assert type(value) is type(start)


@pytest.mark.parametrize("field", FIELDS.values(), ids=lambda field: field.key)
@pytest.mark.parametrize("direction", [1, -1])
def test_no_step_leaves_the_range_of_the_schema(field: Any, direction: int) -> None:
    value = field.schema["default"]
    for _ in range(60):
        value = stepped(field, value, direction)
        assert not broken_rule(field.key, value)


def test_search_goes_by_name_help_and_advice_and_puts_names_first() -> None:
    keys = [field.key for field in search("kl")]
    assert keys[:2] == ["ppo.kl_coef", "ppo.kl_estimator"]
    assert "rollout.top_p" in keys  # its help mentions the KL
    assert [field.key for field in search("LEARNING rate value")] == ["optim.value_lr"]
    assert [field.key for field in search("smaller steadier")] == ["ppo.minibatches"]
    assert search("no such thing") == []
    assert len(search("")) == len(FIELDS)
