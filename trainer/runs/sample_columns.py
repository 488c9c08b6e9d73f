"""Columns of a samples file, from rows of Python values and NumPy arrays."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa


def column(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Build an array of `kind` from `values`: one per row, None where a row has none.

    A list of pairs is given as a dict. Lists may be NumPy arrays, and lists of lists arrays [T, n]. Lone surrogates in
    texts become backslash escapes.
    """
    if pa.types.is_list(kind) and pa.types.is_struct(kind.value_type):
        return pa.array([None if pairs is None else _pairs(pairs, kind.value_type) for pairs in values], type=kind)
    if pa.types.is_list(kind):
        return _lists(values, kind)
    return _strings(values) if pa.types.is_string(kind) else pa.array(values, type=kind)


def _pairs(pairs: dict[str, Any], kind: pa.StructType) -> list[dict[str, Any]]:
    first, second = (field.name for field in kind)
    return [{first: _text(name), second: value} for name, value in pairs.items()]


def _lists(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Build lists from one flat array and the offsets at which they begin, without a loop over their numbers."""
    there = [value for value in values if value is not None]
    lengths = np.array([0 if value is None else len(value) for value in values], dtype=np.int32)
    inner = _inner_lists(there, kind.value_type) if pa.types.is_list(kind.value_type) else _flat(there, kind.value_type)
    missing = pa.array([value is None for value in values], type=pa.bool_())
    return pa.ListArray.from_arrays(_offsets(lengths), inner, type=kind, mask=missing)


def _inner_lists(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Build the lists within lists, from arrays [T, n] or lists of any lengths."""
    if not all(isinstance(value, np.ndarray) and value.ndim == 2 for value in values):
        return _lists(list(itertools.chain.from_iterable(values)), kind)
    lengths = np.repeat(np.array([x.shape[1] for x in values], dtype=np.int32), [x.shape[0] for x in values])
    flat = _flat([value.ravel() for value in values], kind.value_type)
    return pa.ListArray.from_arrays(_offsets(lengths), flat, type=kind)


def _offsets(lengths: Any) -> pa.Array:
    return pa.array(np.concatenate([[0], np.cumsum(lengths)]), type=pa.int32())


def _flat(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_string(kind):
        return _strings(list(itertools.chain.from_iterable(values)))
    return _numbers(values, kind)


def _numbers(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    filled = [np.asarray(value) for value in values if len(value)]
    return pa.array(np.concatenate(filled)).cast(kind) if filled else pa.array([], type=kind)


def _strings(values: Sequence[str | None]) -> pa.Array:
    try:
        return pa.array(values, type=pa.string())
    except UnicodeEncodeError:
        return pa.array([_text(value) for value in values], type=pa.string())


def _text(value: str | None) -> str | None:
    return value if value is None else value.encode("utf-8", "backslashreplace").decode("utf-8")
