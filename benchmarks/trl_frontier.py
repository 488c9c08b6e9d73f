"""Train PPO, RLOO or GRPO of TRL on a task of frontier.py, and print score and KL of each iteration.

Runs in TRL's own environment (requirements-trl.txt) and imports nothing of ours. What the task does not say is as TRL
has it by default, but that the head of PPO's critic begins at zero, and that gradients are clipped and Adam has the
epsilon as on our side. Prints one JSON event per line: `run` with the versions in use, then an `iteration` each. The
adapters of PPO after each iteration are left in the folder of the workload.
"""

from __future__ import annotations

import argparse
import functools
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import torch
import transformers
import trl
from datasets import Dataset
from frontier_rewards import right_sum
from side import Emit, event_output
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase, Trainer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer
from trl.experimental.ppo import PPOConfig, PPOTrainer
from trl_ppo import TextReward, Workload, lora_config, scalar_model
from trl_ppo import common_settings as quiet_settings
from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer

PADDING = "<|endoftext|>"
"""In no prompt and no response: PPOTrainer masks this token wherever it is, and `<|im_start|>` is in each prompt."""


class Journal(TrainerCallback):
    """Callback that emits score and KL of an iteration from the trainer's own logs."""

    def __init__(self, emit: Emit, epochs: int, measured: Callable[[dict[str, float]], dict[str, float]]) -> None:
        self.emit = emit
        self.epochs = epochs  # steps, as the trainer counts them, of an iteration
        self.measured = measured
        self.first: dict[str, float] = {}  # the logs of an iteration's first step, by the policy that sampled
        self.started = time.perf_counter()
        self.iteration = 0

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any) -> None:
        """Emit the iteration at the log of its last step."""
        if logs is None or "train_runtime" in logs:
            return
        self.first = self.first or dict(logs)
        if state.global_step % self.epochs:
            return
        self.iteration += 1
        now = time.perf_counter()
        found = self.measured(self.first)
        self.emit({"event": "iteration", "iteration": self.iteration, **found, "seconds": now - self.started})
        self.first, self.started = {}, now


def common_settings(workload: Workload, output_dir: str, schedule: str) -> dict[str, Any]:
    """Return the settings of every trainer: those of the task, all on a CPU in float32, and without files."""
    own = {"output_dir": output_dir, "logging_steps": 1, "lr_scheduler_type": schedule}
    return quiet_settings(workload) | own


def tokenizer_of(workload: Workload) -> PreTrainedTokenizerBase:
    """Return the model's tokenizer, with a token for padding that is never written."""
    tokenizer = AutoTokenizer.from_pretrained(workload["model"], padding_side="left")
    tokenizer.pad_token = PADDING
    return tokenizer


def messages(prompt: str) -> list[dict[str, str]]:
    """Return a prompt as a conversation."""
    return [{"role": "user", "content": prompt}]


class PromptReward(TextReward):
    """Reward model for PPOTrainer that scores prompt and response together with a function of their texts."""

    def score(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Return each response's score at every position, [B, T, 1], for token ids [B, T]."""
        parts = input_ids[:, : -self.response_length], input_ids[:, -self.response_length :]
        prompts, responses = (self.tokenizer.batch_decode(part, skip_special_tokens=True) for part in parts)
        scores = torch.tensor([right_sum(*pair) for pair in zip(prompts, responses, strict=True)])
        return scores[:, None, None].expand(*input_ids.shape, 1)


def reward_of(workload: Workload, tokenizer: PreTrainedTokenizerBase) -> torch.nn.Module:
    """Return what scores the task: a function, or a sequence classifier in a folder."""
    reward, length = workload["reward"], workload["max_new_tokens"]
    if reward == "lexicon":
        vader = SentimentIntensityAnalyzer()
        return TextReward(tokenizer, lambda text: vader.polarity_scores(text)["compound"], length)
    if reward == "sums":
        return PromptReward(tokenizer, lambda text: 0.0, length)
    return scalar_model(reward)


def build_ppo(workload: Workload, emit: Emit, output_dir: str, schedule: str, adapters: Path) -> Trainer:
    """Return PPOTrainer with a value model of the policy's size, as in its examples; its adapters go to a folder."""
    tokenizer = tokenizer_of(workload)
    ids = [
        tokenizer.apply_chat_template(messages(prompt), add_generation_prompt=True, return_dict=False)
        for prompt in workload["prompts"]
    ]
    rows = [{"input_ids": row} for row in ids]

    def measured(logs: dict[str, float]) -> dict[str, float]:
        trainer.policy_model.save_pretrained(adapters / str(journal.iteration))
        return {"score": logs["objective/scores"], "kl": logs["objective/kl"]}

    value_model = scalar_model(workload["model"])
    torch.nn.init.zeros_(value_model.score.weight)
    journal = Journal(emit, 1, measured)
    trainer = PPOTrainer(
        args=PPOConfig(
            **common_settings(workload, output_dir, schedule),
            num_mini_batches=workload["minibatches"],
            num_ppo_epochs=workload["epochs"],
            total_episodes=len(rows),
            response_length=workload["max_new_tokens"],
            stop_token="eos",
            kl_coef=workload["kl_coef"],
            num_sample_generations=0,
            adam_epsilon=1e-5,
        ),
        processing_class=tokenizer,
        model=AutoModelForCausalLM.from_pretrained(workload["model"], dtype=torch.float32),
        ref_model=None,  # with an adapter: the policy with the adapter off
        reward_model=reward_of(workload, tokenizer),
        value_model=value_model,
        train_dataset=rows,
        eval_dataset=rows,
        peft_config=lora_config(workload),
        callbacks=[journal],
    )
    # TRL's own loader shuffles
    trainer.dataloader = DataLoader(rows, workload["batch_size"], collate_fn=trainer.data_collator)

    def clip(optimizer: Any, *_: Any) -> None:  # which PPOTrainer does not
        torch.nn.utils.clip_grad_norm_([x for group in optimizer.param_groups for x in group["params"]], 1.0)

    trainer.optimizer.optimizer.register_step_pre_hook(clip)
    return trainer


def build_grouped(method: str, workload: Workload, emit: Emit, output_dir: str, schedule: str) -> Trainer:
    """Return RLOOTrainer or GRPOTrainer. Their KL is a mean over tokens, so it is multiplied by the mean length."""
    vader = SentimentIntensityAnalyzer()

    def sentiment(completions: list[list[dict[str, str]]], **_: Any) -> list[float]:
        return [vader.polarity_scores(completion[0]["content"])["compound"] for completion in completions]

    def measured(logs: dict[str, float]) -> dict[str, float]:
        return {"score": logs["reward"], "kl": logs["kl"] * logs["completions/mean_length"]}

    config, trainer = (RLOOConfig, RLOOTrainer) if method == "rloo" else (GRPOConfig, GRPOTrainer)
    return trainer(
        args=config(
            **common_settings(workload, output_dir, schedule),
            num_train_epochs=1,
            num_generations=workload["samples_per_prompt"],
            steps_per_generation=1,
            num_iterations=workload["epochs"],
            max_completion_length=workload["max_new_tokens"],
            shuffle_dataset=False,
            beta=workload["kl_coef"],
        ),
        processing_class=tokenizer_of(workload),
        model=AutoModelForCausalLM.from_pretrained(workload["model"], dtype=torch.float32),
        reward_funcs=sentiment,
        train_dataset=Dataset.from_dict({"prompt": [messages(prompt) for prompt in workload["prompts"]]}),
        peft_config=lora_config(workload),
        callbacks=[Journal(emit, workload["epochs"], measured)],
    )


def main() -> None:
    """Train one iteration for each batch of prompts in the workload."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload", type=Path, help="workload file written by frontier.py")
    parser.add_argument("method", choices=("ppo", "rloo", "grpo"))
    parser.add_argument(
        "schedule", choices=("linear", "constant"), help="of the learning rate; linear: to 0, as by default"
    )
    options = parser.parse_args()
    workload = json.loads(options.workload.read_text(encoding="utf-8"))
    build: Callable[..., Trainer] = functools.partial(build_grouped, options.method)
    if options.method == "ppo":
        build = functools.partial(build_ppo, adapters=options.workload.parent / "adapters")
    with event_output() as emit, tempfile.TemporaryDirectory() as output_dir:
        trainer = build(workload, emit, output_dir, options.schedule)
        versions = {module.__name__: module.__version__ for module in (trl, torch, transformers, peft)}
        emit({"event": "run", "versions": versions})
        trainer.train()


if __name__ == "__main__":
    main()
