"""Log-probs and entropy of a model's logits at a temperature, by the fastest exact method on this device."""

from __future__ import annotations

import mlx.core as mx

from trainer import maths
from trainer.models.cpu import kernels as cpu

_BLOCK = 64  # tokens; nearly every vocabulary size is a multiple of it


def token_logprobs(logits: mx.array, tokens: mx.array, temperature: float = 1.0) -> mx.array:
    """Compute `maths.token_logprobs` of the sampling distribution, logits / temperature: [..., V], [...] -> [...]."""
    logits = _scaled(logits, temperature)
    return cpu.token_logprobs(logits, tokens) if _on_cpu() else maths.token_logprobs(logits, tokens)


def logprobs_and_entropy(logits: mx.array, tokens: mx.array, temperature: float = 1.0) -> tuple[mx.array, mx.array]:
    """Compute `token_logprobs` and `maths.entropy` of the same distribution; not differentiable. Two [...] arrays."""
    logits = _scaled(logits, temperature)
    if _on_cpu():
        return cpu.logprobs_and_entropy(logits, tokens)
    return maths.token_logprobs(logits, tokens), maths.entropy(logits)


def entropy(logits: mx.array, temperature: float = 1.0) -> mx.array:
    """Compute `maths.entropy` of the sampling distribution; differentiable. [..., V] -> [...]."""
    return maths.entropy(_scaled(logits, temperature))


def kl_divergence(logits: mx.array, ref_logits: mx.array, temperature: float = 1.0) -> mx.array:
    """Compute `maths.kl_divergence` of the sampling distributions; differentiable by `logits` alone.

    logits, ref_logits: [..., V]. Returns [...], float32.
    """
    scaled, ref_scaled = _scaled(logits, temperature), mx.stop_gradient(_scaled(ref_logits, temperature))
    return cpu.kl_divergence(scaled, ref_scaled) if _on_cpu() else maths.kl_divergence(scaled, ref_scaled)


def likeliest_tokens(logits: mx.array, count: int) -> mx.array:
    """Return the ids of the `count` largest logits, largest first: [..., V] -> [..., min(count, V)].

    The result is exact but does not sort the vocabulary: each of the k largest logits lies in one of the k blocks with
    the largest maxima, so only those are searched. This takes a tenth of the time on a CPU. The order of equal logits
    is undefined.
    """
    vocabulary = logits.shape[-1]
    count, width = min(count, vocabulary), min(_BLOCK, vocabulary)
    whole = vocabulary // width * width
    blocks = logits[..., :whole].reshape(*logits.shape[:-1], -1, width)
    best = _largest(blocks.max(axis=-1), count)[..., None]  # [..., blocks, 1]
    tokens = mx.flatten(best * width + mx.arange(width, dtype=best.dtype), -2)
    found = mx.flatten(mx.take_along_axis(blocks, best, axis=-2), -2)
    if rest := vocabulary - whole:
        found = mx.concatenate([found, logits[..., whole:]], axis=-1)
        tail = mx.broadcast_to(mx.arange(whole, vocabulary, dtype=tokens.dtype), (*tokens.shape[:-1], rest))
        tokens = mx.concatenate([tokens, tail], axis=-1)
    places = _largest(found, count)
    order = mx.argsort(-mx.take_along_axis(found, places, axis=-1), axis=-1)
    return mx.take_along_axis(tokens, mx.take_along_axis(places, order, axis=-1), axis=-1).astype(mx.int32)


def logprobs_of(
    logits: mx.array, others: mx.array, tokens: mx.array, logprobs: mx.array, temperature: float = 1.0
) -> mx.array:
    """Compute log-probs of other tokens at each place from that of one, without summing over the vocabulary again.

        log p_o = log p_t + (l_o - l_t) / temperature

    logits: [..., V]; others: [..., k] ids of the other tokens; tokens, logprobs: [...], from `token_logprobs` at the
    same temperature. Returns [..., k]; NaN where the token's own logit is -inf.
    """
    at_others = mx.take_along_axis(logits, others, axis=-1).astype(mx.float32)
    at_tokens = mx.take_along_axis(logits, tokens[..., None], axis=-1).astype(mx.float32)
    return logprobs[..., None] + (at_others - at_tokens) / temperature


def exponentials(x: mx.array) -> mx.array:
    """Compute exp(x) for x <= 0, exactly 0 at -inf.

    The relative error is at most 1e-5 down to exp(-10), the absolute error below that at most 1e-9.
    """
    return cpu.exponentials(x) if _on_cpu() else mx.exp(x)


def _largest(x: mx.array, count: int) -> mx.array:
    """Return the indices of the `count` largest in the last axis, in any order; at most all of them."""
    return mx.argpartition(-x, min(count, x.shape[-1]) - 1, axis=-1)[..., :count]


def _scaled(logits: mx.array, temperature: float) -> mx.array:
    logits = logits.astype(mx.float32)
    return logits if temperature == 1 else logits / temperature


def _on_cpu() -> bool:
    return mx.default_device() == mx.Device(mx.cpu)
