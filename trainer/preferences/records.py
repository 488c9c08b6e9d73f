"""Records of preferences: what was compared, how and by whom it was judged, where the completions came from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any, Literal

Messages = list[dict[str, str]]
Text = str | Messages  # plain text, or chat messages with the keys role and content
Choice = Literal["a", "b", "tie", "both_bad", "skip"]
Verdict = Literal["ranked", "both_bad", "skip"]
STRENGTHS = (1, 2, 3)  # slightly, clearly, strongly
FLAGGED = "flagged"  # in a judgement's flags: the item deserves a second look
LATEST = 2**36  # bound of times that have a date, seconds since 1970
_PER_COMPLETION = ("scores", "lengths", "reward_models")  # our columns with a value for each completion
_canonical = json.JSONEncoder(sort_keys=True).encode  # made once: json.dumps would make one at each call


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Origin of a completion, as far as it is known."""

    source: str = ""  # a file, a dataset, or "run"
    run: str = ""
    iteration: int | None = None
    row: int | None = None  # within the iteration's samples
    checkpoint: str = ""
    writer: str = ""  # policy, reference, human, or the name of a model
    sampling: dict[str, Any] = field(default_factory=dict)  # temperature and so on


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A prompt and k >= 2 completions to it. The order of the completions means nothing.

    columns: other columns of the source's row; plain JSON values.
    """

    prompt: Text
    completions: tuple[Text, ...]
    origins: tuple[Origin, ...] = ()  # one per completion, or none at all
    columns: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Identifier of these completions to this prompt, in whatever order; 32 hex digits."""
        texts = [_canonical(self.prompt), *sorted(map(_canonical, self.completions))]
        return hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:32]

    @property
    def order(self) -> tuple[int, ...]:
        """Places of the completions, sorted by their text as JSON; equal ones stay in their order."""
        said = list(map(_canonical, self.completions))
        return tuple(sorted(range(len(said)), key=said.__getitem__))

    def order_of(self, other: Comparison) -> tuple[int, ...]:
        """Return the place here of each completion of `other`, which has the same key."""
        places = dict(zip(other.order, self.order, strict=True))
        return tuple(places[place] for place in range(len(places)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """One person's judgement of one comparison.

    ranking: groups of places in `Comparison.completions`, best first; the completions of a group are equally good.
    Empty unless the verdict is "ranked".
    """

    ranking: tuple[tuple[int, ...], ...] = ()
    verdict: Verdict = "ranked"
    strength: int = 1  # one of STRENGTHS
    labeller: str = ""
    note: str = ""
    flags: tuple[str, ...] = ()
    seconds: float | None = None  # from being shown to being judged
    order_shown: tuple[int, ...] = ()  # places in `Comparison.completions`, as shown from left to right
    guidelines: str = ""  # hash of the text that the labeller followed
    time: float | None = None  # seconds since 1970

    @classmethod
    def chosen(cls, choice: Choice, **more: Any) -> Judgement:
        """Build a judgement of a pair: a is the first completion, b the second."""
        if choice in ("both_bad", "skip"):
            return cls(verdict=choice, **more)
        rankings: dict[Choice, tuple[tuple[int, ...], ...]] = {"a": ((0,), (1,)), "b": ((1,), (0,)), "tie": ((0, 1),)}
        return cls(ranking=rankings[choice], **more)

    @property
    def choice(self) -> Choice | None:
        """Choice between two completions; None for a ranking of more."""
        if self.verdict != "ranked":
            return self.verdict
        choices: dict[tuple[tuple[int, ...], ...], Choice] = {((0,), (1,)): "a", ((1,), (0,)): "b"}
        return "tie" if sorted(map(sorted, self.ranking)) == [[0, 1]] else choices.get(self.ranking)

    def reordered(self, order: Sequence[int]) -> Judgement:
        """Return the same judgement with completion i at place `order[i]`."""
        return replace(
            self,
            ranking=tuple(tuple(sorted(order[place] for place in group)) for group in self.ranking),
            order_shown=tuple(order[place] for place in self.order_shown),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Preference:
    """A comparison with a judgement of it. id: of the label event in the store; 0 outside a store.

    place: file and line that it was read from, for messages; empty if it is from a store.
    """

    comparison: Comparison
    judgement: Judgement
    id: int = 0
    place: str = field(default="", compare=False, repr=False)


def contents(text: Text) -> list[str]:
    """Return the text, or the content of each message."""
    return [text] if isinstance(text, str) else [message["content"] for message in text]


def columns_at(columns: dict[str, Any], places: Sequence[int], count: int) -> dict[str, Any]:
    """Return the columns of `count` completions for those at `places`, in that order."""

    def at(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: at(one) for name, one in value.items()}
        return [value[place] for place in places] if isinstance(value, list) and len(value) == count else value

    return {name: at(value) if name in _PER_COMPLETION else value for name, value in columns.items()}


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


def content_hash(preference: Preference) -> int:
    """Return a hash that is the same for preferences that say the same, whatever the order of their completions."""
    comparison, judgement = preference.comparison, preference.judgement
    texts = [str(completion) for completion in comparison.completions]
    ranked = tuple(tuple(sorted(texts[place] for place in group)) for group in judgement.ranking)
    said = (judgement.verdict, judgement.strength, judgement.labeller, judgement.note, judgement.time)
    return hash((str(comparison.prompt), *sorted(texts), ranked, said))
