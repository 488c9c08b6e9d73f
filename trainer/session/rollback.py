"""Choice of the checkpoint that a run rolls back to, and what that does to the best one."""

from __future__ import annotations

from pathlib import Path

from trainer.errors import StorageError, UsageError
from trainer.runs.checkpoint_index import best_checkpoint, checkpoints, read_best
from trainer.runs.folder import RunFolder


def older_checkpoint(folder: RunFolder, to: int | None, *, before: int) -> Path:
    """Return the checkpoint after iteration `to`, which must be earlier than `before`.

    None: the best, or else the oldest kept. Raises UsageError if there is none.
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
    """Delete best.json if it names the checkpoint after `iteration`, which is about to contain another state."""
    best = read_best(folder)
    if best is None or best.iteration != iteration:
        return
    try:
        folder.best.unlink()
    except OSError as error:
        raise StorageError(f"cannot delete '{folder.best}': {error.strerror}; mend the folder") from None


def _iteration(path: Path) -> int:
    return int(path.name.removeprefix("step-"))
