"""Results of TRL's PPOTrainer on fixed rollouts (tests/trl_parity), and our trainer set up to match."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Literal

import mlx.core as mx
import numpy as np
import pytest
from apart import ROOT
from mlx_lm.models import llama
from reference import Floats, float64

from trainer.config.ppo import PPOConfig
from trainer.config.schema import ModelConfig, OptimConfig
from trainer.data import Prompt
from trainer.models.actor_critic import ActorCriticLLM
from trainer.models.adapters import Parameters
from trainer.ppo import steps
from trainer.ppo.learner import Learner
from trainer.ppo.losses import LossSettings, LossSums
from trainer.rollout.experience import Experience
from trainer.rollout.generation import Response, lay_out

FOLDER = ROOT / "tests" / "trl_parity"
PAGE: dict[str, Any] = json.loads((FOLDER / "cases.json").read_text(encoding="utf-8"))
CASES = list(PAGE["cases"])
START = {name: mx.array(array) for name, array in np.load(FOLDER / "model.npz").items()}
STOP_IS_NO_PAD = [case for case in CASES if case != "pad_is_stop"]
NO_NORM_LIMIT = 1e9
TOLERANCE = 1e-5  # relative to the largest number compared, or to 1: float32 on both sides; the largest seen is 2.3e-6
DIFFERENT = 1e-3  # numbers that should differ do so by far more than the tolerance

Part = Literal["policy", "value"]
Layout = Literal["ours", "trl"]


class Reference:
    """One case: its settings and TRL's results. B sequences, T = 7 places; the names are those of TRL's code."""

    def __init__(self, case: str) -> None:
        self.settings: dict[str, Any] = PAGE["cases"][case]
        self.metrics: dict[str, float] = self.settings["metrics"]
        self._arrays = dict(np.load(FOLDER / f"{case}.npz"))

    def __getitem__(self, name: str) -> Any:
        return self._arrays[name]

    def array(self, name: str) -> mx.array:
        """Return a result as an MLX array."""
        return mx.array(self._arrays[name])

    @property
    def mask(self) -> Any:
        """Mask [B, T], true on the tokens that TRL trains the policy on."""
        return ~self["padding_mask"]

    @property
    def value_mask(self) -> Any:
        """Mask [B, T], true on the states that TRL trains the critic on: one more where a response ended before T."""
        return ~self["padding_mask_p1"]

    @cached_property
    def ppo(self) -> PPOConfig:
        """Settings in our terms."""
        s = self.settings
        return PPOConfig(
            kl_coef=s["kl_coef"],
            kl_estimator=s["kl_estimator"],
            clip=s["cliprange"],
            relative_value_clip=s["cliprange_value"],
            value_coef=s["vf_coef"],
            gamma=s["gamma"],
            lam=s["lam"],
        )

    @property
    def temperature(self) -> float:
        """Temperature of the rollout."""
        return float(self.settings["temperature"])

    def prompts(self) -> list[Prompt]:
        """Return B prompts."""
        return [
            Prompt(row, "", "", tokens[:length].tolist(), {})
            for row, (tokens, length) in enumerate(zip(self["prompts"], self["prompt_lengths"], strict=True))
        ]

    def batch(self, layout: Layout = "ours") -> Experience:
        """Lay out the rollout our way; "trl": with the place after an early end as one more token, as TRL counts."""
        lengths = self["response_lengths"] if layout == "ours" else self.value_mask.sum(axis=1)
        responses = [
            Response(tokens[:length].tolist(), [0.0] * int(length), "", bool(cut))
            for tokens, length, cut in zip(self["responses"], lengths, self["truncated"], strict=True)
        ]
        return lay_out(self.prompts(), responses)

    def filled(self, layout: Layout, *names: str) -> Experience:
        """Return `batch` with the fields `names` as TRL computed them."""
        fields: dict[str, Any] = {name: self.array(name) for name in names}
        return self.batch(layout)._replace(**fields)

    def micro_batches(self, layout: Layout, *names: str) -> list[Experience]:
        """Return `filled`, cut as TRL cut it."""
        return [self.filled(layout, *names).take(rows.tolist()) for rows in self["rows"]]

    def optim(self, part: Part, **settings: Any) -> OptimConfig:
        """Return TRL's Adam for one of the two; its critic gradient is `vf_coef` times ours, which affects eps."""
        s = self.settings
        eps = s["adam_epsilon"] / (1 if part == "policy" else s["vf_coef"])
        rate = s["learning_rate"]
        chosen = {"policy_lr": rate, "value_lr": rate, "eps": eps, "max_grad_norm": NO_NORM_LIMIT} | settings
        return OptimConfig(**chosen)


def make_actor() -> ActorCriticLLM:
    """Return the model of the reference: a llama with non-zero adapters and head."""
    backbone = llama.Model(llama.ModelArgs.from_dict(PAGE["model"]))
    backbone.load_weights([(name, array) for name, array in START.items() if name.startswith("model.")])
    lora = PAGE["lora"]
    config = ModelConfig(
        lora_rank=lora["rank"], lora_scale=lora["scale"], lora_targets=lora["targets"], value_model="adapter"
    )
    actor = ActorCriticLLM(backbone, config, key=mx.random.key(0))
    actor.update_policy(start_of("policy"))
    actor.update_value(start_of("value"))
    return actor


def start_of(part: Part) -> Parameters:
    """Return the trained parameters of one of the two, before the first step."""
    prefix = f"{part}."
    return {name.removeprefix(prefix): array for name, array in START.items() if name.startswith(prefix)}


def unflattened(part: Part, vector: Any) -> Parameters:
    """Split one vector into parameters, in the order of their names."""
    found, place = {}, 0
    for name, array in sorted(start_of(part).items()):
        found[name] = mx.array(vector[place : place + array.size]).reshape(array.shape)
        place += array.size
    return found


def flat(parameters: Parameters) -> Floats:
    """Join parameters into one vector: the reverse of `unflattened`."""
    return np.concatenate([float64(parameters[name]).ravel() for name in sorted(parameters)])


def at(x: Any, mask: Any) -> Floats:
    """Return the numbers of [B, T] where `mask` is true; x may have fewer columns if the mask is false in the rest."""
    mask = np.array(mask) > 0
    width = np.array(x).shape[1]
    assert not mask[:, width:].any()
    found: Floats = float64(x)[mask[:, :width]]
    return found


def lengths_of(mask: Any) -> Sequence[int]:
    """Return the number of true places of each row, which come first."""
    return [int(count) for count in np.array(mask).sum(axis=1)]


def of(*cases: str) -> pytest.MarkDecorator:
    """Parametrise a test with these cases."""
    return pytest.mark.parametrize("reference", cases, indirect=True)


def close(actual: Any, expected: Any, tolerance: float = TOLERANCE) -> None:
    actual, expected = float64(actual), float64(expected)
    assert expected.size
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance * max(1.0, abs(expected).max()))


def unlike(actual: Any, expected: Any) -> None:
    assert abs(float64(actual) - float64(expected)).max() > DIFFERENT


def learner_of(actor: ActorCriticLLM, optim: OptimConfig | None = None) -> Learner:
    return Learner(actor, optim or OptimConfig(micro_batch_tokens=10_000), total_steps=1)


def gradients(actor: ActorCriticLLM, batch: Experience, reference: Reference, part: Part) -> tuple[Floats, LossSums]:
    """Return the gradients of a minibatch as one vector, and what was summed on the way."""
    settings = LossSettings(reference.ppo, reference.temperature)
    found, sums, _ = learner_of(actor).gradients(batch, settings, part)
    return flat(found[part]), sums


def scored(actor: ActorCriticLLM, reference: Reference) -> Experience:
    """Return the rollout with log-probs, reference log-probs, KL and values as we compute them."""
    how: dict[str, Any] = {"micro_batch_tokens": 30}
    batch, temperature = reference.batch(), reference.temperature
    batch = steps.add_policy_logprobs_and_values(actor, batch, temperature=temperature, **how)
    batch = steps.add_values_to_sa_pairs(actor, batch, **how)
    estimator = reference.ppo.kl_estimator
    return steps.add_kl_to_sa_pairs(actor, batch, temperature=temperature, estimator=estimator, **how)


def shaped(reference: Reference, layout: Layout) -> Experience:
    """Return the rollout with our rewards, advantages and returns of TRL's KL, scores and values."""
    batch, ppo = reference.filled(layout, "kl", "scores", "values"), reference.ppo
    batch = batch._replace(token_scores=mx.zeros_like(batch.mask))
    batch = steps.adjust_rewards_with_kl(batch, kl_coef=ppo.kl_coef)
    if reference.settings["whiten_rewards"]:  # unlike ours: see test_trl_ppo.py
        batch = batch._replace(rewards=reference.array("rewards"))
    batch = steps.compute_td_errors(batch, gamma=ppo.gamma)
    batch = steps.compute_gae_advantages(batch, gamma=ppo.gamma, lam=ppo.lam)
    return steps.add_reward_to_go(batch)
