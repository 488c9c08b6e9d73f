"""The difference between two texts: words that are the same, gone or new."""

from __future__ import annotations

import re
from collections import Counter
from difflib import SequenceMatcher
from itertools import accumulate, chain, groupby
from typing import Literal

Part = tuple[Literal["same", "gone", "new"], str]
"""A stretch of text that is in both (same), only in the old one (gone), or only in the new one (new)."""

_MOST_PAIRS = 200_000  # of equal words in the two texts, for the search of matches: 4,000 words each take 50 ms
_IDEOGRAMS = r"\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"  # written without spaces, so each is a word
_MARKS = r"\u0300-\u036f"  # combine with the letter before
_WORD = re.compile(rf"([{_IDEOGRAMS}]|(?:(?![{_IDEOGRAMS}])[\w{_MARKS}])+|[^\w\s{_MARKS}]+|\A)(\s*)")


def word_diff(old: str, new: str) -> list[Part]:
    """Compare two texts by words and punctuation, and where these are the same, by the spaces after them.

    The parts are in order: same and gone joined are the old text, same and new joined are the new one. In long texts,
    the most frequent words count as the same only next to others that do.
    """
    before, after = _WORD.findall(old), _WORD.findall(new)
    words, new_words = [word for word, _ in before], [word for word, _ in after]
    matcher = SequenceMatcher(None, words, new_words, autojunk=False)
    counts, new_counts = Counter(words), Counter(new_words)
    pairs = {word: times * new_counts[word] for word, times in counts.items() if word in new_counts}
    rarest_first = sorted(pairs, key=pairs.__getitem__)
    sums = accumulate(pairs[word] for word in rarest_first)
    for word, total in zip(rarest_first, sums, strict=True):
        if total > _MOST_PAIRS:  # a match of other words can still extend over them
            del matcher.b2j[word]  # type: ignore[attr-defined]  # documented, and not in typeshed
    parts: list[Part] = []
    for tag, start, end, new_start, new_end in matcher.get_opcodes():
        if tag == "equal":
            for (word, space), (_, new_space) in zip(before[start:end], after[new_start:new_end], strict=True):
                parts += [("same", word), *_changed(space, new_space)]
        else:
            words_before, words_after = before[start:end], after[new_start:new_end]
            parts += _changed("".join(chain(*words_before)), "".join(chain(*words_after)))
    by_kind = groupby((part for part in parts if part[1]), key=lambda part: part[0])
    return [(kind, "".join(text for _, text in group)) for kind, group in by_kind]


def _changed(old: str, new: str) -> list[Part]:
    """Return the parts that replace `old` by `new`; spaces that both end with are the same."""
    words, new_words = old.rstrip(), new.rstrip()
    space = old[len(words) :]
    if space != new[len(new_words) :]:
        return [("gone", old), ("new", new)]
    return [("gone", words), ("new", new_words), ("same", space)]
