"""Files left by others: anything but a regular file, too large or nested too deeply, is refused."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from trainer.config import load_config, parse_overrides
from trainer.errors import ConfigError, UsageError
from trainer.files import DEEPEST, TOML_BYTES, open_regular, parse_toml, read_regular, read_toml

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
