"""A head fitted to untrained states: what it minimises, its penalty, and the run that begins with it."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from preference_samples import labelled, preference, reward_config
from runs_helper import Recorder
from tiny import load_tiny

from trainer.arrays import Purpose
from trainer.engine import reward_model as reward_model_run
from trainer.engine.reward_model import RewardModelTraining
from trainer.engine.trainable import Hooks, step_groups
from trainer.engine.training import train
from trainer.errors import UsageError
from trainer.events import Alert, RewardModelEvaluation, RewardModelStep
from trainer.pairs.comparisons import reward_comparisons
from trainer.pairs.groups import sequences_of
from trainer.reward_model.network import score_sequences
from trainer.reward_model.reward_learner import PENALTIES, Differences, differences, fit_head

SEED = [0, 5]


def drawn(count: int, width: int, *, noise: float = 0.0, prompts: int = 0, seed: int = 0) -> Differences:
    """Return pairs whose better completion is chosen by a hidden head, with logistic noise of a scale."""
    rng = np.random.default_rng(seed)
    states = rng.normal(size=(count, width))
    leads = states @ rng.normal(size=width) + noise * rng.logistic(size=count)
    states *= np.sign(leads)[:, None]
    numbers = np.arange(count) % prompts if prompts else np.arange(count)
    return Differences(states, np.zeros(count), np.ones(count), numbers)


@pytest.mark.parametrize(("count", "width"), [(60, 5), (20, 50)])
def test_the_head_is_where_the_gradient_of_the_penalised_loss_is_zero(count: int, width: int) -> None:
    found = drawn(count, width, noise=2.0)
    weights, margins = np.linspace(0.1, 1, count), np.linspace(0, 0.7, count)
    head = fit_head(found._replace(weights=weights, margins=margins), SEED)

    def loss(weight: np.ndarray) -> float:
        losses = np.log1p(np.exp(margins - found.states @ weight))
        scale = np.square(found.states).sum(axis=1).mean()
        return float((weights * losses).sum() / weights.sum() + head.penalty / 2 * scale * np.square(weight).sum())

    for step in 1e-3 * np.eye(width):
        assert loss(head.weight) < min(loss(head.weight + step), loss(head.weight - step))
        slope = (loss(head.weight + step) - loss(head.weight - step)) / 2e-3
        assert slope == pytest.approx(0, abs=1e-6)


def test_a_head_that_made_the_choices_is_found_and_the_penalty_is_weak() -> None:
    found = drawn(400, 8)
    head = fit_head(found, SEED)
    assert head.penalty == min(PENALTIES)
    assert head.accuracy > 0.95
    assert head.pairs == 400


def test_choices_by_chance_get_a_strong_penalty_and_about_half_are_right() -> None:
    found = drawn(300, 200, noise=1e6)
    head = fit_head(found, SEED)
    assert head.penalty >= 1000 * min(PENALTIES)
    assert head.accuracy == pytest.approx(0.5, abs=0.1)
    assert np.abs(found.states @ head.weight).mean() < 0.5


def test_the_penalty_is_that_of_the_head_that_leads_by_the_margins() -> None:
    """A lead of several logits takes larger weights than a choice."""
    found = drawn(200, 20, noise=4.0)
    by_six = fit_head(found._replace(margins=np.full(200, 6.0)), SEED)
    assert by_six.penalty < fit_head(found, SEED).penalty


def test_the_pairs_of_a_prompt_are_never_in_two_folds() -> None:
    one = drawn(60, 40, noise=1e6)
    repeated = Differences._make(np.tile(values, (4, 1)) if values.ndim == 2 else np.tile(values, 4) for values in one)
    assert fit_head(repeated, SEED).accuracy < 0.7
    apart = repeated._replace(prompts=np.arange(240))
    assert fit_head(apart, SEED).accuracy > 0.95, "the same pair was in the part that the head was fitted to"


@pytest.mark.parametrize("factors", [np.full(12, 1e-3), np.repeat([1.0, 1e-3, 50.0], 4)])
def test_the_scale_of_the_states_and_of_their_parts_does_not_matter(factors: np.ndarray) -> None:
    found = drawn(80, 12, noise=2.0)
    head = fit_head(found, SEED, parts=3)
    other = fit_head(found._replace(states=found.states * factors), SEED, parts=3)
    assert other.penalty == head.penalty
    np.testing.assert_allclose(other.weight * factors, head.weight, rtol=1e-6)


def test_states_that_do_not_differ_are_reported() -> None:
    found = drawn(10, 3)
    with pytest.raises(UsageError, match="no difference between the completions"):
        fit_head(found._replace(states=np.zeros((10, 3))), SEED)


def test_pairs_are_taken_from_the_states_of_their_group_without_ties(tmp_path: Path) -> None:
    config = reward_config(tmp_path, "data.eval_fraction=0")
    judged = [
        preference("p0 ", ["aa", "bb"], "b", strength=3),
        preference("p1 ", ["cc", "dd"], "tie"),
        preference("p2 ", ["ee", "ff", "gg"], ((1,), (0, 2))),
    ]
    data = reward_comparisons(judged, load_tiny(tmp_path / "model"), config)
    states = np.arange(14.0).reshape(7, 2)
    found = differences(data.train, states, 0.5)
    rows = [[states[1] - states[0]], [states[5] - states[4], states[5] - states[6]]]
    np.testing.assert_array_equal(found.states, [one for group in rows for one in group])
    np.testing.assert_array_equal(found.margins, [1.0, 0, 0])
    np.testing.assert_array_equal(found.weights, [1.0, 0.5, 0.5])
    assert found.prompts[0] != found.prompts[1] == found.prompts[2]


def trained(folder: Path, *settings: str) -> Recorder:
    recorder = Recorder()
    config = reward_config(folder, "data.eval_fraction=0.2", *settings)
    train(config, preferences=labelled(200), sinks=[recorder])
    return recorder


def test_a_run_begins_with_the_fitted_head_beside_the_untrained_one(tmp_path: Path) -> None:
    plain, fitted = trained(tmp_path / "plain"), trained(tmp_path / "fitted", "train.head=fitted")
    first, started = plain.of(RewardModelEvaluation)[0], fitted.of(RewardModelEvaluation)[0]
    assert started.iteration == first.iteration == 0
    assert started.untrained_accuracy == first.untrained_accuracy == first.accuracy
    assert started.accuracy > first.accuracy + 0.1
    assert started.log_loss < min(first.log_loss, math.log(2))
    assert fitted.of(RewardModelStep)[0].loss < plain.of(RewardModelStep)[0].loss
    (said,) = fitted.of(Alert)
    assert said.message.startswith("the head was fitted to 160 pairs: ")
    assert not plain.of(Alert)


def prepared(folder: Path) -> tuple[RewardModelTraining, list[str]]:
    """Return a training of 80 pairs that begins with a fitted head, and what it has said."""
    config = reward_config(folder, "data.eval_fraction=0", "train.head=fitted", "train.states=last+mean")
    loaded = load_tiny(folder / "model")
    said: list[object] = []
    data = reward_comparisons(labelled(80), loaded, config)
    training = RewardModelTraining(config, hooks=Hooks(said.append)).build_on(config, loaded.backbone, data)
    training.prepare()
    return training, [event.message for event in said if isinstance(event, Alert)]


def test_the_first_logits_are_those_of_the_fitted_head(tmp_path: Path) -> None:
    training, _ = prepared(tmp_path)
    groups = training.data.train
    sequences, starts = sequences_of(groups)
    states = score_sequences(training.scorer.states, sequences, 4096, starts=starts)
    found = differences(groups, states, training.config.train.margin)
    head = fit_head(found, [0, Purpose.FOLDS], parts=2)
    assert training.scorer.scale.std / training.scorer.scale.logit_std == pytest.approx(
        (states @ head.weight).std(), 1e-4
    )
    first = step_groups([*range(80)], 1, training.config.train, 0)
    loss = np.logaddexp(0, -found.states[first] @ head.weight).mean()
    assert training.step().loss == pytest.approx(float(loss), abs=1e-4)


def test_many_comparisons_are_drawn_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reward_model_run, "MOST_COMPARISONS", 60)
    assert any("fitted to 60 pairs" in message for message in prepared(tmp_path)[1])
