"""Texts of tokens: joined they are the decoded response, and no character is split between two."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import END, make_tokenizer
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from trainer.rollout.token_texts import TokenTexts

# The letters that a byte-level tokenizer writes bytes in: printable ones stand for themselves.
PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
LETTERS = {byte: chr(byte) for byte in PRINTABLE} | {
    byte: chr(0x100 + place) for place, byte in enumerate(byte for byte in range(256) if byte not in PRINTABLE)
}
SPANNING = [b"\xe2\x82", b"\xc3\xa9\xf0", b"\x9f\x98", b"\x80\xe2", b"\xff\xe2", b"a\xe2", b"\x82\xac!", b" joy"]
PIECES = [*(bytes([byte]) for byte in range(256)), *SPANNING]


def decoding(vocabulary: Sequence[str], decoder: Any) -> Any:
    """Return a tokenizer that decodes `vocabulary` by `decoder`, and encodes letter by letter."""
    model = models.BPE(vocab={word: place for place, word in enumerate(vocabulary)}, merges=[])
    tokenizer = Tokenizer(model)
    tokenizer.decoder = decoder
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


BYTE_LEVEL = decoding(["".join(LETTERS[byte] for byte in piece) for piece in PIECES], decoders.ByteLevel())
WORDS = ["a", "▁", "▁joy", "joy", "▁日", "é", ",", "\ufffd", "▁▁", "<s>"]
SENTENCEPIECE = [*WORDS, *(f"<0x{byte:02X}>" for byte in range(256))]
LLAMA = decoding(
    SENTENCEPIECE,
    decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    ),
)
SPECIAL = decoding(SENTENCEPIECE, LLAMA.backend_tokenizer.decoder)
SPECIAL.add_special_tokens({"bos_token": "<s>"})
METASPACE = decoding(SENTENCEPIECE, decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()]))
WORDPIECE = decoding(["a", "do", "n", "'", "##t", ".", "joy", "##ful", "ca"], decoders.WordPiece(cleanup=True))
REPLACING = decoding(
    ["a", "b", "ab", " ", "c"],
    decoders.Sequence([decoders.Fuse(), decoders.Replace("ab", "X"), decoders.Strip(" ", 1, 0)]),
)

ids = st.lists(st.integers(0, len(PIECES) - 1) | st.integers(256, len(PIECES) - 1), max_size=30)
words = st.lists(st.integers(0, len(WORDS) - 1) | st.integers(len(WORDS), len(SENTENCEPIECE) - 1), max_size=30)
text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\ufffd") | st.sampled_from("é€日🎉 \n"))


@given(st.lists(st.integers(0, len(SENTENCEPIECE) - 1) | st.just(WORDS.index("<s>")), max_size=20))
@settings(max_examples=50)
def test_as_scored_they_join_to_the_text_without_special_tokens(tokens: list[int]) -> None:
    texts = TokenTexts(SPECIAL, as_scored=True)(tokens)
    assert "".join(texts) == SPECIAL.decode(tokens, skip_special_tokens=True)
    assert not any(text for text, token in zip(texts, tokens, strict=True) if token == WORDS.index("<s>"))


def texts_hold(tokenizer: Any, tokens: list[int], *, whole_text: str = "") -> list[str]:
    """Return the texts, checked to join to the decoded tokens and, for `whole_text`, to grow with its prefixes."""
    texts = TokenTexts(tokenizer)(tokens)
    assert len(texts) == len(tokens)
    assert "".join(texts) == tokenizer.decode(tokens)
    if whole_text:
        assert "".join(texts) == whole_text
        for place, so_far in enumerate(itertools.accumulate(texts), 1):
            assert so_far == tokenizer.decode(tokens[:place]).rstrip("\ufffd")
    return texts


# Tokenizers of bytes


@given(text)
def test_each_prefix_of_bytes_has_the_characters_that_are_complete(written: str) -> None:
    tokenizer = make_tokenizer()
    texts_hold(tokenizer, tokenizer.encode(written), whole_text=written)


@given(ids)
def test_tokens_that_end_in_the_middle_of_characters_join_to_what_is_decoded(tokens: list[int]) -> None:
    texts_hold(BYTE_LEVEL, tokens)


@given(text, st.randoms(use_true_random=False))
def test_however_a_text_is_cut_into_tokens_its_characters_stay_whole(written: str, random: Any) -> None:
    data, tokens, start = written.encode(), [], 0
    while start < len(data):
        fitting = [place for place, piece in enumerate(PIECES) if data.startswith(piece, start)]
        tokens.append(random.choice(fitting))
        start += len(PIECES[tokens[-1]])
    texts_hold(BYTE_LEVEL, tokens, whole_text=written)


def test_the_last_token_of_a_character_has_it_whole() -> None:
    tokenizer = make_tokenizer()
    tokens = [*tokenizer.encode("é🎉!"), 256]
    assert texts_hold(tokenizer, tokens) == ["", "é", "", "", "", "🎉", "!", END]


def test_bytes_that_are_not_a_character_are_shown_where_they_are() -> None:
    begun, other, letter = (PIECES.index(data) for data in (b"\xe2", b"\xff", b"a"))
    assert texts_hold(BYTE_LEVEL, [begun, letter]) == ["\ufffd", "a"]
    assert texts_hold(BYTE_LEVEL, [letter, begun, begun]) == ["a", "\ufffd", "\ufffd"]
    assert texts_hold(BYTE_LEVEL, [other, letter, other]) == ["\ufffd", "a", "\ufffd"]
    cut_short = [PIECES.index(bytes([byte])) for byte in "🎉".encode()[:3]]
    assert texts_hold(BYTE_LEVEL, [*cut_short, letter]) == ["", "", "\ufffd", "a"]


def test_long_responses_of_bytes_alone_are_decoded_in_short_stretches() -> None:
    class Counting:
        decoded = 0
        encode, convert_ids_to_tokens = BYTE_LEVEL.encode, BYTE_LEVEL.convert_ids_to_tokens

        def decode(self, tokens: list[int], **settings: Any) -> str:
            self.decoded += len(tokens)
            return str(BYTE_LEVEL.decode(tokens, **settings))

    tokens = [PIECES.index(bytes([byte])) for byte in ("日本🎉é" * 500).encode()] + [PIECES.index(b"\xe2")] * 1000
    counting = Counting()
    assert "".join(TokenTexts(counting)(tokens)) == BYTE_LEVEL.decode(tokens)
    assert counting.decoded < 8 * len(tokens)


# Tokenizers of words with bytes for the rest


@pytest.mark.parametrize("tokenizer", [LLAMA, METASPACE], ids=["llama", "metaspace"])
def test_the_space_in_front_of_a_word_is_its_own_except_at_the_very_start(tokenizer: Any) -> None:
    tokens = [SENTENCEPIECE.index(word) for word in ("▁joy", "▁joy", ",", "joy", "▁日")]
    assert texts_hold(tokenizer, tokens) == ["joy", " joy", ",", "joy", " 日"]


@settings(max_examples=200)
@pytest.mark.parametrize("tokenizer", [LLAMA, METASPACE], ids=["llama", "metaspace"])
@given(tokens=words)
def test_words_and_bytes_in_any_order_join_to_what_is_decoded(tokenizer: Any, tokens: list[int]) -> None:
    texts_hold(tokenizer, tokens)


@pytest.mark.parametrize("tokenizer", [LLAMA, METASPACE], ids=["llama", "metaspace"])
@given(text, st.integers(0, 2))
def test_characters_in_byte_tokens_stay_whole(tokenizer: Any, written: str, words_before: int) -> None:
    data, start = written.encode(), "a" * (words_before + 1)
    texts = texts_hold(tokenizer, [0] * len(start) + [len(WORDS) + byte for byte in data])
    for place, so_far in enumerate(itertools.accumulate(texts[len(start) :]), 1):
        assert so_far == data[:place].decode(errors="ignore")


def test_byte_tokens_that_are_not_a_character_are_one_sign_each() -> None:
    tokens = [0, *(len(WORDS) + byte for byte in b"\xe2\x82\x0a"), 0]
    assert texts_hold(LLAMA, tokens) == ["a", "\ufffd", "\ufffd", "\ufffd", "a"]


# Other tokenizers


@pytest.mark.parametrize("tokenizer", [WORDPIECE, REPLACING], ids=["wordpiece", "replacing"])
@given(tokens=st.lists(st.integers(0, 4), max_size=12))
def test_a_decoder_that_changes_the_text_before_a_token_still_joins(tokenizer: Any, tokens: list[int]) -> None:
    texts_hold(tokenizer, tokens)


def test_a_decoder_that_replaces_across_tokens_gives_the_text_to_the_token_that_completes_it() -> None:
    assert texts_hold(REPLACING, [3, 4, 0, 1, 4, 2, 3, 3]) == ["", "c", "", "X", "c", "X", " ", " "]


def test_a_decoder_that_joins_words_gives_each_token_what_it_adds() -> None:
    assert texts_hold(WORDPIECE, [6, 7, 0, 5]) == ["joy", "ful", " a", "."]


def test_a_token_alone_has_the_same_text_as_after_others() -> None:
    assert TokenTexts(LLAMA).piece(SENTENCEPIECE.index("▁joy")) == " joy"
    assert TokenTexts(make_tokenizer()).piece(make_tokenizer().encode("é")[0]) == "\ufffd"
    assert TokenTexts(make_tokenizer()).piece(256) == END


def test_ids_that_the_tokenizer_does_not_have_are_empty() -> None:
    assert TokenTexts(make_tokenizer())([64, 300, 64]) == ["a", "", "a"]


# The starter's tokenizer


@pytest.fixture(scope="module")
def starter() -> Any:
    from transformers import AutoTokenizer

    from trainer.models.starter import starter_model

    return AutoTokenizer.from_pretrained(starter_model())


@pytest.mark.starter
def test_the_starters_tokenizer_keeps_both_rules(starter: Any) -> None:
    @given(text)
    def of_texts(written: str) -> None:
        tokens = starter.encode(written)
        decoded = starter.decode(tokens)
        texts_hold(starter, tokens, whole_text="" if "\ufffd" in decoded else decoded)  # some bytes it does not have

    @given(st.lists(st.integers(0, len(starter) - 1), max_size=40))
    def of_tokens(tokens: list[int]) -> None:
        texts_hold(starter, tokens)

    of_texts()
    of_tokens()


def test_the_pieces_of_an_array_are_those_of_its_tokens_in_its_shape() -> None:
    texts, tokens = TokenTexts(BYTE_LEVEL), np.array([[[3, 262], [3, 256], [65, 66]]] * 2, np.int32)
    found = texts.pieces(tokens)
    assert found.tolist() == [[[texts.piece(token) for token in place] for place in row] for row in tokens.tolist()]
    assert texts.pieces(tokens[:, :0]).shape == (2, 0, 2)
