"""Runs of the memory benchmark: models with random weights that iterate, take steps and are evaluated."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from device_models import Tokenizer
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.utils import _get_classes

from trainer.arrays import leaves
from trainer.config import SCHEMAS, AnyConfig, Config
from trainer.config.dpo import DPOConfig
from trainer.config.loading import load_config_as, parse_overrides, preset_names
from trainer.config.problems import validate_as
from trainer.config.reward_model import RewardModelConfig
from trainer.config.schema import BackboneConfig
from trainer.data import Prompt
from trainer.engine.dpo import DPO
from trainer.engine.reward_model import RewardModelTraining
from trainer.engine.steps import StepTraining
from trainer.engine.trainable import Hooks
from trainer.evaluation.held_out import evaluate, reference_baseline
from trainer.events import DPOEvaluation, Event, RewardModelEvaluation
from trainer.models.actor_critic import ActorCriticLLM
from trainer.models.backbone import LoadedModel, cast_backbone, precision, quantize_backbone
from trainer.models.kernels import use_faster_functions
from trainer.pairs.comparisons import policy_comparisons, reward_comparisons
from trainer.ppo.loop import PPO
from trainer.preferences.records import Comparison, Judgement, Preference
from trainer.reward_model.network import RewardModel, score_sequences
from trainer.rewards import RewardInput, Rewards, RewardSource, SourceScores, WeightedSource
from workbench.config.estimates import estimate

_IDS = 16_000  # of tokens that prompts and completions consist of: the smallest vocabulary of a case


class Case(NamedTuple):
    """A model, by its config.json, and settings that differ from the defaults.

    length: tokens of each prompt; on preferences, of each prompt with a completion. scorer: config.json of the backbone
    of a reward model; the policy's own is shared.
    """

    model: dict[str, Any]
    length: int
    settings: tuple[str, ...]
    kind: str = "ppo"
    scorer: dict[str, Any] | None = None


class Numbers(Tokenizer):
    """Stand-in for a tokenizer whose texts are the numbers of their ids."""

    bos_token = eos_token = bos_token_id = eos_token_id = None

    def encode(self, text: str, **_: Any) -> list[int]:
        """Return the ids in `text`."""
        return [int(word) for word in text.split()]


def measured(case: Case) -> dict[str, tuple[float, float]]:
    """Run `case`; return measured and estimated bytes of each phase, and of the peak."""
    with tempfile.TemporaryDirectory() as folder:
        config = _configuration(case, Path(folder))
        memory = estimate(config).memory
    peaks = _iterated(case, config) if isinstance(config, Config) else _stepped(case, config)
    assert memory is not None
    found = {phase: (float(peaks[phase]), float(sum(memory.phases[phase].values()))) for phase in memory.phases}
    return found | {"peak": (float(max(peaks.values())), float(memory.peak))}


def _configuration(case: Case, folder: Path) -> AnyConfig:
    """Return the configuration of `case`, with the files that its estimate reads in `folder`."""
    (folder / "config.json").write_text(json.dumps(case.model), encoding="utf-8")
    overrides = [f"model.path={folder}", *case.settings]
    if case.kind != "ppo":
        overrides += [
            "data.eval_fraction=0.5",
            f"data.max_tokens={case.length}",
            f"data.preferences={folder}/none.jsonl",
        ]
        if case.kind == "dpo":
            overrides.append("data.end_token=false")  # there is none
        return validate_as(SCHEMAS[case.kind], parse_overrides(overrides, SCHEMAS[case.kind]))
    (folder / "prompts.txt").write_text("x" * 4 * case.length + "\n", encoding="utf-8")
    overrides += [f"data.prompts={folder}/prompts.txt", "ppo.epochs=1"]  # every epoch has the same peak
    overrides += ["ppo.prefix_scores=0"]  # numbers are no texts to score
    if case.scorer is not None:
        run, backbone = folder / "run", folder / "backbone"
        run.mkdir()
        backbone.mkdir()
        (backbone / "config.json").write_text(json.dumps(case.scorer), encoding="utf-8")
        path = folder if case.scorer == case.model else backbone
        dtype = load_config_as(Config, "quickstart", parse_overrides(overrides), preset_names()).model.dtype
        (run / "config.toml").write_text(f"[model]\npath = '{path}'\ndtype = '{dtype}'\n", encoding="utf-8")
        overrides.append(f"reward.sources=[{{kind = 'model', path = '{run}'}}]")
    return load_config_as(Config, "quickstart", parse_overrides(overrides), preset_names())


def _iterated(case: Case, config: Config) -> dict[str, int]:
    """Run an iteration of PPO, and an evaluation if there is one; return the peaks of the phases."""
    ppo = new_ppo(case, config)
    mx.eval(ppo.learner.policy_optimizer.state, ppo.learner.value_optimizer.state)  # else allocated after the peak
    peaks = dict(ppo.iteration(1).metrics.memory)
    if config.eval.every:
        prompts = _prompts(config.eval.prompts, case.length, seed=2)
        peaks["evaluate"] = evaluate(ppo, prompts, 2, reference_baseline(ppo, prompts)).memory_bytes
    return peaks


def new_ppo(case: Case, config: Config) -> PPO:
    """Return PPO on a new model, ready for its first iteration."""
    backbone = new_backbone(case.model, config.model)
    actor = ActorCriticLLM(backbone, config.model, key=mx.random.key(0))
    rewards = Rewards([WeightedSource(_source(case, config, backbone))])
    return PPO(config, actor, Numbers(), _prompts(config.rollout.batch_size, case.length, seed=1), rewards)


def _stepped(case: Case, config: RewardModelConfig | DPOConfig) -> dict[str, int]:
    """Take two steps on preferences, with an evaluation after each; return the peaks of the second ones."""
    backbone = new_backbone(case.model, config.model)
    model = LoadedModel(backbone, Numbers(), Path(), precision(config.model.dtype), 0)
    micro_batch = config.optim.micro_batch_tokens // (2 * case.length)  # pairs
    preferences = _preferences(2 * max(config.train.batch_size, micro_batch), case.length)
    events: list[Event] = []
    training: StepTraining
    if isinstance(config, DPOConfig):
        training = DPO(config, hooks=Hooks(events.append)).build_on(
            config, model, policy_comparisons(preferences, model, config)
        )
    else:
        data = reward_comparisons(preferences, model, config)
        training = RewardModelTraining(config, hooks=Hooks(events.append)).build_on(config, backbone, data)
    training.prepare()
    for _ in range(2):
        step = training.step()
        snapshot = training.snapshot()  # a run keeps it
        training.evaluate()
    del snapshot
    evaluations = [event for event in events if isinstance(event, RewardModelEvaluation | DPOEvaluation)]
    return {"update": step.memory_bytes, "evaluate": evaluations[-1].memory_bytes}


def new_backbone(settings: dict[str, Any], config: BackboneConfig) -> nn.Module:
    """Return a model with random weights, as a run would hold it."""
    model_class, arguments = _get_classes(settings)
    backbone: nn.Module = model_class(arguments.from_dict(settings))

    def drawn(number: int, array: mx.array) -> mx.array:
        if array.ndim == 1:
            return mx.ones(array.shape)
        return mx.random.normal(array.shape, key=mx.random.key(number)) * 1.2 / math.sqrt(array.shape[-1])

    if settings["tie_word_embeddings"] and "lm_head" in backbone:  # as mlx-lm does when it loads the weights
        backbone.tie_word_embeddings = True
        backbone.pop("lm_head")
    parameters = tree_flatten(backbone.parameters())
    backbone.update(tree_unflatten([(name, drawn(number, array)) for number, (name, array) in enumerate(parameters)]))
    del parameters
    cast_backbone(backbone, config.dtype)
    if config.quantize != "off":
        quantize_backbone(backbone, int(config.quantize.removesuffix("-bit")))
        cast_backbone(backbone, config.dtype)
    if mx.default_device() == mx.Device(mx.cpu):
        use_faster_functions(backbone)
    for array in leaves(backbone.parameters()):
        mx.eval(array)
        mx.clear_cache()
    return backbone


def _prompts(count: int, length: int, *, seed: int) -> list[Prompt]:
    """Return random prompts, each different."""
    rows = np.random.default_rng(seed).integers(0, _IDS, (count, length)).tolist()
    return [Prompt(place, text := " ".join(map(str, row)), text, row, {}) for place, row in enumerate(rows)]


def _preferences(pairs: int, length: int) -> list[Preference]:
    """Return random preferences; `length`: tokens of each prompt with a completion."""
    half = length // 2
    prompts, completions = _prompts(pairs, half, seed=3), _prompts(2 * pairs, length - half, seed=4)
    found = []
    for place, prompt in enumerate(prompts):
        texts = (completions[2 * place].text, completions[2 * place + 1].text)
        comparison = Comparison(prompt=prompt.text, completions=texts)
        found.append(Preference(comparison=comparison, judgement=Judgement.chosen("a")))
    return found


def _source(case: Case, config: Config, backbone: nn.Module) -> RewardSource:
    """Return the reward model of `case`, or a score that costs nothing."""
    if case.scorer is None:
        return FirstToken()
    settings = RewardModelConfig.model_validate({"model": {"dtype": config.model.dtype}})
    own = backbone if case.scorer == case.model else new_backbone(case.scorer, settings.model)
    model = RewardModel(own, settings, key=mx.random.key(5))
    untrained = model.parameters()
    model.update({name: array + 0 for name, array in untrained.items()})
    mx.eval(model.parameters())
    return _Scorer(model, untrained, config.optim.micro_batch_tokens)


class FirstToken:
    """Reward that costs nothing."""

    name = "first"

    def __call__(self, batch: Sequence[RewardInput]) -> SourceScores:
        """Score each response by its first token."""
        return SourceScores([float(sample.completion_ids[0] % 7) for sample in batch])


@dataclass
class _Scorer:
    """A reward model that reads the ids in the texts, and keeps its untrained weights as a loaded one does."""

    model: RewardModel
    untrained: dict[str, mx.array]
    micro_batch_tokens: int
    name: str = "model"

    def __call__(self, batch: Sequence[RewardInput]) -> SourceScores:
        sequences = [Numbers().encode(f"{sample.prompt} {sample.completion}") for sample in batch]
        return SourceScores([float(x) for x in score_sequences(self.model.scores, sequences, self.micro_batch_tokens)])
