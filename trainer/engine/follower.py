"""The other ranks of a PPO run: each does what the first one does, on its own share."""

from __future__ import annotations

from typing import Any

from trainer.config import Config, validate
from trainer.data import load_prompts
from trainer.distributed.ranks import Ranks
from trainer.engine.control import Control
from trainer.engine.policy import TrainedPolicy
from trainer.engine.prompts import run_prompts
from trainer.errors import UsageError
from trainer.evaluation.held_out import evaluate, reference_baseline
from trainer.fitting.memory_limit import free_memory, set_memory_limit
from trainer.models.backbone import load_backbone
from trainer.plurals import counted
from trainer.rewards import trust_all


def follow_ppo(ranks: Ranks, config: Config) -> None:
    """Train with the first rank, which has sent `config`, until it ends the run; write no files and print nothing.

    Raises TrainerError.
    """
    ranks.timeout = config.run.rank_timeout
    with ranks.all_or_none(ends=True):
        rows = load_prompts(config.data)
        limit = set_memory_limit(config.model)
        model = load_backbone(config.model)
    ranks.check_same(model.folder, [row[:3] for row in rows])
    ranks.gather(limit)  # of which the first one takes the smallest
    policy = TrainedPolicy(model, Control(), trust_all, ranks)  # it builds no Python rewards
    with ranks.all_or_none(ends=True):
        rewards = policy.build_rewards(config)
        prompts, held_out, _ = run_prompts(config, rows, model)
    if (said := ranks.hear())["do"] == "end":
        return
    policy.begin(validate(said["config"]), prompts, rewards, lambda event: None, new=False)
    held_out = held_out[: config.eval.prompts]
    baseline = reference_baseline(policy.ppo, held_out) if config.eval.reference else None

    def work(said: dict[str, Any]) -> None:
        _take(policy, said)
        number: int = said["number"]
        if said["do"] == "iteration":
            policy.ppo.iteration(number)
            policy.keep(number)
        else:
            evaluate(policy.ppo, held_out, number, baseline)

    ranks.follow(work, free_memory)


def check_shares(config: Config, ranks: Ranks) -> None:
    """Raise UsageError if a minibatch does not give each rank a sequence."""
    size = config.rollout.batch_size // config.ppo.minibatches
    if size < ranks.size:
        raise UsageError(
            f"a minibatch of {counted(size, 'sequence')} (rollout.batch_size / ppo.minibatches) is too small for "
            f"{ranks.size} ranks: raise rollout.batch_size or start fewer ranks"
        )


def _take(policy: TrainedPolicy, said: dict[str, Any]) -> None:
    """Take over the settings and the state of the first rank, as far as they have changed."""
    config = validate(said["config"])
    if config != policy.ppo.config:
        rewards = policy.build_rewards(config) if config.reward != policy.ppo.config.reward else None
        policy.ppo.configure(config, rewards)
    if said["state"] is not None:
        policy.follow(said["state"])
