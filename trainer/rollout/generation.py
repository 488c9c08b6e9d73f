"""Rollouts: sequences from the policy by continuous batching, sampled with temperature, top-k and top-p.

Several sequences are decoded together. A token is sampled from its row's own key, in float32 whatever the type of the
logits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models.cache import BatchKVCache, make_prompt_cache
from mlx_lm.sample_utils import apply_top_k, apply_top_p

from trainer.arrays import clear_cache, on_cpu, pad, to_list
from trainer.config.schema import RolloutConfig
from trainer.data import Prompt
from trainer.models import kernels
from trainer.models.forward import family_of
from trainer.rollout.experience import Experience
from trainer.rollout.token_texts import AS_SCORED

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
    steps: list[tuple[list[int], Sampled]] = []  # their rows, and a token of each
    read = written = 0
    cut = len(begun) + sampling.max_new_tokens
    stops = [] if sampling.ignore_stop else sampling.stop
    # A token is at least one byte. Eight more, because some decoders change the first tokens that they are given.
    tail = max((len(stop.encode()) for stop in stops), default=0) + 8
    while waiting or decoding.rows or read < len(steps):
        _change_rows(decoding, rows, waiting, keys)
        begins = bool(decoding.rows)
        if begins:  # before the last one is read, so that the device never waits for Python
            steps.append(decoding.step())
            for number in decoding.rows:
                rows[number].to_begin -= 1
        if begins and len(steps) - read == 1:
            continue
        numbers, sampled = steps[read]
        for number, token in zip(numbers, to_list(sampled.tokens), strict=True):
            row = rows[number]
            if row.ended:  # the step after a row's end was begun too
                continue
            row.tokens.append(token)
            written += 1
            if not sampling.ignore_stop and token in tokenizer.eos_token_ids:
                row.ended = "stop token"
                continue
            # Texts are compared, because one text has many tokenisations.
            end = tokenizer.decode(row.tokens[-tail:]) if stops else ""
            if any(stop in end for stop in stops):
                row.ended = "stop text"
            elif len(row.tokens) == cut:
                row.ended = "length"
        read += 1
        progress(written, sampling.max_new_tokens * len(prompts))
    logprobs: list[list[float]] = [[] for _ in rows]
    numbers = [number for step_rows, _ in steps for number in step_rows]  # read from the device at once
    for number, logprob in zip(numbers, to_list(mx.concatenate([one.logprobs for _, one in steps])), strict=True):
        logprobs[number].append(logprob)
    responses: list[Response] = []
    for row, found in zip(rows, logprobs, strict=True):  # of a row's steps, there is perhaps one too many
        ids = row.tokens[:-1] if row.ended == "stop token" else row.tokens
        text = str(tokenizer.decode(ids, **AS_SCORED))
        text = text[: min((text.find(stop) for stop in stops if stop in text), default=len(text))]
        known = [math.nan] * len(begun) + found[: len(row.tokens) - len(begun)]
        responses.append(Response(row.tokens, known, text, truncated=row.ended == "length"))
    return responses


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
            for cache, other in zip(added, caches, strict=bool(added)):
                cache.extend(other)
            added = added or caches
            self.rows += [rows[place] for place in group]
            last = mx.array([contexts[place][-1] for place in group], dtype=mx.int32)
            self._inputs = mx.concatenate([self._inputs, last])
            self._keys = mx.concatenate([self._keys, keys[mx.array(group)]])
        for cache, other in zip(self._caches, added, strict=bool(self._caches)):
            cache.extend(other)
        self._caches = self._caches or added
        clear_cache()

    def step(self) -> tuple[list[int], Sampled]:
        """Begin to decode one token of each row; return the rows and what they get, perhaps still under way."""
        logits = self._backbone(self._inputs[:, None], cache=self._caches or None)[:, -1]
        sampled = sample_tokens(logits, self._keys, self._sampling)
        self._inputs, self._keys = sampled.tokens, sampled.keys
        mx.async_eval(sampled)
        self._steps += 1
        if self._steps % _CLEAR_EVERY == 0:
            clear_cache()
        return list(self.rows), sampled

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


class _FiveAxes(BatchKVCache):  # type: ignore[misc]  # mlx-lm's classes are Any
    """Cache whose mask has an axis more, for attention in which query heads that share keys have their own axis."""

    def make_mask(self, *args: Any, **kwargs: Any) -> mx.array:
        mask: mx.array = super().make_mask(*args, **kwargs)
        return mask[:, :, None]


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
    weights = kernels.exponentials(filtered) if on_cpu() else mx.exp(filtered)
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
