"""Records of preferences and of labelling sessions, and what can be said of their texts alone."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le, Lt
from pydantic import AllowInfNan, Strict

Messages = list[dict[str, str]]
Text = str | Messages  # plain text, or chat messages with the keys role and content
Choice = Literal["a", "b", "tie", "both_bad", "skip"]
Verdict = Literal["ranked", "both_bad", "skip"]
Queue = Literal["samples", "policy-reference", "dataset", "uncertain", "again", "repeat"]
Outcome = str | tuple[tuple[int, ...], ...]  # verdict or ranking
STRENGTHS = (1, 2, 3)  # slightly, clearly, strongly
Strength = Annotated[int, Strict(), Ge(1), Le(3)]
HUMAN, ASSISTANT = "\n\nHuman:", "\n\nAssistant:"  # how a turn of an HH-RLHF transcript begins
_TURN = re.compile(r"\n\n(Human|Assistant):")
_ROLES = {"Human": "user", "Assistant": "assistant"}
FLAGGED = "flagged"  # in a judgement's flags: the item deserves a second look
Whole = Annotated[int, Strict()]
Number = Annotated[float, Strict(), AllowInfNan(False)]
Moment = Annotated[Number, Ge(0), Lt(2**36)]  # seconds; as a time since 1970 it has a date
_PER_COMPLETION = ("scores", "lengths", "reward_models")  # our columns with a value for each completion
_canonical = json.JSONEncoder(sort_keys=True).encode  # made once: json.dumps would make one at each call


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Origin of a completion, as far as it is known."""

    source: str = ""  # a file, a dataset, or "run"
    run: str = ""
    iteration: Whole | None = None
    row: Whole | None = None  # within the iteration's samples
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
        texts = list(map(_canonical, self.completions))
        return tuple(sorted(range(len(texts)), key=texts.__getitem__))


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """One person's judgement of one comparison.

    ranking: groups of places in `Comparison.completions`, best first; the completions of a group are equally good.
    Empty unless the verdict is "ranked".
    """

    ranking: tuple[tuple[Whole, ...], ...] = ()
    verdict: Verdict = "ranked"
    strength: Strength = 1
    labeller: str = ""
    note: str = ""
    flags: tuple[str, ...] = ()
    seconds: Moment | None = None  # from being shown to being judged
    order_shown: tuple[Whole, ...] = ()  # places in `Comparison.completions`, as shown from left to right
    guidelines: str = ""  # hash of the text that the labeller followed
    time: Moment | None = None  # seconds since 1970

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

    @property
    def outcome(self) -> Outcome:
        """Verdict, or the ranking with each group sorted: the same for judgements that agree."""
        return self.verdict if self.verdict != "ranked" else tuple(tuple(sorted(group)) for group in self.ranking)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preference:
    """A comparison with a judgement of it. id: of the label event in the store; 0 outside a store.

    place: file and line that it was read from, for messages; empty if it is from a store.
    """

    comparison: Comparison
    judgement: Judgement
    id: int = 0
    place: str = field(default="", compare=False, repr=False)

    def at(self, *places: int) -> Preference:
        """Return the preference of only the completions at `places`, in that order."""
        comparison, judgement, count = self.comparison, self.judgement, len(self.comparison.completions)
        new = {place: number for number, place in enumerate(places)}

        def values(value: Any) -> Any:
            if isinstance(value, dict):
                return {name: values(one) for name, one in value.items()}
            return [value[place] for place in places] if isinstance(value, list) and len(value) == count else value

        columns = comparison.columns.items()
        ranking = (tuple(sorted(new[place] for place in group if place in new)) for group in judgement.ranking)
        return Preference(
            comparison=Comparison(
                prompt=comparison.prompt,
                completions=tuple(comparison.completions[place] for place in places),
                origins=tuple(comparison.origins[place] for place in places) if comparison.origins else (),
                columns={name: values(value) if name in _PER_COMPLETION else value for name, value in columns},
            ),
            judgement=replace(
                judgement,
                ranking=tuple(filter(None, ranking)),
                order_shown=tuple(new[place] for place in judgement.order_shown if place in new),
            ),
        )


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
    weight: Number = 1.0  # share of the items, relative to the other queues
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
    repeats: Number = 0.05
    random: Number = 0.2
    limit: Whole = 0
    seed: Whole = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRecord:
    """A session in the store."""

    id: int
    labeller: str
    plan: SessionPlan
    guidelines: str  # hash of the text; empty for none
    began: Number  # seconds since 1970
    items: Whole  # added so far
    done: Whole  # items with a label that is not undone, including skips
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
    rest = (judgement.verdict, judgement.strength, judgement.labeller, judgement.note, judgement.time)
    return hash((str(comparison.prompt), *sorted(texts), ranked, rest))
