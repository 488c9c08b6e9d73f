"""Arrays of a checkpoint as safetensors, in a fixed order."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import mlx.core as mx

from trainer.files import open_regular
from trainer.models.adapters import Parameters


def write_arrays(path: Path, arrays: Parameters) -> None:
    """Write arrays as safetensors in a fixed order: a resumed run writes the same bytes as an uninterrupted one."""
    path.parent.mkdir(exist_ok=True)
    mx.save_safetensors(str(path), dict(sorted(arrays.items())))


def read_arrays(path: Path) -> Parameters:
    """Read what `write_arrays` wrote, and load it at once, because the folder may be pruned later."""
    open_regular(path).close()  # MLX would wait for a pipe
    arrays = cast("Parameters", mx.load(str(path)))
    mx.eval(arrays)
    return arrays
