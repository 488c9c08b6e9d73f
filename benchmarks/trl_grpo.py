"""Train `trl.GRPOTrainer` on a workload of bench_grpo.py: TRL's side of the comparison.

Runs in TRL's own environment (requirements-trl.txt) and imports nothing of ours. Prints one JSON event per line: `run`
with the versions in use, then an `iteration` with the seconds of its phases as soon as each iteration ends.
"""

from __future__ import annotations

import argparse
import functools
import json
from pathlib import Path
from typing import Any

import torch
import trl_side
from datasets import Dataset
from side import PhaseClock
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase
from trl import GRPOConfig, GRPOTrainer
from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer


def tokenizer_without_stop(path: str) -> PreTrainedTokenizerBase:
    """Return the tokenizer with an end token that the model cannot write, so that every response has full length."""
    tokenizer = AutoTokenizer.from_pretrained(path, padding_side="left")
    tokenizer.pad_token = tokenizer.bos_token or tokenizer.eos_token
    tokenizer.add_special_tokens({"eos_token": "<|never|>"})  # its id lies beyond the logits
    return tokenizer


def build_trainer(workload: trl_side.Workload, clock: PhaseClock, output_dir: str) -> GRPOTrainer:
    """Return a GRPOTrainer on the workload; its prompts keep the order of the file, one batch per iteration."""
    vader = SentimentIntensityAnalyzer()

    def sentiment(completions: list[str], **_: Any) -> list[float]:
        return [vader.polarity_scores(text)["compound"] for text in completions]

    steps = trl_side.StepClock(clock, workload["epochs"])
    trainer = GRPOTrainer(
        args=GRPOConfig(
            **trl_side.common_settings(workload),
            output_dir=output_dir,
            num_train_epochs=1,
            num_generations=workload["samples_per_prompt"],
            steps_per_generation=1,
            num_iterations=workload["epochs"],
            max_completion_length=workload["max_new_tokens"],
            shuffle_dataset=False,
            beta=workload["kl_coef"],
            loss_type="grpo",
        ),
        processing_class=tokenizer_without_stop(workload["model"]),
        model=AutoModelForCausalLM.from_pretrained(workload["model"], dtype=torch.float32),
        reward_funcs=sentiment,
        train_dataset=Dataset.from_dict({"prompt": workload["prompts"]}),
        peft_config=trl_side.lora_config(workload),  # the reference is the policy with the adapter off
        callbacks=[steps],
    )
    steps.watch(trainer, trainer.model)
    return trainer


def main() -> None:
    """Train one iteration for each batch of prompts in the workload."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload", type=Path, help="workload file written by bench_grpo.py")
    workload = json.loads(parser.parse_args().workload.read_text(encoding="utf-8"))
    trl_side.train(functools.partial(build_trainer, workload))


if __name__ == "__main__":
    main()
