"""The likeliest tokens and their log-probs, and functions of logits at some positions at a time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import reference
import tiny
from batches import make_actor, random_batch, scored
from hypothesis import given
from hypothesis import strategies as st
from reference import float64
from runs_helper import record, tiny_config

from trainer import maths
from trainer.config.ppo import PPOConfig
from trainer.config.schema import ModelConfig, OptimConfig
from trainer.errors import ModelError
from trainer.events import Iteration
from trainer.models import forward as forward_pass
from trainer.models.actor_critic import ActorCriticLLM
from trainer.models.forward import Forward, Head, entropy, likeliest_tokens, logprobs_of, token_logprobs
from trainer.ppo.learner import Learner
from trainer.ppo.losses import LossSettings
from trainer.runs.folder import RunFolder
from trainer.runs.samples import read_samples

VOCABULARIES = [1, 2, 5, 63, 64, 65, 128, 264, 1000]
TOP = ["top_tokens", "top_texts", "top_logprobs", "top_ref_logprobs"]


def drawn(seed: int, vocabulary: int, *shape: int, levels: int = 0) -> mx.array:
    """Return logits [*shape, V] on only so many levels, the lowest -inf, so that there are ties."""
    draws = np.random.default_rng(seed)
    logits = draws.normal(0, 4, (*shape, vocabulary))
    if levels:
        logits = draws.integers(0, levels, (*shape, vocabulary)).astype(float)
        logits[logits == 0] = -np.inf
    return mx.array(logits.astype(np.float32))


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([1, 2, 5, 50, 500]),
    st.sampled_from([(), (3,), (2, 3)]),
    st.integers(0, 4),
)
def test_the_likeliest_tokens_are_distinct_and_the_largest_in_order_whatever_the_ties(
    vocabulary: int, seed: int, count: int, shape: Any, levels: int
) -> None:
    logits = drawn(seed, vocabulary, *shape, levels=levels)
    ids = np.array(likeliest_tokens(logits, count))
    assert ids.shape == (*shape, min(count, vocabulary))
    assert all(len(set(row)) == len(row) for row in ids.reshape(-1, ids.shape[-1]).tolist())
    found = np.take_along_axis(np.array(logits), ids, axis=-1)
    np.testing.assert_array_equal(found, -np.sort(-np.array(logits), axis=-1)[..., :count])


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_still_give_ids_of_the_vocabulary(bad: float) -> None:
    logits = drawn(0, 200, 2)
    logits[0, 70], logits[1] = bad, bad
    ids = np.array(likeliest_tokens(logits, 5))
    assert ids.shape == (2, 5)
    assert ((ids >= 0) & (ids < 200)).all()


@pytest.mark.parametrize("temperature", [1.0, 0.7, 1.5])
@given(st.integers(0, 2**32 - 1))
def test_their_log_probs_follow_from_one_tokens_log_prob(temperature: float, seed: int) -> None:
    logits = drawn(seed, 300, 2, 3)
    tokens = mx.array(np.random.default_rng(seed).integers(0, 300, (2, 3)))
    ids = likeliest_tokens(logits, 7)
    logprobs = token_logprobs(logits, tokens, temperature)
    every = reference.log_softmax(float64(logits) / temperature)
    expected = np.take_along_axis(every, np.array(ids), axis=-1)
    found = logprobs_of(logits, ids, tokens, logprobs, temperature)
    np.testing.assert_allclose(float64(found), expected, atol=1e-4)
    mine = logprobs_of(logits, tokens[..., None], tokens, logprobs, temperature)
    assert mine.squeeze(-1).tolist() == logprobs.tolist()


def test_an_impossible_token_has_a_log_prob_of_minus_infinity() -> None:
    logits, tokens = mx.array([[0.0, -mx.inf, 1.0]]), mx.array([2])
    ids = likeliest_tokens(logits, 3)
    logprobs = logprobs_of(logits, ids, tokens, token_logprobs(logits, tokens))
    assert ids.tolist() == [[2, 0, 1]]
    assert logprobs.tolist()[0][2] == -mx.inf


# In a run


@pytest.mark.parametrize(
    ("settings", "kept"),
    [([], 5), (["run.alternatives=2"], 2), (["run.alternatives=0"], None)],
    ids=["the default", "two", "none"],
)
def test_a_run_keeps_as_many_alternatives_as_configured(settings: list[str], kept: int | None, tmp_path: Path) -> None:
    record(tiny_config(tmp_path, "run.name=a", "ppo.iterations=1", *settings))
    rows = read_samples(RunFolder(tmp_path / "runs/a").samples_file(1), TOP).to_pylist()
    for row in rows:
        assert all(row[name] is None for name in TOP) if kept is None else True
        for name in TOP if kept else []:
            assert {len(place) for place in row[name]} == {kept}, name


def test_an_evaluation_computes_no_alternatives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    positions: list[int] = []
    plain = likeliest_tokens

    def counted(logits: mx.array, count: int) -> mx.array:
        positions.append(logits.shape[0])
        return plain(logits, count)

    monkeypatch.setattr("trainer.ppo.steps.likeliest_tokens", counted)
    (iteration,) = record(tiny_config(tmp_path, "ppo.iterations=1", "eval.every=1")).of(Iteration)
    assert sum(positions) == iteration.tokens > 0


# Chunks of positions

WORDS, SIZE = 300, 12
MASK = mx.array([[1.0] * 7, [1.0] + [0.0] * 6, [0.0] * 7, [1.0] * 5 + [0.0] * 2])  # 13 positions, an empty row
CHUNKS = [1, 4, 13, 100]


def head(kind: str) -> Head:
    """Return a head: "plain", "capped" (as Gemma 2's) or "half" (in bfloat16)."""
    weights = mx.random.normal((WORDS, SIZE), key=mx.random.key(0))
    if kind == "half":
        return lambda states: states.astype(mx.bfloat16) @ weights.T.astype(mx.bfloat16)
    return lambda states: 4 * mx.tanh(states @ weights.T / 4) if kind == "capped" else states @ weights.T


def material() -> tuple[mx.array, mx.array]:
    """Return states [B, T, D], NaN where nothing may be read, and tokens [B, T]."""
    states = mx.random.normal((*MASK.shape, SIZE), key=mx.random.key(1))
    tokens = mx.random.randint(0, WORDS, MASK.shape, key=mx.random.key(2))
    return mx.where(MASK[..., None] > 0, states, float("nan")), tokens


def compute(temperature: float, bonus: float) -> Callable[[mx.array, mx.array], tuple[mx.array, ...]]:
    def losses(logits: mx.array, tokens: mx.array) -> tuple[mx.array, ...]:
        logprobs = token_logprobs(logits, tokens, temperature)
        return logprobs + bonus * entropy(logits, temperature) if bonus else logprobs, logprobs

    return losses


@pytest.mark.parametrize("kind", ["plain", "capped", "half"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("bonus", [0.0, 0.3])
def test_results_and_gradients_are_those_of_all_logits_at_once_whatever_the_chunk(
    kind: str, temperature: float, bonus: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, tokens = material()
    shape = mx.random.normal(MASK.shape, key=mx.random.key(3))  # a cotangent that differs by position
    clean = mx.where(MASK[..., None] > 0, given, 0.0)

    def at_once(states: mx.array) -> tuple[mx.array, mx.array]:
        logits = head(kind)(states).astype(mx.float32) / temperature
        logprobs = maths.token_logprobs(logits, tokens)
        result = mx.where(MASK > 0, logprobs + bonus * maths.entropy(logits), 0.0)
        return (result * shape).sum(), result

    def in_chunks(states: mx.array) -> tuple[mx.array, mx.array]:
        forward = Forward(states, None, head(kind))
        result, logprobs = forward.at_positions(MASK, compute(temperature, bonus), {"tokens": tokens}, gradient=True)
        return (result * shape).sum() + logprobs.sum(), result  # the second result is a constant

    (_, expected), slope = mx.value_and_grad(at_once)(clean)
    tolerance = (2e-2 if kind == "half" else 5e-6) * abs(float64(slope)).max()  # bfloat16 has eight bits
    for size in CHUNKS:
        monkeypatch.setattr(forward_pass, "CHUNK", size)
        (_, found), gradient = mx.value_and_grad(in_chunks)(given)
        np.testing.assert_allclose(float64(found), float64(expected), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(float64(gradient), float64(slope), atol=tolerance)
        evaluated = Forward(given, None, head(kind)).at_positions(MASK, compute(temperature, bonus), {"tokens": tokens})
        np.testing.assert_allclose(float64(evaluated[0]), float64(found), atol=1e-5)
        assert found.dtype == mx.float32


def test_a_batch_without_real_positions_gives_zeros_and_no_gradient() -> None:
    given, tokens = material()

    def total(states: mx.array) -> mx.array:
        empty = mx.zeros_like(MASK)
        found = Forward(states, None, head("plain")).at_positions(
            empty, compute(1.0, 0.3), {"tokens": tokens}, gradient=True
        )
        assert [x.shape for x in found] == [MASK.shape] * 2
        return found[0].sum()

    value, gradient = mx.value_and_grad(total)(given)
    assert value.item() == 0
    assert not float64(gradient).any()


def test_a_nan_at_a_real_position_stays_at_that_position() -> None:
    given, tokens = material()
    states = mx.where(MASK[..., None] > 0, given, 0.0)
    states[0, 3] = float("nan")
    found, gradient = mx.value_and_grad(
        lambda x: (
            Forward(x, None, head("plain"))
            .at_positions(MASK, compute(1.0, 0.0), {"tokens": tokens}, gradient=True)[0]
            .sum()
        )
    )(states)
    assert np.isnan(found.item())
    assert np.isnan(float64(gradient)).any(axis=-1).nonzero()[0].tolist() == [0]


def test_an_update_and_a_scoring_pass_never_hold_the_logits_of_all_positions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = 20_000
    monkeypatch.setattr(forward_pass, "CHUNK", 16)
    monkeypatch.setitem(tiny.FAMILIES, "llama", tiny.FAMILIES["llama"] | {"vocab_size": words})
    actor = make_actor(tmp_path / "llama")
    learner = Learner(actor, OptimConfig(micro_batch_tokens=10_000), total_steps=1)

    def peaks(rows: int) -> tuple[int, int]:
        """Return the peaks of both, in bytes above what was there before."""
        batch = random_batch([(2, 60)] * rows)
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        batch = scored(actor, batch)
        mx.eval(batch.advantages)
        scoring = mx.get_peak_memory() - before
        mx.reset_peak_memory()
        learner.gradients(batch, LossSettings(PPOConfig(entropy_coef=0.1), 1.0), "joint")
        return scoring, mx.get_peak_memory() - before

    peaks(1)  # compiles
    (few, few_of_update), (many, many_of_update) = peaks(4), peaks(16)
    added = 12 * 60 * words * 4  # bytes of the logits of the other 12 rows
    assert many - few < added / 10
    assert many_of_update - few_of_update < added / 4  # with the trunk's own arrays


def test_the_head_cannot_have_an_adapter_which_would_get_no_gradient(tmp_path: Path) -> None:
    path = tiny.make_checkpoint(tmp_path / "model", "qwen3")
    loaded = tiny.load_tiny(path).backbone
    with pytest.raises(ModelError, match="lm_head"):
        ActorCriticLLM(loaded, ModelConfig(path=str(path), lora_targets=["lm_head"]), key=mx.random.key(0))
