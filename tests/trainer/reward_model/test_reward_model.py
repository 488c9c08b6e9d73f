"""The model: which hidden state it reads, its first weights, and the backbone that it shares with a policy."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from preference_samples import reward_config
from tiny import load_tiny, make_checkpoint

from trainer.arrays import pad
from trainer.config.schema import BackboneConfig, ModelConfig
from trainer.models.actor_critic import ActorCriticLLM
from trainer.models.backbone import LoadedModel, load_backbone, quantize_backbone, quantize_warning
from trainer.models.forward import hidden_states
from trainer.reward_model.network import RewardModel, score_sequences

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


def policy(loaded: LoadedModel) -> ActorCriticLLM:
    """Return a policy on the same backbone, with an active adapter on other layers."""
    actor = ActorCriticLLM(
        loaded.backbone, ModelConfig(lora_targets=["q_proj", "up_proj"], lora_rank=2), key=mx.random.key(5)
    )
    actor.update_policy(
        {name: mx.random.normal(array.shape, key=mx.random.key(1)) for name, array in actor.policy_parameters().items()}
    )
    return actor


def snapshot(backbone: nn.Module) -> tuple[list[tuple[str, int]], np.ndarray]:
    modules = [(name, id(module)) for name, module in backbone.named_modules()]
    return modules, np.array(backbone(mx.array([[1, 2, 3, 4]])))


def test_a_policy_on_the_same_backbone_is_the_same_to_the_bit_before_and_after(
    tmp_path: Path, loaded: LoadedModel
) -> None:
    actor = policy(loaded)
    before = snapshot(loaded.backbone)
    model = stirred(made(tmp_path, loaded, "model.lora_rank=4", 'model.lora_targets=["q_proj", "v_proj"]'))
    assert snapshot(loaded.backbone)[0] == before[0]
    scores(model, SEQUENCES)
    with pytest.raises(RuntimeError, match="in the midst"), model.on():
        raise RuntimeError("in the midst")
    modules, logits = snapshot(loaded.backbone)
    assert modules == before[0]
    np.testing.assert_array_equal(logits, before[1])
    assert {name.rpartition(".")[0].rpartition(".")[2] for name in actor.policy_parameters()} == {"q_proj", "up_proj"}


def test_two_reward_models_on_one_backbone_do_not_interfere_even_when_nested(
    tmp_path: Path, loaded: LoadedModel
) -> None:
    first, second = stirred(made(tmp_path, loaded)), made(tmp_path, loaded, "model.lora_rank=2", seed=3)
    expected = scores(first, SEQUENCES), scores(second, SEQUENCES)
    with first.on():
        np.testing.assert_array_equal(scores(second, SEQUENCES), expected[1])
        np.testing.assert_array_equal(scores(first, SEQUENCES), expected[0])
    assert not any("lora" in name for name, _ in loaded.backbone.named_modules())


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


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3_text"])
def test_every_family_is_read_after_its_final_norm(tmp_path: Path, family: str) -> None:
    loaded = load_tiny(tmp_path / family, family)
    model = stirred(made(tmp_path, loaded))
    found = scores(model, SEQUENCES)
    assert np.isfinite(found).all()
    np.testing.assert_allclose(np.concatenate([scores(model, [one]) for one in SEQUENCES]), found, atol=1e-4)


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
