"""Rows of preferences from a file, or from a dataset of the `datasets` library."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from trainer.data.files import READERS, OnBroken, SourceRow, read_rows, suffix
from trainer.errors import DataError

_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")


def source_rows(source: str, split: str, broken: OnBroken) -> Iterator[SourceRow]:
    """Read the rows of `source`: a file, a folder written by `Dataset.save_to_disk`, or a name for `load_dataset`.

    A broken row of a file that can be left out by itself goes to `broken`. Raises DataError for what cannot be read.
    """
    try:
        path = Path(source).expanduser()
        is_folder, exists = path.is_dir(), path.exists()
    except (OSError, RuntimeError) as error:
        raise DataError(f"'{source}' cannot be read: {error}") from None
    if is_folder:
        return _dataset_rows(source, split, path)
    if exists:
        return read_rows(path, broken=broken)
    if suffix(path) in READERS or not _HUB_NAME.fullmatch(source):
        raise DataError(f"'{source}': no such file: paths are relative to {Path.cwd()}")
    return _dataset_rows(source, split, None)


def _dataset_rows(source: str, split: str, folder: Path | None) -> Iterator[SourceRow]:
    import datasets  # 5 s

    # Progress bars would draw over a terminal interface.
    bars = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        data = datasets.load_from_disk(str(folder)) if folder else datasets.load_dataset(source, split=split)
    except Exception as error:
        raise DataError(_not_loaded(source, folder, error)) from error
    finally:
        if not bars:
            datasets.enable_progress_bars()
    if isinstance(data, datasets.DatasetDict):
        if split not in data:
            raise DataError(f"split '{split}': '{source}' has the splits {', '.join(data)}")
        data = data[split]
    return (SourceRow(f"{source}[{index}]", row) for index, row in enumerate(data))


def _not_loaded(source: str, folder: Path | None, error: Exception) -> str:
    reason = " ".join(str(error).split()) or type(error).__name__
    if folder is not None:
        return f"'{source}': a folder must be one that Dataset.save_to_disk wrote: {reason}"
    return (
        f"'{source}': not a file, and datasets cannot load it: {reason}; connect to the hub, or give a file "
        f"({', '.join(READERS)})"
    )
