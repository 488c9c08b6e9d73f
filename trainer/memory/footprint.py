"""Memory of a run by part and phase, from its configuration and the shape of its model."""

from __future__ import annotations

from typing import Literal, NamedTuple

from trainer.config import AnyConfig
from trainer.config.dpo import DPOConfig
from trainer.config.reward_model import RewardModelConfig
from trainer.config.schema import Config, RolloutConfig
from trainer.memory.passes import (
    EXACT_KL,
    TRAINED,
    TRAINED_AND_SCORED,
    Alive,
    HeldModel,
    MicroBatch,
    Parts,
    adapted_layers,
    adapter_parameters,
    decoding,
    held_model,
    micro_batch,
    scoring,
    training,
)
from trainer.memory.shape import ModelShape

MemoryPhase = Literal["generate", "score", "reward", "update", "evaluate"]
Phases = dict[MemoryPhase, Parts]

_STEPPED = 2.3  # copies of the gradient's size while Adam takes a step, besides weights and moments


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
            phases = _reward_model(config, model, longest)
        case DPOConfig():
            phases = _dpo(config, model, longest, reward_models)
    trained = 4 * _trained(config, shape)  # bytes: float32
    held: Parts = {
        "weights": model.weights,
        "adapters": trained * (2 if _keeps_another(config) else 1),
        "optimiser": 2 * trained,  # two moments
        "reward model": reward_models.held,
    }
    # In a pass: the sum so far, or the gradient of the other model; the new one comes as what it is made of goes.
    phases["update"] = _larger(phases["update"] | {"gradients": trained}, {"gradients": round(_STEPPED * trained)})
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


def _reward_model(config: RewardModelConfig, model: HeldModel, longest: int) -> Phases:
    """Return what a step of a reward model, and an evaluation, take besides what is always held."""
    phases: Phases = {"update": _updating(config, model, _pairs(config, longest))}
    if config.data.eval_fraction > 0:
        phases["evaluate"] = scoring(model, _held_out(config, longest))
    return phases


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
