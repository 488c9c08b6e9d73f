"""Evaluation of any checkpoint of a run against its reference, on held-out or other prompts, outside training."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from trainer.arrays import Purpose, key_for
from trainer.confidence import Interval, mean_interval
from trainer.config import Config, load_config, parse_overrides, resolve_paths
from trainer.config.loading import load_config_as
from trainer.config.pairs import DPOConfig, as_ppo
from trainer.data import Prompt, column_names, load_prompts
from trainer.engine.dpo import began_with
from trainer.engine.ppo import changed_since, run_prompts
from trainer.errors import DataError, StorageError, UsageError, counted
from trainer.evaluation.held_out import BestOfN, EvaluationReport, Measured, ReferenceBaseline, Scores, measure
from trainer.evaluation.intervals import (
    best_of_kl,
    best_of_n,
    bootstrap_interval,
    explained_variance_of_sums,
    prompt_means,
    rms_of_sums,
    share_interval,
)
from trainer.events import Event
from trainer.fitting.memory_limit import set_memory_limit
from trainer.models.actor_critic import ActorCriticLLM
from trainer.models.backbone import LoadedModel, load_backbone
from trainer.pairs.comparisons import load_preferences, policy_comparisons
from trainer.policy_checkpoint import Snapshot, load_checkpoint, restore_critic
from trainer.ppo.loop import PPO
from trainer.rewards import Trust, build_rewards, load_functions
from trainer.rewards.code import trust_none
from trainer.rewards.model_reward import with_checkpoints
from trainer.runs.folder import RunFolder, read_config


class EvaluationOptions(NamedTuple):
    """Options of an evaluation."""

    prompts: int | None = None  # how many of the held-out ones; None for as many as the run uses
    file: str = ""  # of prompts, instead of the held-out ones
    samples: int = 1  # responses to each prompt
    best_of: int | None = None  # n of best-of-n; None for the run's eval.best_of
    average: bool = False  # evaluate the moving average of the policy
    seed: int | None = None  # of the draws; None for the run's own, which its evaluations use
    reward: str = ""  # as `--set reward.sources=` takes it; empty for the run's own


def evaluate_checkpoint(
    folder: RunFolder,
    path: Path,
    options: EvaluationOptions,
    emit: Callable[[Event], None] = lambda event: None,
    *,
    trust: Trust = trust_none,
) -> tuple[EvaluationReport, list[str]]:
    """Sample and score policy and reference on the prompts, with the same draws, all on the calling thread.

    path: of the checkpoint. emit: receives the progress. trust: as for `build_rewards`; without it no Python code of
    the run is executed. Returns the evaluation, and warnings of one line each. Raises a TrainerError if something that
    `options` names is not available.
    """
    run = _load(folder, options, trust)
    set_memory_limit(run.config.model)
    key = key_for(run.config.run.seed, Purpose.ADAPTER)
    actor = ActorCriticLLM(run.model.backbone, run.config.model, key=key)
    snapshot = load_checkpoint(path, actor.adapter_config)
    if options.average and snapshot.average is None:
        raise UsageError(
            f"'{path.name}' of run '{folder.name}' keeps no average of its policy (optim.ema_decay = 0): leave out "
            "--average"
        )
    ppo = _restored(run, actor, snapshot, options, emit, trust)
    samples, best_of = options.samples, options.best_of or ppo.config.eval.best_of
    baseline = ReferenceBaseline(run.prompts, draws=max(samples, best_of))
    measured = measure(ppo, run.prompts, snapshot.iteration, baseline, samples=samples)
    about = {
        "run": folder.name,
        "kind": run.kind,
        "checkpoint": path.name,
        "iteration": snapshot.iteration,
        "averaged": options.average,
        "kl_coef": ppo.kl_coef,
        "prompts": len(run.prompts),
        "samples": samples,
        "seed": ppo.config.run.seed,
    }
    return _report(measured, about, best_of), run.warnings


def config_of(folder: RunFolder, reward: str = "") -> Config | DPOConfig:
    """Return the configuration of a run with a policy. Raises ConfigError, UsageError.

    reward: as for `EvaluationOptions`.
    """
    schema: type[Config | DPOConfig] = DPOConfig if _policy_kind(folder) == "dpo" else Config
    return load_config_as(schema, folder.config, _overrides(reward))


class _Run(NamedTuple):
    """Parts of a run, whatever its kind."""

    kind: str
    config: Config
    model: LoadedModel
    functions: dict[str, ModuleType]  # the Python files of its reward
    columns: list[str] | None  # of its data, if they are known
    prompts: list[Prompt]
    warnings: list[str]


def _load(folder: RunFolder, options: EvaluationOptions, trust: Trust) -> _Run:
    kind, dpo = _policy_kind(folder), None
    if kind == "dpo":
        count = {"eval": {"prompts": options.prompts}} if options.prompts else {}
        dpo = load_config_as(DPOConfig, folder.config, _overrides(options.reward) | count)
        if not dpo.reward.sources:
            raise UsageError(f"run '{folder.name}' learns from preferences and has no reward: name one with --reward")
    config = as_ppo(dpo) if dpo else load_config(folder.config, _overrides(options.reward))
    config = with_checkpoints(resolve_paths(config, Path.cwd()))
    if dpo and not options.file:
        functions = load_functions(config.reward, trust=trust)
        prompts, warnings, model = _held_out_of_pairs(folder, dpo, config, options)
        return _Run(kind, config, model, functions, None, prompts, warnings)
    read = config
    if options.file:  # all of its prompts, read as the run reads its own
        data = config.data.model_copy(update={"prompts": options.file, "limit": 0, "eval_fraction": 0.0})
        read = config.model_copy(update={"data": data})
    skipped: list[DataError] = []
    rows = load_prompts(read.data, skipped.append)
    columns = column_names(rows)
    functions = load_functions(config.reward, trust=trust, columns=columns)
    model = load_backbone(config.model)
    found = run_prompts(read, rows, model, skipped)
    if options.file:
        return _Run(kind, config, model, functions, columns, found.train, found.warnings)
    most = options.prompts or config.eval.prompts
    prompts, warnings = _first(found.held_out, most, options)
    if changed := changed_since(folder, found):
        warnings.append(f"the prompts are not those of the training ({changed}): some may have been trained on")
    return _Run(kind, config, model, functions, columns, prompts, warnings)


def _held_out_of_pairs(
    folder: RunFolder, dpo: DPOConfig, config: Config, options: EvaluationOptions
) -> tuple[list[Prompt], list[str], LoadedModel]:
    """Return the held-out prompts of a DPO run, warnings, and its model, which encodes them."""
    preferences = load_preferences(dpo.data)
    model = load_backbone(config.model)
    data = policy_comparisons(preferences, model, dpo)
    prompts, warnings = _first(data.prompts, dpo.eval.prompts, options)
    known = False
    with contextlib.suppress(StorageError):  # what it began with cannot be read: only a resumed run needs that
        known = began_with(folder, data)
    if not known:
        warnings.append("the preferences are not those of the training: some of these may have been trained on")
    return prompts, warnings, model


def _first(held_out: list[Prompt], count: int, options: EvaluationOptions) -> tuple[list[Prompt], list[str]]:
    if not held_out:
        raise UsageError("the run has no held-out prompts (data.eval_fraction = 0): name a file with --prompts")
    warnings = []
    if options.prompts and options.prompts > len(held_out):
        warnings.append(f"only {counted(len(held_out), 'held-out prompt')}; using all of them")
    return held_out[:count], warnings


def _restored(
    run: _Run,
    actor: ActorCriticLLM,
    snapshot: Snapshot,
    options: EvaluationOptions,
    emit: Callable[[Event], None],
    trust: Trust,
) -> PPO:
    """Build the algorithm as it was at `snapshot`, with the reward and the seed of `options`."""
    config, c = run.config, run.config.run
    if options.seed is not None:
        config = config.model_copy(update={"run": c.model_copy(update={"seed": options.seed})})
    rewards = build_rewards(
        config.reward,
        backbone=run.model,
        max_new_tokens=config.rollout.max_new_tokens,
        micro_batch_tokens=config.optim.micro_batch_tokens,
        trust=trust,
        modules=run.functions,
        columns=run.columns,
    )
    if snapshot.has_statistics_of(config.reward):  # DPO has none
        rewards.restore(snapshot.rewards)
    ppo = PPO(config, actor, run.model.tokenizer, [], rewards, report=emit)
    actor.update_policy(snapshot.policy)
    if snapshot.value:
        restore_critic(snapshot, actor)
    ppo.potential_values.restore(snapshot.prefix_values)
    ppo.learner.average = snapshot.average if options.average else None
    if snapshot.kl_coef is not None:
        ppo.kl_coef = snapshot.kl_coef
    return ppo


def _report(found: Measured, about: dict[str, Any], best_of: int) -> EvaluationReport:
    assert found.reference is not None
    assert found.wins is not None
    samples, reference = about["samples"], found.reference
    paired = reference.cut(slice(samples))
    pairs = np.isfinite(found.scores.total[:, :, None] - paired.total[:, None])
    counts = [n for n in (2**power for power in range(1, 11)) if n < best_of] + [best_of] * (best_of > 1)
    critic = found.critic
    return EvaluationReport(
        **about,
        policy=_intervals(found.scores, reward=found.rewards, kl=found.kl),
        reference=_intervals(paired, reward=paired.total, kl=paired.total * 0),
        gain=mean_interval(prompt_means(found.scores.total - paired.total)),
        win_rate=share_interval(found.wins),
        pairs=int(pairs.sum()),
        best_of=[BestOfN(n, best_of_kl(n), mean_interval(best_of_n(reference.total, n))) for n in counts],
        critic={}
        if critic is None
        else {
            "explained_variance": bootstrap_interval(critic, explained_variance_of_sums),
            "error": bootstrap_interval(critic, rms_of_sums),
        },
    )


def _intervals(scores: Scores, **others: Any) -> dict[str, Interval]:
    means = {"score": scores.total, **others, "length": scores.lengths}
    parts = {f"parts.{name}": part for name, part in scores.parts.items()}
    return {
        **{name: mean_interval(prompt_means(values)) for name, values in means.items()},
        "truncated": share_interval(scores.truncated.mean(axis=1)),
        "unscored": share_interval(np.isnan(scores.total).mean(axis=1)),
        **{name: mean_interval(prompt_means(values)) for name, values in parts.items()},
    }


def _policy_kind(folder: RunFolder) -> str:
    """Return the kind that config.toml names, ppo or dpo. Raises UsageError if such a run has no policy.

    A file that cannot be read counts as "ppo"; loading it reports the error.
    """
    try:
        kind = str(read_config(folder).get("kind", "ppo"))
    except StorageError:
        return "ppo"
    if kind not in ("ppo", "dpo"):
        raise UsageError(f"run '{folder.name}' is of kind '{kind}' and has no policy to evaluate: name one that has")
    return kind


def _overrides(reward: str) -> dict[str, Any]:
    """Return the configuration of the requested reward, if any: one source, or a list of them in TOML."""
    if reward.lstrip().startswith("["):
        return parse_overrides([f"reward.sources={reward}"])
    return {"reward": {"sources": [reward]}} if reward else {}
