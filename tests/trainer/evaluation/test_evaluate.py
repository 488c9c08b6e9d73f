"""Evaluation measures the policy on held-out prompts and leaves no trace in the run."""

from __future__ import annotations

import contextlib
import json
import math
import string
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten
from runs_helper import comparable, record, tiny_config, workspace

from trainer.arrays import Purpose, key_for, to_list
from trainer.data import Prompt, encode_prompts, load_prompts, split_prompts
from trainer.evaluation.held_out import ReferenceBaseline, evaluate, measure
from trainer.events import Evaluation, Iteration, PhaseProgress, RunStarted, SamplesWritten
from trainer.models.actor_critic import ActorCriticLLM
from trainer.models.backbone import load_backbone
from trainer.ppo import steps
from trainer.ppo.loop import PPO
from trainer.rewards import build_rewards
from trainer.rollout.experience import Experience
from trainer.rollout.generation import generate_responses, lay_out

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


def test_without_a_baseline_nothing_is_reported_about_the_reference(tmp_path: Path) -> None:
    ppo, held_out = make_ppo(tmp_path)
    found = evaluate(ppo, held_out, 1)
    assert math.isnan(found.win_rate + found.win_rate_low)
    assert math.isnan(found.reference_score)
    assert math.isnan(found.best_of_score)


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


def test_a_baseline_is_sampled_and_scored_once_while_nothing_changes(tmp_path: Path) -> None:
    ppo, held_out = make_ppo(tmp_path)
    baseline = ReferenceBaseline(held_out, draws=ppo.config.eval.best_of)
    evaluate(ppo, held_out, 1, baseline)
    responses, scores = baseline.responses, baseline.scores(ppo)
    evaluate(ppo, held_out, 1, baseline)
    assert baseline.responses is responses
    assert baseline.scores(ppo) is scores


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


@pytest.mark.parametrize("value_model", ["head", "adapter"])
def test_the_critic_is_evaluated_by_the_rewards_after_each_token(value_model: str, tmp_path: Path) -> None:
    ppo, held_out = make_ppo(
        tmp_path, "ppo.gamma=0.9", "ppo.lam=0.2", f"model.value_model={value_model}", "optim.value_lr=0.1"
    )
    found = evaluate(ppo, held_out, 1)
    batch, scores = by_hand(ppo, held_out)
    how: Any = {"temperature": 1.0, "micro_batch_tokens": 2048}
    batch = steps.add_policy_logprobs_and_values(ppo.actor, batch, **how)
    batch = steps.add_values_to_sa_pairs(ppo.actor, batch, micro_batch_tokens=2048)
    batch = steps.add_kl_to_sa_pairs(ppo.actor, batch, estimator="k1", **how)
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


@pytest.mark.parametrize("value_model", ["head", "adapter"])
def test_an_evaluation_learns_nothing_and_changes_no_statistics(value_model: str, tmp_path: Path) -> None:
    ppo, held_out = make_ppo(tmp_path, "reward.normalize=running", f"model.value_model={value_model}")

    def state() -> list[tuple[str, bytes]]:
        arrays = {
            "policy": ppo.actor.policy_parameters(),
            "value": ppo.actor.value_parameters(),
            "optimizer": ppo.learner.state(),
            "backbone": ppo.actor.backbone.parameters(),
        }
        return [(name, np.array(array).tobytes()) for name, array in tree_flatten(arrays)]

    before, statistics = state(), ppo.rewards.state()
    assert statistics["count"] == 4
    evaluate(ppo, held_out, 1, ReferenceBaseline(held_out, draws=3))
    assert state() == before
    assert (ppo.rewards.state(), ppo.learner.steps) == (statistics, 2)


def test_the_peak_of_an_evaluation_covers_its_rewards_and_nothing_before(tmp_path: Path) -> None:
    size = 2**24
    (tmp_path / "large.py").write_text(
        "import mlx.core as mx\n\n"
        "def score(prompts, **_):\n"
        f"    return [float(mx.ones(({size // 4},)).sum().item()) for _ in prompts]\n"
    )
    ppo, held_out = make_ppo(tmp_path, iterations=0)
    mx.eval(mx.ones((size,)))
    assert evaluate(ppo, held_out, 0).memory_bytes < size
    sources = [{"kind": "python", "path": f"{tmp_path}/large.py:score"}]
    ppo.rewards = build_rewards(ppo.config.reward.model_validate({"sources": sources}))
    assert size <= evaluate(ppo, held_out, 0).memory_bytes < 2 * size


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
