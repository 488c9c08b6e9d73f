"""Agreement between labellers, and of each labeller with themselves on comparisons judged more than once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations

from trainer.preferences.rankings import ranked_pairs, tied_pairs
from trainer.preferences.records import Comparison, Judgement, Preference
from trainer.preferences.reliability import Kappa, cohen_kappa, krippendorff_alpha

Unit = tuple[str, int, int]  # two completions of a comparison: its key, and their places in the order first seen


@dataclass(frozen=True, slots=True)
class PairAgreement:
    """Two labellers on the units that both judged."""

    first: str
    second: str
    kappa: Kappa


@dataclass(frozen=True, slots=True)
class SelfAgreement:
    """One labeller on the units that this labeller judged more than once."""

    labeller: str
    units: int
    observed: float  # share of the pairs of judgements of one unit that agree
    alpha: float  # Krippendorff's, with the repeats as observers; NaN where nothing varies


@dataclass(frozen=True, slots=True)
class Agreement:
    """Agreement between labellers, and of each labeller with themselves.

    labellers: everyone who judged a unit, by name. units: number of units that two or more labellers judged.
    """

    labellers: tuple[str, ...]
    units: int
    alpha: float  # Krippendorff's, nominal, over all labellers; NaN where nothing varies
    pairs: tuple[PairAgreement, ...]
    selves: tuple[SelfAgreement, ...]


def agreement(preferences: Iterable[Preference]) -> Agreement:
    """Measure the agreement between labellers, and of each labeller with themselves.

    A unit is two completions to a prompt; its value is first, second, tie or both_bad. Two completions are the same
    unit in whatever order they were shown. A ranking of k completions gives k (k - 1) / 2 units. These are not
    independent, but standard errors treat them as if they were. Skips are ignored. Where a labeller judged a comparison
    more than once, only the last judgement counts between labellers; all of them count within the labeller.
    """
    said: dict[str, dict[Unit, list[str]]] = {}
    seen: dict[str, Comparison] = {}
    for preference in preferences:
        comparison, judgement = preference.comparison, preference.judgement
        key = comparison.key
        reference = seen.setdefault(key, comparison)
        by_unit = said.setdefault(judgement.labeller, {})
        values = _values(judgement.reordered(reference.order_of(comparison)), len(comparison.completions))
        for (i, j), value in values.items():
            by_unit.setdefault((key, i, j), []).append(value)
    labellers = tuple(sorted(name for name, units in said.items() if units))
    last: dict[Unit, list[str]] = {}
    for name in labellers:
        for unit, given in said[name].items():
            last.setdefault(unit, []).append(given[-1])
    return Agreement(
        labellers=labellers,
        units=sum(len(given) > 1 for given in last.values()),
        alpha=krippendorff_alpha(last.values()),
        pairs=tuple(_between(said, first, second) for first, second in combinations(labellers, 2)),
        selves=tuple(_within(name, said[name]) for name in labellers),
    )


def _values(judgement: Judgement, k: int) -> dict[tuple[int, int], str]:
    """Return the value that `judgement` gives each two places i < j."""
    if judgement.verdict == "skip":
        return {}
    if judgement.verdict == "both_bad":
        return dict.fromkeys(combinations(range(k), 2), "both_bad")
    values = dict.fromkeys(((min(pair), max(pair)) for pair in tied_pairs(judgement)), "tie")
    for better, worse in ranked_pairs(judgement):
        values[min(better, worse), max(better, worse)] = "first" if better < worse else "second"
    return values


def _between(said: dict[str, dict[Unit, list[str]]], first: str, second: str) -> PairAgreement:
    both = [unit for unit in said[first] if unit in said[second]]
    kappa = cohen_kappa([said[first][unit][-1] for unit in both], [said[second][unit][-1] for unit in both])
    return PairAgreement(first, second, kappa)


def _within(name: str, units: dict[Unit, list[str]]) -> SelfAgreement:
    repeated = [given for given in units.values() if len(given) > 1]
    pairs = [one == other for given in repeated for one, other in combinations(given, 2)]
    observed = sum(pairs) / len(pairs) if pairs else float("nan")
    return SelfAgreement(name, len(repeated), observed, krippendorff_alpha(repeated))
