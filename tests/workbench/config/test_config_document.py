"""A configuration being edited: text and values in step, undo, changes, problems, and files."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from config_files import save_config

from trainer.config import PRESETS, Config, load_config
from trainer.config.pairs import RewardModelConfig
from trainer.errors import StorageError, UsageError
from workbench.config.document import ConfigDocument
from workbench.config.files import OverwriteError, read_text
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
    for step in range(20):
        if step % 2:
            document.set_text(document.text + f"# note {step}\n")
        else:
            document.set("ppo.epochs", step + 3)
        texts.append(document.text)
    for expected in reversed(texts[:-1]):
        assert document.travel("undo")
        assert document.text == expected
    assert not document.travel("undo")
    assert not document.dirty
    for expected in texts[1:]:
        assert document.travel("redo")
        assert document.text == expected
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


def test_a_file_that_changed_meanwhile_is_not_overwritten_without_asking_and_can_be_reloaded(mine: Path) -> None:
    document = ConfigDocument.open(mine)
    document.set("ppo.kl_coef", 0.2)
    stamp = mine.stat()
    mine.write_text(COMMENTED.replace("0.1", "0.7"))
    os.utime(mine, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    with pytest.raises(OverwriteError, match="changed by another program") as refused:
        save(document)
    assert refused.value.path == mine
    assert "0.7" in mine.read_text()
    text, content = read_text(mine, "")
    document.set_text(text)
    document.saved(mine, text, content)
    assert (document.get("ppo.kl_coef"), document.dirty) == (0.7, False)
    document.travel("undo")
    assert (document.get("ppo.kl_coef"), document.dirty) == (0.2, True)
    mine.write_text("else")
    save(document, overwrite=True)
    assert "0.2" in mine.read_text()
    save(document)


@pytest.mark.parametrize("failing", ["open", "fsync", "replace"])
def test_a_full_disk_loses_nothing(failing: str, mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    document = ConfigDocument.open(mine)
    document.set("ppo.kl_coef", 0.2)
    with monkeypatch.context() as patch:
        patch.setattr(Path if failing == "replace" else os, failing, full)
        with pytest.raises(
            StorageError, match="No space left on device; free space, or save it elsewhere; nothing was changed"
        ):
            save(document)
    assert mine.read_text() == COMMENTED
    assert [path.name for path in mine.parent.iterdir()] == ["mine.toml"]
    assert document.dirty
    assert document.get("ppo.kl_coef") == 0.2


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
