"""The table [run] as every kind of run has it."""

from __future__ import annotations

from trainer.config.fields import RUN_NAME, FilePath, Section, setting


class RunFolderConfig(Section):
    """[run]: name, folder, seed."""

    name: str = setting(
        "", "Name of the run's folder in run.dir; empty: the preset's name and a number.", pattern=RUN_NAME
    )
    dir: FilePath = setting("runs", "Folder of the runs.", min_length=1)
    seed: int = setting(0, "Random seed; -1 draws one and saves it.", ge=-1, lt=2**32)
    shared: bool = setting(False, "Let other users of this machine read the run's journal, samples and progress.")
    rank_timeout: float = setting(
        1800.0,
        "A run on several ranks ends if one of them does not answer for this long.",
        unit="s",
        gt=0,
        advice="Raise it if a reward on the first rank takes longer.",
    )
