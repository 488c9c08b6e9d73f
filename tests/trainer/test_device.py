"""Device check of benchmarks/device_check.py: all parts pass on a GPU, if there is one, and failures are reported."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def device_check(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import device_check

    return device_check


@pytest.mark.gpu
@pytest.mark.skipif(mx.default_device() != mx.Device(mx.gpu), reason="needs Metal or CUDA")
@pytest.mark.parametrize("part", ["sampling_checks", "gradient_checks", "family_checks", "memory_checks"])
def test_the_device_passes_every_check(part: str, device_check: Any) -> None:
    assert [check for check in getattr(device_check, part)() if not check.holds] == []


def test_one_iteration_of_a_small_model_stays_within_the_memory_and_returns_it(device_check: Any) -> None:
    checks = list(device_check.memory_checks(device_check.TRY, "float32", 2048))
    assert [check for check in checks if not check.holds] == []
    peak, wired, _ = checks
    assert 0 < peak.value < 1
    assert wired.value == 0


def test_memory_that_is_not_returned_fails_the_check(device_check: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Any] = []

    def leaking(*arguments: Any, **options: Any) -> Any:
        kept.append(mx.ones((1024, 1024)))
        mx.eval(kept)
        return filled_batch(*arguments, **options)

    filled_batch = device_check.filled_batch
    monkeypatch.setattr(device_check, "filled_batch", leaking)
    assert [check.holds for check in device_check.memory_checks(device_check.TRY, "float32", 2048)] == [
        True,
        True,
        False,
    ]


@pytest.mark.parametrize("error", ["not finite: grad_norm", "the updates did not change the adapter"])
def test_a_family_whose_training_fails_fails_its_check(
    error: str, device_check: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = {"outcome": "failed", "error": error, "gap_mean": 0.001}
    monkeypatch.setattr(device_check, "check_family", lambda *_: report)
    checks = list(device_check.family_checks())
    assert not any(check.holds for check in checks)
    assert all(math.isnan(check.value) and error[:60] in check.name for check in checks)


def test_a_shape_that_does_not_fit_is_a_row_and_the_next_one_is_measured(
    device_check: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from device_speed import Limits

    def speed(size: str, _: Any, kind: str, __: Any) -> dict[str, Any]:
        if size == "8B":
            raise RuntimeError("[malloc] Unable to allocate 16000000000 bytes.")
        return {"size": size, "weights": kind}

    monkeypatch.setattr(device_check, "measure_limits", lambda: Limits(1e12, 1e11))
    monkeypatch.setattr(device_check, "speed", speed)
    line = device_check.speed_line
    monkeypatch.setattr(device_check, "speed_line", lambda row: line(row) if "error" in row else row["weights"])
    monkeypatch.setattr(sys, "argv", ["device_check.py", "--only", "speed", "--sizes", "8B", "0.6B"])
    with pytest.raises(SystemExit) as end:
        device_check.main()
    printed = capsys.readouterr().out
    assert end.value.code == 0
    rows = [line for line in printed.splitlines() if line.startswith("| 8B")]
    reason = "not measured: [malloc] Unable to allocate 16000000000 bytes."
    assert [row.split("|")[2:4] for row in rows] == [[" bfloat16 ", f" {reason} "], [" 4-bit ", f" {reason} "]]
    assert {row.count("|") for row in rows} == {len(device_check.SPEED_COLUMNS) + 1}
    assert printed.splitlines()[-1].startswith("0 checks failed")


def test_weights_over_the_memory_of_the_device_are_not_even_made(
    device_check: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import device_speed
    from device_speed import Limits

    monkeypatch.setattr(device_speed, "device_memory", lambda: 11_000_000_000)
    monkeypatch.setattr(device_speed, "new_actor", lambda *_, **__: pytest.fail("it makes the weights"))
    with pytest.raises(RuntimeError, match=r"its weights take at least 1\d\.\d GB of 11\.0 GB"):
        device_check.speed("8B", device_check.SHAPES["8B"], "4-bit", Limits(1e12, 1e11))
