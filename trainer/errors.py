"""The one exception tree. Every message names the thing, the rule and the way out, in one line."""

from __future__ import annotations


class TrainerError(Exception):
    """Base of every error that a user can cause and mend. `exit_code` is what the command line returns."""

    exit_code = 3


class ConfigError(TrainerError):
    """A configuration that breaks a rule of the schema; carries every problem of the file, not only the first."""

    exit_code = 2

    def __init__(self, problems: list[str], source: str = "") -> None:
        self.problems = problems
        self.source = source
        super().__init__("\n".join(f"{source}: {p}" if source else p for p in problems))


class UsageError(TrainerError):
    """A command that cannot be carried out as given: a run name in use, a run that is not there."""

    exit_code = 2


class DataError(TrainerError):
    """Prompts, columns or files of data that cannot be used."""


class ModelError(TrainerError):
    """A model folder, an adapter or a tokenizer that cannot be used."""


class RewardError(TrainerError):
    """A reward function that cannot be found, raised, or returned something that is not a score."""


class UntrustedCodeError(RewardError):
    """Python code that a configuration would run, and that the user has not trusted."""


class StorageError(TrainerError):
    """A run folder, journal or checkpoint that cannot be written or read back."""


class DivergedError(TrainerError):
    """Training produced NaN or inf three times in a row and was ended at the last good checkpoint."""

    exit_code = 4
