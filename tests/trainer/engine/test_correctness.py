"""Rules of a correct PPO that hold between modules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from batches import arrays, make_actor, same, scored
from preference_samples import labelled, reward_config
from runs_helper import record, tiny_config
from tiny import make_prompts, make_tokenizer

from trainer.config.ppo import PPOConfig
from trainer.config.schema import OptimConfig, RolloutConfig
from trainer.engine.training import train
from trainer.events import Iteration
from trainer.models.actor_critic import ActorCriticLLM
from trainer.pairs.comparisons import reward_comparisons
from trainer.pairs.encoders import Sequenced
from trainer.ppo.learner import Learner
from trainer.ppo.losses import LossSettings
from trainer.reward_model.loaded import load_reward_model
from trainer.rollout.experience import Experience
from trainer.rollout.generation import generate_responses, lay_out
from trainer.runs.folder import RunFolder
from trainer.runs.samples import read_samples

# Rollouts and masks


@pytest.mark.parametrize("temperature", [0.7, 1.3])
def test_a_run_scores_the_distribution_and_the_adapter_that_it_samples_from(temperature: float, tmp_path: Path) -> None:
    settings = ("run.name=a", "optim.policy_lr=0.02", f"rollout.temperature={temperature}")
    first, *later = record(tiny_config(tmp_path, *settings)).of(Iteration)
    assert first.kl == 0
    assert all(abs(iteration.kl) > 1e-3 for iteration in later)  # the adapter that sampled is no longer fresh
    for row in rows_of(tmp_path / "runs" / "a"):
        np.testing.assert_allclose(row["logprobs"], row["sampler_logprobs"], atol=1e-4)


def test_dropout_in_the_adapters_layers_reaches_neither_rollout_nor_scores_nor_update(tmp_path: Path) -> None:
    plain, with_dropout = (make_actor(tmp_path / "llama") for _ in range(2))
    for layer in with_dropout._layers.values():
        layer.dropout._p_1 = 0.5  # the share that is kept
    one, other = after_an_update(plain), after_an_update(with_dropout)
    assert one.sampler_logprobs.tolist() == other.sampler_logprobs.tolist()
    for name in ("logprobs", "values", "ref_logprobs", "advantages"):
        assert getattr(one, name).tolist() == getattr(other, name).tolist(), name
    assert same(arrays(plain), arrays(with_dropout))


def after_an_update(actor: ActorCriticLLM) -> Experience:
    """Return a rollout of `actor`, scored, after which the actor has learned from it in two steps."""
    prompts = make_prompts(make_tokenizer(), ["one", "two of them", "three"])
    sampling = RolloutConfig(max_new_tokens=8, ignore_stop=True)
    found = generate_responses(actor.backbone, make_tokenizer(), prompts, sampling, key=mx.random.key(3))
    batch = scored(actor, lay_out(prompts, found))
    learner = Learner(actor, OptimConfig(policy_lr=0.01, value_lr=0.01), total_steps=2)
    for _ in range(2):
        assert learner.train(batch, LossSettings(PPOConfig(), 1.0), "joint").metrics.outcome == "taken"
    return batch


def rows_of(run: Path) -> list[dict[str, Any]]:
    """Return the samples of every iteration of the run in `run`."""
    files = sorted(RunFolder(run).samples.iterdir())
    return [row for file in files for row in read_samples(file).to_pylist()]


# Rewards


def test_a_saved_reward_model_has_mean_0_and_deviation_1_on_the_completions_it_was_normalised_by(
    tmp_path: Path,
) -> None:
    config, pairs = reward_config(tmp_path, "run.name=a", "data.eval_fraction=0"), labelled(40)
    train(config, preferences=pairs)
    loaded = load_reward_model(tmp_path / "runs" / "a")
    groups = reward_comparisons(pairs, loaded.base, config).train
    sequences = [list(sequence) for group in groups for sequence in group.sequences]
    rewards = np.array(loaded.score([Sequenced(one, len(one), is_cut=False) for one in sequences]))
    assert (rewards.mean(), rewards.std()) == (pytest.approx(0, abs=1e-4), pytest.approx(1, abs=1e-4))
    assert abs(loaded.model.scale.std - 1) > 0.01  # so that there was something to do


def test_in_a_run_only_responses_that_met_no_configured_stop_pay_the_penalty(tmp_path: Path) -> None:
    stops = ["a", "b", "c", "d", "e", "f"]
    settings = ("run.name=a", "rollout.max_new_tokens=16", f"rollout.stop={stops}", "reward.missing_stop_penalty=7.0")
    record(tiny_config(tmp_path, *settings))
    rows = rows_of(tmp_path / "runs" / "a")
    met = [any(stop in text_of(row) for stop in stops) for row in rows]
    assert {False, True} == set(met)
    for row, stopped in zip(rows, met, strict=True):
        assert not any(stop in row["completion"] for stop in stops)
        assert row["truncated"] is not stopped
        (part,) = row["parts"]
        assert row["score"] == pytest.approx(part["score"] - 7 * (not stopped), abs=1e-5)


def text_of(row: dict[str, Any]) -> str:
    """Return all tokens of a response as text, the stop included."""
    return str(make_tokenizer().decode(row["tokens"]))


# The page
