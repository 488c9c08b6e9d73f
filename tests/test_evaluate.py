"""Evaluation measures the policy on held-out prompts and leaves no trace in the run."""

from __future__ import annotations

import json
import math
import string
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten
from runs_helper import comparable, outcome, record, tiny_config, workspace

from trainer.data import Prompt, encode_prompts, load_prompts, split_prompts
from trainer.evaluate import evaluate
from trainer.events import Evaluation, Iteration, PhaseProgress, RunStarted, SamplesWritten
from trainer.models.actor_critic import ActorCriticLLM
from trainer.models.loading import load_backbone
from trainer.ppo import PPO
from trainer.rewards import build_rewards


def make_ppo(folder: Path, *overrides: str) -> tuple[PPO, list[Prompt]]:
    """An algorithm that has done one iteration, and its held-out prompts."""
    config = tiny_config(folder, *overrides)
    model = load_backbone(config.model)
    encoded = encode_prompts(load_prompts(config.data), model.tokenizer, config.data)
    prompts, held_out = split_prompts(encoded.prompts, config.data.eval_fraction, config.run.seed)
    actor = ActorCriticLLM(model.backbone, config.model, key=mx.random.key(0))
    ppo = PPO(config, actor, model.tokenizer, prompts, build_rewards(config.reward))
    ppo.iteration(1)
    return ppo, held_out


def test_every_evaluation_of_a_policy_draws_the_same(tmp_path: Path) -> None:
    ppo, held_out = make_ppo(tmp_path)
    first, second = evaluate(ppo, held_out, 1), evaluate(ppo, held_out, 7)
    assert comparable(first) == comparable(second) | {"iteration": 1}
    assert first.prompts == len(held_out) == 3
    assert math.isfinite(first.kl)


def test_an_evaluation_follows_the_policy(tmp_path: Path) -> None:
    ppo, held_out = make_ppo(tmp_path, "optim.policy_lr=0.02")
    before = evaluate(ppo, held_out, 1)
    ppo.iteration(2)
    assert evaluate(ppo, held_out, 2).kl != before.kl


@pytest.mark.parametrize("value_model", ["head", "adapter"])
def test_an_evaluation_learns_nothing_and_moves_no_statistics(value_model: str, tmp_path: Path) -> None:
    ppo, held_out = make_ppo(tmp_path, "reward.normalize=running", f"model.value_model={value_model}")

    def state() -> list[tuple[str, bytes]]:
        arrays = {
            "policy": ppo.actor.policy_parameters(),
            "value": ppo.actor.value_parameters(),
            "optimizer": ppo.learner.state(),
            "backbone": ppo.actor.backbone.parameters(),
        }
        return [(name, np.array(array).tobytes()) for name, array in tree_flatten(arrays)]

    before, statistics = state(), ppo.rewards.state()
    assert statistics["count"] == 4
    evaluate(ppo, held_out, 1)
    assert state() == before
    assert (ppo.rewards.state(), ppo.learner.steps) == (statistics, 2)


def test_a_run_is_the_same_with_and_without_evaluations(tmp_path: Path) -> None:
    with_them = record(tiny_config(tmp_path, "run.name=with", "eval.every=1"))
    without = record(tiny_config(tmp_path, "run.name=without", "eval.every=0"))
    assert [evaluation.iteration for evaluation in with_them.of(Evaluation)] == [0, 1, 2, 3]
    assert without.of(Evaluation) == []
    numbers = [[comparable(event) for event in recorder.of(Iteration)] for recorder in (with_them, without)]
    assert numbers[0] == numbers[1]
    checkpoints = [outcome(tmp_path / "runs" / name)["checkpoint"] for name in ("with", "without")]
    assert checkpoints[0] == checkpoints[1]


EARLY = json.dumps([*string.ascii_letters, *string.digits])  # nearly every response has one of these


WRITTEN_DOWN = """
import json

def score(prompts, completion_ids, **_):
    with open({path!r}, "a") as file:
        file.write(json.dumps([prompts, [len(ids) for ids in completion_ids]]) + "\\n")
    return [float(len(ids)) for ids in completion_ids]
"""


def test_held_out_prompts_are_evaluated_and_never_trained_on(tmp_path: Path) -> None:
    workspace(tmp_path)
    (tmp_path / "rewards.py").write_text(WRITTEN_DOWN.format(path=str(tmp_path / "calls")))
    sizes = ["ppo.iterations=4", "eval.every=1", "eval.prompts=2"]
    recorder = record(tiny_config(tmp_path, *sizes, f"rollout.stop={EARLY}"))
    calls = [json.loads(line) for line in (tmp_path / "calls").read_text().splitlines()]
    trained = {prompt for prompts, _ in calls[1::2] for prompt in prompts}
    (evaluated,) = {tuple(prompts) for prompts, _ in calls[::2]}
    assert len(trained) == 6
    assert len(evaluated) == 2
    assert trained.isdisjoint(evaluated)
    (started,) = recorder.of(RunStarted)
    assert (started.prompts, started.eval_prompts) == (6, 2)
    for evaluation, (_, lengths) in zip(recorder.of(Evaluation), calls[::2], strict=True):
        assert evaluation.response_length == evaluation.score_mean == np.mean(lengths)
        assert evaluation.score_std == pytest.approx(np.std(lengths))


def test_without_held_out_prompts_there_is_no_evaluation(tmp_path: Path) -> None:
    assert record(tiny_config(tmp_path, "data.eval_fraction=0", "eval.every=1")).of(Evaluation) == []


@pytest.mark.parametrize("stop", ["[]", EARLY], ids=["responses that are cut", "responses that end early"])
def test_the_progress_of_an_evaluation_only_grows_and_ends_full(stop: str, tmp_path: Path) -> None:
    recorder = record(tiny_config(tmp_path, "ppo.iterations=2", f"rollout.stop={stop}"))
    steps = [event for event in recorder.of(PhaseProgress) if event.phase == "evaluate"]
    for number in (0, 2):
        shares = [event.done / event.total for event in steps if event.iteration == number]
        assert shares == sorted(shares)
        assert (shares[0], shares[-1]) == (0, 1)


def test_a_run_is_evaluated_before_its_first_iteration_and_after_its_last(tmp_path: Path) -> None:
    recorder = record(tiny_config(tmp_path, "ppo.iterations=3", "eval.every=2"))
    order = [event.iteration for event in recorder.events if isinstance(event, Iteration | Evaluation)]
    assert order == [0, 1, 2, 2, 3, 3]
    assert recorder.of(Evaluation)[0].kl == 0


def test_the_mean_of_each_reward_source_is_told_also_of_one_that_does_not_count(tmp_path: Path) -> None:
    sources = (
        'reward.sources=[{kind = "length", target = 4}, {kind = "regex", pattern = "a", count = true, weight = 0.0}]'
    )
    recorder = record(tiny_config(tmp_path, "ppo.iterations=1", "eval.every=1", sources))
    (iteration,) = recorder.of(Iteration)
    previews = recorder.of(SamplesWritten)[0].previews
    assert iteration.parts["regex"] == np.mean([preview.completion.count("a") for preview in previews])
    for told in (iteration, *recorder.of(Evaluation)):
        assert told.parts.keys() == {"length", "regex"}
        assert told.parts["length"] == pytest.approx(told.score_mean, abs=1e-6)
