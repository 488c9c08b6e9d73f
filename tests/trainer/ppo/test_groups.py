"""Groups whose responses score alike: found, replaced by further prompts, and left out for some passes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runs_helper import Killed, Recorder, killed_at, outcome, record, tiny_config

from trainer.arrays import prompt_indices
from trainer.config import load_config
from trainer.data import Prompt
from trainer.engine.training import train
from trainer.events import Iteration
from trainer.ppo.groups import LONGEST_REST, groups_of
from trainer.reward_types import RewardResult
from trainer.runs.folder import RunFolder
from trainer.runs.samples import read_samples

REWARDS = """\
def parity(completion_ids, **_):
    return [float(ids[0] % 2) for ids in completion_ids]

def easy(prompts, completion_ids, log_extra, **_):
    log_extra("first", [ids[0] for ids in completion_ids])
    return [1.0 if len(prompt) < 6 else sum(ids) / 1000 for prompt, ids in zip(prompts, completion_ids)]
"""
GRPO = ("ppo.estimator=grpo", "rollout.samples_per_prompt=2", "ppo.kl_in=loss", "ppo.kl_estimator=k3", "eval.every=0")
TRAINED = 6  # of the prompts


def config(folder: Path, reward: str, *settings: str) -> Any:
    tiny_config(folder)
    (folder / "grouped.py").write_text(REWARDS)
    return tiny_config(folder, *GRPO, f"reward.sources=['{folder}/grouped.py:{reward}']", *settings)


def drawn(recorder: Recorder) -> list[list[int]]:
    """Return the prompts of each iteration, those that were replaced too, in the order in which they were drawn."""
    return [[int(index) for index, _ in event.difficulty] for event in recorder.of(Iteration)]


def samples_of(folder: Path, iteration: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = read_samples(RunFolder(folder / "runs/a").samples_file(iteration)).to_pylist()
    return rows


@pytest.mark.parametrize(
    ("scores", "mean", "is_dead"),
    [
        ([1.0, 1.0, 1.0], 1.0, True),
        ([0.1 + 0.2, 0.3, 0.3], 0.3, True),  # equal but for rounding
        ([1e6, 1e6 + 0.5, 1e6], 1e6 + 1 / 6, True),
        ([0.0, 1.0, 0.0], 1 / 3, False),
        ([0.3, 0.30001, 0.3], 0.300003333, False),
        ([0.0, math.nan, 1.0], 0.5, False),
        ([1.0, math.nan, math.nan], 1.0, True),  # nothing to compare it with
        ([math.nan] * 3, math.nan, True),
    ],
)
def test_a_group_is_dead_if_its_scores_differ_by_no_more_than_rounding(
    scores: list[float], mean: float, is_dead: bool
) -> None:
    prompts = [Prompt(index, "", "", [], {}) for index in (4, 4, 4, 7, 7, 7)]
    tokens = [[0.0]] * 3 + [[0.5], [0.25, 0.25], [1.0]]  # of the second group, where they make the difference
    result = RewardResult([*scores, 1.0, 1.0, 1.0], tokens, {})
    first, second = groups_of(result, prompts, 3)
    assert (first.index, first.is_dead) == (4, is_dead)
    assert first.score == pytest.approx(mean, nan_ok=True)
    assert (second.index, second.score, second.is_dead) == (7, pytest.approx(5 / 3), False)


def test_results_of_some_rows_are_replaced_in_every_column() -> None:
    old = RewardResult([1.0, 2.0, 3.0], [[1.0], [2.0], [3.0]], {"a": [1.0, 2.0, 3.0]}, {"why": ["x", "y", "z"]})
    new = RewardResult([8.0, 9.0], [[8.0, 8.0], []], {"a": [8.0, 9.0]}, {"how": ["p", "q"]})
    assert old.replaced([2, 0], new) == RewardResult(
        [9.0, 2.0, 8.0],
        [[], [2.0], [8.0, 8.0]],
        {"a": [9.0, 2.0, 8.0]},
        {"why": [None, "y", None], "how": ["q", None, "p"]},
    )


def test_further_prompts_take_the_place_of_dead_groups_in_the_order_of_the_walk(tmp_path: Path) -> None:
    """Half of all groups of two are dead, so that some are replaced more than once and some stay."""
    settings = ("run.name=a", "rollout.dynamic=2", "ppo.iterations=8", "optim.policy_lr=1e-6")
    run = record(config(tmp_path, "parity", *settings))
    numbers = drawn(run)
    everything = [index for numbers_of in numbers for index in numbers_of]
    places = prompt_indices(0, len(everything), TRAINED, seed=0, shuffle=True)
    order = sorted(set(everything))
    assert everything == [order[place] for place in places]
    assert {len(one) for one in numbers} >= {2, 3}, "in some iterations further prompts were drawn, in others none"
    assert max(map(len, numbers)) <= 6
    for iteration in run.of(Iteration):
        rows, scores = samples_of(tmp_path, iteration.iteration), [score for _, score in iteration.difficulty]
        assert [row["prompt_index"] for row in rows[::2]] == [row["prompt_index"] for row in rows[1::2]]
        dead = [score in (0.0, 1.0) for score in scores]
        assert iteration.dead_groups == pytest.approx(np.mean(dead))
        left = [row["score"] == other["score"] for row, other in zip(rows[::2], rows[1::2], strict=True)]
        assert sum(left) == sum(dead) - (len(scores) - 2), "each further group replaced a dead one"
        assert not any(left) or dead[-1], "until the last draw"
        assert all(math.isfinite(number) for row in rows for number in row["logprobs"])


@pytest.mark.parametrize("dynamic", [0, 1])
def test_prompts_that_are_always_dead_rest_for_longer_and_longer(dynamic: int, tmp_path: Path) -> None:
    run = record(
        config(
            tmp_path, "easy", "run.name=a", "data.curriculum=true", f"rollout.dynamic={dynamic}", "ppo.iterations=14"
        )
    )
    texts = {row["prompt_index"]: row["prompt"] for number in range(1, 15) for row in samples_of(tmp_path, number)}
    numbers = drawn(run)
    order = sorted({index for one in numbers for index in one})
    assert 0 < sum(len(texts.get(index, "short")) < 6 for index in order) < TRAINED
    is_easy = {index: index not in texts or len(texts[index]) < 6 for index in order}
    until, times, at, expected = dict.fromkeys(order, -1), dict.fromkeys(order, 0), 0, list[list[int]]()
    for _ in range(14):
        found: list[int] = []
        for draw in range(1 + dynamic):
            wanted = [index for index in found if is_easy[index]] if draw else [0, 0]
            new: list[int] = []
            while len(new) < len(wanted):
                (place,) = prompt_indices(at, 1, TRAINED, seed=0, shuffle=True)
                new += [order[place]] * (at // TRAINED > until[order[place]])
                at += 1
            for index in filter(is_easy.get, new):
                times[index] += 1
                until[index] = (at - 1) // TRAINED + min(times[index], LONGEST_REST)
            found += new
        expected.append(found)
    assert numbers == expected
    assert all(row["extra"] is not None for row in samples_of(tmp_path, 14)), "what a function logs is kept"


@pytest.mark.parametrize(("phase", "number"), [("generate", 2), ("reward", 3), ("update", 4)])
def test_a_killed_run_draws_the_same_prompts_and_ends_with_the_same_bits(
    phase: str, number: int, tmp_path: Path
) -> None:
    settings = ("rollout.dynamic=2", "data.curriculum=true", "ppo.iterations=5")
    whole = record(config(tmp_path, "parity", "run.name=whole", *settings))
    assert sum(map(len, drawn(whole))) > 10, "further prompts were drawn"
    with pytest.raises(Killed):
        train(config(tmp_path, "parity", "run.name=killed", *settings), sinks=[Recorder(killed_at(phase, number))])
    killed = tmp_path / "runs/killed"
    record(load_config(killed / "config.toml"), resume=killed)
    assert outcome(killed) == outcome(tmp_path / "runs/whole")
