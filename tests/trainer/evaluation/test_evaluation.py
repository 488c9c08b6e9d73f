"""Evaluation measures the policy on held-out prompts, by rewards and by people, and leaves no trace in the run."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import string
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import call, create_autospec

import mlx.core as mx
import numpy as np
import pytest
from human_judgements import judged
from mlx.utils import tree_flatten
from preferences_helper import add_label
from runs_helper import Recorder, comparable, outcome, record, tiny_config, within, workspace

from trainer import maths
from trainer.arrays import Purpose, key_for, to_list
from trainer.confidence import mean_interval, t_quantile
from trainer.data import Prompt, encode_prompts, load_prompts, split_prompts
from trainer.engine.control import Control
from trainer.engine.inbox import Inbox, add_event, send
from trainer.engine.training import train
from trainer.errors import UsageError
from trainer.evaluation.held_out import ReferenceBaseline, evaluate, measure
from trainer.evaluation.intervals import (
    best_of_kl,
    best_of_n,
    bootstrap_interval,
    critic_sums,
    explained_variance_of_sums,
    prompt_means,
    rms_of_sums,
    share_interval,
    win_shares,
)
from trainer.events import Evaluation, HumanEvaluation, Iteration, PhaseProgress, RunStarted, SamplesWritten
from trainer.models.actor_critic import ActorCriticLLM
from trainer.models.backbone import load_backbone
from trainer.ppo import steps
from trainer.ppo.loop import PPO
from trainer.ppo.potentials import add_fitted_potentials
from trainer.preferences.agreement import human_evaluation
from trainer.preferences.records import Comparison, Judgement, Origin, Preference
from trainer.preferences.store import PreferenceStore
from trainer.rewards import build_rewards
from trainer.rollout.experience import Experience
from trainer.rollout.generation import generate_responses, lay_out
from trainer.runs.folder import RunFolder
from trainer.runs.journal import read_journal
from trainer.runs.listing import list_runs
from workbench.run.run_on_disk import RunOnDisk
from workbench.run.view import RunView

MOVED = "optim.policy_lr=0.02"  # after one iteration the policy's text differs from the reference's


def make_ppo(folder: Path, *overrides: str, iterations: int = 1) -> tuple[PPO, list[Prompt]]:
    """Return an algorithm that has done some iterations, and its held-out prompts."""
    config = tiny_config(folder, *overrides)
    model = load_backbone(config.model)
    encoded = encode_prompts(load_prompts(config.data), model.tokenizer, config.data)
    prompts, held_out = split_prompts(encoded.prompts, config.data.eval_fraction, config.run.seed)
    actor = ActorCriticLLM(model.backbone, config.model, key=mx.random.key(0))
    ppo = PPO(config, actor, model.tokenizer, prompts, build_rewards(config.reward))
    for number in range(1, iterations + 1):
        ppo.iteration(number)
    return ppo, held_out


def by_hand(ppo: PPO, prompts: list[Prompt], *, reference: bool = False) -> tuple[Experience, list[float]]:
    """Return what the policy or its reference writes to `prompts` in an evaluation, and its scores."""
    key = key_for(ppo.config.run.seed, Purpose.EVALUATION)
    with ppo.actor.reference() if reference else contextlib.nullcontext():
        model, rollout = ppo.actor.backbone, ppo.config.rollout
        batch = lay_out(prompts, generate_responses(model, ppo.tokenizer, prompts, rollout, key=key))
    return batch, steps.compute_rewards(ppo.rewards, batch, prompts, update_statistics=False)[1].scores


def test_every_evaluation_of_a_policy_draws_the_same(tmp_path: Path) -> None:
    ppo, held_out = make_ppo(tmp_path)
    first, second = evaluate(ppo, held_out, 1), evaluate(ppo, held_out, 7)
    assert comparable(first) == comparable(second) | {"iteration": 1}
    assert first.prompts == len(held_out) == 3
    assert math.isfinite(first.kl)


def test_a_policy_that_is_its_reference_wins_exactly_half(tmp_path: Path) -> None:
    ppo, held_out = make_ppo(tmp_path, iterations=0)
    found = evaluate(ppo, held_out, 0, ReferenceBaseline(held_out, draws=ppo.config.eval.best_of))
    assert (found.win_rate, found.kl) == (0.5, 0)
    assert found.reference_score == found.score_mean == found.best_of_score
    assert found.best_of == 1
    assert found.win_rate_low < 0.5 < found.win_rate_high


def test_a_win_is_a_higher_score_than_the_references_with_the_same_draws(tmp_path: Path) -> None:
    ppo, held_out = make_ppo(tmp_path, MOVED, "data.eval_fraction=0.8")
    (tmp_path / "odd.py").write_text("def score(completion_ids, **_): return [sum(ids) % 3 for ids in completion_ids]")
    ppo.rewards = build_rewards(tiny_config(tmp_path, f"reward.sources=['{tmp_path}/odd.py:score']").reward)
    found = evaluate(ppo, held_out, 1, ReferenceBaseline(held_out, draws=ppo.config.eval.best_of))
    (policy, mine), (reference, theirs) = by_hand(ppo, held_out), by_hand(ppo, held_out, reference=True)
    assert policy.texts != reference.texts
    points = [float(np.sign(one - other)) / 2 + 0.5 for one, other in zip(mine, theirs, strict=True)]
    assert set(points) == {0.0, 0.5, 1.0}
    assert found.win_rate == pytest.approx(np.mean(points))
    assert found.score_mean == np.mean(mine)
    assert found.reference_score == np.mean(theirs)
    assert found.score_low < found.score_mean < found.score_high


GROWING = """
calls = 0

def score(completions, **_):
    global calls
    calls += 1
    return [calls for _ in completions]
"""


def test_identical_responses_tie_whatever_their_scores(tmp_path: Path) -> None:
    ppo, held_out = make_ppo(tmp_path, iterations=0)
    (tmp_path / "growing.py").write_text(GROWING)
    ppo.rewards = build_rewards(tiny_config(tmp_path, f"reward.sources=['{tmp_path}/growing.py:score']").reward)
    found = measure(ppo, held_out, 0, ReferenceBaseline(held_out, draws=2), samples=2)
    assert found.wins is not None
    assert found.wins.tolist() == [0.25] * 3  # two of the four pairs have one and the same response, and two are lost


def test_rewards_of_single_tokens_are_part_of_the_score(tmp_path: Path) -> None:
    whole, held_out = make_ppo(tmp_path, iterations=0)
    of_tokens, _ = make_ppo(tmp_path, f"reward.sources=['{tmp_path}/rewards.py:each_token']", iterations=0)
    expected, found = evaluate(whole, held_out, 0), evaluate(of_tokens, held_out, 0)
    assert expected.response_length == 8
    assert found.score_mean == pytest.approx(8 * expected.score_mean)


def test_more_draws_of_the_reference_extend_the_first_ones_so_that_the_best_only_grows(tmp_path: Path) -> None:
    ppo, held_out = make_ppo(tmp_path)
    found = [evaluate(ppo, held_out, 1, ReferenceBaseline(held_out, draws=draws)) for draws in (1, 2, 6)]
    best = [evaluation.best_of_score for evaluation in found]
    assert best[0] == found[0].reference_score
    assert best == sorted(set(best))
    assert len({(evaluation.reference_score, evaluation.win_rate) for evaluation in found}) == 1


@pytest.mark.parametrize("change", ["reward", "statistics", "temperature"])
def test_a_baseline_follows_the_rewards_and_the_sampling_like_a_new_one(change: str, tmp_path: Path) -> None:
    normalize = f"reward.normalize={'running' if change == 'statistics' else 'off'}"
    ppo, held_out = make_ppo(tmp_path, normalize)
    baseline = ReferenceBaseline(held_out, draws=ppo.config.eval.best_of)
    before = evaluate(ppo, held_out, 1, baseline)
    settings = {
        "reward": (f"reward.sources=['{tmp_path}/rewards.py:constant']",),
        "statistics": (),
        "temperature": ("rollout.temperature=0.3",),
    }
    config = tiny_config(tmp_path, normalize, *settings[change])
    ppo.configure(config, build_rewards(config.reward) if change == "reward" else None)
    if change == "statistics":
        ppo.iteration(2)
    after = evaluate(ppo, held_out, 2, baseline)
    assert comparable(after) == comparable(
        evaluate(ppo, held_out, 2, ReferenceBaseline(held_out, draws=ppo.config.eval.best_of))
    )
    assert after.reference_score != before.reference_score


def test_batch_normalisation_covers_policy_and_reference_together(tmp_path: Path) -> None:
    ppo, held_out = make_ppo(tmp_path, MOVED, "reward.normalize=batch")
    found = evaluate(ppo, held_out, 1, ReferenceBaseline(held_out, draws=ppo.config.eval.best_of))
    plain, _ = make_ppo(tmp_path, MOVED, "reward.normalize=batch")
    plain.rewards = build_rewards(tiny_config(tmp_path).reward)
    mine, theirs = [np.mean(by_hand(plain, held_out, reference=of)[1]) for of in (False, True)]
    assert mine != theirs
    assert found.score_mean == pytest.approx(-found.reference_score)
    assert np.sign(found.score_mean) == np.sign(mine - theirs)


def test_the_moving_average_is_evaluated_where_there_is_one_and_the_policy_stays(tmp_path: Path) -> None:
    ppo, held_out = make_ppo(tmp_path, MOVED, "optim.ema_decay=0.9")
    policy, average = ppo.actor.policy_parameters(), ppo.learner.average
    assert average is not None
    found = evaluate(ppo, held_out, 1, ReferenceBaseline(held_out, draws=ppo.config.eval.best_of))
    assert found.averaged
    assert all(array is policy[name] for name, array in ppo.actor.policy_parameters().items())
    ppo.learner.average = None
    of_policy = evaluate(ppo, held_out, 1, ReferenceBaseline(held_out, draws=ppo.config.eval.best_of))
    assert not of_policy.averaged
    ppo.actor.update_policy(average)
    expected = evaluate(ppo, held_out, 1, ReferenceBaseline(held_out, draws=ppo.config.eval.best_of))
    assert comparable(found) == comparable(expected) | {"averaged": True}
    assert found.kl != of_policy.kl


def test_the_reward_is_the_score_less_the_penalty_at_the_current_coefficient(tmp_path: Path) -> None:
    ppo, held_out = make_ppo(tmp_path, MOVED)
    ppo.kl_coef = 0.7
    found = evaluate(ppo, held_out, 1)
    assert found.reward_mean == pytest.approx(found.score_mean - 0.7 * found.kl)


@pytest.mark.parametrize("value_model", ["fitted", "head", "adapter"])
def test_the_critic_is_evaluated_by_the_rewards_after_each_token(value_model: str, tmp_path: Path) -> None:
    ppo, held_out = make_ppo(
        tmp_path, "ppo.gamma=0.9", "ppo.lam=0.2", f"model.value_model={value_model}", "optim.value_lr=0.1"
    )
    found = evaluate(ppo, held_out, 1)
    batch, scores = by_hand(ppo, held_out)
    how: Any = {"temperature": 1.0, "micro_batch_tokens": 2048}
    batch = steps.add_policy_logprobs_and_values(ppo.actor, batch, **how)
    batch = steps.add_kl_to_sa_pairs(ppo.actor, batch, estimator="k1", **how)
    if ppo.actor.fitted:
        batch = ppo.potential_values.add(add_fitted_potentials(ppo.actor.fitted, batch), 0)
    else:
        batch = steps.add_values_to_sa_pairs(ppo.actor, batch, micro_batch_tokens=2048)
    values, returns = list[float](), list[float]()
    for row, length in enumerate(to_list(batch.response_lengths)):
        rewards = -ppo.kl_coef * np.array(batch.kl, dtype=np.float64)[row, :length]
        rewards[-1] += scores[row]
        returns += [sum(0.9**later * reward for later, reward in enumerate(rewards[t:])) for t in range(length)]
        values += np.array(batch.values)[row, :length].tolist()
    errors = np.array(returns) - np.array(values)
    assert found.value_error == pytest.approx(math.sqrt(np.mean(errors**2)), abs=1e-5)
    assert found.explained_variance == pytest.approx(1 - np.var(errors) / np.var(returns), rel=1e-5)


def test_several_responses_to_a_prompt_begin_with_the_single_one(tmp_path: Path) -> None:
    ppo, held_out = make_ppo(tmp_path, MOVED)
    one = measure(ppo, held_out, 1, ReferenceBaseline(held_out, draws=1))
    three = measure(ppo, held_out, 1, ReferenceBaseline(held_out, draws=4), samples=3)
    assert three.scores.total.shape == (3, 3)
    assert three.reference is not None
    assert three.reference.total.shape == (3, 4)
    np.testing.assert_array_equal(three.scores.total[:, :1], one.scores.total)
    np.testing.assert_allclose(three.kl[:, :1], one.kl, atol=1e-5)
    assert len(np.unique(three.kl)) == 9


@pytest.mark.parametrize("value_model", ["fitted", "head", "adapter"])
def test_an_evaluation_learns_nothing_and_changes_no_statistics(value_model: str, tmp_path: Path) -> None:
    ppo, held_out = make_ppo(tmp_path, "reward.normalize=running", f"model.value_model={value_model}")

    def state() -> list[tuple[str, bytes]]:
        arrays = {
            "policy": ppo.actor.policy_parameters(),
            "value": ppo.actor.value_parameters(),
            "optimizer": ppo.learner.state(),
            "backbone": ppo.actor.backbone.parameters(),
            "fitted": ppo.actor.fitted.arrays() if ppo.actor.fitted else {},
        }
        return [(name, np.array(array).tobytes()) for name, array in tree_flatten(arrays)]

    before, statistics, values = state(), ppo.rewards.state(), ppo.potential_values.state()
    assert statistics["count"] == 4
    evaluate(ppo, held_out, 1, ReferenceBaseline(held_out, draws=3))
    assert state() == before
    assert ppo.potential_values.state() == values
    assert (ppo.rewards.state(), ppo.learner.steps) == (statistics, 2)


EARLY = json.dumps([*string.ascii_letters, *string.digits])  # nearly every response has one of these


WRITTEN_DOWN = """
import json

def score(prompts, completion_ids, **_):
    with open({path!r}, "a") as file:
        file.write(json.dumps([prompts, [len(ids) for ids in completion_ids]]) + "\\n")
    return [float(len(ids)) for ids in completion_ids]
"""


def test_held_out_prompts_are_evaluated_and_never_trained_on(tmp_path: Path) -> None:
    workspace(tmp_path)
    (tmp_path / "rewards.py").write_text(WRITTEN_DOWN.format(path=str(tmp_path / "calls")))
    sizes = ["ppo.iterations=4", "eval.every=1", "eval.prompts=2"]
    recorder = record(tiny_config(tmp_path, *sizes, f"rollout.stop={EARLY}"))
    calls = [json.loads(line) for line in (tmp_path / "calls").read_text().splitlines()]
    del calls[1]  # what the reference wrote to the evaluation's prompts
    trained = {prompt for prompts, _ in calls[1::2] for prompt in prompts}
    (evaluated,) = {tuple(prompts) for prompts, _ in calls[::2]}
    assert len(trained) == 6
    assert len(evaluated) == 2
    assert trained.isdisjoint(evaluated)
    (started,) = recorder.of(RunStarted)
    assert (started.prompts, started.eval_prompts) == (6, 2)
    for evaluation, (_, lengths) in zip(recorder.of(Evaluation), calls[::2], strict=True):
        assert evaluation.response_length == evaluation.score_mean == np.mean(lengths)
        assert evaluation.score_std == pytest.approx(np.std(lengths))


def test_without_held_out_prompts_there_is_no_evaluation(tmp_path: Path) -> None:
    assert record(tiny_config(tmp_path, "data.eval_fraction=0", "eval.every=1")).of(Evaluation) == []


@pytest.mark.parametrize("stop", ["[]", EARLY], ids=["responses that are cut", "responses that end early"])
def test_the_progress_of_an_evaluation_only_grows_and_ends_full(stop: str, tmp_path: Path) -> None:
    recorder = record(tiny_config(tmp_path, "ppo.iterations=2", f"rollout.stop={stop}"))
    steps = [event for event in recorder.of(PhaseProgress) if event.phase == "evaluate"]
    for number in (0, 2):
        shares = [event.done / event.total for event in steps if event.iteration == number]
        assert shares == sorted(shares)
        assert (shares[0], shares[-1]) == (0, 1)


def test_a_run_is_evaluated_before_its_first_iteration_and_after_its_last(tmp_path: Path) -> None:
    recorder = record(tiny_config(tmp_path, "ppo.iterations=3", "eval.every=2"))
    order = [event.iteration for event in recorder.events if isinstance(event, Iteration | Evaluation)]
    assert order == [0, 1, 2, 2, 3, 3]
    assert recorder.of(Evaluation)[0].kl == 0


def test_the_mean_of_each_reward_source_is_reported_even_without_weight(tmp_path: Path) -> None:
    sources = (
        'reward.sources=[{kind = "length", target = 4}, {kind = "regex", pattern = "a", count = true, weight = 0.0}]'
    )
    recorder = record(tiny_config(tmp_path, "ppo.iterations=1", "eval.every=1", sources))
    (iteration,) = recorder.of(Iteration)
    previews = recorder.of(SamplesWritten)[0].previews
    assert iteration.parts["regex"] == np.mean([preview.completion.count("a") for preview in previews])
    for reported in (iteration, *recorder.of(Evaluation)):
        assert reported.parts.keys() == {"length", "regex"}
        assert reported.parts["length"] == pytest.approx(reported.score_mean, abs=1e-6)


TABLE = {1: 12.7062, 2: 4.3027, 3: 3.1824, 4: 2.7764, 7: 2.3646, 15: 2.1314, 30: 2.0423, 120: 1.9799, 10_000: 1.9602}


@pytest.mark.parametrize(("df", "quantile"), TABLE.items())
def test_quantiles_of_t_match_the_tables(df: int, quantile: float) -> None:
    assert t_quantile(df) == pytest.approx(quantile, abs=6e-5)


@pytest.mark.parametrize("prompts", [3, 16])
def test_the_interval_of_a_mean_covers_it_in_95_of_100_samples(prompts: int) -> None:
    draws = np.random.default_rng(1).normal(0.3, 2.0, (4000, prompts))
    covers = [low <= 0.3 <= high for _, low, high in map(mean_interval, draws)]
    assert np.mean(covers) == pytest.approx(0.95, abs=0.012)


@pytest.mark.parametrize("share", [0.5, 0.9])
@pytest.mark.parametrize("samples", [1, 4])
def test_the_interval_of_a_share_covers_it_also_where_a_prompt_has_several_responses(
    share: float, samples: int
) -> None:
    draws = np.random.default_rng(2).binomial(samples, share, (4000, 20)) / samples
    covers = np.mean([low <= share <= high for _, low, high in map(share_interval, draws)])
    assert covers >= 0.93
    if samples == 1:
        assert covers <= 0.98


def test_responses_without_a_score_are_left_out() -> None:
    scores = np.array([[1.0, math.nan], [math.nan, math.nan], [2.0, 4.0], [3.0, 3.0]])
    means = prompt_means(scores)
    np.testing.assert_array_equal(means, [1.0, math.nan, 3.0, 3.0])
    assert mean_interval(means) == mean_interval(np.array([1.0, 3.0, 3.0]))
    wins = win_shares(scores, np.full((4, 1), 2.5), np.ones((4, 2, 1), dtype=bool))
    np.testing.assert_array_equal(wins, [0.5, math.nan, 0.5, 0.5])
    assert share_interval(wins).value == 0.5
    np.testing.assert_array_equal(best_of_n(scores, 1), [math.nan, math.nan, 3.0, 3.0])
    assert math.isnan(explained_variance_of_sums(np.zeros(5)))
    assert math.isnan(rms_of_sums(np.zeros(5)))


def test_the_bootstrap_covers_the_explained_variance_of_a_critic() -> None:
    draws = np.random.default_rng(3)
    covers = []
    for _ in range(300):
        values = draws.normal(0, 1, (40, 6))
        returns = values + draws.normal(0, 0.5, (40, 6))  # so 1 - 0.25 / 1.25
        _, low, high = bootstrap_interval(critic_sums(values, returns, np.ones((40, 6))), explained_variance_of_sums)
        covers.append(low <= 0.8 <= high)
    assert np.mean(covers) > 0.9


def test_one_prompt_gives_a_value_without_bounds_and_no_prompts_give_neither() -> None:
    assert mean_interval(np.array([2.0]))[0] == 2
    assert all(math.isnan(bound) for bound in mean_interval(np.array([2.0]))[1:])
    assert all(math.isnan(number) for number in (*mean_interval(np.zeros(0)), *share_interval(np.zeros(0))))
    one = critic_sums(np.zeros((1, 3)), np.arange(3.0)[None], np.ones((1, 3)))
    assert bootstrap_interval(one, rms_of_sums)[0] == pytest.approx(math.sqrt(5 / 3))
    assert math.isnan(bootstrap_interval(one, rms_of_sums)[1])


def test_the_numbers_of_a_critic_are_those_of_the_trainer_whatever_the_padding_holds() -> None:
    draws = np.random.default_rng(4)
    mask = (np.arange(7)[None] < np.array([7, 1, 4])[:, None]).astype(float)
    values, returns = draws.normal(2, 1, (3, 7)), draws.normal(1, 3, (3, 7))
    of_padding = np.where(mask > 0, 0.0, math.nan)
    sums = critic_sums(values + of_padding, returns + of_padding, mask).sum(axis=0)
    expected = maths.explained_variance(*map(mx.array, (values * mask, returns * mask, mask)))
    assert float(explained_variance_of_sums(sums)) == pytest.approx(float(expected), abs=1e-5)
    errors = (returns - values)[mask > 0]
    assert float(rms_of_sums(sums)) == pytest.approx(math.sqrt(np.mean(errors**2)))


def test_returns_that_do_not_vary_have_no_explained_variance() -> None:
    sums = critic_sums(np.zeros((2, 3)), np.full((2, 3), 0.1), np.ones((2, 3)))
    assert math.isnan(float(explained_variance_of_sums(sums.sum(axis=0))))
    assert all(math.isnan(number) for number in bootstrap_interval(sums, explained_variance_of_sums))


def test_best_of_n_is_the_mean_over_all_choices_of_n() -> None:
    scores = np.random.default_rng(5).normal(0, 1, (3, 6))
    for n in range(1, 7):
        choices = [scores[:, list(chosen)].max(axis=1) for chosen in itertools.combinations(range(6), n)]
        np.testing.assert_allclose(best_of_n(scores, n), np.mean(choices, axis=0))
    np.testing.assert_array_equal(best_of_n(scores, 6), scores.max(axis=1))
    assert (best_of_kl(1), best_of_kl(4)) == (0, pytest.approx(math.log(4) - 0.75))


def test_a_win_rate_counts_pairs_and_half_of_the_ties() -> None:
    policy, reference = np.array([[1.0, 3.0], [0.0, 0.0]]), np.array([[2.0, 3.0], [-1.0, 0.5]])
    nowhere = np.zeros((2, 2, 2), dtype=bool)
    np.testing.assert_array_equal(win_shares(policy, reference, nowhere), [1.5 / 4, 2 / 4])
    same = nowhere.copy()
    same[0, 0, 0] = True  # scored 1 and 2, but one and the same response
    np.testing.assert_array_equal(win_shares(policy, reference, same), [2 / 4, 2 / 4])


REPORTED = HumanEvaluation(
    iteration=2, comparisons=4, wins=2, ties=1, losses=1, win_rate=0.625, low=0.2, high=0.9, labellers=1
)


def human_result(*preferences: Preference) -> HumanEvaluation:
    found = human_evaluation(preferences, "a")
    assert found is not None
    return found


def test_the_win_rate_counts_a_tie_half_and_has_wilsons_interval() -> None:
    labels = [judged(number, choice) for number, choice in enumerate(["a"] * 6 + ["tie", "both_bad"] + ["b"] * 2)]  # type: ignore[arg-type, list-item]
    found = human_result(*labels)
    assert (found.comparisons, found.wins, found.ties, found.losses) == (10, 6, 2, 2)
    assert found.win_rate == 0.7
    # By the definition: the shares p whose distance from 0.7 is 1.96 standard errors of their own.
    for share in (found.low, found.high):
        assert abs(0.7 - share) / math.sqrt(share * (1 - share) / 10) == pytest.approx(1.959964, abs=1e-5)
    assert found.low < 0.7 < found.high


def test_the_policys_win_counts_on_either_side() -> None:
    swapped = ("reference", "policy")
    found = human_result(judged(1, "b", writers=swapped), judged(2, "a"), judged(3, "a", writers=swapped))
    assert (found.wins, found.losses) == (2, 1)


def test_only_pairs_of_the_runs_own_policy_and_its_reference_count() -> None:
    others = [
        judged(1, "a", runs=("b", "b")),
        judged(2, "a", runs=("a", "b")),
        judged(3, "a", writers=("policy", "policy")),
        judged(4, "a", writers=("reference", "reference")),
        judged(5, "a", writers=("policy", "human")),
        judged(6, "skip"),
    ]
    without = judged(7, "a")
    others.append(replace(without, comparison=replace(without.comparison, origins=())))
    three = Comparison(prompt="", completions=("x", "y", "z"), origins=(*judged(8, "a").comparison.origins, Origin()))
    others.append(Preference(comparison=three, judgement=Judgement(ranking=((0,), (1,), (2,)))))
    assert human_evaluation(others, "a") is None
    found = human_result(*others, judged(9, "b"))
    assert (found.comparisons, found.losses) == (1, 1)
    assert human_evaluation([], "a") is None


def test_the_last_label_of_each_labeller_counts(tmp_path: Path) -> None:
    with PreferenceStore(tmp_path / "preferences.db") as store:
        add_label(store, judged(1, "a"))
        undone = add_label(store, judged(2, "a"))
        add_label(store, judged(1, "b"))
        add_label(store, judged(1, "skip"))
        add_label(store, judged(1, "tie", labeller="ben"))
        store.undo(undone, "ann")
        found = human_result(*store.preferences())
    assert (found.wins, found.ties, found.losses, found.labellers) == (0, 1, 1, 2)
    assert found.comparisons == 2


def test_the_win_rate_is_that_of_the_newest_judged_policy() -> None:
    labels = [judged(1, "a", iteration=7), judged(2, "b", iteration=12), judged(3, "b", iteration=9)]
    assert human_result(*labels).iteration == 12


def test_a_finished_run_gets_the_win_rate_in_its_journal_and_is_otherwise_unchanged(tmp_path: Path) -> None:
    record(tiny_config(tmp_path, "run.name=a", "ppo.iterations=2", "eval.every=0"))
    run = tmp_path / "runs/a"
    before, source, view = outcome(run), RunOnDisk(run), RunView()
    for event in source.take():
        view.take(event)
    add_event(run, REPORTED)
    assert source.take() == [REPORTED]
    view.take(REPORTED)
    assert view.ended is not None
    assert read_journal(run / "events.jsonl").events[-1] == REPORTED
    assert not read_journal(run / "events.jsonl").problems
    assert outcome(run) == before
    assert not RunFolder(run).is_live()
    assert [(summary.state, summary.iteration) for summary in list_runs(tmp_path / "runs")] == [("done", 2)]
    resumed = record(tiny_config(tmp_path, "eval.every=0"), resume=run)
    assert [iteration.iteration for iteration in resumed.of(Iteration)] == [3]
    assert REPORTED in read_journal(run / "events.jsonl").events


def test_a_win_rate_stays_valid_when_later_iterations_are_repeated(tmp_path: Path) -> None:
    control = Control()
    abort = Recorder(lambda event: control.abort() if within(event, "update", 3) else None)
    config = tiny_config(tmp_path, "run.name=a", "eval.every=0", "checkpoint.every=0")
    train(config, sinks=[abort], control=control)
    add_event(tmp_path / "runs/a", REPORTED)
    record(config, resume=tmp_path / "runs/a")
    assert REPORTED in read_journal(tmp_path / "runs/a/events.jsonl").events


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no run in '.*': name the folder of a run that was started"):
        add_event(tmp_path, REPORTED)
    assert list(tmp_path.iterdir()) == []


BROKEN: dict[str, Any] = {
    "nothing": {},
    "an event of the trainer's own": {
        "event": {"event": "end", "state": "done", "exit_code": 0, "reason": "", "iteration": 1}
    },
    "a number that is text": {"event": {**REPORTED.as_dict(), "wins": "2"}},
    "a field too few": {"event": {key: value for key, value in REPORTED.as_dict().items() if key != "wins"}},
    "too large": {"event": {**REPORTED.as_dict(), "iteration": 2**80}},
}


@pytest.mark.parametrize("request_values", BROKEN.values(), ids=BROKEN.keys())
def test_nothing_else_can_be_reported(request_values: dict[str, Any], tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    complaints: list[str] = []
    with run.lock():
        inbox = Inbox(run.control, control := create_autospec(Control, instance=True), complaints.append)
        send(tmp_path, "report", **request_values)
        send(tmp_path, "report", event=REPORTED.as_dict())
        inbox.take()
    assert control.mock_calls == [call.report(REPORTED)]
    (complaint,) = complaints
    assert "ignored: " in complaint
    assert "not a complete" in complaint
    assert "\n" not in complaint


@pytest.mark.parametrize("shared", [True, False])
def test_reporting_to_a_finished_run_changes_no_file_permissions(shared: bool, tmp_path: Path) -> None:
    record(tiny_config(tmp_path, "run.name=a", "ppo.iterations=1", f"run.shared={str(shared).lower()}"))
    journal = tmp_path / "runs/a/events.jsonl"
    mode = journal.stat().st_mode
    assert bool(mode & 0o044) == shared
    add_event(journal.parent, REPORTED)
    assert journal.stat().st_mode == mode
