"""Sequences with consistent numbers, as rows of a samples file and as the records that the screen reads."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from trainer.runs.samples import TOKEN_COLUMNS, SampleSettings
from workbench.run.sample_table import Alternative, SampleKey, TokenSample
from workbench.samples.token_facts import TokenFacts

WORDS = (
    " joy",
    " the",
    " band",
    "!",
    "\n",
    " was",
    " tri",
    "umph",
    " 日本",
    "é",
    " 🎉",
    ",",
    " so",
    " played",
    " with",
)

_NUMBERS = ("final_value", "baseline", "advantage_scale")  # of a sequence, null where it has none

SETTINGS = SampleSettings(
    kl_coef=0.05,
    kl_estimator="k1",
    gamma=1.0,
    lam=0.95,
    clip=0.2,
    temperature=1.0,
    epochs=2,
    bootstrap_truncated=False,
    whiten_rewards=False,
    whiten_advantages=True,
    reward_mean=0.01,
    reward_std=0.2,
    advantage_mean=0.1,
    advantage_std=0.5,
)


def sample_row(row: int = 0, length: int = 12, *, texts: Sequence[str] | None = None, **changes: Any) -> dict[str, Any]:
    """Return a samples file row by SETTINGS; texts: of its tokens, in place of `length` words drawn by `row`."""
    rng = random.Random(row)
    texts = [rng.choice(WORDS) for _ in range(length)] if texts is None else list(texts)
    length = len(texts)
    logprobs = [-rng.expovariate(0.5) for _ in range(length)]
    ref_logprobs = [min(logprob - rng.gauss(0.2, 0.8), -0.001) for logprob in logprobs]
    kl = [mine - theirs for mine, theirs in zip(logprobs, ref_logprobs, strict=True)]
    score = rng.uniform(-1, 1)
    rewards = [-SETTINGS.kl_coef * one for one in kl]
    if rewards:
        rewards[-1] += score
    values = [rng.gauss(0.3, 0.2) for _ in range(length)]
    deltas = [
        reward + SETTINGS.gamma * following - value
        for reward, value, following in zip(rewards, values, [*values, 0.0][1:], strict=True)
    ]
    advantages, ahead = [0.0] * length, 0.0
    for place in reversed(range(length)):
        ahead = deltas[place] + SETTINGS.gamma * SETTINGS.lam * ahead
        advantages[place] = ahead
    truncated = row % 3 == 2
    tokens = [100 + place for place in range(length)]
    places = zip(tokens, texts, logprobs, ref_logprobs, strict=True)
    top = [_alternatives(rng, *place) for place in places]
    values_of = {
        "row": row,
        "prompt_index": row,
        "sample": 0,
        "prompt": f"Prompt {row}: once upon a time",
        "source_prompt": None,
        "completion": "".join(texts),
        "truncated": truncated,
        "stop_reason": "length" if truncated else "stop",
        "score": score,
        "sequence_score": score,
        "parts": {"lexicon": score},
        "columns": json.dumps({"mood": "warm"}),
        "length": length,
        "kl_sum": math.fsum(kl),
        "final_value": 0.25,
        "baseline": None,
        "advantage_scale": None,
        "prompt_tokens": [1, 2, 3],
        "tokens": tokens,
        "token_texts": texts,
        "sampler_logprobs": logprobs,
        "logprobs": logprobs,
        "ref_logprobs": ref_logprobs,
        "kl": kl,
        "entropy": [rng.uniform(0, 4) for _ in range(length)],
        "token_scores": [0.0] * length,
        "rewards": rewards,
        "values": values,
        "td_errors": deltas,
        "advantages": advantages,
        "returns": [advantage + value for advantage, value in zip(advantages, values, strict=True)],
        "ratios": [[1.0, math.exp(rng.gauss(0, 0.15))] for _ in range(length)],
        "top_tokens": [[one.token for one in place] for place in top],
        "top_texts": [[one.text for one in place] for place in top],
        "top_logprobs": [[one.logprob for one in place] for place in top],
        "top_ref_logprobs": [[one.ref_logprob for one in place] for place in top],
    }
    return values_of | changes


def row_without_critic(estimator: str, row: int = 0, length: int = 12, *, gamma: float = 1.0) -> dict[str, Any]:
    """Return a row without values, whose advantages are against a baseline of 0.25 (by grpo over 0.5 as well)."""
    values = sample_row(row, length)
    rewards, baseline, scale = values["rewards"], 0.25, 0.5 if estimator == "grpo" else None
    to_go, ahead = [0.0] * length, 0.0
    whole = estimator in ("rloo", "grpo")
    for place in reversed(range(length)):
        ahead = rewards[place] + (1.0 if whole else gamma) * ahead
        to_go[place] = ahead
    earned = [math.fsum(rewards)] * length if whole else to_go
    return values | {
        "values": None,
        "td_errors": None,
        "final_value": None,
        "baseline": baseline,
        "advantage_scale": scale,
        "advantages": [(one - baseline) / (scale or 1.0) for one in earned],
        "returns": to_go,
    }


def token_sample(iteration: int = 12, row: int = 0, length: int = 12, **changes: Any) -> TokenSample:
    """Return the record of `sample_row`; changes: of the row's columns, before the record is made."""
    values = sample_row(row, length, **changes)
    top = zip(
        values["top_tokens"], values["top_texts"], values["top_logprobs"], values["top_ref_logprobs"], strict=True
    )
    return TokenSample(
        key=SampleKey(iteration, row),
        prompt_index=values["prompt_index"],
        sample=values["sample"],
        prompt=values["prompt"],
        completion=values["completion"],
        score=values["score"],
        sequence_score=values["sequence_score"],
        parts=values["parts"],
        group=[],
        source_prompt=values["source_prompt"] or "",
        columns=values["columns"],
        truncated=values["truncated"],
        **{name: math.nan if values[name] is None else values[name] for name in _NUMBERS},
        prompt_tokens=values["prompt_tokens"],
        tokens=values["tokens"],
        texts=values["token_texts"],
        numbers={name: values[name] for name in TOKEN_COLUMNS if values[name] is not None},
        ratios=values["ratios"],
        alternatives=[[Alternative(*one) for one in zip(*place, strict=True)] for place in top],
        settings=SETTINGS,
    )


def sample_without_critic(estimator: str, row: int = 0, length: int = 6, **held: Any) -> TokenSample:
    """Return the record of `row_without_critic`; held: settings in which its run differs from SETTINGS."""
    settings = replace(SETTINGS, estimator=estimator, **held)
    found = token_sample(**row_without_critic(estimator, row, length, gamma=settings.gamma))
    group = [math.fsum(found.numbers["rewards"])] if estimator in ("rloo", "grpo") else []
    return replace(found, settings=settings, group=group)


def explained_token(
    *,
    logprob: float = -2.5,
    ref_logprob: float = -3.5,
    advantage: float = 0.41,
    advantage_scale: float | None = None,
    ratios: tuple[float, ...] = (),
    kl_penalty: float = -0.001,
    token_score: float = 0.0,
    **changes: Any,
) -> TokenFacts:
    """Return a token in the middle of a response; changes: of settings that whiten nothing."""
    row = sample_row(0, 3)
    numbers = {
        "logprobs": logprob,
        "sampler_logprobs": logprob,
        "ref_logprobs": ref_logprob,
        "advantages": advantage,
        "kl": -kl_penalty,
        "token_scores": token_score,
    }
    columns = {name: [value, *row[name][1:]] for name, value in numbers.items()}
    without = {} if changes.get("estimator", "gae") == "gae" else {"values": None, "td_errors": None}
    found = token_sample(length=3, **columns, **without, advantage_scale=advantage_scale, ratios=[list(ratios)] * 3)
    base = {"whiten_advantages": False, "epochs": max(len(ratios), 1), "kl_coef": 1.0, "kl_estimator": "?"}
    return TokenFacts(replace(found, settings=replace(SETTINGS, **base | changes)), 0)


def _alternatives(rng: random.Random, token: int, text: str, logprob: float, ref_logprob: float) -> list[Alternative]:
    """Return five tokens, likeliest first, the written one among them; the others share what it leaves."""

    def left(logprob: float) -> list[float]:
        shares = [rng.uniform(0.05, 1) for _ in range(4)]
        return [math.log(max(-math.expm1(logprob), 1e-6) * share / (sum(shares) + 0.5)) for share in shares]

    pairs = zip(left(logprob), left(ref_logprob), strict=True)
    others = [Alternative(500 + n, f" other{n}", *pair) for n, pair in enumerate(pairs)]
    return sorted([Alternative(token, text, logprob, ref_logprob), *others], key=lambda one: -one.logprob)
