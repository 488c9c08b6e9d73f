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

from trainer.models.actor_critic import ActorCriticLLM
from trainer.ppo import learner
from trainer.ppo.learner import StepOptions
from trainer.ppo.loop import PPO, Update
from trainer.rollout.experience import Experience
from workbench.cli.main import main

EPOCHS = 4  # more of the critic's than of the policy's
BATCHES = 4  # that are replayed
WIDTH = 64  # of the hidden layer
BLOCK = 20  # of 30, whose states the head reads

VALUES, STATES, INIT, LEARN = (
    ActorCriticLLM._values,
    ActorCriticLLM._response_states,
    ActorCriticLLM.__init__,
    PPO.learn,
)
CLIPPED = learner.clipped


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


def detached_head() -> None:
    """Keep the value loss out of the trunk that the head shares, and clip each side's gradient by its own norm."""

    def values(self: ActorCriticLLM, states: mx.array) -> mx.array:
        return VALUES(self, mx.stop_gradient(states))

    def clipped(found: Any, norm: float, most: float) -> Any:
        return {side: CLIPPED(tree, learner.global_norm(tree), most) for side, tree in found.items()}

    ActorCriticLLM._values, learner.clipped = values, clipped  # type: ignore[method-assign]


CHANGES: dict[str, Callable[[], None]] = {
    change.__name__: change for change in (more_epochs, replay, deeper_head, random_head, middle_block, detached_head)
}


def _train_critic(ppo: PPO, batch: Experience, progress: Any) -> None:
    """Take a step of the critic alone on a batch, without clipping its values."""
    settings = ppo.config.ppo.model_copy(update={"relative_value_clip": 0.0})
    options = StepOptions(temperature=ppo.config.rollout.temperature, progress=progress)
    ppo.learner.train(batch, settings, "value", **options)


if __name__ == "__main__":
    CHANGES[sys.argv[1]]()
    sys.exit(main(sys.argv[2:]))
