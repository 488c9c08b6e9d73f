"""Our settings as those of TRL: PPOConfig (its last release with PPO), GRPOConfig or RLOOConfig, by the estimator."""

from __future__ import annotations

from trainer.exchange import rows as r
from trainer.exchange.settings import Elsewhere, Facts, No, Table, To

VERSION = "1.12.0"
CONFIGS = {"gae": "PPOConfig", "grpo": "GRPOConfig", "rloo": "RLOOConfig"}  # by ppo.estimator; others have none
_SCRIPT = "train.py reads it from the export"


def _is_known(facts: Facts) -> bool:
    return r.one_reward_model(facts) or bool(facts.reward_function)


def _is_unknown(facts: Facts) -> bool:
    return not _is_known(facts)


_COMMON: Table = {
    "model.path": [Elsewhere(_SCRIPT)],
    "model.revision": [Elsewhere("the adapter's adapter_config.json names it")],
    "model.adapter": [Elsewhere("it is part of the exported base model")],
    "model.dtype": [To("bf16", lambda f: f.config.model.dtype in r.BFLOAT16)],
    "model.lora_rank": [Elsewhere("the exported adapter has it")],
    "model.lora_scale": [Elsewhere("the exported adapter has it")],
    "model.lora_targets": [Elsewhere("the exported adapter has them")],
    "model.lora_layers": [Elsewhere("the exported adapter has them")],
    "model.quantize": [Elsewhere("the exported base model holds the rounded weights unpacked")],
    "model.value_model": [
        No("TRL's critic is a whole model, which it trains: train.py begins it as value-model", when=r.has_critic),
        Elsewhere("the estimator has no critic", when=r.has_no_critic),
    ],
    "model.policy_init": [Elsewhere("the exported policy has been trained further")],
    "model.value_init": [Elsewhere("the exported critic has been trained further")],
    "data.chat": [Elsewhere("the exported prompts are messages where the template applies")],
    "data.max_prompt_tokens": [Elsewhere("the exported prompts are no longer")],
    "reward.clip": [No("TRL clips no scores", 0.0)],
    "reward.normalize": [No("TRL normalises no scores", "off")],
    "reward.overlong_penalty": [No("TRL has none", 0.0)],
    "reward.overlong_tokens": [No("TRL has none", 0)],
    "ppo.kl_controller": [No("TRL's coefficient is fixed", "fixed")],
    "ppo.kl_target": [No("TRL's coefficient is fixed", when=r.is_adaptive), Elsewhere("not adaptive")],
    "ppo.kl_horizon": [No("TRL's coefficient is fixed", when=r.is_adaptive), Elsewhere("not adaptive")],
    "ppo.critic_warmup": [No("TRL has none", 0)],
    "ppo.importance_cap": [No("TRL has it for vLLM alone", 0.0)],
    "optim.policy_lr": [To("learning_rate")],
    "optim.beta1": [To("adam_beta1")],
    "optim.beta2": [To("adam_beta2")],
    "optim.eps": [To("adam_epsilon")],
    "optim.weight_decay": [To("weight_decay")],
    "optim.ema_decay": [No("TRL keeps no average of the policy", 0.0)],
    "optim.micro_batch_tokens": [
        Elsewhere("memory alone: lower per_device_train_batch_size, raise gradient_accumulation_steps")
    ],
    "optim.grad_checkpoint": [To("gradient_checkpointing")],
    "eval.every": [No("train.py evaluates nothing", 0)],
    "eval.prompts": [No("train.py evaluates nothing")],
    "checkpoint.every": [
        To("save_strategy", lambda f: "steps" if f.config.checkpoint.every else "no"),
        To("save_steps", when=lambda f: f.config.checkpoint.every > 0),
    ],
    "checkpoint.keep": [To("save_total_limit", lambda f: f.config.checkpoint.keep or None)],
    "run.seed": [To("seed")],
    "run.trackers": [To("report_to", lambda f: f.config.run.trackers or ["none"])],
}

PPO: Table = {
    **_COMMON,
    "data.template": [No("train.py passes no options to the template: add yours", {})],
    "data.shuffle": [No("PPOTrainer always shuffles", True)],
    "rollout.batch_size": [
        To("per_device_train_batch_size", note="on one device"),
        To("gradient_accumulation_steps", lambda f: 1),
        To("local_rollout_forward_batch_size"),
    ],
    "rollout.samples_per_prompt": [No("PPOTrainer writes one response per prompt", 1)],
    "rollout.max_new_tokens": [To("response_length")],
    "rollout.temperature": [To("temperature")],
    "rollout.top_p": [No("PPOTrainer samples from all tokens", 1.0)],
    "rollout.top_k": [No("PPOTrainer samples from all tokens", 0)],
    "rollout.stop": [No("PPOTrainer stops at one token alone", [])],
    "rollout.ignore_stop": [
        To("stop_token", choices={False: "eos", True: None}, note="the tokenizer's end token alone")
    ],
    "reward.sources": [
        To("reward_model_path", lambda f: f.reward_model, when=r.one_reward_model),
        No(f"{r.ONE_REWARD}: put yours into train.py", when=r.no_reward_model),
    ],
    "reward.missing_stop_penalty": [To("missing_eos_penalty", lambda f: f.config.reward.missing_stop_penalty or None)],
    "ppo.iterations": [
        To("total_episodes", lambda f: f.config.ppo.iterations * f.config.rollout.batch_size),
    ],
    "ppo.estimator": [No("PPOTrainer is GAE", "gae")],
    "ppo.group_std": [Elsewhere("it is of grpo")],
    "ppo.epochs": [To("num_ppo_epochs")],
    "ppo.minibatches": [To("num_mini_batches")],
    "ppo.kl_coef": [To("kl_coef")],
    "ppo.kl_estimator": [To("kl_estimator", choices={"k1": "k1", "k3": "k3"})],
    "ppo.kl_in": [No("PPOTrainer's penalty is in the reward", "reward")],
    "ppo.clip": [To("cliprange")],
    "ppo.clip_high": [No("PPOTrainer's range is symmetric", 0.0)],
    "ppo.dual_clip": [No("PPOTrainer has none", 0.0)],
    "ppo.loss_aggregation": [No("PPOTrainer takes the mean over tokens", "token")],
    "ppo.relative_value_clip": [
        No("TRL's cliprange_value is in units of the reward, ours of the critic's error: its default of 0.2 is active")
    ],
    "ppo.value_coef": [To("vf_coef")],
    "ppo.entropy_coef": [No("PPOTrainer has no entropy bonus", 0.0)],
    "ppo.gamma": [To("gamma")],
    "ppo.lam": [To("lam")],
    "ppo.whiten_advantages": [No("PPOTrainer always does", True)],
    "ppo.whiten_rewards": [To("whiten_rewards")],
    "optim.value_lr": [No("PPOTrainer trains policy and critic with one learning rate")],
    "optim.schedule": [
        To("lr_scheduler_type", choices={"constant": "constant_with_warmup", "linear": "linear", "cosine": "cosine"})
    ],
    "optim.warmup_steps": [To("warmup_steps", r.warmup_iterations, note="PPOTrainer counts iterations")],
    "optim.max_grad_norm": [No("PPOTrainer does not clip gradients")],
}

_ONLINE: Table = {
    **_COMMON,
    "data.template": [To("chat_template_kwargs", lambda f: f.config.data.template or None)],
    "data.shuffle": [To("shuffle_dataset")],
    "rollout.batch_size": [
        To("per_device_train_batch_size", r.minibatch, note="on one device"),
        To("gradient_accumulation_steps", lambda f: 1),
    ],
    "rollout.samples_per_prompt": [To("num_generations")],
    "rollout.max_new_tokens": [To("max_completion_length")],
    "rollout.temperature": [To("temperature")],
    "rollout.top_p": [To("top_p")],
    "rollout.top_k": [To("top_k")],
    "rollout.stop": [No("TRL gives transformers no tokenizer to find texts by", [])],
    "rollout.ignore_stop": [No("TRL always ends at an end token", False)],
    "reward.sources": [
        To("reward_weights", lambda f: [1.0], when=_is_known, note="a function must give one score per response"),
        No("it takes one reward model or function of weight 1: put yours into train.py", when=_is_unknown),
    ],
    "reward.missing_stop_penalty": [No("TRL has none", 0.0)],
    "ppo.iterations": [To("max_steps", r.steps)],
    "ppo.estimator": [Elsewhere("the trainer's class says it")],
    "ppo.epochs": [To("num_iterations")],
    "ppo.minibatches": [To("steps_per_generation")],
    "ppo.kl_coef": [To("beta")],
    "ppo.clip": [To("epsilon")],
    "ppo.clip_high": [To("epsilon_high", lambda f: f.config.ppo.clip_high or None)],
    "ppo.relative_value_clip": [Elsewhere("the estimator has no critic")],
    "ppo.value_coef": [Elsewhere("the estimator has no critic")],
    "ppo.gamma": [No("the whole response is one action", 1.0)],
    "ppo.lam": [Elsewhere("the estimator has no critic")],
    "ppo.whiten_rewards": [No("TRL has none", False)],
    "optim.value_lr": [Elsewhere("the estimator has no critic")],
    "optim.schedule": [
        To("lr_scheduler_type", choices={"constant": "constant_with_warmup", "linear": "linear", "cosine": "cosine"})
    ],
    "optim.warmup_steps": [To("warmup_steps")],
    "optim.max_grad_norm": [To("max_grad_norm")],
}

GRPO: Table = {
    **_ONLINE,
    "ppo.group_std": [To("scale_rewards", choices={True: "group", False: "none"})],
    "ppo.kl_estimator": [No("GRPOTrainer's is k3", "k3")],
    "ppo.kl_in": [No("GRPOTrainer's penalty is in the loss", "loss")],
    "ppo.dual_clip": [To("delta", lambda f: f.config.ppo.dual_clip or None)],
    "ppo.loss_aggregation": [To("loss_type", choices={"token": "dapo", "sequence": "grpo", "constant": "dr_grpo"})],
    "ppo.entropy_coef": [To("entropy_coef")],
    "ppo.whiten_advantages": [No("GRPOTrainer does not normalise over the batch", False)],
}

RLOO: Table = {
    **_ONLINE,
    "reward.clip": [
        To(
            "reward_clip_range",
            lambda f: [-f.config.reward.clip, f.config.reward.clip],
            when=lambda f: f.config.reward.clip > 0,
        )
    ],
    "ppo.group_std": [Elsewhere("it is of grpo")],
    "ppo.kl_estimator": [No("RLOOTrainer's is k1", "k1")],
    "ppo.kl_in": [No("RLOOTrainer's penalty is in the reward", "reward")],
    "ppo.dual_clip": [No("RLOOTrainer has none", 0.0)],
    "ppo.loss_aggregation": [No("RLOOTrainer's ratio is of the whole response", ...)],
    "ppo.entropy_coef": [No("RLOOTrainer has no entropy bonus", 0.0)],
    "ppo.whiten_advantages": [To("normalize_advantages")],
}
TABLES = {"PPOConfig": PPO, "GRPOConfig": GRPO, "RLOOConfig": RLOO}


def table(facts: Facts) -> Table | None:
    """Return the table for the run's estimator; None if TRL has no trainer for it."""
    name = CONFIGS.get(facts.config.ppo.estimator)
    return TABLES[name] if name else None
