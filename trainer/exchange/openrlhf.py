"""Our settings as flags of `python -m openrlhf.cli.train_ppo_ray`."""

from __future__ import annotations

import math
from typing import Any

from trainer.exchange import rows as r
from trainer.exchange.settings import Elsewhere, Facts, No, Table, To

VERSION = "0.11.2"
MODULE = "openrlhf.cli.train_ppo_ray"
MERGED = "policy-merged"  # OpenRLHF reads no adapter
MACHINE: dict[str, Any] = {  # one GPU for everything; not ours to know
    "actor.num_gpus_per_node": 1,
    "ref.num_gpus_per_node": 1,
    "reward.num_gpus_per_node": 1,
    "critic.num_gpus_per_node": 1,
    "vllm.num_engines": 1,
    "train.colocate_all": True,
    "vllm.enable_sleep": True,
    "vllm.gpu_memory_utilization": 0.5,
}
_ESTIMATORS = {"gae": "gae", "rloo": "rloo"}
_NO_CRITIC = "the estimator has no critic"
_MERGED = "OpenRLHF reads no adapter: train.sh merges it, so the reference of the KL is the policy as it begins"


def _estimator(facts: Facts) -> str:
    ppo = facts.config.ppo
    if ppo.estimator == "grpo":
        return "group_norm" if ppo.group_std else "dr_grpo"
    if ppo.estimator == "reinforce":
        return "reinforce" if ppo.whiten_advantages else "flash_reinforce"
    return ppo.estimator


def _is_there(facts: Facts) -> bool:
    return facts.config.ppo.estimator != "remax"


def _episodes(facts: Facts) -> int:
    return math.ceil(facts.config.ppo.iterations * r.prompts_per_iteration(facts) / facts.prompts)


def _is_whitened(facts: Facts) -> bool:
    return facts.config.ppo.estimator in ("gae", "reinforce")


def _both(name: str, **more: Any) -> list[To | No]:
    return [To(f"actor.{name}", **more), To(f"critic.{name}", **more)]


SETTINGS: Table = {
    "model.path": [To("actor.model_name_or_path", lambda f: MERGED, note=_MERGED)],
    "model.revision": [Elsewhere("the merged model is a folder")],
    "model.adapter": [Elsewhere("it is part of the exported base model")],
    "model.dtype": [To("ds.param_dtype", choices=dict.fromkeys(r.BFLOAT16, "bf16"))],
    "model.lora_rank": [To("ds.lora.rank", note="a new adapter on the merged policy, for the critic as well")],
    "model.lora_scale": [To("ds.lora.alpha", r.lora_alpha, note="a whole number")],
    "model.lora_targets": [To("ds.lora.target_modules", r.lora_targets)],
    "model.lora_layers": [No("OpenRLHF adapts all blocks", 0)],
    "model.quantize": [Elsewhere("the exported base model holds the rounded weights unpacked")],
    "model.value_model": [
        To(
            "critic.model_name_or_path", lambda f: f.value_model, when=lambda f: r.has_critic(f) and bool(f.value_model)
        ),
        No("the critic is a model of its own", when=r.has_critic),
        Elsewhere("the estimator has no critic", when=r.has_no_critic),
    ],
    "model.policy_init": [Elsewhere("the exported policy has been trained further")],
    "model.value_init": [Elsewhere("the exported critic has been trained further")],
    "data.chat": [To("data.apply_chat_template", lambda f: f.messages)],
    "data.template": [No("OpenRLHF passes no options to a template", {})],
    "data.max_prompt_tokens": [To("data.max_len", r.longest, note="prompt and response together")],
    "data.shuffle": [No("OpenRLHF always shuffles", True)],
    "rollout.batch_size": [To("rollout.batch_size", r.prompts_per_iteration, note="OpenRLHF counts prompts")],
    "rollout.samples_per_prompt": [To("rollout.n_samples_per_prompt")],
    "rollout.max_new_tokens": [To("rollout.max_new_tokens")],
    "rollout.temperature": [To("rollout.temperature")],
    "rollout.top_p": [To("rollout.top_p")],
    "rollout.top_k": [No("OpenRLHF has no flag for it", 0)],
    "rollout.stop": [No("OpenRLHF stops at the end token alone", [])],
    "rollout.ignore_stop": [No("OpenRLHF always stops at the end token", False)],
    "reward.sources": [
        To("reward.model_name_or_path", lambda f: f.reward_model, when=r.one_reward_model),
        To(
            "reward.normalize_enable",
            lambda f: True,
            when=r.one_reward_model,
            note="reads mean and std in the exported config.json; the score is read at the end token, ours before it",
        ),
        No(f"{r.ONE_REWARD}: serve yours for --reward.remote_url", when=r.no_reward_model),
    ],
    "reward.clip": [
        To("reward.clip_range", lambda f: [-(f.config.reward.clip or 1e6), f.config.reward.clip or 1e6]),
    ],
    "reward.normalize": [No("OpenRLHF normalises by fixed numbers alone", "off")],
    "reward.missing_stop_penalty": [No("OpenRLHF scales or replaces the score of a cut response", 0.0)],
    "reward.overlong_penalty": [
        To("reward.overlong_penalty_factor", when=lambda f: f.config.reward.overlong_penalty > 0),
    ],
    "reward.overlong_tokens": [
        To("reward.overlong_buffer_len", when=lambda f: f.config.reward.overlong_penalty > 0),
    ],
    "ppo.iterations": [To("train.num_episodes", _episodes, note="whole passes over the prompts, rounded up")],
    "ppo.estimator": [
        To("algo.advantage.estimator", _estimator, when=_is_there),
        No("OpenRLHF has no remax", when=lambda f: not _is_there(f)),
    ],
    "ppo.group_std": [
        To("algo.advantage.estimator", _estimator, when=lambda f: f.config.ppo.estimator == "grpo"),
        Elsewhere("it is of grpo", when=lambda f: f.config.ppo.estimator != "grpo"),
    ],
    "ppo.epochs": [To("train.max_epochs")],
    "ppo.minibatches": [To("train.batch_size", r.minibatch, note="sequences per optimiser step")],
    "ppo.kl_coef": [To("algo.kl.init_coef")],
    "ppo.kl_estimator": [To("algo.kl.estimator", choices={one: one for one in ("k1", "k2", "k3")})],
    "ppo.kl_in": [To("algo.kl.use_loss", choices={"reward": False, "loss": True})],
    "ppo.kl_controller": [
        To("algo.kl.target", r.kl_target_per_token, when=r.is_adaptive, note="nats per token, of a full response"),
        Elsewhere("a target makes it adaptive", when=lambda f: not r.is_adaptive(f)),
    ],
    "ppo.kl_target": [
        To("algo.kl.target", r.kl_target_per_token, when=r.is_adaptive),
        Elsewhere("not adaptive", when=lambda f: not r.is_adaptive(f)),
    ],
    "ppo.kl_horizon": [To("algo.kl.horizon")],
    "ppo.clip": [To("actor.eps_clip")],
    "ppo.clip_high": [
        To(
            "actor.eps_clip_low_high",
            lambda f: [f.config.ppo.clip, f.config.ppo.clip_high],
            when=lambda f: f.config.ppo.clip_high > 0,
        ),
    ],
    "ppo.dual_clip": [To("actor.dual_clip", when=lambda f: f.config.ppo.dual_clip > 0)],
    "ppo.loss_aggregation": [
        To("actor.loss_agg_mode", choices={"token": "token-mean", "sequence": "seq-mean-token-mean"})
    ],
    "ppo.importance_cap": [
        To("algo.advantage.is_correction_level", lambda f: "token", when=lambda f: f.config.ppo.importance_cap > 0),
        To("algo.advantage.is_correction_mode", lambda f: "clip", when=lambda f: f.config.ppo.importance_cap > 0),
        To(
            "algo.advantage.is_correction_threshold",
            lambda f: [0.0, f.config.ppo.importance_cap],
            when=lambda f: f.config.ppo.importance_cap > 0,
        ),
    ],
    "ppo.relative_value_clip": [
        No(
            "OpenRLHF's value_clip is in units of the reward, ours of the critic's error: its default of 0.5 is active",
            when=r.has_critic,
        ),
        Elsewhere(_NO_CRITIC, when=r.has_no_critic),
    ],
    "ppo.value_coef": [
        No("the critic has an optimiser of its own, so its weight does nothing", when=r.has_critic),
        Elsewhere(_NO_CRITIC, when=r.has_no_critic),
    ],
    "ppo.critic_warmup": [To("critic.freezing_steps", lambda f: f.config.ppo.critic_warmup or -1)],
    "ppo.entropy_coef": [To("actor.entropy_coef", when=lambda f: f.config.ppo.entropy_coef > 0)],
    "ppo.gamma": [To("algo.advantage.gamma")],
    "ppo.lam": [To("algo.advantage.lambd")],
    "ppo.whiten_advantages": [
        No("OpenRLHF always does, with this estimator", True, when=_is_whitened),
        No("OpenRLHF does not, with this estimator", False, when=lambda f: not _is_whitened(f)),
    ],
    "ppo.whiten_rewards": [No("OpenRLHF has none", False)],
    "optim.policy_lr": [To("actor.adam.lr")],
    "optim.value_lr": [To("critic.adam.lr")],
    "optim.schedule": _both(
        "lr_scheduler", choices={"constant": "constant_with_warmup", "linear": "linear", "cosine": "cosine"}
    ),
    "optim.warmup_steps": _both("lr_warmup_ratio", value=lambda f: f.config.optim.warmup_steps / r.steps(f)),
    "optim.beta1": _both("adam.betas", value=lambda f: [f.config.optim.beta1, f.config.optim.beta2]),
    "optim.beta2": _both("adam.betas", value=lambda f: [f.config.optim.beta1, f.config.optim.beta2]),
    "optim.eps": _both("adam.eps"),
    "optim.weight_decay": _both("adam.weight_decay"),
    "optim.max_grad_norm": _both("max_norm"),
    "optim.ema_decay": [
        To("train.enable_ema", lambda f: True, when=lambda f: f.config.optim.ema_decay > 0),
        To("train.ema_beta", when=lambda f: f.config.optim.ema_decay > 0),
    ],
    "optim.micro_batch_tokens": [Elsewhere("memory alone: OpenRLHF counts sequences, --train.micro_batch_size")],
    "optim.grad_checkpoint": [To("actor.gradient_checkpointing_enable")],
    "eval.every": [No("OpenRLHF evaluates with a remote reward alone", 0)],
    "eval.prompts": [No("OpenRLHF evaluates with a remote reward alone")],
    "checkpoint.every": [To("ckpt.save_steps", lambda f: f.config.checkpoint.every or -1)],
    "checkpoint.keep": [To("ckpt.max_num", lambda f: f.config.checkpoint.keep or 1_000_000)],
    "data.column": [To("data.input_key", lambda f: "prompt")],
    "run.seed": [To("train.seed")],
}
