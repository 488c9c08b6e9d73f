"""ActorCriticLLM on three families: policy, reference and critic against the plain model, position by position."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from batches import moved
from tiny import FAMILIES, load_tiny, make_checkpoint, make_prompts

from trainer.arrays import filled
from trainer.config.schema import ModelConfig, RolloutConfig
from trainer.errors import ModelError
from trainer.models.actor_critic import ActorCriticLLM
from trainer.models.backbone import LoadedModel
from trainer.models.forward import Forward
from trainer.ppo import steps
from trainer.rollout.experience import Experience
from trainer.rollout.generation import generate_responses, lay_out

TEXTS = ["a prompt longer than the sliding window of gemma", "a", "some text"]
LENGTHS = [(20, 3), (1, 5), (4, 1)]  # of prompt and response; 20 is past gemma's sliding window


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def folder(family: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp(family) / "model", family)


def all_logits(forward: Forward) -> mx.array:
    return forward.head(filled(forward.states))


def make_actor(folder: Path, *, fresh: bool = False, **settings: Any) -> tuple[ActorCriticLLM, LoadedModel]:
    model = load_tiny(folder)
    actor = ActorCriticLLM(model.backbone, ModelConfig(**settings), key=mx.random.key(1))
    if not fresh:
        actor.update_policy(moved(actor.policy_parameters(), seed=2, scale=0.3))
        actor.update_value(moved(actor.value_parameters(), seed=3, scale=0.3))
    return actor, model


def sequences(pad: int = 0) -> tuple[mx.array, mx.array, int]:
    """Return random ids of LENGTHS, prompt lengths and T. Responses hold token 0 and the end token, too."""
    draws = np.random.default_rng(0)
    ids = np.full((len(LENGTHS), max(map(sum, LENGTHS))), pad)
    for row, (start, count) in enumerate(LENGTHS):
        ids[row, : start + count] = draws.integers(0, 256, start + count)
        ids[row, start : start + 2] = [0, 256][:count]
    return mx.array(ids), mx.array([start for start, _ in LENGTHS]), max(count for _, count in LENGTHS)


def rollout(actor: ActorCriticLLM, model: LoadedModel, temperature: float) -> Experience:
    sampling = RolloutConfig(max_new_tokens=10, temperature=temperature)
    prompts = make_prompts(model.tokenizer, TEXTS)
    found = generate_responses(actor.backbone, model.tokenizer, prompts, sampling, key=mx.random.key(5))
    return lay_out(prompts, found)


@pytest.mark.parametrize("tied", [True, False])
def test_logits_are_the_models_own_whether_its_head_is_tied_or_not(family: str, tied: bool, tmp_path: Path) -> None:
    """Up to rounding: a BLAS may sum a row in another order where the product has other rows beside it."""
    actor, model = make_actor(make_checkpoint(tmp_path / "model", family, tied=tied))
    ids, starts, width = sequences()
    logits, whole = all_logits(actor(ids, starts, width)), model.backbone(ids)
    for row, (start, count) in enumerate(LENGTHS):
        np.testing.assert_allclose(logits[row, :count], whole[row, start - 1 : start - 1 + count], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("value_model", ["head", "adapter"])
def test_values_are_the_head_on_the_state_before_each_token_and_after_the_last(folder: Path, value_model: str) -> None:
    actor, model = make_actor(folder, value_model=value_model)
    ids, starts, width = sequences()
    before = filled(actor(ids, starts, width, want="values").values)
    if value_model == "head":
        head, states = actor.value_parameters(), np.array(model.backbone.model(ids))
        expected = states @ np.array(head["head.weight"]) + head["head.bias"].item()
        for row, (start, count) in enumerate(LENGTHS):
            np.testing.assert_allclose(before[row, : count + 1], expected[row, start - 1 : start + count], atol=1e-5)
    ids[1, 1 + 2] = 77  # another token 2 of the response of row 1
    after = filled(actor(ids, starts, width).values)
    np.testing.assert_array_equal(before[1, :3], after[1, :3])
    assert all(mx.abs(before[1, 3:] - after[1, 3:]) > 1e-4)


def test_a_padded_batch_scores_as_its_rows_alone_whatever_the_padding(folder: Path) -> None:
    actor, _ = make_actor(folder)
    ids, starts, width = sequences()
    batch, repadded = actor(ids, starts, width), actor(sequences(pad=257)[0], starts, width)
    for row, (start, count) in enumerate(LENGTHS):
        alone = actor(ids[row : row + 1, : start + count], starts[row : row + 1], count)
        np.testing.assert_allclose(all_logits(batch)[row, :count], all_logits(alone)[0], atol=1e-4)
        np.testing.assert_allclose(batch.values[row, : count + 1], alone.values[0], atol=1e-4)
        assert mx.array_equal(all_logits(batch)[row, :count], all_logits(repadded)[row, :count])
        assert mx.array_equal(batch.values[row, : count + 1], repadded.values[row, : count + 1])


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.3])
def test_the_samplers_log_probs_are_the_teacher_forced_ones_at_its_temperature(
    folder: Path, temperature: float
) -> None:
    actor, model = make_actor(folder)
    batch = rollout(actor, model, temperature)
    scored = steps.add_policy_logprobs_and_values(actor, batch, temperature=temperature, micro_batch_tokens=200)
    assert scored.logprobs is not None
    np.testing.assert_allclose(scored.logprobs * batch.mask, batch.sampler_logprobs * batch.mask, atol=1e-4)
    assert mx.all((batch.sampler_logprobs < 0) == (batch.mask > 0))


def test_a_fresh_adapter_has_a_kl_of_exactly_zero_and_a_trained_one_does_not(folder: Path) -> None:
    for fresh in (True, False):
        actor, model = make_actor(folder, fresh=fresh)
        batch = rollout(actor, model, 1.0)
        batch = steps.add_policy_logprobs_and_values(actor, batch, temperature=1.0, micro_batch_tokens=200)
        scored = steps.add_kl_to_sa_pairs(actor, batch, temperature=1.0, estimator="k1", micro_batch_tokens=200)
        assert scored.kl is not None
        assert (mx.abs(scored.kl).max().item() == 0) == fresh


def test_the_reference_is_the_base_model_bit_for_bit_and_the_policy_returns_after_an_error(folder: Path) -> None:
    base, (actor, model) = load_tiny(folder).backbone, make_actor(folder)
    ids = sequences()[0]
    with actor.reference():
        assert mx.array_equal(model.backbone(ids), base(ids))
    policy = model.backbone(ids)
    assert not mx.allclose(policy, base(ids), atol=0.1)
    with pytest.raises(KeyError), actor.reference():
        raise KeyError("anything")
    assert mx.array_equal(model.backbone(ids), policy)


@pytest.mark.parametrize("change", ["missing", "extra", "another shape"])
def test_arrays_of_another_model_are_refused_by_name(folder: Path, change: str) -> None:
    actor, _ = make_actor(folder)
    for update, own in (
        (actor.update_policy, actor.policy_parameters()),
        (actor.update_value, actor.value_parameters()),
    ):
        name = max(own)
        others = {
            "missing": {other: array for other, array in own.items() if other != name},
            "extra": {**own, "model.layers.99.lora_a": mx.zeros((2, 2))},
            "another shape": {**own, name: mx.zeros((3, 3, 3))},
        }[change]
        with pytest.raises(ModelError, match=r"trained on another model: '(.*)' is .*, this model has .*model\.path"):
            update(others)
    assert actor.policy_parameters().keys() == make_actor(folder)[0].policy_parameters().keys()


def test_the_critics_adapter_is_independent_of_the_policys(folder: Path) -> None:
    actor, model = make_actor(folder, value_model="adapter")
    ids, starts, width = sequences()
    policy, logits = actor.policy_parameters(), model.backbone(ids)
    values = actor(ids, starts, width).values
    assert all(mx.array_equal(array, policy[name]) for name, array in actor.policy_parameters().items())
    with pytest.raises(ValueError, match=r"."):
        actor(ids, starts[:2], width, want="values")  # fails inside, with the critic's adapter on
    assert mx.array_equal(model.backbone(ids), logits)
    actor.update_policy(moved(policy, seed=9, scale=0.3))
    assert mx.array_equal(actor(ids, starts, width, want="values").values, values)


@pytest.mark.parametrize("value_model", ["head", "adapter"])
def test_only_requested_outputs_are_computed_and_an_untrained_critic_gives_zero(folder: Path, value_model: str) -> None:
    actor, _ = make_actor(folder, fresh=True, value_model=value_model)
    ids, starts, width = sequences()
    assert actor(ids, starts, width, want="logits").values is None
    forward = actor(ids, starts, width, want="values")
    assert forward.states is None
    assert forward.values is not None
    assert forward.values.tolist() == [[0.0] * (width + 1)] * len(LENGTHS)


@pytest.mark.parametrize("problem", ["", "[metal_kernel] No Metal back-end."])
def test_a_family_without_a_trunk_or_that_mlx_lm_cannot_compute_here_is_refused_with_the_reason(problem: str) -> None:
    class Odd(nn.Module):
        __module__ = "mlx_lm.models.odd"

        def __call__(self, tokens: mx.array) -> mx.array:
            if problem:
                raise ValueError(problem)
            return tokens

    with pytest.raises(ModelError, match=r"family odd cannot be trained here .*: choose another") as raised:
        ActorCriticLLM(Odd(), ModelConfig(), key=mx.random.key(1))
    assert "\n" not in str(raised.value)
    assert not problem or f"mlx-lm fails on a pass over two tokens: {problem}" in str(raised.value)


def test_a_family_that_scales_states_between_trunk_and_head_is_refused(folder: Path) -> None:
    backbone = load_tiny(folder).backbone
    plain, trunk = type(backbone), type(backbone.model)

    class Scaled(plain):  # type: ignore[misc, valid-type]
        def __call__(self, tokens: mx.array, cache: Any = None) -> mx.array:
            return super().__call__(tokens, cache) * (2.0 if isinstance(self.model, trunk) else 1.0)

    backbone.__class__ = Scaled
    with pytest.raises(ModelError, match="cannot separate its head from its trunk: alone, the head gives other logits"):
        ActorCriticLLM(backbone, ModelConfig(), key=mx.random.key(1))
