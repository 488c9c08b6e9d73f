"""The loop of PPO, and a first step that scores the batch in the pass that it trains with."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from reference import float64
from runs_helper import Recorder, comparable, record, tiny_config

from trainer.arrays import filled
from trainer.data import encode_prompts, load_prompts
from trainer.events import Alarm, Alert, Evaluation, Event, Iteration, PhaseProgress, SamplesWritten
from trainer.models.actor_critic import ActorCriticLLM
from trainer.models.backbone import load_backbone
from trainer.ppo import steps
from trainer.ppo.loop import PPO
from trainer.ppo.potentials import PotentialValues
from trainer.rewards import RewardInput, Rewards, SourceScores, WeightedSource
from trainer.rollout.generation import Response, lay_out
from trainer.runs.folder import RunFolder
from trainer.runs.samples import read_samples


def test_the_greedy_response_is_normalised_as_the_samples_are_from_the_first_iteration_on(tmp_path: Path) -> None:
    """Each sample is the greedy response here, so it is as good as its baseline."""
    settings = ['ppo.estimator="remax"', 'reward.normalize="running"', "rollout.top_k=1", "ppo.kl_coef=0"]
    record(tiny_config(tmp_path, "run.name=a", "ppo.iterations=2", *settings))
    for number in (1, 2):
        rows = read_samples(RunFolder(tmp_path / "runs" / "a").samples_file(number)).to_pylist()
        assert len({row["score"] for row in rows}) > 1
        for row in rows:
            assert row["advantages"] == pytest.approx([0.0] * len(row["tokens"]), abs=1e-6)


def test_the_adaptive_coefficient_waits_for_the_policy_to_learn(tmp_path: Path) -> None:
    """Until then, the KL is 0 whatever the coefficient is."""
    settings = ["ppo.kl_controller=adaptive", "ppo.kl_coef=0.1", "ppo.critic_warmup=2", "ppo.iterations=4"]
    iterations = record(tiny_config(tmp_path, *settings)).of(Iteration)
    assert [each.kl_coef for each in iterations[:3]] == [0.1, 0.1, 0.1]
    assert iterations[2].kl == pytest.approx(0, abs=0.01)
    below = 0.1 * (1 - 0.2 * 4 / 10_000)  # as far as a batch of four sequences moves it, with the default horizon
    assert iterations[3].kl_coef == pytest.approx(below, rel=1e-9)


@pytest.mark.parametrize("value_model", ["fitted", "head", "adapter"])
def test_one_batch_of_huge_rewards_does_not_blur_later_values(value_model: str, tmp_path: Path) -> None:
    tiny_config(tmp_path)
    plain = (tmp_path / "rewards.py").read_text()
    once = "calls = []\n\ndef huge_once(completion_ids, **_):\n    calls.append(1)\n"
    once += "    return [1e6 * (len(calls) == 3) * (ids[0] % 2 or -1) + sum(ids) % 7 / 7 for ids in completion_ids]\n"
    (tmp_path / "rewards.py").write_text(plain + once)
    source = f"reward.sources=['{tmp_path}/rewards.py:huge_once']"
    settings = (f"model.value_model={value_model}", "eval.every=0", "ppo.iterations=6")
    iterations = record(tiny_config(tmp_path, source, *settings)).of(Iteration)
    assert iterations[2].score_max > 1e5
    assert abs(iterations[5].value_mean) < 10


@pytest.mark.parametrize(
    "settings",
    [
        ("model.value_model=fitted", "ppo.lam=0.7"),
        ("model.value_model=head",),
        ("model.value_model=head", "ppo.relative_value_clip=0", "ppo.kl_in=loss", "ppo.kl_estimator=full"),
        ("model.value_model=head", "ppo.prefix_scores=2", "ppo.lam=0.7"),
        ("model.value_model=adapter",),
    ],
)
def test_the_scale_of_the_rewards_matters_to_neither_policy_nor_critic(
    settings: tuple[str, ...], tmp_path: Path
) -> None:
    """Rewards times c, and a KL coefficient in the rewards times c, give the same policy, and values times c."""
    tiny_config(tmp_path)
    policies, moments, values, grad_norms = [], [], [], []
    for scale in (1.0, 0.01, 10.0, 100.0, 1000.0):
        source = f"reward.sources=[{{kind='python', path='{tmp_path}/rewards.py:score', weight={scale}}}]"
        kl = f"ppo.kl_coef={0.05 if 'ppo.kl_in=loss' in settings else 0.05 * scale}"
        critic = ("ppo.value_coef=1.0", "optim.value_lr=0.03")  # that pulls hard on a shared trunk
        recorder = record(tiny_config(tmp_path, f"run.name=times-{scale}", source, kl, *critic, *settings))
        checkpoint = tmp_path / f"runs/times-{scale}/checkpoints/step-000003"
        policies.append(mx.load(str(checkpoint / "policy/adapters.safetensors")))
        moments.append(mx.load(str(checkpoint / "optimizer/optimizer.safetensors")))
        values.append([event.value_mean / scale for event in recorder.of(Iteration)])
        grad_norms.append([event.grad_norm for event in recorder.of(Iteration)])
    assert abs(values[0][1]) > 0.01  # the critic has learned something
    for found in (values, grad_norms):
        for other in found[1:]:
            assert other == pytest.approx(found[0], rel=1e-3)
    for arrays in (policies, moments):
        for other in arrays[1:]:
            for name, array in arrays[0].items():
                np.testing.assert_allclose(
                    np.array(other[name]), np.array(array), atol=1e-3 * max(1e-9, float(mx.abs(array).max()))
                )


SOME = """
def some(completion_ids, **_):
    return [None if sum(ids) % 2 else sum(ids) / 100 for ids in completion_ids]

def none(completion_ids, **_):
    return [None] * len(completion_ids)
"""


def unscored_run(folder: Path, source: str, *settings: str) -> Recorder:
    """Train `a` with a reward that gives None for some responses, or for all."""
    tiny_config(folder)  # makes the workspace
    (folder / "rewards.py").write_text(SOME)
    return record(tiny_config(folder, "run.name=a", f'reward.sources=["{folder}/rewards.py:{source}"]', *settings))


def rows_of(folder: Path, iteration: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = read_samples(RunFolder(folder / "runs/a").samples_file(iteration)).to_pylist()
    return rows


FITTED = ("reward.normalize=running", "ppo.minibatches=4", "ppo.lam=0.7")
CRITIC = (*FITTED, "model.value_model=head", "ppo.prefix_scores=2")
GROUPS = ("rollout.samples_per_prompt=4", "ppo.estimator=grpo", "ppo.kl_in=loss", "ppo.kl_estimator=k3")
GREEDY = ("ppo.estimator=remax", "reward.normalize=running", "rollout.samples_per_prompt=2", "ppo.minibatches=4")


@pytest.mark.parametrize("settings", [FITTED, CRITIC, GROUPS, GREEDY])
def test_a_response_to_which_no_source_applies_is_in_no_score_and_no_step(
    tmp_path: Path, settings: tuple[str, ...]
) -> None:
    recorder = unscored_run(tmp_path, "some", "rollout.batch_size=8", *settings)
    found: list[Iteration] = recorder.of(Iteration)
    assert any(0 < each.unscored < 1 and each.steps for each in found)
    for each in found:
        rows = rows_of(tmp_path, each.iteration)
        scores = [row["score"] for row in rows]
        assert [score is None for score in scores] == [sum(row["tokens"]) % 2 == 1 for row in rows]
        known = np.array([score for score in scores if score is not None])
        assert each.unscored == pytest.approx(1 - len(known) / len(rows))
        assert (each.score_mean, each.score_std) == pytest.approx((known.mean(), known.std()), abs=1e-5)
        assert each.kl == pytest.approx(np.mean([row["kl_sum"] for row in rows]), abs=1e-5)
        for row in rows:
            (left_out,) = {row[name] is None for name in ("advantages", "returns", "rewards")}
            assert left_out >= (row["score"] is None)
            assert not left_out or (row["ratios"], row["values"]) == (None, None)
            assert (row["parts"][0]["score"] is None) == (row["score"] is None)
            assert all(map(math.isfinite, row["logprobs"] + row["ref_logprobs"] + row["entropy"]))
        assert each.steps == 0 or math.isfinite(each.policy_loss + each.grad_norm)
    assert all((each.unscored == 1) == math.isnan(each.score_mean) for each in recorder.of(Evaluation))


@pytest.mark.parametrize("settings", [FITTED, CRITIC, GROUPS, GREEDY])
def test_a_batch_without_any_score_takes_no_step_and_says_so(tmp_path: Path, settings: tuple[str, ...]) -> None:
    recorder = unscored_run(tmp_path, "none", "rollout.batch_size=8", *settings)
    alerts = [alert for alert in recorder.of(Alert) if not isinstance(alert, Alarm)]
    assert [alert.code for alert in alerts] == ["no_signal"] * 3
    assert alerts[0].message == "no reward source applies to any of the 8 responses, so no step was taken"
    for each in recorder.of(Iteration):
        assert (each.unscored, each.steps) == (1, 0)
        assert math.isnan(each.score_mean)
        assert math.isfinite(each.kl)
        assert all(row["score"] is None and row["advantages"] is None for row in rows_of(tmp_path, each.iteration))
    assert all(math.isnan(one.score) for event in recorder.of(SamplesWritten) for one in event.previews)
    assert [alarm.message for alarm in recorder.of(Alarm) if alarm.code == "no_signal"] == [
        "nothing to learn from in 3 iterations: no reward source applies to any response"
    ]


LOGS = """
async def logged(completions, trainer_state, log_metric, log_extra, **_):
    log_metric("step", trainer_state.global_step / trainer_state.max_steps)
    log_extra("words", [len(text.split()) for text in completions])
    return [float(len(text)) for text in completions]
"""


@pytest.mark.parametrize("settings", [CRITIC, GREEDY])
def test_what_a_function_logs_is_in_the_numbers_of_the_iteration_and_in_its_samples(
    tmp_path: Path, settings: tuple[str, ...]
) -> None:
    tiny_config(tmp_path)
    (tmp_path / "rewards.py").write_text(LOGS)
    source = f'reward.sources=["{tmp_path}/rewards.py:logged"]'
    recorder = record(tiny_config(tmp_path, "run.name=a", source, "rollout.batch_size=8", "eval.every=3", *settings))
    name = "rewards.py:logged.step"
    assert [each.parts[name] for each in recorder.of(Iteration)] == pytest.approx([0, 1 / 3, 2 / 3])
    assert [each.parts[name] for each in recorder.of(Evaluation)] == pytest.approx([0, 1])
    for row in rows_of(tmp_path, 3):
        assert json.loads(row["extra"]) == {"words": len(row["completion"].split())}


def test_a_reward_that_changes_as_it_trains_is_the_same_for_policy_and_reference(tmp_path: Path) -> None:
    tiny_config(tmp_path)
    code = "def score(completions, trainer_state):\n    return [float(trainer_state.global_step)] * len(completions)"
    (tmp_path / "rewards.py").write_text(code)
    found = record(tiny_config(tmp_path, "run.name=a", "eval.every=1", "data.eval_fraction=0.4")).of(Evaluation)
    assert [(each.score_mean, each.reference_score, each.win_rate) for each in found] == [
        (step, step, 0.5) for step in range(len(found))
    ]


class Working:
    """Source that remembers what it saw, call by call."""

    name = "working"

    def __init__(self) -> None:
        self.calls: list[Sequence[RewardInput]] = []

    def __call__(self, batch: Sequence[RewardInput]) -> SourceScores:
        self.calls.append(batch)
        return SourceScores([float(len(row.completion)) for row in batch])


def ppo_with(folder: Path, source: Working, *settings: str, events: list[Event] | None = None) -> PPO:
    """Return PPO on `source`, though its configuration has the lexicon, which is cheap."""
    settings = ('reward.sources=["lexicon"]', "rollout.ignore_stop=true", *settings)
    config = tiny_config(folder, *settings)
    model = load_backbone(config.model)
    prompts = encode_prompts(load_prompts(config.data), model.tokenizer, config.data).prompts
    actor = ActorCriticLLM(model.backbone, config.model, key=mx.random.key(0))
    rewards = Rewards([WeightedSource(source)])
    emit = [].append if events is None else events.append
    ticks = itertools.count()  # a clock that does not depend on the machine
    return PPO(config, actor, model.tokenizer, prompts, rewards, report=emit, clock=lambda: 0.001 * next(ticks))


@pytest.mark.parametrize(("settings", "expected"), [((), 4 * 7), (("rollout.max_new_tokens=65",), 4 * 32)])
def test_a_response_has_at_most_64_prefix_scores_where_the_trainer_chooses(
    settings: tuple[str, ...], expected: int, tmp_path: Path
) -> None:
    ppo = ppo_with(tmp_path, source := Working(), *settings)
    ppo.iteration(1)
    assert [len(batch) for batch in source.calls] == [4, expected]


def test_prefixes_are_decoded_as_the_scored_response_is(tmp_path: Path) -> None:
    ppo = ppo_with(tmp_path, source := Working(), "ppo.prefix_scores=1")
    decode, prompts = ppo.tokenizer.decode, list(ppo.prompts[:1])
    (end,) = ppo.tokenizer.eos_token_ids
    ids = [65, end, 66, 67]
    batch = lay_out(prompts, [Response(ids, [0.0] * 4, decode(ids, skip_special_tokens=True), True)])
    batch = batch._replace(values=mx.zeros((1, 4)), final_values=mx.zeros(1), scores=mx.zeros(1))
    ppo.with_potential_values(batch, prompts)
    assert decode([end]) not in decode(ids, skip_special_tokens=True)
    expected = [decode(ids[:count], skip_special_tokens=True) for count in (1, 2, 3)]
    assert [row.completion for row in source.calls[0]] == expected


@pytest.mark.parametrize("bootstrap_truncated", [False, True])
def test_prefix_values_learn_from_the_discounted_returns_of_the_batch(
    bootstrap_truncated: bool, tmp_path: Path
) -> None:
    settings = ("ppo.gamma=0.9", f"ppo.bootstrap_truncated={str(bootstrap_truncated).lower()}", "ppo.prefix_scores=2")
    ppo = ppo_with(tmp_path, Working(), *settings)
    batch = ppo.iteration(1).batch

    def learned(gamma: float, *, bootstraps: bool) -> dict[str, Any]:
        values, found = PotentialValues(8), steps.add_outcomes(batch, gamma=gamma, bootstrap_truncated=bootstraps)
        values.learn(batch, 2, float64(filled(found.outcomes)))
        return values.state()

    assert ppo.potential_values.state() == learned(0.9, bootstraps=bootstrap_truncated)
    assert ppo.potential_values.state() != learned(1.0, bootstraps=bootstrap_truncated)
    assert ppo.potential_values.state() != learned(0.9, bootstraps=not bootstrap_truncated)


@pytest.mark.parametrize("value_model", ["fitted", "head", "adapter"])
@pytest.mark.parametrize("lam", [0.0, 1.0])
def test_a_critic_is_measured_by_what_came_without_its_own_values_whatever_lambda_is(
    value_model: str, lam: float, tmp_path: Path
) -> None:
    settings = (f"model.value_model={value_model}", f"ppo.lam={lam}", "ppo.gamma=0.9", "ppo.kl_coef=0.5")
    settings += ("ppo.prefix_scores=0",)
    ppo = ppo_with(tmp_path, Working(), *settings, "optim.value_lr=0.05")
    for number in (1, 2, 3):
        batch, _, _, metrics, _, _ = ppo.iteration(number)
        assert value_model != "fitted" or (number == 1) == (metrics.explained_variance == 0.0)
    values, rewards, returns = (float64(filled(x)) for x in (batch.values, batch.rewards, batch.returns))
    assert batch.mask.all(), "all responses have 8 tokens"
    outcomes = np.array([[0.9 ** np.arange(8 - t) @ row[t:] for t in range(8)] for row in rewards])
    expected = 1 - np.var(outcomes - values) / np.var(outcomes)
    assert metrics.explained_variance == pytest.approx(expected, abs=1e-4)
    of_returns = 1 - np.var(returns - values) / np.var(returns)
    assert (abs(of_returns - expected) < 1e-4) == (lam == 1.0)
    order, values, outcomes = np.argsort(values.ravel(), kind="stable"), values.ravel(), outcomes.ravel()
    fifths = [[values[part].mean(), outcomes[part].mean(), len(part)] for part in np.array_split(order, 5)]
    np.testing.assert_allclose(metrics.calibration, fifths, rtol=1e-4, atol=1e-4)
    if value_model == "fitted":
        assert metrics.value_loss == pytest.approx(np.mean((outcomes - values) ** 2) / 2, rel=1e-4)


def test_while_a_fitted_critic_warms_up_it_learns_and_no_step_is_taken(tmp_path: Path) -> None:
    events = list[Event]()
    ppo = ppo_with(tmp_path, Working(), "ppo.critic_warmup=2", events=events)
    before, learned = ppo.actor.policy_parameters(), list[list[int]]()
    for number in (1, 2, 3):
        result = ppo.iteration(number)
        warms_up = number < 3
        assert (result.metrics.steps, result.trains_policy) == ((0, False) if warms_up else (2, True))
        assert (result.ratios is None) == warms_up
        assert math.isnan(result.metrics.policy_loss) == warms_up
        after = ppo.actor.policy_parameters()
        assert all(mx.array_equal(array, after[name]) for name, array in before.items()) == warms_up
        learned.append(filled(ppo.actor.fitted).arrays()["moments"].tolist())
    assert learned[0] != learned[1] != learned[2]
    assert filled(result.batch.values).any()
    assert not [event for event in events if isinstance(event, Alert)]
    assert ppo.learner.learning_rates()[0] > 0


def test_a_fitted_critic_learns_beside_prefix_scores_and_takes_over_where_they_are_switched_off(tmp_path: Path) -> None:
    settings = ('reward.sources=["lexicon"]', "rollout.ignore_stop=true")
    ppo = ppo_with(tmp_path, Working(), "ppo.prefix_scores=4")
    for number in (1, 2):
        batch = ppo.iteration(number).batch
        assert filled(batch.potentials)[:, :4].tolist() == [[0.0] * 4] * 4, "nothing is scored yet"
    ppo.configure(tiny_config(tmp_path, *settings, "ppo.prefix_scores=0"))
    batch = ppo.iteration(3).batch
    assert np.unique(np.array(filled(batch.potentials)), axis=1).shape == (4, 8), "it expects something at each token"
    assert mx.array_equal(batch.values, batch.potentials), "as it is: nothing says yet what it is worth"


PAIRS = ("rollout.samples_per_prompt=2", "ppo.iterations=2", "eval.every=0", "run.alternatives=3")


def samples_of(folder: Path, iteration: int) -> list[dict[str, Any]]:
    (run,) = (folder / "runs").iterdir()
    rows: list[dict[str, Any]] = read_samples(RunFolder(run).samples_file(iteration)).to_pylist()
    return rows


def phases_of(recorder: Recorder, iteration: int) -> list[str]:
    found = [event.phase for event in recorder.of(PhaseProgress) if event.iteration == iteration]
    return list(dict.fromkeys(found))


def close(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(close(one[name], other[name]) for name in one)
    if isinstance(one, (list, tuple, np.ndarray)):
        return len(one) == len(other) and all(map(close, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return bool(np.isclose(one, other, rtol=1e-4, atol=1e-5, equal_nan=True))
    return bool(one == other)


@pytest.mark.parametrize(
    "settings",
    [
        ("ppo.estimator=grpo", "ppo.kl_in=loss", "ppo.kl_estimator=k3", "ppo.ratio=sequence"),
        ("ppo.estimator=rloo", "ppo.kl_coef=0", "ppo.entropy_coef=0.01", "rollout.temperature=0.7"),
        ("ppo.estimator=remax", "ppo.kl_in=loss", "ppo.kl_estimator=k2", "optim.micro_batch_tokens=32"),
        ("ppo.estimator=reinforce", "ppo.kl_in=loss", "ppo.kl_estimator=k3", "ppo.importance_cap=2", "ppo.epochs=1"),
        ("ppo.estimator=grpo", "ppo.kl_in=loss", "ppo.kl_estimator=k3", "optim.grad_checkpoint=true"),
        ("ppo.estimator=grpo", "ppo.kl_in=loss", "ppo.kl_estimator=k3", "run.alternatives=0"),
    ],
)
def test_scores_of_the_first_step_are_those_of_a_pass_of_their_own(
    settings: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for folder, joined in ((tmp_path / "joined", True), (tmp_path / "apart", False)):
        folder.mkdir()
        if not joined:
            monkeypatch.setattr(PPO, "scores_while_learning", False)
        recorder = record(tiny_config(folder, *PAIRS, *settings))
        assert ("score" in phases_of(recorder, 1)) != joined
        metrics = [comparable(event) for event in recorder.of(Iteration)]
        found.append((metrics, samples_of(folder, 1), samples_of(folder, 2)))
    (metrics, *samples), (expected_metrics, *expected_samples) = found
    assert len(metrics) == 2
    assert close(metrics, expected_metrics)
    assert close(samples, expected_samples)
    assert all(row["ratios"][0][0] == 1.0 for row in samples[0])  # not about 1: pi_old is the same number


@pytest.mark.parametrize(
    "settings",
    [
        ("ppo.estimator=gae", "ppo.kl_in=loss", "ppo.kl_estimator=k3"),  # the advantages need the critic
        ("ppo.estimator=rloo",),  # the rewards need the KL
        ("ppo.estimator=rloo", "ppo.kl_coef=0", "ppo.minibatches=2"),  # the second step's policy did not write it
    ],
)
def test_the_batch_is_scored_before_where_something_needs_it(settings: tuple[str, ...], tmp_path: Path) -> None:
    recorder = record(tiny_config(tmp_path, *PAIRS, *settings))
    assert phases_of(recorder, 1) == ["generate", "score", "reward", "update"]


def test_a_batch_that_no_step_trains_on_is_scored_after_all(tmp_path: Path) -> None:
    settings = (f"reward.sources=['{tmp_path}/rewards.py:constant']", "ppo.estimator=grpo", "ppo.kl_in=loss")
    tiny_config(tmp_path)
    recorder = record(tiny_config(tmp_path, *PAIRS, *settings, "ppo.kl_estimator=k3", "ppo.kl_coef=0"))
    assert {alert.code for alert in recorder.of(Alert)} >= {"no_signal"}
    assert phases_of(recorder, 1) == ["generate", "reward", "update", "score"]
    assert all(math.isfinite(event.entropy) and event.kl == 0.0 for event in recorder.of(Iteration))
    assert all(len(row["top_tokens"][0]) == 3 for row in samples_of(tmp_path, 1))
