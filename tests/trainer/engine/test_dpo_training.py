"""Training by DPO: its loss, what it learns, what a run leaves on disk, and how it resumes."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import runs_helper
from dpo_helper import dpo_config
from preference_samples import labelled, preference, reward_config
from runs_helper import Killed, Recorder, comparable, killed_at, newest_checkpoint, tiny_config
from tiny import load_tiny
from wrapped_tokenizer import TEMPLATE, Wrapper

from trainer.config.loading import load_config_as
from trainer.config.pairs import DPOConfig, DPODataConfig
from trainer.config.reward_sources import ModelSource
from trainer.config.schema import DataConfig
from trainer.data import PromptRow, encode_prompts, split_prompts
from trainer.dpo import completion_logprobs, to_completions
from trainer.engine.control import Control
from trainer.engine.dpo import DPO
from trainer.engine.training import train
from trainer.errors import ConfigError, DataError, StorageError, UsageError
from trainer.events import (
    CheckpointSaved,
    DPOEvaluation,
    DPOStep,
    Evaluation,
    Event,
    Iteration,
    RunEnded,
    RunStarted,
    StateChanged,
)
from trainer.pairs.comparisons import policy_comparisons
from trainer.pairs.encoders import Encoder
from trainer.preferences.records import Preference
from trainer.runs.checkpoint_files import checkpoints
from trainer.runs.folder import RunFolder
from trainer.runs.journal import read_journal
from trainer.runs.listing import list_runs

PAIRS = labelled(36)


def rewarded(folder: Path) -> str:
    return f"reward.sources=['{folder / 'rewards.py'}:likes']"


def trained(
    folder: Path,
    *overrides: str,
    preferences: Sequence[Preference] = PAIRS,
    resume: Path | None = None,
    watch: Callable[[Event], None] = lambda event: None,
    control: Control | None = None,
) -> Recorder:
    """Train a run in `folder`, for four steps by default."""
    recorder = Recorder(watch)
    config = load_config_as(DPOConfig, resume / "config.toml") if resume else dpo_config(folder, *overrides)
    train(config, preferences=preferences, resume=resume, sinks=[recorder], control=control)
    return recorder


def fresh(folder: Path, *overrides: str, preferences: Sequence[Preference] = PAIRS) -> DPO:
    """Return a run ready for its first step, by default on all pairs."""
    config = dpo_config(folder, "data.eval_fraction=0", *overrides)
    model = load_tiny(folder / "model")
    return DPO(config).build_on(config, model, policy_comparisons(preferences, model, config))


def disturb(dpo: DPO, size: float = 0.3) -> None:
    """Move the policy away from the reference."""
    rng = np.random.default_rng(2)
    moved = {name: a + mx.array(rng.normal(size=a.shape) * size, a.dtype) for name, a in _parameters(dpo).items()}
    dpo.actor.update_policy(moved)


def _parameters(dpo: DPO) -> dict[str, mx.array]:
    return dpo.actor.policy_parameters()


def outcome(run: Path) -> dict[str, Any]:
    return runs_helper.outcome(run, (DPOStep, DPOEvaluation, Evaluation))


# What the policy reads and writes


def encoder(template: str = "", **settings: Any) -> Encoder:
    return Encoder(Wrapper(template), DPODataConfig(**settings))


def test_a_completion_begins_where_the_prompt_ends_and_ends_with_the_end_token() -> None:
    made = encoder().sequence("ab", " c")
    assert Wrapper().decode(made.tokens) == "ab c<end>"
    assert (made.completion, made.is_cut) == (3, False)
    assert encoder(end_token=False).sequence("ab", " c").tokens == made.tokens[:-1]
    assert encoder().sequence("ab", " c<end>") == made


def test_the_prompt_of_a_conversation_is_the_one_that_ppo_samples_after() -> None:
    prompt = [{"role": "user", "content": "hi"}]
    made = encoder(TEMPLATE).sequence(prompt, [{"role": "assistant", "content": "yes"}])
    rows = encode_prompts([PromptRow(0, prompt, {})], Wrapper(TEMPLATE), DataConfig()).prompts
    assert made.tokens[: -made.completion] == rows[0].tokens
    assert Wrapper().decode(made.tokens[-made.completion :]) == "yes<end>"
    assert encoder(TEMPLATE, chat="always").sequence("hi", "yes") == made


def test_a_template_that_renders_past_turns_differently_gives_the_bare_answer() -> None:
    template = TEMPLATE.replace("assistant: {% endif", "assistant: <special1>{% endif")
    made = encoder(template).sequence([{"role": "user", "content": "hi"}], "yes")
    assert Wrapper().decode(made.tokens).endswith("assistant: <special1>yes<end>")
    turns = [{"role": role, "content": "x"} for role in ("assistant", "user", "assistant")]
    with pytest.raises(DataError, match="has completions of 3 messages"):
        encoder(template).sequence([{"role": "user", "content": "hi"}], turns)


@pytest.mark.parametrize(("limit", "text", "completion"), [(7, "bcdefg<end>", 5), (4, "efg<end>", 3)])
def test_a_sequence_that_is_too_long_loses_its_first_tokens_but_keeps_one_before_the_completion(
    limit: int, text: str, completion: int
) -> None:
    made = encoder(max_tokens=limit).sequence("abc", "defg")
    assert (Wrapper().decode(made.tokens), made.completion, made.is_cut) == (text, completion, True)


def test_an_empty_prompt_needs_a_begin_token() -> None:
    with pytest.raises(DataError, match="no begin token: remove it"):
        encoder().sequence("", "abc")


# The loss


@pytest.mark.parametrize("loss", ["sigmoid", "ipo"])
@pytest.mark.parametrize("budget", [1, 100, 100_000])
def test_at_the_start_policy_and_reference_are_equal_to_the_bit(tmp_path: Path, loss: str, budget: int) -> None:
    dpo = fresh(tmp_path, f"train.loss={loss}", "train.beta=0.25", f"optim.micro_batch_tokens={budget}")
    _, sums = dpo.learner.gradients(dpo.data.train)
    assert (float(sums.lead), float(sums.chosen_reward), float(sums.rejected_reward)) == (0, 0, 0)
    start = {"sigmoid": math.log(2), "ipo": 1 / (4 * 0.25**2)}[loss]
    assert float(sums.loss) / len(dpo.data.train) == pytest.approx(start, rel=1e-6)


def test_the_log_probs_are_those_of_the_completions_tokens_alone_whatever_the_padding(tmp_path: Path) -> None:
    dpo = fresh(tmp_path)
    disturb(dpo)
    sequences = [[5, 6, 7, 8, 9], [10, 11], [12, 13, 14, 15, 16, 17, 18]]
    counts = [2, 1, 6]
    found = np.array(completion_logprobs(dpo.actor, to_completions(sequences, counts)))
    for tokens, count, value in zip(sequences, counts, found, strict=True):
        logits = np.array(dpo.actor.backbone(mx.array([tokens])).astype(mx.float32), dtype=np.float64)[0]
        logprobs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
        places = range(len(tokens) - count, len(tokens))
        assert value == pytest.approx(sum(logprobs[place - 1, tokens[place]] for place in places), abs=1e-4)


@pytest.mark.parametrize("loss", ["sigmoid", "ipo"])
def test_the_loss_of_a_step_is_that_of_the_slow_version(tmp_path: Path, loss: str) -> None:
    ranking = preference("r", ["aab", "ab", "b"], ((0,), (1,), (2,)))
    smoothing = ["train.label_smoothing=0.1"] * (loss == "sigmoid")
    dpo = fresh(tmp_path, f"train.loss={loss}", *smoothing, preferences=[*PAIRS[:4], ranking])
    disturb(dpo)
    expected = []
    for group in dpo.data.train:
        completions = to_completions(group.sequences, group.completions)
        policy = np.array(completion_logprobs(dpo.actor, completions), dtype=np.float64)
        with dpo.actor.reference():
            ratios = policy - np.array(completion_logprobs(dpo.actor, completions))
        if loss == "ipo":
            ratios = ratios / group.completions
        leads = [ratios[pair.better] - ratios[pair.worse] for pair in group.pairs]
        if loss == "ipo":
            expected.append(np.mean([(lead - 5) ** 2 for lead in leads]))
        else:
            probabilities = [1 / (1 + math.exp(-0.1 * lead)) for lead in leads]
            expected.append(np.mean([-0.9 * math.log(p) - 0.1 * math.log(1 - p) for p in probabilities]))
    _, sums = dpo.learner.gradients(dpo.data.train)
    assert float(sums.pairs) == 7
    assert float(sums.loss) == pytest.approx(sum(expected), rel=1e-4)


def test_any_cut_into_micro_batches_gives_the_same_gradient_and_only_the_adapter_has_one(tmp_path: Path) -> None:
    dpo = fresh(tmp_path)
    disturb(dpo)
    whole, sums = dpo.learner.gradients(dpo.data.train)
    dpo.learner.config = dpo_config(tmp_path, "optim.micro_batch_tokens=1")
    parts, part_sums = dpo.learner.gradients(dpo.data.train)
    assert whole.keys() == _parameters(dpo).keys()
    for name in whole:
        assert float(mx.abs(whole[name]).max()) > 0
        np.testing.assert_allclose(np.array(parts[name]), np.array(whole[name]), atol=2e-5, err_msg=name)
    np.testing.assert_allclose([float(x) for x in part_sums], [float(x) for x in sums], rtol=1e-4, atol=1e-4)


# What is learnt


@pytest.mark.parametrize("loss", ["sigmoid", "ipo"])
def test_a_hidden_rule_is_learnt_and_the_policys_samples_show_it(tmp_path: Path, loss: str) -> None:
    settings = ["data.eval_fraction=0.2", "train.epochs=2", "eval.prompts=64", "eval.every=0", rewarded(tmp_path)]
    recorder = trained(tmp_path, f"train.loss={loss}", *settings, preferences=labelled(400))
    before, after = recorder.of(DPOEvaluation)
    assert (before.iteration, before.pairs, before.accuracy, before.lead, before.kl) == (0, 80, 0.5, 0, 0)
    assert after.accuracy >= 0.9
    assert after.accuracy > after.length_accuracy + 0.2
    assert after.loss < 0.9 * before.loss
    assert after.chosen_reward - after.rejected_reward == pytest.approx(after.lead, rel=1e-5)
    assert after.kl > 0.01
    reference, policy = recorder.of(Evaluation)
    assert (reference.prompts, reference.kl) == (64, pytest.approx(0, abs=1e-5))
    assert policy.score_mean > reference.score_mean + 0.2
    assert policy.kl > 0


def test_ties_and_skips_are_ignored_and_reported(tmp_path: Path) -> None:
    extra = [preference(f"t{i}", ["ab", "cd"], choice) for i, choice in enumerate(["tie", "skip", "both_bad", "tie"])]
    ranking = preference("r", ["aab", "ab", "b"], ((0, 1), (2,)))
    dpo = fresh(tmp_path, preferences=[*PAIRS[:5], *extra, ranking])
    assert sum(len(group.pairs) for group in dpo.data.train) == 7
    assert not any(pair.is_tie for group in dpo.data.train for pair in group.pairs)
    assert "3 ties ignored: DPO learns only from decided pairs" in dpo.data.warnings
    assert any(warning.startswith("2 judgements skipped or both bad") for warning in dpo.data.warnings)


def test_the_prompts_held_out_are_those_of_ppo_on_the_same_data_and_seed(tmp_path: Path) -> None:
    config = dpo_config(tmp_path, "data.eval_fraction=0.3", "run.seed=7", rewarded(tmp_path))
    model = load_tiny(tmp_path / "model")
    data = policy_comparisons(PAIRS, model, config)
    rows = [PromptRow(i, one.comparison.prompt, {}) for i, one in enumerate(PAIRS)]
    prompts = encode_prompts(rows, model.tokenizer, tiny_config(tmp_path).data).prompts
    _, held_out = split_prompts(prompts, 0.3, 7)
    assert [prompt.tokens for prompt in data.prompts] == [prompt.tokens for prompt in held_out]
    assert [prompt.prompt for prompt in data.prompts] == [prompt.prompt for prompt in held_out]


def test_rewards_get_the_columns_of_the_preference(tmp_path: Path) -> None:
    from dataclasses import replace

    given = [replace(p, comparison=replace(p.comparison, columns={"mark": i})) for i, p in enumerate(PAIRS)]
    config = dpo_config(tmp_path, rewarded(tmp_path), "eval.prompts=2")
    data = policy_comparisons(given, load_tiny(tmp_path / "model"), config)
    assert len(data.prompts) == 2
    assert all(f"say {prompt.columns['mark']}: " == prompt.prompt == prompt.text for prompt in data.prompts)


# A run and what it leaves


def test_a_single_step_requested_before_the_first_ends_after_it(tmp_path: Path) -> None:
    control, order = Control(), list[str]()

    def watch(event: Event) -> None:
        if isinstance(event, DPOEvaluation) and event.iteration == 0:
            control.step()
        elif isinstance(event, DPOStep):
            order.append("step")
        elif isinstance(event, StateChanged) and event.state == "paused":
            order.append("paused")
            control.stop("seen")

    trained(tmp_path, "run.name=a", watch=watch, control=control)
    assert order == ["step", "paused"]


def test_a_run_reports_what_it_does_and_saves_it(tmp_path: Path) -> None:
    recorder = trained(tmp_path, "run.name=a", "eval.every=2", rewarded(tmp_path))
    (started,) = recorder.of(RunStarted)
    assert (started.run_kind, started.iterations, started.prompts, started.eval_prompts) == ("dpo", 4, 32, 4)
    assert [step.iteration for step in recorder.of(DPOStep)] == [1, 2, 3, 4]
    assert [found.iteration for found in recorder.of(DPOEvaluation)] == [0, 2, 4]
    assert [found.iteration for found in recorder.of(Evaluation)] == [0, 2, 4]
    largest = min(step.memory_bytes for step in recorder.of(DPOStep))
    assert all(0 < found.memory_bytes < largest for found in recorder.of(DPOEvaluation)), "no gradient"
    assert [saved.iteration for saved in recorder.of(CheckpointSaved)] == [0, 1, 2, 3, 4]
    first = recorder.of(DPOStep)[0]
    assert (first.loss, first.lead, first.accuracy) == (pytest.approx(math.log(2), rel=1e-6), 0, 0.5)
    assert first.chosen_logprob < 0
    assert recorder.of(RunEnded)[0].state == "done"
    run = tmp_path / "runs" / "a"
    kept = [event for event in recorder.events if not event.transient]
    assert [comparable(event) for event in read_journal(run / "events.jsonl").events] == [
        comparable(event) for event in kept[kept.index(started) :]
    ]
    assert [path.name for path in checkpoints(RunFolder(run)).paths] == [f"step-00000{n}" for n in (2, 3, 4)]
    (summary,) = list_runs(tmp_path / "runs")
    assert (summary.kind, summary.state, summary.iteration, summary.iterations) == ("dpo", "done", 4, 4)
    assert summary.problem == ""


def test_a_reward_model_on_the_same_backbone_scores_the_samples_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # otherwise a busy machine measures two speeds
    monkeypatch.setattr("trainer.engine.training.measure_matmul", lambda: 1.7)
    dpo_config(tmp_path)
    config = reward_config(tmp_path, "run.name=rm", "train.batch_size=40")
    train(config, preferences=labelled(40))
    run = tmp_path / "runs/rm"
    sources = f"reward.sources=[{{kind = 'model', path = '{run}'}}]"
    scored = trained(tmp_path, "run.name=a", sources, "checkpoint.every=0")
    assert [found.iteration for found in scored.of(Evaluation)] == [0, 4]
    assert scored.of(RunStarted)[0].warnings == trained(tmp_path, "run.name=b").of(RunStarted)[0].warnings
    pinned = load_config_as(DPOConfig, tmp_path / "runs/a/config.toml").reward.sources[0]
    assert isinstance(pinned, ModelSource)
    assert Path(pinned.path).parent == run / "checkpoints", "a resumed run has the same reward"
    steps = [[comparable(event) for event in found] for found in map(_steps, (tmp_path / "runs").glob("[ab]"))]
    assert steps[0] == steps[1]


def _steps(run: Path) -> list[DPOStep]:
    return [event for event in read_journal(run / "events.jsonl").events if isinstance(event, DPOStep)]


def test_a_ppo_run_takes_the_adapter_as_its_sft_adapter(tmp_path: Path) -> None:
    (tmp_path / "ppo").mkdir()
    ppo = tiny_config(tmp_path / "ppo")
    trained(tmp_path, "run.name=a", f"model.path={ppo.model.path}", "optim.lr=0.05")
    newest = newest_checkpoint(RunFolder(tmp_path / "runs/a"))
    assert newest is not None
    recorder = Recorder()
    config = tiny_config(tmp_path / "ppo", f"model.adapter={newest / 'policy'}", "ppo.iterations=1")
    assert train(config, sinks=[recorder]).state == "done"
    assert recorder.of(Iteration)[0].kl == pytest.approx(0, abs=1e-4), "its reference has the adapter too"


VARIANTS = {
    "plain": [],
    "decay, schedule and micro-batches": [
        *("optim.weight_decay=0.1", "optim.micro_batch_tokens=40", "optim.schedule=linear", "eval.every=1"),
        "train.loss=ipo",
    ],
    "two epochs, nothing held out": ["data.eval_fraction=0", "train.epochs=2"],
}


@pytest.mark.parametrize("settings", VARIANTS.values(), ids=VARIANTS.keys())
def test_a_run_killed_anywhere_and_resumed_equals_an_uninterrupted_one_to_the_bit(
    settings: list[str], tmp_path: Path
) -> None:
    settings = [*settings, rewarded(tmp_path)]
    trained(tmp_path, "run.name=whole", *settings)
    for phase, number in (("evaluate", 0), ("update", 1), ("update", 3), ("evaluate", 4)):
        if phase == "evaluate" and "data.eval_fraction=0" in settings:
            continue
        run = tmp_path / "runs" / f"{phase}-{number}"
        with pytest.raises(Killed):
            trained(tmp_path, f"run.name={run.name}", *settings, watch=killed_at(phase, number))
        resumed = trained(tmp_path, resume=run)
        assert [started.resumed_at for started in resumed.of(RunStarted)] == [number - 1]
        assert outcome(run) == outcome(tmp_path / "runs" / "whole"), (phase, number)


def test_pairs_sha256_is_read_as_bytes_and_only_as_a_file(tmp_path: Path) -> None:
    trained(tmp_path, "run.name=a")
    run = RunFolder(tmp_path / "runs/a")
    run.pairs.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="have changed since this run began"):
        trained(tmp_path, resume=run.root)
    run.pairs.unlink()
    os.mkfifo(run.pairs)
    with pytest.raises(StorageError, match=rf"cannot read '{run.pairs}': it is not a regular file; start a new run"):
        trained(tmp_path, resume=run.root)


@pytest.mark.parametrize(
    ("settings", "preferences", "error", "reported"),
    [
        (["run.name=a"], [], DataError, "has no preferences"),
        ([], [preference("t", ["ab", "cd"], "tie")], DataError, "no preference to learn from"),
        (["data.max_tokens=1000"], [preference("p" * 300, ["a", "b"])], DataError, "the model's context is 256"),
        (["rollout.max_new_tokens=250", "reward.sources=['lexicon']"], PAIRS, DataError, "rollout.max_new_tokens"),
    ],
)
def test_a_start_that_fails_leaves_no_run_behind(
    settings: list[str], preferences: list[Preference], error: type[Exception], reported: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=reported):
        trained(tmp_path, *settings, preferences=preferences)
    assert not (tmp_path / "runs").exists()


def test_label_smoothing_belongs_to_the_sigmoid_loss(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"train\.label_smoothing = 0\.1: needs train\.loss = 'sigmoid': use 0"):
        dpo_config(tmp_path, "train.loss=ipo", "train.label_smoothing=0.1")
