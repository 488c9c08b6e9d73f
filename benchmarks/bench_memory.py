"""Compare the estimate of a run's memory with what MLX allocates, phase by phase.

Run: .venv/bin/python benchmarks/bench_memory.py [NAME ...]

Each case is a model of a real shape with random weights and a configuration. It runs in a process of its own: an
iteration of PPO, with random prompts, all of the longest length, and responses that never stop; or two steps of a
reward model or of DPO, on comparisons of the longest length; then an evaluation, if it has one. Exits with 1 if the
estimate of a peak is off by more than 15%.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, get_args

import trainer  # noqa: F401  loads the BLAS, before anything imports mlx

# isort: split
import mlx.core as mx
import mlx.nn as nn
import numpy as np
from device_models import Tokenizer, new_backbone

from trainer.config import SCHEMAS, AnyConfig, Config
from trainer.config.loading import load_config_as, parse_overrides, preset_names
from trainer.config.pairs import DPOConfig, RewardModelConfig
from trainer.config.problems import validate_as
from trainer.config.schema import BackboneConfig
from trainer.data import Prompt
from trainer.engine.dpo import DPO
from trainer.engine.reward_model import RewardModelTraining
from trainer.engine.trainable import Hooks, StepTraining
from trainer.evaluation.held_out import ReferenceBaseline, evaluate
from trainer.events import DPOEvaluation, Event, RewardModelEvaluation
from trainer.memory.footprint import MemoryPhase
from trainer.models.actor_critic import ActorCriticLLM
from trainer.models.backbone import LoadedModel, precision
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
    settings: str  # assignments, with spaces between
    kind: str = "ppo"
    scorer: dict[str, Any] | None = None


def decoder(
    family: str, hidden: int, inner: int, layers: int, heads: int, kv: int, vocabulary: int, **more: Any
) -> Any:
    """Return the config.json of a decoder."""
    return {
        "model_type": family,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "vocab_size": vocabulary,
        "head_dim": hidden // heads,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 4096,
        "rope_theta": 1e5,
        "tie_word_embeddings": True,
    } | more


SMOLLM2 = decoder("llama", 576, 1536, 30, 9, 3, 49152)
SMOLLM2_360M = decoder("llama", 960, 2560, 32, 15, 5, 49152)
QWEN3 = decoder("qwen3", 1024, 3072, 28, 16, 8, 151936, head_dim=128)
QWEN2 = decoder("qwen2", 896, 4864, 24, 14, 2, 151936)
LLAMA = decoder("llama", 768, 3072, 12, 12, 12, 32000, tie_word_embeddings=False)
GEMMA3 = decoder(
    "gemma3_text", 640, 2048, 18, 4, 1, 262144, head_dim=256, query_pre_attn_scalar=256, sliding_window=512,
    sliding_window_pattern=6, rope_local_base_freq=1e4, rope_traditional=False,
)  # fmt: skip
MOE = decoder(
    "qwen3_moe", 512, 1024, 12, 8, 4, 49152, head_dim=64, num_experts=16, num_experts_per_tok=4,
    decoder_sparse_step=1, mlp_only_layers=[], moe_intermediate_size=256, norm_topk_prob=True,
)  # fmt: skip

TINY = decoder("llama", 320, 896, 12, 5, 5, 16000)
SMALL = decoder("llama", 256, 1024, 8, 8, 4, 32000)

ALL = "model.lora_targets=['q_proj','k_proj','v_proj','o_proj']"
GRPO, EXACT = "ppo.estimator=grpo rollout.samples_per_prompt=4", "ppo.kl_in=loss ppo.kl_estimator=full"
CHECKPOINTED = "optim.grad_checkpoint=true"
F32, BF16 = "model.dtype=float32", "model.dtype=bfloat16"
CASES = {
    "quickstart": Case(SMOLLM2, 32, f"{ALL} rollout.max_new_tokens=32 {F32}"),
    "long responses": Case(SMOLLM2, 32, f"rollout.max_new_tokens=224 rollout.batch_size=4 {F32}"),
    "one long sequence": Case(
        SMOLLM2, 700, f"rollout.max_new_tokens=68 rollout.batch_size=1 data.max_prompt_tokens=900 {F32}"
    ),
    "large batch": Case(SMOLLM2, 64, f"rollout.batch_size=32 rollout.max_new_tokens=32 {F32}"),
    "small micro-batches": Case(
        SMOLLM2, 64, f"rollout.batch_size=16 rollout.max_new_tokens=32 optim.micro_batch_tokens=256 {F32}"
    ),
    "critic apart": Case(SMOLLM2, 32, f"{ALL} model.value_model=adapter model.lora_rank=64 {F32}"),
    "rloo, all layers": Case(
        SMOLLM2,
        32,
        f"model.lora_targets=['auto'] ppo.estimator=rloo rollout.samples_per_prompt=4 model.lora_rank=32 {F32}",
    ),
    "grpo, scored by its first step": Case(
        SMOLLM2, 32, f"{ALL} {GRPO} ppo.kl_in=loss ppo.kl_estimator=k3 rollout.max_new_tokens=32 {F32}"
    ),
    "exact KL": Case(SMOLLM2, 32, f"{ALL} {EXACT} rollout.max_new_tokens=32 {F32}"),
    "exact KL, one chunk": Case(SMOLLM2, 32, f"{ALL} {EXACT} rollout.batch_size=2 rollout.max_new_tokens=32 {F32}"),
    "exact KL, grpo": Case(SMOLLM2, 32, f"{ALL} {GRPO} {EXACT} rollout.max_new_tokens=32 {F32}"),
    "bfloat16": Case(LLAMA, 32, f"rollout.batch_size=4 rollout.max_new_tokens=16 {BF16}"),
    "4 bits": Case(LLAMA, 64, f"rollout.max_new_tokens=32 model.quantize=4-bit {F32}"),
    "llama, long prompts": Case(LLAMA, 400, f"rollout.max_new_tokens=32 data.max_prompt_tokens=512 {F32}"),
    "qwen2 0.5B": Case(QWEN2, 64, f"rollout.max_new_tokens=32 {F32}"),
    "qwen3 0.6B": Case(QWEN3, 64, f"rollout.max_new_tokens=32 {F32}"),
    "gemma3 270M": Case(GEMMA3, 64, f"rollout.max_new_tokens=32 {F32}"),
    "smollm2 360M": Case(SMOLLM2_360M, 128, f"rollout.max_new_tokens=24 rollout.batch_size=6 {ALL} {F32}"),
    "qwen2, two minibatches": Case(
        QWEN2, 48, f"rollout.max_new_tokens=24 rollout.batch_size=12 ppo.minibatches=2 {F32}"
    ),
    "experts": Case(MOE, 64, f"rollout.max_new_tokens=32 {F32}"),
    "adapters on experts": Case(
        MOE, 64, f"rollout.max_new_tokens=16 rollout.batch_size=4 model.lora_targets=['auto','experts'] {F32}"
    ),
    "checkpointed": Case(SMOLLM2, 32, f"{ALL} rollout.max_new_tokens=32 {CHECKPOINTED} {F32}"),
    "checkpointed, long responses": Case(
        SMOLLM2, 32, f"rollout.max_new_tokens=224 rollout.batch_size=4 {CHECKPOINTED} {F32}"
    ),
    "checkpointed, one long sequence": Case(
        SMOLLM2, 1016, f"rollout.max_new_tokens=8 rollout.batch_size=1 data.max_prompt_tokens=1016 {CHECKPOINTED} {F32}"
    ),
    "checkpointed, gemma3": Case(GEMMA3, 120, f"rollout.max_new_tokens=8 {CHECKPOINTED} {F32}"),
    "checkpointed, experts": Case(MOE, 120, f"rollout.max_new_tokens=8 {CHECKPOINTED} {F32}"),
    "checkpointed, dpo": Case(SMOLLM2, 128, f"train.batch_size=3 {CHECKPOINTED} {F32}", "dpo"),
    "reward model apart": Case(SMOLLM2, 64, f"rollout.max_new_tokens=16 {F32}", scorer=SMALL),
    "reward model shared": Case(TINY, 56, f"rollout.max_new_tokens=8 {F32}", scorer=TINY),
    "large adapters": Case(TINY, 16, f"{ALL} model.lora_rank=512 rollout.max_new_tokens=8 rollout.batch_size=8 {F32}"),
    "evaluation of 16 prompts": Case(
        TINY, 96, f"rollout.max_new_tokens=8 rollout.batch_size=2 eval.every=1 eval.prompts=16 {F32}"
    ),
    "reward model": Case(TINY, 96, f"train.batch_size=4 {F32}", "reward-model"),
    "reward model, bfloat16": Case(TINY, 32, f"train.batch_size=4 optim.micro_batch_tokens=256 {BF16}", "reward-model"),
    "dpo": Case(TINY, 96, f"train.batch_size=4 {F32}", "dpo"),
    "smollm2, reward model": Case(SMOLLM2, 128, f"train.batch_size=4 {F32}", "reward-model"),
    "smollm2, dpo": Case(SMOLLM2, 128, f"train.batch_size=3 {F32}", "dpo"),
    "checkpointed, reward model": Case(SMOLLM2, 128, f"train.batch_size=4 {CHECKPOINTED} {F32}", "reward-model"),
}
FITTED = {  # the factors in trainer/memory/footprint.py are fitted to these cases
    *("quickstart", "long responses", "one long sequence", "large batch", "critic apart", "rloo, all layers"),
    *("bfloat16", "4 bits", "llama, long prompts", "qwen2 0.5B", "qwen3 0.6B", "gemma3 270M", "experts"),
    *("adapters on experts", "reward model apart", "reward model shared", "evaluation of 16 prompts"),
    *("reward model", "reward model, bfloat16", "dpo", "large adapters", "checkpointed"),
    *("checkpointed, long responses", "checkpointed, one long sequence"),
}
MARGIN = 0.15


def main() -> int:
    """Measure the named cases, or all, print a table, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(CASES)}")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measured(CASES[options.names[0]])))
        return 0
    print(f"| case | {' | '.join(get_args(MemoryPhase))} | peak | estimate | off by |")
    print("|---|" + "---|" * (len(get_args(MemoryPhase)) + 3))
    failed = False
    for name in options.names or CASES:
        found = subprocess.run([sys.executable, __file__, "--measure", name], stdout=subprocess.PIPE, text=True)
        if found.returncode:
            print(f"{name}: exit code {found.returncode}", file=sys.stderr)
            failed = True
            continue
        sizes = json.loads(found.stdout.splitlines()[-1])
        print(row(name, sizes), flush=True)
        failed |= abs(error(*sizes["peak"])) > MARGIN
    return int(failed)


def row(name: str, found: dict[str, tuple[float, float]]) -> str:
    """Return a line of the table. found: measured and estimated bytes of each phase, and of the peak."""
    cells = [
        f"{found[phase][0] / 1e6:,.0f} ({error(*found[phase]):+.0%})" if phase in found else "-"
        for phase in get_args(MemoryPhase)
    ]
    real, guess = found["peak"]
    cells += [f"{real / 1e6:,.0f}", f"{guess / 1e6:,.0f}", f"{error(real, guess):+.0%}"]
    return f"| {name}{' *' if name in FITTED else ''} | {' | '.join(cells)} |"


def error(real: float, guess: float) -> float:
    """Return by which share of `real` the estimate is too large."""
    return guess / real - 1


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
    overrides = [f"model.path={folder}", *case.settings.split()]
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
    mx.eval([optimizer.state for optimizer in ppo.learner.optimizers.values()])  # else allocated after the peak
    peaks = dict(ppo.iteration(1).metrics.memory)
    if config.eval.every:
        prompts = _prompts(config.eval.prompts, case.length, seed=2)
        peaks["evaluate"] = evaluate(
            ppo, prompts, 2, ReferenceBaseline(prompts, draws=ppo.config.eval.best_of)
        ).memory_bytes
    return peaks


def new_ppo(case: Case, config: Config) -> PPO:
    """Return PPO on a new model, ready for its first iteration."""
    backbone = _new_backbone(case.model, config.model)
    actor = ActorCriticLLM(backbone, config.model, key=mx.random.key(0))
    rewards = Rewards([WeightedSource(_source(case, config, backbone))])
    return PPO(config, actor, Numbers(), _prompts(config.rollout.batch_size, case.length, seed=1), rewards)


def _stepped(case: Case, config: RewardModelConfig | DPOConfig) -> dict[str, int]:
    """Take two steps on preferences, with an evaluation after each; return the peaks of the second ones."""
    backbone = _new_backbone(case.model, config.model)
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


def _new_backbone(settings: dict[str, Any], config: BackboneConfig) -> nn.Module:
    bits = 0 if config.quantize == "off" else int(config.quantize.removesuffix("-bit"))
    return new_backbone(settings, config.dtype, bits)


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
    own = backbone if case.scorer == case.model else _new_backbone(case.scorer, settings.model)
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


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    raise SystemExit(main())
