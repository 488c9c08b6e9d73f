"""Protection of the folder of compiled kernels: MLX runs them whoever put them there."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from trainer.errors import ModelError

_VARIABLES = ("TMPDIR", "TMP", "TEMP", "TEMPDIR")  # in the order of C++'s temp_directory_path


def own_kernel_folder() -> None:
    """Make sure that only this user can put kernels where MLX looks for them.

    MLX compiles to `mlx/` in the folder for temporary files and loads any file there that has the name of a kernel. On
    a shared host that folder may belong to another user. Raises ModelError in that case.
    """
    folder = Path(next((os.environ[name] for name in _VARIABLES if os.environ.get(name)), "/tmp")) / "mlx"  # noqa: S108
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid():
            folder.chmod(0o700)
            return
    except FileExistsError:
        pass
    except OSError:
        return  # MLX reports the problem when it first compiles
    raise ModelError(
        f"'{folder}' is not a folder of yours, and MLX would run compiled code that lies there: set TMPDIR to a folder "
        "that only you can write"
    )
