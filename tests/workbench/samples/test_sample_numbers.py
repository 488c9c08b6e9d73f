"""A samples file of a real run holds everything its numbers follow from: they are recomputed in float64."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference
from reference import Floats, float64
from runs_helper import Recorder, record, tiny_config

from trainer.engine.control import Control
from trainer.engine.training import train
from trainer.events import Iteration
from trainer.runs.folder import RunFolder
from trainer.runs.samples import SampleSettings, read_samples, sample_settings
from workbench.run.sample_reader import read_token_sample
from workbench.run.sample_table import SampleKey
from workbench.samples.token_facts import TokenFacts, advantage_terms

TOKENS = 'reward.sources=["{folder}/rewards.py:each_token", "{folder}/rewards.py:score"]'
VARIANTS = {
    "plain": [],
    "whitened rewards": ["ppo.whiten_rewards=true", "ppo.kl_coef=0.5"],
    "bootstrapping": ["ppo.bootstrap_truncated=true", "ppo.gamma=0.9", 'rollout.stop=["a"]'],
    "token rewards": [TOKENS, "ppo.lam=0.5"],
    "scores so far": ["ppo.prefix_scores=2", "ppo.lam=0.5"],
    "all of it": [TOKENS, "ppo.whiten_rewards=true", "ppo.bootstrap_truncated=true", "ppo.gamma=0.9",
                  "ppo.kl_estimator=k3", 'rollout.stop=["a", "b", "c"]', "rollout.temperature=0.7",
                  "model.value_model=adapter"],
}  # fmt: skip


def run(folder: Path, *settings: str) -> tuple[Recorder, list[tuple[list[dict[str, Any]], SampleSettings]]]:
    """Run a tiny run that learns fast; return the rows and settings of its samples by iteration."""
    settings = tuple(text.replace("{folder}", str(folder)) for text in settings)
    rates = ("optim.policy_lr=0.02", "optim.value_lr=0.02")
    recorder = record(tiny_config(folder, "run.name=a", *rates, *settings))
    tables = [read_samples(RunFolder(folder / "runs/a").samples_file(number)) for number in (1, 2, 3)]
    return recorder, [(table.to_pylist(), sample_settings(table.schema.metadata)) for table in tables]


def penalties(row: dict[str, Any], settings: SampleSettings) -> Floats:
    log_r = float64(row["ref_logprobs"]) - float64(row["logprobs"])
    bounded = np.minimum(log_r, 2.610868638149876)  # so that k3 is at most 10
    return {"k1": -log_r, "k3": np.exp(bounded) - 1 - bounded}[settings.kl_estimator]


def rewards_before_whitening(row: dict[str, Any], settings: SampleSettings) -> Floats:
    rewards = float64(row["token_scores"]) - settings.kl_coef * penalties(row, settings)
    if not (settings.bootstrap_truncated and row["truncated"]):
        rewards[-1] += row["sequence_score"]
    return rewards


def assert_screen_agrees(folder: Path, settings: SampleSettings) -> None:
    """Check that what the screen derives from the file of the last iteration is what the trainer computed."""
    for row in range(4):
        sample = read_token_sample(RunFolder(folder / "runs/a"), SampleKey(3, row))
        assert sample.settings == settings
        for place in range(len(sample)):
            facts = TokenFacts(sample, place)
            assert all(one.loss is not None for one in facts.passes)
            if settings.estimator in ("rloo", "grpo"):
                assert sample.group[sample.sample] == pytest.approx(facts.total_reward, abs=1e-5)
                assert len(sample.group) == settings.samples_per_prompt
            if not settings.whiten_rewards:
                assert facts.raw_reward == pytest.approx(facts.reward, abs=1e-5)
            if settings.estimator == "gae":
                assert advantage_terms(sample, place)[-1].running == pytest.approx(facts.advantage, abs=1e-4)
                following = settings.gamma * (facts.next_value or 0.0)
                assert facts.td_error == pytest.approx(facts.reward + following - facts.value, abs=1e-5)


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS.keys())
def test_the_numbers_of_every_token_follow_from_the_file_alone(variant: list[str], tmp_path: Path) -> None:
    _, files = run(tmp_path, *variant)
    ends = set()
    for rows, settings in files:
        raw = np.concatenate([rewards_before_whitening(row, settings) for row in rows])
        mean, std = raw.mean(), raw.std()
        assert (settings.reward_mean, settings.reward_std) == pytest.approx((mean, std), abs=1e-5)
        for row in rows:
            ends.add(row["stop_reason"])
            values, count = float64(row["values"]), len(row["tokens"])
            rewards = rewards_before_whitening(row, settings)
            if settings.whiten_rewards:
                scale = np.sqrt(settings.reward_std**2 + 1e-8)
                rewards = (rewards - settings.reward_mean) / scale + settings.reward_mean
            future = row["final_value"] if settings.bootstrap_truncated and row["truncated"] else 0.0
            deltas = reference.td_errors(rewards[None], values[None], [count], settings.gamma, [future])
            advantages = reference.gae(deltas, [count], settings.gamma, settings.lam)[0]
            assert row["kl"] == pytest.approx(penalties(row, settings), abs=1e-5)
            assert row["rewards"] == pytest.approx(rewards, abs=1e-4)
            assert row["td_errors"] == pytest.approx(deltas[0], abs=1e-4)
            assert row["advantages"] == pytest.approx(advantages, abs=1e-4)
            assert row["returns"] == pytest.approx(advantages + values, abs=1e-4)
            assert row["kl_sum"] == pytest.approx(np.sum(float64(row["logprobs"]) - float64(row["ref_logprobs"])))
            assert row["score"] == pytest.approx(row["sequence_score"] + sum(row["token_scores"]), abs=1e-4)
            assert row["length"] == count
        advantages = np.concatenate([row["advantages"] for row in rows])
        moments = (settings.advantage_mean, settings.advantage_std)
        assert moments == pytest.approx((advantages.mean(), advantages.std()), abs=1e-5)
    assert ends == ({"stop", "length"} if any("stop" in text for text in variant) else {"length"})
    learned = [abs(float64(row["values"])).max() for row in files[2][0]]
    assert max(learned) > 0.01  # so the values count for something
    if any(TOKENS in text for text in variant):
        assert any(token for row in files[0][0] for token in row["token_scores"])
    assert_screen_agrees(tmp_path, files[2][1])


PAIRS = ("rollout.samples_per_prompt=2", "ppo.gamma=0.9")
WITHOUT_CRITIC = {
    "reinforce": ["ppo.estimator=reinforce", "ppo.gamma=0.9"],
    "rloo": ["ppo.estimator=rloo", *PAIRS, "ppo.whiten_rewards=true", TOKENS],
    "remax": ["ppo.estimator=remax", "ppo.gamma=0.9"],
    "grpo": ["ppo.estimator=grpo", *PAIRS, "ppo.whiten_advantages=false"],
    "grpo without its deviation": ["ppo.estimator=grpo", *PAIRS, "ppo.group_std=false"],
    "KL in the loss": ["ppo.estimator=grpo", *PAIRS, "ppo.kl_in=loss", "ppo.kl_estimator=k3", "ppo.kl_coef=0.5"],
}


@pytest.mark.parametrize("variant", WITHOUT_CRITIC.values(), ids=WITHOUT_CRITIC.keys())
def test_without_a_critic_the_numbers_follow_from_the_file_alone(variant: list[str], tmp_path: Path) -> None:
    _, files = run(tmp_path, *variant)
    for rows, settings in files:
        totals = np.array([float64(row["rewards"]).sum() for row in rows])
        whole, coef = settings.estimator in ("rloo", "grpo"), settings.kl_coef if settings.kl_in == "reward" else 0.0
        for number, row in enumerate(rows):
            assert (row["values"], row["td_errors"], row["final_value"]) == (None, None, None)
            rewards = rewards_before_whitening(row, replace(settings, kl_coef=coef))
            if settings.whiten_rewards:
                scale = np.sqrt(settings.reward_std**2 + 1e-8)
                rewards = (rewards - settings.reward_mean) / scale + settings.reward_mean
            assert row["rewards"] == pytest.approx(rewards, abs=1e-4)
            discounts = (1.0 if whole else settings.gamma) ** np.arange(len(rewards))
            to_go = np.array([(rewards[t:] * discounts[: len(rewards) - t]).sum() for t in range(len(rewards))])
            assert row["returns"] == pytest.approx(to_go, abs=1e-4)
            group = [place for place, one in enumerate(rows) if one["prompt_index"] == row["prompt_index"]]
            if settings.estimator == "reinforce":
                group = [*range(len(rows))]
            if settings.estimator == "remax":
                group = []  # the greedy responses are in no file
            if settings.estimator == "grpo":
                baseline, scale = totals[group].mean(), totals[group].std(ddof=1) + 1e-4
                scale = scale if settings.group_std else 1.0
                assert row["advantage_scale"] == pytest.approx(scale, abs=1e-4)
            else:
                others = [place for place in group if place != number]
                baseline, scale = (totals[others].mean() if others else row["baseline"]), 1.0
                assert row["advantage_scale"] is None
            assert row["baseline"] == pytest.approx(baseline, abs=1e-4)
            earned = np.full(len(rewards), totals[number]) if whole else to_go
            assert row["advantages"] == pytest.approx((earned - baseline) / scale, rel=1e-3, abs=1e-3)
    assert_screen_agrees(tmp_path, files[2][1])


@pytest.mark.parametrize(
    "variant",
    [
        ["ppo.estimator=grpo", "rollout.samples_per_prompt=2", "ppo.kl_in=loss", "ppo.kl_estimator=k3"],
        ["ppo.clip_high=0.28", "ppo.dual_clip=3.0", "ppo.importance_cap=1.5", "ppo.loss_aggregation=token"],
        ["ppo.ratio=sequence", "ppo.clip=0.01", "ppo.estimator=grpo", "rollout.samples_per_prompt=2"],
        ["ppo.policy_loss=cispo", "ppo.clip_high=0.1", "ppo.importance_cap=1.5"],
    ],
    ids=["KL in the loss", "bounds", "ratio of a sequence", "cispo"],
)
def test_the_losses_of_the_tokens_are_those_that_the_run_reports(variant: list[str], tmp_path: Path) -> None:
    recorder, _ = run(tmp_path, *variant, "ppo.epochs=3")
    folder = RunFolder(tmp_path / "runs/a")
    for iteration in recorder.of(Iteration):
        losses = []
        for row in range(4):
            sample = read_token_sample(folder, SampleKey(iteration.iteration, row))
            facts = [TokenFacts(sample, place) for place in range(len(sample))]
            losses += [one.loss.total - (one.loss.kl or 0.0) for of in facts for one in of.passes if one.loss]
        assert np.mean(losses) == pytest.approx(iteration.policy_loss, rel=1e-3, abs=1e-5)


def test_epochs_that_were_ended_early_made_no_step(tmp_path: Path) -> None:
    settings = ("ppo.target_approx_kl=1e-9", "ppo.epochs=3", "ppo.minibatches=2", "run.final_ratios=true")
    recorder, files = run(tmp_path, *settings)
    for iteration, (rows, held) in zip(recorder.of(Iteration), files, strict=True):
        steps = sum(np.isfinite(row["ratios"][0][: held.epochs]).sum() for row in rows)
        assert iteration.steps == 1
        assert steps == 2, "of four sequences, two in a minibatch"
        assert all(np.isfinite(row["ratios"][0][-1]) for row in rows)


def test_without_a_step_there_are_no_ratios(tmp_path: Path) -> None:
    source = f'reward.sources=["{tmp_path}/rewards.py:constant"]'
    _, files = run(tmp_path, source, "ppo.kl_coef=0.0", "ppo.estimator=reinforce")
    assert [row["ratios"] for rows, _ in files for row in rows] == [None] * 12
    assert not any(settings.has_signal for _, settings in files)


def test_settings_changed_in_a_run_belong_to_the_iterations_they_apply_to(tmp_path: Path) -> None:
    control = Control()

    def change(event: Any) -> None:
        if isinstance(event, Iteration) and event.iteration == 1:
            control.set("ppo.kl_coef", 0.7)
            control.set("ppo.epochs", 1)

    recorder = Recorder(change)

    train(tiny_config(tmp_path, "run.name=a"), sinks=[recorder], control=control)
    found = []
    for number in (1, 2, 3):
        table = read_samples(RunFolder(tmp_path / "runs/a").samples_file(number))
        settings = sample_settings(table.schema.metadata)
        assert settings is not None
        found.append((settings.kl_coef, settings.epochs, len(table["ratios"][0].as_py()[0])))
    assert found == [(0.05, 2, 2), (0.7, 1, 1), (0.7, 1, 1)]
