"""Groups of completions to one prompt that were compared: how preferences become them, and how they are split."""

from __future__ import annotations

import hashlib
import json
from array import array
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from trainer.config.reward_model import PreferenceDataConfig
from trainer.data import split_examples
from trainer.errors import DataError, UsageError
from trainer.fitting.micro_batches import micro_batch_rows
from trainer.plurals import counted
from trainer.preference_data.encoders import Encoder
from trainer.preferences.records import Comparison, Judgement, Preference, Text, ranked_pairs, tied_pairs

Progress = Callable[[int, int], None]  # groups done, groups in all

_LEARNT = 5  # leading fields of `Pair` that go into the fingerprint; the comparison's key does not


class Pair(NamedTuple):
    """Two completions of a group, by their index in it."""

    better: int
    worse: int
    is_tie: bool  # if true, neither is better
    strength: int
    source: str  # where it comes from; "" if unknown
    key: str = ""  # key of its comparison


class Ranking(NamedTuple):
    """Three or more completions of a group, by their index in it."""

    places: tuple[int, ...]
    ranks: tuple[int, ...]  # rank of each; 0 is the best


@dataclass(slots=True)
class Group:
    """Completions to one prompt that judgements link. Each is encoded once, however often it is judged."""

    prompt: int  # number of the prompt; groups with the same prompt stay on one side of the split
    sequences: list[Sequence[int]] = field(default_factory=list)  # prompt and completion
    completions: list[int] = field(default_factory=list)  # length of each completion, tokens
    judged: list[tuple[list[Pair], Ranking | None]] = field(default_factory=list)  # pairs and ranking of each judgement
    number: int = 0  # of its first preference, counted from 0
    prompt_text: Text = ""
    columns: dict[str, Any] = field(default_factory=dict)  # of its first comparison
    texts: list[Text] = field(default_factory=list)  # text of each completion

    @property
    def pairs(self) -> list[Pair]:
        """All pairs of all judgements."""
        return [pair for pairs, _ in self.judged for pair in pairs]

    @property
    def longest(self) -> int:
        """Length of its longest sequence, tokens."""
        return max(map(len, self.sequences))


def group_preferences(
    preferences: Iterable[Preference], encoder: Encoder, config: PreferenceDataConfig
) -> tuple[list[Group], list[str]]:
    """Encode `preferences` and put those of one prompt that share a completion into one group.

    Returns the groups in the order of the source, and warnings for the user, one line each.

    Judgements `both_bad` and `skip` and pairs of completions with the same tokens are ignored, and so are comparisons
    with a too long sequence if `too_long = "drop"`; the warnings count them. Raises DataError without a decided pair.
    """
    counts: Counter[str] = Counter()
    by_prompt: dict[Hashable, list[_Judged]] = {}
    for number, preference in enumerate(preferences):
        counts["all"] += 1
        judgement, comparison = preference.judgement, preference.comparison
        if judgement.verdict != "ranked":
            counts[judgement.verdict] += 1
            continue
        sequences = [encoder.sequence(comparison.prompt, text, number) for text in comparison.completions]
        if any(sequence.is_cut for sequence in sequences):
            counts["cut"] += 1
            if config.too_long == "drop":
                continue
        prompt = comparison.prompt
        key: Hashable = prompt if isinstance(prompt, str) else (json.dumps(prompt, sort_keys=True),)
        # As arrays, because a list of ids takes nine times the memory.
        tokens = [array("i", sequence.tokens) for sequence in sequences]
        lengths = [sequence.completion for sequence in sequences]
        by_prompt.setdefault(key, []).append(_Judged(number, tokens, lengths, judgement, comparison))
    groups: list[Group] = []
    for number, key in enumerate(list(by_prompt)):
        found = _groups(number, by_prompt.pop(key), counts)  # popped, so that it is freed
        groups += [group for group in found if group.judged]
    _check(counts, config)
    return groups, _warnings(counts, config)


def split_groups(groups: Sequence[Group], eval_fraction: float, seed: int) -> tuple[list[Group], list[Group]]:
    """Split `groups` as `split_examples` does; all of a prompt stay on one side."""
    return split_examples(groups, lambda group: group.prompt, eval_fraction, seed)


def micro_batches(groups: Sequence[Group], budget: int, progress: Progress) -> Iterator[list[Group]]:
    """Yield `groups` in parts of similar length whose padded tokens stay within `budget`, the longest first.

    A group over the budget forms its own part. progress: called after each part.
    """
    longest, counts = [group.longest for group in groups], [len(group.sequences) for group in groups]
    for rows in micro_batch_rows(longest, budget, counts=counts, progress=progress):
        yield [groups[row] for row in rows]


def fingerprint(groups: Sequence[Group]) -> str:
    """Return a SHA-256 hash of everything in `groups` that a model learns from, including their order.

    The hashed text is a JSON list, written group by group, so that it is never whole in memory.
    """
    digest, encode = hashlib.sha256(b"["), json.JSONEncoder().encode
    for place, group in enumerate(groups):
        judged = [([pair[:_LEARNT] for pair in pairs], rank) for pairs, rank in group.judged]
        content = encode([group.prompt, [list(tokens) for tokens in group.sequences], judged])
        digest.update((f", {content}" if place else content).encode())
    digest.update(b"]")
    return digest.hexdigest()


def changed_preferences(config: PreferenceDataConfig) -> UsageError:
    """Return the error for a run that is resumed on other preferences than it began with."""
    return UsageError(f"the preferences in '{config.preferences}' have changed since this run began; start a new run")


class _Judged(NamedTuple):
    number: int
    sequences: list[array[int]]
    lengths: list[int]  # of the completions, tokens
    judgement: Judgement
    comparison: Comparison


def _groups(prompt: int, judged: Sequence[_Judged], counts: Counter[str]) -> list[Group]:
    """Build the groups of one prompt: judgements that share completions go into one group."""
    leader: dict[bytes, bytes] = {}

    def find(tokens: bytes) -> bytes:
        while leader.setdefault(tokens, tokens) != tokens:
            tokens = leader[tokens]
        return tokens

    keys = [[sequence.tobytes() for sequence in one.sequences] for one in judged]
    for first, *others in keys:
        for other in others:
            leader[find(other)] = find(first)
    groups: dict[bytes, Group] = {}
    places: dict[bytes, int] = {}
    said: set[tuple[object, ...]] = set()
    for one, tokens in zip(judged, keys, strict=True):
        comparison = one.comparison
        new = Group(prompt, number=one.number, prompt_text=comparison.prompt, columns=comparison.columns)
        group = groups.setdefault(find(tokens[0]), new)
        for key, sequence, length, text in zip(tokens, one.sequences, one.lengths, comparison.completions, strict=True):
            if key not in places:
                places[key] = len(group.sequences)
                group.sequences.append(sequence)
                group.completions.append(length)
                group.texts.append(text)
        found = _pairs(one, [places[key] for key in tokens], counts)
        if found[0]:
            group.judged.append(found)
        words = (frozenset(tokens), tuple(frozenset(tokens[place] for place in rank) for rank in one.judgement.ranking))
        counts["repeated"] += words in said
        said.add(words)
    return list(groups.values())


def _pairs(one: _Judged, places: Sequence[int], counts: Counter[str]) -> tuple[list[Pair], Ranking | None]:
    judgement, pairs, key = one.judgement, [], one.comparison.key
    source = one.comparison.origins[0].source if one.comparison.origins else ""
    for is_tie, found in ((False, ranked_pairs(judgement)), (True, tied_pairs(judgement))):
        for better, worse in found:
            if places[better] == places[worse]:
                counts["equal"] += 1
                continue
            pairs.append(Pair(places[better], places[worse], is_tie, judgement.strength, source, key))
            counts["ties" if is_tie else "decided"] += 1
    ranks = {places[place]: rank for rank, group in enumerate(judgement.ranking) for place in group}
    return pairs, Ranking(tuple(ranks), tuple(ranks.values())) if len(ranks) > 2 else None


def _check(counts: Counter[str], config: PreferenceDataConfig) -> None:
    if counts["decided"]:
        return
    if not counts["all"]:
        raise DataError(f"data.preferences = '{config.preferences}' has no preferences: label some, or name another")
    found = [
        f"{counts[name]} {words}"
        for name, words in (
            ("ties", "tied"),
            ("both_bad", "where both are bad"),
            ("skip", "skipped"),
            ("equal", "between equal completions"),
            ("cut", f"longer than data.max_tokens = {config.max_tokens}"),
        )
        if counts[name]
    ]
    raise DataError(
        f"no preference to learn from in data.preferences = '{config.preferences}': of "
        f"{counted(counts['all'], 'judgement')} none puts one completion above another ({', '.join(found)}): label more"
    )


def _warnings(counts: Counter[str], config: PreferenceDataConfig) -> list[str]:
    done = "ignored" if config.too_long == "drop" else "only the last tokens are kept"
    found = (
        (counts["both_bad"] + counts["skip"], "judgement", "skipped or both bad, ignored"),
        (counts["cut"], "comparison", f"longer than data.max_tokens = {config.max_tokens}, {done}"),
        (counts["equal"], "pair", "of the same tokens twice, ignored"),
        (counts["repeated"], "judgement", "of completions judged before; together they count once"),
    )
    return [f"{counted(count, noun)} {words}" for count, noun, words in found if count]
