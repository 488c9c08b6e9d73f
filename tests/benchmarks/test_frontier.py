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


@pytest.fixture
def ablations(frontier: Any) -> Any:
    return importlib.import_module("ablations")


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


def test_the_table_pairs_the_seeds_that_both_sides_have(frontier: Any) -> None:
    ours = {seed: steady(0.5 + 0.1 * seed, 1.0) for seed in (0, 1, 2, 7)}
    theirs = {seed: steady(0.4, 1.0) for seed in (0, 1, 2)}
    line = frontier.table({"ours": ours, "trl": theirs}).splitlines()[2]
    margin = t_quantile(2) * 0.1 / math.sqrt(3)
    assert line == (
        "| 2 | 0.50, 0.60, 0.70 | 0.40, 0.40, 0.40 | "
        f"{0.2:+.2f} ({0.2 - margin:+.2f} to {0.2 + margin:+.2f}) | 3 of 3 |"
    )


def test_a_run_that_was_never_within_a_level_makes_no_pair_there(frontier: Any) -> None:
    ours = {seed: steady(0.5, 1.0) for seed in range(3)}
    theirs = {0: steady(0.4, 3.0), 1: steady(0.6, 1.0), 2: steady(0.4, 1.0)}
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


def test_an_ablation_shows_its_difference_from_the_base_on_the_same_seeds(ablations: Any) -> None:
    runs = {
        ablations.BASE: {10: steady(0.3, 1.0), 11: steady(0.5, 1.0)},
        "other": {10: steady(0.4, 1.0), 11: steady(0.6, 1.0), 12: steady(0.9, 1.0)},
    }
    head, _, base, other = ablations.table(runs).splitlines()[:4]
    assert head.count("|") == base.count("|") == other.count("|")
    assert base.startswith("| base | 10, 11 | 0.40 |")
    assert other.startswith("| other | 10, 11, 12 | 0.63 (**+0.10**) |")  # variant and seed explain both: no noise
    table = ablations.table(runs | {"other": {11: steady(0.8, 1.0)}}, against="other")
    *_, base, other = table.splitlines()  # one variant on several seeds does not tell the noise
    assert base.startswith("| base | 10, 11 | 0.40 (-0.30) |")
    assert other.startswith("| other | 11 | 0.80 |")


def test_the_noise_is_what_variant_and_seed_do_not_explain(ablations: Any) -> None:
    """With two variants on two seeds, the residuals are (+d, -d, -d, +d) with one degree of freedom."""
    runs = {
        ablations.BASE: {10: steady(0.30, 1.0), 11: steady(0.50, 1.0)},
        "other": {10: steady(0.40, 1.0), 11: steady(0.64, 1.0)},
        "unfinished": {10: steady(0.90, 1.0)},
    }
    noise = ablations.Noise.of(runs, 2)
    assert noise.freedom == 1
    assert noise.deviation == pytest.approx(2 * 0.01)
    assert noise.least_difference(2) == pytest.approx(t_quantile(1) * 0.02)  # 12.71: two seeds tell little
    other = ablations.table(runs).splitlines()[3]
    assert other.startswith("| other | 10, 11 | 0.52 (+0.12) |")
    assert "on 2 seeds that noise does not explain: 0.25 within 2, 0.25 within 4" in ablations.table(runs)


def test_a_difference_beyond_the_noise_is_bold(ablations: Any) -> None:
    draws = (0.01, -0.02, 0.02, -0.01, 0.0)
    alike = {f"v{n}": {10: steady(0.5 + d, 1.0), 11: steady(0.5 - d, 1.0)} for n, d in enumerate(draws)}
    runs = {ablations.BASE: alike["v4"], **alike, "better": {10: steady(0.62, 1.0), 11: steady(0.60, 1.0)}}
    *_, better = (line for line in ablations.table(runs).splitlines() if line.startswith("|"))
    assert better.startswith("| better | 10, 11 | 0.61 (**+0.11**) |")
    assert ablations.table(runs).count("**") == 2 * 4  # at all four levels, and no other variant


def test_names_of_variants_are_names_of_files(ablations: Any) -> None:
    names = [ablations.slug(name) for name in ablations.VARIANTS]
    assert len(set(names)) == len(names)
    assert all(name == name.strip("-") and not set(name) & set(" ,/") for name in names)
