"""Memory of a run by part and phase, from its configuration and the shape of its model.

The factors are fitted to measurements on a CPU; see docs/memory.md. There MLX allocates the results of up to ten
operations before it computes them, so more arrays are alive than the operations need.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from trainer.config import AnyConfig
from trainer.config.dpo import DPOConfig
from trainer.config.reward_model import RewardModelConfig
from trainer.config.schema import BackboneConfig, Config, RolloutConfig
from trainer.memory.shape import ModelShape

Part = Literal["weights", "adapters", "optimiser", "KV cache", "activations", "logits", "gradients", "reward model"]
Parts = dict[Part, int]  # bytes

MemoryPhase = Literal["generate", "score", "reward", "update", "evaluate"]
Phases = dict[MemoryPhase, Parts]

_WIDTHS = {"float32": 4, "bfloat16": 2}  # bytes
CHUNK = 128
"""Positions whose logits exist at once on a CPU; see `models.logprobs`, which imports MLX."""
PREFILL_TOKENS = 4096
"""Tokens of prompts that are read together; see `rollout.decoding`, which imports MLX."""
_CACHE_STEP = 256  # positions by which mlx-lm's caches grow
_DRAWN = 8  # arrays [slots, vocabulary] alive while a token is drawn
_SCORED = 5  # arrays [chunk, vocabulary] alive in scoring
_ATTENDED = 7  # arrays [heads, length] of a token alive in the forward pass of attention on a CPU
_READS = {  # layers that read the same state
    **dict.fromkeys(("q_proj", "k_proj", "v_proj"), "attention"),
    **dict.fromkeys(("gate_proj", "up_proj"), "MLP"),
}
_AUTO = ("q_proj", "v_proj")  # what `auto` in model.lora_targets means in the common families


class Alive(NamedTuple):
    """Arrays [chunk, vocabulary] alive at once in a pass with a gradient."""

    one: int  # where a chunk holds all positions
    more: int  # where more follow: MLX allocates arrays of the next one while it computes the last of this one


TRAINED = Alive(7, 11)
TRAINED_AND_SCORED = {False: Alive(12, 15), True: Alive(17, 19)}
"""The same where that pass also scores the tokens, with the logits of the reference; by whether the loss has its KL."""

EXACT_KL = {False: 8, True: 4}
"""Arrays more for the exact KL of policy and reference; by whether the pass has the reference's logits anyway."""


class Precision(NamedTuple):
    """Type and packing of a model's weights on a device."""

    dtype: str
    packed: tuple[int, int] | None  # bits of a weight and weights of a group, while they stay packed

    @property
    def name(self) -> str:
        """Words for it, as in `4 bits` and `float32`."""
        return f"{self.packed[0]} bits" if self.packed else self.dtype


class HeldModel(NamedTuple):
    """A backbone as a device holds it."""

    shape: ModelShape
    precision: Precision
    gpu: bool

    @property
    def width(self) -> int:
        """Bytes of an activation."""
        return _WIDTHS[self.precision.dtype]

    @property
    def exact(self) -> int:
        """Bytes of a number in norms and SwiGLU: a CPU computes them in float32, and keeps its copies."""
        return self.width if self.gpu else 4

    @property
    def weights(self) -> int:
        """Bytes of the weights, without vectors."""
        if self.precision.packed is None:
            return self.shape.parameters * self.width
        bits, group = self.precision.packed
        return math.ceil(self.shape.parameters * (bits / 8 + 4 / group))  # a scale and a bias of 16 bits for a group


class MicroBatch(NamedTuple):
    """Sequences that pass through a model together."""

    rows: int
    length: int  # tokens of each
    responses: int = 0  # positions of each whose logits are computed

    @property
    def tokens(self) -> int:
        """Tokens of all rows."""
        return self.rows * self.length


class Adapted(NamedTuple):
    """A linear layer of each block that has an adapter."""

    name: str
    inputs: int
    outputs: int
    experts: int  # that have one each; 1 without a mixture of experts


def held_model(model: BackboneConfig, shape: ModelShape, *, gpu: bool) -> HeldModel:
    """Return how a run holds the model. A CPU unpacks quantised weights, and holds experts in float32."""
    dtype = model.dtype
    if dtype == "auto":
        dtype = "bfloat16" if gpu else "float32"
    if not gpu and shape.has_experts:
        dtype = "float32"
    wanted = model.quantize
    chosen = None if wanted == "off" else (int(wanted.removesuffix("-bit")), 64)
    return HeldModel(shape, Precision(dtype, shape.packed or chosen if gpu else None), gpu)


def micro_batch(rows: int, length: int, budget: int, *, responses: int = 0) -> MicroBatch:
    """Return as many of `rows` sequences of `length` tokens as `budget` tokens hold, but at least one."""
    return MicroBatch(min(rows, max(1, budget // length)), length, responses)


def adapted_layers(model: BackboneConfig, shape: ModelShape) -> list[Adapted]:
    """Return the layers that `model.lora_targets` mean in the common families. Other names count nothing.

    Layers of experts are meant by their full name, such as `mlp.switch_mlp.up_proj`, or all of them by `experts`.
    """
    linear, experts = shape.linear_sizes(), shape.expert_sizes()
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
        Adapted(name, *experts[name], shape.experts) if of_experts else Adapted(name, *linear[name], 1)
        for name, of_experts in sorted(chosen)
    ]


def adapter_parameters(model: BackboneConfig, shape: ModelShape) -> int:
    """Return the number of weights of one adapter."""
    layers = min(model.lora_layers or shape.layers, shape.layers)
    sizes = (one.experts * (one.inputs + one.outputs) for one in adapted_layers(model, shape))
    return layers * model.lora_rank * sum(sizes)


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
    logits = _logits(model, batch, Alive(_SCORED, _SCORED))
    return {"activations": max(batch.tokens * _block(model, batch.length) - logits, 0), "logits": logits}


def training(
    model: HeldModel,
    batch: MicroBatch,
    adapted: list[Adapted],
    *,
    grad_checkpoint: bool = False,
    alive: Alive = TRAINED,
) -> Parts:
    """Return what a pass with a gradient takes: what all blocks keep, and a chunk of logits or one block's gradient.

    adapted: the layers with an adapter. grad_checkpoint: all blocks keep only their inputs, and the one whose gradient
    is computed what it would have kept. alive: arrays of the logits.
    """
    shape, width, exact = model.shape, model.width, model.exact
    attention = (shape.heads + 2 * shape.kv_heads) * shape.head_size + shape.heads * batch.length
    if shape.gelu:
        kept = (attention + 7 * shape.inner) * width + 6 * shape.hidden * exact
    else:
        kept = attention * width + (2 * shape.hidden + 3 * shape.inner) * exact
    if shape.has_experts:  # each has its own copy of the state
        kept += 2 * shape.routes * shape.hidden * width
    kept += 4 * _adapter_inputs(model, adapted)
    # In the last block, the backward pass of the MLP, or the forward pass of attention, which makes what is kept.
    block = max((7 * shape.hidden + 10 * shape.inner) * exact, _block(model, batch.length) - kept)
    if grad_checkpoint:
        block += kept
        kept = shape.hidden * width
    logits = _logits(model, batch, alive)
    once = max(batch.tokens * block - logits, 0)  # not at the same time as the logits
    return {"activations": batch.tokens * shape.layers * kept + once, "logits": logits}


def _adapter_inputs(model: HeldModel, adapted: list[Adapted]) -> int:
    """Return how many numbers in float32, of a token and a block, the gradient of adapters needs.

    Layers that read the same state share it, unless it has another type: then each has its own copy.
    """
    routed = [one._replace(inputs=model.shape.routes * one.inputs) if one.experts > 1 else one for one in adapted]
    if model.width < 4:
        return sum(one.inputs for one in routed)
    return sum({(_READS.get(one.name, one.name), one.experts): one.inputs for one in routed}.values())


def _block(model: HeldModel, length: int) -> int:
    """Return the bytes of a token in a forward pass of one block, at the larger of attention and MLP."""
    shape, width, exact = model.shape, model.width, model.exact
    both = (3 * shape.heads + 4 * shape.kv_heads) * shape.head_size * width
    both += (6 * shape.hidden + 3 * shape.inner) * exact
    attention = 0 if model.gpu else _ATTENDED * shape.heads * length * width
    return both + max(attention, (6 * shape.hidden + shape.inner) * exact)


def _logits(model: HeldModel, batch: MicroBatch, alive: Alive) -> int:
    """Return the bytes of logits."""
    positions = batch.rows * batch.responses
    chunk = min(positions, 2 * CHUNK if model.gpu else CHUNK)
    arrays = alive.one if chunk == positions else alive.more
    return arrays * chunk * model.shape.vocabulary * 4


class Footprint(NamedTuple):
    """Bytes that MLX allocates at the peak of each phase that a run has, by part; parts of 0 bytes are left out."""

    phases: Phases

    @property
    def phase(self) -> MemoryPhase:
        """Phase with the highest peak."""
        return max(self.phases, key=self.peak_of)

    @property
    def parts(self) -> Parts:
        """Parts at the peak of the run."""
        return self.phases[self.phase]

    @property
    def peak(self) -> int:
        """Peak of the run."""
        return self.peak_of(self.phase)

    def peak_of(self, phase: MemoryPhase) -> int:
        """Return the peak of a phase."""
        return sum(self.phases[phase].values())


class RewardPass(NamedTuple):
    """The forward pass of a reward model."""

    model: HeldModel
    most: int  # tokens that it reads of a sequence


class RewardModels(NamedTuple):
    """Reward models that score the responses of a run."""

    held: int = 0  # bytes of adapters, and of weights that are not the policy's
    passes: tuple[RewardPass, ...] = ()


_NO_REWARD_MODELS = RewardModels()


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
    model = held_model(config.model, shape, gpu=gpu)
    match config:
        case Config():
            phases = _ppo(config, model, longest, reward_models)
        case RewardModelConfig():
            phases = {"update": _updating(config, model, _pairs(config, longest))}
            if config.data.eval_fraction > 0:
                phases["evaluate"] = scoring(model, _held_out(config, longest))
        case DPOConfig():
            phases = _dpo(config, model, longest, reward_models)
    trained = 4 * _trained(config, shape)  # bytes: float32
    held: Parts = {
        "weights": model.weights,
        "adapters": trained * (2 if _keeps_another(config) else 1),
        "optimiser": 2 * trained,  # two moments
        "reward model": reward_models.held,
    }
    # The sum so far, or the gradient of the other model; the new one comes as what it is made of goes.
    phases["update"] |= {"gradients": trained}
    return Footprint(
        {name: {part: size for part, size in (held | parts).items() if size} for name, parts in phases.items()}
    )


def _ppo(config: Config, model: HeldModel, prompt: int, scorers: RewardModels) -> Phases:
    """Return what the phases of an iteration, and an evaluation, take besides what is always held."""
    rollout, budget = config.rollout, config.optim.micro_batch_tokens
    length, responses = prompt + rollout.max_new_tokens, rollout.max_new_tokens
    whole, minibatch = (
        micro_batch(rows, length, budget, responses=responses)
        for rows in (rollout.batch_size, rollout.batch_size // config.ppo.minibatches)
    )
    phases: Phases = {
        "generate": decoding(model, rollout, prompt, rollout.batch_size),
        "score": scoring(model, whole),
        "reward": _rewarding(scorers, rollout.batch_size, length, budget),
        "update": _updating(config, model, minibatch),
    }
    if not scorers.passes:
        del phases["reward"]
    if _scores_while_learning(config):
        del phases["score"]
    if config.eval.every:
        phases["evaluate"] = _sampling(model, rollout, prompt, config.eval.prompts, budget, scorers)
    return phases


def _scores_while_learning(config: Config) -> bool:
    """Return whether the first step also scores the batch, in the same pass; see `ppo.loop`, which imports MLX."""
    ppo = config.ppo
    kl_in_rewards = ppo.kl_in == "reward" and ppo.kl_coef > 0
    return ppo.estimator != "gae" and not kl_in_rewards and ppo.minibatches == 1


def _dpo(config: DPOConfig, model: HeldModel, longest: int, scorers: RewardModels) -> Phases:
    """Return what a step of DPO, and an evaluation, take besides what is always held."""
    budget = config.optim.micro_batch_tokens
    phases: Phases = {"update": _updating(config, model, _pairs(config, longest, responses=longest - 1))}
    if config.data.eval_fraction > 0:
        compared = scoring(model, _held_out(config, longest, responses=longest - 1))
        compared["logits"] *= 2  # of policy and reference
        phases["evaluate"] = compared
        if config.reward.sources:
            sampled = _sampling(model, config.rollout, longest, config.eval.prompts, budget, scorers)
            phases["evaluate"] = _larger(compared, sampled)
    return phases


def _updating(config: AnyConfig, model: HeldModel, batch: MicroBatch) -> Parts:
    """Return what the pass with a gradient over a micro-batch takes."""
    adapted, alive = adapted_layers(config.model, model.shape), TRAINED
    scores = isinstance(config, Config) and _scores_while_learning(config)
    if isinstance(config, Config) and scores:
        alive = TRAINED_AND_SCORED[config.ppo.kl_in == "loss" and config.ppo.kl_coef > 0]
    if isinstance(config, Config) and config.ppo.kl_estimator == "full" and config.ppo.kl_coef > 0:
        alive = Alive(*(arrays + EXACT_KL[scores] for arrays in alive))
    return training(model, batch, adapted, grad_checkpoint=config.optim.grad_checkpoint, alive=alive)


def _pairs(config: RewardModelConfig | DPOConfig, longest: int, *, responses: int = 0) -> MicroBatch:
    """Return a micro-batch of pairs, which are not split."""
    rows = config.optim.micro_batch_tokens // (2 * longest)
    return MicroBatch(2 * max(1, min(config.train.batch_size, rows)), longest, responses)


def _held_out(config: RewardModelConfig | DPOConfig, longest: int, *, responses: int = 0) -> MicroBatch:
    """Return a micro-batch of held-out sequences, of which there are assumed to be enough to fill it."""
    return micro_batch(2**31, longest, config.optim.micro_batch_tokens, responses=responses)


def _sampling(
    model: HeldModel,
    rollout: RolloutConfig,
    prompt: int,
    prompts: int,
    budget: int,
    scorers: RewardModels,
) -> Parts:
    """Return what it takes to generate responses to held-out `prompts` and to score them."""
    length = prompt + rollout.max_new_tokens
    return _larger(
        decoding(model, rollout, prompt, prompts),
        scoring(model, micro_batch(prompts, length, budget, responses=rollout.max_new_tokens)),
        _rewarding(scorers, prompts, length, budget),
    )


def _rewarding(scorers: RewardModels, sequences: int, length: int, budget: int) -> Parts:
    """Return what the largest pass of a reward model takes; nothing without one."""
    passes = (scoring(one.model, micro_batch(sequences, min(length, one.most), budget)) for one in scorers.passes)
    return _larger({}, *passes)


def _larger(*parts: Parts) -> Parts:
    """Return the parts of the largest sum."""
    return max(parts, key=lambda sizes: sum(sizes.values()))


def _trained(config: AnyConfig, shape: ModelShape) -> int:
    """Return the number of trained weights: of all adapters, and of a head."""
    adapter = adapter_parameters(config.model, shape)
    match config:
        case Config():
            apart = config.ppo.estimator == "gae" and config.model.value_model == "adapter"
            return adapter * (2 if apart else 1) + shape.hidden
        case RewardModelConfig():
            return adapter + shape.hidden
        case DPOConfig():
            return adapter


def _keeps_another(config: AnyConfig) -> bool:
    """Return whether a run keeps a second set of the trained weights: their moving average, or the best so far."""
    match config:
        case Config():
            return config.optim.ema_decay > 0
        case RewardModelConfig():
            return config.train.patience > 0 and config.data.eval_fraction > 0
        case DPOConfig():
            return False
