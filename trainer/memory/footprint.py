"""Memory of a run by part and phase, from its configuration and the shape of its model, before that is loaded.

The factors are fitted to measurements on a CPU; see docs/memory.md. There MLX allocates the results of up to ten
operations before it computes them, so more arrays are alive than the operations need. Nothing here imports MLX.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from trainer.config import AnyConfig
from trainer.config.pairs import DPOConfig, RewardModelConfig
from trainer.config.schema import BackboneConfig, Config, RolloutConfig
from trainer.memory.shape import ModelShape

Part = Literal["weights", "adapters", "optimiser", "KV cache", "activations", "logits", "gradients", "reward model"]
Parts = dict[Part, int]  # bytes

MemoryPhase = Literal["generate", "score", "reward", "update", "evaluate"]
Phases = dict[MemoryPhase, Parts]

_WIDTHS = {"float32": 4, "bfloat16": 2}  # bytes
CHUNK = 128
"""Positions whose logits exist at once on a CPU; see `models.forward`, which imports MLX."""
PREFILL_TOKENS = 4096
"""Tokens of prompts that are read together; see `rollout.generation`, which imports MLX."""
_CACHE_STEP = 256  # positions by which mlx-lm's caches grow
_DRAWN = 8  # arrays [slots, vocabulary] alive while a token is drawn
_ATTENDED = 7  # arrays [heads, length] of a token alive in the forward pass of attention on a CPU
_READS = {  # layers that read the same state
    **dict.fromkeys(("q_proj", "k_proj", "v_proj"), "attention"),
    **dict.fromkeys(("gate_proj", "up_proj"), "MLP"),
}
_AUTO = ("q_proj", "v_proj")  # what `auto` in model.lora_targets means in the common families

# Arrays [chunk, vocabulary] alive at once: where a chunk holds all positions, and where more follow, for which MLX
# allocates arrays while it computes the last of this one.
_SCORED = (5, 5)
_TRAINED = (7, 11)
_TRAINED_AND_SCORED = {False: (12, 15), True: (17, 19)}  # in one pass; by whether the loss has the KL
_EXACT_KL = {False: 8, True: 4}  # more for the exact KL; by whether the pass has the reference's logits anyway


class HeldModel(NamedTuple):
    """A backbone as a device holds it."""

    shape: ModelShape
    gpu: bool
    precision: str  # in words, as in `4 bits` and `float32`
    width: int  # bytes of an activation
    exact: int  # bytes of a number in norms and SwiGLU: a CPU computes them in float32, and keeps its copies
    weights: int  # bytes of all weights, without vectors


class MicroBatch(NamedTuple):
    """Sequences that pass through a model together."""

    rows: int
    length: int  # tokens of each
    responses: int = 0  # positions of each whose logits are computed


class RewardPass(NamedTuple):
    """The forward pass of a reward model."""

    model: HeldModel
    most: int  # tokens that it reads of a sequence


class RewardModels(NamedTuple):
    """Reward models that score the responses of a run."""

    held: int = 0  # bytes of adapters, and of weights that are not the policy's
    passes: tuple[RewardPass, ...] = ()


_NO_REWARD_MODELS = RewardModels()


class Footprint(NamedTuple):
    """Bytes that MLX allocates at the peak of each phase that a run has, by part; parts of 0 bytes are left out."""

    phases: Phases

    @property
    def phase(self) -> MemoryPhase:
        """Phase with the highest peak."""
        return max(self.phases, key=lambda name: _size(self.phases[name]))

    @property
    def parts(self) -> Parts:
        """Parts at the peak of the run."""
        return self.phases[self.phase]

    @property
    def peak(self) -> int:
        """Peak of the run."""
        return _size(self.parts)


def held_model(model: BackboneConfig, shape: ModelShape, *, gpu: bool) -> HeldModel:
    """Return how a run holds the model. A CPU unpacks quantised weights, and holds experts in float32."""
    dtype: str = model.dtype
    if dtype == "auto":
        dtype = "bfloat16" if gpu else "float32"
    if not gpu and shape.experts > 1:
        dtype = "float32"
    chosen = None if model.quantize == "off" else (int(model.quantize.removesuffix("-bit")), 64)
    packed, width = shape.packed or chosen if gpu else None, _WIDTHS[dtype]
    words, weights = dtype, shape.parameters * width
    if packed is not None:
        bits, group = packed
        words = f"{bits} bits"
        weights = math.ceil(shape.parameters * (bits / 8 + 4 / group))  # a scale and a bias of 16 bits for a group
    return HeldModel(shape, gpu, words, width, width if gpu else 4, weights)


def micro_batch(rows: int, length: int, budget: int, *, responses: int = 0) -> MicroBatch:
    """Return as many of `rows` sequences of `length` tokens as `budget` tokens hold, but at least one."""
    return MicroBatch(min(rows, max(1, budget // length)), length, responses)


def adapted_layers(model: BackboneConfig, shape: ModelShape) -> list[tuple[str, int, int, int]]:
    """Return the layers that `model.lora_targets` mean in the common families. Other names count nothing.

    Layers of experts are meant by their full name, such as `mlp.switch_mlp.up_proj`, or all of them by `experts`. Each
    is given with its inputs, its outputs, and the experts that have one each; 1 without a mixture of experts.
    """
    hidden, queries, keys = shape.hidden, shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    linear = {
        "q_proj": (hidden, queries),
        "k_proj": (hidden, keys),
        "v_proj": (hidden, keys),
        "o_proj": (queries, hidden),
    }

    def gated(inner: int) -> dict[str, tuple[int, int]]:
        return {"gate_proj": (hidden, inner), "up_proj": (hidden, inner), "down_proj": (inner, hidden)} if inner else {}

    experts = gated(shape.expert_inner) if shape.experts > 1 else {}
    linear |= gated(shape.shared_inner if experts else shape.inner)
    chosen: set[tuple[str, bool]] = set()
    for target in model.lora_targets:
        end = target.rpartition(".")[2]
        if target == "auto":
            chosen |= {(name, False) for name in _AUTO}
        elif target == "experts":
            chosen |= {(name, True) for name in experts}
        elif end != target and end in experts and "shared" not in target:
            chosen.add((end, True))
        elif end in linear:
            chosen.add((end, False))
    return [
        (name, *(experts if of_experts else linear)[name], shape.experts if of_experts else 1)
        for name, of_experts in sorted(chosen)
    ]


def adapter_parameters(model: BackboneConfig, shape: ModelShape) -> int:
    """Return the number of weights of one adapter."""
    layers = min(model.lora_layers or shape.layers, shape.layers)
    sizes = (experts * (inputs + outputs) for _, inputs, outputs, experts in adapted_layers(model, shape))
    return layers * model.lora_rank * sum(sizes)


def _block(model: HeldModel, length: int) -> int:
    """Return the bytes of a token in a forward pass of one block, at the larger of attention and MLP."""
    shape, width, exact = model.shape, model.width, model.exact
    both = (3 * shape.heads + 4 * shape.kv_heads) * shape.head_size * width
    both += (6 * shape.hidden + 3 * shape.inner) * exact
    attention = 0 if model.gpu else _ATTENDED * shape.heads * length * width
    return both + max(attention, (6 * shape.hidden + shape.inner) * exact)


def _logits(model: HeldModel, batch: MicroBatch, alive: tuple[int, int]) -> int:
    """Return the bytes of logits."""
    positions = batch.rows * batch.responses
    chunk = min(positions, 2 * CHUNK if model.gpu else CHUNK)
    return alive[chunk < positions] * chunk * model.shape.vocabulary * 4


def decoding(model: HeldModel, rollout: RolloutConfig, prompt: int, sequences: int) -> Parts:
    """Return keys and values of all slots, and the larger of the prompts' forward pass and the drawing of a token.

    prompt: tokens of each; sequences: number of responses.
    """
    shape, slots = model.shape, min(rollout.slots, sequences)
    positions = -(-(prompt + rollout.max_new_tokens) // _CACHE_STEP) * _CACHE_STEP
    cache = slots * positions * 2 * shape.layers * shape.kv_heads * shape.head_size * model.width
    together = max(min(slots * prompt, PREFILL_TOKENS), prompt)
    passed = together * _block(model, prompt)
    drawn = _DRAWN * slots * shape.vocabulary * 4
    return {"KV cache": cache, "activations": passed if passed > drawn else 0, "logits": 0 if passed > drawn else drawn}


def scoring(model: HeldModel, batch: MicroBatch) -> Parts:
    """Return what a forward pass takes: one block at a time, and then a chunk of logits."""
    logits = _logits(model, batch, _SCORED)
    block = batch.rows * batch.length * _block(model, batch.length)
    return {"activations": max(block - logits, 0), "logits": logits}


def training(config: AnyConfig, model: HeldModel, batch: MicroBatch) -> Parts:
    """Return what a pass with a gradient takes: what all blocks keep, and a chunk of logits or one block's gradient.

    With optim.grad_checkpoint all blocks keep only their inputs, and the one whose gradient is computed what it would
    have kept.
    """
    shape, width, exact, tokens = model.shape, model.width, model.exact, batch.rows * batch.length
    attention = (shape.heads + 2 * shape.kv_heads) * shape.head_size + shape.heads * batch.length
    if shape.gelu:
        kept = (attention + 7 * shape.inner) * width + 6 * shape.hidden * exact
    else:
        kept = attention * width + (2 * shape.hidden + 3 * shape.inner) * exact
    if shape.experts > 1:  # each has its own copy of the state
        kept += 2 * shape.routes * shape.hidden * width
    # The gradient of adapters needs their inputs in float32. Layers that read the same state share it, unless it has
    # another type: then each has its own copy.
    inputs: dict[object, int] = {}
    for name, size, _, experts in adapted_layers(config.model, shape):
        read = name if width < 4 else _READS.get(name, name)
        inputs[read, experts] = size * (shape.routes if experts > 1 else 1)
    kept += 4 * sum(inputs.values())
    # In the last block, the backward pass of the MLP, or the forward pass of attention, which makes what is kept.
    block = max((7 * shape.hidden + 10 * shape.inner) * exact, _block(model, batch.length) - kept)
    if config.optim.grad_checkpoint:
        block += kept
        kept = shape.hidden * width
    alive = _TRAINED
    if isinstance(config, Config):
        scores, has_kl = _scores_while_learning(config), config.ppo.kl_coef > 0
        if scores:
            alive = _TRAINED_AND_SCORED[config.ppo.kl_in == "loss" and has_kl]
        if config.ppo.kl_estimator == "full" and has_kl:
            alive = (alive[0] + _EXACT_KL[scores], alive[1] + _EXACT_KL[scores])
    logits = _logits(model, batch, alive)
    once = max(tokens * block - logits, 0)  # not at the same time as the logits
    return {"activations": tokens * shape.layers * kept + once, "logits": logits}


def footprint(
    config: AnyConfig,
    shape: ModelShape,
    longest: int,
    *,
    gpu: bool,
    reward_models: RewardModels = _NO_REWARD_MODELS,
) -> Footprint:
    """Estimate the memory of a run.

    longest: tokens of the longest prompt, and of its completion too if the run trains on preferences. gpu: whether it
    runs on one.
    """
    model, adapter = held_model(config.model, shape, gpu=gpu), adapter_parameters(config.model, shape)
    match config:  # trained: weights of all adapters and of a head. again: a second set is kept
        case Config():
            phases = _ppo(config, model, longest, reward_models)
            apart = config.ppo.estimator == "gae" and config.model.value_model == "adapter"
            learns = config.ppo.estimator == "gae" and config.model.value_model != "fitted"
            trained = adapter * (2 if apart else 1) + shape.hidden * learns
            again = config.optim.ema_decay > 0
        case RewardModelConfig():
            phases = _on_pairs(config, model, longest, responses=0)
            again = config.train.patience > 0 and config.data.eval_fraction > 0  # the best so far
            trained = adapter + shape.hidden
        case DPOConfig():
            phases = _on_pairs(config, model, longest, responses=longest - 1)
            if "evaluate" in phases:
                phases["evaluate"]["logits"] *= 2  # of policy and reference
                if config.reward.sources:
                    sampled = _sampling(config, model, longest, reward_models)
                    phases["evaluate"] = max(phases["evaluate"], sampled, key=_size)
            trained, again = adapter, False
    held: Parts = {
        "weights": model.weights,
        "adapters": 4 * trained * (2 if again else 1),  # float32
        "optimiser": 2 * 4 * trained,  # two moments
        "reward model": reward_models.held,
    }
    # The sum so far, or the gradient of the other model; the new one comes as what it is made of goes.
    phases["update"] |= {"gradients": 4 * trained}
    return Footprint(
        {name: {part: size for part, size in (held | parts).items() if size} for name, parts in phases.items()}
    )


def _size(parts: Parts) -> int:
    return sum(parts.values())


def _ppo(config: Config, model: HeldModel, prompt: int, scorers: RewardModels) -> Phases:
    """Return what the phases of an iteration, and an evaluation, take besides what is always held."""
    rollout, budget = config.rollout, config.optim.micro_batch_tokens
    length, responses = prompt + rollout.max_new_tokens, rollout.max_new_tokens
    whole, minibatch = (
        micro_batch(rows, length, budget, responses=responses)
        for rows in (rollout.batch_size, rollout.batch_size // config.ppo.minibatches)
    )
    phases: Phases = {"generate": decoding(model, rollout, prompt, rollout.batch_size)}
    if not _scores_while_learning(config):
        phases["score"] = scoring(model, whole)
    if scorers.passes:
        phases["reward"] = _rewarding(scorers, rollout.batch_size, length, budget)
    phases["update"] = training(config, model, minibatch)
    if config.eval.every:
        phases["evaluate"] = _sampling(config, model, prompt, scorers)
    return phases


def _scores_while_learning(config: Config) -> bool:
    """Return whether the first step also scores the batch, in the same pass; see `ppo.loop`, which imports MLX."""
    ppo = config.ppo
    kl_in_rewards = ppo.kl_in == "reward" and ppo.kl_coef > 0
    return ppo.estimator != "gae" and not kl_in_rewards and ppo.minibatches == 1


def _on_pairs(config: RewardModelConfig | DPOConfig, model: HeldModel, longest: int, *, responses: int) -> Phases:
    """Return what a step on pairs, which are not split, and an evaluation of held-out ones take."""
    budget = config.optim.micro_batch_tokens
    rows = 2 * max(1, min(config.train.batch_size, budget // (2 * longest)))
    phases: Phases = {"update": training(config, model, MicroBatch(rows, longest, responses))}
    if config.data.eval_fraction > 0:  # there are assumed to be enough to fill a micro-batch
        phases["evaluate"] = scoring(model, micro_batch(2**31, longest, budget, responses=responses))
    return phases


def _sampling(config: Config | DPOConfig, model: HeldModel, prompt: int, scorers: RewardModels) -> Parts:
    """Return what it takes to generate responses to held-out prompts and to score them."""
    prompts, rollout, budget = config.eval.prompts, config.rollout, config.optim.micro_batch_tokens
    length = prompt + rollout.max_new_tokens
    return max(
        decoding(model, rollout, prompt, prompts),
        scoring(model, micro_batch(prompts, length, budget, responses=rollout.max_new_tokens)),
        _rewarding(scorers, prompts, length, budget),
        key=_size,
    )


def _rewarding(scorers: RewardModels, sequences: int, length: int, budget: int) -> Parts:
    """Return what the largest pass of a reward model takes; nothing without one."""
    passes = (scoring(one.model, micro_batch(sequences, min(length, one.most), budget)) for one in scorers.passes)
    return max(passes, key=_size, default={})
