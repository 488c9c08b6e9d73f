"""Runs that are trained by a process of their own, which outlives this one. It prints into the folder of the run."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from trainer.errors import StorageError
from trainer.files import PRIVATE, open_file
from workbench.system.children import started
from workbench.system.code_trust import PASSED_ON, trusted_code
from workbench.system.environment import own_command

LOG = "headless.log"  # in the run's folder


def continue_headless(folder: Path, *, environment: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Resume the run in `folder` in a new process that outlives this one and its terminal.

    No other process may hold its lock. environment: None for that of this process. The code that was trusted here is
    trusted there, in exactly this version. Raises StorageError.
    """
    command = own_command("--no-ui", "--resume", str(folder.resolve()), "--display", "plain")
    environment = {**(os.environ if environment is None else environment), PASSED_ON: trusted_code().passed_on()}
    try:
        with os.fdopen(open_file(folder / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, PRIVATE), "ab") as log:
            return started(command, log, log, own_session=True, environment=environment)
    except OSError as error:
        raise StorageError(f"cannot continue headless: {error}; run ppo-workbench --no-ui --resume {folder}") from None
