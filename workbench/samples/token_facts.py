"""Facts about a token: its saved numbers, what follows from them, and one plain sentence that they support."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeGuard, TypeVar

from trainer.runs.samples import SampleSettings
from workbench.run.sample_reader import PER_RESPONSE
from workbench.run.sample_table import TokenSample
from workbench.text import visible

T = TypeVar("T")

LARGEST_LOG_R = 2.610868638149876
"""Bound on log r in k3, as in `trainer.maths.kl_estimate`."""
_WHITENING = 1e-8  # added to the variance, as in `trainer.maths.whiten`
_HARDLY = 0.05  # of the deviation of the batch's advantages: less counts as hardly a push
_BASELINE = ("its return", "the estimator's baseline")
_COMPARED = {
    "reinforce": ("its return", "the mean reward of the batch's other responses"),
    "rloo": ("the reward of its response", "the mean of the prompt's other responses"),
    "remax": ("its return", "the score of the greedy response"),
    "grpo": ("the reward of its response", "the mean of the prompt's responses"),
}


class LikelyToken(NamedTuple):
    """One of the policy's likeliest tokens here, or the token that it wrote. Probabilities may be NaN."""

    token: int
    text: str
    probability: float
    ref_probability: float
    chosen: bool

    @property
    def name(self) -> str:
        """Its `token_name`, or its id where it is only part of a character."""
        return token_name(self.text) if self.text else f"id {self.token}"


class TokenLoss(NamedTuple):
    """L = -w max(min(rho A, clip(rho) A), c A) + beta KL_t; a term that the run does not use is None."""

    unclipped: float  # rho A; with cispo min(rho, 1 + eps) A log pi
    clipped: float | None  # clip(rho) A
    bound: float | None  # c A of the dual clip, where A is negative
    weight: float | None  # w, the importance weight pi_old / pi_sampler, capped
    kl: float | None  # beta KL_t under the policy of that pass, where the KL is in the loss

    @property
    def total(self) -> float:
        """The loss L."""
        kept = self.unclipped if self.clipped is None else min(self.unclipped, self.clipped)
        kept = kept if self.bound is None else max(kept, self.bound)
        return -kept * (1.0 if self.weight is None else self.weight) + (self.kl or 0.0)


class UpdatePass(NamedTuple):
    """A token in one pass over the batch."""

    name: str  # "epoch 1" and so on, "after" for the pass after the last; "pass 1" where the epochs are not known
    ratio: float  # pi / pi_old; NaN where the token was part of no step in the epoch
    loss_ratio: float  # the ratio in the loss: that, or its geometric mean over the response
    probability: float | None  # under the policy of that pass
    in_loss: bool  # the token was part of an optimiser step
    clipped: bool  # its loss had no gradient, because of the ratio's range or the dual clip
    mark: str  # label of the clip's effect; empty where the ratio in the loss is inside its range
    loss: TokenLoss | None  # None without a step, or where a term is not known


class AdvantageTerm(NamedTuple):
    """One term of an advantage's sum: weight * x."""

    token: int  # index in the response of the token whose TD error or reward it is
    weight: float
    x: float
    product: float
    running: float  # the sum up to here


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
        self.estimator = "gae" if settings is None else settings.estimator
        in_loss = settings is not None and settings.kl_in == "loss"
        self.index, self.length = index, len(sample)
        self.token = sample.tokens[index]
        self.name = token_label(sample, index)
        self.is_last = index == len(sample) - 1

        self.logprob = logprob = saved("logprobs")  # of the policy that wrote
        self.ref_logprob = ref_logprob = saved("ref_logprobs")
        self.sampler_logprob = saved("sampler_logprobs")
        logprobs = (logprob, ref_logprob, self.sampler_logprob)
        self.probability, self.ref_probability, self.sampler_probability = (
            None if x is None else exp(x) for x in logprobs
        )
        self.k1 = None if logprob is None or ref_logprob is None else logprob - ref_logprob
        self.kl = saved("kl")  # by the penalty's estimator
        self.entropy = saved("entropy")
        found = _at(sample.alternatives, index) or ()
        choices = [LikelyToken(t, text, exp(p), exp(q), t == self.token) for t, text, p, q in found]
        if not any(one.chosen for one in choices):
            mine, theirs = (math.nan if p is None else p for p in (self.probability, self.ref_probability))
            choices.append(LikelyToken(self.token, sample.texts[index], mine, theirs, chosen=True))
        self.choices = choices  # likeliest first; the written token is last if it is not among them

        # The penalty is None as well where it is not part of the reward. The pull is the push of a KL in the loss on
        # log pi, comparable to the advantage; +: up.
        self.kl_penalty = None if settings is None or in_loss or self.kl is None else -settings.kl_coef * self.kl
        self.kl_pull = None
        if settings is not None and in_loss and (kl := _kl_in_loss(logprob, ref_logprob, settings)) is not None:
            self.kl_pull = -settings.kl_coef * kl[1]
        self.token_score = saved("token_scores")  # the token's own part of the reward
        bootstrapped = sample.truncated and settings is not None and settings.bootstrap_truncated
        self.earns_score = self.is_last and not bootstrapped
        self.sequence_score = _known(sample.sequence_score) if self.earns_score else None  # the sequence's part
        parts = [self.token_score] if in_loss else [self.kl_penalty, self.token_score]
        parts += [self.sequence_score] if self.earns_score else []
        self.raw_reward = None if None in parts else sum(part for part in parts if part is not None)  # not whitened
        self.reward = saved("rewards")

        self.value = saved("values")  # V(s_t); None without a critic, as are the next two
        if not self.is_last:
            self.next_value = saved("values", index + 1)  # V(s_{t+1})
        elif self.estimator != "gae" or (sample.truncated and settings is None):
            self.next_value = None
        else:  # after the last token: the critic's value where the run bootstraps responses that were cut short
            self.next_value = _known(sample.final_value) if bootstrapped else 0.0
        self.td_error = saved("td_errors")
        rewards = sample.numbers.get("rewards", ())
        self.total_reward = sum(rewards) if rewards and self.estimator in PER_RESPONSE else None  # R
        self.baseline = _known(sample.baseline)  # without a critic: subtracted from the return, or from R
        self.advantage_scale = _known(sample.advantage_scale)  # with grpo: divisor of that difference
        self.advantage = saved("advantages")  # from the estimator, not whitened
        self.whitened_advantage = None
        if self.advantage is not None and settings is not None and settings.whiten_advantages:
            self.whitened_advantage = (self.advantage - settings.advantage_mean) / deviation(settings.advantage_std)
        self.return_ = saved("returns")

        # The weight of its loss, pi_old / pi_sampler capped; None where the run has none
        self.weight = None
        if logprob is not None and self.sampler_logprob is not None and settings and settings.importance_cap:
            self.weight = min(exp(logprob - self.sampler_logprob), settings.importance_cap)
        seen = self.whitened_advantage if settings is not None and settings.whiten_advantages else self.advantage
        if settings is None or seen is None:
            self.loss_advantage = None
        else:  # the one that the policy's loss saw
            self.loss_advantage = seen if settings.has_signal else 0.0
        self.passes = tuple(self._update_passes(_at(sample.ratios, index) or ()))

    def _update_passes(self, ratios: Sequence[float]) -> Iterator[UpdatePass]:
        settings, seen = self.settings, self.loss_advantage
        epochs = settings.epochs if settings is not None else -1
        known = epochs <= len(ratios) <= epochs + 1
        low, high = ratio_range(settings) if settings is not None else (-math.inf, math.inf)
        for number, ratio in enumerate(ratios, 1):
            is_epoch, measured = not known or number <= epochs, not math.isnan(ratio)
            in_loss, clipped, loss, used = is_epoch and measured, False, None, ratio
            if settings is not None and settings.ratio == "sequence":
                used = _geometric_mean([_at(passes, number - 1) for passes in self.sample.ratios])
            if in_loss and settings is not None and seen is not None:
                by_dual_clip = seen < 0 < settings.dual_clip < used
                clipped = by_dual_clip or (used > high and seen > 0) or (used < low and seen < 0)
                clipped = clipped and settings.policy_loss == "clip"
                loss = self._loss(ratio, used, seen, settings)
            outside = measured and not low <= used <= high
            skipped = is_epoch and not measured
            yield UpdatePass(
                name="after" if not is_epoch else f"epoch {number}" if known else f"pass {number}",
                ratio=ratio,
                loss_ratio=used,
                probability=None if self.probability is None or not measured else self.probability * ratio,
                in_loss=in_loss,
                clipped=clipped,
                mark="no step" if skipped else "✂ clipped" if clipped else "outside" if outside else "",
                loss=loss,
            )

    def _loss(self, ratio: float, used: float, advantage: float, settings: SampleSettings) -> TokenLoss | None:
        """Return the loss of a step at which the token had this ratio; None where a term is not known.

        used: the ratio in the loss.
        """
        low, high = ratio_range(settings)
        penalty = None
        now = None if self.logprob is None or not ratio > 0 else self.logprob + math.log(ratio)
        if settings.kl_in == "loss":
            if (kl := _kl_in_loss(now, self.ref_logprob, settings)) is None:
                return None
            penalty = settings.kl_coef * kl[0]
        if settings.importance_cap and self.weight is None:
            return None
        if settings.policy_loss == "cispo":
            kept = None if now is None else min(used, high) * advantage * now
            return None if kept is None else TokenLoss(kept, None, None, self.weight, penalty)
        return TokenLoss(
            unclipped=used * advantage,
            clipped=min(max(used, low), high) * advantage,
            bound=settings.dual_clip * advantage if advantage < 0 < settings.dual_clip else None,
            weight=self.weight,
            kl=penalty,
        )


def advantage_terms(sample: TokenSample, index: int) -> list[AdvantageTerm]:
    """Return the terms of the sum in the advantage of token `index`, nearest first.

    The sum is sum_l (gamma lambda)^l delta_{t+l} with GAE, and G_t = sum_l gamma^l r_{t+l} with reinforce and remax.
    Where the response is one action it is R = sum_t r_t, over all rewards whatever the token. There are no terms
    without settings.
    """
    settings, numbers = sample.settings, sample.numbers
    if settings is None:
        return []
    if settings.estimator == "gae":
        first, factor, values = index, settings.gamma * settings.lam, numbers.get("td_errors", ())
    elif settings.estimator in PER_RESPONSE:
        first, factor, values = 0, 1.0, numbers.get("rewards", ())
    else:
        first, factor, values = index, settings.gamma, numbers.get("rewards", ())
    weight, running, terms = 1.0, 0.0, list[AdvantageTerm]()
    for token, x in enumerate(values[first:], first):
        running += weight * x
        terms.append(AdvantageTerm(token, weight, x, weight * x, running))
        weight *= factor
    return terms


def ratio_range(settings: SampleSettings) -> tuple[float, float]:
    """Return the bounds between which a ratio is not clipped."""
    low = 1 - settings.clip if settings.policy_loss == "clip" else -math.inf
    return low, 1 + (settings.clip_high or settings.clip)


def deviation(std: float) -> float:
    """Return the divisor of whitening, sqrt(std^2 + 1e-8)."""
    return math.sqrt(std * std + _WHITENING)


def exp(x: float) -> float:
    """Return e to the x, infinity where that exceeds a float."""
    try:
        return math.exp(x)
    except OverflowError:
        return math.inf


def token_name(text: str) -> str:
    """Return `text` in quotes, with spaces as ·, newlines as ⏎ and control characters as symbols."""
    shown = visible(text.replace("\n", "⏎")).replace(" ", "·")
    return f"'{shown}'"


def token_label(sample: TokenSample, index: int) -> str:
    """Return the token's `token_name`, or which part of a character it is: of these only the last has the text."""
    texts, first, last = sample.texts, index, index
    while first and not texts[first - 1]:
        first -= 1
    while last < len(texts) - 1 and not texts[last]:
        last += 1
    if not texts[last]:
        return f"part {index - first + 1} of an unfinished character"
    if first == last:
        return token_name(texts[index])
    return f"part {index - first + 1} of {last - first + 1} of {token_name(texts[last])}"


def _kl_in_loss(
    logprob: float | None, ref_logprob: float | None, settings: SampleSettings
) -> tuple[float, float] | None:
    """Return KL_t as `trainer.maths.kl_loss` does, and d KL_t / d log pi; None if one token does not determine it."""
    if logprob is None or ref_logprob is None or settings.kl_estimator not in ("k2", "k3"):
        return None
    log_r = ref_logprob - logprob
    if settings.kl_estimator == "k2":
        return 0.5 * log_r * log_r, -log_r
    bounded = min(log_r, LARGEST_LOG_R)
    beyond = math.expm1(LARGEST_LOG_R) * max(log_r - LARGEST_LOG_R, 0.0)
    return math.expm1(bounded) - bounded + beyond, 1 - exp(bounded)


def _geometric_mean(ratios: Sequence[float | None]) -> float:
    """Return the geometric mean of a response's ratios; NaN where one of them is not a positive number."""
    known = [math.log(ratio) for ratio in ratios if ratio is not None and ratio > 0]
    return exp(math.fsum(known) / len(known)) if len(known) == len(ratios) else math.nan


def _at(values: Sequence[T], index: int) -> T | None:
    return values[index] if index < len(values) else None


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def sentence(facts: TokenFacts) -> str:
    """Return why the token was pushed, what dominates its reward, and how likely the reference finds it.

    Empty where too little is known.
    """
    mine, theirs, reference = facts.probability, facts.ref_probability, ""
    if mine is not None and theirs is not None and not math.isnan(mine + theirs):
        reference = f"reference {percent(theirs)}, policy {percent(mine)}"
    return "; ".join(filter(None, [_push(facts), _penalty(facts), _pull(facts), reference]))


def amount(x: float) -> str:
    """Format the absolute value of `x` with two decimals, and at least two significant digits."""
    return f"{abs(x):.2f}" if x == 0 or 0.095 <= abs(x) < 1e6 else f"{abs(x):.2g}"


def percent(probability: float) -> str:
    """Format `probability` as a percentage with two or three digits, as a bound close to 0 or 1; "-" for NaN."""
    if math.isnan(probability):
        return "-"
    if probability <= 0 or probability > 1:  # more than 1 is of a damaged file
        return f"{100 * probability:.3g}%"
    if probability < 1e-4:
        return "<0.01%"
    if probability < 0.0995:
        return f"{100 * probability:.2g}%"
    if 0.9995 <= probability < 1:
        return ">99.9%"
    return f"{100 * probability:.{1 if 0.99 <= probability < 1 else 0}f}%"


def _push(facts: TokenFacts) -> str:
    """Return the direction of the push and its explanation by the critic's expectation or the baseline."""
    raw, seen, settings = facts.advantage, facts.loss_advantage, facts.settings
    if not _finite(raw):
        return ""
    expected = _compared(facts, raw)
    if settings is None or not _finite(seen):
        return expected
    if problem := _no_step(facts, settings):
        return f"not pushed: {problem}"
    unit = 1.0 if settings.whiten_advantages else settings.advantage_std
    slight = _HARDLY * unit
    direction = (
        "hardly pushed" if seen == 0 or abs(seen) < slight else _until_clipped(facts, "up" if seen > 0 else "down")
    )
    if settings.whiten_advantages:
        mean, its = settings.advantage_mean, "" if facts.estimator == "gae" else "its advantage is "
        batch = f"the batch's mean of {'-' if mean < 0 else ''}{amount(mean)}"
        if direction == "hardly pushed" and abs(raw) >= _HARDLY * settings.advantage_std:
            return f"{expected}, {its and f'and {its}'}close to {batch}: {direction}"
        explained = raw > 0 if seen > 0 else raw < 0
        if direction != "hardly pushed" and not explained:
            return f"{expected}, but {its}{'above' if seen > 0 else 'below'} {batch}: {direction}"
    return f"{direction}: {expected}"


def _compared(facts: TokenFacts, raw: float) -> str:
    """Return the advantage in words: `raw` is how far one quantity lies above another."""
    if facts.estimator == "gae":
        way = "better" if raw > 0 else "worse"
        return f"{way} than the critic expected by {amount(raw)}" if raw else "just as the critic expected"
    what, than = _COMPARED.get(facts.estimator, _BASELINE)
    way = "above" if raw > 0 else "below"
    if raw == 0:
        group = facts.sample.group
        alike = len(group) > 1 and len(set(group)) == 1
        return "all responses to the prompt have the same reward" if alike else f"{what} is {than}"
    if facts.estimator != "grpo":
        return f"{what} is {amount(raw)} {way} {than}"
    far = raw * (facts.advantage_scale or math.nan)
    return f"{what} is {amount(far)} {way} {than}" if math.isfinite(far) else f"{what} is {way} {than}"


def _no_step(facts: TokenFacts, settings: SampleSettings) -> str:
    """Return why the token was part of no step; empty if it was."""
    if not settings.trains_policy:
        return "only the critic is trained in this iteration"
    if not settings.has_signal:
        return "all advantages of the batch are equal"
    marks = [one.mark for one in facts.passes]
    if "no step" in marks and not any(one.in_loss for one in facts.passes):
        return "no optimiser step used its minibatches"
    return ""


def _until_clipped(facts: TokenFacts, way: str) -> str:
    epochs = [one for one in facts.passes if one.in_loss]
    clipped = [one.clipped for one in epochs]
    if not any(clipped):
        return f"pushed {way}"
    if all(clipped):
        return f"kept from being pushed {way} by the clip"
    first = clipped.index(True)
    if all(clipped[first:]):
        return f"pushed {way} until the clip stopped it in {epochs[first].name}"
    return f"pushed {way}, held by the clip in {sum(clipped)} of {len(clipped)} epochs"


def _penalty(facts: TokenFacts) -> str:
    """Report the KL penalty where it is most of the reward and large enough to affect the advantage."""
    penalty, rest, settings = facts.kl_penalty, facts.token_score, facts.settings
    if settings is None or not (_finite(penalty) and _finite(rest) and _finite(facts.advantage)):
        return ""
    if facts.earns_score:
        if not _finite(facts.sequence_score):
            return ""
        rest += facts.sequence_score
    size = abs(penalty) / (deviation(settings.reward_std) if settings.whiten_rewards else 1.0)
    size /= abs(facts.advantage_scale or 1.0)
    matters = size >= abs(facts.advantage) / 2 and size >= _HARDLY * settings.advantage_std
    if abs(penalty) <= abs(rest) or not matters:
        return ""
    what = f"KL {'penalty' if penalty < 0 else 'bonus'} of {amount(penalty)}"
    if rest == 0:
        return f"its reward is a {what}"
    return f"the {what} dominates its reward of {'-' if rest < 0 else ''}{amount(rest)}"


def _pull(facts: TokenFacts) -> str:
    """Report the KL in the loss where it pushes the token at least half as much as its advantage does."""
    pull, seen, settings = facts.kl_pull, facts.loss_advantage, facts.settings
    if settings is None or not (_finite(pull) and _finite(seen)) or not pull or _no_step(facts, settings):
        return ""
    push = seen * (1.0 if facts.weight is None else facts.weight)
    unit = 1.0 if settings.whiten_advantages else settings.advantage_std
    if abs(pull) < max(abs(push) / 2, _HARDLY * unit):
        return ""
    more = " more strongly" if push and abs(pull) > abs(push) else ""
    return f"the KL in the loss pushes it {'up' if pull > 0 else 'down'}{more}"


def _finite(x: float | None) -> TypeGuard[float]:
    return x is not None and math.isfinite(x)
