"""What a judgement says: the pairs that it ranks, and whether another one says the same."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from trainer.preferences.records import Judgement, Preference


def ranked_pairs(judgement: Judgement) -> Iterator[tuple[int, int]]:
    """(better, worse): every two places of which one is ranked above the other, the best ones' first."""
    for better, worse in combinations(judgement.ranking, 2):
        for first in better:
            for second in worse:
                yield first, second


def tied_pairs(judgement: Judgement) -> Iterator[tuple[int, int]]:
    """Every two places that are ranked as good as each other."""
    for group in judgement.ranking:
        yield from combinations(group, 2)


def is_tie(judgement: Judgement) -> bool:
    """Whether all completions are as good as each other."""
    return len(judgement.ranking) == 1


def what_it_says(preference: Preference) -> int:
    """A number that is the same for preferences that say the same, whatever the order of their completions."""
    comparison, judgement = preference.comparison, preference.judgement
    texts = [str(completion) for completion in comparison.completions]
    ranked = tuple(tuple(sorted(texts[place] for place in group)) for group in judgement.ranking)
    said = (judgement.verdict, judgement.strength, judgement.labeller, judgement.note, judgement.time)
    return hash((str(comparison.prompt), *sorted(texts), ranked, said))
