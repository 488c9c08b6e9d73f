"""A data card for a set of preferences: a page of Markdown to publish with it."""

from __future__ import annotations

import math
import string
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from operator import gt, ne
from statistics import quantiles

from trainer.confidence import wilson_interval
from trainer.preferences.agreement import Agreement, AgreementCounter
from trainer.preferences.conversations import length_in_characters, length_in_words
from trainer.preferences.records import Preference, Text, content_hash, is_tie, ranked_pairs

_JOINERS = "\u200c\u200d"  # in the spelling of names, as in Persian, Sinhala and emoji
_ENTITIES = {ord(mark): f"&#{ord(mark)};" for mark in string.punctuation if mark not in "-_.,:/()"}
_UNITS: dict[str, Callable[[Text], int]] = {"characters": length_in_characters, "words": length_in_words}


def render_data_card(preferences: Iterable[Preference]) -> str:
    """Return the data card of `preferences`; the same ones in the same order give the same text.

    Lengths are those of every pair of completions where one is better: a ranking of k without ties counts k (k - 1) / 2
    times. Names and paths from others are never read as markup. The preferences are read one by one, and can be freed.
    """
    counts = _Counts()
    for preference in preferences:
        counts.add(preference)
    return "\n".join(
        [
            "# Preferences",
            "",
            *_overview(counts),
            "",
            "Licence: *to be filled in*",
            "",
            *_counted("Sources", "source", counts.sources),
            *_counted("Labellers", "labeller", counts.labellers),
            *_counted("Choices", "choice", counts.choices),
            *_counted("Strength, without ties", "strength", counts.strengths),
            *_counted("Flags", "flag", counts.flags),
            *_counted("Guidelines", "hash", counts.guidelines),
            *_lengths(counts),
            *_agreement(counts.agreement.agreement()),
        ]
    )


class _Counts:
    """Counts of preferences. They hold no texts."""

    def __init__(self) -> None:
        self.total = 0
        self.agreement = AgreementCounter()
        self.contents: set[int] = set()
        self.sizes = Counter[int]()  # completions of a comparison
        self.first, self.last = math.inf, -math.inf  # seconds since 1970
        self.better_first = Counter[bool]()  # whether the better one was shown first
        self.verdicts = Counter[str]()
        self.ties = self.notes = 0
        self.sources, self.labellers, self.choices = Counter[str](), Counter[str](), Counter[str]()
        self.strengths, self.flags, self.guidelines = Counter[str](), Counter[str](), Counter[str]()
        self.lengths = {unit: (array("q"), array("q")) for unit in _UNITS}  # of the better and the worse of each pair

    def add(self, preference: Preference) -> None:
        """Count a preference."""
        comparison, judgement = preference.comparison, preference.judgement
        self.total += 1
        self.agreement.add(preference)
        self.contents.add(content_hash(preference))
        self.sizes[len(comparison.completions)] += 1
        if judgement.time is not None:
            self.first, self.last = min(self.first, judgement.time), max(self.last, judgement.time)
        if judgement.order_shown and judgement.choice in ("a", "b"):
            self.better_first[judgement.order_shown[0] in judgement.ranking[0]] += 1
        self.verdicts[judgement.verdict] += 1
        self.ties += is_tie(judgement)
        self.notes += bool(judgement.note)
        self.sources[_source(preference)] += 1
        self.labellers[judgement.labeller] += 1
        self.choices[_choice(preference)] += 1
        if len(judgement.ranking) > 1:
            self.strengths[str(judgement.strength)] += 1
        self.flags.update(judgement.flags)
        self.guidelines[judgement.guidelines] += 1
        pairs = list(ranked_pairs(judgement))
        for unit, measure in _UNITS.items():
            lengths = [measure(completion) for completion in comparison.completions]
            for side, found in enumerate(self.lengths[unit]):
                found.extend(lengths[pair[side]] for pair in pairs)


def _overview(counts: _Counts) -> list[str]:
    total, agreement = counts.total, counts.agreement
    facts = {
        "judgements": str(total),
        "comparisons": str(agreement.comparisons),
        "duplicates": str(total - len(counts.contents)),
        "comparisons judged more than once": str(agreement.repeated),
        "completions per comparison": ", ".join(f"{k} ({n})" for k, n in sorted(counts.sizes.items())) or "-",
        "ties": _share(counts.ties, total),
        "both bad": _share(counts.verdicts["both_bad"], total),
        "skipped": _share(counts.verdicts["skip"], total),
        "the better one was shown first": _share(counts.better_first[True], counts.better_first.total()),
        "with a note": str(counts.notes),
        "judged": f"{_day(counts.first)} to {_day(counts.last)} (UTC)" if counts.first <= counts.last else "-",
    }
    return _table(("", ""), facts.items())


def _lengths(counts: _Counts) -> list[str]:
    parts = ["## Lengths", ""]
    table = []
    for unit, sides in counts.lengths.items():
        table += [(name, unit, *_quartiles(side)) for name, side in zip(("chosen", "rejected"), sides, strict=True)]
        longer = sum(map(gt, *sides))
        unequal = sum(map(ne, *sides))
        low, high = wilson_interval(longer, unequal)
        share = f"{longer / unequal:.1%} (95% interval {low:.1%} to {high:.1%})" if unequal else "-"
        parts.append(f"- The longer one by {unit} is chosen in {share} of {unequal} pairs of unequal length.")
    return [*parts, "", *_table(("completion", "unit", "lower quartile", "median", "upper quartile"), table), ""]


def _agreement(found: Agreement) -> list[str]:
    pairs = [pair for pair in found.pairs if pair.kappa.n]
    selves = [one for one in found.selves if one.units]
    parts: list[str] = []
    if pairs:
        parts += ["## Agreement between labellers", ""]
        parts += [f"Krippendorff's alpha: {_number(found.alpha)} over {found.units} pairs of completions.", ""]
        cells = [
            (
                _name(pair.first),
                _name(pair.second),
                str(pair.kappa.n),
                f"{pair.kappa.observed:.1%}",
                _number(pair.kappa.value),
                " to ".join(map(_number, pair.kappa.interval)),
            )
            for pair in pairs
        ]
        parts += [*_table(("", "", "both judged", "agree", "Cohen's kappa", "95% interval"), cells), ""]
    if selves:
        parts += ["## Agreement with oneself", ""]
        repeats = [(_name(one.labeller), str(one.units), f"{one.observed:.1%}", _number(one.alpha)) for one in selves]
        parts += [*_table(("labeller", "judged again", "agree", "Krippendorff's alpha"), repeats), ""]
    return parts


def _number(value: float) -> str:
    """Format a coefficient with three decimals, or as undefined where it is NaN."""
    return "undefined" if math.isnan(value) else f"{value:.3f}"


def _name(text: str) -> str:
    """Escape `text` from others for Markdown: on one line, and never markup."""
    shown = "".join(one if one.isprintable() or one in _JOINERS else f"\\u{ord(one):04x}" for one in text)
    return shown.translate(_ENTITIES) or "(none)"


def _quartiles(values: array[int]) -> tuple[str, ...]:
    if not values:
        return ("-", "-", "-")
    return tuple(f"{value:g}" for value in quantiles(values * 2 if len(values) == 1 else values, method="inclusive"))


def _source(row: Preference) -> str:
    return ", ".join(sorted({origin.source for origin in row.comparison.origins}))


def _choice(row: Preference) -> str:
    choice = row.judgement.choice
    names = {"a": "one is better", "b": "one is better", "both_bad": "both bad", None: "ranking"}
    return names.get(choice, str(choice))


def _share(count: int, total: int) -> str:
    return f"{count} ({count / total:.1%})" if total else "-"


def _day(time: float) -> str:
    return f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d}"


def _counted(heading: str, what: str, counts: Counter[str]) -> list[str]:
    """Return a section with a table of `counts`, the most frequent first; no lines where every key is empty."""
    if not any(counts):
        return []
    order = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [f"## {heading}", "", *_table((what, "judgements"), [(_name(key), str(count)) for key, count in order]), ""]


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [headings, ["---"] * len(headings), *rows]
    return [f"| {' | '.join(cells)} |" for cells in lines]
