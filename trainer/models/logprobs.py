"""Log-probs and entropy of a model's logits at a temperature, by the quickest exact way on this device."""

from __future__ import annotations

import mlx.core as mx

from trainer import maths
from trainer.models.cpu import kernels as cpu

_BLOCK = 64  # words; nearly every vocabulary is a multiple of it


def token_logprobs(logits: mx.array, tokens: mx.array, temperature: float = 1.0) -> mx.array:
    """`maths.token_logprobs` of the distribution sampled from, logits / temperature: [..., V], [...] -> [...]."""
    logits = _scaled(logits, temperature)
    return cpu.token_logprobs(logits, tokens) if _on_cpu() else maths.token_logprobs(logits, tokens)


def logprobs_and_entropy(logits: mx.array, tokens: mx.array, temperature: float = 1.0) -> tuple[mx.array, mx.array]:
    """`token_logprobs` and `maths.entropy` of the same distribution, not to be differentiated. Two [...] arrays."""
    logits = _scaled(logits, temperature)
    if _on_cpu():
        return cpu.logprobs_and_entropy(logits, tokens)
    return maths.token_logprobs(logits, tokens), maths.entropy(logits)


def entropy(logits: mx.array, temperature: float = 1.0) -> mx.array:
    """`maths.entropy` of the distribution that is sampled from; differentiable. [..., V] -> [...]."""
    return maths.entropy(_scaled(logits, temperature))


def likeliest_tokens(logits: mx.array, count: int) -> mx.array:
    """Ids of the `count` largest logits, largest first: [..., V] -> [..., min(count, V)].

    Exact, without sorting the vocabulary: each of the k largest lies in one of the k blocks with the largest maxima, so
    only those are searched, which takes a tenth of the time on a CPU. What follows a tie is left open.
    """
    vocabulary = logits.shape[-1]
    count, width = min(count, vocabulary), min(_BLOCK, vocabulary)
    whole = vocabulary // width * width
    blocks = logits[..., :whole].reshape(*logits.shape[:-1], -1, width)
    best = _largest(blocks.max(axis=-1), count)[..., None]  # [..., blocks, 1]
    words = mx.flatten(best * width + mx.arange(width, dtype=best.dtype), -2)
    found = mx.flatten(mx.take_along_axis(blocks, best, axis=-2), -2)
    if rest := vocabulary - whole:
        found = mx.concatenate([found, logits[..., whole:]], axis=-1)
        tail = mx.broadcast_to(mx.arange(whole, vocabulary, dtype=words.dtype), (*words.shape[:-1], rest))
        words = mx.concatenate([words, tail], axis=-1)
    places = _largest(found, count)
    order = mx.argsort(-mx.take_along_axis(found, places, axis=-1), axis=-1)
    return mx.take_along_axis(words, mx.take_along_axis(places, order, axis=-1), axis=-1).astype(mx.int32)


def logprobs_of(
    logits: mx.array, words: mx.array, tokens: mx.array, logprobs: mx.array, temperature: float = 1.0
) -> mx.array:
    """Log-probs of other words at each place, from that of one: log p_w = log p_t + (l_w - l_t) / temperature.

    So the vocabulary is not summed again. logits: [..., V]; words: [..., k] ids; tokens, logprobs: [...], as
    `token_logprobs` gives them for the same temperature. Returns [..., k]; NaN where the token's own logit is -inf.
    """
    at_words = mx.take_along_axis(logits, words, axis=-1).astype(mx.float32)
    at_tokens = mx.take_along_axis(logits, tokens[..., None], axis=-1).astype(mx.float32)
    return logprobs[..., None] + (at_words - at_tokens) / temperature


def exponentials(x: mx.array) -> mx.array:
    """exp(x) for x <= 0, good to 1e-5 of itself down to exp(-10) and to 1e-9 of exp(0) below; exactly 0 at -inf."""
    return cpu.exponentials(x) if _on_cpu() else mx.exp(x)


def _largest(x: mx.array, count: int) -> mx.array:
    """Places of the `count` largest in the last axis, in any order; of all where there are no more."""
    return mx.argpartition(-x, min(count, x.shape[-1]) - 1, axis=-1)[..., :count]


def _scaled(logits: mx.array, temperature: float) -> mx.array:
    logits = logits.astype(mx.float32)
    return logits if temperature == 1 else logits / temperature


def _on_cpu() -> bool:
    return mx.default_device() == mx.Device(mx.cpu)
