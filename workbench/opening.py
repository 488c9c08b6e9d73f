"""The configuration, run or labels that the workbench opens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workbench.config.document import ConfigDocument
    from workbench.labelling.plans import SessionOptions


@dataclass(frozen=True)
class Opening:
    """A configuration to work on, and maybe a run to watch or to continue."""

    source: str = "quickstart"  # preset or TOML file
    overrides: tuple[str, ...] = ()  # of --set, as `ppo.kl_coef=0.1`
    watch: Path | None = None  # folder of a run that another process trains, or that has ended
    resume: Path | None = None  # folder of a run to continue at once
    log: Path | None = None  # where native output goes
    train: Callable[..., Any] | None = None  # replaces the trainer
    label: SessionOptions | None = None  # what to label on the Label pane

    def document(self) -> ConfigDocument:
        """Return the configuration to show: of the run to watch or continue, else of the source; with the overrides.

        Raises UsageError if there is none to read.
        """
        from trainer.config import parse_overrides
        from workbench.config.document import ConfigDocument

        changes = parse_overrides(list(self.overrides))
        if run := self.watch or self.resume:
            return ConfigDocument.of_run(run, changes)
        document = ConfigDocument.open(self.source)
        document.apply(changes)
        return document
