"""Responses that end at a text, on a model that spells: every byte is followed by the next one."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from tiny import make_prompts, make_tokenizer

from trainer.config.schema import RolloutConfig
from trainer.rollout.generation import Response, generate_responses


class Tokenizer:
    """Stand-in for mlx-lm's wrapper, as far as a rollout uses it."""

    def __init__(self) -> None:
        self._tokenizer = make_tokenizer()
        self._tokenizer.add_tokens(["&-&-&"])
        self.eos_token_ids = {self._tokenizer.eos_token_id}

    def __len__(self) -> int:
        return len(self._tokenizer)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


class Speller(nn.Module):
    """Model whose logits leave only `successors[token]` after each token."""

    def __init__(self, text: str, tokenizer: Tokenizer) -> None:
        super().__init__()
        tokens = tokenizer.encode(text)
        successors = list(range(len(tokenizer)))
        for token, following in pairwise(tokens):
            successors[token] = following
        self.logits = 1000.0 * (mx.arange(len(tokenizer))[None] == mx.array(successors)[:, None])
        self.layers: list[nn.Module] = []

    def make_cache(self) -> list[Any]:
        return []

    def __call__(self, tokens: mx.array, cache: Any = None) -> mx.array:
        return self.logits[tokens]


def spell(text: str, prompts: list[str], **sampling: Any) -> list[Response]:
    tokenizer = Tokenizer()
    return generate_responses(
        Speller(text, tokenizer),
        tokenizer,
        make_prompts(tokenizer, prompts),
        RolloutConfig(**{"max_new_tokens": 64} | sampling),
        key=mx.random.key(0),
    )


ALPHABET = "".join(map(chr, range(33, 127)))


def test_a_stop_text_ends_a_response_of_which_every_token_is_kept() -> None:
    (response,) = spell("abcdefghij", ["a"], stop=["fgh"])
    assert response.tokens == Tokenizer().encode("bcdefgh")
    assert len(response.logprobs) == 7
    assert (response.text, response.truncated) == ("bcde", False)


def test_a_stop_text_may_be_longer_than_any_window_of_tokens() -> None:
    (response,) = spell(ALPHABET, ["!"], stop=[ALPHABET[10:60]])
    assert response.text == ALPHABET[1:10]
    assert len(response.tokens) == 59


def test_a_stop_text_of_several_bytes_a_letter_is_found() -> None:
    (response,) = spell("abé§z", ["a"], stop=["é§"])
    assert response.text == "b"
    assert len(response.tokens) == 5


def test_the_text_ends_at_the_earliest_of_the_stop_texts_that_one_token_completes() -> None:
    for stop in (["special", "<sp"], ["<sp", "special"], ["special", "l0", "<sp"], ["<"]):
        (response,) = spell("ab<special0>", ["a"], stop=stop)
        assert (response.text, len(response.tokens)) == ("b", 2)


def test_a_stop_text_that_repeats_within_a_token_is_cut_at_its_first_place() -> None:
    (response,) = spell("ab&-&-&", ["a"], stop=["-&"])
    assert response.text == "b&"


def test_a_stop_text_in_the_prompt_or_across_its_end_does_not_count() -> None:
    inside, across = spell("abcdefghij<end>", ["fgh", "abcdef"], stop=["fgh"])
    assert (inside.text, across.text) == ("ij", "ghij")
    assert not inside.truncated


def test_each_sequence_ends_by_itself_and_frees_its_slot() -> None:
    prompts = ["!", "a", "b", "f", "z"]
    for slots in (1, 2, 8):
        responses = spell(ALPHABET, prompts, stop=["e", "k"], slots=slots, max_new_tokens=16)
        assert [r.text for r in responses] == [ALPHABET[1:17], "bcd", "cd", "ghij", "{|}~" + "~" * 12]
        assert [r.truncated for r in responses] == [True, False, False, False, True]


def test_a_stop_text_at_the_last_place_is_not_a_truncation() -> None:
    (response,) = spell("abcdefghij", ["a"], stop=["fgh"], max_new_tokens=7)
    assert (response.text, response.truncated) == ("bcde", False)


def test_the_stop_token_is_not_in_the_text_also_as_a_stop_text() -> None:
    for stop in ([], ["<end>"]):
        (response,) = spell("abc<end>", ["a"], stop=stop)
        assert (response.text, response.tokens[-1], response.truncated) == ("bc", 256, False)


@pytest.mark.parametrize("stop", [["fgh"], ["<end>"]])
def test_ignore_stop_goes_past_stop_texts(stop: list[str]) -> None:
    (response,) = spell("abcdefghij", ["a"], stop=stop, ignore_stop=True, max_new_tokens=9)
    assert (response.text, response.truncated) == ("bcdefghij", True)
