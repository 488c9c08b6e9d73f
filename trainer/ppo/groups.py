"""Groups of responses to one prompt: which of them teach nothing, and the walk over the prompts that can avoid them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from trainer import maths
from trainer.arrays import prompt_indices
from trainer.confidence import ROUNDING
from trainer.config import Config
from trainer.data import Prompt
from trainer.reward_types import RewardResult

LONGEST_REST = 8
"""Passes that `data.curriculum` leaves out a prompt at most: a policy that learns may come to answer it sometimes."""


class Group(NamedTuple):
    """Scores of the responses to one prompt."""

    index: int  # type: ignore[assignment]  # of the prompt in its source; hides tuple.index
    score: float  # mean; NaN if no source applies to any of them
    is_dead: bool  # they are equal but for rounding, or fewer than two are known: nothing to compare


def groups_of(result: RewardResult, prompts: Sequence[Prompt], samples: int) -> list[Group]:
    """Return the groups of `samples` consecutive responses to one prompt; none if a prompt has one response.

    prompts: B, one per row. A group is dead if the deviation of its scores is within a millionth of them, or of 1.
    """
    tokens = result.token_rewards or [[] for _ in prompts]
    totals = np.array([score + sum(row) for score, row in zip(result.scores, tokens, strict=True)])
    groups = []
    for start in range(0, len(totals), samples) if samples > 1 else ():
        scores = totals[start : start + samples]
        known = scores[~np.isnan(scores)]
        rounding = ROUNDING * max(1.0, float(np.abs(known).max(initial=0.0)))
        is_dead = known.size < 2 or bool(known.std() <= rounding)
        groups.append(Group(prompts[start].index, maths.mean_of_known(known), is_dead))
    return groups


class PromptWalk:
    """The order in which prompts are drawn: that of `prompt_indices`, without those that rest (`data.curriculum`).

    One that is dead in a row k times is left out of the next k passes. What was drawn depends on the configuration, the
    prompts and `state`.
    """

    def __init__(self, prompts: Sequence[Prompt]) -> None:
        self._prompts = prompts
        self.restore(None)

    def draw(self, config: Config, number: int, count: int, *, first: bool = False) -> list[Prompt]:
        """Return the next `count` prompts of iteration `number`, each `samples_per_prompt` times.

        first: those that it begins with.
        """
        samples, total, found = config.rollout.samples_per_prompt, len(self._prompts), list[Prompt]()
        at = (number - first) * (config.rollout.batch_size // samples) + self._further
        while missing := count - len(found) // samples:
            places = prompt_indices(at, missing, total, seed=config.run.seed, shuffle=config.data.shuffle)
            for walked, place in enumerate(places, at):
                prompt = self._prompts[place]
                rests = config.data.curriculum and walked // total <= self._resting.get(prompt.index, (0, -1))[1]
                found += [] if rests else [prompt] * samples
                self._further += rests or not first
            at += len(places)
        self._pass = (at - 1) // total
        return found

    def rest(self, groups: Sequence[Group]) -> None:
        """Have the prompts of dead groups, which were drawn last, rest from the next pass on."""
        for group in groups:
            times = min(self._resting.pop(group.index, (0, 0))[0] + 1, LONGEST_REST)
            if group.is_dead:
                self._resting[group.index] = (times, self._pass + times)

    def state(self) -> dict[str, Any]:
        """Return the state as plain values: places walked beyond one for each group of a batch, and those that rest.

        Of each of these: its index, how often in a row it was dead, and the pass that it rests until.
        """
        return {"further": self._further, "resting": [[index, *rest] for index, rest in self._resting.items()]}

    def restore(self, state: dict[str, Any] | None) -> None:
        """Restore what `state` returned, or with None that of a new run."""
        state = state or {"further": 0, "resting": []}
        self._further: int = state["further"]
        self._resting: dict[int, tuple[int, int]] = {index: (times, until) for index, times, until in state["resting"]}
        self._pass = 0
