"""Events of reward model and DPO runs and of human judgements, for the tests of what shows them."""

from __future__ import annotations

from typing import Any

from scripted_run import started

from trainer.events import DPOEvaluation, DPOStep, HumanEvaluation, RewardModelEvaluation, RewardModelStep, RunStarted

STEP = {
    "comparisons": 16,
    "loss": 0.612,
    "accuracy": 0.625,
    "lead": 0.31,
    "grad_norm": 1.75,
    "skipped": False,
    "learning_rate": 9.5e-5,
    "tokens_per_second": 812.0,
    "seconds": 2.5,
    "memory_bytes": 1_640_000_000,
}
HELD_OUT = {
    "pairs": 200,
    "ties": 3,
    "accuracy": 0.71,
    "accuracy_low": 0.644,
    "accuracy_high": 0.769,
    "log_loss": 0.561,
    "calibration_error": 0.04,
    "length_accuracy": 0.55,
    "untrained_accuracy": 0.49,
    "seconds": 4.2,
}
IMPLICIT = {"chosen_reward": 0.21, "rejected_reward": -0.11, "chosen_logprob": -40.2, "rejected_logprob": -41.7}


def other_run(kind: str, **changes: Any) -> RunStarted:
    return started(name=f"{kind}-0001", folder=f"runs/{kind}-0001", run_kind=kind, **changes)


def reward_step(number: int, **changes: Any) -> RewardModelStep:
    return RewardModelStep(**{"iteration": number, "tokens": 3000 * number, **STEP, **changes})


def dpo_step(number: int, **changes: Any) -> DPOStep:
    return DPOStep(**{"iteration": number, "tokens": 3000 * number, **STEP, **IMPLICIT, **changes})


def reward_evaluation(number: int, **changes: Any) -> RewardModelEvaluation:
    return RewardModelEvaluation(**{"iteration": number, **HELD_OUT, **changes})


def dpo_evaluation(number: int, **changes: Any) -> DPOEvaluation:
    values = {"iteration": number, "loss": 0.6, "lead": 0.32, "kl": 0.0134}
    return DPOEvaluation(**{**values, **HELD_OUT, **IMPLICIT, **changes})


def human(number: int, **changes: Any) -> HumanEvaluation:
    values = {
        "comparisons": 80,
        "wins": 45,
        "ties": 8,
        "losses": 27,
        "win_rate": 0.6125,
        "low": 0.52,
        "high": 0.704,
        "labellers": 2,
    }
    return HumanEvaluation(**{"iteration": number, **values, **changes})
