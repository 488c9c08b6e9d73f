"""The cost of imports: reading a configuration or drawing a screen loads no tensor library."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = {"mlx", "mlx_lm", "transformers", "datasets", "torch"}


def loaded_by(module: str) -> set[str]:
    """Return the heavy packages that a fresh interpreter has loaded after `import module`."""
    program = f"import sys, {module}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=True)
    return HEAVY & set(result.stdout.split())


@pytest.mark.parametrize(
    "module",
    [
        "trainer",
        "trainer.config",
        "trainer.events",
        "trainer.data",
        "trainer.rewards",
        "trainer.engine.branching",
        "trainer.engine.sweeping",
        "workbench.cli.main",
    ],
)
def test_importing_the_module_loads_no_tensor_library(module: str) -> None:
    assert loaded_by(module) == set()


def test_a_module_that_computes_does_load_mlx() -> None:
    assert "mlx" in loaded_by("trainer.maths")
