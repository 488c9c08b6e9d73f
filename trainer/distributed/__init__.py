"""Several processes that train one run together, on one machine or many, by MLX's collectives.

Here they join: `mlx.launch` or MPI has started them.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from trainer.errors import RankError, one_line

if TYPE_CHECKING:
    from trainer.distributed.ranks import Ranks

_RANKS = ("MLX_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")  # of mlx.launch, Open MPI and MPICH
_OTHERS = ("MLX_HOSTFILE", "MLX_IBV_DEVICES", "MLX_WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")


def rank_of_process() -> int | None:
    """Return the number of this process among those that were started together; None if it was started alone."""
    if not any(os.environ.get(name) for name in _OTHERS):
        return None
    return next((int(value) for name in _RANKS if (value := os.environ.get(name, "")).isdecimal()), None)


def join() -> Ranks:
    """Connect to the other ranks, if there are any, on the thread that trains. Raises RankError if it cannot."""
    import mlx.core as mx

    from trainer.distributed.ranks import ALONE, Ranks

    if rank_of_process() is None:
        return ALONE
    try:
        group = mx.distributed.init(strict=True)
    except RuntimeError as error:
        raise RankError(
            f"rank {rank_of_process()} cannot reach the others ({one_line(error)}): check the hosts and ports that "
            "mlx.launch was given, and that every rank was started"
        ) from error
    return Ranks(group)
