"""Which checkpoint a run goes back to, and which is the best no more after that."""

from __future__ import annotations

from pathlib import Path

from trainer.errors import StorageError, UsageError
from trainer.runs.folder import RunFolder, best_checkpoint, checkpoints, read_best


def older_checkpoint(folder: RunFolder, to: int | None, *, before: int) -> Path:
    """The checkpoint after iteration `to`, which is earlier than `before`; None: the best, or else the oldest kept.

    Raises UsageError when there is none.
    """
    older = {number: path for path in checkpoints(folder).paths if (number := _iteration(path)) < before}
    if not older:
        raise UsageError(
            f"no checkpoint from before iteration {before} is kept: raise checkpoint.keep, or set eval.every and "
            "checkpoint.best"
        )
    if to is None:
        best = best_checkpoint(folder)
        return best if best and best in older.values() else older[min(older)]
    if to not in older:
        raise UsageError(f"no older checkpoint after iteration {to} is kept: there is {', '.join(map(str, older))}")
    return older[to]


def forget_best(folder: RunFolder, iteration: int) -> None:
    """Let the checkpoint after `iteration`, which is to be that of another state, be the best no more."""
    best = read_best(folder)
    if best is None or best.iteration != iteration:
        return
    try:
        folder.best.unlink()
    except OSError as error:
        raise StorageError(f"cannot delete '{folder.best}': {error.strerror}; mend the folder") from None


def _iteration(path: Path) -> int:
    return int(path.name.removeprefix("step-"))
