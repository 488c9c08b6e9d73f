"""A data card for a set of preferences: its numbers as a page of Markdown, to publish with it."""

from __future__ import annotations

import math
import string
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from operator import gt, ne
from statistics import median

from trainer.confidence import wilson_interval
from trainer.preferences.agreement import AgreementCounter
from trainer.preferences.conversations import length_in_characters
from trainer.preferences.records import Preference, content_hash, is_tie, ranked_pairs

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


def render_data_card(preferences: Iterable[Preference]) -> str:
    """Return the data card of `preferences`; the same ones in the same order give the same text.

    Lengths are those of every pair of completions where one is better: a ranking of k without ties counts k (k - 1) / 2
    times. Names and paths from others are never read as markup. The preferences are read one by one, and can be freed.
    """
    counts: dict[str, Counter[str]] = {heading: Counter() for heading in _SECTIONS}
    completions, shown_first = Counter[int](), Counter[bool]()
    contents, times = set[int](), array("d")
    better, worse = array("q"), array("q")  # characters of each pair
    agreement = AgreementCounter()
    total = ties = notes = 0
    for preference in preferences:
        comparison, judgement = preference.comparison, preference.judgement
        total += 1
        agreement.add(preference)
        contents.add(content_hash(preference))
        completions[len(comparison.completions)] += 1
        ties += is_tie(judgement)
        notes += bool(judgement.note)
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
    found = agreement.agreement()
    alpha = f"Krippendorff's alpha {'undefined' if math.isnan(found.alpha) else f'{found.alpha:.3f}'}"
    again = [f"{_name(one.labeller)} {one.observed:.1%}" for one in found.selves if one.units]
    numbers = {
        "judgements": str(total),
        "comparisons": str(agreement.comparisons),
        "duplicates": str(total - len(contents)),
        "comparisons judged more than once": str(agreement.repeated),
        "completions per comparison": ", ".join(f"{k} ({n})" for k, n in sorted(completions.items())) or "-",
        "ties": _share(ties, total),
        "both bad": _share(counts["Choices"]["both bad"], total),
        "skipped": _share(counts["Choices"]["skip"], total),
        "the better one was shown first": _share(shown_first[True], shown_first.total()),
        "the longer one is better": _share_with_interval(sum(map(gt, better, worse)), sum(map(ne, better, worse))),
        "characters of the better one, median": f"{median(better):g}" if better else "-",
        "characters of the worse one, median": f"{median(worse):g}" if worse else "-",
        "agreement between labellers": f"{alpha} in {found.units} common units" if found.units else "-",
        "agreement with oneself": ", ".join(again) or "-",
        "with a note": str(notes),
        "judged": f"{_day(min(times))} to {_day(max(times))} (UTC)" if times else "-",
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


def _share_with_interval(count: int, total: int) -> str:
    low, high = wilson_interval(count, total)
    return f"{count / total:.1%} of {total} pairs (95% interval {low:.1%} to {high:.1%})" if total else "-"


def _day(time: float) -> str:
    return f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d}"


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [headings, ["---"] * len(headings), *rows]
    return [f"| {' | '.join(cells)} |" for cells in lines]
