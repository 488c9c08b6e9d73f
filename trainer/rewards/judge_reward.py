"""Rewards by a judge: a language model that grades responses by a rubric."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from trainer.config.reward_sources import JudgeSource
from trainer.errors import shortened
from trainer.reward_types import RewardInput, SourceScores, Verdict, Wait, refuse_to_wait
from trainer.rewards.code import Trust, endpoint_code, trust_all
from trainer.rewards.judge_answers import Answers, Messages, Reply
from trainer.rewards.judge_endpoint import Endpoint
from trainer.rewards.judge_rubric import Rubric, read_rubric

_SHOWN = 200  # characters of a reason
_MILLION = 1e6


class Judge(Protocol):
    """A language model that answers requests: an `Endpoint` or a `LocalJudge`. Raises RewardError."""

    def body(self, messages: Messages) -> dict[str, Any]:
        """Return what the answer to `messages` depends on."""

    def __call__(self, requests: Sequence[Messages], done: Callable[[int, Reply], None]) -> None:
        """Answer all of `requests`; `done` gets the place and the reply of each as they come."""


class Contest(NamedTuple):
    """Result of comparing two responses to one prompt twice, the second time with the sides swapped."""

    points: float | None  # 1 if the response is better, 0 if the other is, 0.5 for a tie; None without both answers
    reason: str
    left: Sequence[float] = ()  # each time: 1 if the judge chose the left one, 0 the right one, 0.5 neither
    replies: Sequence[Reply] = ()

    @property
    def is_swayed(self) -> bool:
        """Return whether the side decides: the judge chose the same one both times."""
        return self.left in ((1.0, 1.0), (0.0, 0.0))


@dataclass(slots=True)
class JudgeReward:
    """Source that has a judge grade or compare responses, unless `answers` has its reply to the same request.

    Compared two by two, a response scores the share of its comparisons that it wins; a tie counts half, and so does a
    comparison of which the judge says the contrary when the sides are swapped. Zheng et al. 2023 (arXiv 2306.05685),
    section 3.4.

    Details: `no_answer`, the share of its requests without an answer that makes sense; `tokens` of requests and
    answers; their `cost`, if the source has prices; `swayed`, the share of its comparisons that the sides decide. They
    are those of when the judge answered, so a resumed run has the same.
    """

    name: str
    source: JudgeSource
    rubric: Rubric
    judge: Judge
    answers: Answers

    def __call__(self, batch: Sequence[RewardInput]) -> SourceScores:
        """Return a score from 0 to 1 per sequence, and why. Raises what the judge does."""
        if self.source.mode == "pairwise":
            return self._compared(batch)
        replies = self.replies([self.rubric.request(row) for row in batch])
        verdicts = [self.rubric.verdict(reply) for reply in replies]
        missing = [float(one.score is None) for one in verdicts]
        return self.scored(verdicts, {"no_answer": missing}, [[reply] for reply in replies])

    def _compared(self, batch: Sequence[RewardInput]) -> SourceScores:
        """Score the responses of each group against each other."""
        groups: dict[str, list[int]] = {}
        for place, row in enumerate(batch):
            groups.setdefault(json.dumps([row.prompt, row.columns], sort_keys=True, default=str), []).append(place)
        pairs = [pair for group in groups.values() for pair in ring(group, self.source.opponents)]
        met: list[list[Contest]] = [[] for _ in batch]
        contests = self.contests([(batch[a], batch[b].completion) for a, b in pairs])
        for (a, b), found in zip(pairs, contests, strict=True):
            met[a].append(found)
            met[b].append(found._replace(points=None if found.points is None else 1 - found.points))
        details = {
            "no_answer": [_mean([one.points is None for one in own]) for own in met],
            "swayed": [_mean([one.is_swayed for one in own if one.points is not None]) for own in met],
        }
        replies = [[reply.shared(0.5) for one in own for reply in one.replies] for own in met]
        return self.scored(list(map(_standing, met)), details, replies)

    def contests(self, pairs: Sequence[tuple[RewardInput, str]]) -> list[Contest]:
        """Have the judge compare each response with another one to its prompt, from both sides."""
        asked = [(row, other) for row, other in pairs if row.completion != other]
        sides = [(row, other) for row, other in asked]
        sides += [(row._replace(completion=other), row.completion) for row, other in asked]
        replies = self.replies([self.rubric.request(row, other) for row, other in sides])
        both = zip(replies[: len(asked)], replies[len(asked) :], strict=True)
        found = []
        for row, other in pairs:
            if row.completion == other:
                found.append(Contest(0.5, "the same text"))
                continue
            two = next(both)
            first, swapped = (self.rubric.preference(reply) for reply in two)
            if first.score is None or swapped.score is None:
                found.append(Contest(None, first.reason if first.score is None else swapped.reason, replies=two))
                continue
            left = (first.score, swapped.score)
            found.append(Contest((first.score + 1 - swapped.score) / 2, first.reason, left, two))
        return found

    def replies(self, requests: Sequence[Messages]) -> list[Reply]:
        """Return the replies to `requests`, of which equal ones are sent, and have tokens, once."""
        bodies = [{"url": self.source.url, **self.judge.body(messages)} for messages in requests]
        keys = [hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest() for body in bodies]
        new = {key: messages for key, messages in zip(keys, requests, strict=True) if key not in self.answers}
        names = list(new)
        if new:
            self.judge(list(new.values()), lambda place, reply: self.answers.add(names[place], reply))
        found, seen = list[Reply](), set[str]()
        for key in keys:
            found.append(self.answers[key].shared(0 if key in seen else 1))
            seen.add(key)
        return found

    def scored(
        self, verdicts: Sequence[Verdict], details: dict[str, list[float]], replies: Sequence[Sequence[Reply]]
    ) -> SourceScores:
        """Return the scores and reasons of `verdicts`, and their details. replies: those that each came from."""
        source = self.source
        read, written = ([sum(getattr(one, name) for one in row) for row in replies] for name in ("read", "written"))
        details["tokens"] = [sum(both) for both in zip(read, written, strict=True)]
        if source.input_price or source.output_price:
            prices = (source.input_price / _MILLION, source.output_price / _MILLION)
            details["cost"] = [prices[0] * one + prices[1] * two for one, two in zip(read, written, strict=True)]
        reasons = [shortened(" ".join(one.reason.split()), _SHOWN) for one in verdicts]
        return SourceScores([one.score for one in verdicts], details=details, extra={self.name: reasons})


def judge_reward(
    source: JudgeSource,
    answers: Answers,
    *,
    trust: Trust = trust_all,
    between: Callable[[], None] = lambda: None,
    wait: Wait = refuse_to_wait,
) -> JudgeReward:
    """Return the judge that `source` describes. Raises RewardError without rubric or key, ModelError without model.

    trust, between, wait: as for `build_rewards`.
    """
    rubric = read_rubric(source)
    trust(endpoint_code(source))
    if not source.url:
        from trainer.rewards.judge_model import LocalJudge  # imports MLX

        return JudgeReward("judge", source, rubric, LocalJudge(source, between), answers)
    return JudgeReward("judge", source, rubric, Endpoint(source, _schema(source, rubric), between, wait), answers)


def check_judge(source: JudgeSource, trust: Trust) -> None:
    """Raise RewardError if the judge does not answer a short request, or cannot; no model is loaded for it here."""
    rubric = read_rubric(source)
    trust(endpoint_code(source))
    if source.url:
        Endpoint(source, _schema(source, rubric)).check()
    else:
        from trainer.rewards.judge_model import check_local_judge  # imports MLX

        check_local_judge(source)


def _schema(source: JudgeSource, rubric: Rubric) -> dict[str, Any] | None:
    return rubric.answer_schema(source.mode) if source.structured else None


def _standing(contests: Sequence[Contest]) -> Verdict:
    """Return the share of its contests that a response wins, and the judge's reason in the first one."""
    reason = contests[0].reason if contests else "no other response to this prompt"
    points = [one.points for one in contests if one.points is not None]
    if not points:
        return Verdict(None, reason)
    won, lost = sum(one > 0.5 for one in points), sum(one < 0.5 for one in points)
    return Verdict(_mean(points), f"won {won}, tied {len(points) - won - lost}, lost {lost}: {reason}")


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def ring(group: Sequence[int], opponents: int) -> Iterator[tuple[int, int]]:
    """Yield pairs of a group, in which each is with at least so many others, and all equally often; 0: with all."""
    count = len(group)
    most = min(count // 2, (opponents + 1) // 2 or count)
    for distance in range(1, most + 1):
        for place in range(distance if 2 * distance == count else count):
            yield group[place], group[(place + distance) % count]
