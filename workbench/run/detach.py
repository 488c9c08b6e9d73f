"""A run that goes on without its screen, in a headless process with its own session."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from trainer.errors import StorageError
from trainer.files import PRIVATE, open_file
from workbench.system.processes import own_command

LOG = "headless.log"  # in the run's folder


def go_on_headless(folder: Path) -> int:
    """Resume the run in `folder` in a new process that outlives this one and its terminal; return its id.

    The run must have ended here: its lock is free and its newest checkpoint whole. Raises StorageError.
    """
    command = own_command("--no-ui", "--resume", str(folder.resolve()), "--display", "plain")
    try:
        with os.fdopen(open_file(folder / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, PRIVATE), "ab") as log:
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
    except OSError as error:
        raise StorageError(f"cannot go on headless: {error}; go on with --no-ui --resume {folder}") from None
    return child.pid
