"""Write the references of tests/trainer/ppo/test_trl_ppo.py: what TRL's trainers compute on fixed rollouts.

Runs in TRL's own environment (requirements-trl.txt) and imports nothing of the trainer. None of TRL's formulas is
rewritten here: `PPOTrainer.train` itself runs, with its generation replaced by tokens from a fixed seed, and
trl_recorder.py reads its local variables. Writes one file of arrays per case, the model, and cases.json with settings
and versions. Parameters have mlx-lm's names. grpo.json has the losses of `GRPOTrainer._compute_loss` on fixed
log-probs, and their gradients.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"  # read when trl.experimental is imported
os.environ["HF_HUB_OFFLINE"] = "1"  # the model is built here; nothing needs a download

import numpy as np
import peft
import torch
import transformers
import trl
from tokenizers import Tokenizer, models
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification, PreTrainedTokenizerFast
from trl import GRPOTrainer
from trl.experimental.ppo import PPOConfig, PPOTrainer, ppo_trainer
from trl_recorder import Arrays, Recorder, copied, parameters_of

FOLDER = Path(__file__).resolve().parent.parent / "tests" / "trl_parity"
TRL_VERSION = "1.12.0"
PAD, STOP, VOCABULARY = 0, 1, 32
PROMPT_LENGTHS = [3, 2, 4, 3, 2, 5, 3, 4]
RESPONSE_LENGTHS = [7, 3, 1, 7, 5, 2, 6, 7]  # including the stop
CUT = [0, 7]  # rows without a stop; row 3 has it at the last position
WIDTH = max(RESPONSE_LENGTHS)
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
}
LORA = {"rank": 2, "scale": 2.0, "targets": ["q_proj", "v_proj"]}
SETTINGS: dict[str, Any] = {
    "kl_coef": 0.1,
    "kl_estimator": "k1",
    "gamma": 1.0,
    "lam": 0.95,
    "cliprange": 0.2,
    "cliprange_value": 0.2,
    "vf_coef": 0.3,
    "temperature": 1.0,
    "whiten_rewards": False,
    "missing_eos_penalty": None,
    "num_ppo_epochs": 1,
    "num_mini_batches": 1,
    "gradient_accumulation_steps": 1,
    "learning_rate": 0.01,
    "adam_epsilon": 1e-4,  # if it is smaller, a step follows a gradient's sign even where that is rounding noise
}
# `drift`: noise on the rollout's logits and values, as if another policy and critic had produced it.
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "k3": {"kl_estimator": "k3", "temperature": 0.7, "gamma": 0.99, "lam": 0.9, "missing_eos_penalty": 0.5},
    "monte_carlo": {"lam": 1.0},
    "whitened_rewards": {"whiten_rewards": True},
    "clipped": {"drift": 0.4},
    "minibatches": {"num_mini_batches": 2, "num_ppo_epochs": 2},
    "accumulated": {"drift": 0.4, "gradient_accumulation_steps": 2},
    "accumulated_minibatches": {"num_mini_batches": 2, "gradient_accumulation_steps": 2},
    "pad_is_stop": {"pad_is_stop": True},
}
GRPO: dict[str, dict[str, Any]] = {  # settings of GRPOConfig
    "grpo": {"loss_type": "grpo", "beta": 0.1},
    "dapo": {"loss_type": "dapo", "epsilon_high": 0.28, "delta": 1.5},
    "dr_grpo": {"loss_type": "dr_grpo", "beta": 0.1},
    "gspo": {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 0.05, "epsilon_high": 0.1},
    "gspo_dapo": {"loss_type": "dapo", "importance_sampling_level": "sequence", "epsilon": 0.05, "beta": 0.1},
    "cispo": {"loss_type": "cispo", "epsilon_high": 1.3},
}
METRICS = (
    "objective/kl", "objective/entropy", "objective/scores", "objective/rlhf_reward", "policy/entropy_avg",
    "loss/policy_avg",
)  # fmt: skip


class FixedScores(torch.nn.Module):
    """Reward model for PPOTrainer that returns fixed scores [B]."""

    base_model_prefix = "backbone"

    def __init__(self, scores: torch.Tensor) -> None:
        super().__init__()
        self.scores = scores

    def backbone(self, input_ids: torch.Tensor, **_: Any) -> SimpleNamespace:
        """Return the token ids [B, L] as hidden states, which TRL passes to `score`."""
        return SimpleNamespace(hidden_states=(input_ids,))

    def score(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Return each row's score at every position, [B, L, 1], for token ids [B, L]."""
        return self.scores[:, None, None].expand(*input_ids.shape, 1)


def fill(model: torch.nn.Module, draws: np.random.Generator, scale: float, names: str = "") -> None:
    """Fill the parameters whose names contain `names` with normal noise of deviation `scale`; norms stay near 1."""
    for name, parameter in sorted(model.named_parameters()):
        if names in name:
            noise = torch.tensor(draws.normal(0, scale, tuple(parameter.shape)), dtype=torch.float32)
            parameter.data = 1 + 0.1 * noise if "norm" in name else noise


def rollout_tokens() -> tuple[list[list[int]], torch.Tensor]:
    """Return prompts, and responses [B, T]; after a stop, even rows have padding and odd ones more tokens."""
    draws = np.random.default_rng(1)
    prompts = [draws.integers(STOP + 1, VOCABULARY, length).tolist() for length in PROMPT_LENGTHS]
    responses = draws.integers(STOP + 1, VOCABULARY, (len(prompts), WIDTH))
    for row, length in enumerate(RESPONSE_LENGTHS):
        if row not in CUT:
            responses[row, length - 1] = STOP
            if row % 2 == 0:
                responses[row, length:] = PAD
    return prompts, torch.tensor(responses)


def build_trainer(settings: dict[str, Any], output_dir: str) -> tuple[PPOTrainer, Arrays]:
    """Return a PPOTrainer on a tiny llama with a fixed rollout, and the arrays of that rollout."""
    settings = dict(settings)
    drift, pad_is_stop = settings.pop("drift", 0.0), settings.pop("pad_is_stop", False)
    words = {f"w{i}": i for i in range(VOCABULARY)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="w2")),
        pad_token=f"w{STOP if pad_is_stop else PAD}",
        eos_token=f"w{STOP}",
        padding_side="left",
    )
    prompts, responses = rollout_tokens()
    if pad_is_stop:
        responses[responses == PAD] = STOP
    draws = np.random.default_rng(2)
    policy = LlamaForCausalLM(LlamaConfig(**SHAPE))
    fill(policy, draws, 0.3)
    critic = LlamaForSequenceClassification(LlamaConfig(**SHAPE, num_labels=1, pad_token_id=PAD))
    critic.model.load_state_dict(policy.model.state_dict())
    critic.score = torch.nn.Linear(SHAPE["hidden_size"], 1)  # with a bias, like our head
    lora = peft.LoraConfig(
        r=LORA["rank"], lora_alpha=LORA["scale"] * LORA["rank"], target_modules=LORA["targets"], task_type="CAUSAL_LM"
    )
    critic = peft.inject_adapter_in_model(lora, critic)
    critic.score.requires_grad_(True)
    scores = torch.tensor(draws.normal(0, 1, len(prompts)), dtype=torch.float32)
    items = [{"input_ids": prompt} for prompt in prompts]
    trainer = PPOTrainer(
        args=PPOConfig(
            **settings,
            output_dir=output_dir,
            per_device_train_batch_size=len(prompts) // settings["gradient_accumulation_steps"],
            total_episodes=len(prompts),
            response_length=WIDTH,
            stop_token="eos",
            lr_scheduler_type="constant",
            num_sample_generations=0,
            gradient_checkpointing=False,
            bf16=False,
            use_cpu=True,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
        ),
        processing_class=tokenizer,
        model=policy,
        ref_model=None,  # with an adapter: the policy with the adapter off
        reward_model=FixedScores(scores),
        value_model=critic,
        train_dataset=items,
        eval_dataset=items,
        peft_config=lora,
    )
    fill(trainer.policy_model, draws, 0.2, "lora_")
    fill(trainer.value_model, draws, 0.2, "lora_")
    fill(trainer.value_model, draws, 0.3, "score")
    trainer.dataloader = DataLoader(items, len(prompts), collate_fn=trainer.data_collator)  # TRL's own loader shuffles
    fix_rollout(trainer, responses, drift)
    width = max(PROMPT_LENGTHS)
    return trainer, {
        "prompts": np.array([prompt + [PAD] * (width - len(prompt)) for prompt in prompts]),
        "prompt_lengths": np.array(PROMPT_LENGTHS),
        "responses": copied(responses),
        "response_lengths": np.array(RESPONSE_LENGTHS),
        "truncated": np.array([row in CUT for row in range(len(prompts))]),
        "reward_scores": copied(scores),
    }


def fix_rollout(trainer: PPOTrainer, responses: torch.Tensor, drift: float) -> None:
    """Replace generation: `generate` returns `responses` and the policy's logits for them.

    Noise of deviation `drift` is added to the logits, and to the values that the critic gives the rollout.
    """
    pad, temperature = trainer.processing_class.pad_token_id, trainer.args.temperature
    noise = torch.Generator().manual_seed(3)
    get_reward = ppo_trainer.get_reward

    def generate(input_ids: torch.Tensor, attention_mask: torch.Tensor, **_: Any) -> SimpleNamespace:
        queries = input_ids.masked_fill(~attention_mask, pad)
        output = ppo_trainer.forward(trainer.policy_model, torch.cat((queries, responses), 1), pad)
        logits = output.logits[:, queries.shape[1] - 1 : -1] / (temperature + 1e-7)  # as in generate's own warper
        logits = logits + drift * torch.randn(logits.shape, generator=noise)
        return SimpleNamespace(sequences=torch.cat((input_ids, responses), 1), scores=tuple(logits.unbind(1)))

    def rollout_reward(model: torch.nn.Module, *args: Any) -> tuple[torch.Tensor, ...]:
        scores, *rest = get_reward(model, *args)
        if model is trainer.value_model:
            scores = scores + drift * torch.randn(scores.shape, generator=noise)
        return scores, *rest

    trainer.policy_model.generate = generate
    ppo_trainer.get_reward = rollout_reward


def reference(settings: dict[str, Any], output_dir: str) -> tuple[Arrays, Arrays, dict[str, float]]:
    """Run one iteration of PPOTrainer; return the case's arrays, the model's arrays before it, and TRL's metrics."""
    get_reward = ppo_trainer.get_reward
    try:
        trainer, inputs = build_trainer(settings, output_dir)
        model = {
            name.removeprefix("base_model.model.").replace(".base_layer", ""): copied(array)
            for name, array in trainer.policy_model.state_dict().items()
            if "lora_" not in name and "lm_head" not in name  # the same array as the embedding
        }
        for part, arrays in parameters_of(trainer, lambda parameter: parameter).items():
            model |= {f"{part}.{name}": array for name, array in arrays.items()}
        recorder = Recorder(trainer)
        np.random.seed(0)  # noqa: NPY002  # TRL shuffles its minibatches with it
        with recorder.watching():
            trainer.train()
    finally:
        ppo_trainer.get_reward = get_reward
    return inputs | recorder.arrays(), model, {name: recorder.metrics[name] for name in METRICS}


def grpo_losses() -> dict[str, Any]:
    """Return fixed log-probs and advantages, and for each case the loss of GRPOTrainer and its gradient by log-prob.

    The trainer itself needs a model and a data set for that, so its method gets an object with what it reads.
    """
    draws, lengths = np.random.default_rng(4), RESPONSE_LENGTHS[:6]
    shape = len(lengths), WIDTH
    arrays = {name: draws.normal(-2, 0.7, shape) for name in ("old", "reference")}
    arrays["logprobs"] = arrays["old"] + draws.normal(0, 0.3, shape)
    advantages = draws.normal(0, 1, len(lengths))
    mask = np.arange(WIDTH)[None] < np.array(lengths)[:, None]
    page: dict[str, Any] = {name: array.tolist() for name, array in arrays.items()}
    page |= {"advantages": advantages.tolist(), "lengths": lengths, "max_tokens": WIDTH, "cases": {}}
    plain = {"epsilon": 0.2, "epsilon_high": None, "delta": None, "beta": 0.0, "importance_sampling_level": "token"}
    for name, changes in GRPO.items():
        settings = plain | changes
        high = settings["epsilon_high"] or settings["epsilon"]
        logprobs = torch.tensor(arrays["logprobs"], requires_grad=True)
        accelerator = SimpleNamespace(num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x)
        trainer: Any = SimpleNamespace(
            **{key: settings[key] for key in ("loss_type", "beta", "importance_sampling_level")},
            args=SimpleNamespace(delta=settings["delta"], use_bias_correction_kl=False, steps_per_generation=1),
            epsilon_low=settings["epsilon"],
            epsilon_high=high,
            max_completion_length=WIDTH,
            current_gradient_accumulation_steps=1,
            model=SimpleNamespace(training=True),
            accelerator=accelerator,
            aux_loss_enabled=False,
            off_policy_mask_threshold=None,
            top_entropy_quantile=1.0,
            use_vllm=False,
            _entropy_bonus_enabled=False,
            _metrics={"train": defaultdict(list)},
            _get_per_token_logps_and_entropies=lambda *_, x=logprobs, **__: (x, torch.zeros(shape), None),
        )
        inputs = {
            "prompt_ids": torch.zeros(len(lengths), 1, dtype=torch.long),
            "prompt_mask": torch.ones(len(lengths), 1, dtype=torch.long),
            "completion_ids": torch.zeros(shape, dtype=torch.long),
            "completion_mask": torch.tensor(mask, dtype=torch.long),
            "advantages": torch.tensor(advantages),
            "old_per_token_logps": torch.tensor(arrays["old"]),
            "ref_per_token_logps": torch.tensor(arrays["reference"]),
            "num_items_in_batch": torch.tensor(float(mask.sum())),
        }
        loss = GRPOTrainer._compute_loss(trainer, trainer.model, inputs)
        loss.backward()
        page["cases"][name] = settings | {"loss": loss.item(), "gradient": logprobs.grad.tolist()}
    return page


def main() -> None:
    """Write every case. Exits if another version of TRL is installed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=FOLDER, help="folder for the references (default: %(default)s)")
    options = parser.parse_args()
    if trl.__version__ != TRL_VERSION:
        sys.exit(
            f"trl {trl.__version__} is installed, but the references need {TRL_VERSION}: install requirements-trl.txt"
        )
    options.output.mkdir(parents=True, exist_ok=True)
    cases = {}
    for name, changes in CASES.items():
        with contextlib.redirect_stdout(sys.stderr), tempfile.TemporaryDirectory() as output_dir:
            arrays, model, metrics = reference(SETTINGS | changes, output_dir)
        np.savez_compressed(options.output / f"{name}.npz", **arrays)
        np.savez_compressed(options.output / "model.npz", **model)  # the same in every case
        cases[name] = SETTINGS | changes | {"metrics": metrics}
    versions = {module.__name__: module.__version__ for module in (trl, torch, transformers, peft)}
    page = {"versions": versions, "model": {"model_type": "llama", **SHAPE}, "lora": LORA, "cases": cases}
    (options.output / "cases.json").write_text(json.dumps(page, indent=1) + "\n", encoding="utf-8")
    (options.output / "grpo.json").write_text(json.dumps(grpo_losses()) + "\n", encoding="utf-8")
    print(f"{len(cases)} cases written to {options.output}")


if __name__ == "__main__":
    main()
