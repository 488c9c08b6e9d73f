"""`ppo-workbench compare --group` on folders of runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from apart import ROOT
from compared_runs import events_of_kind, make_run
from scripted_run import ERROR, ended, iteration, lines, started

from trainer.config import Config
from trainer.runs.folder import RunFolder
from workbench.cli import main as cli
from workbench.run.metrics import DPO

WARNING = "ppo-workbench: warning: "


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, RunFolder]:
    """Make three runs of each of two methods in the working folder, and a DPO run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    made = {"d": make_run(tmp_path / "runs", "d", events_of_kind(DPO), kind=DPO)}
    for name, gain, epochs in (("a", 0.0, 1), ("b", 0.2, 2)):
        for seed in range(3):
            steps = (iteration(n, score_mean=gain + 0.1 * seed + 0.01 * n, kl=0.5 * n) for n in range(1, 13))
            config = Config.model_validate({"run": {"seed": seed}, "ppo": {"epochs": epochs}})
            events = [started(seed=seed), *steps, ended()]
            made[f"{name}-{seed}"] = make_run(tmp_path / "runs", f"{name}-{seed}", events, config=config)
    return made


def compare(capsys: pytest.CaptureFixture[str], *groups: str, more: tuple[str, ...] = ()) -> tuple[int, Any, list[str]]:
    code = cli.main(["compare", *more, *(word for group in groups for word in ("--group", group))])
    return code, *lines(capsys)


@pytest.mark.parametrize("named", ["b=b-0,b-1,b-2", "b=b-*", "b=runs/b-*", "b= b-[01] , runs/b-2"])
def test_a_group_names_its_runs_by_name_folder_or_pattern(named: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = compare(capsys, "a=a-*", named)
    assert (code, err) == (0, [])
    assert [line.split()[:7] for line in out[1:3]] == [
        [letter, name, "3", "runs,", "seeds", "0-2", "done"] for letter, name in (("A", "a"), ("B", "b"))
    ]
    assert " b - a, score within 4 nats: +0.200 (+0.200 to +0.200, 3 pairs)" in out
    assert ["ppo.epochs", "1", "2"] in [line.split() for line in out]


def test_a_pattern_may_be_a_whole_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = compare(capsys, "a=a-*", f"b={tmp_path}/runs/b-*")
    assert (code, out[2].split(",")[0]) == (0, " B b  3 runs")


@pytest.mark.parametrize(
    ("groups", "reported"),
    [
        (["a=a-*"], "compare needs at least two groups, not only 'a': add another --group"),
        (["a=a-*", "b"], "--group b: must be NAME=RUN,RUN,... with a name of at most 40 characters"),
        (["a=a-*", "=b-0"], "--group =b-0: must be NAME="),
        (["a=a-*", "b=,"], "--group b=,: names no run"),
        (["a=a-0", "a=a-1"], "--group a is given twice: name all its runs in one, separated by commas"),
        (["a=a-*", "b=b-0,a-1"], "run 'a-1' is in the groups a and b: a run belongs to one group"),
        (["a=a-*", "b=zz*"], "--group b: no run matches 'zz*'"),
        (["a=a-*", "b=zz"], "no run 'zz' in 'runs'"),
        (["a=a-*", "b=d"], "'d' of group b is a dpo run: groups are of PPO runs"),
        (["a=a-0,b-0", "b=b-1"], "'a-0' and 'b-0' of group a both have seed 0: a group has one run for each seed"),
    ],
)
def test_wrong_groups_are_one_line(groups: list[str], reported: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = compare(capsys, *groups)
    assert (code, out, len(err)) == (2, [], 1)
    assert err[0].startswith(ERROR + reported)


def test_runs_beside_groups_and_nothing_at_all_are_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    _, _, err = compare(capsys, "a=a-*", "b=b-*", more=("d",))
    assert err == [f"{ERROR}'d' is in no group: compare either runs or groups"]
    code, _, err = compare(capsys)
    assert code == 2
    assert err == [f"{ERROR}compare needs at least two runs: name them, or groups of them with --group"]


def test_a_run_named_twice_counts_once(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = compare(capsys, "a=a-0,a-*", "b=b-*")
    assert (code, err) == (0, [f"{WARNING}'a-0' is named twice in group a and counts once"])
    assert out[1].startswith(" A a  3 runs")


def test_a_damaged_run_counts_as_far_as_it_can_be_read(
    runs: dict[str, RunFolder], capsys: pytest.CaptureFixture[str]
) -> None:
    journal = runs["b-1"].events
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:8]) + b'{"ti')
    code, out, err = compare(capsys, "a=a-*", "b=b-*")
    assert (code, err) == (0, [f"{WARNING}B b-1: the last line is cut: its event is lost"])
    assert "2 done, 1 interrupted, 1 damaged" in out[2]
    assert "! b-1 of b is not done: interrupted at iteration 6 of 12" in out


def test_json_of_groups_has_the_fields_of_runs_and_differences(capsys: pytest.CaptureFixture[str]) -> None:
    code, (out,), err = compare(capsys, "a=a-*", "b=b-*", more=("--json",))
    values = json.loads(out, parse_constant=pytest.fail)
    assert (code, err, values["comparison"]) == (0, [], 1)
    documented = (ROOT / "docs" / "experiments.md").read_text()
    differences = values["differences"]
    for name in [*values, *values["groups"][0], *differences[0], *(one["key"] for one in differences)]:
        assert f"`{name}`" in documented, name
    assert values["settings"]["differences"] == [{"key": "ppo.epochs", "values": {"A": 1, "B": 2}}]
