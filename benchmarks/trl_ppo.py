"""Train `trl.experimental.ppo.PPOTrainer` on a workload of bench_iteration.py: TRL's side of the comparison.

Runs in TRL's own environment (requirements-trl.txt) and imports nothing of ours. Prints one JSON event per line: `run`
with the versions in use, then an `iteration` with the seconds of its phases as soon as each iteration ends.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"  # read when trl.experimental is imported
os.environ["HF_HUB_OFFLINE"] = "1"  # the model is a folder; nothing needs a download

import peft
import torch
import transformers
import trl
from torch.utils.data import DataLoader
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    TrainerCallback,
)
from trl.experimental.ppo import PPOConfig, PPOTrainer
from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer

Emit = Callable[[dict[str, Any]], None]


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


class PhaseClock(TrainerCallback):
    """Callback that times the phases of an iteration from outside, because PPOTrainer reports none."""

    def __init__(self, emit: Emit) -> None:
        self.emit = emit
        self.seconds: dict[str, float] = {}
        self.mark = 0.0
        self.tokens = 0  # generated so far

    def watch(self, trainer: PPOTrainer) -> None:
        """Make two calls of `trainer` end a phase.

        The policy's `generate` ends "generate"; the first training forward pass after it ends "score".
        """
        policy = trainer.policy_model
        generate = policy.generate

        def timed_generate(*args: Any, **kwargs: Any) -> Any:
            output = generate(*args, **kwargs)
            self.end("generate")
            self.tokens += output.sequences.numel() - kwargs["input_ids"].numel()
            return output

        policy.generate = timed_generate

        def end_scoring(*_: Any) -> None:
            if "score" not in self.seconds:
                self.end("score")

        trainer.model.register_forward_pre_hook(end_scoring)

    def end(self, phase: str) -> None:
        """Record the seconds since the last phase ended as those of `phase`."""
        now = time.perf_counter()
        self.seconds[phase] = now - self.mark
        self.mark = now

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Start the clock of the first iteration."""
        self.mark = time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Emit the iteration; the update ends with it."""
        self.end("update")
        self.emit({"event": "iteration", "seconds": self.seconds, "tokens": self.tokens})
        self.seconds = {}


def lora_config(workload: dict[str, Any]) -> peft.LoraConfig:
    """Return the policy's adapter: rank, scale and layers of the workload."""
    return peft.LoraConfig(
        r=workload["lora_rank"],
        lora_alpha=workload["lora_scale"] * workload["lora_rank"],
        target_modules=workload["lora_targets"],
        task_type="CAUSAL_LM",
    )


def scalar_model(path: str) -> Any:
    """Return the policy's weights with a scalar head, as TRL needs for a value or reward model."""
    return AutoModelForSequenceClassification.from_pretrained(path, num_labels=1, dtype=torch.float32)


def with_lora(value_model: Any, config: peft.LoraConfig) -> Any:
    """Freeze the value model except its head and a new adapter, injected in place: TRL accepts no wrapped model."""
    value_model = peft.inject_adapter_in_model(config, value_model)
    value_model.score.weight.requires_grad_(True)
    return value_model


def build_trainer(
    workload: dict[str, Any], *, reward_model: bool, value_lora: bool, output_dir: str, clock: PhaseClock
) -> PPOTrainer:
    """Return a PPOTrainer on the workload; its prompts keep the order of the file, one batch per iteration."""
    path, batch_size = workload["model"], workload["batch_size"]
    tokenizer = AutoTokenizer.from_pretrained(path, padding_side="left")
    tokenizer.pad_token = tokenizer.bos_token or tokenizer.eos_token  # TRL cuts a response at its first padding token
    vader = SentimentIntensityAnalyzer()
    text_reward = TextReward(
        tokenizer, lambda text: vader.polarity_scores(text)["compound"], workload["max_new_tokens"]
    )
    value_model = scalar_model(path)
    prompts = [{"input_ids": tokenizer(prompt)["input_ids"]} for prompt in workload["prompts"]]
    trainer = PPOTrainer(
        args=PPOConfig(
            output_dir=output_dir,
            per_device_train_batch_size=batch_size,
            gradient_accumulation_steps=1,
            num_mini_batches=workload["minibatches"],
            num_ppo_epochs=workload["epochs"],
            total_episodes=len(prompts),
            response_length=workload["max_new_tokens"],
            stop_token=None,
            temperature=workload["temperature"],
            learning_rate=workload["learning_rate"],
            lr_scheduler_type="constant",
            kl_coef=workload["kl_coef"],
            seed=workload["seed"],
            num_sample_generations=0,
            gradient_checkpointing=False,
            bf16=False,  # float32, like ours: half precision is slower on a CPU
            use_cpu=True,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
        ),
        processing_class=tokenizer,
        model=AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32),
        ref_model=None,  # with an adapter: the policy with the adapter off
        reward_model=scalar_model(path) if reward_model else text_reward,
        value_model=with_lora(value_model, lora_config(workload)) if value_lora else value_model,
        train_dataset=prompts,
        eval_dataset=prompts,
        peft_config=lora_config(workload),
        callbacks=[clock],
    )
    trainer.dataloader = DataLoader(prompts, batch_size, collate_fn=trainer.data_collator)  # TRL's own loader shuffles
    clock.watch(trainer)
    return trainer


def main() -> None:
    """Train one iteration for each batch of prompts in the workload."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload", type=Path, help="workload file written by bench_iteration.py")
    parser.add_argument("--reward-model", action="store_true", help="score with a model of the policy's size")
    parser.add_argument("--value-lora", action="store_true", help="train only an adapter and head of the value model")
    options = parser.parse_args()
    workload = json.loads(options.workload.read_text(encoding="utf-8"))
    events = sys.stdout

    def emit(event: dict[str, Any]) -> None:
        print(json.dumps(event), file=events, flush=True)

    with contextlib.redirect_stdout(sys.stderr), tempfile.TemporaryDirectory() as output_dir:
        trainer = build_trainer(
            workload,
            reward_model=options.reward_model,
            value_lora=options.value_lora,
            output_dir=output_dir,
            clock=PhaseClock(emit),
        )
        versions = {m.__name__: m.__version__ for m in (trl, torch, transformers, peft)}
        emit({"event": "run", "versions": versions})
        trainer.train()


if __name__ == "__main__":
    main()
