"""Recorder of what `PPOTrainer.train` of TRL 1.12.0 computes: reads its local variables while it runs unchanged."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from trl.experimental.ppo import PPOTrainer, ppo_trainer

Array = npt.NDArray[Any]
Arrays = dict[str, Array]

OF_ROLLOUT = (  # local variables of `train` once the advantages are whitened
    "scores", "logprobs", "ref_logprobs", "values", "padding_mask", "padding_mask_p1", "kl", "rewards", "advantages",
    "returns",
)  # fmt: skip


class Recorder:
    """Recorder of the variables of `PPOTrainer.train`. It wraps functions that `train` calls, which still do the same.

    rollout: arrays of the B sequences of a rollout; micro_batches: arrays of each forward and backward pass of the
    update; optimizer_steps: arrays of each optimiser step.
    """

    def __init__(self, trainer: PPOTrainer) -> None:
        self.trainer = trainer
        self.rollout: Arrays = {}
        self.micro_batches: list[Arrays] = []
        self.optimizer_steps: list[Arrays] = []
        self.metrics: dict[str, float] = {}
        self._whitened: list[Array] = []

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Wrap the functions inside the block. The trainer cannot be used afterwards."""
        trainer, accelerator = self.trainer, self.trainer.accelerator
        whiten, empty_cache = ppo_trainer.masked_whiten, ppo_trainer.empty_cache
        backward, accumulate, step = accelerator.backward, accelerator.accumulate, trainer.optimizer.step

        def recorded_whiten(values: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
            self._whitened.append(copied(values))
            return whiten(values, *args, **kwargs)

        def recorded_rollout() -> None:
            found = sys._getframe(1)
            if not self.rollout and found.f_code is PPOTrainer.train.__code__ and "advantages" in found.f_locals:
                self.rollout = {name: copied(found.f_locals[name]) for name in OF_ROLLOUT}
                self.rollout["raw_advantages"] = self._whitened[-1]
                if trainer.args.whiten_rewards:
                    self.rollout["raw_rewards"] = self._whitened[0]

        def recorded_backward(loss: torch.Tensor) -> None:
            found = variables(sys._getframe(1))
            found["new_logprobs"].retain_grad()
            found["vpred"].retain_grad()
            backward(loss)

        def recorded_step() -> None:
            if accelerator.sync_gradients:  # otherwise gradients are still accumulating and no step is taken
                before = parameters_of(trainer, lambda parameter: parameter.grad)
                step()
                after = parameters_of(trainer, lambda parameter: parameter)
                gradients = {f"{part}_gradients": flat(arrays) for part, arrays in before.items()}
                self.optimizer_steps.append(gradients | {f"{part}_after": flat(after[part]) for part in after})

        ppo_trainer.masked_whiten = recorded_whiten
        ppo_trainer.empty_cache = recorded_rollout  # it does nothing on a CPU anyway
        accelerator.backward = recorded_backward
        accelerator.accumulate = lambda model: RecordedAccumulation(accumulate(model), self.micro_batches)
        trainer.optimizer.step = recorded_step
        trainer.log = self.metrics.update
        try:
            yield
        finally:
            ppo_trainer.masked_whiten, ppo_trainer.empty_cache = whiten, empty_cache

    def arrays(self) -> Arrays:
        """Return all recorded arrays; those of micro-batches and of steps are stacked along a new first axis."""
        found = dict(self.rollout)
        for parts in (self.micro_batches, self.optimizer_steps):
            found |= {name: np.stack([part[name] for part in parts]) for name in parts[0]}
        return found


class RecordedAccumulation:
    """Context of `accelerator.accumulate(model)` that records a micro-batch's variables at its end."""

    def __init__(self, accumulation: Any, micro_batches: list[Arrays]) -> None:
        self.accumulation = accumulation
        self.micro_batches = micro_batches

    def __enter__(self) -> None:
        self.accumulation.__enter__()

    def __exit__(self, *error: Any) -> None:
        if error[0] is None:
            found = variables(sys._getframe(1))
            read = {name: found[name] for name in ("new_logprobs", "loss", "pg_loss", "vf_loss", "pg_clipfrac")}
            read |= {
                "rows": found["micro_batch_inds"],
                "new_values": found["vpred"],
                "entropies": found["entropy"],
                "ratios": found["ratio"],
                "approx_kl": found["approxkl"],
                "loss_by_logprob": found["new_logprobs"].grad,
                "loss_by_value": found["vpred"].grad,
            }
            self.micro_batches.append({name: copied(value) for name, value in read.items()})
        self.accumulation.__exit__(*error)


def variables(frame: FrameType) -> dict[str, Any]:
    """Return the local variables of `frame`, which must be the one of `PPOTrainer.train`."""
    assert frame.f_code is PPOTrainer.train.__code__, f"called by {frame.f_code.co_name}, not by PPOTrainer.train"
    return dict(frame.f_locals)


def copied(value: Any) -> Array:
    """Return a copy of a tensor or an array as a NumPy array."""
    return value.detach().numpy().copy() if isinstance(value, torch.Tensor) else np.array(value)


def flat(arrays: Arrays) -> Array:
    """Return all numbers in one vector, in the order of the names."""
    return np.concatenate([arrays[name].ravel() for name in sorted(arrays)])


def parameters_of(trainer: PPOTrainer, take: Callable[[torch.nn.Parameter], torch.Tensor]) -> dict[str, Arrays]:
    """Return what `take` returns for each trained parameter of "policy" and "value", with mlx-lm's layout and names."""
    found: dict[str, Arrays] = {"policy": {}, "value": {}}
    for part, model in (("policy", trainer.policy_model), ("value", trainer.value_model)):
        for name, parameter in model.named_parameters():
            if not parameter.requires_grad:
                continue
            array = copied(take(parameter))
            if name.startswith("score."):
                found[part][name.replace("score.", "head.")] = array.squeeze(0)
                continue
            name = name[name.index("model.layers.") :].replace(".default.weight", "")
            name = name.replace("lora_A", "lora_a").replace("lora_B", "lora_b")
            found[part][name if part == "policy" else f"adapter.{name}"] = array.T  # [inputs, rank], [rank, outputs]
    return found
