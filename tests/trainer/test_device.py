"""A GPU, if there is one: sampling, gradients and families hold what benchmarks/device_check.py asks for."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.gpu
@pytest.mark.skipif(mx.default_device() != mx.Device(mx.gpu), reason="needs Metal or CUDA")
@pytest.mark.parametrize("part", ["sampling_checks", "gradient_checks", "family_checks"])
def test_the_device_holds_what_its_check_asks_for(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import device_check

    assert [check for check in getattr(device_check, part)() if not check.holds] == []
