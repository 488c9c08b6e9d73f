"""Comparison with peers: the commands of each side, the events that a side prints, the tables, the race's prompts."""

from __future__ import annotations

import importlib
import io
import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from trainer.confidence import t_quantile
from trainer.config import config_warnings, load_config

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
Rows = list[dict[str, float]]


@pytest.fixture(autouse=True)
def _benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Return a function that runs a benchmark's main and returns its commands and workload instead of measuring."""
    import bench_iteration

    measured: dict[str, Any] = {}

    def measure(commands: dict[str, list[str]], workload: Any, folder: Path, **_: Any) -> None:
        files = {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}
        for name, text in files.items():  # the folder is gone when main returns
            (tmp_path / name).write_text(text, encoding="utf-8")
        measured.update(commands=commands, workload=workload)

    def run(*arguments: str) -> tuple[dict[str, list[str]], Any]:
        monkeypatch.setattr(bench_iteration, "measure", measure)
        bench_iteration.main(["--model", str(tmp_path), "--trl-python", "trl/python", *arguments])
        return measured["commands"], measured["workload"]

    return run


def test_ppo_has_a_critic_and_one_response_to_each_prompt(commands: Any, tmp_path: Path) -> None:
    sides, workload = commands("--value-model", "adapter", "--trl-reward-model", "--iterations", "1")
    config = load_config(str(tmp_path / "config.toml"))
    assert config_warnings(config) == []
    assert (config.ppo.estimator, config.model.value_model) == ("gae", "adapter")
    assert (config.rollout.samples_per_prompt, config.ppo.iterations, len(workload.prompts)) == (1, 2, 16)
    assert sides["trl"][1:] == [str(BENCHMARKS / "trl_ppo.py"), sides["trl"][2], "--reward-model"]


def test_an_environment_is_made_again_only_when_its_requirements_change(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import workload

    requirements = tmp_path / "requirements-trl.txt"
    environment = tmp_path / ".venv-trl"
    started: list[list[str]] = []
    failing = False

    def run(command: list[Any], **_: Any) -> SimpleNamespace:
        environment.mkdir(exist_ok=True)
        started.append([str(part) for part in command])
        return SimpleNamespace(returncode=int(failing and "pip" in command))

    monkeypatch.setattr(workload, "HERE", tmp_path)
    monkeypatch.setattr(workload.subprocess, "run", run)
    requirements.write_text("peer==1\n", encoding="utf-8")
    assert workload.trl_python() == environment / "bin" / "python"
    assert [command[2] for command in started] == ["venv", "pip"]
    assert started[1][-2:] == ["-r", str(requirements)]
    workload.trl_python()
    assert len(started) == 2
    requirements.write_text("peer==2\n", encoding="utf-8")
    failing = True
    with pytest.raises(SystemExit, match="--trl-python"):
        workload.trl_python()
    failing = False
    workload.trl_python()  # what failed is not taken for complete
    assert [command[2] for command in started] == ["venv", "pip"] * 3


SIDE = """
import sys
sys.path.append({benchmarks!r})
from side import PhaseClock, event_output
with event_output() as emit:
    print("loading")
    emit({{"event": "run", "versions": {{"peer": "1.0"}}}})
    clock = PhaseClock(emit)
    clock.start()
    for _ in range(3):
        clock.end_generation({tokens})
        clock.end_iteration()
{end}
"""


@pytest.fixture
def run_side(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Return a function that runs a side of three iterations of eight tokens, in an empty folder."""
    import bench_iteration as comparison
    from workload import Workload

    monkeypatch.setattr(comparison, "ROOT", tmp_path)
    workload = Workload("model", ["a", "b", "c"], batch_size=2, max_new_tokens=4, epochs=1, samples_per_prompt=2)

    def run(tokens: int = 8, end: str = "") -> Any:
        program = SIDE.format(benchmarks=str(BENCHMARKS), tokens=tokens, end=end)
        return comparison.run_side([sys.executable, "-c", program], workload, tmp_path / "side.log")

    return run


def test_the_first_iteration_of_a_side_is_apart_and_its_prints_are_no_events(run_side: Any, tmp_path: Path) -> None:
    run = run_side()
    assert run.versions == {"peer": "1.0"}
    assert (len(run.seconds), [set(phases) for phases in run.phases]) == (2, [{"generate", "update"}] * 2)
    assert run.peak_bytes > 2**20
    assert (tmp_path / "side.log").read_text(encoding="utf-8") == "loading\n"


def test_a_side_that_generates_another_number_of_tokens_or_fails_is_refused(run_side: Any) -> None:
    with pytest.raises(SystemExit, match=r"generated \[7, 14, 21\] tokens, not \[8, 16, 24\]"):
        run_side(tokens=7)
    with pytest.raises(SystemExit, match="ended with code 1: no memory"):
        run_side(end="sys.exit('no memory')")
    with pytest.raises(SystemExit, match="'hello' is not an event"):
        run_side(end="print('hello')")


def test_the_table_has_medians_and_the_ratio_of_every_side_to_the_first() -> None:
    import bench_iteration as comparison
    from workload import Workload

    workload = Workload("model", ["a"] * 4, batch_size=4, max_new_tokens=5, epochs=1, samples_per_prompt=4)

    def run(scale: float) -> Any:
        phases = [{"generate": scale, "score": scale, "update": 2 * scale} for _ in range(3)]
        return comparison.Run(9.0, [5 * scale, 6 * scale, 4 * scale], phases, {}, int(scale * 2**30))

    console = Console(width=120, file=io.StringIO())
    console.print(comparison.compare({"ours": [run(2)], "trl": [run(3)], "other": [run(1)]}, workload))
    text = console.file.getvalue()
    rows = {line.split("│")[1].strip(): line.split("│")[2:-1] for line in text.splitlines() if line.startswith("│")}
    figures = {name: [float(cell) for cell in cells] for name, cells in rows.items()}
    assert "4 x 5 new tokens, epochs: 1" in " ".join(text.split())
    assert figures["iteration (s)"] == [10, 15, 5, 1.5, 0.5]
    assert figures["score and the rest (s)"] == [4, 6, 2, 1.5, 0.5]
    assert figures["tokens/s, generation"] == [10.0, 6.7, 20.0, 0.67, 2.0]
    assert figures["tokens/s, whole iteration"] == [2.0, 1.3, 4.0, 0.67, 2.0]
    assert figures["peak resident memory (GiB)"] == [2, 3, 1, 1.5, 0.5]


# The race against TRL


@pytest.fixture
def frontier() -> Any:
    return importlib.import_module("frontier")


def rows(*points: tuple[float, float]) -> Rows:
    return [{"score": score, "kl": kl, "seconds": 1.0} for score, kl in points]


def steady(score: float, kl: float) -> Rows:
    return rows(*[(score, kl)] * 10)


def test_the_best_is_of_five_iterations_in_a_row_whose_mean_kl_is_within_the_level(frontier: Any) -> None:
    best_within, best_stretch = frontier.best_within, frontier.best_stretch
    run = rows(*[(0.1, 0.0)] * 5, *[(0.5, 4.0)] * 5, *[(0.9, 10.0)] * 5)
    assert best_within(run, 2) == pytest.approx(0.1 + 0.4 * 2 / 5)  # two of the second five: a mean KL of 1.6
    assert best_within(run, 4) == pytest.approx(0.5)
    assert best_within(run, 16) == pytest.approx(0.9)
    assert [best_stretch(run, level) for level in (2, 4, 16)] == [2, 5, 10]
    assert math.isnan(best_within(steady(0.5, 3.0), 2))
    assert best_stretch(run[:4], 16) is None


def test_the_table_pairs_the_seeds_that_both_sides_have_within_a_level(frontier: Any) -> None:
    def journal(score: float, kl: float, **new: float) -> Any:
        return frontier.Journal(steady(score, kl), {level: {"score": score} for level, score in new.items()})

    ours = {seed: journal(0.5 + 0.1 * seed, 1.0) for seed in (0, 1, 2, 7)}
    theirs = {seed: journal(0.4, 1.0) for seed in (0, 1, 2)}
    margin = t_quantile(2) * 0.1 / math.sqrt(3)
    lines = frontier.table({"ours": ours, "trl": theirs}).splitlines()[2:]
    assert lines[0] == (
        "| training | 2 | 0.50, 0.60, 0.70 | 0.40, 0.40, 0.40 | "
        f"{0.2:+.2f} ({0.2 - margin:+.2f} to {0.2 + margin:+.2f}) | 3 of 3 |"
    )
    assert len(lines) == len(frontier.LEVELS)  # nothing was tried on new prompts
    ours = {seed: journal(0.5, 1.0, **{"4": 0.3}) for seed in range(3)}
    theirs = {0: journal(0.4, 3.0, **{"4": 0.2}), 1: journal(0.6, 1.0), 2: journal(0.4, 1.0, **{"4": 0.1})}
    cells = [
        [cell.strip() for cell in line.split("|")][1:-1]
        for line in frontier.table({"a": ours, "b": theirs}).splitlines()[2:]
    ]
    within_2, within_4, *_, new = cells  # seed 0 of the other side is never within 2
    assert within_2[3] == "-, 0.60, 0.40"
    assert within_2[4].startswith("+0.00 ")
    assert (within_2[5], within_4[5]) == ("1 of 2", "2 of 3")
    assert new[:4] == ["new", "4", "0.30, 0.30, 0.30", "0.20, -, 0.10"]
    assert new[5] == "2 of 2"


def test_a_journal_keeps_what_the_tables_need(frontier: Any, tmp_path: Path) -> None:
    run = [{"score": 0.123456, "kl": 1.0, "seconds": 2.0, "explained_variance": -0.5}]
    path = frontier.journal("sums", "ours", "ppo", 3, 1e-4, tmp_path)
    frontier.write_journal(path, {"settings": ["ppo.lam=0.7"]}, run, [{"held_out": "4", "score": 0.25, "kl": 3.0}])
    kept = frontier.read_journal(path)
    assert kept.rows == [{**run[0], "score": 0.1235}]
    assert kept.on_new_prompts(4) == 0.25
    assert math.isnan(kept.on_new_prompts(8))
    assert json.loads(path.read_text().splitlines()[0])["settings"] == ["ppo.lam=0.7"]


@pytest.mark.parametrize("name", ["openings", "stories", "sums"])
def test_no_prompt_of_a_task_is_both_trained_on_and_held_out(frontier: Any, name: str, tmp_path: Path) -> None:
    task = frontier.load_task(name, tmp_path)
    assert len(set(task.held_out)) == len(task.held_out) == frontier.HELD_OUT
    assert not set(task.prompts) & set(task.held_out)


def test_each_pass_has_all_prompts_once_in_an_order_of_the_seed(
    frontier: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(frontier, "resolve_model", lambda model: model)
    task = frontier.load_task("openings", tmp_path)
    works = {seed: frontier.workload(task, "ppo", seed, 1e-4).prompts for seed in (0, 1)}
    assert works[0] == frontier.workload(task, "ppo", 0, 1e-4).prompts != works[1]
    count = len(task.prompts)
    for prompts in works.values():
        assert len(prompts) == frontier.ITERATIONS * frontier.BATCH
        passes = [prompts[start : start + count] for start in range(0, len(prompts), count)]
        assert all(sorted(one) == sorted(passes[0]) and len(set(one)) == count for one in passes)
    grouped = frontier.workload(task, "rloo", 0, 1e-4)
    assert len(grouped.prompts) * grouped.samples_per_prompt == frontier.ITERATIONS * frontier.BATCH


@pytest.mark.parametrize(
    ("response", "score"), [("It is 7.", 1.0), ("3 + 4 = 7", 1.0), ("7, or 8?", 0.0), ("seven", 0.0), ("", 0.0)]
)
def test_a_sum_is_right_if_the_last_number_is(response: str, score: float) -> None:
    rewards = importlib.import_module("frontier_rewards")
    assert rewards.right_sum("user\nWhat is 3 + 4?\nassistant\n", response) == score
    assert rewards.right_sum("What else?", response) == 0.0
