"""What one iteration passes on to the next step, and to the next iteration."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from runs_helper import record, tiny_config

from trainer.events import Iteration
from trainer.runs.folder import RunFolder
from trainer.runs.samples import read_samples


def test_the_greedy_response_is_normalised_as_the_samples_are_from_the_first_iteration_on(tmp_path: Path) -> None:
    """Each sample is the greedy response here, so it is as good as its baseline."""
    settings = ['ppo.estimator="remax"', 'reward.normalize="running"', "rollout.top_k=1", "ppo.kl_coef=0"]
    record(tiny_config(tmp_path, "run.name=a", "ppo.iterations=2", *settings))
    for number in (1, 2):
        rows = read_samples(RunFolder(tmp_path / "runs" / "a").samples_file(number)).to_pylist()
        assert len({row["score"] for row in rows}) > 1
        for row in rows:
            assert row["advantages"] == pytest.approx([0.0] * len(row["tokens"]), abs=1e-6)


def test_the_adaptive_coefficient_waits_for_the_policy_to_learn(tmp_path: Path) -> None:
    """Until then, the KL is 0 whatever the coefficient is."""
    settings = ["ppo.kl_controller=adaptive", "ppo.kl_coef=0.1", "ppo.critic_warmup=2", "ppo.iterations=4"]
    iterations = record(tiny_config(tmp_path, *settings)).of(Iteration)
    assert [each.kl_coef for each in iterations[:3]] == [0.1, 0.1, 0.1]
    assert iterations[3].kl_coef < 0.1


def test_one_batch_of_huge_rewards_does_not_blur_later_values(tmp_path: Path) -> None:
    tiny_config(tmp_path)
    plain = (tmp_path / "rewards.py").read_text()
    once = "calls = []\n\ndef huge_once(completion_ids, **_):\n    calls.append(1)\n"
    once += "    return [1e6 * (len(calls) == 3) * (ids[0] % 2 or -1) + sum(ids) % 7 / 7 for ids in completion_ids]\n"
    (tmp_path / "rewards.py").write_text(plain + once)
    source = f"reward.sources=['{tmp_path}/rewards.py:huge_once']"
    iterations = record(tiny_config(tmp_path, source, "eval.every=0", "ppo.iterations=6")).of(Iteration)
    assert iterations[2].score_max > 1e5
    assert abs(iterations[5].value_mean) < 10


@pytest.mark.parametrize(
    "settings",
    [
        ("model.value_model=head",),
        ("model.value_model=head", "ppo.relative_value_clip=0", "ppo.kl_in=loss", "ppo.kl_estimator=full"),
        ("model.value_model=head", "ppo.prefix_scores=2", "ppo.lam=0.7"),
        ("model.value_model=adapter",),
    ],
)
def test_the_scale_of_the_rewards_matters_to_neither_policy_nor_critic(
    settings: tuple[str, ...], tmp_path: Path
) -> None:
    """Rewards times c, and a KL coefficient in the rewards times c, give the same policy, and values times c."""
    tiny_config(tmp_path)
    policies, moments, values, grad_norms = [], [], [], []
    for scale in (1.0, 0.01, 10.0, 100.0, 1000.0):
        source = f"reward.sources=[{{kind='python', path='{tmp_path}/rewards.py:score', weight={scale}}}]"
        kl = f"ppo.kl_coef={0.05 if 'ppo.kl_in=loss' in settings else 0.05 * scale}"
        critic = ("ppo.value_coef=1.0", "optim.value_lr=0.03")  # that pulls hard on a shared trunk
        recorder = record(tiny_config(tmp_path, f"run.name=times-{scale}", source, kl, *critic, *settings))
        checkpoint = tmp_path / f"runs/times-{scale}/checkpoints/step-000003"
        policies.append(mx.load(str(checkpoint / "policy/adapters.safetensors")))
        moments.append(mx.load(str(checkpoint / "optimizer/optimizer.safetensors")))
        values.append([event.value_mean / scale for event in recorder.of(Iteration)])
        grad_norms.append([event.grad_norm for event in recorder.of(Iteration)])
    assert abs(values[0][1]) > 0.01  # the critic has learned something
    for found in (values, grad_norms):
        for other in found[1:]:
            assert other == pytest.approx(found[0], rel=1e-3)
    for arrays in (policies, moments):
        for other in arrays[1:]:
            for name, array in arrays[0].items():
                np.testing.assert_allclose(
                    np.array(other[name]), np.array(array), atol=1e-3 * max(1e-9, float(mx.abs(array).max()))
                )
