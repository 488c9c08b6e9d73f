"""The likeliest tokens of a distribution, found without sorting the vocabulary, and their log-probs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import reference
from hypothesis import given
from hypothesis import strategies as st
from reference import float64
from runs_helper import record, tiny_config

from trainer.events import Iteration
from trainer.models.logprobs import likeliest_tokens, logprobs_of, token_logprobs
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
@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 2, 5, 50, 500]), st.sampled_from([(), (3,), (2, 3)]))
def test_the_likeliest_tokens_are_those_of_a_full_sort_in_its_order(
    vocabulary: int, seed: int, count: int, shape: Any
) -> None:
    logits = drawn(seed, vocabulary, *shape)
    expected = np.argsort(-float64(logits), axis=-1)[..., :count]
    assert likeliest_tokens(logits, count).tolist() == expected.tolist()


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 5, 50]), st.integers(1, 4))
def test_ties_and_impossible_tokens_leave_distinct_ids_of_the_largest(
    vocabulary: int, seed: int, count: int, levels: int
) -> None:
    logits = drawn(seed, vocabulary, 4, levels=levels)
    ids = np.array(likeliest_tokens(logits, count))
    assert ids.shape == (4, min(count, vocabulary))
    assert all(len(set(row)) == len(row) for row in ids.tolist())
    found = np.take_along_axis(np.array(logits), ids, axis=-1)
    np.testing.assert_array_equal(found, -np.sort(-np.array(logits), axis=-1)[:, :count])


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
