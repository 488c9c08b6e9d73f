"""Log-probs and entropy of a model's logits at a temperature, by the fastest exact method on this device.

`Forward.at_positions` computes them some positions at a time: logits are by far the largest arrays of scoring and
training. A vocabulary of 150,000 words takes 600 KB a position, and the gradient several times that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

from trainer import maths
from trainer.arrays import filled
from trainer.models import kernels as cpu

_BLOCK = 64  # tokens; nearly every vocabulary size is a multiple of it
CHUNK = 128
"""Positions at a time on a CPU, where about ten arrays of their logits are alive at once; twice as many on a GPU.

Each chunk reads all weights of the head, which takes longer than the product itself if there are few positions.
"""

Head = Callable[[mx.array], mx.array]  # from hidden states [B, T, D] to logits [B, T, V]
Compute = Callable[..., tuple[mx.array, ...]]
Columns = dict[str, mx.array]


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
    tops = -blocks.max(axis=-1)  # of which the largest are found, in any order
    best = mx.argpartition(tops, min(count, tops.shape[-1]) - 1, axis=-1)[..., :count, None]  # [..., blocks, 1]
    tokens = mx.flatten(best * width + mx.arange(width, dtype=best.dtype), -2)
    found = mx.flatten(mx.take_along_axis(blocks, best, axis=-2), -2)
    if rest := vocabulary - whole:
        found = mx.concatenate([found, logits[..., whole:]], axis=-1)
        tail = mx.broadcast_to(mx.arange(whole, vocabulary, dtype=tokens.dtype), (*tokens.shape[:-1], rest))
        tokens = mx.concatenate([tokens, tail], axis=-1)
    places = mx.argpartition(-found, count - 1, axis=-1)[..., :count]
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


def _scaled(logits: mx.array, temperature: float) -> mx.array:
    logits = logits.astype(mx.float32)
    return logits if temperature == 1 else logits / temperature


def _on_cpu() -> bool:
    return mx.default_device() == mx.Device(mx.cpu)


class Forward(NamedTuple):
    """Outputs of one pass over B sequences, at the T response positions of each."""

    states: mx.array | None  # [B, T, D] of the policy before token t; None if only values were requested
    values: mx.array | None  # [B, T + 1] V(s_t), then V after the last token (at index length of each row)
    head: Head  # from states to logits

    def at_positions(
        self, mask: mx.array, compute: Compute, columns: Columns, *, gradient: bool = False
    ) -> tuple[mx.array, ...]:
        """Return the results of `compute` at the real positions of a batch: [B, T, ...] each, 0 elsewhere.

        Nothing at other positions is read. Without `gradient`, the results are evaluated. With it, they are lazy, and
        the first one is differentiable by `states`; the others are constants. Its gradient is computed along with it,
        while the logits are there, so it takes no pass over them later.

        mask: [B, T], 1.0 on the real positions. compute: takes logits [n, V] and `columns` [n, ...] of n positions, and
        returns arrays [n, ...]; a result may depend on its own position alone. columns: [B, T, ...].
        """
        states = filled(self.states)
        places = mx.array(np.flatnonzero(np.array(mask) > 0).astype(np.int32))

        def of_chunk(states: mx.array, columns: Columns) -> tuple[mx.array, ...]:
            return compute(self.head(states[None])[0], **columns)

        if not places.size:  # one position gives the shapes, and is not evaluated
            shapes = of_chunk(states[:1, 0], {name: x[:1, 0] for name, x in columns.items()})
            return tuple(mx.zeros((*mask.shape, *x.shape[1:]), dtype=x.dtype) for x in shapes)
        real, *chosen = (x.reshape(-1, *x.shape[2:])[places] for x in (states, *columns.values()))
        size = CHUNK if _on_cpu() else 2 * CHUNK

        def summed(states: mx.array, columns: Columns) -> tuple[mx.array, tuple[mx.array, ...]]:
            results = of_chunk(states, columns)
            return results[0].sum(), results

        # A result depends on the state of its own position alone, so the gradient of the sum of a chunk's results holds
        # that of each.
        of_sum: Any = mx.value_and_grad(summed)

        def run(states: mx.array) -> tuple[mx.array, ...]:
            parts: list[tuple[mx.array, ...]] = []
            for start in range(0, places.size, size):
                here = slice(start, start + size)
                part, others = states[here], {name: x[here] for name, x in zip(columns, chosen, strict=True)}
                if not gradient:
                    parts.append(of_chunk(part, others))
                    mx.eval(parts[-1])  # frees the logits of this chunk
                    continue
                # In a gradient, evaluated arrays keep their graphs, logits and all. So nothing is evaluated here: each
                # chunk waits for the one before.
                part = mx.stop_gradient(part)
                (_, results), slope = of_sum(mx.depends([part], list(parts[-1]))[0] if parts else part, others)
                parts.append((*results, slope))
            return tuple(mx.concatenate(list(column)) for column in zip(*parts, strict=True))

        if gradient:
            found = mx.custom_function(run)

            @found.vjp
            def by_state(primals: Any, cotangents: Any, outputs: Any) -> Any:
                slope = outputs[-1]
                return (slope.astype(mx.float32) * cotangents[0][:, None]).astype(slope.dtype)

            results = found(real)[:-1]  # type: ignore[index]
        else:
            results = run(real)
        return tuple(
            mx.zeros((mask.size, *x.shape[1:]), dtype=x.dtype).at[places].add(x).reshape(*mask.shape, *x.shape[1:])
            for x in results
        )

    def logprobs(
        self, tokens: mx.array, mask: mx.array, temperature: float = 1.0, *, gradient: bool = False
    ) -> mx.array:
        """Return the log-prob of each real token, 0 elsewhere. tokens, mask: [B, T]. Returns [B, T], float32."""
        return self.at_positions(
            mask,
            lambda logits, tokens: (token_logprobs(logits, tokens, temperature),),
            {"tokens": tokens},
            gradient=gradient,
        )[0]
