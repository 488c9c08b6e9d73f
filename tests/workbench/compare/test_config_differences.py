"""Differences between runs, found key by key and shown as a table or a list that fits its width."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.cells import cell_len

from trainer.errors import StorageError
from trainer.runs.folder import RunFolder, read_config
from workbench.compare.settings import (
    Difference,
    RunComparison,
    compare_runs,
    config_differences,
    difference_rows,
)
from workbench.runs.details import differences_content


def run(folder: Path, name: str, toml: str) -> RunFolder:
    (folder / name).mkdir()
    (folder / name / "config.toml").write_text(toml)
    return RunFolder(folder / name)


def test_only_settings_that_differ_are_named_by_dotted_key_in_the_files_order() -> None:
    a = {"run": {"name": "a"}, "ppo": {"kl_coef": 0.1, "epochs": 4, "gamma": 1.0}}
    b = {"run": {"name": "b"}, "ppo": {"kl_coef": 0.2, "epochs": 4, "gamma": 0.9}}
    assert config_differences({"a": a, "b": b}) == [
        Difference("ppo.kl_coef", {"a": 0.1, "b": 0.2}),
        Difference("ppo.gamma", {"a": 1.0, "b": 0.9}),
    ]
    assert config_differences({"a": {"x": {"y": 1}}, "b": {}, "c": {"x": {"y": 1}, "z": 2}}) == [
        Difference("x.y", {"a": 1, "b": None, "c": 1}),
        Difference("z", {"a": None, "b": None, "c": 2}),
    ]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (1, 1.0, True),
        (1, True, False),
        (float("nan"), float("nan"), True),
        ([1, 2], [1, 2], True),
        ([1, 2], [2, 1], False),
        ([{"a": 1}], [{"a": True}], False),
        ("1", 1, False),
    ],
)
def test_values_are_the_same_when_toml_means_the_same(one: object, other: object, same: bool) -> None:
    assert (config_differences({"a": {"k": one}, "b": {"k": other}}) == []) is same


def test_files_that_cannot_be_read_are_reported_and_the_others_are_compared(tmp_path: Path) -> None:
    old = run(tmp_path, "old", "[ppo]\nepochs = 2\n")  # without a number, it is of version 1
    new = run(tmp_path, "new", "schema = 1\n[ppo]\nepochs = 4\n")
    deep = ".".join("a" * 4000)
    others = [
        run(tmp_path, "newer", "schema = 99\n"),
        run(tmp_path, "broken", "x = ["),
        run(tmp_path, "d", f"{deep} = 1"),
    ]
    comparison = compare_runs([others[0], old, *others[1:], new])
    assert comparison.names == ["old", "new"]
    assert comparison.differences == [Difference("ppo.epochs", {"old": 2, "new": 4})]
    newer, broken, deeper = comparison.problems
    assert "was written by a newer version (schema 99" in newer
    assert str(others[1].config) in broken
    assert deeper.endswith("a key has more than 32 parts; fix the file")


@pytest.mark.parametrize(
    "content",
    [b"\xff\xfe", b"x = " + b"[" * 5000, b"# " + b"x" * 300_000, b"a = 1\na = 2"],
    ids=["not utf-8", "nested", "large", "twice"],
)
def test_hostile_files_are_an_error_of_one_line(tmp_path: Path, content: bytes) -> None:
    folder = run(tmp_path, "hostile", "")
    folder.config.write_bytes(content)
    with pytest.raises(StorageError, match=r"hostile/config\.toml") as caught:
        read_config(folder)
    assert "\n" not in str(caught.value)


def test_values_are_written_as_in_the_file() -> None:
    values = dict(enumerate((None, True, 0.05, "starter", ["q", "v"])))
    [(_, texts)] = difference_rows([Difference("k", {str(n): value for n, value in values.items()})], 100)
    assert texts == ["-", "true", "0.05", '"starter"', '["q", "v"]']


async def test_marked_runs_with_other_rewards_are_warned_about_and_their_sources_are_words(tmp_path: Path) -> None:
    length = '{ kind = "length", weight = 0.5, target = 40, tolerance = 8 }'
    folders = [
        run(tmp_path, "a", '[reward]\nsources = [{ kind = "lexicon", weight = 1.0 }]'),
        run(tmp_path, "b", f'[reward]\nsources = [{{ kind = "lexicon", weight = 1.0 }}, {length}]'),
    ]
    lines = differences_content(compare_runs(folders), 100).plain.splitlines()
    assert lines[0] == "▲ different rewards: the scores are not comparable (reward.sources)"
    assert lines[2].split("  ")[-1] == "lexicon + 0.5 x length 40 tolerance=8"
    assert "{" not in "".join(lines)


COMPARISON = RunComparison(
    ["quickstart-0001", "quickstart-0002"],
    [
        Difference("ppo.kl_coef", {"quickstart-0001": 0.1, "quickstart-0002": 0.05}),
        Difference("model.path", {"quickstart-0001": "starter", "quickstart-0002": None}),
    ],
    [],
)


def test_a_table_has_a_column_for_each_run_and_is_a_list_where_it_is_narrow() -> None:
    lines = differences_content(COMPARISON, 60).plain.splitlines()
    assert lines[0].split() == ["quickstart-0001", "quickstart-0002"]
    assert lines[1].split() == ["ppo.kl_coef", "0.1", "0.05"]
    assert lines[2].split() == ["model.path", '"starter"', "-"]
    assert lines[0].index("quickstart-0002") == lines[1].index("0.05")
    for width in range(38, 201):
        assert max(map(cell_len, differences_content(COMPARISON, width).plain.splitlines())) <= width
    lines = differences_content(COMPARISON, 20).plain.splitlines()
    assert lines[:3] == ["ppo.kl_coef", "  quickstart-0001 0.1", "  quickstart-0002 0.05"]
    assert "the same" in differences_content(RunComparison(["a", "b"], [], []), 60).plain


def test_hostile_values_and_names_are_shown_as_text() -> None:
    values = {"[/x]": "[@click=app.quit]x[/]", "b\x1b[31m": "\x1b]0;title\x07\u202e"}
    shown = differences_content(RunComparison(list(values), [Difference("k", values)], []), 120).plain
    assert "[/x]" in shown
    assert "[@click=app.quit]x[/]" in shown
    assert "\x1b" not in shown
    assert "\u202e" not in shown


def test_a_file_of_a_thousand_settings_is_cut() -> None:
    many = [Difference(f"k{i}", {"a": "x" * 100_000, "b": 1}) for i in range(1000)]
    lines = differences_content(RunComparison(["a", "b"], many, []), 80).plain.splitlines()
    assert len(lines) < 110
    assert "900 more" in lines[-1]
    assert max(map(len, lines)) <= 80
