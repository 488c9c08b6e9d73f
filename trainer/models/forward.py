"""One pass of a language model of any family of mlx-lm: its trunk, its head, and log-probs at some positions.

Families differ in how they call their trunk and in what they do with its hidden states (tied embeddings, soft caps,
scales). So neither is reimplemented: the model itself is called, with a substitute in the place of its trunk.

`Forward.at_positions` computes log-probs some positions at a time, by the fastest exact method on this device: logits
are by far the largest arrays of scoring and training. A vocabulary of 150,000 words takes 600 KB a position, and the
gradient several times that.

Gradient checkpointing: the backward pass computes each block again instead of keeping what its forward pass made.
mlx-lm's `grad_checkpoint` changes the class of the blocks, for every model of the process and for good. Here only the
blocks of one backbone change, and only for the time of an update.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from types import SimpleNamespace
from typing import Any, NamedTuple

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_map

from trainer import maths
from trainer.arrays import filled, on_cpu
from trainer.errors import ModelError, one_line
from trainer.models import kernels
from trainer.models.adapters import LoRA, linear_places, lora_parameters, only_adapter, update_lora

_WRONG = {  # families that cannot be trained with mlx-lm 0.32.2
    "deepseek_v41": "mlx-lm computes no gradient for the choice of what its attention reads",
    "phi3small": "mlx-lm computes this family incorrectly in training: its block mask depends on the input's length",
    "plamo3": "mlx-lm computes this family incorrectly in training: its attention window is a token too long",
    "recurrent_gemma": "mlx-lm cannot freeze its weights",
}
_REFUSED = {  # families of mlx-lm 0.32; all others have the same gradient as without, to the bit (docs/families.md)
    "dbrx": "saves nothing: its blocks wait for the choice of experts, so all of their passes are kept",
    "iquestloopcoder": "saves nothing: its trunk calls the parts of its blocks instead of the blocks",
    "kimi_k3": "has another gradient with it: its blocks pass on more than their results",
}
_NAMES = ("model", "transformer", "backbone")  # of the trunk within the text model; nearly always the first
_HOLE = object()  # in a tree, in the place of an array
_BLOCK = 64  # tokens; nearly every vocabulary size is a multiple of it
CHUNK = 128
"""Positions at a time on a CPU, where about ten arrays of their logits are alive at once; twice as many on a GPU.

Each chunk reads all weights of the head, which takes longer than the product itself if there are few positions.
"""

Head = Callable[[mx.array], mx.array]  # from hidden states [B, T, D] to logits [B, T, V]
Compute = Callable[..., tuple[mx.array, ...]]
Columns = dict[str, mx.array]


def family_of(backbone: nn.Module) -> str:
    """Return the name of mlx-lm's module of this family. Several model_types of config.json may share one module."""
    return type(backbone).__module__.rpartition(".")[2]


def check_family(backbone: nn.Module) -> None:
    """Raise ModelError for a family that mlx-lm computes wrongly, or whose trunk and head cannot be separated.

    The latter is tried on two tokens. Raises ModelError also if a kernel cannot be compiled.
    """
    family, tokens = family_of(backbone), mx.array([[0, 1]])
    problem = _WRONG.get(family, "")
    if not problem:
        doing = "mlx-lm fails on a pass over two tokens: "
        try:
            expected = backbone(tokens)
            mx.eval(expected)
            doing = ""
            states = hidden_states(backbone, tokens)
            logits = logits_of(backbone, states)
            if not mx.allclose(logits, expected, atol=1e-3).item():
                problem = "the trainer cannot separate its head from its trunk: alone, the head gives other logits"
            elif states.shape == logits.shape and mx.array_equal(states, logits):
                problem = "the trainer cannot separate its head from its trunk: the trunk returns logits"
        except (AttributeError, RuntimeError, TypeError, ValueError) as error:
            kernels.check_compiler(error)
            problem = doing + one_line(error, 200)
    if problem:
        raise ModelError(
            f"models of the family {family} cannot be trained here ({problem}): choose another, such as llama, "
            "qwen3 or gemma3"
        )


def vocabulary_size(backbone: nn.Module) -> int:
    """Return the number of token ids that the model knows, from 0 on."""
    # A multimodal wrapper has a text model.
    model = backbone.language_model if "language_model" in backbone else backbone
    if size := getattr(getattr(model, "args", None), "vocab_size", 0):
        return int(size)
    embeddings = (nn.Embedding, nn.QuantizedEmbedding)
    return max(len(module.weight) for module in model.modules() if isinstance(module, embeddings))


def hidden_states(backbone: nn.Module, tokens: mx.array) -> mx.array:
    """Return the trunk's output for `tokens` [B, L] without a cache, after the final norm: [B, L, D].

    The model's head is put on it lazily, and never computed. The shape is known before anything is computed.
    """
    return _passed(backbone, tokens)[0]


def logits_of(backbone: nn.Module, states: mx.array) -> mx.array:
    """Apply the model's own head to hidden states: [B, T, D] to [B, T, V]."""
    return _passed(backbone, mx.zeros(states.shape[:2], dtype=mx.int32), states)[1]


def _passed(backbone: nn.Module, tokens: mx.array, states: mx.array | None = None) -> tuple[mx.array, mx.array]:
    """Return the trunk's output for `tokens`, or `states` in its place, and the logits of the model's head.

    Raises AttributeError if no trunk is known.
    """
    model = backbone.language_model if "language_model" in backbone else backbone
    name = next((name for name in _NAMES if isinstance(model.get(name), nn.Module)), _NAMES[0])
    trunk = getattr(model, name)
    substitute = model[name] = _StandIn(own=trunk, states=states)
    try:
        logits: mx.array = model(tokens)
    finally:
        model[name] = trunk
    return filled(substitute.states), logits


class _StandIn(SimpleNamespace):
    """Substitute for the trunk `own`, which keeps the `states` that it returns, or returns those it was given."""

    states: mx.array | None

    def __call__(self, *args: Any, **kwargs: Any) -> mx.array:
        if self.states is None:
            self.states = self.own(*args, **kwargs)
        return filled(self.states)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.own, name)


def token_logprobs(logits: mx.array, tokens: mx.array, temperature: float = 1.0) -> mx.array:
    """Compute `maths.token_logprobs` of the sampling distribution, logits / temperature: [..., V], [...] -> [...]."""
    logits = _scaled(logits, temperature)
    if not on_cpu():
        return maths.token_logprobs(logits, tokens)
    logprobs: mx.array = kernels.log_softmax_at(logits, tokens)[0]  # type: ignore[index]
    return logprobs


def logprobs_and_entropy(logits: mx.array, tokens: mx.array, temperature: float = 1.0) -> tuple[mx.array, mx.array]:
    """Compute `token_logprobs` and `maths.entropy` of the same distribution; not differentiable. Two [...] arrays."""
    logits = _scaled(logits, temperature)
    if not on_cpu():
        return maths.token_logprobs(logits, tokens), maths.entropy(logits)
    top, shifted, exponentials = kernels.shifted_exp(mx.stop_gradient(logits))
    total = kernels.row_sums(exponentials)
    chosen = (mx.take_along_axis(logits, tokens[..., None], axis=-1) - top).squeeze(-1)
    weighted = kernels.row_sums(exponentials * shifted)
    return chosen - mx.log(total), mx.log(total) - weighted / total


def entropy(logits: mx.array, temperature: float = 1.0) -> mx.array:
    """Compute `maths.entropy` of the sampling distribution; differentiable. [..., V] -> [...]."""
    return maths.entropy(_scaled(logits, temperature))


def kl_divergence(logits: mx.array, ref_logits: mx.array, temperature: float = 1.0) -> mx.array:
    """Compute `maths.kl_divergence` of the sampling distributions; differentiable by `logits` alone.

    logits, ref_logits: [..., V]. Returns [...], float32.
    """
    scaled, ref_scaled = _scaled(logits, temperature), mx.stop_gradient(_scaled(ref_logits, temperature))
    if not on_cpu():
        return maths.kl_divergence(scaled, ref_scaled)
    divergence: mx.array = kernels.divergence_of(scaled, ref_scaled)[0]  # type: ignore[index]
    return divergence


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


def _scaled(logits: mx.array, temperature: float) -> mx.array:
    logits = logits.astype(mx.float32)
    return logits if temperature == 1 else logits / temperature


class Forward(NamedTuple):
    """Outputs of one pass over B sequences, at the T response positions of each."""

    states: mx.array | None  # [B, T, D] of the policy before token t; None if only values were requested
    values: mx.array | None  # [B, T + 1] V(s_t), then V after the last token (at index length of each row)
    head: Head  # from states to logits
    fitted: mx.array | None = None  # [B, T + 1, WIDTH] what a fitted critic reads before each token and after the last

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

        if not places.size:  # one position gives the shapes, and is not evaluated
            shapes = compute(self.head(states[:1, :1])[0], **{name: x[:1, 0] for name, x in columns.items()})
            return tuple(mx.zeros((*mask.shape, *x.shape[1:]), dtype=x.dtype) for x in shapes)
        real, *chosen = (x.reshape(-1, *x.shape[2:])[places] for x in (states, *columns.values()))
        size = CHUNK if on_cpu() else 2 * CHUNK

        def summed(states: mx.array, columns: Columns) -> tuple[mx.array, tuple[mx.array, ...]]:
            results = compute(self.head(states[None])[0], **columns)
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
                    parts.append(summed(part, others)[1])
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


@contextmanager
def checkpointed(backbone: nn.Module) -> Iterator[None]:
    """Have each block of `backbone` keep only its inputs for the backward pass, inside the block of code.

    The class of each block is replaced by a subclass, so attributes, parameters and `isinstance` stay as they are.
    Gradients reach the block's arguments and its adapter, and nothing else.
    """
    blocks = {id(block): block for block in backbone.layers}.values()  # some families pass a block twice
    kinds = [type(block) for block in blocks]
    try:
        for block, kind in zip(blocks, kinds, strict=True):
            block.__class__ = _checkpointed(kind)  # type: ignore[arg-type]  # mypy takes classes of dicts for unhashable
        yield
    finally:
        for block, kind in zip(blocks, kinds, strict=True):
            block.__class__ = kind


def check_grad_checkpoint(backbone: nn.Module) -> None:
    """Raise ModelError for a family that saves nothing by it, or whose adapter would get other gradients."""
    family = family_of(backbone)
    if reason := _REFUSED.get(family):
        raise ModelError(
            f"optim.grad_checkpoint = true: the family {family} {reason}; set it to false, and use a smaller "
            "optim.micro_batch_tokens"
        )


@cache
def _checkpointed(kind: type[nn.Module]) -> type[nn.Module]:
    """Return a subclass of `kind` whose call keeps only its inputs for the backward pass."""

    def call(block: nn.Module, *args: Any, **kwargs: Any) -> Any:
        places = linear_places(block)
        layers = {name: at for name, place in places.items() if isinstance(at := place.parent[place.key], LoRA)}
        own = lora_parameters(layers)
        inputs, given = _split((args, kwargs))
        outputs: Any = None

        def compute(arrays: list[mx.array]) -> tuple[Any, list[mx.array]]:
            args, kwargs = _joined(inputs, arrays[len(own) :])
            before = lora_parameters(layers)
            with only_adapter(places, layers):  # in the backward pass, a reward model's is no longer in the backbone
                try:
                    update_lora(layers, dict(zip(own, arrays, strict=False)))
                    return _split(kind.__call__(block, *args, **kwargs))
                finally:
                    update_lora(layers, before)  # no traced array stays

        @mx.custom_function
        def forward(arrays: list[mx.array]) -> list[mx.array]:
            nonlocal outputs
            outputs, results = compute(arrays)
            return results

        @forward.vjp
        def backward(arrays: Any, cotangents: Any, _: Any) -> Any:
            # Not before the gradient has come here; else all blocks could be computed again at once.
            waiting = mx.depends(arrays, cotangents)
            _, gradients = mx.vjp(lambda *arrays: compute(list(arrays))[1], waiting, cotangents)
            ours, others = gradients[: len(own)], gradients[len(own) :]
            if ours and others:
                # The adapter's gradients come first. Else what they are made of is kept until the end of the pass,
                # which takes three times the memory of the blocks' inputs.
                others = mx.depends(others, ours)
            return [*ours, *others]

        results: Any = forward([*own.values(), *given])
        return _joined(outputs, results)

    return type(kind.__name__, (kind,), {"__call__": call, "__module__": kind.__module__})


def _split(tree: Any) -> tuple[Any, list[mx.array]]:
    """Return `tree` without its floating arrays, the only ones that have a gradient, and those arrays."""
    arrays: list[mx.array] = []

    def taken(leaf: Any) -> Any:
        if not isinstance(leaf, mx.array) or not mx.issubdtype(leaf.dtype, mx.floating):
            return leaf
        arrays.append(leaf)
        return _HOLE

    return tree_map(taken, tree), arrays


def _joined(tree: Any, arrays: Sequence[mx.array]) -> Any:
    """Return the tree that `_split` took apart, with `arrays` in the places of its own."""
    rest = iter(arrays)
    return tree_map(lambda leaf: next(rest) if leaf is _HOLE else leaf, tree)
