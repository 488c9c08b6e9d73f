"""The race against TRL: what is compared, the tables, and the same prompts for both sides."""

from __future__ import annotations

import importlib
import json
import math
from pathlib import Path
from typing import Any

import pytest

from trainer.confidence import t_quantile

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
Rows = list[dict[str, float]]


@pytest.fixture
def frontier(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("frontier")


def rows(*points: tuple[float, float]) -> Rows:
    return [{"score": score, "kl": kl, "seconds": 1.0} for score, kl in points]


def steady(score: float, kl: float) -> Rows:
    return rows(*[(score, kl)] * 10)


def test_the_best_is_of_five_iterations_in_a_row_whose_mean_kl_is_within_the_level(frontier: Any) -> None:
    best_within = frontier.best_within
    run = rows(*[(0.1, 0.0)] * 5, *[(0.5, 4.0)] * 5, *[(0.9, 10.0)] * 5)
    assert best_within(run, 2) == pytest.approx(0.1 + 0.4 * 2 / 5)  # two of the second five: a mean KL of 1.6
    assert best_within(run, 4) == pytest.approx(0.5)
    assert best_within(run, 16) == pytest.approx(0.9)
    assert math.isnan(best_within(steady(0.5, 3.0), 2))
    assert math.isnan(best_within(run[:4], 16))


def test_the_table_pairs_the_seeds_that_both_sides_have_within_a_level(frontier: Any) -> None:
    ours = {seed: steady(0.5 + 0.1 * seed, 1.0) for seed in (0, 1, 2, 7)}
    theirs = {seed: steady(0.4, 1.0) for seed in (0, 1, 2)}
    line = frontier.table({"ours": ours, "trl": theirs}).splitlines()[2]
    margin = t_quantile(2) * 0.1 / math.sqrt(3)
    assert line == (
        "| 2 | 0.50, 0.60, 0.70 | 0.40, 0.40, 0.40 | "
        f"{0.2:+.2f} ({0.2 - margin:+.2f} to {0.2 + margin:+.2f}) | 3 of 3 |"
    )
    ours = {seed: steady(0.5, 1.0) for seed in range(3)}
    theirs = {0: steady(0.4, 3.0), 1: steady(0.6, 1.0), 2: steady(0.4, 1.0)}  # seed 0 never within the level 2
    lines = frontier.table({"ours": ours, "trl": theirs}).splitlines()[2:]
    within_2, within_4 = ([cell.strip() for cell in line.split("|")] for line in lines[:2])
    assert within_2[3] == "-, 0.60, 0.40"
    assert within_2[4].startswith("+0.00 ")
    assert (within_2[5], within_4[5]) == ("1 of 2", "2 of 3")


def test_a_journal_keeps_what_the_tables_need(frontier: Any, tmp_path: Path) -> None:
    run = [{"score": 0.123456, "kl": 1.0, "seconds": 2.0, "explained_variance": -0.5}]
    path = frontier.journal("ours", "ppo", 3, tmp_path)
    frontier.write_journal(path, {"settings": ["ppo.lam=0.7"]}, run)
    assert frontier.read_journal(path) == [{**run[0], "score": 0.1235}]
    assert json.loads(path.read_text().splitlines()[0])["settings"] == ["ppo.lam=0.7"]


def test_each_pass_has_all_prompts_once_in_an_order_of_the_seed(frontier: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frontier, "resolve_model", lambda model: model)
    works = {seed: frontier.workload("ppo", seed).prompts for seed in (0, 1)}
    assert works[0] == frontier.workload("ppo", 0).prompts != works[1]
    count = frontier.OPENINGS
    for prompts in works.values():
        assert len(prompts) == frontier.ITERATIONS * frontier.BATCH
        passes = [prompts[start : start + count] for start in range(0, len(prompts), count)]
        assert all(sorted(one) == sorted(passes[0]) and len(set(one)) == count for one in passes)
    grouped = frontier.workload("rloo", 0)
    assert len(grouped.prompts) * grouped.samples_per_prompt == frontier.ITERATIONS * frontier.BATCH
