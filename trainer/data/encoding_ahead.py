"""Encoding of many texts at once, on all cores, for code that then asks for the tokens of one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, TypeVar

AT_ONCE = 1_000
"""Items to encode at once: enough for all cores, and few enough that their tokens take little memory."""

Item = TypeVar("Item")


class EncodingAhead:
    """A tokenizer, mlx-lm's wrapper or one of transformers, that knows the tokens of texts that it was given ahead.

    Encoding texts one by one takes two to three times as long on two cores. The tokens are the same; a tokenizer whose
    own `encode` does more than the tokenizers library, as the longest text shows, encodes nothing ahead.
    """

    def __init__(self, tokenizer: Any) -> None:
        from transformers import PreTrainedTokenizerFast

        self._tokenizer = tokenizer
        inner = getattr(getattr(tokenizer, "encode", None), "__self__", None)  # under mlx-lm's wrapper
        self._backend: Any = None  # of the tokenizers library, where it alone makes the tokens
        base = PreTrainedTokenizerFast
        if isinstance(inner, base) and not getattr(inner, "split_special_tokens", False):
            is_own = type(inner).encode is base.encode and type(inner).__call__ is base.__call__
            backend = inner.backend_tokenizer
            self._backend = backend if is_own and backend.padding is None and backend.truncation is None else None
        self._known: dict[tuple[str, bool], list[int]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def parts(self, items: Iterable[Item]) -> Iterator[list[Item]]:
        """Yield `items` in parts, each to be prepared; the tokens of the last part are freed first."""
        pending = iter(items)
        while part := list(islice(pending, AT_ONCE)):
            self._known.clear()
            yield part
        self._known.clear()

    def prepare(self, texts: Iterable[str], *, add_special_tokens: bool) -> None:
        """Encode `texts`, so that `encode` knows their tokens."""
        distinct = list(dict.fromkeys(texts))
        if self._backend is None or not distinct:
            return
        encodings = self._backend.encode_batch_fast(distinct, add_special_tokens=add_special_tokens)
        place = max(range(len(distinct)), key=lambda place: len(distinct[place]))
        own = self._tokenizer.encode(distinct[place], add_special_tokens=add_special_tokens)
        if list(own) != encodings[place].ids:
            self._backend = None
            return
        for text, encoding in zip(distinct, encodings, strict=True):
            self._known[text, add_special_tokens] = encoding.ids

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the tokens of `text`, as the tokenizer's own `encode`."""
        known = self._known.get((text, add_special_tokens))
        return self._tokenizer.encode(text, add_special_tokens=add_special_tokens) if known is None else known
