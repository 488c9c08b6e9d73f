"""The report on groups of runs: what it says, what it does not claim, and that it fits its width."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from compared_runs import HOSTILE, compared
from rich.cells import cell_len
from scripted_run import ended, iteration, started

from trainer.confidence import Interval
from trainer.config import Config
from trainer.events import SettingChanged
from workbench.compare.compared_run import LETTERS, ComparedRun
from workbench.compare.group_report import group_cautions, group_report_lines, group_values, sentence
from workbench.compare.groups import MEASURES, Contrast, Group
from workbench.compare.settings import settings_of_groups
from workbench.kit.lines import plain

BY_KEY = {measure.key: measure for measure in MEASURES}
A, B = Group("A", "a", []), Group("B", "b", [])


def run(
    name: str, seed: int, *, gain: float = 0.0, count: int = 12, config: dict[str, Any] | None = None, **changes: Any
) -> ComparedRun:
    rng, base = random.Random(f"{name} {seed}"), 0.1 * seed
    steps = [
        iteration(
            n, score_mean=base + gain + rng.gauss(0, 0.01), kl=0.5 * n, explained_variance=0.4 + rng.gauss(0, 0.1)
        )
        for n in range(1, count + 1)
    ]
    ends = [ended(iteration=count)] if count == 12 else []
    whole = {"run": {"seed": seed}, **(config or {})}
    events = [started(seed=seed), *steps, *ends]
    return compared(f"{name}-{seed}", events, config=Config.model_validate(whole).model_dump(), **changes)


def group(place: int, name: str, seeds: range = range(3), **changes: Any) -> Group:
    return Group(LETTERS[place], name, [run(name, seed, place=place, **changes) for seed in seeds])


def report(groups: list[Group], width: int = 80) -> list[str]:
    return [plain(line).rstrip() for line in group_report_lines(groups, width)]


def cautions_of(*groups: Group) -> list[str]:
    return group_cautions(groups, settings_of_groups(groups))


def hostile() -> list[Group]:
    numbers = {"score_mean": 1e308, "kl": 1e-308, "seconds": {HOSTILE: 1e300}}
    events = [
        started(model=HOSTILE * 20, device=HOSTILE),
        *(iteration(number, **numbers) for number in range(1, 9)),
        SettingChanged(iteration=2, key=HOSTILE, old=HOSTILE, value=[{"kind": HOSTILE * 30}]),
    ]
    return [
        Group(
            LETTERS[place],
            f"{place}{HOSTILE}",
            [
                compared(HOSTILE.replace("/", ""), events, place=place, config={HOSTILE: place + n}, problems=[HOSTILE])
                for n in range(2)
            ],
        )
        for place in range(3)
    ]


GROUPS = {
    "two": [group(0, "a"), group(1, "b", gain=0.2)],
    "many": [group(place, f"method-{place}", range(place + 1)) for place in range(6)],
    "hostile": hostile(),
    "empty": [Group("A", "a", [compared("x", [], config=None)]), Group("B", "b", [compared("y", [started()])])],
}


@pytest.mark.parametrize(("groups", "width"), [*itertools.product(GROUPS, (60, 80, 120))])
def test_every_line_fits_the_width_and_is_safe_to_print(groups: str, width: int) -> None:
    for line in report(GROUPS[groups], width):
        assert cell_len(line) <= width, line
        assert line.isprintable(), line


def test_the_sections_come_in_order_and_a_group_has_one_line() -> None:
    lines = report(GROUPS["two"])
    titles = [line.partition("  ")[0].rstrip(" ─") for line in lines if line.endswith("──") and line[0] != " "]
    assert titles == ["groups", "measures", "what the runs tell", "settings"]
    assert lines[1:3] == [" a  3 runs, seeds 0-2, done, starter", " b  3 runs, seeds 0-2, done, starter"]


def test_the_table_has_means_intervals_and_the_difference_from_the_first() -> None:
    lines = report(GROUPS["two"])
    at = next(place for place, line in enumerate(lines) if line.startswith("score, last 5"))
    assert lines[at].split()[-1] == "+0.20"
    assert lines[at + 1].startswith("  95% interval ")
    assert lines[at + 1].count(" to ") == 3


def told(key: str, low: float, high: float, pairs: int = 5) -> str:
    return sentence(BY_KEY[key], A, B, Contrast(Interval((low + high) / 2, low, high), pairs, 5, 4))


@pytest.mark.parametrize(
    ("key", "low", "high", "says"),
    [
        ("score_within_8", 0.03, 0.21, "b scores 0.12 more than a within 8 nats (0.03 to 0.21, 5 pairs)"),
        ("score", -0.21, -0.03, "b scores 0.12 less than a in the last 5 iterations (0.03 to 0.21, 5 pairs)"),
        ("kl", 1.0, 2.0, "b has 1.50 nats more KL than a in the last 5 iterations (1.00 to 2.00, 5 pairs)"),
        (
            "seconds_an_iteration",
            -3.0,
            -1.0,
            "b takes 2.00 s less time than a for an iteration (1.00 to 3.00, 5 pairs)",
        ),
    ],
)
def test_an_interval_without_0_is_told_as_more_or_less(key: str, low: float, high: float, says: str) -> None:
    assert told(key, low, high) == says


def test_an_interval_with_0_is_never_told_as_a_difference() -> None:
    assert told("score_within_8", -0.1, 0.25, 3) == (
        "3 pairs do not tell whether b or a scores more within 8 nats: the difference is -0.10 to +0.25"
    )
    for low, high in ((0.0, 0.5), (-0.5, 0.0), (-1e-9, 4.0)):
        assert "do not tell" in told("explained_variance", low, high)


def test_an_end_of_an_interval_that_rounds_to_0_gets_the_decimals_that_it_needs() -> None:
    assert "(0.003 to 0.201, 5 pairs)" in told("score", 0.003, 0.201)
    assert told("score", -0.0004, 0.2).endswith("-0.0004 to +0.2000")


def test_unpaired_runs_are_called_so() -> None:
    assert told("score", 0.1, 0.3, 0).endswith("(0.10 to 0.30, 4 and 5 unpaired runs)")
    assert told("score", -0.1, 0.3, 0).startswith("4 and 5 unpaired runs do not tell")


def test_a_measure_that_a_group_has_not_reached_is_said_to_be_missing() -> None:
    far = group(1, "b", gain=0.2)
    late = [
        compared(one.name, [started(seed=n), *(iteration(i, kl=9.0) for i in range(1, 13)), ended()])
        for n, one in enumerate(far.runs)
    ]
    lines = report([GROUPS["two"][0], Group("B", "b", late)])
    row = next(line for line in lines if line.startswith("score within 2 nats"))
    assert row.split()[-2:] == ["-", "-"]
    assert lines[lines.index(row) + 2].split() == ["runs", "3", "of", "3", "0", "of", "3", "0", "and", "3"]
    assert " no run of b has 5 iterations in a row within 2 nats" in lines


@pytest.mark.parametrize(
    ("seeds", "caution"),
    [
        (range(3), []),
        (range(1, 4), ["a and b share 2 seeds: the differences use these 2 pairs alone"]),
        (range(2, 5), ["a and b share 1 seed: the differences are unpaired"]),
        (range(9, 12), ["a and b share 0 seeds: the differences are unpaired"]),
        (range(4), ["a and b share 3 seeds: the differences use these 3 pairs alone"]),
        (range(1), []),
    ],
)
def test_groups_that_do_not_share_all_seeds_cause_a_caution(seeds: range, caution: list[str]) -> None:
    assert cautions_of(group(0, "a"), group(1, "b", seeds)) == caution


def test_a_group_of_one_run_has_means_without_intervals_and_one_sentence() -> None:
    lines = report([group(0, "a"), group(1, "b", range(1))])
    start = next(place for place, line in enumerate(lines) if line.startswith("what the runs tell"))
    assert lines[start + 1].startswith(" 1 run of b and 3 of a tell nothing about what differs")
    assert not [line for line in lines if "do not tell" in line]


def test_the_report_says_how_many_measures_were_looked_at() -> None:
    text = " ".join(report([*GROUPS["two"], group(2, "c")]))
    assert "8 measures were looked at, in 16 comparisons" in text
    assert "no measure has an interval" in " ".join(report(GROUPS["empty"]))


def test_seeds_in_a_row_are_a_range_and_unknown_ones_are_counted() -> None:
    runs = [run("a", seed) for seed in (7, 0, 1, 2)]
    lines = report([Group("A", "a", [*runs, compared("x", [], config=None)]), group(1, "b", range(2))])
    assert "seeds 0-2 7 unknown," in lines[1]
    assert "seeds 0 1," in lines[3] + lines[2]


def test_settings_that_differ_between_groups_are_listed_and_seeds_are_not() -> None:
    found = settings_of_groups([group(0, "a"), group(1, "b", range(3, 6), config={"ppo": {"epochs": 7}})])
    assert [(one.key, one.values) for one in found.between] == [("ppo.epochs", {"A": Config().ppo.epochs, "B": 7})]
    assert found.within == {}


def test_a_setting_that_each_seed_has_its_own_value_of_differs_within_but_not_between_groups() -> None:
    def with_prompts(place: int, name: str) -> Group:
        runs = [run(name, n, config={"data": {"prompts": f"prompts-{n}.jsonl"}}) for n in range(2)]
        return Group(LETTERS[place], name, runs[:: 1 - 2 * place])

    groups = [with_prompts(0, "a"), with_prompts(1, "b")]
    found = settings_of_groups(groups)
    assert found.between == []
    assert found.within == {"A": ["data.prompts"], "B": ["data.prompts"]}
    assert cautions_of(*groups)[0] == "the runs of a differ in more than their seed (data.prompts)"
    assert "no difference in settings between the groups" in report(groups)


def test_different_rewards_cause_the_caution_of_single_runs() -> None:
    found = cautions_of(group(0, "a"), group(1, "b", config={"reward": {"clip": 2.0}}))
    assert found == ["different rewards: the scores are not comparable (reward.clip)"]


def test_runs_that_are_not_whole_are_named() -> None:
    short = Group("B", "b", [run("b", 0), run("b", 1, count=7, problems=["a line is cut"])])
    assert cautions_of(group(0, "a", range(2)), short) == [
        "the runs have 7 to 12 iterations: the best of a longer run is higher by chance alone",
        "b-1 of b is not done: interrupted at iteration 7 of 12",
        "b-1 of b is damaged: it counts as far as it can be read",
    ]
    assert " b  2 runs, seeds 0 1, 1 done, 1 interrupted, 1 damaged, starter" in report([group(0, "a"), short])


def test_times_of_different_devices_are_not_comparable() -> None:
    gpu = compared("b", [started(device="Device(gpu, 0)"), *(iteration(n) for n in range(1, 13)), ended()])
    (found,) = cautions_of(group(0, "a"), Group("B", "b", [gpu]))
    assert found == "different devices: the times are not comparable (Device(cpu, 0), Device(gpu, 0))"


def test_the_values_are_those_of_the_lines() -> None:
    values = group_values(GROUPS["two"])
    assert [one["key"] for one in values["measures"]] == [*BY_KEY]
    score = next(one for one in values["measures"] if one["key"] == "score")
    (difference,) = score["differences"]
    assert difference["difference"] == pytest.approx(
        score["groups"]["b"]["mean"] - score["groups"]["a"]["mean"], abs=1e-12
    )
    assert (difference["pairs"], difference["excludes_zero"]) == (3, True)
    assert f" {difference['sentence']}" in report(GROUPS["two"], 200)
