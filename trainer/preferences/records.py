"""Records of preferences and of labelling sessions, and what can be said of their texts alone."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any, Literal

Messages = list[dict[str, str]]
Text = str | Messages  # plain text, or chat messages with the keys role and content
Choice = Literal["a", "b", "tie", "both_bad", "skip"]
Verdict = Literal["ranked", "both_bad", "skip"]
Queue = Literal["samples", "policy-reference", "dataset", "uncertain", "again", "repeat"]
STRENGTHS = (1, 2, 3)  # slightly, clearly, strongly
HUMAN, ASSISTANT = "\n\nHuman:", "\n\nAssistant:"  # how a turn of an HH-RLHF transcript begins
_TURN = re.compile(r"\n\n(Human|Assistant):")
_ROLES = {"Human": "user", "Assistant": "assistant"}
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A comparison to be judged, and how it is shown."""

    comparison: Comparison
    queue: Queue
    order: tuple[int, ...]  # places in `comparison.completions`, as shown from left to right
    repeats: int = 0  # id of the labeller's own label that this item repeats; 0 for none


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionItem:
    """An item of a session. label: the one made in this session, if it is not undone."""

    position: int  # in the session, from 0
    item: Item
    label: Preference | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePlan:
    """One queue of a session.

    source: a run's folder; for "dataset", a file or a datasets name. model: folder of the reward model that
    orders the pairs of "uncertain". keys: the comparisons that "again" asks for. columns: names of the columns of
    "dataset", as in "prompt=question".
    """

    queue: Queue
    weight: float = 1.0  # share of the items, relative to the other queues
    source: str = ""
    model: str = ""
    keys: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionPlan:
    """Plan of what a session asks.

    repeats: share of the items that ask for one of the labeller's own labels again, with the sides swapped. random:
    smallest share of the items of "uncertain" that are drawn at random instead. limit: number of
    items in the session; 0 for all that there are. seed: of the random draws and of the sides.
    """

    queues: tuple[QueuePlan, ...]
    repeats: float = 0.05
    random: float = 0.2
    limit: int = 0
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRecord:
    """A session in the store."""

    id: int
    labeller: str
    plan: SessionPlan
    guidelines: str  # hash of the text; empty for none
    began: float  # seconds since 1970
    items: int  # added so far
    done: int  # items with a label that is not undone, including skips
    elsewhere: int = 0  # other items that the labeller judged in another session or imported: not asked

    @property
    def left(self) -> int:
        """Number of items still to be judged."""
        return self.items - self.done - self.elsewhere


@dataclass(frozen=True, slots=True)
class Share:
    """`count` of `total` as a share, with Wilson's 95% interval; NaN where `total` is 0."""

    count: float  # a tie may count half
    total: int
    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Progress of a session; NaN where nothing is known."""

    done: int
    left: int | None  # of the plan's limit, or of the items added once no more come; None: not known
    per_hour: float  # over the last 50 labels, pauses of more than 5 minutes left out
    median_seconds: float  # from being shown to being judged
    eta_seconds: float
    streak: int  # labels since the last pause of more than 5 minutes
    left_side: Share  # decided pairs in which the left completion was chosen
    longer: Share  # decided pairs of unequal length in which the longer completion was chosen
    same: Share  # repeats judged as before
    kappa: float  # Cohen's, of the repeats against the labels that they repeat


def contents(text: Text) -> list[str]:
    """Return the text, or the content of each message."""
    return [text] if isinstance(text, str) else [message["content"] for message in text]


def length_in_characters(text: Text) -> int:
    """Return the number of characters of a text, or of the contents of messages."""
    return sum(map(len, contents(text)))


def as_messages(prompt: Text, completions: Sequence[Text]) -> tuple[Messages, tuple[Messages, ...]]:
    """Convert `prompt` and `completions` to chat messages.

    Messages stay as they are. A transcript is split into its turns, without the white space around them; neighbouring
    turns of one role are joined. Any other text prompt becomes a user message, and a text completion an assistant
    message.
    """
    if isinstance(prompt, str) and prompt.startswith(HUMAN) and prompt.endswith(ASSISTANT):
        turns = _turns(prompt.removesuffix(ASSISTANT))
        return turns, tuple(_turns(ASSISTANT + text) if isinstance(text, str) else text for text in completions)
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    return messages, tuple(
        [{"role": "assistant", "content": text}] if isinstance(text, str) else text for text in completions
    )


def answered(prompt: Messages, answer: Messages) -> Messages:
    """Return the conversation of `prompt` and `answer`, which goes on with a last message of the assistant in it."""
    if prompt[-1]["role"] == answer[0]["role"] == "assistant":
        whole = prompt[-1]["content"] + answer[0]["content"]
        return [*prompt[:-1], {**answer[0], "content": whole}, *answer[1:]]
    return [*prompt, *answer]


def _turns(transcript: str) -> Messages:
    """Split a transcript that begins with a turn into messages.

    Neighbouring turns of one role are joined, because many chat templates refuse them.
    """
    pieces = _TURN.split(transcript)[1:]
    messages: Messages = []
    for speaker, text in zip(pieces[::2], pieces[1::2], strict=True):
        role, content = _ROLES[speaker], text.strip()
        if messages and messages[-1]["role"] == role:
            messages[-1]["content"] = f"{messages[-1]['content']}\n\n{content}".strip()
        else:
            messages.append({"role": role, "content": content})
    return messages


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
