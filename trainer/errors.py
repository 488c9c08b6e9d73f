"""Exceptions of the trainer. Every message names the thing, the rule and the way out, one line per problem."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

_ADVICE = {  # what helps, by the system's error number
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "free space"),
    errno.EFBIG: "raise the limit on the size of files (ulimit -f)",
    **dict.fromkeys((errno.EACCES, errno.EPERM), "change the permissions"),
    errno.EROFS: "make it writable",
    **dict.fromkeys((errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST), "check the path"),
    **dict.fromkeys((errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL), "check the path"),
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "raise the limit on open files (ulimit -n)"),
    errno.EIO: "check the disk",
}


class TrainerError(Exception):
    """Base of every error that a user can cause and fix. `exit_code` is what the command line returns."""

    exit_code = 3


class ConfigError(TrainerError):
    """A configuration that breaks a rule of the schema; carries every problem of the file, not only the first."""

    exit_code = 2

    def __init__(self, problems: list[str], source: str = "") -> None:
        self.problems = problems
        self.source = source
        super().__init__("\n".join(f"{source}: {p}" if source else p for p in problems))


class UsageError(TrainerError):
    """A command that cannot be carried out as given: a run name in use, a run that does not exist."""

    exit_code = 2


class ChangedPromptsError(UsageError):
    """A run is resumed on other prompts than it trained on."""


class DataError(TrainerError):
    """Prompts, columns or files of data that cannot be used."""


class ModelError(TrainerError):
    """A model folder, an adapter or a tokenizer that cannot be used."""


class RewardError(TrainerError):
    """A reward function that cannot be found, raised, or returned something that is not a score."""


class UntrustedCodeError(RewardError):
    """Python code that a configuration would run, and that the user has not trusted."""


class OutOfMemoryError(TrainerError):
    """A run of which the smallest part, one sequence, does not fit the memory."""


class RankError(TrainerError):
    """A rank of a run on several that was lost, failed, or does not fit the others."""


class StorageError(TrainerError):
    """A run folder, journal or checkpoint that cannot be written or read back."""


class Interrupted(Exception):  # noqa: N818  nothing went wrong
    """End of the run on request, raised in the trainer between two token steps or micro-batches."""

    def __init__(self, reason: str, *, save: bool) -> None:
        self.reason = reason
        self.save = save
        super().__init__(reason)


def cannot_write(what: str, error: Exception, then: str = "") -> StorageError:
    """Return the error for `what`, as in "checkpoint 'a'", that could not be written because of `error`.

    The advice fits the cause: a missing path needs no space. then: further advice, as in ", or choose another folder".
    """
    number = error.errno if isinstance(error, OSError) else None
    reason = getattr(error, "strerror", None) or (str(error).splitlines() or [type(error).__name__])[0]
    advice = _ADVICE.get(number, "check the disk, its free space and your permissions") if number else ""
    advice = advice or "check the free space and your permissions"  # mlx and pyarrow do not say which
    return StorageError(f"cannot write {what}: {reason}; {advice}{then}")


@contextlib.contextmanager
def writing(what: str, then: str = "") -> Iterator[None]:
    """Turn an OSError of the block into the StorageError that `what` cannot be written; see `cannot_write`."""
    try:
        yield
    except OSError as error:
        raise cannot_write(what, error, then) from None


@contextlib.contextmanager
def storage_error(what: str, way_out: str = "") -> Iterator[None]:
    """Turn an OSError of the block into a StorageError: `what`, as in "cannot read 'a'", the reason and the way out."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"{what}: {error.strerror or error}{way_out and '; '}{way_out}") from None


class BusyError(StorageError):
    """A store that another process has held for longer than one waits; it may be free in a moment."""


class DivergedError(TrainerError):
    """Training that produced NaN or inf three times in a row and was ended at the last good checkpoint."""

    exit_code = 4


def one_line(error: BaseException, most: int = 10_000) -> str:
    """Return the message of `error` in one line of at most `most` characters; the name of its type if it has none."""
    return shortened(" ".join(str(error).split()) or type(error).__name__, most)


def shortened(text: str, most: int = 60) -> str:
    """Cut `text` to `most` characters for a message; an ellipsis shows the cut."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return `count` with its noun: 1 label, 2 labels, 12,000 labels. plural: where it is not the noun with an s."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"
