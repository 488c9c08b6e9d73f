"""A data card for a set of preferences: a page of Markdown to publish with it."""

from __future__ import annotations

import math
import string
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from itertools import chain
from statistics import quantiles

from trainer.confidence import wilson_interval
from trainer.preferences.agreement import Agreement, measure_agreement
from trainer.preferences.conversations import length_in_characters, length_in_words
from trainer.preferences.records import Preference, content_hash, is_tie, ranked_pairs

_ENTITIES = {ord(mark): f"&#{ord(mark)};" for mark in string.punctuation if mark not in "-_.,:/()"}
Pair = tuple[int, int]  # lengths of a better and a worse completion


def render_data_card(preferences: Iterable[Preference]) -> str:
    """Return the data card of `preferences`; the same ones in the same order give the same text.

    Lengths are those of every pair of completions where one is better: a ranking of k without ties counts k (k - 1) / 2
    times. Names and paths from others are never read as markup.
    """
    rows = list(preferences)
    decided = [row.judgement for row in rows if len(row.judgement.ranking) > 1]
    return "\n".join(
        [
            "# Preferences",
            "",
            *_overview(rows),
            "",
            "Licence: *to be filled in*",
            "",
            *_counted("Sources", "source", Counter(map(_source, rows))),
            *_counted("Labellers", "labeller", Counter(row.judgement.labeller for row in rows)),
            *_counted("Choices", "choice", Counter(map(_choice, rows))),
            *_counted("Strength, without ties", "strength", Counter(str(one.strength) for one in decided)),
            *_counted("Flags", "flag", Counter(chain.from_iterable(row.judgement.flags for row in rows))),
            *_counted("Guidelines", "hash", Counter(row.judgement.guidelines for row in rows)),
            *_lengths(rows),
            *_agreement(measure_agreement(rows)),
        ]
    )


def _overview(rows: Sequence[Preference]) -> list[str]:
    keys = Counter(row.comparison.key for row in rows)
    sizes = Counter(len(row.comparison.completions) for row in rows)
    times = [row.judgement.time for row in rows if row.judgement.time is not None]
    shown = [
        row.judgement.order_shown[0] in row.judgement.ranking[0]
        for row in rows
        if row.judgement.order_shown and row.judgement.choice in ("a", "b")
    ]
    facts = {
        "judgements": str(len(rows)),
        "comparisons": str(len(keys)),
        "duplicates": str(len(rows) - len(set(map(content_hash, rows)))),
        "comparisons judged more than once": str(sum(count > 1 for count in keys.values())),
        "completions per comparison": ", ".join(f"{k} ({count})" for k, count in sorted(sizes.items())) or "-",
        "ties": _share(sum(is_tie(row.judgement) for row in rows), len(rows)),
        "both bad": _share(sum(row.judgement.verdict == "both_bad" for row in rows), len(rows)),
        "skipped": _share(sum(row.judgement.verdict == "skip" for row in rows), len(rows)),
        "the better one was shown first": _share(sum(shown), len(shown)),
        "with a note": str(sum(bool(row.judgement.note) for row in rows)),
        "judged": f"{_day(min(times))} to {_day(max(times))} (UTC)" if times else "-",
    }
    return _table(("", ""), facts.items())


def _lengths(rows: Sequence[Preference]) -> list[str]:
    parts = ["## Lengths", ""]
    table = []
    for unit, measure in (("characters", length_in_characters), ("words", length_in_words)):
        pairs = _pairs(rows, measure)
        for name, side in (("chosen", 0), ("rejected", 1)):
            table.append((name, unit, *_quartiles([pair[side] for pair in pairs])))
        longer = sum(better > worse for better, worse in pairs)
        unequal = sum(better != worse for better, worse in pairs)
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
    shown = "".join(one if one.isprintable() else f"\\u{ord(one):04x}" for one in text)
    return shown.translate(_ENTITIES) or "(none)"


def _pairs(rows: Sequence[Preference], measure: Callable[..., int]) -> list[Pair]:
    pairs: list[Pair] = []
    for row in rows:
        lengths = [measure(completion) for completion in row.comparison.completions]
        pairs += [(lengths[better], lengths[worse]) for better, worse in ranked_pairs(row.judgement)]
    return pairs


def _quartiles(values: list[int]) -> tuple[str, ...]:
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
