"""The numbers of an iteration: right, of real tokens only, and divided by what was run."""

from __future__ import annotations

import math
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import reference
from batches import LENGTHS, NAN, make_actor, random_batch, scored, with_garbage
from reference import float64
from tiny import make_tokenizer

from trainer.data import Prompt
from trainer.engine.artifacts import sample_rows
from trainer.ppo.learner import StepMetrics
from trainer.ppo.metrics import calibration, rollout_metrics, update_metrics
from trainer.rewards import RewardResult
from trainer.rollout.experience import Experience
from trainer.rollout.token_texts import TokenTexts
from trainer.runs.samples import TOKEN_COLUMNS, sample_schema

COUNTS = [count for _, count in LENGTHS]
STEP = StepMetrics(1.0, 2.0, 0.25, 0.5, 1.5, 3.0, 1.1, 4.0, "taken")
SKIPPED = StepMetrics(math.nan, math.nan, math.nan, math.inf, math.inf, math.inf, math.inf, math.nan, "not_finite")


@pytest.fixture(scope="module")
def batch(tmp_path_factory: pytest.TempPathFactory) -> Experience:
    actor = make_actor(tmp_path_factory.mktemp("models") / "llama")
    batch = scored(actor, random_batch(), gamma=0.9, lam=0.0)  # whose returns are almost the critic's own values
    tokens = mx.random.normal(batch.mask.shape, key=mx.random.key(0)) * batch.mask
    return batch._replace(token_scores=tokens)


def test_every_number_is_its_definition_over_real_tokens(batch: Experience) -> None:
    metrics = rollout_metrics(batch, kl_coef=0.1)
    rows = range(len(COUNTS))
    logprobs, ref, kl, tokens = (
        [float64(array)[row, : COUNTS[row]] for row in rows]
        for array in (batch.logprobs, batch.ref_logprobs, batch.kl, batch.token_scores)
    )
    scores = [batch.scores[row].item() + tokens[row].sum() for row in rows]
    values, returns = reference.real(batch.values, COUNTS), reference.real(batch.returns, COUNTS)
    rewards = [float64(batch.rewards)[row, : COUNTS[row]] for row in rows]
    outcomes = np.concatenate([[0.9 ** np.arange(len(x) - t) @ x[t:] for t in range(len(x))] for x in rewards])
    fifths = np.array_split(np.argsort(values), 5)
    expected = [(values[part].mean(), outcomes[part].mean(), 5) for part in fifths]  # of 25 tokens
    np.testing.assert_allclose(metrics.pop("calibration"), expected, atol=1e-5)
    mismatch = reference.real(batch.sampler_logprobs, COUNTS) - np.concatenate(logprobs)
    surprise, entropy = -reference.real(batch.sampler_logprobs, COUNTS), reference.real(batch.entropy, COUNTS)
    assert metrics == pytest.approx(
        {
            "score_mean": np.mean(scores),
            "score_std": np.std(scores),
            "score_max": max(scores),
            "score_min": min(scores),
            "unscored": 0.0,
            "reward_mean": np.mean([scores[row] - 0.1 * kl[row].sum() for row in rows]),
            "kl": np.mean([(logprobs[row] - ref[row]).sum() for row in rows]),
            "kl_std": np.std([(logprobs[row] - ref[row]).sum() for row in rows]),
            "entropy": reference.real(batch.entropy, COUNTS).mean(),
            "explained_variance": reference.explained_variance(values, outcomes),
            "value_mean": values.mean(),
            "return_mean": returns.mean(),
            "response_length": np.mean(COUNTS),
            "truncated": 0.5,
            "sampler_mismatch": abs(mismatch).mean(),
            "advantage_std": reference.real(batch.advantages, COUNTS).std(),
            "length_correlation": np.corrcoef(scores, COUNTS)[0, 1],
            "repetition": 0.0,
            "unique": 1.0,
            "surprise": surprise.mean(),
            "surprise_error": np.sqrt(np.square(surprise - entropy).sum()) / len(surprise),
        },
        abs=1e-4,
    )


def test_garbage_in_the_padding_changes_no_number(batch: Experience) -> None:
    clean, spoiled = rollout_metrics(batch, kl_coef=0.1), rollout_metrics(with_garbage(batch), kl_coef=0.1)
    np.testing.assert_allclose(spoiled.pop("calibration"), clean.pop("calibration"), atol=1e-5)
    assert spoiled == pytest.approx(clean, abs=1e-5)


def test_a_batch_of_two_tokens_has_a_calibration_in_two_parts_and_one_without_any_has_none() -> None:
    values, outcomes = mx.array([[2.0, NAN], [1.0, NAN]]), mx.array([[5.0, NAN], [7.0, NAN]])
    assert calibration(values, outcomes, mx.array([[1, 0], [1, 0]])) == [[1.0, 7.0, 1], [2.0, 5.0, 1]]
    assert calibration(values, outcomes, mx.zeros((2, 2))) == []


def test_without_a_critic_there_is_no_explained_variance_and_no_calibration(batch: Experience) -> None:
    metrics = rollout_metrics(batch._replace(values=None, outcomes=None), kl_coef=0.1)
    assert math.isnan(metrics["explained_variance"])
    assert "calibration" not in metrics


def test_the_kl_that_is_reported_is_k1_whatever_the_penalty_uses(batch: Experience) -> None:
    other = batch._replace(kl=mx.square(batch.kl) / 2)
    plain, changed = rollout_metrics(batch, kl_coef=0.1), rollout_metrics(other, kl_coef=0.1)
    assert changed["kl"] == plain["kl"]
    assert changed["reward_mean"] != plain["reward_mean"]


# Optimiser steps


def test_means_divide_by_the_steps_that_were_taken() -> None:
    other = STEP._replace(policy_loss=4.0, value_loss=0.0, clip_fraction=0.75, ratio_max=2.0)
    metrics = update_metrics([STEP._replace(critic_share=0.25), SKIPPED, other])
    assert metrics == {
        "policy_loss": 2.5,
        "value_loss": 1.0,
        "clip_fraction": 0.5,
        "approx_kl": 0.5,
        "ratio_mean": 1.5,
        "grad_norm": 4.0,
        "ratio_max": 3.0,
        "log_ratio_max": math.inf,
        "grad_norm_max": 4.0,
        "steps": 2,
        "skipped_steps": 1,
        "spiked_steps": 0,
        "critic_share": 0.25,
        "epochs_done": 3.0,
    }


@pytest.mark.parametrize("steps", [[], [SKIPPED]])
def test_without_a_step_there_are_no_means(steps: list[StepMetrics]) -> None:
    metrics = update_metrics(steps)
    assert (metrics.pop("steps"), metrics.pop("skipped_steps")) == (0, len(steps))
    assert (metrics.pop("spiked_steps"), metrics.pop("epochs_done")) == (0, len(steps))
    assert math.isinf(metrics.pop("log_ratio_max")) or not steps
    assert all(math.isnan(value) for value in metrics.values())


# Samples

PROMPTS = [Prompt(10 + row, "", f"prompt {row}", [1, 2], {"row": row}) for row in range(len(COUNTS))]
PARTS = {"lexicon": [float(row) for row in range(len(COUNTS))]}


def rows_of(batch: Experience, **more: Any) -> list[dict[str, Any]]:
    return sample_rows(batch, PROMPTS, RewardResult([], None, PARTS), 2, **more)


def test_samples_hold_each_sequence_cut_to_its_length(batch: Experience) -> None:
    rows = rows_of(with_garbage(batch))
    assert [row["tokens"].tolist() for row in rows] == [
        batch.responses[place, :count].tolist() for place, count in enumerate(COUNTS)
    ]
    for place, (row, count) in enumerate(zip(rows, COUNTS, strict=True)):
        for name in TOKEN_COLUMNS:
            assert row[name].tolist() == getattr(batch, name)[place, :count].tolist(), name
        assert row["score"] == pytest.approx((batch.scores[place] + batch.token_scores[place].sum()).item(), abs=1e-5)
        assert row["sequence_score"] == batch.scores[place].item()
        assert row["final_value"] == batch.final_values[place].item()
        assert row["length"] == count
        k1 = float64(batch.logprobs)[place, :count] - float64(batch.ref_logprobs)[place, :count]
        assert row["kl_sum"] == pytest.approx(k1.sum(), abs=1e-12)
    row = rows[3]
    assert (row["row"], row["prompt_index"], row["sample"], row["parts"]) == (3, 13, 1, {"lexicon": 3.0})
    assert (row["prompt"], row["completion"], row["columns"]) == ("prompt 3", "text 3", '{"row": 3}')
    assert (row["truncated"], row["stop_reason"], rows[2]["stop_reason"]) == (True, "length", "stop")


def test_ratios_and_alternatives_are_columns_where_there_are_any(batch: Experience) -> None:
    rows = rows_of(batch)
    names = {"ratios", "top_tokens", "top_texts", "top_logprobs", "top_ref_logprobs", "token_texts"}
    assert not names & set(rows[0])
    ratios = np.arange(batch.mask.size * 3, dtype=np.float32).reshape(*batch.mask.shape, 3)
    tops = mx.random.randint(0, 256, (*batch.mask.shape, 4), key=mx.random.key(1))
    logprobs = mx.random.normal((2, *tops.shape))
    full = batch._replace(top_tokens=tops, top_logprobs=logprobs[0], top_ref_logprobs=logprobs[1])
    texts = TokenTexts(make_tokenizer())
    rows = rows_of(full, token_texts=texts, ratios=ratios)
    for place, (row, count) in enumerate(zip(rows, COUNTS, strict=True)):
        assert row["ratios"].tolist() == ratios[place, :count].tolist()
        assert row["top_tokens"].tolist() == tops[place, :count].tolist()
        assert row["top_ref_logprobs"].tolist() == logprobs[1, place, :count].tolist()
        assert row["token_texts"] == texts(row["tokens"].tolist())
        assert row["top_texts"].tolist() == [
            [texts.piece(token) for token in ids] for ids in row["top_tokens"].tolist()
        ]
    assert set(rows[0]) == set(sample_schema().names) - {"baseline", "advantage_scale"}  # which the critic replaces
