"""Decoding of several sequences together: their caches, the prefill of their contexts, and one token of each a step."""

from __future__ import annotations

import copy
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import BatchKVCache, make_prompt_cache

from trainer.arrays import clear_cache
from trainer.config.schema import RolloutConfig
from trainer.models.trunk import family_of
from trainer.rollout.sampling import sample_tokens

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
        self._kept: dict[tuple[int, ...], list[Any]] = {}  # caches of the one context that further rows begin with
        self._inputs = mx.zeros((0,), dtype=mx.int32)  # [B] last token of each row
        self._keys = mx.zeros((0, 2), dtype=mx.uint32)  # [B, 2]
        self._steps = 0

    def admit(
        self, rows: Sequence[int], contexts: Sequence[Sequence[int]], keys: mx.array, *, more: bool = False
    ) -> None:
        """Add rows that continue `contexts`, none of them empty. keys: [len(rows), 2].

        Rows of the same context share a prefill. A group is padded to its longest, so sort the contexts by length.
        more: whether the rows that are admitted next begin with the last of `contexts`; its prefill is kept for them.
        """
        one_length = family_of(self._backbone) in _OF_ONE_LENGTH
        added: list[Any] = []
        for group in _groups(contexts, one_length=one_length, apart=self._kept):
            shared = list(dict.fromkeys(tuple(contexts[place]) for place in group))
            caches = self._kept.pop(shared[0], None) or self._prefilled([context[:-1] for context in shared])
            if more and group[-1] == len(contexts) - 1 and len(shared[-1]) > 1:  # one token needs no prefill
                self._kept = {shared[-1]: _copied(caches, len(shared) - 1, of=len(shared))}
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


def _copied(caches: Sequence[Any], row: int, *, of: int) -> list[Any]:
    """Return a copy of one row of `caches`, which have `of` rows."""
    copies = copy.deepcopy(list(caches))  # arrays are copied only when one of the two changes
    if of > 1:
        for cache in copies:
            cache.filter([row])
        mx.eval([cache.state for cache in copies])  # the other rows are freed
    return copies


def _groups(
    contexts: Sequence[Sequence[int]], *, one_length: bool, apart: Container[tuple[int, ...]] = ()
) -> list[list[int]]:
    """Split the places of `contexts` in order, so that a group has at most PREFILL_TOKENS, or one context.

    one_length: whether the contexts of a group must have the same length. apart: contexts that share no group with
    another one.
    """
    groups: list[list[int]] = []
    for place, context in enumerate(contexts):
        if groups:
            members = {tuple(contexts[other]) for other in groups[-1]} | {tuple(context)}
            fits = len(members) * max(map(len, members)) <= PREFILL_TOKENS and not any(one in apart for one in members)
            if len(members) == 1 or (fits and not (one_length and len(set(map(len, members))) > 1)):
                groups[-1].append(place)
                continue
        groups.append([place])
    return groups
