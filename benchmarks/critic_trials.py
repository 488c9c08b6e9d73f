"""Run ppo-workbench with a change to PPO's critic that was tried and is no setting.

Run: .venv/bin/python benchmarks/critic_trials.py CHANGE [arguments of ppo-workbench]
ablations.py does so, for the same task as its other changes. They are for lanes = 1 and one rank.
"""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Callable
from typing import Any

import trainer  # noqa: F401  loads the BLAS, before anything imports mlx

# isort: split
import mlx.core as mx
import mlx.nn as nn
import numpy as np

from trainer.arrays import filled
from trainer.models.actor_critic import ActorCriticLLM
from trainer.ppo.learner import StepOptions
from trainer.ppo.loop import PPO, Update
from trainer.rollout.experience import Experience
from workbench.cli.main import main

EPOCHS = 4  # more of the critic's than of the policy's
BATCHES = 4  # that are replayed
WIDTH = 64  # of the hidden layer
BLOCK = 20  # of 30, whose states the head reads
RENEWAL = 0.1  # weight of a batch in the running moments

VALUES, STATES, INIT, LEARN = (
    ActorCriticLLM._values,
    ActorCriticLLM._response_states,
    ActorCriticLLM.__init__,
    PPO.learn,
)


def more_epochs() -> None:
    """Train the critic alone for more epochs over each batch."""

    def learn(self: PPO, number: int, batch: Experience, progress: Any) -> Update:
        update = LEARN(self, number, batch, progress)
        for _ in range(EPOCHS):
            _train_critic(self, batch, progress)
        return update

    PPO.learn = learn  # type: ignore[method-assign]


def replay() -> None:
    """Train the critic alone on the last batches too, once each."""
    kept: deque[Experience] = deque(maxlen=BATCHES)

    def learn(self: PPO, number: int, batch: Experience, progress: Any) -> Update:
        update = LEARN(self, number, batch, progress)
        for old in kept:
            _train_critic(self, old, progress)
        kept.append(batch)
        return update

    PPO.learn = learn  # type: ignore[method-assign]


def deeper_head() -> None:
    """Put a hidden layer between the states and the head."""

    def init(self: ActorCriticLLM, backbone: nn.Module, config: Any, *, key: mx.array) -> None:
        INIT(self, backbone, config, key=key)
        width = self._value["head.weight"].shape[0]
        self._value["hidden.weight"] = mx.random.normal((width, WIDTH), key=key) / math.sqrt(width)
        self._value["head.weight"] = mx.zeros((WIDTH,))

    def values(self: ActorCriticLLM, states: mx.array) -> mx.array:
        hidden = nn.gelu(states.astype(mx.float32) @ self._value["hidden.weight"])
        return hidden @ self._value["head.weight"] + self._value["head.bias"]

    ActorCriticLLM.__init__, ActorCriticLLM._values = init, values  # type: ignore[assignment,method-assign]


def random_head() -> None:
    """Begin with a random head instead of zeros, as TRL does."""

    def init(self: ActorCriticLLM, backbone: nn.Module, config: Any, *, key: mx.array) -> None:
        INIT(self, backbone, config, key=key)
        width = self._value["head.weight"].shape[0]
        self._value["head.weight"] = mx.random.normal((width,), key=key) / math.sqrt(width + 1)

    ActorCriticLLM.__init__ = init  # type: ignore[method-assign]


def middle_block() -> None:
    """Read the states after a block in the middle, scaled to a root mean square of 1."""
    kept: dict[str, mx.array] = {}

    def init(self: ActorCriticLLM, backbone: nn.Module, config: Any, *, key: mx.array) -> None:
        INIT(self, backbone, config, key=key)
        block = backbone.model.layers[BLOCK - 1]
        kind, call = type(block), type(block).__call__

        def tapped(layer: nn.Module, *args: Any, **kwargs: Any) -> mx.array:
            states: mx.array = call(layer, *args, **kwargs)
            if layer is block:
                kept["states"] = states
            return states

        kind.__call__ = tapped

    def response_states(self: ActorCriticLLM, sequences: mx.array, prompt_lengths: mx.array, width: int) -> mx.array:
        last = STATES(self, sequences, prompt_lengths, width)
        positions = mx.minimum(prompt_lengths[:, None] - 1 + mx.arange(width + 1)[None], sequences.shape[1] - 1)
        kept["response"] = mx.take_along_axis(kept["states"], positions[..., None], axis=1)
        return last

    def values(self: ActorCriticLLM, states: mx.array) -> mx.array:
        return VALUES(self, mx.fast.rms_norm(kept["response"].astype(mx.float32), None, 1e-6))

    ActorCriticLLM.__init__ = init  # type: ignore[method-assign]
    ActorCriticLLM._response_states, ActorCriticLLM._values = response_states, values  # type: ignore[method-assign]


def scaled_returns() -> None:
    """Have the head learn its returns less their running mean, divided by their running deviation, as in PopArt.

    van Hasselt et al. 2016, arXiv 1602.07714. At each change of the scale the head is changed too, so that its values
    stay as they are. The prefix scores' part of the returns is not the head's to learn, and not scaled.
    """
    moments = [0.0, 0.0, 0.0]  # running weight, mean and mean square of the returns
    scale = [0.0, 1.0]  # mean and deviation of the head's unit

    def values(self: ActorCriticLLM, states: mx.array) -> mx.array:
        return scale[0] + scale[1] * VALUES(self, states)

    def learn(self: PPO, number: int, batch: Experience, progress: Any) -> Update:
        real = batch.mask > 0
        returns = np.array(filled(batch.returns) - filled(batch.prefix_values))[np.array(real)]
        for place, new in enumerate((1.0, float(returns.mean()), float((returns**2).mean()))):
            moments[place] += RENEWAL * (new - moments[place])
        mean, square = (moment / moments[0] for moment in moments[1:])
        new_scale = [mean, max(math.sqrt(max(square - mean**2, 0.0)), 1e-4)]
        head = self.actor.value_parameters()
        head["head.weight"] = head["head.weight"] * (scale[1] / new_scale[1])
        head["head.bias"] = (scale[0] + scale[1] * head["head.bias"] - new_scale[0]) / new_scale[1]
        self.actor.update_value(head)
        scale[:] = new_scale
        config = self.config
        ppo = config.ppo.model_copy(update={"value_coef": config.ppo.value_coef / scale[1] ** 2})
        self.config = config.model_copy(update={"ppo": ppo})
        try:
            return LEARN(self, number, batch, progress)
        finally:
            self.config = config

    ActorCriticLLM._values, PPO.learn = values, learn  # type: ignore[method-assign]


CHANGES: dict[str, Callable[[], None]] = {
    change.__name__: change for change in (more_epochs, replay, deeper_head, random_head, middle_block, scaled_returns)
}


def _train_critic(ppo: PPO, batch: Experience, progress: Any) -> None:
    """Take a step of the critic alone on a batch, without clipping its values."""
    settings = ppo.config.ppo.model_copy(update={"relative_value_clip": 0.0})
    options = StepOptions(temperature=ppo.config.rollout.temperature, progress=progress)
    ppo.learner.train(batch, settings, "value", **options)


if __name__ == "__main__":
    CHANGES[sys.argv[1]]()
    sys.exit(main(sys.argv[2:]))
