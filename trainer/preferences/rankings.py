"""Pairs that a judgement ranks or ties, and a hash to recognise preferences that say the same."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from trainer.preferences.records import Judgement, Preference


def ranked_pairs(judgement: Judgement) -> Iterator[tuple[int, int]]:
    """Yield (better, worse) for every two places where one is ranked above the other, the best ones first."""
    for better, worse in combinations(judgement.ranking, 2):
        for first in better:
            for second in worse:
                yield first, second


def tied_pairs(judgement: Judgement) -> Iterator[tuple[int, int]]:
    """Yield every two places that are ranked equal."""
    for group in judgement.ranking:
        yield from combinations(group, 2)


def is_tie(judgement: Judgement) -> bool:
    """Return whether all completions are ranked equal."""
    return len(judgement.ranking) == 1


def what_it_says(preference: Preference) -> int:
    """Return a hash that is the same for preferences that say the same, whatever the order of their completions."""
    comparison, judgement = preference.comparison, preference.judgement
    texts = [str(completion) for completion in comparison.completions]
    ranked = tuple(tuple(sorted(texts[place] for place in group)) for group in judgement.ranking)
    said = (judgement.verdict, judgement.strength, judgement.labeller, judgement.note, judgement.time)
    return hash((str(comparison.prompt), *sorted(texts), ranked, said))
