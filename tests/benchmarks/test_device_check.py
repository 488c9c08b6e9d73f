"""Device check of benchmarks: all parts pass on a GPU, if there is one; failures and crashes are reported."""

from __future__ import annotations

import math
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from trainer.arrays import leaves

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SMALL = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}


@pytest.fixture(autouse=True)
def _benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


@pytest.fixture
def correctness(monkeypatch: pytest.MonkeyPatch) -> Any:
    import device_correctness

    # The estimate leaves out small arrays, which weigh more in a small model.
    monkeypatch.setattr(device_correctness, "ESTIMATE", 2)
    return device_correctness


@pytest.fixture
def device_check() -> Any:
    import device_check

    return device_check


@pytest.fixture
def device_speed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the measurement of speed, with batches small enough for a CPU."""
    import device_speed

    monkeypatch.setattr(device_speed, "BATCHES", (1, 2, 3, 4))
    monkeypatch.setattr(device_speed, "PROMPT_TOKENS", 16)
    monkeypatch.setattr(device_speed, "NEW_TOKENS", 6)
    return device_speed


@pytest.mark.gpu
@pytest.mark.skipif(mx.default_device() != mx.Device(mx.gpu), reason="needs Metal or CUDA")
@pytest.mark.parametrize("part", ["sampling", "gradients", "families", "memory"])
def test_the_device_passes_every_check(part: str, device_check: Any) -> None:
    jobs = [
        job for job in device_check.jobs(device_check.SHAPES, ["bfloat16", "4-bit"], 151_936, None) if job.part == part
    ]
    checks = [check for job in jobs for check in job.function(*job.arguments)]
    assert checks
    assert [check for check in checks if not check.holds] == []


# Correctness


def test_gradients_are_compared_array_by_array_and_one_that_is_missing_fails(
    correctness: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = list(correctness.family_gradient_checks("qwen3_5"))
    assert [check.holds for check in checks] == [True, True, True]
    gradient, calls = correctness.gradient, []

    def damaged(*arguments: Any, **options: Any) -> Any:
        logprobs, gradients = gradient(*arguments, **options)
        calls.append("policy")
        name = next(name for name in gradients["policy"] if "in_proj_qkv.lora_b" in name)
        gradients["policy"][name] = gradients["policy"][name] * (0 if len(calls) == 2 else 1)
        return logprobs, gradients

    monkeypatch.setattr(correctness, "gradient", damaged)
    checks = list(correctness.family_gradient_checks("qwen3_5"))
    assert [check.holds for check in checks] == [True, False, True]
    assert "worst: 0.linear_attn.in_proj_qkv.lora_b" in checks[1].name
    assert checks[1].value == pytest.approx(1)


def test_an_array_without_a_gradient_anywhere_fails(correctness: Any) -> None:
    one = correctness.np.ones(3), {"policy": {"a": correctness.np.ones(2), "b": correctness.np.zeros(2)}}
    logprobs, policy = correctness.compared("x", one, one, 1.0)
    assert (logprobs.holds, policy.holds) == (True, False)
    assert policy.name.endswith("worst: b")


def test_the_tiny_qwen3_5_is_one_that_the_kernel_of_metal_supports() -> None:
    from families import tiny_config

    assert tiny_config("qwen3_5")["text_config"]["linear_key_head_dim"] % 32 == 0  # as gated_delta_update requires


def test_a_family_whose_training_fails_fails_its_check(correctness: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    report = {"outcome": "failed", "error": "not finite: grad_norm", "gap_mean": 0.001}
    monkeypatch.setattr(correctness, "check_family", lambda *_: report)
    (check,) = correctness.family_checks("llama", "bfloat16")
    assert not check.holds
    assert math.isnan(check.value)
    assert "not finite: grad_norm" in check.name


def test_a_layer_whose_adapter_does_not_change_is_named() -> None:
    from families import update_problem

    before = {f"{layer}.lora_{leaf}": mx.zeros(2) for layer in ("q", "v") for leaf in "ab"}
    assert update_problem([], before, before | {"q.lora_b": mx.ones(2), "v.lora_b": mx.ones(2)}) == ""
    assert update_problem([], before, before | {"q.lora_b": mx.ones(2), "v.lora_a": mx.ones(2)}) == (
        "the updates did not change the adapter of v"
    )


# Memory


def test_one_iteration_of_a_small_model_stays_within_the_estimate_and_returns_its_memory(correctness: Any) -> None:
    checks = list(correctness.memory_checks(correctness.TRY, "float32", 2048))
    assert [check for check in checks if not check.holds] == []
    assert checks[0].value > 0.5


def test_memory_that_is_not_returned_and_an_update_over_its_estimate_fail(
    correctness: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[Any] = []

    def leaking(*arguments: Any, **options: Any) -> Any:
        kept.append(mx.ones((8192, 8192)))
        mx.eval(kept)
        return filled_batch(*arguments, **options)

    filled_batch = correctness.filled_batch
    monkeypatch.setattr(correctness, "filled_batch", leaking)
    checks = correctness.memory_checks(correctness.TRY, "float32", 2048)
    assert [check.holds for check in checks] == [False, False]


def test_weights_in_4_bits_are_packed_one_matrix_at_a_time() -> None:
    from device_models import new_actor, weights_bytes

    shape = SMALL | {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 8}
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    actor = new_actor(shape, "4-bit", vocabulary=512)
    packed = weights_bytes(shape, "4-bit", 512)
    assert sum(leaf.nbytes for leaf in leaves(actor.backbone.parameters())) == pytest.approx(packed, rel=0.15)
    assert mx.get_peak_memory() - before < weights_bytes(shape, "bfloat16", 512)


# Speed


def test_a_shape_that_is_measured_is_checked_to_score_as_it_samples_and_to_take_its_steps(
    device_speed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured() -> tuple[list[Any], list[Any]]:
        found = list(device_speed.speed("try", SMALL, "float32", 512, device_speed.Limits(1e12, 1e11)))
        return found, [check for check in found if isinstance(check, device_speed.Check)]

    def shifted(*arguments: Any, **options: Any) -> Any:
        batch = add(*arguments, **options)
        return batch._replace(logprobs=batch.logprobs - 50)

    found, checks = measured()
    assert [(check.name, check.holds) for check in checks] == [
        ("try, float32: sampler - scoring, nats", True),
        ("try, float32: ratio before the first step, from 1", True),
        ("try, float32: steps not taken", True),
    ]
    assert "| nan" not in device_speed.speed_line(found[-3])
    add = device_speed.steps.add_policy_logprobs_and_values
    monkeypatch.setattr(device_speed.steps, "add_policy_logprobs_and_values", shifted)
    _, checks = measured()
    assert [check.holds for check in checks] == [False, False, False]
    assert checks[2].name.endswith("steps not taken ratio_spike ratio_spike")


def test_a_step_reads_the_table_of_embeddings_only_as_its_head(device_speed: Any) -> None:
    from device_models import new_actor

    caches = 4 * (16 + 6 / 2) * 2 * 2 * 2 * 128 * 2
    tied = new_actor(SMALL, "float32", vocabulary=512).backbone
    assert device_speed.step_bytes(tied, SMALL, 10**6) == 10**6 + caches
    tied.args.tie_word_embeddings = False
    assert device_speed.step_bytes(tied, SMALL, 10**6) == 10**6 + caches - 512 * 64 * 4


def test_the_share_of_the_bandwidth_is_that_of_the_steps_after_the_prefill(
    device_speed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from device_models import new_actor

    def generated(*_: Any, progress: Any = print, **__: Any) -> str:
        clock[0] += 1000  # of prefill
        for step in range(7):
            progress(step, 7)
            clock[0] += 1
        return "responses"

    clock = [0.0]
    monkeypatch.setattr(device_speed.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(device_speed, "generate_responses", generated)
    monkeypatch.setattr(device_speed, "lay_out", lambda *found: found[1])
    monkeypatch.setattr(device_speed, "theirs", lambda *_: None)
    actor, limits = new_actor(SMALL, "float32", vocabulary=512), device_speed.Limits(1e12, 1e6)
    batch, row = device_speed.measured_generation(actor, SMALL, 512, 10**6, limits)
    assert batch == "responses"
    assert row["generate_of_bandwidth"] == device_speed.step_bytes(actor.backbone, SMALL, 10**6) / 1e6
    assert row["generate"][4] == 4 * 6 / 1007


@pytest.mark.parametrize(("kind", "fits"), [("bfloat16", False), ("4-bit", True)])
def test_weights_over_the_memory_of_the_device_are_not_even_made(
    kind: str, fits: bool, device_check: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import device_speed

    def new_actor(*_: Any, **__: Any) -> Any:
        raise InterruptedError

    monkeypatch.setattr(device_speed, "device_memory", lambda: 11_000_000_000)
    monkeypatch.setattr(device_speed, "new_actor", new_actor)
    reason = None if fits else r"at least 16\.4 GB of 11\.0 GB"
    with pytest.raises(InterruptedError if fits else RuntimeError, match=reason):
        next(device_speed.speed("8B", device_check.SHAPES["8B"], kind, 151_936, device_speed.Limits(1e12, 1e11)))


def test_an_update_that_would_not_fit_is_not_begun_and_leaves_what_was_measured(
    device_speed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_speed, "estimated_bytes", lambda *_, **__: 10**15)
    rows = []
    with pytest.raises(RuntimeError, match=r"an update takes about 1000000\.0 GB of"):
        rows.extend(device_speed.speed("try", SMALL, "float32", 512, device_speed.Limits(1e12, 1e11)))
    assert {"generate", "score"} <= rows[-2].keys()
    line = device_speed.speed_line(rows[-2] | {"error": "a | b"})
    assert line.count("|") == len(device_speed.SPEED_COLUMNS) + 1
    assert line.endswith("; not measured: a / b |")


# The whole


class InThisProcess:
    """Stand-in for the worker: results of a function by its name, or the error that it ends with."""

    def __init__(self, found: dict[str, Any]) -> None:
        self.found = found

    def results(self, function: Any, *arguments: Any, seconds: float) -> Iterator[Any]:
        from workers import WorkerError

        assert seconds <= 480 / 3
        for result in self.found[function.__name__](*arguments):
            if isinstance(result, str):
                raise WorkerError(result)
            yield result


def outcome(device_check: Any, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Any:
    monkeypatch.setattr(sys, "argv", ["device_check.py", *arguments])
    with pytest.raises(SystemExit) as end:
        device_check.main()
    return end.value.code


def test_what_crashes_is_a_failed_check_or_a_row_and_the_rest_is_measured(
    device_check: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from device_speed import Limits

    def speed(size: str, _: Any, kind: str, *__: Any) -> Iterator[Any]:
        yield {"size": size, "weights": kind, "score": 5.0}
        if size == "8B":
            yield "[malloc] Unable to allocate 16000000000 bytes."

    found = {
        "device_and_limits": lambda: [{"device_name": "x"}, Limits(1e12, 1e11)],
        "gradient_checks": lambda: [device_check.Check("fine", 0, 1), "process killed by SIGABRT"],
        "family_gradient_checks": lambda family: [device_check.Check(family, 0, 1)],
        "speed": speed,
    }
    monkeypatch.setattr(device_check, "Worker", lambda: InThisProcess(found))
    only = ("--only", "gradients", "speed", "--sizes", "8B", "0.6B")
    assert outcome(device_check, monkeypatch, *only) == 1
    printed = capsys.readouterr().out.splitlines()
    (failed,) = [line for line in printed if line.endswith("FAILED")]
    assert failed.split()[:5] == ["qwen3:", "process", "killed", "by", "SIGABRT"]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in printed if line.startswith("| ")][1:]
    assert [row[:2] for row in rows] == [["0.6B", "bfloat16"], ["8B", "bfloat16"], ["0.6B", "4-bit"], ["8B", "4-bit"]]
    reason = "not measured: [malloc] Unable to allocate 16000000000 bytes."
    assert [row[-1] for row in rows] == ["", reason, "", reason]
    assert {row[device_check.SPEED_COLUMNS.index("scoring")] for row in rows} == {"5"}
    assert {len(row) for row in rows} == {len(device_check.SPEED_COLUMNS)}
    assert printed[-1].startswith("1 checks failed")


def test_when_the_time_is_over_the_rest_fails_and_the_table_is_printed(
    device_check: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--seconds", "0", "--sizes", "0.6B", "--types", "bfloat16")
    assert outcome(device_check, monkeypatch, *arguments) == 1
    printed = capsys.readouterr().out
    assert "memory: the 0 s of --seconds are over" in printed
    assert "| 0.6B | bfloat16 |" in printed
    assert "not measured: the 0 s of --seconds are over |" in printed


# The worker, which runs functions in another process


@pytest.fixture
def worker() -> Iterator[Any]:
    import workers

    worker = workers.Worker()
    yield worker
    worker.close()


def test_failures_are_reported_and_the_next_function_runs(worker: Any) -> None:
    def failure(function: Any, *arguments: Any, seconds: float = 60) -> str:
        with pytest.raises(sys.modules["workers"].WorkerError) as caught:
            list(worker.results(function, *arguments, seconds=seconds))
        return str(caught.value)

    assert list(worker.results(range, 3, seconds=60)) == [0, 1, 2]
    assert failure(os.listdir, "/no such folder").startswith("FileNotFoundError: ")
    assert failure(os._exit, 7) == "process exited with code 7"
    assert failure(signal.raise_signal, signal.SIGKILL) == "process killed by SIGKILL"
    assert failure(signal.pause, seconds=0.3) == "no result in 0.3 s"
    assert failure(range, 3, seconds=0) == "no time is left"
    assert list(worker.results(range, 2, seconds=60)) == [0, 1]
