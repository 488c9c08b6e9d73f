"""Texts that are encoded ahead: the same tokens as one by one, for tokenizers with an `encode` of their own too."""

from __future__ import annotations

from typing import Any

import pytest
from tiny import make_tokenizer
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast
from wrapped_tokenizer import Wrapper

from trainer.data.encoding import AT_ONCE, EncodingAhead

TEXTS = ["", "a", "é\u2028<end>b", "<pad>", "a" * 600, " two words "]


class Loud(PreTrainedTokenizerFast):
    """A tokenizer that does something of its own before it encodes."""

    def encode(self, text: str, **options: Any) -> list[int]:  # type: ignore[override]
        return super().encode(text.upper(), **options)  # type: ignore[no-any-return]


def begun() -> PreTrainedTokenizerFast:
    """Return a tokenizer that adds a token at the beginning."""
    tokenizer = make_tokenizer()
    backend = tokenizer.backend_tokenizer
    backend.post_processor = TemplateProcessing(single="<special0> $A", special_tokens=[("<special0>", 258)])
    return tokenizer


@pytest.mark.parametrize("tokenizer", [begun(), Wrapper(), Loud(tokenizer_object=begun().backend_tokenizer)])
@pytest.mark.parametrize("special", [True, False])
def test_tokens_are_those_of_the_tokenizer_prepared_or_not(tokenizer: Any, special: bool) -> None:
    ahead = EncodingAhead(tokenizer)
    ahead.prepare(TEXTS[:-1], add_special_tokens=special)
    for text in TEXTS:
        for other in (True, False):
            expected = tokenizer.encode(text, add_special_tokens=other)
            assert ahead.encode(text, add_special_tokens=other) == expected


def test_what_is_prepared_is_not_encoded_again_until_the_next_part(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = begun()
    ahead, asked = EncodingAhead(tokenizer), list[str]()
    encode = tokenizer.encode

    def counted(text: str, **options: Any) -> list[int]:
        asked.append(text)
        return encode(text, **options)  # type: ignore[no-any-return]

    monkeypatch.setattr(tokenizer, "encode", counted)
    items = [str(number) for number in range(AT_ONCE + 1)]
    parts = ahead.parts(items)
    first = next(parts)
    assert first == items[:AT_ONCE]
    ahead.prepare(first, add_special_tokens=True)
    assert [ahead.encode(text) for text in first[:3]] == [encode(text) for text in first[:3]]
    assert asked == ["100"], "the longest, to compare"
    assert next(parts) == items[AT_ONCE:]
    ahead.encode(first[0])
    assert asked[1:] == [first[0]]


@pytest.mark.parametrize("setting", ["padding", "truncation"])
def test_a_tokenizer_that_pads_or_truncates_by_itself_encodes_nothing_ahead(setting: str) -> None:
    tokenizer = begun()
    backend = tokenizer.backend_tokenizer
    backend.enable_padding(length=9) if setting == "padding" else backend.enable_truncation(2)
    ahead = EncodingAhead(tokenizer)
    ahead.prepare(["abc"], add_special_tokens=True)
    assert ahead.encode("abc") == tokenizer.encode("abc")
    assert len(ahead.encode("abc")) == 4
