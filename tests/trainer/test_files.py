"""Access to files: written whole, read with a limit, and refused by name if a newer version wrote them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import stat
import threading
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from config_files import config_problems
from preference_samples import labelled, reward_config
from runs_helper import record, tiny_config

from trainer.config import load_config, parse_overrides
from trainer.config.fields import CONFIG_FORMAT
from trainer.engine.training import train
from trainer.errors import ConfigError, StorageError, UsageError
from trainer.files import (
    DEEPEST,
    PRIVATE,
    TOML_BYTES,
    FileFormat,
    open_file,
    open_regular,
    own_folder,
    parse_toml,
    read_regular,
    read_toml,
    remove,
    whole_file,
    write_whole,
)
from trainer.policy_checkpoint import load_checkpoint
from trainer.reward_model.snapshot import load_snapshot, read_card
from trainer.runs.checkpoint_files import checkpoints, write_state
from trainer.runs.folder import RunFolder


@pytest.fixture
def thesis(tmp_path: Path) -> Path:
    """Make a folder that is not the program's."""
    (folder := tmp_path / "thesis").mkdir()
    (folder / "thesis.tex").write_text("three years")
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (folder := tmp_path / "run").mkdir()
    return folder


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_a_file_replaces_a_link_and_what_it_leads_to_stays(folder: Path, thesis: Path) -> None:
    for name in ("a.json", ".a.json.tmp"):
        (folder / name).symlink_to(thesis / "thesis.tex")
    write_whole(folder / "a.json", "ours")
    assert (folder / "a.json").read_text() == "ours"
    assert not (folder / "a.json").is_symlink()
    assert (thesis / "thesis.tex").read_text() == "three years"
    assert [path.name for path in folder.iterdir()] == ["a.json"]


def test_a_file_is_there_whole_or_not_at_all(folder: Path) -> None:
    write_whole(folder / "a.json", "before")

    def killed() -> None:
        with whole_file(folder / "a.json") as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        killed()
    assert [(path.name, path.read_text()) for path in folder.iterdir()] == [("a.json", "before")]


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_a_private_file_is_private_under_every_umask(folder: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        write_whole(folder / "private", "", mode=PRIVATE)
        write_whole(folder / "shared", "")
        os.close(open_file(folder / "journal", os.O_WRONLY | os.O_CREAT, PRIVATE))
        own_folder(folder / "control", mode=0o700)
    finally:
        os.umask(before)
    assert [mode(folder / name) for name in ("private", "journal", "control")] == [0o600, 0o600, 0o700]
    assert mode(folder / "shared") == 0o666 & ~umask


PLACES: dict[str, Callable[[Path], object]] = {
    "link": lambda path: path.symlink_to(path.parent.parent / "thesis" / "thesis.tex"),
    "link to nothing": lambda path: path.symlink_to(path.parent / "new"),
    "folder": Path.mkdir,
    "pipe": lambda path: os.mkfifo(path),
}


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_RDWR | os.O_CREAT | os.O_APPEND, os.O_WRONLY])
@pytest.mark.parametrize("put", PLACES.values(), ids=PLACES.keys())
def test_only_a_regular_file_is_opened_and_nothing_is_waited_for(
    folder: Path, thesis: Path, put: Callable[[Path], object], flags: int
) -> None:
    put(folder / "events.jsonl")
    with pytest.raises(OSError):  # noqa: PT011  whatever the system calls it
        open_file(folder / "events.jsonl", flags)
    assert [path.name for path in folder.iterdir()] == ["events.jsonl"]
    assert (thesis / "thesis.tex").read_text() == "three years"


def test_a_link_or_a_file_is_not_a_folder_of_ours(folder: Path, thesis: Path) -> None:
    (folder / "samples").symlink_to(thesis)
    (folder / "control").write_text("")
    (folder / "nowhere").symlink_to(folder / "gone")
    for name in ("samples", "control", "nowhere"):
        with pytest.raises(NotADirectoryError, match="a link or a file blocks a folder that the program needs"):
            own_folder(folder / name)
    with pytest.raises(FileNotFoundError):
        own_folder(folder / "missing" / "samples")
    assert not (folder / "missing").exists(), "only the last folder is made"


def test_removing_stops_at_links(folder: Path, thesis: Path) -> None:
    (folder / "link").symlink_to(thesis)
    (folder / "deep").mkdir()
    (folder / "deep" / "link").symlink_to(thesis)
    for name in ("link", "deep", "missing"):
        remove(folder / name)
    assert list(folder.iterdir()) == []
    assert (thesis / "thesis.tex").read_text() == "three years"


ENDLESS: dict[str, Callable[[Path], None]] = {  # files whose reading would never end
    "a pipe that nobody writes to": os.mkfifo,
    "a link to a pipe": lambda path: (os.mkfifo(path.with_name("pipe")), path.symlink_to("pipe"))[1],
    "a link to an endless device": lambda path: path.symlink_to("/dev/zero"),
    "a folder": Path.mkdir,
}


@pytest.mark.parametrize("make", ENDLESS.values(), ids=ENDLESS)
@pytest.mark.parametrize("read", [open_regular, read_regular, read_toml, load_config])
def test_anything_but_a_regular_file_is_refused_at_once(
    read: Callable[[Path], object], make: Callable[[Path], None], tmp_path: Path
) -> None:
    make(tmp_path / "config.toml")
    with pytest.raises((OSError, UsageError), match=r"not a regular file|Is a directory"):
        read(tmp_path / "config.toml")


def test_a_link_to_a_regular_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("[ppo]\nclip = 0.3\n")
    (tmp_path / "config.toml").symlink_to("mine.toml")
    assert load_config(tmp_path / "config.toml").ppo.clip == 0.3


def test_a_configuration_may_come_through_a_pipe_that_the_shell_made(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as file:
        file.write("[ppo]\nclip = 0.3\n")
    try:
        assert load_config(f"/dev/fd/{reader}").ppo.clip == 0.3
    finally:
        os.close(reader)


def test_an_endless_pipe_is_read_up_to_the_limit() -> None:
    with pytest.raises(UsageError, match=r"cannot read configuration '/dev/zero': it is not a regular file"):
        load_config("/dev/zero")
    reader, writer = os.pipe()
    thread = threading.Thread(target=lambda: os.write(writer, b"#" * (TOML_BYTES + 1)))
    thread.start()
    try:
        with pytest.raises(OSError, match="larger than 256 KiB"):
            read_regular(Path(f"/dev/fd/{reader}"), TOML_BYTES, given=True)
    finally:
        thread.join()
        os.close(reader)
        os.close(writer)


def test_a_file_at_the_limit_is_read_and_one_beyond_is_not(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_bytes(b"#" * TOML_BYTES)
    assert read_toml(file) == {}
    file.write_bytes(b"#" * (TOML_BYTES + 1))
    with pytest.raises(OSError, match="larger than 256 KiB"):
        read_toml(file)


def test_a_byte_order_mark_is_not_part_of_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "windows.toml").write_bytes(b"\xef\xbb\xbf[ppo]\r\nclip = 0.3\r\n")
    assert load_config(tmp_path / "windows.toml").ppo.clip == 0.3


DEEP = {
    "a dotted key": ".".join("x" * 50_000) + " = 1",
    "a quoted key": ".".join(['"a b"'] * 20_000) + " = 1",
    "a key with blanks": " . ".join("x" * 20_000) + " = 1",
    "a table": "[" + ".".join("x" * 50_000) + "]",
    "a dotted key in a table in a line": "a = {" + ".".join("x" * 50_000) + " = 1}",
    "lists": "a = " + "[" * 100_000,
    "one list too many": "a = " + "[" * (DEEPEST + 1) + "]" * (DEEPEST + 1),
    "tables in a line": "a = " + "{a = " * 50_000,
}


@pytest.mark.parametrize("text", DEEP.values(), ids=DEEP)
def test_keys_and_values_too_deep_are_refused_before_they_cost_time(text: str) -> None:
    began = time.process_time()
    with pytest.raises(ValueError, match=rf"(more|deeper) than {DEEPEST}"):
        parse_toml(text)
    assert time.process_time() - began < 1


@pytest.mark.parametrize(
    "text", ["a = 0x" + "f" * 4_000, "a = [{b = 0o1" + "0" * 5_000 + "}]", "[t]\na = 0b1" + "1" * 15_000]
)
def test_an_integer_that_python_cannot_write_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="thousands of digits"):
        parse_toml(text)


def test_depth_is_counted_in_keys_and_not_in_texts_numbers_and_comments() -> None:
    words = ".".join("x" * 1000)
    for text in (f'a = "{words}"', f"a = '{words}'", f'a = """\n{words}"""', f"a = '''{words}'''", f"# {words}"):
        assert parse_toml(text).get("a", words).strip() == words
    assert parse_toml(f'"{words}" = 1') == {words: 1}
    assert parse_toml(r'a = "\"x.' + words + '"')["a"].endswith(words)
    assert parse_toml("a = [" + "1.5, " * 1000 + "]")["a"] == [1.5] * 1000
    assert parse_toml(".".join("x" * DEEPEST) + " = 1")
    assert parse_toml("a = " + "[" * DEEPEST + "]" * DEEPEST)


@pytest.mark.parametrize("quotes", ['"', "'", '"""', "'''", '"\\', '\\"', "#", "x", "x ", "x.", " ", "\n", "a=1\n"])
def test_the_search_for_deep_keys_takes_one_pass_whatever_the_text(quotes: str) -> None:
    began = time.process_time()
    with contextlib.suppress(ValueError):
        parse_toml((quotes * TOML_BYTES)[:TOML_BYTES])
    assert time.process_time() - began < 5


def test_thousands_of_unknown_keys_are_reported_by_the_first_and_their_number(tmp_path: Path) -> None:
    (tmp_path / "many.toml").write_text("[ppo]\n" + "\n".join(f"clipp{number} = 1" for number in range(15_000)))
    began = time.process_time()
    with pytest.raises(ConfigError) as refusal:
        load_config(tmp_path / "many.toml")
    assert time.process_time() - began < 5
    assert refusal.value.problems[0] == "unknown key 'ppo.clipp0': did you mean 'ppo.clip'?"
    assert refusal.value.problems[50:] == ["and 14950 more: fix these first"]


@pytest.mark.parametrize(
    ("assignment", "problem"),
    [
        ("data.limit=9223372036854775808", "data.limit = 9223372036854775808: must be at most 2147483647"),
        ("ppo.iterations=1" + "0" * 4000, r"ppo.iterations = 10+\.\.\.: must be at most 2147483647"),
        (
            "data.prompts=~nosuchuser/x",
            "refers to the home folder of an unknown user, 'nosuchuser'; write the full path",
        ),
        (f"model.path={'x' * 5000}", "is too long: use at most 1023 bytes for a path and 255 for each name in it"),
        (f"run.dir={'x/' * 2500}", "is too long"),
        (f"model.adapter={'ü' * 128}", "is too long"),
        (f"reward.sources=['{'x' * 300}.py:score']", "is too long"),
        ('model.value_init="a\\u0000b"', "must not contain the character NUL"),
        ("run.name=-rf", "run.name = '-rf': must be letters, .*, and begin with neither '-' nor '.'"),
        ("rollout.temperature=1e-300", r"must be at least 0.01; for greedy decoding, .* set rollout.top_k = 1"),
        ("rollout.temperature=0", r"must be at least 0.01; for greedy decoding"),
        (".".join("a" * 1000) + "=1", "a key of 1000 parts; it must be table.key=value"),
    ],
)
def test_a_value_that_would_fail_later_is_refused_with_the_configuration(assignment: str, problem: str) -> None:
    with pytest.raises((ConfigError, UsageError), match=problem):
        load_config("quickstart", parse_overrides([assignment]))


FORMAT = FileFormat("format")


def test_a_file_without_a_number_is_of_the_first_version_and_a_newer_one_is_refused_by_name() -> None:
    assert FORMAT.current({"a": 1}, "it") == FORMAT.current({"format": 1, "a": 1}, "it") == {"format": 1, "a": 1}
    with pytest.raises(StorageError) as raised:
        FORMAT.current({"format": 2}, "card 'x'")
    assert str(raised.value) == (
        "card 'x' was written by a newer version (format 2, this one knows up to 1): update ppo-workbench"
    )


@pytest.mark.parametrize("content", [[], None, "a", {"format": "1"}, {"format": 0}, {"format": True}, {"format": 1.5}])
def test_a_file_without_a_version_is_damaged(content: Any) -> None:
    with pytest.raises(ValueError, match=r"table|whole number"):
        FORMAT.current(content, "it")


@pytest.mark.parametrize(
    ("number", "words"),
    [
        ("2", r"config.toml: the file was written by a newer version \(schema 2, .*update"),
        ("'1'", "schema = '1': must be a whole number from 1 to 1"),
        ("0", "schema = 0: must be"),
    ],
)
def test_a_configuration_of_another_version_is_refused(tmp_path: Path, number: str, words: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(f"schema = {number}\n[ppo]\nkl_coef = 0.3\n")
    with pytest.raises(ConfigError, match=words):
        load_config(path)
    (problem,) = config_problems(tomllib.loads(path.read_text()))
    assert re.search(words.removeprefix("config.toml: "), problem)


def change(checkpoint: Path, name: str, **values: Any) -> None:
    """Change values in a file of a checkpoint, as if it had been written with them."""
    content = json.loads((checkpoint / name).read_text())
    (checkpoint / name).write_text(json.dumps(content | values))
    write_state(checkpoint, json.loads((checkpoint / "state.json").read_text()))


def test_files_of_a_run_carry_their_versions_and_newer_ones_are_refused(tmp_path: Path) -> None:
    record(tiny_config(tmp_path, "run.name=a", "ppo.iterations=1"))
    run = RunFolder(tmp_path / "runs/a")
    assert tomllib.loads(run.config.read_text())["schema"] == CONFIG_FORMAT.version
    state = run.checkpoint(1) / "state.json"
    assert json.loads(state.read_text())["format"] == 1
    change(run.checkpoint(1), "policy/adapter_config.json", schema=2)
    with pytest.raises(StorageError, match=r"policy' was written by a newer version \(schema 2"):
        load_checkpoint(run.checkpoint(1), {})
    state.write_text(json.dumps(json.loads(state.read_text()) | {"format": 99}))
    with pytest.raises(StorageError, match=r"step-000001' was written by a newer version \(format 99"):
        load_checkpoint(run.checkpoint(1), {})


@pytest.mark.parametrize("name", ["reward_model.json", "state.json", "adapter/adapter_config.json"])
def test_a_reward_model_of_a_newer_version_is_refused(tmp_path: Path, name: str) -> None:
    tiny_config(tmp_path)
    train(reward_config(tmp_path, "run.name=rm"), preferences=labelled(24))
    (checkpoint, *_) = checkpoints(RunFolder(tmp_path / "runs/rm")).paths
    assert read_card(checkpoint)["format"] == 1
    newer = shutil.copytree(checkpoint, tmp_path / "newer")
    change(newer, name, format=7, schema=7)
    with pytest.raises(StorageError, match="was written by a newer version"):
        load_snapshot(newer)
