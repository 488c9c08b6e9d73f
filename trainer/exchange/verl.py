"""Our settings as hydra overrides of `python -m verl.trainer.main_ppo`."""

from __future__ import annotations

from typing import Any

from trainer.exchange import rows as r
from trainer.exchange.settings import Elsewhere, Facts, No, Table, To

VERSION = "0.9.1"
MODULE = "verl.trainer.main_ppo"
# verl renders every prompt by a chat template; this one leaves a text as it is.
PLAIN_TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"
MACHINE: dict[str, Any] = {  # one GPU for everything; not ours to know
    "trainer.n_gpus_per_node": 1,
    "trainer.nnodes": 1,
    "actor_rollout_ref.rollout.name": "vllm",
    "actor_rollout_ref.rollout.tensor_model_parallel_size": 1,
    "actor_rollout_ref.rollout.load_format": "safetensors",  # as verl's guide to LoRA asks
    "reward.reward_model.rollout.name": "vllm",
    "reward.reward_model.rollout.tensor_model_parallel_size": 1,
}
_A, _M = "actor_rollout_ref.actor", "actor_rollout_ref.model"
_NO_CRITIC = "the estimator has no critic"
_NO_LIMIT = 1_000_000.0
_OWN_OPTIMIZER = "the critic has an optimiser of its own, so its weight does nothing"
_ESTIMATORS = {"gae": "gae", "reinforce": "reinforce_plus_plus", "rloo": "rloo", "remax": "remax", "grpo": "grpo"}


def _in_loss(facts: Facts) -> bool:
    return facts.config.ppo.kl_in == "loss"


def _in_reward(facts: Facts) -> bool:
    return not _in_loss(facts)


def _minibatch(facts: Facts) -> int:
    return max(1, r.minibatch(facts) // r.samples(facts))


def _tokens(facts: Facts) -> int:
    return max(facts.config.optim.micro_batch_tokens, r.longest(facts))


def _is_whitened(facts: Facts) -> bool:
    return facts.config.ppo.estimator in ("gae", "reinforce")


def _both(name: str, **more: Any) -> list[To | No]:
    return [To(f"{_A}.{name}", **more), To(f"critic.{name}", **more)]


SETTINGS: Table = {
    "model.path": [
        To(f"{_M}.path", lambda f: f.base),
        To(f"{_M}.lora_adapter_path", lambda f: f.policy, note="the reference of the KL is the model without it"),
    ],
    "model.revision": [No("verl has none: name a local folder in actor_rollout_ref.model.path", "")],
    "model.adapter": [Elsewhere("it is part of the exported base model")],
    "model.dtype": [
        To(f"{_A}.fsdp_config.model_dtype", choices={"auto": "bf16", "bfloat16": "bf16", "float32": "fp32"}),
        To(
            "actor_rollout_ref.rollout.dtype",
            choices={"auto": "bfloat16", "bfloat16": "bfloat16", "float32": "float32"},
        ),
    ],
    "model.lora_rank": [To(f"{_M}.lora_rank")],
    "model.lora_scale": [To(f"{_M}.lora_alpha", r.lora_alpha, note="a whole number; the adapter itself keeps its own")],
    "model.lora_targets": [To(f"{_M}.target_modules", r.lora_targets)],
    "model.lora_layers": [Elsewhere("the exported adapter has them")],
    "model.quantize": [Elsewhere("the exported base model holds the rounded weights unpacked")],
    "model.value_model": [
        To("critic.model.path", lambda f: f.value_model or f.base, when=r.has_critic),
        No("verl's critic is a whole model, which it trains", when=r.has_critic),
        Elsewhere("the estimator has no critic", when=r.has_no_critic),
    ],
    "model.policy_init": [Elsewhere("the exported policy has been trained further")],
    "model.value_init": [Elsewhere("the exported critic has been trained further")],
    "data.chat": [
        To(f"{_M}.custom_chat_template", lambda f: PLAIN_TEMPLATE, when=lambda f: not f.messages),
        Elsewhere("the exported prompts are messages where the template applies", when=lambda f: f.messages),
    ],
    "data.template": [To("data.apply_chat_template_kwargs")],
    "data.max_prompt_tokens": [To("data.max_prompt_length")],
    "data.shuffle": [To("data.shuffle")],
    "rollout.batch_size": [To("data.train_batch_size", r.prompts_per_iteration, note="verl counts prompts")],
    "rollout.samples_per_prompt": [To("actor_rollout_ref.rollout.n")],
    "rollout.max_new_tokens": [To("data.max_response_length")],
    "rollout.temperature": [To("actor_rollout_ref.rollout.temperature")],
    "rollout.top_p": [To("actor_rollout_ref.rollout.top_p")],
    "rollout.top_k": [To("actor_rollout_ref.rollout.top_k", lambda f: f.config.rollout.top_k or -1)],
    "rollout.stop": [No("verl stops at end tokens alone", [])],
    "rollout.ignore_stop": [To("actor_rollout_ref.rollout.ignore_eos")],
    "reward.sources": [
        To("reward.reward_model.enable", lambda f: True, when=r.one_reward_model),
        To(
            "reward.reward_model.model_path",
            lambda f: f.reward_model,
            when=r.one_reward_model,
            note="the score lacks our constant (mean in the exported config.json), and verl renders prompt and "
            "response by the reward model's own chat template",
        ),
        No(
            f"{r.ONE_REWARD}: write yours as reward.custom_reward_function.path",
            when=r.no_reward_model,
        ),
    ],
    "reward.clip": [No("verl clips no scores", 0.0)],
    "reward.normalize": [No("verl normalises no scores", "off")],
    "reward.missing_stop_penalty": [No("verl has none", 0.0)],
    "reward.overlong_penalty": [No("verl has it in its reward manager dapo, for rewards by rule", 0.0)],
    "reward.overlong_tokens": [No("verl has it in its reward manager dapo, for rewards by rule", 0)],
    "ppo.iterations": [
        To("trainer.total_training_steps"),
        To("trainer.total_epochs", lambda f: f.config.ppo.iterations, note="more than enough passes over the prompts"),
    ],
    "ppo.estimator": [To("algorithm.adv_estimator", choices=_ESTIMATORS)],
    "ppo.group_std": [To("algorithm.norm_adv_by_std_in_grpo")],
    "ppo.epochs": [To(f"{_A}.ppo_epochs")],
    "ppo.minibatches": [To(f"{_A}.ppo_mini_batch_size", _minibatch, note="prompts per optimiser step")],
    "ppo.kl_coef": [
        To("algorithm.kl_ctrl.kl_coef", when=_in_reward),
        To(f"{_A}.kl_loss_coef", when=_in_loss),
    ],
    "ppo.kl_estimator": [
        To(
            "algorithm.kl_penalty",
            choices={"k1": "kl", "k2": "mse", "k3": "low_var_kl", "abs": "abs"},
            when=_in_reward,
        ),
        To(f"{_A}.kl_loss_type", choices={"k2": "mse", "k3": "low_var_kl"}, when=_in_loss),
    ],
    "ppo.kl_in": [
        To("algorithm.use_kl_in_reward", choices={"reward": True, "loss": False}),
        To(f"{_A}.use_kl_loss", choices={"reward": False, "loss": True}),
    ],
    "ppo.kl_controller": [To("algorithm.kl_ctrl.type")],
    "ppo.kl_target": [
        To("algorithm.kl_ctrl.target_kl", r.kl_target_per_token, note="nats per token, of a full response")
    ],
    "ppo.kl_horizon": [To("algorithm.kl_ctrl.horizon")],
    "ppo.clip": [To(f"{_A}.clip_ratio"), To(f"{_A}.clip_ratio_low")],
    "ppo.clip_high": [To(f"{_A}.clip_ratio_high", lambda f: f.config.ppo.clip_high or f.config.ppo.clip)],
    "ppo.dual_clip": [
        To(f"{_A}.clip_ratio_c", lambda f: f.config.ppo.dual_clip or _NO_LIMIT, note="verl always has a limit")
    ],
    "ppo.loss_aggregation": [
        To(
            f"{_A}.loss_agg_mode",
            choices={"token": "token-mean", "sequence": "seq-mean-token-mean", "constant": "seq-mean-token-sum-norm"},
        )
    ],
    "ppo.importance_cap": [
        To(
            "algorithm.rollout_correction.rollout_is", lambda f: "token", when=lambda f: f.config.ppo.importance_cap > 0
        ),
        To("algorithm.rollout_correction.rollout_is_threshold", when=lambda f: f.config.ppo.importance_cap > 0),
    ],
    "ppo.relative_value_clip": [
        No(
            "verl's cliprange_value is in units of the reward, ours of the critic's error: its 0.5 is active",
            when=r.has_critic,
        ),
        Elsewhere(_NO_CRITIC, when=r.has_no_critic),
    ],
    "ppo.value_coef": [No(_OWN_OPTIMIZER, when=r.has_critic), Elsewhere(_NO_CRITIC, when=r.has_no_critic)],
    "ppo.critic_warmup": [To("trainer.critic_warmup")],
    "ppo.entropy_coef": [To(f"{_A}.entropy_coeff")],
    "ppo.gamma": [To("algorithm.gamma")],
    "ppo.lam": [To("algorithm.lam")],
    "ppo.whiten_advantages": [
        No("verl always does, with this estimator", True, when=_is_whitened),
        No("verl does not, with this estimator", False, when=lambda f: not _is_whitened(f)),
    ],
    "ppo.whiten_rewards": [No("verl has none", False)],
    "optim.policy_lr": [To(f"{_A}.optim.lr")],
    "optim.value_lr": [To("critic.optim.lr")],
    "optim.schedule": _both("optim.lr_scheduler_type", choices={"constant": "constant", "cosine": "cosine"}),
    "optim.warmup_steps": _both("optim.lr_warmup_steps"),
    "optim.beta1": _both("optim.betas", value=lambda f: [f.config.optim.beta1, f.config.optim.beta2]),
    "optim.beta2": _both("optim.betas", value=lambda f: [f.config.optim.beta1, f.config.optim.beta2]),
    "optim.eps": _both("optim.override_optimizer_config", value=lambda f: {"eps": f.config.optim.eps}),
    "optim.weight_decay": _both("optim.weight_decay"),
    "optim.max_grad_norm": _both("optim.clip_grad"),
    "optim.ema_decay": [No("verl keeps no average of the policy", 0.0)],
    "optim.micro_batch_tokens": [
        To(f"{_A}.use_dynamic_bsz", lambda f: True),
        To(f"{_A}.ppo_max_token_len_per_gpu", _tokens, note="at least one sequence"),
        To("critic.ppo_max_token_len_per_gpu", _tokens),
    ],
    "optim.grad_checkpoint": [
        To(f"{_M}.enable_gradient_checkpointing"),
        To("critic.model.enable_gradient_checkpointing"),
    ],
    "eval.every": [
        To("trainer.test_freq", lambda f: f.config.eval.every if f.config.eval.every and f.held_out else -1),
        To("trainer.val_before_train", lambda f: bool(f.config.eval.every and f.held_out)),
    ],
    "eval.prompts": [To("data.val_max_samples")],
    "checkpoint.every": [To("trainer.save_freq", lambda f: f.config.checkpoint.every or -1)],
    "checkpoint.keep": [
        To("trainer.max_actor_ckpt_to_keep", lambda f: f.config.checkpoint.keep or None),
        To("trainer.max_critic_ckpt_to_keep", lambda f: f.config.checkpoint.keep or None),
    ],
    "run.name": [To("trainer.experiment_name", lambda f: f.config.run.name or "ppo-workbench")],
    "run.seed": [
        To("data.seed"),
        To(f"{_A}.data_loader_seed"),
        To("critic.data_loader_seed"),
        To("actor_rollout_ref.rollout.seed"),
    ],
    "run.trackers": [To("trainer.logger", lambda f: ["console", *f.config.run.trackers])],
}
