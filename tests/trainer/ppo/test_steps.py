"""The steps of an iteration, and the estimators without a critic."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
import reference
from batches import LENGTHS, NAN, make_actor, random_batch, scored, with_garbage
from reference import Floats, float64
from tiny import load_tiny, make_prompts

from trainer.arrays import filled
from trainer.config.ppo import PPOConfig
from trainer.config.schema import ModelConfig, RolloutConfig
from trainer.data import Prompt
from trainer.fitting.optimisation import micro_batch_rows
from trainer.models.actor_critic import ActorCriticLLM
from trainer.models.backbone import load_backbone
from trainer.ppo import estimators, potentials, steps
from trainer.ppo.estimators import ESTIMATORS
from trainer.rewards import Overlong, RewardInput, Rewards, SourceScores, WeightedSource
from trainer.rollout.experience import Experience
from trainer.rollout.generation import generate_responses, lay_out
from trainer.rollout.token_texts import TokenTexts

COUNTS = [count for _, count in LENGTHS]
PER_TOKEN = ("logprobs", "entropy", "values", "ref_logprobs", "kl", "rewards", "td_errors", "advantages", "returns")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models") / "llama"


@pytest.fixture(scope="module")
def actor(folder: Path) -> ActorCriticLLM:
    return make_actor(folder)


@pytest.fixture(scope="module")
def apart(folder: Path) -> ActorCriticLLM:
    """Return an actor whose critic has an adapter of its own."""
    return make_actor(folder, value_model="adapter")


def policy(
    actor: ActorCriticLLM, batch: Experience, *, temperature: float = 1.0, budget: int = 64, alternatives: int = 0
) -> Experience:
    return steps.add_policy_logprobs_and_values(
        actor, batch, temperature=temperature, micro_batch_tokens=budget, alternatives=alternatives
    )


def reference_kl(actor: ActorCriticLLM, batch: Experience, estimator: Any = "k1", temperature: float = 1) -> Experience:
    how: Any = {"estimator": estimator, "temperature": temperature, "micro_batch_tokens": 64}
    return steps.add_kl_to_sa_pairs(actor, batch, **how)


def scores_alone(model: nn.Module, batch: Experience, row: int, temperature: float = 1.0) -> tuple[Floats, Floats]:
    """Compute log-probs and entropies of one sequence by the plain model, unpadded, one position at a time."""
    every = all_logprobs(model, batch, row, temperature)
    start, count = LENGTHS[row]
    return every[np.arange(count), np.array(batch.sequences)[row, start : start + count]], reference.entropy(every)


def all_logprobs(model: nn.Module, batch: Experience, row: int, temperature: float = 1.0) -> Floats:
    """Compute log-probs of the whole vocabulary at each token of one response: [T, V]."""
    start, count = LENGTHS[row]
    logits = float64(model(batch.sequences[row : row + 1, : start + count])[0]) / temperature
    return reference.log_softmax(logits[start - 1 : start - 1 + count])  # the logits at position t - 1 score token t


def same_real_tokens(one: Experience, other: Experience, names: Sequence[str], tolerance: float = 1e-5) -> None:
    for name in names:
        expected = reference.real(getattr(one, name), COUNTS)
        np.testing.assert_allclose(
            reference.real(getattr(other, name), COUNTS), expected, atol=tolerance, rtol=tolerance, err_msg=name
        )


# Scoring


@pytest.mark.parametrize("temperature", [1.0, 0.7, 1.3])
def test_old_log_probs_and_entropies_are_those_of_each_sequence_alone(
    actor: ActorCriticLLM, temperature: float
) -> None:
    batch = policy(actor, random_batch(), temperature=temperature)
    for row, count in enumerate(COUNTS):
        logprobs, entropies = scores_alone(actor.backbone, batch, row, temperature)
        np.testing.assert_allclose(float64(batch.logprobs)[row, :count], logprobs, atol=1e-4)
        np.testing.assert_allclose(float64(batch.entropy)[row, :count], entropies, atol=1e-4)


@pytest.mark.parametrize("budget", [1, 20, 1000])
def test_the_cut_into_micro_batches_changes_no_score_and_no_order(actor: ActorCriticLLM, budget: int) -> None:
    whole = policy(actor, random_batch(), budget=10_000)
    parts = policy(actor, random_batch(), budget=budget)
    same_real_tokens(whole, parts, ("logprobs", "entropy", "values"))
    np.testing.assert_allclose(float64(parts.final_values), float64(whole.final_values), atol=1e-5)


def test_a_critic_with_its_own_adapter_scores_in_its_own_pass(apart: ActorCriticLLM) -> None:
    batch = policy(apart, random_batch())
    assert batch.values is None
    batch = steps.add_values_to_sa_pairs(apart, batch, micro_batch_tokens=64)
    head = apart.value_parameters()
    own = {name.removeprefix("adapter."): array for name, array in head.items() if name.startswith("adapter.")}
    with apart.policy(own):
        hidden = apart.backbone.model(batch.sequences[2:3, :10])[0]
    values = float64(hidden @ head["head.weight"] + head["head.bias"])
    np.testing.assert_allclose(float64(batch.values)[2], values[1:9], atol=1e-4)
    assert batch.final_values[2].item() == pytest.approx(values[9], abs=1e-4)
    assert steps.add_values_to_sa_pairs(apart, batch, micro_batch_tokens=64) is batch


def test_progress_counts_the_finished_sequences_in_every_pass(apart: ActorCriticLLM) -> None:
    reported: list[tuple[int, int]] = []
    how: Any = {"micro_batch_tokens": 20, "progress": lambda *done: reported.append(done)}
    groups = list(micro_batch_rows(random_batch().lengths(), 20))
    assert 2 < len(groups) < 6
    expected = [(sum(map(len, groups[:count])), 6) for count in range(1, len(groups) + 1)]
    batch = steps.add_policy_logprobs_and_values(apart, random_batch(), temperature=1.0, **how)
    assert reported == expected
    batch = steps.add_values_to_sa_pairs(apart, batch, **how)
    assert reported == expected * 2
    steps.add_kl_to_sa_pairs(apart, batch, temperature=1.0, estimator="k1", **how)
    assert reported == expected * 3


# Reference and KL


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3", "abs"])
def test_the_kl_uses_the_chosen_estimator_and_is_0_in_the_padding(actor: ActorCriticLLM, estimator: Any) -> None:
    batch = reference_kl(actor, with_garbage(policy(actor, random_batch())), estimator)
    log_r = reference.real(batch.ref_logprobs, COUNTS) - reference.real(batch.logprobs, COUNTS)
    expected = {"k1": -log_r, "k2": log_r**2 / 2, "k3": np.expm1(log_r) - log_r, "abs": abs(log_r)}[estimator]
    np.testing.assert_allclose(reference.real(batch.kl, COUNTS), expected, atol=1e-5)
    assert not (float64(batch.kl) * (1 - float64(batch.mask))).any()


# Alternatives


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("budget", [1, 20, 1000])
def test_the_alternatives_are_the_likeliest_tokens_and_the_references_log_probs_of_them(
    actor: ActorCriticLLM, folder: Path, temperature: float, budget: int
) -> None:
    batch = policy(actor, random_batch(), temperature=temperature, budget=budget, alternatives=5)
    batch = reference_kl(actor, batch, temperature=temperature)
    loaded = load_backbone(ModelConfig(path=str(folder))).backbone
    assert batch.top_tokens.shape == (*batch.mask.shape, 5)
    for row, count in enumerate(COUNTS):
        ids = np.array(batch.top_tokens)[row, :count]
        every, of_reference = (all_logprobs(model, batch, row, temperature) for model in (actor.backbone, loaded))
        expected = np.take_along_axis(every, ids, axis=1)
        np.testing.assert_allclose(expected, -np.sort(-every, axis=1)[:, :5], atol=1e-5)
        np.testing.assert_allclose(float64(batch.top_logprobs)[row, :count], expected, atol=1e-4)
        theirs = np.take_along_axis(of_reference, ids, axis=1)
        np.testing.assert_allclose(float64(batch.top_ref_logprobs)[row, :count], theirs, atol=1e-4)
        assert not batch.top_tokens[row, count:].any()


# Rewards


class Tail:
    """Source that scores by the last token of a response, and rewards each token with its place."""

    name = "tail"

    def __init__(self) -> None:
        self.seen: list[RewardInput] = []

    def __call__(self, batch: Sequence[RewardInput]) -> SourceScores:
        self.seen = list(batch)
        return SourceScores([float(given.completion_ids[-1]) for given in batch])


def test_a_reward_sees_each_response_as_it_was_cut_and_no_padding() -> None:
    batch, tail = with_garbage(random_batch()), Tail()
    prompts = [Prompt(row, f"prompt {row}", "", [], {"row": row}) for row in range(batch.size)]
    batch, result = steps.compute_rewards(Rewards([WeightedSource(tail, 2.0)]), batch, prompts)
    assert [given.completion_ids for given in tail.seen] == [
        batch.responses[row, :count].tolist() for row, count in enumerate(COUNTS)
    ]
    assert [(given.prompt, given.completion, given.columns) for given in tail.seen] == [
        (f"prompt {row}", f"text {row}", {"row": row}) for row in range(batch.size)
    ]
    assert [(given.truncated, type(given.truncated)) for given in tail.seen] == [
        (row % 2 == 1, bool) for row in range(batch.size)
    ]
    last = [2.0 * batch.responses[row, count - 1].item() for row, count in enumerate(COUNTS)]
    assert batch.scores.tolist() == result.scores == last
    assert batch.token_scores.shape == batch.mask.shape
    assert not batch.token_scores.any()


class Places:
    """Source that rewards each token with its place, from 1, and gives no score of the whole."""

    name = "places"

    def __call__(self, batch: Sequence[RewardInput]) -> SourceScores:
        tokens = [[float(place + 1) for place in range(len(given.completion_ids))] for given in batch]
        return SourceScores([sum(row) for row in tokens], tokens)


def test_per_token_rewards_stay_on_their_tokens_and_are_0_after_the_last() -> None:
    batch, prompts = random_batch(), [Prompt(row, "", "", [], {}) for row in range(6)]
    batch, _ = steps.compute_rewards(Rewards([WeightedSource(Places(), 0.5)]), batch, prompts)
    places = np.arange(batch.mask.shape[1]) + 1
    assert batch.token_scores.tolist() == (0.5 * places * float64(batch.mask)).tolist()
    assert batch.scores.tolist() == [0.0] * 6


class Length:
    """Source that scores by the number of tokens, and remembers what it saw."""

    name = "length"

    def __init__(self) -> None:
        self.seen: list[RewardInput] = []

    def __call__(self, batch: Sequence[RewardInput]) -> SourceScores:
        self.seen = list(batch)
        return SourceScores([float(len(given.completion_ids)) for given in batch])


@pytest.mark.parametrize("every", [1, 3])
def test_a_prefix_score_is_that_of_what_was_written_before_the_token(folder: Path, every: int) -> None:
    loaded, source = load_tiny(folder), Length()
    batch = random_batch()
    prompts = [Prompt(row, f"prompt {row}", "", [], {}) for row in range(6)]
    rewards = Rewards([WeightedSource(source, 0.5), WeightedSource(Places())], missing_stop_penalty=9.0)
    batch, _ = steps.compute_rewards(rewards, batch, prompts)
    texts = TokenTexts(loaded.tokenizer)
    found = potentials.add_prefix_scores(rewards, batch, prompts, texts, every=every)
    places = np.arange(batch.mask.shape[1]) // every * every
    assert found.potentials.tolist() == (0.5 * places * float64(batch.mask)).tolist()
    for given in source.seen:
        row = int(str(given.prompt).rpartition(" ")[2])
        ids = batch.responses[row].tolist()
        assert given.completion_ids == ids[: len(given.completion_ids)]
        assert given.completion == "".join(texts(ids[: COUNTS[row]])[: len(given.completion_ids)])
        assert given.truncated
        assert given.completion_ids  # functions need not expect an empty response
    assert len(source.seen) == sum(-(-count // every) - 1 for count in COUNTS)


def test_the_state_after_the_last_token_has_the_score_of_the_whole_response_without_penalties(folder: Path) -> None:
    prompts = [Prompt(row, "", "", [], {}) for row in range(6)]
    rewards = Rewards(
        [WeightedSource(Length(), 0.5)], missing_stop_penalty=9.0, overlong=Overlong(5.0, tokens=4, max_tokens=10)
    )
    batch, result = steps.compute_rewards(rewards, random_batch(), prompts)
    assert min(result.scores) < 0  # by the penalties
    found = potentials.add_prefix_scores(rewards, batch, prompts, TokenTexts(load_tiny(folder).tokenizer), every=3)
    assert found.final_potentials.tolist() == pytest.approx([0.5 * count for count in COUNTS], abs=1e-5)


def test_scores_so_far_are_on_the_running_scale_and_change_no_statistics() -> None:
    rewards = Rewards([WeightedSource(Length())], normalize="running", clip=1.5)
    prompts = [Prompt(row, "", "", [], {}) for row in range(6)]
    steps.compute_rewards(rewards, random_batch(), prompts)
    before = rewards.state()
    inputs = [RewardInput("", "", [0] * count, {}, True) for count in (0, 3, 50)]
    mean, deviation = np.mean(COUNTS), np.std(COUNTS)
    expected = np.clip((np.array([0, 3, 50]) - mean) / deviation, -1.5, 1.5)
    assert rewards.so_far(inputs) == pytest.approx(expected.tolist())
    assert (rewards.state(), rewards.so_far([])) == (before, [])


def test_the_baseline_of_a_prompts_samples_is_the_score_of_the_greedy_response(folder: Path) -> None:
    loaded, texts = load_tiny(folder), ["some text", "other words"]
    prompts = [prompt for prompt in make_prompts(loaded.tokenizer, texts) for _ in range(3)]
    rewards = Rewards([WeightedSource(Tail()), WeightedSource(Places(), 0.5)], normalize="running")
    steps.compute_rewards(rewards, random_batch(), [Prompt(row, "", "", [], {}) for row in range(6)])
    statistics, reported = rewards.state(), []
    rollout = RolloutConfig(batch_size=6, samples_per_prompt=3, max_new_tokens=4, temperature=2.0, ignore_stop=True)
    found = generate_responses(
        loaded.backbone,
        loaded.tokenizer,
        prompts[::3],
        rollout.model_copy(update={"top_k": 1}),
        key=mx.random.key(0),
        progress=lambda *done: reported.append(done),
    )
    greedy = lay_out(prompts[::3], found)
    batch = estimators.add_greedy_baselines(rewards, random_batch(), greedy, prompts)
    assert rewards.state() == statistics
    assert reported[-1] == (8, 8)  # two responses of four tokens
    deviation = (statistics["m2"] / statistics["count"]) ** 0.5
    for place, text in enumerate(texts):
        ids = loaded.tokenizer.encode(text)
        for _ in range(4):
            ids.append(int(mx.argmax(loaded.backbone(mx.array([ids]))[0, -1]).item()))
        expected = (ids[-1] - statistics["mean"]) / deviation + 0.5 * (1 + 2 + 3 + 4)
        assert batch.baselines.tolist()[3 * place : 3 * place + 3] == pytest.approx([expected] * 3, rel=1e-4)


def test_token_rewards_and_score_and_penalty_add_up(actor: ActorCriticLLM) -> None:
    batch = scored(actor, random_batch(), kl_coef=0.3)
    tokens = mx.random.normal(batch.mask.shape, key=mx.random.key(0)) * batch.mask
    batch = steps.adjust_rewards_with_kl(batch._replace(token_scores=tokens), kl_coef=0.3)
    for row, count in enumerate(COUNTS):
        expected = -0.3 * float64(batch.kl)[row, :count] + float64(tokens)[row, :count]
        expected[-1] += batch.scores[row].item()
        np.testing.assert_allclose(float64(batch.rewards)[row, :count], expected, atol=1e-5)
        assert not float64(batch.rewards)[row, count:].any()


# Advantages


def test_only_truncated_responses_bootstrap_and_only_when_asked(actor: ActorCriticLLM) -> None:
    batch = scored(actor, random_batch())
    plain = float64(steps.compute_td_errors(batch, gamma=0.9).td_errors)
    bootstrapped = float64(steps.compute_td_errors(batch, gamma=0.9, bootstrap_truncated=True).td_errors)
    for row, count in enumerate(COUNTS):
        future = 0.9 * batch.final_values[row].item() if row % 2 == 1 else 0.0
        added = np.zeros(batch.mask.shape[1])
        added[count - 1] = future
        np.testing.assert_allclose(bootstrapped[row] - plain[row], added, atol=1e-5)
    assert abs(float64(batch.final_values)[1::2]).min() > 1e-3


def test_a_bootstrapped_response_has_no_score_but_keeps_its_other_rewards(actor: ActorCriticLLM) -> None:
    batch = scored(actor, random_batch(), kl_coef=0.3)
    batch = batch._replace(token_scores=mx.random.normal(batch.mask.shape, key=mx.random.key(0)) * batch.mask)
    plain = float64(steps.adjust_rewards_with_kl(batch, kl_coef=0.3).rewards)
    bootstrapped = float64(steps.adjust_rewards_with_kl(batch, kl_coef=0.3, bootstrap_truncated=True).rewards)
    for row, count in enumerate(COUNTS):
        missing = np.zeros(batch.mask.shape[1])
        missing[count - 1] = batch.scores[row].item() if row % 2 == 1 else 0.0
        np.testing.assert_allclose(plain[row] - bootstrapped[row], missing, atol=1e-5)
    assert abs(float64(batch.scores)[1::2]).min() > 1e-3


@pytest.mark.parametrize("bootstraps", [False, True])
@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_outcomes_are_rewards_to_go_and_have_a_value_only_after_the_cut(
    actor: ActorCriticLLM, gamma: float, bootstraps: bool
) -> None:
    batch = scored(actor, random_batch(), kl_coef=0.3, lam=0.2)
    batch = batch._replace(values=NAN * filled(batch.values), mask=batch.mask * mx.array([0, 1, 1, 1, 1, 1])[:, None])
    found = float64(steps.add_outcomes(batch, gamma=gamma, bootstrap_truncated=bootstraps).outcomes)
    for row, count in enumerate(COUNTS):
        rewards = [*float64(batch.rewards)[row, :count], bootstraps * (row % 2) * batch.final_values[row].item()]
        expected = [sum(gamma**later * reward for later, reward in enumerate(rewards[t:])) for t in range(count)]
        np.testing.assert_allclose(found[row, :count], np.array(expected) * (row > 0), atol=1e-5)
        assert not found[row, count:].any()
    assert abs(float64(batch.final_values)[1::2]).min() > 1e-3


@pytest.mark.parametrize(("share", "expected"), [(0, 1.0), (3, 1.0), (6, 0.5)], ids=["none", "half", "all"])
def test_values_of_bootstrapped_responses_do_not_drift_from_the_score(share: int, expected: float) -> None:
    value = 0.5  # of each state: a critic that knows only one number
    batch = random_batch()
    batch = batch._replace(
        truncated=mx.array([1.0] * share + [0.0] * (6 - share)),
        scores=mx.ones(6),
        token_scores=mx.zeros_like(batch.mask),
        kl=mx.zeros_like(batch.mask),
    )
    for _ in range(20):
        batch = batch._replace(values=value * batch.mask, final_values=mx.full(6, value))
        batch = steps.adjust_rewards_with_kl(batch, kl_coef=0.1, bootstrap_truncated=True)
        batch = steps.compute_td_errors(batch, gamma=1.0, bootstrap_truncated=True)
        batch = steps.add_reward_to_go(steps.compute_gae_advantages(batch, gamma=1.0, lam=0.95))
        value += 0.5 * (reference.real(batch.returns, COUNTS).mean() - value)
        assert 0 <= value <= 1.001
    assert value == pytest.approx(expected, abs=0.02)


# Padding


@pytest.mark.parametrize("value_model", ["head", "adapter"])
def test_nothing_after_the_last_token_changes_any_field(
    actor: ActorCriticLLM, apart: ActorCriticLLM, value_model: str
) -> None:
    model = actor if value_model == "head" else apart
    clean = scored(model, random_batch(), gamma=0.9, lam=0.8)
    garbage = scored(model, with_garbage(random_batch()), gamma=0.9, lam=0.8)
    same_real_tokens(clean, garbage, PER_TOKEN)
    np.testing.assert_allclose(float64(garbage.final_values), float64(clean.final_values), atol=1e-5)
    padding = 1 - float64(garbage.mask)
    for name in PER_TOKEN:
        assert not (float64(getattr(garbage, name)) * padding).any(), name


def test_nan_in_the_padding_of_any_field_reaches_no_later_field(actor: ActorCriticLLM) -> None:
    clean = with_garbage(scored(actor, random_batch()), extra=0)
    assert np.isnan(float64(clean.values)).any()
    clean = clean._replace(token_scores=mx.where(clean.mask > 0, clean.token_scores, NAN))
    batch = steps.adjust_rewards_with_kl(clean, kl_coef=0.1)
    batch = steps.compute_gae_advantages(steps.compute_td_errors(batch, gamma=1), gamma=1, lam=1)
    batch = steps.add_reward_to_go(batch)
    same_real_tokens(clean, batch, ("td_errors", "advantages", "returns"))
    assert np.isfinite(float64(batch.advantages)).all()
    assert np.isfinite(float64(batch.returns)).all()


GREEDY = [0.3, 0.3, 0.3, -1.0, -1.0, -1.0]  # of two prompts with three samples each


def shaped(*, shift: float = 0.0, scale: float = 1.0, seed: int = 3) -> Experience:
    """Return a batch of two prompts with three samples each, with a reward on every token. shift: of each score."""
    batch = random_batch()
    draws = np.random.default_rng(seed).normal(0, 1, batch.mask.shape) * float64(batch.mask)
    for row, count in enumerate(COUNTS):
        draws[row, count - 1] += shift
    rewards = mx.array(scale * draws).astype(mx.float32)
    return batch._replace(rewards=rewards, baselines=mx.array(GREEDY))


def estimate(name: str, batch: Experience, **settings: Any) -> Experience:
    return ESTIMATORS[name](batch, PPOConfig(estimator=name, **settings), 3)


def others(row: int, rows: range) -> list[int]:
    return [other for other in rows if other != row]


def expected(name: str, batch: Experience, gamma: float, *, group_std: bool = True) -> Floats:
    """Compute advantages as the papers do, one sequence and token at a time."""
    rewards = float64(batch.rewards)
    totals = [rewards[row, :count].sum() for row, count in enumerate(COUNTS)]
    advantages = np.zeros_like(rewards)
    for row, count in enumerate(COUNTS):
        prompt = range(row // 3 * 3, row // 3 * 3 + 3)
        for t in range(count):
            to_go = sum(gamma ** (k - t) * rewards[row, k] for k in range(t, count))
            group = [totals[member] for member in prompt]
            advantages[row, t] = {
                "reinforce": to_go - np.mean([totals[other] for other in others(row, range(len(COUNTS)))]),
                "rloo": totals[row] - np.mean([totals[other] for other in others(row, prompt)]),
                "remax": to_go - GREEDY[row],
                "grpo": (totals[row] - np.mean(group)) / (np.std(group, ddof=1) + 1e-4 if group_std else 1),
            }[name]
    return advantages


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_each_estimator_is_its_formula(name: str, gamma: float) -> None:
    batch = shaped()
    found = estimate(name, batch, gamma=gamma)
    np.testing.assert_allclose(float64(found.advantages), expected(name, batch, gamma), atol=1e-5)


def test_grpo_without_the_deviation_is_its_formula() -> None:
    batch = shaped()
    found = estimate("grpo", batch, group_std=False)
    np.testing.assert_allclose(float64(found.advantages), expected("grpo", batch, 1.0, group_std=False), atol=1e-5)
    assert float64(found.advantage_scales).tolist() == [1.0] * 6


@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_content_of_the_padding_changes_nothing(name: str) -> None:
    batch = shaped()
    plain = float64(estimate(name, batch).advantages)
    spoiled = batch._replace(rewards=mx.pad(filled(batch.rewards), ((0, 0), (0, 3))))
    wide = with_garbage(batch._replace(rewards=None), garbage=7.0)._replace(rewards=spoiled.rewards)
    np.testing.assert_array_equal(float64(estimate(name, wide).advantages)[:, : plain.shape[1]], plain)
    assert not float64(estimate(name, wide).advantages)[:, plain.shape[1] :].any()
