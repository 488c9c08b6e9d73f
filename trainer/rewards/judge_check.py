"""A judge held against people: agreement with the labels of a store, and its bias to the left and to length."""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trainer.confidence import Interval, wilson_interval
from trainer.config.reward_sources import JudgeSource
from trainer.errors import UsageError, storage_error
from trainer.files import PRIVATE, write_whole
from trainer.preferences.queues import CHECKED, CHECKED_FORMAT
from trainer.preferences.records import Text, contents, ranked_pairs
from trainer.preferences.store import PreferenceStore
from trainer.reward_types import RewardInput
from trainer.rewards.code import Trust, trust_all
from trainer.rewards.judge_answers import Answers
from trainer.rewards.judge_reward import Contest, JudgeReward, judge_reward


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeReport:
    """Agreement of a judge with people on pairs of which they prefer one. Intervals are Wilson's, at 95%."""

    model: str
    mode: str
    pairs: int  # asked about
    no_answer: int  # of these, without an answer that makes sense: in no other number
    ties: int  # pairs that the judge calls equal
    agreement: Interval  # share in which it prefers what the person preferred; a tie counts half
    left: Interval  # share of its decided answers that choose the left side; NaN pointwise
    swayed: Interval  # share of the pairs that the side decides, left or right; NaN pointwise
    longer: Interval  # share in which it prefers the longer one, of the pairs that it decides and whose lengths differ
    people_longer: Interval  # the same of the people, on the same pairs
    tokens: float  # read and written by the judge; NaN if the endpoint does not say
    cost: float
    disputed: list[str]  # keys of the comparisons in which judge and person decide otherwise


@dataclass(frozen=True, slots=True)
class _Pair:
    key: str
    row: RewardInput  # with the better completion
    worse: str


def check_judge_against(source: JudgeSource, path: Path, *, most: int, trust: Trust = trust_all) -> JudgeReport:
    """Ask a judge about at most `most` pairs of the store at `path`, drawn at random, and write down the disputed ones.

    These, and what the judge said, are kept beside the store. trust: as for `build_rewards`. Raises RewardError,
    StorageError, and UsageError without pairs.
    """
    with PreferenceStore(path, create=False) as store:
        pairs = [
            _Pair(
                one.comparison.key,
                RewardInput(one.comparison.prompt, _text(one.comparison.completions[better]), [], {}, False),
                _text(one.comparison.completions[worse]),
            )
            for one in store.preferences()
            for better, worse in ranked_pairs(one.judgement)
        ]
    if not pairs:
        raise UsageError(f"no pair in '{path}' has a better completion: label some with ppo-workbench label")
    if len(pairs) > most:
        pairs = random.Random(0).sample(pairs, most)
    answers = Answers()
    answers.keep_in(path.with_name("judge.jsonl"), shared=False)
    judge = judge_reward(source, answers, trust=trust)
    contests, spent = _contests(judge, pairs)
    report = _report(source, pairs, contests, spent)
    place = path.with_name(CHECKED)
    content = {CHECKED_FORMAT.key: CHECKED_FORMAT.version, "time": time.time(), "disputed": report.disputed}
    with storage_error(f"cannot write '{place}'", "free space, or change the permissions"):
        write_whole(place, json.dumps(content) + "\n", mode=PRIVATE)
    return report


def _contests(judge: JudgeReward, pairs: Sequence[_Pair]) -> tuple[list[Contest], tuple[float, float]]:
    """Return what the judge says of each pair, the better completion first; and its tokens and their cost."""
    if judge.source.mode == "pairwise":
        found = judge.contests([(one.row, one.worse) for one in pairs])
        scored = judge.scored([], {}, [[reply for one in found for reply in one.replies]])
    else:
        rows = [row for one in pairs for row in (one.row, one.row._replace(completion=one.worse))]
        scored = judge(rows)
        found = []
        for better, worse in zip(scored.scores[::2], scored.scores[1::2], strict=True):
            if better is None or worse is None:
                found.append(Contest(None, ""))
            else:
                found.append(Contest((1 + (better > worse) - (better < worse)) / 2, ""))
    tokens, cost = (sum(scored.details.get(name, [0.0])) for name in ("tokens", "cost"))
    return found, (tokens, cost)


def _report(
    source: JudgeSource, pairs: Sequence[_Pair], contests: Sequence[Contest], spent: tuple[float, float]
) -> JudgeReport:
    points = [one.points for one in contests if one.points is not None]
    sides = [side for one in contests if one.points is not None for side in one.left]
    both = [one for one in contests if one.points is not None and one.left]
    decided = [
        (one, found.points)
        for one, found in zip(pairs, contests, strict=True)
        if found.points is not None and found.points != 0.5
    ]
    unequal = [
        (len(one.row.completion) > len(one.worse), points > 0.5)
        for one, points in decided
        if len(one.row.completion) != len(one.worse)
    ]
    return JudgeReport(
        model=source.model,
        mode=source.mode,
        pairs=len(pairs),
        no_answer=len(pairs) - len(points),
        ties=points.count(0.5),
        agreement=_share([1.0 if one > 0.5 else 0.5 if one == 0.5 else 0.0 for one in points]),
        left=_share([side for side in sides if side != 0.5]),
        swayed=_share([float(one.is_swayed) for one in both]),
        longer=_share([float(is_longer == is_right) for is_longer, is_right in unequal]),
        people_longer=_share([float(is_longer) for is_longer, _ in unequal]),
        tokens=spent[0],
        cost=spent[1],
        disputed=list(dict.fromkeys(one.key for one, points in decided if points < 0.5)),
    )


def _share(values: Sequence[float]) -> Interval:
    count = len(values)
    return Interval(sum(values) / count if count else math.nan, *wilson_interval(sum(values), count))


def _text(completion: Text) -> str:
    return "\n\n".join(contents(completion))
