"""Check before the first iteration that a run fits the memory, with smaller parts of what does not."""

from __future__ import annotations

from collections.abc import Sequence

from trainer.config import Config
from trainer.control.control import Interrupted
from trainer.data import Prompt
from trainer.events import Phase, StateChanged
from trainer.fitting.memory_limit import Smaller, is_on_gpu, lowered, smaller_micro_batch, smaller_slots, too_large
from trainer.memory.estimate import clear_footprint
from trainer.memory.savings import changed
from trainer.ppo.loop import PPO
from trainer.ppo.trial import phase_peaks


def smaller(config: Config, phase: Phase, longest: int, limit: int) -> list[Smaller]:
    """Return the changes that halve the largest parts of a phase. An evaluation generates and scores.

    longest: tokens of the longest prompt; limit: bytes. Raises OutOfMemoryError if the parts are one sequence already.
    """
    length = longest + config.rollout.max_new_tokens
    slots = smaller_slots(config.rollout)
    micro_batch = smaller_micro_batch(config.optim.micro_batch_tokens, length, config.rollout.batch_size)
    wanted = {"generate": [slots], "evaluate": [slots, micro_batch]}.get(phase, [micro_batch])
    if found := [change for change in wanted if change]:
        return found
    raise too_large(phase, limit)


def fit(ppo: PPO, prompts: Sequence[Prompt], limit: int) -> tuple[list[Smaller], list[str]]:
    """Make the parts of `ppo` small enough for `limit`, bytes; return the changes, and a line on each.

    A run that clearly fits by its estimate is not tried. If the run is to end, the trial ends early, since the run will
    do nothing. Raises OutOfMemoryError if the smallest parts do not fit.
    """
    longest = max(len(prompt.tokens) for prompt in prompts)
    changes, lines = list[Smaller](), list[str]()
    while True:
        try:
            peaks = _peaks(ppo, prompts, longest, limit)
        except Interrupted:
            return changes, lines
        over = [phase for phase, peak in peaks.items() if peak > limit]
        if not over:
            return changes, lines
        phase = max(over, key=lambda phase: peaks[phase])
        for change in smaller(ppo.config, phase, longest, limit):
            changes.append(change)
            lines.append(lowered(ppo.config, change, phase, peaks[phase], limit))
            ppo.configure(changed(ppo.config, *change))


def _peaks(ppo: PPO, prompts: Sequence[Prompt], longest: int, limit: int) -> dict[Phase, int]:
    """Return the peak of each phase: estimated where that is clear, else tried."""
    if clear := clear_footprint(ppo.config, longest, limit, gpu=is_on_gpu()):
        return {phase: clear.peak_of(phase) for phase in clear.phases}
    ppo.emit(StateChanged(state="checking"))
    return phase_peaks(ppo, prompts)
