"""Train `trl.experimental.ppo.PPOTrainer` on a workload of bench_iteration.py: TRL's side of the comparison.

Runs in TRL's own environment (requirements-trl.txt) and imports nothing of ours. Prints one JSON event per line: `run`
with the versions in use, then an `iteration` with the seconds of its phases as soon as each iteration ends.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import peft
import torch
import transformers
import trl
from side import PhaseClock, event_output
from torch.utils.data import DataLoader
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    Trainer,
    TrainerCallback,
)
from trl.experimental.ppo import PPOConfig, PPOTrainer
from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer

Workload = dict[str, Any]


class StepClock(TrainerCallback):
    """Callback that times the phases of a trainer from outside, because TRL reports none."""

    def __init__(self, clock: PhaseClock, steps: int = 1) -> None:
        self.clock = clock
        self.steps = steps  # optimiser steps, as the trainer counts them, of an iteration

    def watch(self, trainer: Trainer, policy: Any) -> None:
        """Make two calls end a phase.

        The policy's `generate` ends "generate"; the first forward pass with a gradient after it ends "score".
        """
        generate = policy.generate

        def timed_generate(*args: Any, **kwargs: Any) -> Any:
            output = generate(*args, **kwargs)
            sequences = output if isinstance(output, torch.Tensor) else output.sequences
            self.clock.end_generation(sequences.numel() - kwargs["input_ids"].numel())
            return output

        policy.generate = timed_generate

        def end_scoring(*_: Any) -> None:
            if torch.is_grad_enabled() and "score" not in self.clock.seconds:
                self.clock.end("score")

        trainer.model.register_forward_pre_hook(end_scoring)

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Start the clock of the first iteration."""
        self.clock.start()

    def on_step_end(self, _: Any, state: Any, *__: Any, **___: Any) -> None:
        """End the iteration with its last step."""
        if state.global_step % self.steps == 0:
            self.clock.end_iteration()


def common_settings(workload: Workload) -> dict[str, Any]:
    """Return the settings of every trainer: those of the workload, and off what costs time and is not asked for."""
    return {
        "learning_rate": workload["learning_rate"],
        "lr_scheduler_type": "constant",
        "seed": workload["seed"],
        "temperature": workload["temperature"],
        "per_device_train_batch_size": workload["batch_size"],
        "gradient_accumulation_steps": 1,
        "gradient_checkpointing": False,
        "bf16": False,  # float32, like ours: half precision is slower on a CPU
        "use_cpu": True,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
    }


def lora_config(workload: Workload) -> peft.LoraConfig:
    """Return the policy's adapter: rank, scale and layers of the workload."""
    return peft.LoraConfig(
        r=workload["lora_rank"],
        lora_alpha=workload["lora_scale"] * workload["lora_rank"],
        target_modules=workload["lora_targets"],
        task_type="CAUSAL_LM",
    )


class TextReward(torch.nn.Module):
    """Reward model for PPOTrainer that scores the text of a response with a function."""

    base_model_prefix = "backbone"

    def __init__(self, tokenizer: Any, score_text: Callable[[str], float], response_length: int) -> None:
        super().__init__()
        self.tokenizer = tokenizer
        self.score_text = score_text
        self.response_length = response_length

    def backbone(self, input_ids: torch.Tensor, **_: Any) -> SimpleNamespace:
        """Return the token ids [B, T] as hidden states, which TRL passes to `score`."""
        return SimpleNamespace(hidden_states=(input_ids,))

    def score(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Return each response's score at every position, [B, T, 1], for token ids [B, T]."""
        texts = self.tokenizer.batch_decode(input_ids[:, -self.response_length :], skip_special_tokens=True)
        scores = torch.tensor([self.score_text(text) for text in texts], device=input_ids.device)
        return scores[:, None, None].expand(*input_ids.shape, 1)


def scalar_model(path: str) -> Any:
    """Return the policy's weights with a scalar head, as TRL needs for a value or reward model."""
    return AutoModelForSequenceClassification.from_pretrained(path, num_labels=1, dtype=torch.float32)


def build_trainer(workload: Workload, clock: PhaseClock, output_dir: str, *, reward_model: bool) -> PPOTrainer:
    """Return a PPOTrainer on the workload; its prompts keep the order of the file, one batch per iteration."""
    path, lora = workload["model"], lora_config(workload)
    tokenizer = AutoTokenizer.from_pretrained(path, padding_side="left")
    tokenizer.pad_token = tokenizer.bos_token or tokenizer.eos_token  # TRL cuts a response at its first padding token
    vader = SentimentIntensityAnalyzer()
    text_reward = TextReward(
        tokenizer, lambda text: vader.polarity_scores(text)["compound"], workload["max_new_tokens"]
    )
    value_model = scalar_model(path)
    prompts = [{"input_ids": tokenizer(prompt)["input_ids"]} for prompt in workload["prompts"]]
    steps = StepClock(clock)
    trainer = PPOTrainer(
        args=PPOConfig(
            **common_settings(workload),
            output_dir=output_dir,
            num_mini_batches=workload["minibatches"],
            num_ppo_epochs=workload["epochs"],
            total_episodes=len(prompts),
            response_length=workload["max_new_tokens"],
            stop_token=None,
            kl_coef=workload["kl_coef"],
            num_sample_generations=0,
        ),
        processing_class=tokenizer,
        model=AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32),
        ref_model=None,  # with an adapter: the policy with the adapter off
        reward_model=scalar_model(path) if reward_model else text_reward,
        value_model=value_model,
        train_dataset=prompts,
        eval_dataset=prompts,
        peft_config=lora,
        callbacks=[steps],
    )
    # TRL's own loader shuffles
    trainer.dataloader = DataLoader(prompts, workload["batch_size"], collate_fn=trainer.data_collator)
    steps.watch(trainer, trainer.policy_model)
    return trainer


def main() -> None:
    """Train one iteration for each batch of prompts in the workload."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload", type=Path, help="workload file written by bench_iteration.py")
    parser.add_argument("--reward-model", action="store_true", help="score with a model of the policy's size")
    options = parser.parse_args()
    workload = json.loads(options.workload.read_text(encoding="utf-8"))
    with event_output() as emit, tempfile.TemporaryDirectory() as output_dir:
        trainer = build_trainer(workload, PhaseClock(emit), output_dir, reward_model=options.reward_model)
        versions = {module.__name__: module.__version__ for module in (trl, torch, transformers, peft)}
        emit({"event": "run", "versions": versions})
        trainer.train()


if __name__ == "__main__":
    main()
