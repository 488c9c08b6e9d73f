"""Rollouts: sequences from the policy by mlx-lm's continuous batching, sampled with temperature, top-p and top-k."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.generate import BatchGenerator
from mlx_lm.sample_utils import apply_top_k, apply_top_p

from trainer.arrays import to_list
from trainer.config.schema import RolloutConfig
from trainer.data import Prompt
from trainer.models.logprobs import exponentials
from trainer.rollout.experience import Experience

PREFILL_BATCH = 8
_BLOCK = 256  # tokens of the vocabulary that are drawn together
_BELOW_ONE = 1 - 2**-23


class _Row(NamedTuple):
    """One unfinished sequence."""

    prompt: Prompt
    tokens: list[int]
    logprobs: list[float]


class Response(NamedTuple):
    """Response of the policy to one prompt, including the tokens that it was begun with."""

    tokens: list[int]  # the stop token, if there is one, is the last
    logprobs: list[float]  # of the sampling distribution, before top-p and top-k; NaN for tokens not sampled
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
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Response]:
    """Sample responses to `prompts`, in their order.

    begun: ids that each response begins with and the policy continues; they do not count towards max_new_tokens.
    """
    keys = mx.random.split(key, len(prompts))
    stop_ids = [] if sampling.ignore_stop else [[token] for token in sorted(tokenizer.eos_token_ids)]
    generator = BatchGenerator(
        _InFloat32(backbone),
        max_tokens=sampling.max_new_tokens,
        stop_tokens=stop_ids,
        completion_batch_size=sampling.slots,
        prefill_batch_size=min(PREFILL_BATCH, sampling.slots),
        stream=mx.default_stream(mx.default_device()),  # its default belongs to the thread that imported mlx_lm
    )
    samplers = [make_sampler(sampling, row_key) for row_key in keys]
    stop_texts = [] if sampling.ignore_stop else sampling.stop
    uids = generator.insert([prompt.tokens + list(begun) for prompt in prompts], samplers=samplers)
    rows = {uid: _Row(prompt, list(begun), [math.nan] * len(begun)) for uid, prompt in zip(uids, prompts, strict=True)}
    finished: dict[int, Response] = {}
    total, written = sampling.max_new_tokens * len(prompts), 0
    try:
        while len(finished) < len(rows) and (steps := generator.next_generated()):
            chosen = _chosen_logprobs(steps, sampling.temperature)
            for step, logprob in zip(steps, chosen, strict=True):
                row = rows[step.uid]
                row.tokens.append(step.token)
                row.logprobs.append(logprob)
                at_stop_text = _at_stop_text(tokenizer, row.tokens, stop_texts)
                if step.finish_reason is not None or at_stop_text:
                    at_stop_token = step.finish_reason == "stop"
                    text = _text(tokenizer, row.tokens[:-1] if at_stop_token else row.tokens, stop_texts)
                    truncated = not at_stop_token and not at_stop_text
                    finished[step.uid] = Response(row.tokens, row.logprobs, text, truncated)
                    if step.finish_reason is None:
                        generator.remove([step.uid])
            written += len(steps)
            progress(written, total)
    finally:
        generator.close()
    return [finished[uid] for uid in uids]


def lay_out(prompts: Sequence[Prompt], responses: Sequence[Response]) -> Experience:
    """Return prompts and responses as one right-padded record. Padding is id 0; masks come from the lengths."""
    starts = [len(prompt.tokens) for prompt in prompts]
    counts = [len(response.tokens) for response in responses]
    width = max(counts)
    length = max(start + count for start, count in zip(starts, counts, strict=True))
    sequences = np.zeros((len(prompts), length), dtype=np.int32)
    replies = np.zeros((len(prompts), width), dtype=np.int32)
    logprobs = np.zeros((len(prompts), width), dtype=np.float32)
    for row, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        sequences[row, : starts[row] + counts[row]] = prompt.tokens + response.tokens
        replies[row, : counts[row]] = response.tokens
        logprobs[row, : counts[row]] = response.logprobs
    return Experience(
        sequences=mx.array(sequences),
        responses=mx.array(replies),
        prompt_lengths=mx.array(starts),
        response_lengths=mx.array(counts),
        mask=(mx.arange(width)[None] < mx.array(counts)[:, None]).astype(mx.float32),
        truncated=mx.array([float(response.truncated) for response in responses]),
        sampler_logprobs=mx.array(logprobs),
        texts=[response.text for response in responses],
        prompt_indices=[prompt.index for prompt in prompts],
    )


def make_sampler(sampling: RolloutConfig, key: mx.array) -> Callable[[mx.array], mx.array]:
    """Return the sampler of one sequence: [1, V] logits or log-probs to [1] token, random by `key` alone.

    It computes in float32, whatever the logits' type: the eight bits of bfloat16 are too few to sum a vocabulary.
    """
    state = [key]

    def sample(logits: mx.array) -> mx.array:
        logits = logits.astype(mx.float32)
        if sampling.temperature != 1:
            logits = logits / sampling.temperature
        if sampling.top_p < 1:
            logits = apply_top_p(logits - mx.logsumexp(logits, axis=-1, keepdims=True), sampling.top_p)
        if 0 < sampling.top_k < logits.shape[-1]:
            logits = apply_top_k(logits, sampling.top_k)
        state[0], draw = mx.random.split(state[0])
        return categorical(logits[0], draw)[None]

    return sample


def categorical(logits: mx.array, key: mx.array) -> mx.array:
    """Draw an index from softmax(logits) by inverting the distribution function.

        i = the first with  sum_{j <= i} w_j > u sum_j w_j,   w = exp(logits - max),   u uniform in [0, 1)

    It draws a block of tokens first, then a token of the block, each with its own u, so that float32 represents the
    tail of a large vocabulary. Gumbel noise (`mx.random.categorical`) would need a random number and two logarithms per
    token. logits: [V] of any float type, at least one above -inf; a token at -inf is never drawn. Returns a scalar.
    """
    logits = logits.astype(mx.float32)
    weights = exponentials(logits - logits.max())
    weights = mx.pad(weights, (0, -weights.shape[0] % _BLOCK)).reshape(-1, _BLOCK)
    for_block, for_token = mx.random.uniform(shape=(2,), key=key)
    block = _invert(weights.sum(axis=-1), for_block)
    return block * _BLOCK + _invert(weights[block], for_token)


def _invert(weights: mx.array, u: mx.array) -> mx.array:
    """Find the first index whose cumulative sum exceeds u times the total. Its weight is positive despite rounding."""
    sums = mx.cumsum(weights)
    target = sums[-1] * mx.minimum(u, _BELOW_ONE)
    return (sums <= target).sum()


class _InFloat32:
    """Model whose logits are cast to float32, because the generator normalises them in the type that it gets.

    In bfloat16 a log-prob of -10 would be rounded to 1/16 nat.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def __call__(self, *args: Any, **kwargs: Any) -> mx.array:
        logits: mx.array = self._model(*args, **kwargs)
        return logits.astype(mx.float32)

    def __getattr__(self, name: str) -> Any:  # the generator builds its caches from these
        return getattr(self._model, name)


def _chosen_logprobs(steps: Sequence[Any], temperature: float) -> list[float]:
    """Return the log-prob of each row's new token at the sampling temperature, in one evaluation.

    The generator's rows are float32 log-softmax without temperature. Only one number of each is kept, because keeping a
    row would keep the whole [B, V] array.
    """
    chosen = []
    for step in steps:
        logprobs = step.logprobs
        if temperature != 1:
            logprobs = logprobs / temperature
            logprobs = logprobs - mx.logsumexp(logprobs)
        chosen.append(logprobs[step.token])
    return to_list(mx.stack(chosen))


def _at_stop_text(tokenizer: Any, tokens: list[int], stops: Sequence[str]) -> bool:
    """Return whether the last token completed a stop text. This compares text: one text has many tokenisations."""
    if not stops:
        return False
    # A token is at least one byte. Eight more, because some decoders change the first tokens that they are given.
    tail = tokenizer.decode(tokens[-max(len(stop.encode()) for stop in stops) - 8 :])
    return any(stop in tail for stop in stops)


def _text(tokenizer: Any, tokens: list[int], stops: Sequence[str]) -> str:
    """Return the text of `tokens` before the first stop text."""
    text = str(tokenizer.decode(tokens, skip_special_tokens=True))  # as TRL passes completions to rewards
    return text[: min((text.find(stop) for stop in stops if stop in text), default=len(text))]
