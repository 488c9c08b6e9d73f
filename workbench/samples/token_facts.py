"""Facts about a token: its saved numbers, the same numbers recomputed, and what follows from them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

from trainer.runs.samples import SampleSettings
from workbench.run.sample_table import TokenSample
from workbench.samples import token_maths
from workbench.samples.token_maths import Recomputed, TokenLoss, UpdatePass
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


class TokenFacts:
    """Everything known about token `index` of a sample, counted from 0; None where its file lacks a number.

    Log-probs, KLs and the entropy are in nats. Raises IndexError when the response has no such token.
    """

    def __init__(self, sample: TokenSample, index: int) -> None:
        if not 0 <= index < len(sample):
            raise IndexError(f"no token {index} in a response of {len(sample)}")

        def saved(name: str, at: int = index) -> float | None:
            return _at(sample.numbers.get(name, ()), at)

        self.sample = sample
        self.settings = settings = sample.settings
        in_loss = settings is not None and settings.kl_in == "loss"
        self.index, self.length = index, len(sample)
        self.token = sample.tokens[index]
        self.text = _at(sample.texts, index) or ""
        self.name = token_label(sample, index)
        self.character = _character(sample.texts, index)  # None for a token of whole characters
        self.is_last = index == len(sample) - 1
        self.is_stop = self.is_last and not sample.truncated

        self.logprob = logprob = saved("logprobs")  # of the policy that wrote
        self.ref_logprob = ref_logprob = saved("ref_logprobs")
        self.sampler_logprob = saved("sampler_logprobs")
        self.probability, self.ref_probability = _probability(logprob), _probability(ref_logprob)
        self.sampler_probability = _probability(self.sampler_logprob)
        self.k1 = None if logprob is None or ref_logprob is None else logprob - ref_logprob
        self.kl = saved("kl")  # by the penalty's estimator
        self.entropy = saved("entropy")
        self.choices = tuple(self._choices())  # likeliest first; the written token is last if it is not among them

        # The penalty is None as well where it is not part of the reward. The pull is the push of a KL in the loss on
        # log pi, comparable to the advantage; +: up.
        self.kl_penalty = None if settings is None or in_loss or self.kl is None else -settings.kl_coef * self.kl
        slope = token_maths.kl_slope(logprob, ref_logprob, settings)
        self.kl_pull = -settings.kl_coef * slope if settings and in_loss and slope is not None else None
        self.token_score = saved("token_scores")  # the token's own part of the reward
        bootstrapped = sample.truncated and settings is not None and settings.bootstrap_truncated
        self.earns_score = self.is_last and not bootstrapped
        self.sequence_score = _known(sample.sequence_score) if self.earns_score else None  # the sequence's part
        parts = [self.token_score] if in_loss else [self.kl_penalty, self.token_score]
        parts += [self.sequence_score] if self.earns_score else []
        self.raw_reward = None if None in parts else sum(part for part in parts if part is not None)  # not whitened
        self.reward = saved("rewards")

        self.value = saved("values")  # V(s_t); None without a critic, as are the next two
        self.next_value = _final_value(sample) if self.is_last else saved("values", index + 1)  # V(s_{t+1})
        self.td_error = saved("td_errors")
        summed = token_maths.discounted_sum(*token_maths.advantage_sum(sample, index))
        self.total_reward = summed.value if self.estimator in token_maths.PER_RESPONSE else None  # R
        self.baseline = _known(sample.baseline)  # without a critic: subtracted from the return, or from R
        self.advantage_scale = _known(sample.advantage_scale)  # with grpo: divisor of that difference
        self.advantage = saved("advantages")  # from the estimator, not whitened
        self.whitened_advantage = token_maths.whitened_advantage(self.advantage, settings)
        self.return_ = saved("returns")
        self.recomputed = self._recomputed(summed) | {  # what the numbers of these names should be
            "kl": token_maths.kl(logprob, ref_logprob, settings),
            "reward": token_maths.reward(parts, settings),
        }

        # The weight of its loss, pi_old / pi_sampler capped; None where the run has none
        self.weight = token_maths.importance_weight(logprob, self.sampler_logprob, settings)
        seen = self.whitened_advantage if settings is not None and settings.whiten_advantages else self.advantage
        self.loss_advantage = None if settings is None else seen  # the one that the policy's loss saw
        self.passes = tuple(self._update_passes(_at(sample.ratios, index) or ()))

    @property
    def estimator(self) -> str:
        """The advantage estimator; GAE where the file has no settings."""
        return "gae" if self.settings is None else self.settings.estimator

    @property
    def disagreements(self) -> list[str]:
        """Names in `recomputed` whose saved number differs by more than float32 rounding explains."""
        return [name for name, number in self.recomputed.items() if not number.agrees(getattr(self, name))]

    def _choices(self) -> Iterator[LikelyToken]:
        found = _at(self.sample.alternatives, self.index) or ()
        for one in found:
            probability, ref_probability = token_maths.exp(one.logprob), token_maths.exp(one.ref_logprob)
            yield LikelyToken(one.token, one.text, probability, ref_probability, one.token == self.token)
        listed = not found or any(one.token == self.token for one in found)
        if not listed and self.probability is not None and self.ref_probability is not None:
            yield LikelyToken(self.token, self.text, self.probability, self.ref_probability, chosen=True)

    def _recomputed(self, summed: Recomputed) -> dict[str, Recomputed]:
        """Recompute TD error, advantage and return from the other numbers. summed: the sum of the advantage's terms."""
        if self.estimator == "gae":
            return {
                "td_error": token_maths.td_error(self.reward, self.value, self.next_value, self.settings),
                "advantage": summed,
                "return_": token_maths.return_(self.advantage, self.value),
            }
        earned, return_ = Recomputed(self.return_), summed
        if self.estimator in token_maths.PER_RESPONSE:
            rewards = self.sample.numbers.get("rewards", ())[self.index :]
            earned, return_ = summed, token_maths.discounted_sum(rewards, 1.0)
        scale = self.advantage_scale if self.estimator == "grpo" else 1.0
        advantage = token_maths.advantage_over_baseline(earned, self.baseline, scale)
        return {"td_error": Recomputed(), "advantage": advantage, "return_": return_}

    def _update_passes(self, ratios: Sequence[float]) -> Iterator[UpdatePass]:
        settings, seen = self.settings, self.loss_advantage
        epochs = settings.epochs if settings is not None else -1
        known = epochs <= len(ratios) <= epochs + 1
        low, high = token_maths.ratio_range(settings) if settings is not None else (-math.inf, math.inf)
        for number, ratio in enumerate(ratios, 1):
            is_epoch, measured = not known or number <= epochs, not math.isnan(ratio)
            in_loss, clipped, loss = is_epoch and measured, False, None
            if in_loss and settings is not None and seen is not None:
                clipped, loss = token_maths.is_clipped(ratio, seen, settings), self._loss(ratio, seen, settings)
            yield UpdatePass(
                name="after" if not is_epoch else f"epoch {number}" if known else f"pass {number}",
                ratio=ratio,
                probability=None if self.probability is None or not measured else self.probability * ratio,
                in_loss=in_loss,
                skipped=is_epoch and not measured,
                outside=measured and not low <= ratio <= high,
                clipped=clipped,
                loss=loss,
            )

    def _loss(self, ratio: float, advantage: float, settings: SampleSettings) -> TokenLoss | None:
        """Return the loss of a step at which the token had this ratio; None where a term is not known."""
        low, high = token_maths.ratio_range(settings)
        penalty = None
        if settings.kl_in == "loss" and self.logprob is not None and ratio > 0:
            logprob = self.logprob + math.log(ratio)  # under the policy of that pass
            value = token_maths.kl_loss(logprob, self.ref_logprob, settings)
            penalty = None if value is None else settings.kl_coef * value
        if (settings.kl_in == "loss" and penalty is None) or (settings.importance_cap and self.weight is None):
            return None
        return TokenLoss(
            unclipped=ratio * advantage,
            clipped=min(max(ratio, low), high) * advantage,
            bound=settings.dual_clip * advantage if advantage < 0 < settings.dual_clip else None,
            weight=self.weight,
            kl=penalty,
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


def _at(values: Sequence[T], index: int) -> T | None:
    return values[index] if index < len(values) else None


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def _probability(logprob: float | None) -> float | None:
    return None if logprob is None else token_maths.exp(logprob)
