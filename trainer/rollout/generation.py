"""Rollouts: sequences from the policy by continuous batching, sampled with temperature, top-k and top-p."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from trainer.arrays import pad, to_list
from trainer.config.schema import RolloutConfig
from trainer.data import Prompt
from trainer.rollout.decoding import Decoding, DecodingStep, wired_memory
from trainer.rollout.experience import Experience
from trainer.rollout.token_texts import AS_SCORED

_DROP_AT = 1 / 8  # share of the rows of a batch that have ended
_REFILL_AT = 1 / 4  # share of the slots that are free


@dataclass(slots=True)
class _Row:
    """One response under way."""

    context: list[int]  # what the model has read before it writes
    tokens: list[int]  # of the response, including those that it was begun with
    to_begin: int  # tokens whose decoding step has not begun
    ended: Literal["", "stop token", "stop text", "length"] = ""


class Response(NamedTuple):
    """Response of the policy to one prompt, including the tokens that it was begun with."""

    tokens: list[int]  # the stop token, if there is one, is the last
    logprobs: list[float]  # of the sampling distribution, before top-k and top-p; NaN for tokens not sampled
    text: str  # without the stop token or stop text
    truncated: bool  # cut at max_new_tokens


def generate_sequences(
    backbone: nn.Module,
    tokenizer: Any,
    prompts: Sequence[Prompt],
    sampling: RolloutConfig,
    *,
    key: mx.array,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Experience:
    """Sample one response per prompt (repeat a prompt for several) and return them as Experience.

    Row i draws from its own key, split from `key`, so its response depends on its prompt and the weights, not on its
    neighbours. `progress(done, total)`, in response tokens, is called after every token step; it may raise to end the
    rollout.
    """
    responses = generate_responses(backbone, tokenizer, prompts, sampling, key=key, progress=progress)
    return lay_out(prompts, responses)


def generate_responses(
    backbone: nn.Module,
    tokenizer: Any,
    prompts: Sequence[Prompt],
    sampling: RolloutConfig,
    *,
    key: mx.array,
    begun: Sequence[int] = (),
    share: Sequence[int] | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Response]:
    """Sample responses to `prompts`, in their order.

    begun: ids that each response begins with and the policy continues; they do not count towards max_new_tokens.
    share: those of `prompts` to respond to, by position; each with the draws that it has among all.
    """
    keys = mx.random.split(key, len(prompts))
    if share is not None:
        keys, prompts = keys[mx.array(list(share), dtype=mx.int32)], [prompts[place] for place in share]
    if not prompts:
        return []
    rows = [_Row(prompt.tokens + list(begun), list(begun), sampling.max_new_tokens) for prompt in prompts]
    waiting = sorted(range(len(rows)), key=lambda number: len(rows[number].context), reverse=True)
    decoding = Decoding(backbone, sampling)
    steps: list[DecodingStep] = []
    read = written = 0
    with wired_memory():
        while waiting or decoding.rows or read < len(steps):
            _change_rows(decoding, rows, waiting, keys)
            begins = bool(decoding.rows)
            if begins:  # before the last one is read, so that the device never waits for Python
                steps.append(decoding.step())
                for number in decoding.rows:
                    rows[number].to_begin -= 1
            if begins and len(steps) - read == 1:
                continue
            for number, token in zip(steps[read].rows, to_list(steps[read].tokens), strict=True):
                if not rows[number].ended:  # the step after a row's end was begun too
                    _add(rows[number], token, tokenizer, sampling, cut=len(begun) + sampling.max_new_tokens)
                    written += 1
            read += 1
            progress(written, sampling.max_new_tokens * len(prompts))
    logprobs: list[list[float]] = [[] for _ in rows]
    numbers = [number for step in steps for number in step.rows]  # read from the device at once
    for number, logprob in zip(numbers, to_list(mx.concatenate([step.logprobs for step in steps])), strict=True):
        logprobs[number].append(logprob)
    return [_response(row, len(begun), found, tokenizer, sampling) for row, found in zip(rows, logprobs, strict=True)]


def lay_out(prompts: Sequence[Prompt], responses: Sequence[Response]) -> Experience:
    """Return prompts and responses as one right-padded record. Padding is id 0; masks come from the lengths."""
    starts = [len(prompt.tokens) for prompt in prompts]
    counts = [len(response.tokens) for response in responses]
    sequences = [prompt.tokens + response.tokens for prompt, response in zip(prompts, responses, strict=True)]
    return Experience(
        sequences=mx.array(pad(sequences)),
        responses=mx.array(pad([response.tokens for response in responses])),
        prompt_lengths=mx.array(starts),
        response_lengths=mx.array(counts),
        mask=(mx.arange(max(counts))[None] < mx.array(counts)[:, None]).astype(mx.float32),
        truncated=mx.array([float(response.truncated) for response in responses]),
        sampler_logprobs=mx.array(pad([response.logprobs for response in responses], np.float32)),
        texts=[response.text for response in responses],
        prompt_indices=[prompt.index for prompt in prompts],
    )


def _change_rows(decoding: Decoding, rows: Sequence[_Row], waiting: list[int], keys: mx.array) -> None:
    """Drop rows that need no further step, and admit some of `waiting`, which are sorted by length; both if worth it.

    Either copies the caches of all rows.
    """
    going = [number for number in decoding.rows if not rows[number].ended and rows[number].to_begin > 0]
    room = decoding.at_most - len(going)
    refill = bool(waiting) and room >= min(len(waiting), max(int(decoding.at_most * _REFILL_AT), 1))
    if refill or len(decoding.rows) - len(going) >= max(len(decoding.rows) * _DROP_AT, 1):
        decoding.keep(going)
    if refill:
        admitted, waiting[:] = waiting[:room], waiting[room:]
        contexts = [rows[number].context for number in admitted]
        decoding.admit(admitted, contexts, keys[mx.array(admitted)])


def _add(row: _Row, token: int, tokenizer: Any, sampling: RolloutConfig, *, cut: int) -> None:
    """Add a token to a row and note whether that ends it; cut: its largest number of tokens."""
    row.tokens.append(token)
    if not sampling.ignore_stop and token in tokenizer.eos_token_ids:
        row.ended = "stop token"
        return
    if not sampling.ignore_stop and sampling.stop:
        # Texts are compared, because one text has many tokenisations. A token is at least one byte. Eight more, because
        # some decoders change the first tokens that they are given.
        tail = tokenizer.decode(row.tokens[-max(len(stop.encode()) for stop in sampling.stop) - 8 :])
        if any(stop in tail for stop in sampling.stop):
            row.ended = "stop text"
            return
    if len(row.tokens) == cut:
        row.ended = "length"


def _response(row: _Row, begun: int, logprobs: Sequence[float], tokenizer: Any, sampling: RolloutConfig) -> Response:
    """Return the finished row. logprobs: of its steps, perhaps one too many; begun: tokens that were not sampled."""
    ids = row.tokens[:-1] if row.ended == "stop token" else row.tokens
    text, stops = str(tokenizer.decode(ids, **AS_SCORED)), [] if sampling.ignore_stop else sampling.stop
    return Response(
        tokens=row.tokens,
        logprobs=[math.nan] * begun + list(logprobs[: len(row.tokens) - begun]),
        text=text[: min((text.find(stop) for stop in stops if stop in text), default=len(text))],
        truncated=row.ended == "length",
    )
