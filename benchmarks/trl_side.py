"""Parts of TRL's side that trl_ppo.py and trl_grpo.py share: settings, adapter, clock and events.

Runs in TRL's own environment (requirements-trl.txt) and imports nothing of ours.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

import peft
import torch
import transformers
import trl
from side import PhaseClock, event_output
from transformers import Trainer, TrainerCallback

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


def train(build_trainer: Callable[[PhaseClock, str], Trainer]) -> None:
    """Train what `build_trainer` returns for a clock and an output folder, and print its events."""
    with event_output() as emit, tempfile.TemporaryDirectory() as output_dir:
        trainer = build_trainer(PhaseClock(emit), output_dir)
        versions = {module.__name__: module.__version__ for module in (trl, torch, transformers, peft)}
        emit({"event": "run", "versions": versions})
        trainer.train()
