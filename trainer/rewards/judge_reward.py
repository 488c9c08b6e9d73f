"""Rewards by a judge: a language model that grades responses by a rubric."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trainer.config.reward_sources import JudgeSource
from trainer.errors import shortened
from trainer.reward_types import RewardInput, SourceScores, Verdict, Wait, refuse_to_wait
from trainer.rewards.code import Trust, endpoint_code, trust_all
from trainer.rewards.judge_answers import Answers, Messages, Reply
from trainer.rewards.judge_endpoint import Endpoint
from trainer.rewards.judge_rubric import Rubric, read_rubric

_SHOWN = 200  # characters of a reason
_MILLION = 1e6


@dataclass(slots=True)
class JudgeReward:
    """Source that has a judge grade each response, unless `answers` has its reply to the same request.

    Details: `no_answer`, 1 where there is none or it makes no sense; `tokens` of request and answer; their `cost`, if
    the source has prices. They are those of when the judge answered, so a resumed run has the same.
    """

    name: str
    source: JudgeSource
    rubric: Rubric
    endpoint: Endpoint
    answers: Answers

    def __call__(self, batch: Sequence[RewardInput]) -> SourceScores:
        """Return a score from 0 to 1 per sequence, and why. Raises what `Endpoint` does."""
        replies = self.replies([self.rubric.request(row) for row in batch])
        return self._scores([self.rubric.verdict(reply) for reply in replies], replies)

    def replies(self, requests: Sequence[Messages]) -> list[Reply]:
        """Return the replies to `requests`, of which equal ones are sent once."""
        bodies = [{"url": self.source.url, **self.endpoint.body(messages)} for messages in requests]
        keys = [hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest() for body in bodies]
        new = {key: messages for key, messages in zip(keys, requests, strict=True) if key not in self.answers}
        names = list(new)
        if new:
            self.endpoint(list(new.values()), lambda place, reply: self.answers.add(names[place], reply))
        return [self.answers[key] for key in keys]

    def _scores(self, verdicts: Sequence[Verdict], replies: Sequence[Reply]) -> SourceScores:
        source = self.source
        details = {
            "no_answer": [float(one.score is None) for one in verdicts],
            "tokens": [one.read + one.written for one in replies],
        }
        if source.input_price or source.output_price:
            spent = [source.input_price * one.read + source.output_price * one.written for one in replies]
            details["cost"] = [value / _MILLION for value in spent]
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
    """Return the judge that `source` describes. Raises RewardError without rubric or key.

    trust, between, wait: as for `build_rewards`.
    """
    rubric = read_rubric(source)
    trust(endpoint_code(source))
    endpoint = Endpoint(source, rubric.answer_schema if source.structured else None, between, wait)
    return JudgeReward("judge", source, rubric, endpoint, answers)
