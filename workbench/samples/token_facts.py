"""Explanation of a token: its saved numbers, the same numbers recomputed, and one plain sentence about them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from trainer.runs.samples import SampleSettings
from workbench.run.samples import TokenSample
from workbench.samples import token_maths
from workbench.samples.token_maths import Recomputed, UpdatePass
from workbench.samples.token_sentence import sentence
from workbench.text import visible

T = TypeVar("T")


class CharacterPart(NamedTuple):
    """Position of a token among those that together spell one character of several bytes."""

    part: int  # from 1
    parts: int
    text: str  # the character, from the last token; empty where the response ends before the character does


class LikelyToken(NamedTuple):
    """One of the policy's likeliest tokens here, or the token that it wrote."""

    token: int
    text: str
    probability: float
    ref_probability: float
    chosen: bool


@dataclass(frozen=True, slots=True)
class TokenFacts:
    """Everything known about one token; None where the samples file lacks a number."""

    index: int  # from 0
    length: int  # of the response, in tokens
    token: int
    text: str
    name: str  # by `token_label`
    character: CharacterPart | None  # None for a token of whole characters
    is_last: bool
    is_stop: bool  # the last token of a response that was not cut short
    logprob: float | None  # nats, of the policy that wrote
    ref_logprob: float | None  # nats
    sampler_logprob: float | None  # nats
    weight: float | None  # importance weight of its loss, pi_old / pi_sampler capped; None where the run has none
    k1: float | None  # nats, log pi - log pi_ref
    kl: float | None  # nats, by the penalty's estimator
    entropy: float | None  # nats
    kl_penalty: float | None  # -kl_coef * kl; also None where it is not part of the reward
    kl_pull: float | None  # where the KL is in the loss: its push on log pi, comparable to the advantage; +: up
    token_score: float | None  # the token's own part
    sequence_score: float | None  # the sequence's part, on the last token
    raw_reward: float | None  # the sum of the parts, before any whitening
    reward: float | None
    value: float | None  # V(s_t); None without a critic, as are the next two
    next_value: float | None  # V(s_{t+1})
    td_error: float | None
    total_reward: float | None  # R, where the response is one action
    baseline: float | None  # without a critic: subtracted from the return, or from R
    advantage_scale: float | None  # with grpo: divisor of that difference
    advantage: float | None  # from the estimator, not whitened
    whitened_advantage: float | None  # also None where the run does not whiten
    return_: float | None
    passes: tuple[UpdatePass, ...]
    choices: tuple[LikelyToken, ...]  # likeliest first; the written token comes last if it is not among them
    recomputed: dict[str, Recomputed]  # kl, reward, td_error, advantage and return_, named as above
    settings: SampleSettings | None

    @property
    def estimator(self) -> str:
        """The advantage estimator; GAE where the file has no settings."""
        return "gae" if self.settings is None else self.settings.estimator

    @property
    def loss_advantage(self) -> float | None:
        """The advantage that the policy's loss saw."""
        return None if self.settings is None else _seen(self.advantage, self.whitened_advantage, self.settings)

    @property
    def probability(self) -> float | None:
        """Probability under the policy that wrote."""
        return _probability(self.logprob)

    @property
    def ref_probability(self) -> float | None:
        """Probability under the reference."""
        return _probability(self.ref_logprob)

    @property
    def sampler_probability(self) -> float | None:
        """Probability under the sampler."""
        return _probability(self.sampler_logprob)

    @property
    def disagreements(self) -> list[str]:
        """Names in `recomputed` whose saved number differs by more than float32 rounding explains."""
        return [name for name, number in self.recomputed.items() if not number.agrees(getattr(self, name))]

    @property
    def sentence(self) -> str:
        """Meaning of the numbers in plain words; empty where too little is known."""
        return sentence(self)


def explain(sample: TokenSample, index: int) -> TokenFacts:
    """Return the facts of token `index`, counted from 0. Raises IndexError when the response has no such token."""
    if not 0 <= index < len(sample):
        raise IndexError(f"no token {index} in a response of {len(sample)}")
    settings, last = sample.settings, index == len(sample) - 1

    def saved(name: str, at: int = index) -> float | None:
        return _at(sample.numbers.get(name, ()), at)

    logprob, ref_logprob, sampler_logprob = saved("logprobs"), saved("ref_logprobs"), saved("sampler_logprobs")
    kl, advantage = saved("kl"), saved("advantages")
    next_value = _final_value(sample) if last else saved("values", index + 1)
    penalty = None if settings is None or settings.kl_in == "loss" or kl is None else -settings.kl_coef * kl
    token_score, score = saved("token_scores"), _known(sample.sequence_score) if last else None
    parts = [token_score] if settings is not None and settings.kl_in == "loss" else [penalty, token_score]
    parts += [score] if last else []
    slope = token_maths.kl_slope(logprob, ref_logprob, settings)
    whitened = token_maths.whitened_advantage(advantage, settings)
    weight = token_maths.importance_weight(logprob, sampler_logprob, settings)
    recomputed = _recomputed(sample, index, next_value) | {
        "kl": token_maths.kl(logprob, ref_logprob, settings),
        "reward": token_maths.reward(parts, settings),
    }
    return TokenFacts(
        index=index,
        length=len(sample),
        token=sample.tokens[index],
        text=_at(sample.texts, index) or "",
        name=token_label(sample, index),
        character=_character(sample.texts, index),
        is_last=last,
        is_stop=last and not sample.truncated,
        logprob=logprob,
        ref_logprob=ref_logprob,
        sampler_logprob=sampler_logprob,
        weight=weight,
        k1=None if logprob is None or ref_logprob is None else logprob - ref_logprob,
        kl=kl,
        entropy=saved("entropy"),
        kl_penalty=penalty,
        kl_pull=-settings.kl_coef * slope if settings and settings.kl_in == "loss" and slope is not None else None,
        token_score=token_score,
        sequence_score=score,
        raw_reward=None if None in parts else sum(part for part in parts if part is not None),
        reward=saved("rewards"),
        value=saved("values"),
        next_value=next_value,
        td_error=saved("td_errors"),
        total_reward=_total_reward(sample).value,
        baseline=_known(sample.baseline),
        advantage_scale=_known(sample.advantage_scale),
        advantage=advantage,
        whitened_advantage=whitened,
        return_=saved("returns"),
        passes=token_maths.update_passes(
            _at(sample.ratios, index) or (),
            settings,
            advantage=_seen(advantage, whitened, settings),
            logprob=logprob,
            ref_logprob=ref_logprob,
            weight=weight,
        ),
        choices=_choices(sample, index, logprob, ref_logprob),
        recomputed=recomputed,
        settings=settings,
    )


def token_name(text: str) -> str:
    """Return `text` in quotes, with spaces as ·, newlines as ⏎ and control characters as symbols."""
    shown = visible(text.replace("\n", "⏎")).replace(" ", "·")
    return f"'{shown}'"


def token_label(sample: TokenSample, index: int) -> str:
    """Return the token's `token_name`, which part of a character it is, or its id where the file has no texts."""
    part = _character(sample.texts, index)
    if part is None:
        text = _at(sample.texts, index)
        return f"id {sample.tokens[index]}" if not text else token_name(text)
    if not part.text:
        return f"part {part.part} of an unfinished character"
    return f"part {part.part} of {part.parts} of {token_name(part.text)}"


def _recomputed(sample: TokenSample, index: int, next_value: float | None) -> dict[str, Recomputed]:
    """Recompute TD error, advantage and return from the saved numbers, with the run's estimator."""
    settings, numbers = sample.settings, sample.numbers

    def saved(name: str) -> float | None:
        return _at(numbers.get(name, ()), index)

    if settings is None or settings.estimator == "gae":
        return {
            "td_error": token_maths.td_error(saved("rewards"), saved("values"), next_value, settings),
            "advantage": token_maths.gae_advantage(numbers.get("td_errors", ())[index:], settings),
            "return_": token_maths.return_(saved("advantages"), saved("values")),
        }
    earned = _total_reward(sample) if settings.estimator in token_maths.PER_RESPONSE else Recomputed(saved("returns"))
    scale = _known(sample.advantage_scale)
    return {
        "td_error": Recomputed(),
        "advantage": token_maths.advantage_over_baseline(earned, _known(sample.baseline), scale, settings),
        "return_": token_maths.reward_to_go(numbers.get("rewards", ())[index:], settings),
    }


def _total_reward(sample: TokenSample) -> Recomputed:
    """Return R of an estimator that takes the response as one action; unknown for others."""
    if sample.settings is None or sample.settings.estimator not in token_maths.PER_RESPONSE:
        return Recomputed()
    return token_maths.total_reward(sample.numbers.get("rewards", ()))


def _final_value(sample: TokenSample) -> float | None:
    """Return V after the last token: 0, or the critic's value where the run bootstraps responses that were cut short.

    None without a critic, or where it is not known.
    """
    if sample.settings is not None and sample.settings.estimator != "gae":
        return None
    if not sample.truncated:
        return 0.0
    if sample.settings is None:
        return None
    return _known(sample.final_value) if sample.settings.bootstrap_truncated else 0.0


def _choices(
    sample: TokenSample, index: int, logprob: float | None, ref_logprob: float | None
) -> tuple[LikelyToken, ...]:
    chosen = sample.tokens[index]
    choices = [
        LikelyToken(
            one.token, one.text, token_maths.exp(one.logprob), token_maths.exp(one.ref_logprob), one.token == chosen
        )
        for one in _at(sample.alternatives, index) or ()
    ]
    listed = not choices or any(one.chosen for one in choices)
    if not listed and logprob is not None and ref_logprob is not None:
        text = _at(sample.texts, index) or ""
        choices.append(LikelyToken(chosen, text, token_maths.exp(logprob), token_maths.exp(ref_logprob), chosen=True))
    return tuple(choices)


def _character(texts: Sequence[str], index: int) -> CharacterPart | None:
    if index >= len(texts):
        return None
    first = last = index
    while first and not texts[first - 1]:
        first -= 1
    while last < len(texts) - 1 and not texts[last]:
        last += 1
    if first == last and texts[last]:
        return None
    return CharacterPart(index - first + 1, last - first + 1, texts[last])


def _seen(advantage: float | None, whitened: float | None, settings: SampleSettings | None) -> float | None:
    """Return the advantage that the loss sees."""
    return whitened if settings is not None and settings.whiten_advantages else advantage


def _at(values: Sequence[T], index: int) -> T | None:
    return values[index] if index < len(values) else None


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def _probability(logprob: float | None) -> float | None:
    return None if logprob is None else token_maths.exp(logprob)
