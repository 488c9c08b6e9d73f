"""Decoding of several sequences together: their caches, the prefill of their contexts, and one token of each a step.

A token is sampled from its row's own key, in float32 whatever the type of the logits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import BatchKVCache, make_prompt_cache
from mlx_lm.sample_utils import apply_top_k, apply_top_p

from trainer.arrays import clear_cache
from trainer.config.schema import RolloutConfig
from trainer.models.logprobs import exponentials
from trainer.models.trunk import family_of

# Families whose part in mlx-lm 0.32.2 is wrong in a batch; benchmarks/families.py shows each.
_ONE_BY_ONE = ("afm7", "gpt_bigcode", "longcat_flash_ngram", "minimax_m3_vl", "recurrent_gemma")  # with left padding
_OF_ONE_LENGTH = (  # the padding of a prefill gets into their recurrent state
    "baichuan_m1",
    "bailing_moe_linear",
    "jamba",
    "mamba",
    "nemotron_h",
    "olmo_hybrid",
    "rwkv7",
)
PREFILL_TOKENS = 4096  # of all contexts that are read together, padding counted
PREFILL_STEP = 2048  # positions of each, a multiple of 256: mlx-lm's ssm_attn needs it in a padded batch
_BLOCK = 256  # tokens of the vocabulary that are drawn together
_BELOW_ONE = 1 - 2**-23
_CLEAR_EVERY = 512  # steps; caches grow, and their old buffers fit nothing else


class DecodingStep(NamedTuple):
    """One decoding step, possibly still under way on the device."""

    rows: list[int]  # B
    tokens: mx.array  # [B]
    logprobs: mx.array  # [B] as `Sampled`


class Decoding:
    """Sequences that are decoded together. Each row, named by a number, has its own key and cache.

    A step is only begun: whoever reads its tokens waits for it, and can begin the next one first. A family whose caches
    cannot be joined is decoded one row at a time (`at_most`).
    """

    def __init__(self, backbone: nn.Module, sampling: RolloutConfig) -> None:
        self.rows: list[int] = []
        joins = all(hasattr(cache, "merge") for cache in make_prompt_cache(backbone))
        self.at_most = sampling.slots if joins and family_of(backbone) not in _ONE_BY_ONE else 1
        """Rows that can be decoded together."""
        self._backbone = backbone
        self._sampling = sampling
        self._caches: list[Any] = []  # of mlx-lm, one for each layer, all rows in it
        self._inputs = mx.zeros((0,), dtype=mx.int32)  # [B] last token of each row
        self._keys = mx.zeros((0, 2), dtype=mx.uint32)  # [B, 2]
        self._steps = 0

    def admit(self, rows: Sequence[int], contexts: Sequence[Sequence[int]], keys: mx.array) -> None:
        """Add rows that continue `contexts`, none of them empty. keys: [len(rows), 2].

        Rows of the same context share a prefill. A group is padded to its longest, so sort the contexts by length.
        """
        one_length = family_of(self._backbone) in _OF_ONE_LENGTH
        added: list[Any] = []
        for group in _groups(contexts, one_length=one_length):
            shared = list(dict.fromkeys(tuple(contexts[place]) for place in group))
            caches = self._prefilled([context[:-1] for context in shared])
            if len(shared) < len(group):
                copies = [shared.index(tuple(contexts[place])) for place in group]
                for cache in caches:
                    cache.filter(copies)
            added = _joined(added, caches)
            self.rows += [rows[place] for place in group]
            last = mx.array([contexts[place][-1] for place in group], dtype=mx.int32)
            self._inputs = mx.concatenate([self._inputs, last])
            self._keys = mx.concatenate([self._keys, keys[mx.array(group)]])
        self._caches = _joined(self._caches, added)
        clear_cache()

    def step(self) -> DecodingStep:
        """Begin to decode one token of each row."""
        logits = self._backbone(self._inputs[:, None], cache=self._caches or None)[:, -1]
        sampled = sample_tokens(logits, self._keys, self._sampling)
        self._inputs, self._keys = sampled.tokens, sampled.keys
        mx.async_eval(sampled)
        self._steps += 1
        if self._steps % _CLEAR_EVERY == 0:
            clear_cache()
        return DecodingStep(list(self.rows), sampled.tokens, sampled.logprobs)

    def keep(self, rows: Sequence[int]) -> None:
        """Drop all rows but `rows`, which are some of the present ones, in their order."""
        places = [self.rows.index(row) for row in rows]
        if len(places) == len(self.rows):
            return
        self.rows = list(rows)
        if places:
            for cache in self._caches:
                cache.filter(places)
        else:
            self._caches = []
        index = mx.array(places, dtype=mx.int32)
        self._inputs, self._keys = self._inputs[index], self._keys[index]

    def _prefilled(self, contexts: Sequence[Sequence[int]]) -> list[Any]:
        """Return caches that hold `contexts`, which may be empty."""
        if self.at_most == 1:
            caches: list[Any] = make_prompt_cache(self._backbone)
        else:
            layers = zip(*(make_prompt_cache(self._backbone) for _ in contexts), strict=True)
            caches = [layer[0].merge(list(layer)) for layer in layers]
            if family_of(self._backbone) == "gemma2":  # whose attention fails on a mask of four axes
                args = self._backbone.args
                if int(args.num_attention_heads) > int(args.num_key_value_heads):
                    caches[0].__class__ = _FiveAxes
        lengths = [len(context) for context in contexts]
        width = max(lengths)
        if min(lengths) < width:
            width += width % 2  # rotating caches take a part of one position for a decoding step
        padding = [width - length for length in lengths]
        if any(padding):
            for cache in caches:
                cache.prepare(lengths=lengths, right_padding=padding)
        tokens = mx.array([[*context, *[0] * pad] for context, pad in zip(contexts, padding, strict=True)])
        for start in range(0, width, PREFILL_STEP):
            self._backbone(tokens[:, start : start + PREFILL_STEP], cache=caches)
            mx.eval([cache.state for cache in caches])  # not the logits, which nobody needs
        if any(padding):
            for cache in caches:
                cache.finalize()
        return caches


@contextmanager
def wired_memory() -> Iterator[None]:
    """Keep the model's memory wired on a Mac, which otherwise may page it out between steps.

    At most what the system recommends, and no more than MLX's memory limit.
    """
    if not mx.metal.is_available():
        yield
        return
    recommended = int(mx.device_info()["max_recommended_working_set_size"])
    before = mx.set_wired_limit(min(recommended, mx.get_memory_limit()))
    try:
        yield
    finally:
        mx.synchronize()
        mx.set_wired_limit(before)


class _FiveAxes(BatchKVCache):  # type: ignore[misc]  # mlx-lm's classes are Any
    """Cache whose mask has an axis more, for attention in which query heads that share keys have their own axis."""

    def make_mask(self, *args: Any, **kwargs: Any) -> mx.array:
        mask: mx.array = super().make_mask(*args, **kwargs)
        return mask[:, :, None]


def _joined(caches: list[Any], others: list[Any]) -> list[Any]:
    """Return `caches` with the rows of `others` after their own. Either list may be empty."""
    for cache, other in zip(caches, others, strict=bool(caches)):
        cache.extend(other)
    return caches or others


def _groups(contexts: Sequence[Sequence[int]], *, one_length: bool) -> list[list[int]]:
    """Split the places of `contexts` in order, so that a group has at most PREFILL_TOKENS, or one context.

    one_length: whether the contexts of a group must have the same length.
    """
    groups: list[list[int]] = []
    for place, context in enumerate(contexts):
        if groups:
            members = {tuple(contexts[other]) for other in groups[-1]} | {tuple(context)}
            fits = len(members) * max(map(len, members)) <= PREFILL_TOKENS
            if len(members) == 1 or (fits and not (one_length and len(set(map(len, members))) > 1)):
                groups[-1].append(place)
                continue
        groups.append([place])
    return groups


class Sampled(NamedTuple):
    """One token of each of B rows, and the keys of the next step."""

    tokens: mx.array  # [B]
    logprobs: mx.array  # [B] of the sampling distribution, before top-k and top-p
    keys: mx.array  # [B, 2]


def sample_tokens(logits: mx.array, keys: mx.array, sampling: RolloutConfig) -> Sampled:
    """Sample a token from each row of `logits`: [B, V] of any float type; keys: [B, 2], one for each row.

    Temperature, then top-k, then top-p of what top-k has kept, as in transformers and vLLM; mlx-lm filters the other
    way round.

    A row's token depends on its logits and its key alone. The eight bits of bfloat16 are too few to sum a vocabulary,
    so everything is computed in float32.
    """
    logits = logits.astype(mx.float32)
    if sampling.temperature != 1:
        logits = logits / sampling.temperature
    top = logits.max(axis=-1, keepdims=True)
    filtered = logits - top
    weights = exponentials(filtered)
    log_total = mx.log(_blocks(weights).sum(axis=-1).sum(axis=-1, keepdims=True))
    if 0 < sampling.top_k < logits.shape[-1]:
        filtered = apply_top_k(filtered, sampling.top_k)
        weights = mx.where(filtered > -mx.inf, weights, 0.0)
    if sampling.top_p < 1:
        weights = mx.where(apply_top_p(filtered, sampling.top_p) > -mx.inf, weights, 0.0)
    split = mx.vmap(mx.random.split)(keys)  # [B, 2, 2]
    tokens = categorical(weights, split[:, 1])
    logprobs = mx.take_along_axis(logits, tokens[:, None], axis=-1) - top - log_total
    return Sampled(tokens, logprobs.squeeze(-1), split[:, 0])


def categorical(weights: mx.array, keys: mx.array) -> mx.array:
    """Draw an index of each row with probability w_i / sum_j w_j, by inverting the distribution function.

        i = the first with  sum_{j <= i} w_j > u sum_j w_j,   u uniform in [0, 1)

    It draws a block of tokens first, then a token of the block, each with its own u, so that float32 represents the
    tail of a large vocabulary. Gumbel noise (`mx.random.categorical`) would need a random number and two logarithms per
    token. weights: [B, V], not negative, at least one above 0 in each row; keys: [B, 2]. Returns [B] indices; one of
    weight 0 is never drawn.
    """
    u = mx.vmap(lambda key: mx.random.uniform(shape=(2,), key=key))(keys)
    blocks = _blocks(weights)
    sums = blocks.sum(axis=-1)
    block = _first_above(mx.cumsum(sums, axis=-1), sums, u[:, 0])
    inside = mx.take_along_axis(blocks, block[:, None, None], axis=1).squeeze(1)
    return block * _BLOCK + _first_above(mx.cumsum(inside, axis=-1), inside, u[:, 1])


def _blocks(weights: mx.array) -> mx.array:
    """Return [B, V] in blocks, [B, V / 256, 256], the last filled up with 0."""
    if rest := -weights.shape[-1] % _BLOCK:
        weights = mx.pad(weights, [(0, 0), (0, rest)])
    return weights.reshape(weights.shape[0], -1, _BLOCK)


def _first_above(sums: mx.array, weights: mx.array, u: mx.array) -> mx.array:
    """Find the first index of positive weight whose sum exceeds u times the largest of such sums.

    A GPU sums in parallel, and a sum may be one rounding below the one before it. So a sum that is the first above the
    target may be that of a weight of 0, and the last sum may not be the largest. Without a positive weight, as when the
    logits are NaN, it is index 0. sums, weights: [..., N]; u: [...].
    """
    sums = mx.where(weights > 0, sums, 0.0)
    target = sums.max(axis=-1, keepdims=True) * mx.minimum(u, _BELOW_ONE)[..., None]
    count = sums.shape[-1]
    return mx.where(sums > target, mx.arange(count), count).min(axis=-1) % count
