"""Agreement of labellers with each other and with themselves, and the statistics for it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

from trainer.confidence import Z95
from trainer.preferences.records import Judgement, Preference, ranked_pairs, tied_pairs

Unit = tuple[bytes, int, int]  # two completions of a comparison: its key, and their places in the order first seen


class Kappa(NamedTuple):
    """Cohen's kappa of two observers over `n` units; NaN where it is not defined."""

    value: float
    standard_error: float
    observed: float  # share of the units on which the two agree
    n: int

    @property
    def interval(self) -> tuple[float, float]:
        """The 95% interval of the large-sample normal approximation, within [-1, 1]."""
        if math.isnan(self.value):
            return math.nan, math.nan
        margin = Z95 * self.standard_error
        return max(-1.0, self.value - margin), min(1.0, self.value + margin)


def cohen_kappa(first: Sequence[Hashable], second: Sequence[Hashable]) -> Kappa:
    """Compute Cohen's kappa of two observers' nominal values of the same units.

        kappa = (p_o - p_e) / (1 - p_e),   p_o = sum_i p_ii,   p_e = sum_i p_i. p_.i

    with p_ij the share of units that the first called i and the second j. The standard error is the large-sample one:

        n (1 - p_e)^2 SE^2 = sum_i p_ii (1 - (p_i. + p_.i)(1 - kappa))^2
                             + (1 - kappa)^2 sum_{i != j} p_ij (p_.i + p_j.)^2 - (kappa - p_e (1 - kappa))^2

    NaN if both used the same single value throughout (p_e = 1), and without units. Raises ValueError for sequences
    of different lengths. Cohen 1960; Fleiss, Cohen and Everitt 1969, eq. 13.
    """
    pairs = Counter(zip(first, second, strict=True))
    n = pairs.total()
    if n == 0:
        return Kappa(math.nan, math.nan, math.nan, 0)
    rows, columns = Counter(first), Counter(second)
    observed = sum(count for (i, j), count in pairs.items() if i == j) / n
    expected = sum(count * columns[i] for i, count in rows.items()) / n**2
    if expected == 1:
        return Kappa(math.nan, math.nan, observed, n)
    kappa = (observed - expected) / (1 - expected)
    agreeing = sum(c / n * (1 - (rows[i] + columns[i]) / n * (1 - kappa)) ** 2 for (i, j), c in pairs.items() if i == j)
    others = sum(c / n * ((columns[i] + rows[j]) / n) ** 2 for (i, j), c in pairs.items() if i != j)
    variance = agreeing + (1 - kappa) ** 2 * others - (kappa - expected * (1 - kappa)) ** 2
    return Kappa(kappa, math.sqrt(max(variance, 0.0) / n) / (1 - expected), observed, n)


def krippendorff_alpha(units: Iterable[Sequence[Hashable]]) -> float:
    """Compute Krippendorff's alpha for nominal values; a unit is its values from any number of observers.

        alpha = 1 - D_o / D_e,   D_o = 1/n sum_{c != k} o_ck,   D_e = 1/(n (n - 1)) sum_{c != k} n_c n_k

    where a unit of m >= 2 values adds, for each ordered pair of them, 1/(m - 1) to the coincidence o_ck, n_c is the
    number of values c in such units, and n their sum. Units of fewer values say nothing and are left out; missing
    values are simply absent. NaN where nothing varies (D_e = 0). Krippendorff 2011, "Computing
    Krippendorff's Alpha-Reliability", section C.
    """
    totals: Counter[Hashable] = Counter()
    disagreements = 0.0
    for values in units:
        m = len(values)
        if m < 2:
            continue
        counts = Counter(values)
        totals += counts
        disagreements += sum(count * (m - count) for count in counts.values()) / (m - 1)
    n = totals.total()
    expected = sum(count * (n - count) for count in totals.values())
    return 1 - (n - 1) * disagreements / expected if expected else math.nan


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


def measure_agreement(preferences: Iterable[Preference]) -> Agreement:
    """Measure the agreement between labellers, and of each labeller with themselves, as `AgreementCounter` does."""
    counter = AgreementCounter()
    for preference in preferences:
        counter.add(preference)
    return counter.agreement()


class AgreementCounter:
    """Counter of who said what of which two completions. It holds no texts.

    A unit is two completions to a prompt; its value is first, second, tie or both_bad. Two completions are the same
    unit in whatever order they were shown. A ranking of k completions gives k (k - 1) / 2 units. These are not
    independent, but standard errors treat them as if they were. Skips are ignored. Where a labeller judged a comparison
    more than once, only the last judgement counts between labellers; all of them count within the labeller.
    """

    def __init__(self) -> None:
        self._labellers: set[str] = set()  # everyone who judged a unit
        self._first: dict[bytes, _FirstLabel] = {}  # by the comparison's key
        self._later: dict[bytes, list[_Label]] = {}
        self._firsts: dict[_FirstLabel, _FirstLabel] = {}  # most are alike, so each is stored once
        self._labels: dict[_Label, _Label] = {}  # as well

    @property
    def comparisons(self) -> int:
        """Number of comparisons, those that were skipped included."""
        return len(self._first)

    @property
    def repeated(self) -> int:
        """Number of comparisons with more than one label, skips included."""
        return len(self._later)

    def add(self, preference: Preference) -> None:
        """Count a label."""
        comparison, judgement = preference.comparison, preference.judgement
        key, order, k = bytes.fromhex(comparison.key), comparison.order, len(comparison.completions)
        first = self._first.get(key)
        if first is not None:
            places = dict(zip(order, first.order, strict=True))  # from here to where they were first seen
            judgement = judgement.reordered([places[place] for place in range(k)])
        label = _Label(judgement.labeller, _values(judgement, k))
        label = self._labels.setdefault(label, label)
        if label.values:
            self._labellers.add(label.labeller)
        if first is None:
            first = _FirstLabel(order, label)
            self._first[key] = self._firsts.setdefault(first, first)
        else:
            self._later.setdefault(key, []).append(label)

    def agreement(self) -> Agreement:
        """Return the agreement on what was counted so far."""
        labellers = tuple(sorted(self._labellers))
        said: dict[str, dict[Unit, list[str]]] = {name: {} for name in labellers}
        for key, later in self._later.items():  # units with a single label say nothing of agreement
            for labeller, values in (self._first[key].label, *later):
                for i, j, value in values:
                    said[labeller].setdefault((key, i, j), []).append(value)
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


class _Label(NamedTuple):
    labeller: str
    values: tuple[tuple[int, int, str], ...]  # two places i < j in the order first seen, and their value


class _FirstLabel(NamedTuple):
    order: tuple[int, ...]  # as `Comparison.order`
    label: _Label


def _values(judgement: Judgement, k: int) -> tuple[tuple[int, int, str], ...]:
    """Return each two places i < j that `judgement` gives a value, with it."""
    if judgement.verdict == "skip":
        return ()
    if judgement.verdict == "both_bad":
        return tuple((i, j, "both_bad") for i, j in combinations(range(k), 2))
    values = [(min(pair), max(pair), "tie") for pair in tied_pairs(judgement)]
    for better, worse in ranked_pairs(judgement):
        values.append((min(better, worse), max(better, worse), "first" if better < worse else "second"))
    return tuple(values)


def _between(said: dict[str, dict[Unit, list[str]]], first: str, second: str) -> PairAgreement:
    both = [unit for unit in said[first] if unit in said[second]]
    kappa = cohen_kappa([said[first][unit][-1] for unit in both], [said[second][unit][-1] for unit in both])
    return PairAgreement(first, second, kappa)


def _within(name: str, units: dict[Unit, list[str]]) -> SelfAgreement:
    repeated = [given for given in units.values() if len(given) > 1]
    pairs = [one == other for given in repeated for one, other in combinations(given, 2)]
    observed = sum(pairs) / len(pairs) if pairs else float("nan")
    return SelfAgreement(name, len(repeated), observed, krippendorff_alpha(repeated))
