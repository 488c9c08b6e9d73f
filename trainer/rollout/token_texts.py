"""The text of each token of a response, so that joined they are the response as it is decoded."""

from __future__ import annotations

import codecs
import functools
import itertools
import re
from collections.abc import Iterable, Sequence
from typing import Any

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_REPLACEMENT = "\ufffd"


class TokenTexts:
    """Takes a decoded response apart into the texts of its tokens; `tokenizer`: mlx-lm's wrapper or transformers'.

    Nearly every token is decoded once and remembered, so a response costs little more than its own decoding.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._pieces: dict[int, str] = {}
        self._bytes: dict[int, int | None] = {}

    def __call__(self, ids: Sequence[int]) -> list[str]:
        """One text a token; joined they are `ids` decoded, special tokens included and spaces not cleaned up.

        A token in the midst of a character has an empty text, and the last one of the character has it whole. Bytes
        that never become a character are U+FFFD, at the token that has them where that can be told.
        """
        ids = list(ids)
        whole, texts = self._decode(ids), self._from_pieces(ids)
        return texts if "".join(texts) == whole else self._from_prefixes(ids, texts, whole)

    def piece(self, token: int) -> str:
        """The text of one token as it stands after others; U+FFFD where it is but a part of a character."""
        if token not in self._pieces:
            self._pieces[token] = self._after_anchor([token])
        return self._pieces[token]

    def _from_pieces(self, ids: list[int]) -> list[str]:
        """Right where each token, or each character in several tokens, is decoded apart from the others."""
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
        """byte: a byte token of SentencePiece; part: perhaps of a character; whole: of whole characters."""
        if token not in self._bytes:
            name = self._tokenizer.convert_ids_to_tokens(token) or ""
            match = _BYTE.fullmatch(name) if name != self.piece(token) else None
            self._bytes[token] = int(match[1], 16) if match else None
        if self._bytes[token] is not None:
            return "byte"
        return "part" if _REPLACEMENT in self.piece(token) else "whole"

    def _texts_of_parts(self, ids: list[int]) -> list[str]:
        """Decoded from where the last character ended, so seldom more than four tokens at a time."""
        texts: list[str] = []
        begun: list[int] = []  # tokens, the last of which may have begun a character
        before, given = "", 0  # their text, and how much of it is in `texts`
        for token in ids:
            text = self._after_anchor([*begun, token])
            if begun and text == before + self.piece(token):  # what was begun ended there, and was no character
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
        """What each token adds to the decoded text, for any tokenizer: one decoding a token where `texts` go wrong.

        With SentencePiece that is the first token alone, whose space is taken off.
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
            cuts.append(max(cuts[-1], _shared_start(self._decode(ids[:count]), whole[:end])))
        cuts.append(end)
        return [*texts[:first], *(whole[a:b] for a, b in itertools.pairwise(cuts)), *texts[last:]]

    @functools.cached_property
    def _anchor(self) -> tuple[list[int], str]:
        """A token to stand before others, and its text: many decoders treat the first one in a way of its own."""
        ids = self._tokenizer.encode("a", add_special_tokens=False)[-1:]
        return ids, self._decode(ids)

    def _after_anchor(self, ids: list[int]) -> str:
        anchor, text = self._anchor
        return self._decode([*anchor, *ids]).removeprefix(text)

    def _decode(self, ids: Iterable[int]) -> str:
        return str(self._tokenizer.decode(list(ids), clean_up_tokenization_spaces=False))


def _texts_of_bytes(numbers: Sequence[int]) -> list[str]:
    """Of a run of byte tokens, which decode together, or to U+FFFD each where they are not UTF-8."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        return [decoder.decode(bytes([number]), final=place == len(numbers)) for place, number in enumerate(numbers, 1)]
    except UnicodeDecodeError:
        return [_REPLACEMENT] * len(numbers)


def _shared_start(one: str, other: str) -> int:
    """How many characters both begin with."""
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
