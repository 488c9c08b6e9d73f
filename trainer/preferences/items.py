"""Records of labelling sessions: items, the queues that they come from, and a session's progress."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trainer.preferences.records import Comparison, Preference

Queue = Literal["samples", "policy-reference", "dataset", "uncertain", "disagreement", "again", "repeat"]


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

    source: a run's folder; for "dataset", a file or a datasets name. models: the reward models that order the pairs;
    "uncertain" uses the first, "disagreement" all of them. keys: the comparisons that "again" asks for. columns: names
    of the columns of "dataset", as in "prompt=question".
    """

    queue: Queue
    weight: float = 1.0  # share of the items, relative to the other queues
    source: str = ""
    models: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionPlan:
    """Plan of what a session asks.

    repeats: share of the items that ask for one of the labeller's own labels again, with the sides swapped. random:
    smallest share of the items of "uncertain" and "disagreement" that are drawn at random instead. limit: number of
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
