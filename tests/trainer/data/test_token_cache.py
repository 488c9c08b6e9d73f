"""Tokens of large prompt sets in the cache: the same as without it, and only while all that they depend on is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import trainer.data
from trainer.config.schema import DataConfig
from trainer.data import EncodedPrompts, PromptRow, encode_prompts
from trainer.data.token_cache import FEWEST
from trainer.errors import DataError

TEMPLATE = "{% for m in messages %}{{ m.content }} {% endfor %}end"


def tokenizer_of(words: str = "a b c end", template: str | None = TEMPLATE) -> PreTrainedTokenizerFast:
    vocabulary = {word: place for place, word in enumerate([*words.split(), "<unk>"])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", bos_token="a", eos_token="end")
    tokenizer.chat_template = template
    return tokenizer


def rows(count: int = FEWEST, *, chat: bool = False) -> list[PromptRow]:
    texts = [" ".join("abcé"[number % 4] for number in range(place % 7 + 1)) for place in range(count)]
    prompts: list[Any] = [[{"role": "user", "content": text}] if chat and text == "a" else text for text in texts]
    return [PromptRow(place, prompt, {"place": place}) for place, prompt in enumerate(prompts)]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PPO_WORKBENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "prompts"


@pytest.fixture
def rendered(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the index of each row that is rendered."""
    real, seen = trainer.data.render_prompt, []

    def render(row: PromptRow, *args: Any) -> Any:
        seen.append(row.index)
        return real(row, *args)

    monkeypatch.setattr(trainer.data, "render_prompt", render)
    return seen


def encode(given: list[PromptRow], tokenizer: Any = None, **settings: Any) -> EncodedPrompts:
    return encode_prompts(given, tokenizer or tokenizer_of(), DataConfig(**settings))


@pytest.mark.parametrize("chat", [False, True])
def test_the_next_start_finds_the_same_prompts_and_renders_none(
    cache: Path, rendered: list[int], *, chat: bool
) -> None:
    given = rows(chat=chat)
    first = encode(given)
    assert len(rendered) == FEWEST
    assert encode(given) == first
    assert len(rendered) == FEWEST
    [kept] = cache.iterdir()
    assert kept.stat().st_mode & 0o077 == 0, "prompts may be private"
    cut = encode(given, max_prompt_tokens=3, too_long="truncate")  # lengths are not part of what is kept
    assert len(rendered) == FEWEST
    kept.unlink()
    assert encode(given, max_prompt_tokens=3, too_long="truncate") == cut
    for damaged in (b"", b"PAR1", kept.read_bytes()[:-50]):
        kept.write_bytes(damaged)
        assert encode(given) == first
    content = bytearray(kept.read_bytes())
    content[200] ^= 0xFF
    kept.write_bytes(content)
    assert encode(given) == first


def test_other_prompts_settings_and_tokenizers_have_files_of_their_own(cache: Path, rendered: list[int]) -> None:
    given = rows()
    others: list[Any] = [
        (given, None, {}),
        (given[::-1], None, {}),
        ([*given[:-1], given[-1]._replace(prompt="b")], None, {}),
        (given, tokenizer_of("b a c end"), {}),
        (given, None, {"chat": "always"}),
        (given, None, {"chat": "always", "template": {"mood": "sad"}}),
        ([*given[:-1], given[-1]._replace(columns={"tools": [{}]})], None, {"chat": "always"}),
        (given, tokenizer_of(template=TEMPLATE + " b"), {"chat": "always"}),
    ]
    for number, (prompts, tokenizer, settings) in enumerate(others, 1):
        found = encode(prompts, tokenizer, **settings)
        assert len(rendered) == FEWEST * number
        assert len(list(cache.iterdir())) == number
        assert encode(prompts, tokenizer, **settings) == found
    assert len(rendered) == FEWEST * len(others)


def test_a_note_on_how_prompts_are_rendered_comes_at_every_start(cache: Path) -> None:
    tokenizer = tokenizer_of(template="{{ raise_exception('no') if messages[0].role == 'system' }}" + TEMPLATE)
    found = [encode(rows(), tokenizer, chat="always", system="c") for _ in range(2)]
    assert len(list(cache.iterdir())) == 1
    assert found[0] == found[1]
    assert found[0].notes


def test_few_prompts_templates_with_a_clock_and_failures_leave_no_file(cache: Path) -> None:
    encode(rows(FEWEST - 1))
    encode(rows(), tokenizer_of(template=TEMPLATE + "{{ strftime_now('%d') if strftime_now }}"), chat="always")
    with pytest.raises(DataError, match="no tokens"):
        encode([*rows(), PromptRow(FEWEST, " ", {})])
    assert not cache.exists()
    cache.parent.write_text("a file in place of the folder")
    assert len(encode(rows()).prompts) == FEWEST


def test_the_newest_eight_files_are_kept(cache: Path) -> None:
    cache.mkdir(parents=True)
    for number in range(10):
        path = cache / f"{number}.parquet"
        path.touch()
        os.utime(path, (number, number))
    encode(rows())
    names = {path.name for path in cache.iterdir()}
    assert len(names) == 8
    assert names > {f"{number}.parquet" for number in range(3, 10)}
