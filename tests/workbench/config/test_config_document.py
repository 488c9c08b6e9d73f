"""A configuration being edited: text and values in step, undo, changes, problems, and files."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest
from config_files import save_config
from hypothesis import given
from hypothesis import strategies as st

from trainer.config import PRESETS, Config, load_config
from trainer.config.pairs import RewardModelConfig
from trainer.config.problems import broken_rule, setting_keys
from trainer.errors import UsageError
from workbench.config.document import ConfigDocument
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
from workbench.opening import Opening

COMMENTED = """\
# mine, and dear to me
[ppo]
kl_coef = 0.1  # after the third try
# epochs: two are enough
epochs = 2

[rollout]
stop = [
    "END",  # of a story
]
"""


def save(document: ConfigDocument, path: Path | None = None, *, overwrite: bool = False) -> None:
    document.saved(*document.to_save(path, overwrite=overwrite)())


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(COMMENTED)
    return path


# Opening


def test_a_preset_opens_without_a_file_and_a_file_with_what_differs_from_the_defaults(mine: Path) -> None:
    document = ConfigDocument.open("quickstart")
    assert (document.path, document.preset, document.dirty) == (None, "quickstart", False)
    assert document.config == load_config("quickstart")
    assert document.changes == {}
    assert document.text == (PRESETS / "quickstart.toml").read_text()
    document = ConfigDocument.open(mine)
    assert (document.path, document.preset) == (mine, "")
    assert set(document.changes) == {"ppo.kl_coef", "ppo.epochs", "rollout.stop"}
    change = document.changes["ppo.epochs"]
    assert (change.preset, change.from_preset, change.unsaved) == (4, True, False)
    assert document.get("ppo.gamma") == Config().ppo.gamma


def test_a_copy_of_a_run_has_no_file_and_no_name_of_a_run_yet(mine: Path, tmp_path: Path) -> None:
    run = tmp_path / "past"
    run.mkdir()
    (run / "config.toml").write_text(mine.read_text() + '\n[run]\nname = "past"\n')
    document = ConfigDocument.of_run(run)
    assert (document.path, document.dirty, document.name) == (None, False, "copy of past")
    assert (document.get("ppo.kl_coef"), document.get("run.name")) == (0.1, "")
    assert not document.travel("undo")
    with pytest.raises(UsageError, match="no file of its own"):
        save(document)


@pytest.mark.parametrize("text", ["schema = 99\n[ppo]\nvalue_clip = 1\n", "[ppo\n", "schema = 'a'\n", "ppo = 1\n"])
def test_a_file_of_an_unknown_version_stays_as_it_is(text: str, mine: Path) -> None:
    mine.write_text(text)
    document = ConfigDocument.open(mine)
    assert document.problems
    assert (document.text, document.dirty) == (text, False)


def test_the_only_problem_of_a_configuration_of_another_kind_is_its_kind(tmp_path: Path) -> None:
    run = tmp_path / "liked"
    run.mkdir()
    save_config(RewardModelConfig(), run / "config.toml", "what ran")
    document = ConfigDocument.of_run(run)
    assert (document.kind, document.name, document.dirty) == ("reward-model", "config.toml of liked", False)
    assert document.text == (run / "config.toml").read_text()
    assert (document.config, document.changes) == (None, {})
    [problem] = document.problems
    assert (problem.key, problem.line, problem.message) == ("kind", 4, document.about_kind)
    assert "a reward-model run" in problem.message
    assert "'ppo-workbench reward-model train --config FILE'" in problem.message
    unknown = ConfigDocument('kind = "grpo\\u001b[2J"\n').about_kind
    assert unknown == "Read-only configuration of a grpo␛[2J run", "without a command"
    assert [problem.key for problem in ConfigDocument("kind = 7\n").problems] == ["kind"]
    document = ConfigDocument.open("quickstart")
    assert not document.about_kind
    document.set_text('kind = "dpo"\n' + document.text)
    assert (document.kind, [problem.key for problem in document.problems]) == ("ppo", ["kind"]), "as it was opened"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("mine.toml", r"mine.toml:2: byte 0xff is"),
        (".", r"cannot read configuration '.*': Is a directory"),
    ],
)
def test_an_unreadable_file_is_refused(name: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_bytes(b"a = 1\nb = '\xff'")
    with pytest.raises(UsageError, match=reason):
        ConfigDocument.open(tmp_path / name)


def test_a_broken_file_opens_with_its_problems_where_they_are(tmp_path: Path) -> None:
    path = tmp_path / "broken.toml"
    path.write_text(
        '[ppo]\nkl_coef = -1\nepoch = 2\n\n[reward]\nsources = [\n  { kind = "regex", pattern = "(" },\n]\n'
    )
    document = ConfigDocument.open(path)
    assert document.config is None
    lines = {problem.key: problem.line for problem in document.problems}
    assert lines == {"ppo.kl_coef": 2, "ppo.epoch": 3, "reward.sources[0].pattern": 6}
    assert document.get("ppo.kl_coef") == -1


def test_a_file_that_is_not_toml_opens_with_that_as_its_problem() -> None:
    document = ConfigDocument("[ppo]\nkl_coef = \nepochs = 2\n")
    [problem] = document.problems
    assert problem.line == 2
    assert problem.message.startswith("not TOML: ")
    assert document.get("ppo.epochs") == 4
    with pytest.raises(UsageError, match=r"the TOML has an error, so ppo\.epochs cannot be changed"):
        document.set("ppo.epochs", 3)
    document.set_text("[ppo]\nkl_coef = 0.3\nepochs = 2\n")
    assert document.problems == []
    assert document.get("ppo.epochs") == 2


# Changing


def test_a_change_in_the_form_keeps_every_comment_and_every_other_line(mine: Path) -> None:
    document = ConfigDocument.open(mine)
    document.set("ppo.kl_coef", 0.2)
    assert document.text == COMMENTED.replace("0.1  #", "0.2  #")
    document.set("ppo.gamma", 0.99)
    document.set("optim.policy_lr", 3e-4)
    assert all(line in document.text.splitlines() for line in COMMENTED.splitlines() if "kl_coef" not in line)
    assert tomllib.loads(document.text)["optim"] == {"policy_lr": 3e-4}
    assert tomllib.loads(document.text)["ppo"] == {"kl_coef": 0.2, "epochs": 2, "gamma": 0.99}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("ppo.kl_coef", 1),
        ("ppo.whiten_rewards", True),
        ("optim.eps", 1e-12),
        ("model.dtype", "float32"),
        ("data.system", 'Ünï "double" \\ \n\ttab\x1b[31m \u202e # = [x] 中'),
        ("rollout.stop", ["a, b", "\n"]),
        ("model.lora_targets", []),
        ("reward.sources", [{"kind": "length", "target": 3}, "lexicon"]),
    ],
)
@pytest.mark.parametrize("text", [COMMENTED, "", "ppo.epochs = 3", "ppo = { epochs = 3 }\n# end", "[[x]]\na = 1"])
def test_a_value_that_is_set_is_what_toml_reads(text: str, key: str, value: Any) -> None:
    document = ConfigDocument(text)
    before = tomllib.loads(text)
    document.set(key, value)
    after = tomllib.loads(document.text)
    section, _, name = key.partition(".")
    assert after[section].pop(name) == value
    before.get(section, {}).pop(name, None)
    assert {k: v for k, v in after.items() if v} == {k: v for k, v in before.items() if v}
    assert document.get(key) == value


def test_the_present_value_is_no_step_and_true_is_not_one() -> None:
    document = ConfigDocument("[ppo]\nepochs = true\n[data]\nshuffle = 1\n")
    assert {p.key for p in document.problems} == {"ppo.epochs", "data.shuffle"}
    document.set("ppo.epochs", 1)
    document.set("data.shuffle", True)
    assert document.problems == []
    document.travel("undo")
    document.travel("undo")
    document.set("ppo.gamma", 1)  # the default
    assert not document.travel("undo")


def test_what_the_form_cannot_change_stays_as_it_is() -> None:
    document = ConfigDocument("ppo = 3")
    assert document.get("ppo.epochs") == 4
    with pytest.raises(UsageError, match="ppo is not a table"):
        document.set("ppo.epochs", 2)
    assert document.text == "ppo = 3"
    document = ConfigDocument("[ppo]\nclip = nan\n")
    document.set("ppo.epochs", 2)
    assert [p.key for p in document.problems] == ["ppo.clip"], "NaN elsewhere is no obstacle"


def test_reset_restores_the_value_of_the_preset() -> None:
    document = ConfigDocument.open("quickstart")
    document.set("ppo.kl_coef", 0.3)
    document.set("ppo.gamma", 0.9)
    assert set(document.changes) == {"ppo.kl_coef", "ppo.gamma"}
    document.reset("ppo.kl_coef")
    document.reset("ppo.gamma")
    document.reset("ppo.lam")
    assert document.changes == {}
    assert document.get("ppo.kl_coef") == load_config("quickstart").ppo.kl_coef
    assert "gamma" not in document.text


# Undo


def test_undo_goes_back_over_both_views_and_redo_forth() -> None:
    document = ConfigDocument.open("quickstart")
    texts = [document.text]
    for step in range(6):
        document.set_text(f"{document.text}# note {step}\n") if step % 2 else document.set("ppo.epochs", step + 3)
        texts.append(document.text)
    undone = [document.text for _ in texts[1:] if document.travel("undo")]
    assert undone == texts[-2::-1]
    assert (document.travel("undo"), document.dirty) == (False, False)
    assert [document.text for _ in texts[1:] if document.travel("redo")] == texts[1:]
    assert not document.travel("redo")
    document.travel("undo")
    document.set("ppo.epochs", 77)
    assert not document.travel("redo"), "a change forgets what was undone"


def test_characters_typed_one_after_the_other_are_one_step() -> None:
    document = ConfigDocument("#a\n#b\n")
    for text in ("#ax\n#b\n", "#axy\n#b\n", "#axyz\n#b\n", "#axyz\n#b\n#d\n", "#axyz\n#b\n#de\n"):
        document.set_text(text)
    undone = []
    while document.travel("undo"):
        undone.append(document.text)
    assert undone == ["#axyz\n#b\n#d\n", "#axyz\n#b\n", "#a\n#b\n"]
    document.set_text("#ab\n")
    document.set("ppo.epochs", 2)
    changed = document.text
    document.set_text(changed.replace("#ab", "#abc"))
    document.travel("undo")
    assert document.text == changed, "after a change in the form"


# Files


def test_the_comments_of_a_preset_are_not_saved_under_other_settings(tmp_path: Path) -> None:
    document = ConfigDocument.open("quickstart")
    save(document, tmp_path / "same.toml")
    assert "# Settings chosen on seeds" in (tmp_path / "same.toml").read_text()
    document = ConfigDocument.open("quickstart")
    document.set_text(document.text.replace("[data]", "[data] # mine"))
    document.set("data.prompts", "own.jsonl")
    document.set("model.revision", "#1")
    save(document, tmp_path / "own.toml")
    saved = (tmp_path / "own.toml").read_text()
    assert saved.startswith("# Made from the preset quickstart.\n\n[model]\n"), "no line is left empty"
    assert re.findall("#.*", saved) == ["# Made from the preset quickstart.", '#1"', "# mine"]
    assert load_config(tmp_path / "own.toml") == document.config
    assert not document.dirty
    document.set("ppo.clip", 0.3)
    save(document)
    assert (tmp_path / "own.toml").read_text().count("# Made from") == 1


def test_saving_writes_the_text_and_leaves_nothing_to_save(mine: Path) -> None:
    mine.chmod(0o640)
    document = ConfigDocument.open(mine)
    document.set("ppo.kl_coef", 0.2)
    os.utime(mine, ns=(1, 1))  # only touched
    assert document.dirty
    assert document.changes["ppo.kl_coef"].unsaved
    save(document)
    assert mine.read_text() == document.text
    assert not document.dirty
    assert not document.changes["ppo.kl_coef"].unsaved
    assert mine.stat().st_mode & 0o777 == 0o640
    assert [path.name for path in mine.parent.iterdir()] == ["mine.toml"]
    document.travel("undo")
    assert document.dirty
    save(document)
    assert mine.read_text() == COMMENTED


def test_a_preset_is_saved_as_a_file_of_its_own(tmp_path: Path) -> None:
    document = ConfigDocument.open("quickstart")
    document.set("ppo.kl_coef", 0.2)
    with pytest.raises(UsageError, match="preset quickstart has no file of its own"):
        save(document)
    with pytest.raises(UsageError, match="ships with the program"):
        save(document, PRESETS / "quickstart.toml")
    save(document, tmp_path / "mine.toml")
    assert (document.path, document.preset) == (tmp_path / "mine.toml", "quickstart")
    assert set(document.changes) == {"ppo.kl_coef"}


@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_links_line_ends_of_windows_and_a_byte_order_mark_stay(mark: str, mine: Path, tmp_path: Path) -> None:
    mine.write_bytes((mark + COMMENTED.replace("\n", "\r\n")).encode())
    link = tmp_path / "link.toml"
    link.symlink_to(mine)
    document = ConfigDocument.open(link)
    assert document.text == COMMENTED
    document.set("ppo.kl_coef", 0.2)
    save(document)
    assert link.is_symlink()
    assert mine.read_bytes() == (mark + COMMENTED.replace("0.1", "0.2").replace("\n", "\r\n")).encode()


def test_the_document_loads_no_screen_and_no_tensors() -> None:
    modules = "sys, workbench.config.document, workbench.config.estimates"
    code = f"import {modules}; print({{'textual', 'mlx', 'tomlkit'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_an_override_below_a_table_keeps_the_rest_of_the_table(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("[data.template]\nkept = 1  # mine\n")
    document = Opening(str(path), ("data.template.more=2", "ppo.unknown=1")).document()
    assert document.get("data.template") == {"kept": 1, "more": 2}
    assert [problem.key for problem in document.problems] == ["ppo.unknown"]


TEXT = """\
# first
ppo.epochs = 3

[reward]
sources = [
  "lexicon",
  { kind = "length", target = 3 },
]
[data]
system = '''
[ppo]
clip = 1
'''
"column" = "x"
[[reward.more]]
weight = 1
[[reward.more]]
weight = 2
"""


@pytest.mark.parametrize(
    ("key", "line"),
    [
        ("ppo.epochs", 2),
        ("ppo", 2),
        ("reward.sources", 5),
        ("reward.sources[1].target", 5),
        ("data.column", 14),
        ("reward.more[0].weight", 16),
        ("reward.more[1].weight", 18),
        ("reward.more[1].kind", 17),
        ("ppo.clip", 2),
        ("optim.policy_lr", None),
    ],
)
def test_a_key_is_found_on_its_line_or_that_of_its_parent(key: str, line: int | None) -> None:
    assert ConfigDocument(TEXT).line_of(key) == line


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("[ppo]  # [not]\nkl = 1", {"ppo": 1, "ppo.kl": 2}),
        ("a.'b c' = -1_000 # x = 2", {"a": 1, "a.b c": 1}),
        ('x = "a # \\" b = 1"\ny = 2', {"x": 1, "y": 2}),
        ("x = nonsense y\nz = 'open\n[t]", {"x": 1, "z": 2, "t": 3}),
        ('a = """x\n[no] \\"""\nkey = 1"""\nb = 2', {"a": 1, "b": 4}),
        ('a = [\n["x"],\n]\n[b]', {"a": 1, "b": 4}),
        ("# three \"\"\" or '''\na = 1", {"a": 2}),
        ("a = \"it's '''#\"\nb = '\"\"\"#'\nc = 3", {"a": 1, "b": 2, "c": 3}),
    ],
)
def test_strings_comments_and_values_hold_no_keys(text: str, lines: dict[str, int]) -> None:
    assert ConfigDocument(text).lines == lines


@pytest.mark.parametrize("text", ["a", "a.", "[", '"', "'", "x = [[", "[[", "\n'"])
def test_no_text_takes_long(text: str) -> None:
    document = ConfigDocument("")
    document.set_text(text * 100_000)
    start = time.perf_counter()
    assert document.lines is not None
    assert time.perf_counter() - start < 5


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
