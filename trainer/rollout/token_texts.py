"""Texts of the tokens of a response, which joined give the decoded response."""

from __future__ import annotations

import codecs
import functools
import itertools
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_REPLACEMENT = "\ufffd"

AS_SCORED: dict[str, Any] = {"skip_special_tokens": True}
"""Parameters that decode a response for its reward, as in TRL."""


class TokenTexts:
    """Splitter of a decoded response into the texts of its tokens.

    Nearly every token is decoded once and cached, so a response costs little more than decoding it.
    """

    def __init__(self, tokenizer: Any, *, as_scored: bool = False) -> None:
        """Split by `tokenizer`, mlx-lm's wrapper or transformers'.

        as_scored: joined, the texts are what rewards see: special tokens have none, and spaces are cleaned up where the
        tokenizer does that. Else the decoded text is kept as it is, special tokens as well.
        """
        self._tokenizer = tokenizer
        self._how = AS_SCORED if as_scored else {"clean_up_tokenization_spaces": False}
        self._pieces: dict[int, str] = {}
        self._bytes: dict[int, int | None] = {}

    def __call__(self, ids: Sequence[int]) -> list[str]:
        """Return one text per token. Joined, they are `ids` decoded.

        If a character spans several tokens, the last one has the character and the others have empty texts. Bytes that
        are not part of a character become U+FFFD, at their own token if that is known.
        """
        ids = list(ids)
        whole, texts = self._decode(ids), self._from_pieces(ids)
        return texts if "".join(texts) == whole else self._from_prefixes(ids, texts, whole)

    def piece(self, token: int) -> str:
        """Return the text of one token that follows others; U+FFFD if it is only part of a character."""
        if token not in self._pieces:
            self._pieces[token] = self._after_anchor([token])
        return self._pieces[token]

    def pieces(self, tokens: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.object_]:
        """Return `piece` of each of `tokens`, in the same shape."""
        distinct, places = np.unique(tokens, return_inverse=True)
        texts = np.array([self.piece(token) for token in distinct.tolist()], dtype=np.object_)
        return texts[places].reshape(tokens.shape)

    def _from_pieces(self, ids: list[int]) -> list[str]:
        """Decode token by token; correct if tokens, or characters in several tokens, decode independently."""
        if all(self._kind(token) == "whole" for token in set(ids)):
            return list(map(self._pieces.__getitem__, ids))  # as `_kind` filled it
        texts: list[str] = []
        for kind, run in itertools.groupby(ids, self._kind):
            group = list(run)
            if kind == "byte":
                texts += _texts_of_bytes([self._bytes[token] or 0 for token in group])
            elif kind == "part":
                texts += self._texts_of_parts(group)
            else:
                texts += [self.piece(token) for token in group]
        return texts

    def _kind(self, token: int) -> str:
        """Return "byte" (SentencePiece's byte token), "part" (perhaps of a character) or "whole" (whole characters)."""
        if token not in self._bytes:
            name = self._tokenizer.convert_ids_to_tokens(token) or ""
            match = _BYTE.fullmatch(name) if name != self.piece(token) else None
            self._bytes[token] = int(match[1], 16) if match else None
        if self._bytes[token] is not None:
            return "byte"
        return "part" if _REPLACEMENT in self.piece(token) else "whole"

    def _texts_of_parts(self, ids: list[int]) -> list[str]:
        """Decode from the end of the last character, which seldom takes more than four tokens at a time."""
        texts: list[str] = []
        begun: list[int] = []  # tokens whose last one may have begun a character
        before, given = "", 0  # their text, and how much of it is in `texts`
        for token in ids:
            text = self._after_anchor([*begun, token])
            if begun and text == before + self.piece(token):  # what was begun ended here and was not a character
                texts[-1] += before[given:]
                begun, given, text = [], 0, self.piece(token)
            certain = len(text) - text.endswith(_REPLACEMENT)
            texts.append(text[given:certain])
            complete = certain == len(text)
            begun, before, given = ([], "", 0) if complete else ([*begun, token], text, certain)
        if begun:
            texts[-1] += before[given:]
        return texts

    def _from_prefixes(self, ids: list[int], texts: list[str], whole: str) -> list[str]:
        """Return what each token adds to the decoded text, for any tokenizer.

        This decodes once per token where `texts` are wrong. With SentencePiece that is only the first token, whose
        space is removed.
        """
        first, begin = 0, 0
        while first < len(ids) - 1 and whole.startswith(texts[first], begin):
            begin += len(texts[first])
            first += 1
        last, end = len(ids), len(whole)
        while last > first + 1 and whole.endswith(texts[last - 1], begin, end):
            last -= 1
            end -= len(texts[last])
        cuts = [begin]
        for count in range(first + 1, last):
            both = zip(self._decode(ids[:count]), whole[:end], strict=False)
            cuts.append(max(cuts[-1], sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], both))))
        cuts.append(end)
        return [*texts[:first], *(whole[a:b] for a, b in itertools.pairwise(cuts)), *texts[last:]]

    @functools.cached_property
    def _anchor(self) -> tuple[list[int], str]:
        """Token to put before others, and its text: many decoders treat the first token differently."""
        ids = self._tokenizer.encode("a", add_special_tokens=False)[-1:]
        return ids, self._decode(ids)

    def _after_anchor(self, ids: list[int]) -> str:
        anchor, text = self._anchor
        return self._decode([*anchor, *ids]).removeprefix(text)

    def _decode(self, ids: Iterable[int]) -> str:
        return str(self._tokenizer.decode(list(ids), **self._how))


def _texts_of_bytes(numbers: Sequence[int]) -> list[str]:
    """Return the texts of a run of byte tokens, decoded together; U+FFFD for each if they are not UTF-8."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        return [decoder.decode(bytes([number]), final=place == len(numbers)) for place, number in enumerate(numbers, 1)]
    except UnicodeDecodeError:
        return [_REPLACEMENT] * len(numbers)
