"""Tokens of large prompt sets in the user's cache, so that the next start need not encode them again.

A file there is named by a hash of all that the tokens depend on, and the newest few are kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from trainer.config.schema import DataConfig
from trainer.files import PRIVATE, cache_folder, open_regular, whole_file

FEWEST = 2_000
"""Prompts from which on the cache is used: fewer are encoded within 0.2 s."""

_KEPT = 8  # files; one of 100,000 short prompts has about 3 MB
_VERSION = 1
_PACKAGES = ("mlx-lm", "transformers", "tokenizers", "jinja2")

Encoded = tuple[str | None, Sequence[int]]
"""What the model reads, None if it is the prompt itself, and its tokens."""


def token_file(prompts: Sequence[Sequence[Any]], tokenizer: Any, config: DataConfig) -> Path | None:
    """Return the file for the tokens of `prompts`, each with what else its template gets, whether it exists or not.

    None if there are few, or if what their tokens depend on is not known: the tokenizer is not one of the tokenizers
    library, or the chat template asks for the time.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if len(prompts) < FEWEST or backend is None or not hasattr(backend, "to_str"):
        return None
    template = getattr(tokenizer, "chat_template", None)
    is_timeless = isinstance(template, str) and not re.search(r"strftime|\bnow\b", template)
    is_rendered = config.chat == "always" or not all(isinstance(prompt, str) for prompt, *_ in prompts)
    if is_rendered and not is_timeless:
        return None
    settings = [_VERSION, config.chat, config.system, config.template, template]
    settings += [tokenizer.bos_token, tokenizer.eos_token_id]
    versions = [metadata.version(name) for name in _PACKAGES]
    digest = hashlib.sha256(json.dumps([*settings, *versions, type(tokenizer).__name__]).encode())
    digest.update(backend.to_str().encode())
    for prompt in prompts:
        digest.update(json.dumps(prompt, default=str).encode() + b"\n")
    return cache_folder() / "prompts" / f"{digest.hexdigest()}.parquet"


def read_tokens(path: Path, count: int) -> Iterator[Encoded] | None:
    """Return what `write_tokens` wrote for so many prompts; None if there is nothing, or it is damaged."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with open_regular(path) as file:
            table = pq.read_table(file, page_checksum_verification=True).combine_chunks()
        texts, lists = (table.column(name).chunk(0) for name in ("text", "tokens"))
        ends = lists.offsets.to_numpy()
        if len(table) != count or len(lists.values) != ends[-1]:
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # the newest are kept
        flat = lists.values.to_numpy().tolist()
        return zip(texts.to_pylist(), (flat[start:end] for start, end in pairwise(ends.tolist())), strict=True)
    except (OSError, pa.ArrowException, KeyError, AttributeError, IndexError, UnicodeDecodeError):
        return None


def write_tokens(path: Path, encoded: Sequence[Encoded]) -> None:
    """Write `encoded` to `path`, whole or not at all. A folder that cannot be written to is no error."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    lengths = [len(tokens) for _, tokens in encoded]
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int64())
    flat = np.fromiter(_flat(encoded), np.int32, sum(lengths))
    table = pa.table(
        {
            "text": pa.array([text for text, _ in encoded], pa.large_string()),
            "tokens": pa.LargeListArray.from_arrays(offsets, pa.array(flat)),
        }
    )
    with contextlib.suppress(OSError, UnicodeEncodeError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with whole_file(path, mode=PRIVATE) as file:
            pq.write_table(table, file, compression="zstd", write_page_checksum=True)
        for old in sorted(path.parent.glob("*.parquet"), key=lambda one: one.stat().st_mtime)[:-_KEPT]:
            old.unlink(missing_ok=True)


def _flat(encoded: Iterable[Encoded]) -> Iterator[int]:
    for _, tokens in encoded:
        yield from tokens
