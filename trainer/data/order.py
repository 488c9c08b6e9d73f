"""Choice of the prompts that are held out, and the order in which the others are visited."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trainer.data.encoding import Prompt


def split_prompts(prompts: Sequence[Prompt], eval_fraction: float, seed: int) -> tuple[list[Prompt], list[Prompt]]:
    """Split `prompts` into (training, evaluation), both in the order of the source; the same for the same seed.

    Prompts with the same tokens stay on one side. The evaluation side has eval_fraction of all prompts, rounded, and at
    least one if eval_fraction > 0. It has fewer if only larger groups of equal prompts are left, and never all.
    """
    wanted = min(max(1, round(eval_fraction * len(prompts))), len(prompts) - 1) if eval_fraction > 0 else 0
    groups: dict[tuple[int, ...], list[int]] = {}
    for position, prompt in enumerate(prompts):
        groups.setdefault(tuple(prompt.tokens), []).append(position)
    members = list(groups.values())
    held_out: set[int] = set()
    for group in np.random.default_rng(seed).permutation(len(members)):
        if len(held_out) + len(members[group]) <= wanted:
            held_out.update(members[group])
    training = [prompt for position, prompt in enumerate(prompts) if position not in held_out]
    return training, [prompts[position] for position in sorted(held_out)]


def prompt_indices(start: int, count: int, total: int, *, seed: int, shuffle: bool) -> list[int]:
    """Return positions (0 <= i < total) of the prompts number start .. start + count - 1 of an endless walk.

    The walk visits every prompt once per pass. Each pass has its own order, drawn from (seed, pass); without `shuffle`,
    it is always the order of the source. The walk needs no state, so a resumed run goes on exactly where it was. Raises
    ValueError unless start, count >= 0 and total >= 1.
    """
    if start < 0 or count < 0 or total < 1:
        raise ValueError(f"start = {start}, count = {count} must be >= 0 and total = {total} >= 1")
    if not shuffle:
        return [number % total for number in range(start, start + count)]
    indices: list[int] = []
    while len(indices) < count:
        number, offset = divmod(start + len(indices), total)
        order = np.random.default_rng([seed, number]).permutation(total)
        indices += order[offset : offset + count - len(indices)].tolist()
    return indices
