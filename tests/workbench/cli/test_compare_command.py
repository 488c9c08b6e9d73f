"""`ppo-workbench compare` on folders of runs: whole, broken, under way, of any kind; as a report and as JSON."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from apart import ROOT
from compared_runs import HOSTILE, add_samples, evaluation, events_of_kind, make_run, ppo_events
from rich.cells import cell_len
from scripted_run import ended, iteration, lines, refused, started

from trainer.config import Config
from trainer.runs.folder import RunFolder
from workbench.cli import main as cli
from workbench.run.metrics import DPO, REWARD_MODEL

WARNING = "ppo-workbench: warning: "


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, RunFolder]:
    """Make runs of every kind in the working folder."""
    monkeypatch.setenv("COLUMNS", "100")
    root = tmp_path / "runs"
    root.mkdir()
    made = {
        "a": make_run(root, "a", [*ppo_events(), evaluation(12)]),
        "b": make_run(root, "b", ppo_events(20, seed=1)[:-1], config=Config.model_validate({"ppo": {"epochs": 7}})),
        "d": make_run(root, "d", events_of_kind(DPO), kind=DPO),
        "r": make_run(root, "r", events_of_kind(REWARD_MODEL), kind=REWARD_MODEL),
    }
    add_samples(made["a"], 12, Once=" there was joy.", The_end=HOSTILE)
    add_samples(made["b"], 20, Other=" nothing.")
    add_samples(made["b"], 3, Once=" it rained.")
    return made


@pytest.fixture
def seeded(runs: dict[str, RunFolder], tmp_path: Path) -> dict[str, RunFolder]:
    """Make three runs of each of two methods, too."""
    for name, gain, epochs in (("m", 0.0, 1), ("n", 0.2, 2)):
        for seed in range(3):
            steps = (iteration(n, score_mean=gain + 0.1 * seed + 0.01 * n, kl=0.5 * n) for n in range(1, 13))
            config = Config.model_validate({"run": {"seed": seed}, "ppo": {"epochs": epochs}})
            events = [started(seed=seed), *steps, ended()]
            runs[f"{name}-{seed}"] = make_run(tmp_path / "runs", f"{name}-{seed}", events, config=config)
    return runs


def compare(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, list[str], list[str]]:
    code = cli.main(["compare", *argv])
    return code, *lines(capsys)


def as_json(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    code, (out,), err = compare(capsys, *argv, "--json")
    assert (code, err) == (0, [])
    values: dict[str, Any] = json.loads(out, parse_constant=pytest.fail)
    return values


def test_runs_of_every_kind_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = compare(capsys, "a", "b", "d", "r", "--width", "80")
    assert (code, err) == (0, [])
    assert [line.split()[:4] for line in out[1:5]] == [
        ["A", "a", "ppo", "done"],
        ["B", "b", "ppo", "interrupted"],
        ["C", "d", "dpo", "done"],
        ["D", "r", "reward-model", "done"],
    ]
    assert all(cell_len(line) <= 80 and line.isprintable() for line in out)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("no_color", [False, True])
def test_on_a_terminal_runs_have_colours_unless_no_color_says_otherwise(
    no_color: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, plain, _ = compare(capsys, "a", "b", "d")
    for name in ("COLORTERM", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    if no_color:
        monkeypatch.setenv("NO_COLOR", "1")
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    cli.main(["compare", "a", "b", "d"])
    shown = terminal.getvalue()
    assert ("\x1b[36m A" in shown) is not no_color
    assert [line.rstrip() for line in re.sub(r"\x1b\[[\d;]*m", "", shown).splitlines()] == plain


def test_a_broken_journal_is_compared_as_far_as_it_goes_and_reported(
    runs: dict[str, RunFolder], capsys: pytest.CaptureFixture[str]
) -> None:
    journal = runs["b"].events
    content = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([*content[:6], b'{"event": "iteration", "ti\x1b[31m\n', *content[7:], b'{"ti']))
    code, out, err = compare(capsys, "a", "b")
    assert code == 0
    assert "interrupted, damaged  20/20" in out[2]
    assert err == [
        f"{WARNING}B b: line 7 ignored: it was cut or damaged",
        f"{WARNING}B b: the last line is cut: its event is lost",
    ]


def test_a_run_without_journal_or_configuration_does_not_keep_the_others_from_being_compared(
    runs: dict[str, RunFolder], capsys: pytest.CaptureFixture[str]
) -> None:
    runs["a"].events.unlink()
    runs["b"].config.write_text("[")
    runs["d"].samples_file(1).write_bytes(b"PAR1")
    code, out, err = compare(capsys, "a", "b", "d")
    assert code == 0
    assert "damaged" in out[1]
    assert [line.removeprefix(WARNING).partition(":")[0] for line in err] == ["A a", "B b", "C d"]
    assert "no journal" in err[0]
    assert "config.toml" in err[1]


def test_a_run_named_twice_is_compared_once_the_plan_of_a_sweep_is_left_out_and_a_run_may_be_under_way(
    runs: dict[str, RunFolder], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare(capsys, "a", "runs/a")[0] == 2
    (tmp_path / "runs" / "kl.sweep.json").write_text("{}")
    with runs["b"].lock():
        code, out, err = compare(capsys, "a", "b", "runs/../runs/a", "runs/kl.sweep.json")
    assert code == 0
    assert err == [
        f"{WARNING}'runs/../runs/a' is named twice and compared once",
        f"{WARNING}'runs/kl.sweep.json' is a file and not a run: left out",
    ]
    assert [line.split()[:4] for line in out[1:3]] == [["A", "a", "ppo", "done"], ["B", "b", "ppo", "training"]]
    assert out[3] == ""


@pytest.mark.parametrize(
    ("argv", "reported"),
    [
        ("", "compare needs at least two runs: name them, or groups of them with --group"),
        ("a b --width 20", "--width 20: must be 60 to 400"),
        (" ".join(f"n{number}" for number in range(27)), "27 runs are too many to compare at once: name at most 26"),
        ("d --group m=m-* --group n=n-*", "'d' is in no group: compare either runs or groups"),
        ("--group m=m-*", "compare needs at least two groups, not only 'm': add another --group"),
        ("--group m=m-* --group n", "--group n: must be NAME=RUN,RUN,... with a name of at most 40 characters"),
        ("--group m=m-* --group n=,", "--group n=,: names no run"),
        ("--group m=m-0 --group m=m-1", "--group m is given twice: name all its runs in one, separated by commas"),
        ("--group m=m-* --group n=n-0,m-1", "run 'm-1' is in the groups m and n: it belongs to one group"),
        ("--group m=m-* --group n=zz*", "--group n: no run matches 'zz*'"),
        ("--group m=m-* --group n=zz", "no run 'zz' in 'runs'"),
        ("--group m=m-* --group n=d", "'d' of group n is a dpo run: groups are of PPO runs"),
        ("--group m=m-0,n-0 --group n=n-1", "'m-0' and 'n-0' of group m both have seed 0: a group has one run for"),
    ],
)
def test_wrong_usage_is_one_line(
    argv: str, reported: str, seeded: dict[str, RunFolder], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(27 if "n26" in argv else 0):
        make_run(tmp_path / "runs", f"n{number}", [])
    code, error = refused(capsys, "compare", *argv.split())
    assert (code, error.startswith(reported)) == (2, True)


def test_runs_without_any_numbers_yet_cannot_be_compared(
    runs: dict[str, RunFolder], capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        runs[name].events.write_bytes(b"")
    assert refused(capsys, "compare", "a", "b")[0] == 3


def test_json_has_the_fields_that_the_documentation_lists(
    seeded: dict[str, RunFolder], capsys: pytest.CaptureFixture[str]
) -> None:
    values = as_json(capsys, "a", "b", "d", "r")
    documented = (ROOT / "docs" / "experiments.md").read_text()
    assert values["comparison"] == 1
    main = "comparison groups runs cautions numbers differences frontier curves settings prompts"
    assert list(values) == main.split()
    named = [*values, *values["runs"][0], *values["numbers"], *values["frontier"], *values["settings"]]
    groups = as_json(capsys, "--group", "m=m-*", "--group", "n=n-*")
    differences = groups["differences"]
    named += [*groups, *groups["groups"][0], *differences[0], *(one["key"] for one in differences)]
    assert [name for name in named if f"`{name}`" not in documented] == []
    assert groups["settings"]["differences"] == [{"key": "ppo.epochs", "values": {"A": 1, "B": 2}}]


def test_json_has_numbers_in_plain_units_null_for_unknown_ones_settings_whole_texts_and_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = as_json(capsys, "a", "d")
    numbers = values["numbers"]
    assert numbers["truncated"] == {"A": 0.125, "B": None}
    assert numbers["memory_bytes"] == {"A": 1_640_000_000, "B": 1_640_000_000}
    assert numbers["pair_accuracy_interval"] == {"A": None, "B": [0.644, 0.769]}
    assert values["frontier"]["runs"]["B"]["compared"] == "held_out"
    last = {"iteration": 12, "kl": numbers["kl"]["A"], "score": numbers["score"]["A"]}
    assert values["frontier"]["runs"]["A"]["training"][-1] == last
    assert values["curves"]["A"]["iteration"] == [*range(1, 13)]
    assert len(values["curves"]["B"]["loss"]) == 8
    values = as_json(capsys, "a", "b")
    assert values["settings"]["differences"] == [{"key": "ppo.epochs", "values": {"A": Config().ppo.epochs, "B": 7}}]
    (shared,) = values["prompts"]
    assert shared["prompt"] == "Once"
    assert shared["answers"]["A"]["completion"] == " there was joy."
    assert shared["answers"]["B"]["iteration"] == 3
    make_run(tmp_path / "elsewhere", "a", ppo_events(3))
    assert [run["name"] for run in as_json(capsys, "runs/a", "elsewhere/a")["runs"]] == ["runs/a", "elsewhere/a"]


@pytest.mark.parametrize("named", ["n=n-0,n-1,n-2", "n=runs/n-*", "n= n-[01] , {folder}/runs/n-2"])
def test_a_group_names_its_runs_by_name_folder_or_pattern(
    named: str, seeded: dict[str, RunFolder], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = compare(capsys, "--group", "m=m-0,m-*", "--group", named.replace("{folder}", str(tmp_path)))
    assert (code, err) == (0, [f"{WARNING}'m-0' is named twice in group m and counts once"])
    assert [line.split()[:7] for line in out[1:3]] == [
        [letter, name, "3", "runs,", "seeds", "0-2", "done"] for letter, name in (("A", "m"), ("B", "n"))
    ]
    assert " n - m, score within 4 nats: +0.200 (+0.200 to +0.200, 3 pairs)" in out
    assert ["ppo.epochs", "1", "2"] in [line.split() for line in out]
