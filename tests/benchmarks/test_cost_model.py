"""Cost model of runs on several machines: its arithmetic, its exchanges against those of PPO, and bad options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from tiny import load_tiny, make_prompts

from trainer.config.loading import parse_overrides
from trainer.config.problems import validate
from trainer.distributed.ranks import Ranks
from trainer.memory.shape import shape_of
from trainer.models.actor_critic import ActorCriticLLM
from trainer.ppo.loop import PPO
from trainer.rewards import build_rewards

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
MACHINES, SEQUENCES, NEW, RANK = 2, 8, 6, 4


@pytest.fixture
def cost(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import cost_model

    return cost_model


def task(cost: Any, model: str = "8B", *overrides: str, prompt: int = 100, new: int = 50) -> Any:
    settings = ["rollout.batch_size=64", "rollout.slots=64", f"rollout.max_new_tokens={new}", *overrides]
    return cost.Task(cost.MODELS[model], validate(parse_overrides(settings)), prompt, new)


class Alike(Ranks):
    """The first of two ranks, of which the other does the same: no process is started."""

    def __init__(self) -> None:
        self.noted: list[tuple[str, int]] = []
        super().__init__()
        self._place = (0, MACHINES)
        self.rank, self.size = self._place
        self.hosts = ["first", "second"]

    def _exchange(self, operation: Any, array: mx.array) -> mx.array:
        mx.eval(array)
        self.noted.append((operation.__name__, array.nbytes))
        return mx.concatenate([array, array]) if operation is mx.distributed.all_gather else array


PPO_RUNS = {
    "a critic on the policy's pass": [],
    "no alternatives, two minibatches, three epochs": ["run.alternatives=0", "ppo.minibatches=2", "ppo.epochs=3"],
    "a critic apart, final ratios": ["model.value_model=adapter", "run.final_ratios=true"],
    "no critic": ["ppo.estimator=rloo", "rollout.samples_per_prompt=4"],
    "scored by the first step": [
        "ppo.estimator=grpo",
        "rollout.samples_per_prompt=4",
        "ppo.kl_in=loss",
        "ppo.kl_estimator=k3",
    ],
}


@pytest.mark.parametrize("overrides", PPO_RUNS.values(), ids=PPO_RUNS)
def test_exchanges_are_those_of_an_iteration_byte_for_byte(cost: Any, tmp_path: Path, overrides: list[str]) -> None:
    model = load_tiny(tmp_path / "model")
    settings = [
        f"model.lora_rank={RANK}",
        f"rollout.batch_size={SEQUENCES}",
        f"rollout.max_new_tokens={NEW}",
        "rollout.ignore_stop=true",
        "reward.sources=[{kind='regex', pattern='[ -~]', count=true}]",
        *overrides,
    ]
    config = validate(parse_overrides(settings))
    shape, _ = shape_of(str(tmp_path / "model"))
    prompts = make_prompts(model.tokenizer, ["once upon", "a time", "there was", "a king"] * 2)
    ranks = Alike()
    rewards = build_rewards(config.reward, ranks=ranks)
    actor = ActorCriticLLM(model.backbone, config.model, key=mx.random.key(0))
    PPO(config, actor, model.tokenizer, prompts, rewards, ranks=ranks).iteration(1)
    expected = cost.exchanges(cost.Task(shape, config, 9, NEW), MACHINES)
    assert [name for name, _ in ranks.noted] == [one.operation for one in expected]
    responses, summary = 5, len(expected) - 1  # their lengths depend on what was written
    found = [size for _, size in ranks.noted]
    assert found[responses] == pytest.approx(expected[responses].size, rel=0.2)
    assert [size for place, size in enumerate(found) if place not in (responses, summary)] == [
        one.size for place, one in enumerate(expected) if place not in (responses, summary)
    ]


@pytest.mark.parametrize("machines", [2, 3, 64])
def test_a_ring_sums_and_gathers_in_the_known_times(cost: Any, machines: int) -> None:
    link = cost.Link(bandwidth=1e9, share=0.5, latency=1e-3)
    size = 3 * 64 * 10**6
    summed = cost.exchange_seconds(cost.Exchange("gradient", "all_sum", size), link, machines)
    gathered = cost.exchange_seconds(cost.Exchange("other", "all_gather", size), link, machines)
    hops = machines - 1
    assert summed == pytest.approx(2 * hops / machines * size / 0.5e9 + 2 * hops * 1e-3)
    assert gathered == pytest.approx(hops * size / 0.5e9 + hops * 1e-3)


def test_operations_of_a_token_are_two_a_parameter_forward_and_four_with_the_gradient(cost: Any) -> None:
    from operations import counted

    one = task(cost, "32B", "model.lora_rank=1", "ppo.epochs=1", prompt=1, new=1)
    shape, head = one.shape, one.shape.vocabulary * one.shape.hidden
    blocks = shape.parameters - 2 * head
    work = counted(shape, one.config, [1], [1])
    assert work.prefill == pytest.approx(2 * blocks, rel=1e-3)
    assert work.decode == pytest.approx(2 * (blocks + head), rel=1e-3)
    assert work.score == pytest.approx(2 * 2 * (2 * blocks + head), rel=1e-3)  # policy and reference
    assert work.update == pytest.approx(4 * (2 * blocks + head), rel=1e-3)
    checkpointed = counted(shape, task(cost, "32B", "optim.grad_checkpoint=true", "ppo.epochs=1").config, [1], [1])
    assert checkpointed.update == pytest.approx(6 * 2 * blocks + 4 * head, rel=1e-3)
    grpo = ["ppo.estimator=grpo", "rollout.samples_per_prompt=4", "ppo.kl_in=loss", "ppo.kl_estimator=k3"]
    at_once = counted(shape, task(cost, "32B", *grpo, "ppo.epochs=1").config, [1], [1])
    assert at_once.score == 0
    assert at_once.update == pytest.approx((4 + 2) * (2 * blocks + head), rel=1e-3)  # and the reference's pass


def test_decoding_few_rows_takes_as_long_as_reading_the_weights(cost: Any) -> None:
    one = task(cost)
    device = cost.DEVICES["H100"]._replace(bandwidth=1e12, decodes=0.5, launch=0.0, products=1e30)
    read = 2 * (one.shape.parameters - one.shape.vocabulary * one.shape.hidden)  # not the table of the inputs
    work = cost.counted(one.shape, one.config, [100], [50])
    assert cost.decoding_seconds(one, device, 1, work) == pytest.approx(50 * read / 0.5e12, rel=0.01)
    slots = task(cost, "8B", "rollout.slots=2")
    assert cost.decoding_seconds(slots, device, 5, work) == pytest.approx(3 * 50 * read / 0.5e12, rel=0.01)


def test_machines_share_everything_but_the_weights_that_decoding_reads(cost: Any) -> None:
    one, device, link = task(cost), cost.DEVICES["M3 Ultra"], cost.LINKS["10 Gb/s"]
    alone, four = cost.iteration(one, device), cost.iteration(one, device, 4, link)
    assert (alone.gradient, alone.other) == (0.0, 0.0)
    assert four.scoring == pytest.approx(alone.scoring / 4)
    assert four.update == pytest.approx(alone.update / 4)
    assert alone.rollout / 4 < four.rollout < alone.rollout
    assert cost.efficiency(alone, four, 4) == pytest.approx(alone.total / 4 / sum(four))


def test_a_model_is_tried_in_the_ways_that_a_device_has(cost: Any) -> None:
    def build(*overrides: str) -> Any:
        return task(cost, "70B", *overrides)

    h100, mac = cost.DEVICES["H100"], cost.DEVICES["M4 Max"]
    assert cost.fitting(build, h100) is None  # no 4 bits on CUDA
    name, found = cost.fitting(build, mac)
    assert name.startswith("4 bits")
    assert found.config.model.quantize == "4-bit"
    assert cost.peak(found) <= mac.memory < cost.peak(build(), least=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "ppo.epochs=0"], "ppo.epochs"),
        (["--set", "rollout.batch_size=32", "--machines", "64"], "32 sequences"),
        (["--machines", "0"], "at least 1"),
        (["--prompt", "-1"], "at least 1"),
    ],
)
def test_bad_options_are_errors_that_name_them(
    cost: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    monkeypatch.setattr("sys.argv", ["cost_model.py", *arguments])
    with pytest.raises(SystemExit) as ended:
        cost.main()
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_parameters_are_those_that_the_models_are_named_for(cost: Any) -> None:
    billions = {name: shape.parameters / 1e9 for name, shape in cost.MODELS.items()}
    assert billions == pytest.approx({"0.6B": 0.596, "1.7B": 1.72, "8B": 8.19, "32B": 32.76, "70B": 70.55}, rel=2e-3)
