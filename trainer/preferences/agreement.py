"""Agreement of labellers with each other and with themselves, the data card of preferences, and a policy's win rate."""

from __future__ import annotations

import math
import string
from array import array
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import combinations
from operator import gt, ne
from statistics import median
from typing import Any, NamedTuple

from trainer.confidence import Z95, wilson_interval
from trainer.events import HumanEvaluation
from trainer.preferences.records import Preference, content_hash, is_tie, length_in_characters, ranked_pairs, tied_pairs

_JOINERS = "\u200c\u200d"  # in the spelling of names, as in Persian, Sinhala and emoji
_ENTITIES = {ord(mark): f"&#{ord(mark)};" for mark in string.punctuation if mark not in "-_.,:/()"}
_CHOICES = {"a": "one is better", "b": "one is better", "both_bad": "both bad", None: "ranking"}
_SECTIONS = {  # what is counted, by heading
    "Sources": "source",
    "Labellers": "labeller",
    "Choices": "choice",
    "Strength, without ties": "strength",
    "Flags": "flag",
    "Guidelines": "hash",
}

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
    comparisons: number of comparisons, those that were skipped included. repeated: of these, with more than one label.
    """

    labellers: tuple[str, ...]
    units: int
    alpha: float  # Krippendorff's, nominal, over all labellers; NaN where nothing varies
    pairs: tuple[PairAgreement, ...]
    selves: tuple[SelfAgreement, ...]
    comparisons: int
    repeated: int


def measure_agreement(preferences: Iterable[Preference]) -> Agreement:
    """Measure the agreement between labellers, and of each labeller with themselves. Holds no texts.

    A unit is two completions to a prompt; its value is first, second, tie or both_bad. Two completions are the same
    unit in whatever order they were shown. A ranking of k completions gives k (k - 1) / 2 units. These are not
    independent, but standard errors treat them as if they were. Skips are ignored. Where a labeller judged a comparison
    more than once, only the last judgement counts between labellers; all of them count within the labeller.
    """
    # By the comparison's key: the order first seen, then each label as its labeller and values.
    seen: dict[bytes, tuple[Any, ...]] = {}
    known: dict[tuple[Any, ...], tuple[Any, ...]] = {}  # most are alike, so each is stored once
    for preference in preferences:
        comparison, judgement = preference.comparison, preference.judgement
        key, order = bytes.fromhex(comparison.key), comparison.order
        labels = seen.get(key, (order,))
        if order != labels[0]:
            judgement = preference.at(*(here for _, here in sorted(zip(labels[0], order, strict=True)))).judgement
        values = [(min(pair), max(pair), "tie") for pair in tied_pairs(judgement)]
        for better, worse in ranked_pairs(judgement):
            values.append((min(better, worse), max(better, worse), "first" if better < worse else "second"))
        if judgement.verdict == "both_bad":
            values = [(i, j, "both_bad") for i, j in combinations(range(len(order)), 2)]
        labels = (*labels, (judgement.labeller, tuple(values)))
        seen[key] = known.setdefault(labels, labels)
    found: dict[str, dict[Unit, list[str]]] = {}
    for key, (_, *given) in seen.items():
        for labeller, units in given:
            own = found.setdefault(labeller, {}) if units else {}
            for i, j, value in units if len(given) > 1 else ():  # a single label says nothing of agreement
                own.setdefault((key, i, j), []).append(value)
    labellers = tuple(sorted(found))
    last: dict[Unit, list[str]] = {}
    for name in labellers:
        for unit, judged in found[name].items():
            last.setdefault(unit, []).append(judged[-1])
    pairs = []
    for first, second in combinations(labellers, 2):
        both = [(found[first][unit][-1], values[-1]) for unit, values in found[second].items() if unit in found[first]]
        pairs.append(PairAgreement(first, second, cohen_kappa([one for one, _ in both], [two for _, two in both])))
    selves = []
    for name in labellers:
        repeated = [values for values in found[name].values() if len(values) > 1]
        same = [one == other for values in repeated for one, other in combinations(values, 2)]
        observed = sum(same) / len(same) if same else math.nan
        selves.append(SelfAgreement(name, len(repeated), observed, krippendorff_alpha(repeated)))
    return Agreement(
        labellers=labellers,
        units=sum(len(values) > 1 for values in last.values()),
        alpha=krippendorff_alpha(last.values()),
        pairs=tuple(pairs),
        selves=tuple(selves),
        comparisons=len(seen),
        repeated=sum(len(one) > 2 for one in seen.values()),
    )


def render_data_card(preferences: Iterable[Preference]) -> str:
    """Return the data card of `preferences`; the same ones in the same order give the same text.

    Lengths are those of every pair of completions where one is better: a ranking of k without ties counts k (k - 1) / 2
    times. Names and paths from others are never read as markup. The preferences are read one by one, and can be freed.
    """
    counts: dict[str, Counter[str]] = {heading: Counter() for heading in _SECTIONS}
    completions, shown_first = Counter[int](), Counter[bool]()
    contents, times = set[int](), array("d")
    better, worse = array("q"), array("q")  # characters of each pair
    totals = Counter[str]()

    def counting() -> Iterator[Preference]:
        for preference in preferences:
            yield preference
            comparison, judgement = preference.comparison, preference.judgement
            totals["judgements"] += 1
            contents.add(content_hash(preference))
            completions[len(comparison.completions)] += 1
            totals["ties"] += is_tie(judgement)
            totals["notes"] += bool(judgement.note)
            if judgement.time is not None:
                times.append(judgement.time)
            if judgement.order_shown and judgement.choice in ("a", "b"):
                shown_first[judgement.order_shown[0] in judgement.ranking[0]] += 1
            counts["Sources"][", ".join(sorted({origin.source for origin in comparison.origins}))] += 1
            counts["Labellers"][judgement.labeller] += 1
            counts["Choices"][_CHOICES.get(judgement.choice, str(judgement.choice))] += 1
            if len(judgement.ranking) > 1:
                counts["Strength, without ties"][str(judgement.strength)] += 1
            counts["Flags"].update(judgement.flags)
            counts["Guidelines"][judgement.guidelines] += 1
            lengths = [length_in_characters(completion) for completion in comparison.completions]
            for first, second in ranked_pairs(judgement):
                better.append(lengths[first])
                worse.append(lengths[second])

    found, total = measure_agreement(counting()), totals["judgements"]
    longer, unequal = sum(map(gt, better, worse)), sum(map(ne, better, worse))
    low, high = wilson_interval(longer, unequal)
    interval = f"{longer / max(unequal, 1):.1%} of {unequal} pairs (95% interval {low:.1%} to {high:.1%})"
    days = [f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d}" for time in (min(times), max(times))] if times else []
    alpha = f"Krippendorff's alpha {'undefined' if math.isnan(found.alpha) else f'{found.alpha:.3f}'}"
    again = [f"{_name(one.labeller)} {one.observed:.1%}" for one in found.selves if one.units]
    numbers = {
        "judgements": str(total),
        "comparisons": str(found.comparisons),
        "duplicates": str(total - len(contents)),
        "comparisons judged more than once": str(found.repeated),
        "completions per comparison": ", ".join(f"{k} ({n})" for k, n in sorted(completions.items())) or "-",
        "ties": _share(totals["ties"], total),
        "both bad": _share(counts["Choices"]["both bad"], total),
        "skipped": _share(counts["Choices"]["skip"], total),
        "the better one was shown first": _share(shown_first[True], shown_first.total()),
        "the longer one is better": interval if unequal else "-",
        "characters of the better one, median": f"{median(better):g}" if better else "-",
        "characters of the worse one, median": f"{median(worse):g}" if worse else "-",
        "agreement between labellers": f"{alpha} in {found.units} common units" if found.units else "-",
        "agreement with oneself": ", ".join(again) or "-",
        "with a note": str(totals["notes"]),
        "judged": f"{' to '.join(days)} (UTC)" if days else "-",
    }
    lines = ["# Preferences", "", *_table(("", ""), numbers.items()), "", "Licence: *to be filled in*", ""]
    for heading, what in _SECTIONS.items():
        if any(counts[heading]):  # else every key is empty
            order = sorted(counts[heading].items(), key=lambda item: (-item[1], item[0]))
            rows = [(_name(key), str(count)) for key, count in order]
            lines += [f"## {heading}", "", *_table((what, "judgements"), rows), ""]
    return "\n".join(lines)


def _name(text: str) -> str:
    """Escape `text` from others for Markdown: on one line, and never markup."""
    shown = "".join(one if one.isprintable() or one in _JOINERS else f"\\u{ord(one):04x}" for one in text)
    return shown.translate(_ENTITIES) or "(none)"


def _share(count: int, total: int) -> str:
    return f"{count} ({count / total:.1%})" if total else "-"


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [headings, ["---"] * len(headings), *rows]
    return [f"| {' | '.join(cells)} |" for cells in lines]


def human_evaluation(preferences: Iterable[Preference], run: str) -> HumanEvaluation | None:
    """Evaluate the policy of `run` against its reference by `preferences`; return None if none compares the two.

    A pair counts if both completions are of `run`, one written by the policy, after any iteration, and one by the
    reference. Both bad counts as a tie; skips are ignored. Only a labeller's last judgement of a pair counts;
    judgements of one pair by several people count as independent. The interval counts a tie as half a success, which
    makes it wider than necessary, never narrower. The iteration is that of the latest policy judged.
    """
    found: dict[tuple[str, str], tuple[float, int]] = {}  # by labeller and pair: the policy's points, its iteration
    for preference in preferences:
        origins, choice = preference.comparison.origins, preference.judgement.choice
        writers = [origin.writer for origin in origins]
        compares = sorted(writers) == ["policy", "reference"] and all(origin.run == run for origin in origins)
        if compares and choice not in (None, "skip"):
            policy = writers.index("policy")
            point = 0.5 if choice in ("tie", "both_bad") else float(choice == "ab"[policy])
            key = (preference.judgement.labeller, preference.comparison.key)
            found[key] = (point, origins[policy].iteration or 0)
    if not found:
        return None
    points = [point for point, _ in found.values()]
    wins, ties = points.count(1.0), points.count(0.5)
    low, high = wilson_interval(wins + ties / 2, len(points))
    return HumanEvaluation(
        iteration=max(iteration for _, iteration in found.values()),
        comparisons=len(points),
        wins=wins,
        ties=ties,
        losses=len(points) - wins - ties,
        win_rate=(wins + ties / 2) / len(points),
        low=low,
        high=high,
        labellers=len({labeller for labeller, _ in found}),
    )
