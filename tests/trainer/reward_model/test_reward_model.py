"""The model: which hidden state it reads, its first weights, and a head fitted to untrained states."""

from __future__ import annotations

import math
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from preference_samples import labelled, preference, reward_config
from runs_helper import Recorder
from tiny import load_tiny, make_checkpoint

from trainer.arrays import pad
from trainer.config.schema import BackboneConfig
from trainer.engine.training import train
from trainer.errors import UsageError
from trainer.events import Alert, RewardModelEvaluation, RewardModelStep
from trainer.models.backbone import LoadedModel, load_backbone, quantize_backbone, quantize_warning
from trainer.models.forward import hidden_states
from trainer.pairs.comparisons import reward_comparisons
from trainer.reward_model.network import RewardModel, score_sequences
from trainer.reward_model.reward_learner import PENALTIES, Differences, differences, fit_head

SEQUENCES = [[72, 101, 108, 108, 111], [1, 2], [256, 5, 6, 7, 8, 9, 10, 11], [50, 256, 256]]


def made(folder: Path, loaded: LoadedModel, *overrides: str, seed: int = 0) -> RewardModel:
    return RewardModel(loaded.backbone, reward_config(folder, *overrides), key=mx.random.key(seed))


def scores(model: RewardModel, sequences: list[list[int]]) -> np.ndarray:
    return np.array(model.scores(mx.array(pad(sequences)), mx.array([len(one) for one in sequences])))


def stirred(model: RewardModel) -> RewardModel:
    """Return `model` with an adapter that changes its output."""
    parameters = {
        name: array + 0.1 * mx.random.normal(array.shape, key=mx.random.key(number))
        for number, (name, array) in enumerate(model.parameters().items())
    }
    model.update(parameters)
    return model


@pytest.fixture
def loaded(tmp_path: Path) -> LoadedModel:
    return load_tiny(tmp_path / "model")


def test_a_score_is_the_head_on_the_hidden_state_of_the_last_real_token(tmp_path: Path, loaded: LoadedModel) -> None:
    model = made(tmp_path, loaded)
    head = model.parameters()
    for sequence, found in zip(SEQUENCES, scores(model, SEQUENCES), strict=True):
        hidden = loaded.backbone.model(mx.array([sequence]))[0, -1]
        assert float(hidden @ head["head.weight"] + head["head.bias"]) == pytest.approx(float(found), abs=1e-4)


def test_with_the_mean_a_score_also_has_a_head_on_the_mean_state_of_the_completion(
    tmp_path: Path, loaded: LoadedModel
) -> None:
    model = stirred(made(tmp_path, loaded, "train.states=last+mean"))
    parameters = model.parameters()
    parameters["head.mean_weight"] = mx.random.normal(parameters["head.weight"].shape, key=mx.random.key(5))
    model.update(parameters)
    sequences = [[5, 6, 7, 8, 9], [5, 6, 7], [4, 5, 6, 7]]
    for starts in ([2, 1, 0], [4, 2, 3]):
        lengths = mx.array([len(one) for one in sequences])
        found = np.array(model.scores(mx.array(pad(sequences)), lengths, mx.array(starts)))
        for tokens, start, score in zip(sequences, starts, found, strict=True):
            with model.on():
                hidden = hidden_states(loaded.backbone, mx.array([tokens]))[0]
            mean = hidden[start:].mean(axis=0)
            expected = hidden[-1] @ parameters["head.weight"] + mean @ parameters["head.mean_weight"]
            assert score == pytest.approx(float(expected + parameters["head.bias"]), abs=1e-4)


@pytest.mark.parametrize("states", ["last", "last+mean"])
def test_beginnings_of_a_sequence_are_read_in_its_pass(tmp_path: Path, loaded: LoadedModel, states: str) -> None:
    model, passes = stirred(made(tmp_path, loaded, f"train.states={states}")), list[list[int]]()
    whole, other = [256, 5, 6, 7, 8, 9, 10, 11], [256, 5, 6, 9]
    sequences = [whole[:3], whole, other, [1, 2], whole[:7], whole, [256]]

    def counted(part: mx.array, lengths: mx.array, starts: mx.array) -> mx.array:
        passes.extend(part.tolist())
        return model.scores(part, lengths, starts)

    begins = [2, 3, 0, 1, 4, 7, 0]
    found = score_sequences(counted, sequences, 1000, starts=begins)
    alone = zip(sequences, begins, strict=True)
    singly = [float(model.scores(*map(mx.array, ([one], [len(one)], [start])))) for one, start in alone]
    np.testing.assert_allclose(found, singly, atol=1e-4)
    assert sorted(row[0] for row in passes) == [1, 256, 256]  # of [1, 2], `whole` and `other`


def test_whatever_pads_a_batch_the_last_real_token_is_found_by_its_length(tmp_path: Path, loaded: LoadedModel) -> None:
    model = stirred(made(tmp_path, loaded))
    lengths = mx.array([len(one) for one in SEQUENCES])
    padded = pad(SEQUENCES)
    expected = scores(model, SEQUENCES)
    for padding in (256, 257, 17):  # the end token, which some of them hold, the pad token, a letter
        for row, sequence in zip(padded, SEQUENCES, strict=True):
            row[len(sequence) :] = padding
        np.testing.assert_allclose(np.array(model.scores(mx.array(padded), lengths)), expected, atol=1e-5)


def test_the_head_begins_with_variance_one_over_width_plus_one_and_without_bias(
    tmp_path: Path, loaded: LoadedModel
) -> None:
    draws = np.stack([np.array(made(tmp_path, loaded, seed=seed).parameters()["head.weight"]) for seed in range(200)])
    assert draws.shape == (200, 32)
    assert draws.var() == pytest.approx(1 / 33, rel=0.1)
    assert abs(draws.mean()) < 0.01
    assert float(made(tmp_path, loaded).parameters()["head.bias"]) == 0


def test_it_begins_as_the_backbone_with_another_adapter_for_each_key(tmp_path: Path, loaded: LoadedModel) -> None:
    first, same, other = (made(tmp_path, loaded, seed=seed) for seed in (1, 1, 2))
    for name, array in first.parameters().items():
        assert mx.array_equal(array, same.parameters()[name])
        if name.endswith("lora_a"):
            assert not mx.array_equal(array, other.parameters()[name])
        if name.endswith("lora_b"):
            assert not array.any()


def test_the_adapter_changes_the_score_and_gets_a_gradient_in_every_array(tmp_path: Path, loaded: LoadedModel) -> None:
    model = made(tmp_path, loaded)
    before = scores(model, SEQUENCES)
    stirred(model)
    assert np.abs(scores(model, SEQUENCES) - before).max() > 0.01
    parameters = model.parameters()

    def total(arrays: dict[str, mx.array]) -> mx.array:
        model.update(arrays)
        return model.scores(mx.array(pad(SEQUENCES)), mx.array([len(one) for one in SEQUENCES])).square().sum()

    for name, gradient in mx.grad(total)(parameters).items():
        assert float(mx.abs(gradient).max()) > 0, name
    model.update(parameters)


@pytest.mark.parametrize(("quantize", "near"), [("8-bit", 0.05), ("4-bit", 0.8)])
def test_a_quantised_backbone_scores_nearly_the_same_in_less_memory(tmp_path: Path, quantize: str, near: float) -> None:
    folder = make_checkpoint(tmp_path / "model", scale=0.3)
    whole = load_backbone(BackboneConfig(path=str(folder)))
    expected = scores(made(tmp_path, whole), SEQUENCES)
    rounded = load_backbone(BackboneConfig.model_validate({"path": str(folder), "quantize": quantize}))
    packed = load_backbone(BackboneConfig(path=str(folder)))
    quantize_backbone(packed.backbone, int(quantize[0]))
    found = [scores(made(tmp_path, model), SEQUENCES) for model in (rounded, packed)]
    np.testing.assert_allclose(found[0], found[1], atol=1e-5 * float(np.abs(expected).max()))
    np.testing.assert_allclose(found[0], expected, atol=near * float(np.abs(expected).max()))
    assert np.abs(found[0] - expected).max() > 0
    model = made(tmp_path, packed)
    sizes = [sum(array.nbytes for _, array in tree(model.backbone)) for model in (packed, whole)]
    assert sizes[0] < 0.6 * sizes[1]
    stirred(model)
    assert np.isfinite(scores(model, SEQUENCES)).all()


def test_quantising_on_a_cpu_causes_a_warning_and_is_off_by_default() -> None:
    assert quantize_warning(BackboneConfig()) == ""
    if mx.default_device() == mx.Device(mx.cpu):
        assert "on a CPU" in quantize_warning(BackboneConfig(quantize="4-bit"))


def tree(module: nn.Module) -> list[tuple[str, mx.array]]:
    from mlx.utils import tree_flatten

    return list(tree_flatten(module.parameters()))


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
