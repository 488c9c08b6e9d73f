"""What a labelling session asks: items, the queues that they come from, and how a session stands."""

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
    repeats: int = 0  # id of the labeller's own label that is asked for again; 0 for none


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionItem:
    """An item of a session. label: that which stands, made in this session."""

    position: int  # in the session, from 0
    item: Item
    label: Preference | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePlan:
    """One queue of a session.

    source: a run's folder; of "dataset" a file or a datasets name. models: reward models that "uncertain" (the first)
    and "disagreement" (all) order by. keys: of the comparisons that "again" asks for.
    """

    queue: Queue
    weight: float = 1.0  # share of the items, against the other queues'
    source: str = ""
    models: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionPlan:
    """What a session asks.

    repeats: share of the items that ask for a label of the labeller's own again, with the sides swapped. random: least
    share of the items of "uncertain" and "disagreement" that are drawn at random instead. limit: items of the
    session; 0 for all that there are. seed: of what is drawn, and of the sides.
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
    items: int  # put in so far
    done: int  # of these, those with a label that stands, skips too
    elsewhere: int = 0  # of the others, those that the labeller has judged in another session or imported: not asked

    @property
    def left(self) -> int:
        """Items that are still to be judged."""
        return self.items - self.done - self.elsewhere


@dataclass(frozen=True, slots=True)
class Share:
    """count of total, with Wilson's 95 % interval; NaN where there is nothing."""

    count: float  # a tie may count half
    total: int
    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How a session goes. Seconds are those between being shown and being judged; NaN where nothing is known."""

    done: int
    left: int | None  # of the plan's limit, or of what was put in once no more comes; None: not known
    per_hour: float  # over the last 50 labels, pauses of more than 5 minutes left out
    median_seconds: float
    eta_seconds: float
    streak: int  # labels since the last pause of more than 5 minutes
    left_side: Share  # of the decided pairs: the one on the left was chosen
    longer: Share  # of the decided pairs whose completions differ in length: the longer one was chosen
    same: Share  # of the repeats: judged as before
    kappa: float  # Cohen's, of the repeats against what they repeat
