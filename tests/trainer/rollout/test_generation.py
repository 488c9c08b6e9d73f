"""Rollouts: drawing a token, batches and long prompts against a loop without a cache, stop texts, and the record."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from batches import random_batch
from families import tiny_backbone
from hypothesis import given
from hypothesis import strategies as st
from mlx_lm.models.cache import KVCache
from tiny import FAMILIES, load_tiny, make_checkpoint, make_prompts, make_tokenizer

from benchmarks.family_values import MUST_TRAIN
from trainer.config.schema import RolloutConfig
from trainer.data import Prompt
from trainer.events import Progress, silent
from trainer.fitting.optimisation import micro_batch_rows
from trainer.models.backbone import LoadedModel
from trainer.rollout import generation
from trainer.rollout.experience import Experience
from trainer.rollout.generation import Response, _first_above, generate_responses, lay_out, sample_tokens

TEXTS = ["a prompt longer than the sliding window of gemma", "a", "some text", "other words"]
MANY_ENDS = {256, *range(0, 256, 10)}


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load_tiny(tmp_path_factory.mktemp("models") / "model", request.param)


@pytest.fixture(scope="module")
def ending(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    """Return a llama with so many end tokens that most responses end, each at its own length."""
    folder = make_checkpoint(tmp_path_factory.mktemp("models") / "model")
    settings = json.loads((folder / "config.json").read_text()) | {"eos_token_id": sorted(MANY_ENDS)}
    (folder / "config.json").write_text(json.dumps(settings))
    return load_tiny(folder)


def roll(
    model: LoadedModel, texts: list[str] | None = None, *, seed: int = 3, progress: Progress = silent, **sampling: Any
) -> list[Response]:
    prompts = make_prompts(model.tokenizer, TEXTS if texts is None else texts)
    settings = RolloutConfig(**{"max_new_tokens": 12} | sampling)
    key = mx.random.key(seed)
    return generate_responses(model.backbone, model.tokenizer, prompts, settings, key=key, progress=progress)


def next_logprobs(model: LoadedModel, tokens: list[int], temperature: float = 1.0) -> np.ndarray:
    """Compute log-softmax in float64 of what follows `tokens`, by one plain forward pass. [V]."""
    logits = np.array(model.backbone(mx.array([tokens]))[0, -1], dtype=np.float64) / temperature
    logits -= logits.max()
    return logits - np.log(np.exp(logits).sum())


def contexts(model: LoadedModel, response: Response, text: str) -> list[list[int]]:
    """Return what the model has read before each token of `response`."""
    prompt = model.tokenizer.encode(text)
    return [prompt + response.tokens[:step] for step in range(len(response.tokens))]


def test_a_batch_is_sampled_as_by_a_loop_over_one_sequence_without_a_cache(model: LoadedModel) -> None:
    keys = mx.random.split(mx.random.key(3), len(TEXTS))
    for key, text, response in zip(keys, TEXTS, roll(model, temperature=0.8), strict=True):
        tokens: list[int] = []
        for context, logprob in zip(contexts(model, response, text), response.logprobs, strict=True):
            expected = next_logprobs(model, context, 0.8)
            sampled = sample_tokens(mx.array(expected.astype(np.float32))[None], key[None], RolloutConfig())
            key = sampled.keys[0]
            tokens.append(sampled.tokens.item())
            assert logprob == pytest.approx(expected[tokens[-1]], abs=1e-4)
        assert response.tokens == tokens


def test_slots_do_not_change_what_is_written(ending: LoadedModel) -> None:
    together = roll(ending, TEXTS * 2)
    assert len({len(response.tokens) for response in together}) > 2  # they end at different times
    for slots in (1, 2, 3):
        for one, other in zip(roll(ending, TEXTS * 2, slots=slots), together, strict=True):
            assert one.tokens == other.tokens
            assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


def test_a_finished_sequence_frees_its_slot(ending: LoadedModel) -> None:
    steps: list[int] = []
    responses = roll(
        ending, TEXTS * 3, max_new_tokens=24, slots=2, progress=lambda done, _: steps.append(done - sum(steps))
    )
    lengths = [len(response.tokens) for response in responses]
    assert max(steps) <= 2
    assert sum(steps) == sum(lengths)
    assert len(steps) < sum(max(pair) for pair in zip(lengths[::2], lengths[1::2], strict=True))


def test_a_key_repeats_a_rollout_and_another_key_does_not(model: LoadedModel) -> None:
    assert roll(model) == roll(model)
    assert roll(model) != roll(model, seed=4)


def test_samples_of_one_prompt_differ(model: LoadedModel) -> None:
    assert len({tuple(response.tokens) for response in roll(model, ["some text"] * 6)}) == 6


def test_the_stop_token_is_the_last_of_its_response_and_trained_on(ending: LoadedModel) -> None:
    prompts = make_prompts(ending.tokenizer, TEXTS * 2)
    sampling = RolloutConfig(max_new_tokens=12)
    found = generate_responses(ending.backbone, ending.tokenizer, prompts, sampling, key=mx.random.key(3))
    batch = lay_out(prompts, found)
    truncated = batch.truncated.tolist()
    assert 0 < sum(truncated) < len(truncated)
    for row, (cut, text) in enumerate(zip(truncated, batch.texts, strict=True)):
        tokens, prompt = batch.responses[row].tolist(), prompts[row].tokens
        count = int(batch.mask[row].sum())
        assert batch.mask[row].tolist() == [1.0] * count + [0.0] * (len(tokens) - count)
        assert batch.response_lengths[row] == count
        ended = not cut
        assert [token in MANY_ENDS for token in tokens[:count]] == [False] * (count - 1) + [ended]
        assert ended or count == 12
        assert all(batch.sampler_logprobs[row, :count] < 0)
        assert tokens[count:] == [0] * (len(tokens) - count)
        used = len(prompt) + count
        assert batch.sequences[row, :used].tolist() == prompt + tokens[:count]
        assert text == ending.tokenizer.decode(tokens[: count - ended], skip_special_tokens=True)


def test_a_stop_token_at_the_last_place_is_not_a_truncation(ending: LoadedModel) -> None:
    whole = next(response for response in roll(ending, TEXTS[:1] * 8) if 1 < len(response.tokens) < 12)
    place = roll(ending, TEXTS[:1] * 8).index(whole)
    length = len(whole.tokens)
    assert roll(ending, TEXTS[:1] * 8, max_new_tokens=length)[place] == whole
    cut = roll(ending, TEXTS[:1] * 8, max_new_tokens=length - 1)[place]
    assert (cut.tokens, cut.truncated) == (whole.tokens[:-1], True)


def test_ignore_stop_writes_every_token_and_starts_as_the_rollout_that_stops(ending: LoadedModel) -> None:
    stopping, going_on = roll(ending), roll(ending, ignore_stop=True)
    assert any(not response.truncated for response in stopping)
    for short, long in zip(stopping, going_on, strict=True):
        assert len(long.tokens) == 12
        assert long.truncated
        assert long.tokens[: len(short.tokens)] == short.tokens


def test_a_context_of_one_token_beside_an_empty_one_fills_a_rotating_cache(tmp_path: Path) -> None:
    """A prefill of one position would be taken for a decoding step, with the padding at the wrong side."""
    gemma = load_tiny(tmp_path / "gemma", "gemma3_text")
    together = roll(gemma, ["a", "bc"])
    for text, response in zip(["a", "bc"], together, strict=True):
        for context, token, logprob in zip(
            contexts(gemma, response, text), response.tokens, response.logprobs, strict=True
        ):
            assert logprob == pytest.approx(next_logprobs(gemma, context)[token], abs=1e-4)


class Always(nn.Module):
    """Model that gives the same logits, [V], after every token."""

    layers: tuple[nn.Module, ...] = ()

    def __init__(self, logits: mx.array) -> None:
        super().__init__()
        self.logits = logits

    def make_cache(self) -> list[Any]:
        return []

    def __call__(self, tokens: mx.array, cache: Any = None) -> mx.array:
        return mx.broadcast_to(self.logits, (*tokens.shape, *self.logits.shape))


class Recorded(Always):
    """Such a model that records the shapes of its inputs, and has one cache."""

    def __init__(self) -> None:
        super().__init__(mx.zeros(300))
        object.__setattr__(self, "shapes", [])

    def make_cache(self) -> list[Any]:
        return [KVCache()]

    def __call__(self, tokens: mx.array, cache: Any = None) -> mx.array:
        self.shapes.append(tokens.shape)
        kept = mx.zeros((tokens.shape[0], 1, tokens.shape[1], 1))
        cache[0].update_and_fetch(kept, kept)
        return super().__call__(tokens)


def test_each_prompt_is_read_once_for_the_samples_that_begin_together() -> None:
    model, sampling = Recorded(), RolloutConfig(max_new_tokens=4, ignore_stop=True, slots=32)
    prompts = [Prompt(n, "", "", [n] * 7, {}) for n in range(4) for _ in range(8)]
    generate_responses(model, make_tokenizer(), prompts, sampling, key=mx.random.key(0))
    read = sum(rows * columns for rows, columns in model.shapes if columns > 1)
    assert read == 4 * 6, "each prompt without its last token"


def test_the_next_step_is_begun_before_a_token_is_read_and_none_after_the_last() -> None:
    model, sampling = Recorded(), RolloutConfig(max_new_tokens=3, ignore_stop=True)
    begun: list[int] = []
    generate_responses(
        model,
        make_tokenizer(),
        [Prompt(0, "", "", [5], {})],
        sampling,
        key=mx.random.key(0),
        progress=lambda done, total: begun.append(len(model.shapes)),
    )
    assert begun == [2, 3, 3]


def test_top_k_of_the_whole_vocabulary_keeps_its_least_likely_token() -> None:
    sampling = RolloutConfig(max_new_tokens=40, top_k=2, ignore_stop=True)
    prompts = [Prompt(0, "", "", [0], {})]
    coin = Always(mx.zeros(2))
    (response,) = generate_responses(coin, make_tokenizer(), prompts, sampling, key=mx.random.key(0))
    assert set(response.tokens) == {0, 1}


@pytest.mark.parametrize("temperature", [1.0, 0.8])
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16])
def test_log_probs_are_those_of_the_logits_in_float32_whatever_their_type(dtype: mx.Dtype, temperature: float) -> None:
    logits = (mx.random.normal((49_152,), key=mx.random.key(1)) * 2.5).astype(dtype)
    sampling = RolloutConfig(max_new_tokens=50, ignore_stop=True, temperature=temperature)
    prompts = [Prompt(0, "", "", [0], {})]
    (response,) = generate_responses(Always(logits), make_tokenizer(), prompts, sampling, key=mx.random.key(0))
    expected = np.array(logits.astype(mx.float32)).astype(np.float64) / temperature
    expected -= np.log(np.exp(expected).sum())
    assert response.logprobs == pytest.approx(expected[response.tokens].tolist(), abs=1e-4)


def test_the_recorded_log_probs_are_those_before_the_filters(model: LoadedModel) -> None:
    for text, response in zip(TEXTS, roll(model, top_k=2, top_p=0.5), strict=True):
        for context, token, logprob in zip(
            contexts(model, response, text), response.tokens, response.logprobs, strict=True
        ):
            assert logprob == pytest.approx(next_logprobs(model, context)[token], abs=1e-4)


def test_a_progress_callback_that_raises_ends_the_rollout_and_the_next_one_works(model: LoadedModel) -> None:
    class Stopped(Exception):  # noqa: N818  it is no error
        pass

    def stop(done: int, total: int) -> None:
        assert total == 12 * len(TEXTS)
        if done >= 8:
            raise Stopped

    expected = roll(model)
    with pytest.raises(Stopped):
        roll(model, progress=stop)
    assert roll(model) == expected


def test_a_tokenizer_whose_pad_is_the_end_token_gives_the_same_rollout(ending: LoadedModel, tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "model")
    make_tokenizer(pad_is_end=True).save_pretrained(folder)
    (folder / "config.json").write_text((ending.folder / "config.json").read_text())
    same = load_tiny(folder)
    assert same.tokenizer.pad_token_id == same.tokenizer.eos_token_id == 256
    one, other = (lay_out(make_prompts(m.tokenizer, TEXTS), roll(m)) for m in (ending, same))
    for name, a, b in zip(one._fields, one, other, strict=True):
        assert mx.array_equal(a, b) if isinstance(a, mx.array) else a == b, name


def test_padding_and_end_tokens_inside_a_response_are_response() -> None:
    prompts = [Prompt(4, "", "", [0, 257], {}), Prompt(9, "", "", [7, 0, 0], {})]
    batch = lay_out(prompts, [Response([5, 0, 257, 256, 0], [-1.0] * 5, "", True), Response([0], [-2.0], "", False)])
    assert batch.mask.tolist() == [[1.0] * 5, [1.0] + [0.0] * 4]
    assert batch.sequences.tolist() == [[0, 257, 5, 0, 257, 256, 0], [7, 0, 0, 0, 0, 0, 0]]
    assert batch.responses.tolist() == [[5, 0, 257, 256, 0], [0] * 5]
    assert batch.prompt_lengths.tolist() == [2, 3]
    assert batch.response_lengths.tolist() == [5, 1]
    assert batch.sampler_logprobs.tolist() == [[-1.0] * 5, [-2.0] + [0.0] * 4]
    assert (batch.truncated.tolist(), batch.prompt_indices) == ([1.0, 0.0], [4, 9])


OF_256 = ["mamba2"]  # a padded row of its batch needs chunks of 256, mlx-lm's step
LONG = ["mamba2", "nemotron_h", "qwen3_5"]


def prompts_of(lengths: Sequence[int]) -> list[Prompt]:
    return [
        Prompt(row, "", "", [(7 * row + 3 * place**2) % 250 for place in range(length)], {})
        for row, length in enumerate(lengths)
    ]


def responses_to(prompts: Sequence[Prompt], backbone: nn.Module, slots: int = 32) -> list[Response]:
    sampling = RolloutConfig(max_new_tokens=4, ignore_stop=True, slots=slots)
    return generate_responses(backbone, make_tokenizer(), prompts, sampling, key=mx.random.key(1))


def scored(prompt: Prompt, response: Response, backbone: nn.Module) -> list[float]:
    """Return the log-probs of the response's tokens by one forward pass without a cache."""
    logits = backbone(mx.array([prompt.tokens + response.tokens]))[0, len(prompt.tokens) - 1 : -1]
    logprobs = nn.log_softmax(logits.astype(mx.float32), axis=-1)
    return [row[token].item() for row, token in zip(logprobs, response.tokens, strict=True)]


def check(family: str, lengths: Sequence[int], chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    backbone, prompts = tiny_backbone(family, mx.float32), prompts_of(lengths)
    at_once = responses_to(prompts, backbone)
    monkeypatch.setattr(generation, "PREFILL_STEP", chunk)
    for prompt, one, other in zip(prompts, responses_to(prompts, backbone), at_once, strict=True):
        assert one.tokens == other.tokens
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
        assert one.logprobs == pytest.approx(scored(prompt, one, backbone), abs=1e-4)


@pytest.mark.parametrize("family", sorted(set(MUST_TRAIN) - set(OF_256)))
def test_prompts_read_in_chunks_are_continued_as_those_read_at_once(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(family, (45, 45, 37, 20, 3, 1), 8, monkeypatch)


@pytest.mark.parametrize("family", LONG)
def test_prompts_longer_than_the_step_of_a_recurrence_are_continued_as_scored(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(family, (600, 300, 200, 1), 256, monkeypatch)


def test_a_chunk_is_a_multiple_of_the_step_of_a_recurrence() -> None:
    assert generation.PREFILL_STEP % 256 == 0, "or mamba2 continues a padded batch wrongly"


@pytest.mark.parametrize("family", ["gemma3", "mamba2", "qwen3_5", "recurrent_gemma"])  # the last one row at a time
def test_samples_of_a_prompt_admitted_one_after_the_other_are_those_admitted_at_once(family: str) -> None:
    backbone = tiny_backbone(family, mx.float32)
    prompts = [prompt for prompt in prompts_of((20, 9, 1)) for _ in range(4)]
    at_once = responses_to(prompts, backbone)
    for slots in (3, 6):
        for one, other in zip(responses_to(prompts, backbone, slots), at_once, strict=True):
            assert one.tokens == other.tokens
            assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


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


@pytest.mark.parametrize(
    ("spelt", "stop", "text", "tokens"),
    [
        ("abcdefghij", ["fgh"], "bcde", 7),
        (ALPHABET, [ALPHABET[10:60]], ALPHABET[1:10], 59),  # longer than any window of tokens
        ("abé§z", ["é§"], "b", 5),  # of several bytes a letter
        ("ab<special0>", ["special", "<sp"], "b", 2),  # the earliest of those that one token completes
        ("ab<special0>", ["special", "l0", "<sp"], "b", 2),
        ("ab&-&-&", ["-&"], "b&", 2),  # the first of its places within a token
    ],
)
def test_a_stop_text_ends_a_response_of_which_every_token_is_kept(
    spelt: str, stop: list[str], text: str, tokens: int
) -> None:
    for limit in (64, tokens):  # at the last place it is no truncation
        (response,) = spell(spelt, [spelt[0]], stop=stop, max_new_tokens=limit)
        assert (response.text, response.truncated) == (text, False)
        assert len(response.tokens) == len(response.logprobs) == tokens
        assert response.tokens == Tokenizer().encode(spelt)[1 : 1 + tokens]


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


def test_the_stop_token_is_not_in_the_text_also_as_a_stop_text() -> None:
    for stop in ([], ["<end>"]):
        (response,) = spell("abc<end>", ["a"], stop=stop)
        assert (response.text, response.tokens[-1], response.truncated) == ("bc", 256, False)


INF = float("inf")
LARGEST_DRAW = 1 - 2**-24  # of a uniform number in float32


def draws(logits: np.ndarray, count: int, seed: int = 0, **sampling: float) -> np.ndarray:
    rows, keys = mx.broadcast_to(mx.array(logits.astype(np.float32)), (count, len(logits))), mx.random.key(seed)
    return np.array(sample_tokens(rows, mx.random.split(keys, count), RolloutConfig.model_validate(sampling)).tokens)


def filtered(logits: np.ndarray, *, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> np.ndarray:
    """Return the sampled distribution token by token in float64: temperature, top-k, top-p, each renormalised."""
    probabilities = np.exp(logits.astype(np.float64) / temperature)
    order, mass, kept = np.argsort(-probabilities)[: top_k or None], 0.0, []
    total = probabilities[order].sum()
    for token in order:
        if mass < top_p:
            kept.append(token)
        mass += probabilities[token] / total
    return np.where(np.isin(np.arange(len(logits)), kept), probabilities, 0) / probabilities[kept].sum()


def vocabulary(words: int, dtype: mx.Dtype) -> tuple[mx.array, np.ndarray]:
    """Return logits in `dtype`, 20 of which have half of the mass, and their log-softmax in float64."""
    random = np.random.default_rng(0)
    logits = random.normal(size=words) * 2.5
    logits[:20] += np.log(np.exp(logits[20:]).sum() / np.exp(logits[:20]).sum())
    row = mx.array(logits.astype(np.float32)).astype(dtype)
    exact = np.array(row.astype(mx.float32)).astype(np.float64)
    return row, exact - np.log(np.exp(exact).sum())


@pytest.mark.parametrize(
    "sampling",
    [
        {"top_k": 5, "top_p": 0.7},
        {"top_k": 40, "top_p": 0.5},
        {"top_k": 3, "top_p": 0.9, "temperature": 1.6},
        {"top_k": 12, "top_p": 0.6, "temperature": 0.7},
        {"top_k": 1, "top_p": 0.1},
        {"top_k": 8},
        {"top_p": 0.6},
    ],
)
def test_filters_leave_the_distribution_of_temperature_then_top_k_then_top_p(sampling: dict[str, Any]) -> None:
    count = 4000
    logits = np.random.default_rng(5).normal(size=300) * 2
    expected = count * filtered(logits, **sampling)
    seen = np.bincount(draws(logits, count, **sampling), minlength=len(logits))
    kept = expected > 0
    assert not seen[~kept].any()
    assert (seen[expected > 9] > 0).all()
    assert (abs(seen - expected)[kept] <= 5 * np.sqrt(expected[kept]) + 1).all()


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16])
@pytest.mark.parametrize(
    ("words", "temperature", "count"),
    [(1000, 1.0, 8000), (49_152, 1.0, 2000), (49_152, 0.7, 2000), (150_000, 1.0, 1000)],
)
def test_a_vocabulary_is_drawn_as_the_softmax_says_in_every_type(
    words: int, temperature: float, count: int, dtype: mx.Dtype
) -> None:
    row, logprobs = vocabulary(words, dtype)
    logprobs = logprobs / temperature
    logprobs -= np.log(np.exp(logprobs).sum())
    sampling = RolloutConfig(temperature=temperature)
    keys = mx.random.split(mx.random.key(0), count).reshape(-1, 100, 2)
    rows = mx.broadcast_to(row, (100, len(logprobs)))
    drawn = np.concatenate([np.array(sample_tokens(rows, some, sampling).tokens) for some in keys])
    # Ten groups of one probability each, likeliest tokens first: how often each is drawn.
    order = np.argsort(-logprobs)
    masses = np.exp(logprobs[order])
    group_of = np.empty(len(order), dtype=int)
    group_of[order] = np.minimum(10 * (np.cumsum(masses) - masses / 2), 9).astype(int)
    expected = count * np.bincount(group_of, weights=np.exp(logprobs), minlength=10)
    seen = np.bincount(group_of[drawn], minlength=10)
    assert (
        (seen - expected)[expected > 5] ** 2 / expected[expected > 5]
    ).sum() < 27.9  # one in a thousand of 9 degrees
    probabilities = np.exp(logprobs)
    entropy = -(probabilities * logprobs).sum()
    deviation = np.sqrt((probabilities * (logprobs + entropy) ** 2).sum() / count)
    assert -logprobs[drawn].mean() == pytest.approx(entropy, abs=4 * deviation)


@pytest.mark.parametrize("place", [0, 1, 255, 256, 300])
def test_a_word_at_minus_infinity_is_never_drawn(place: int) -> None:
    logits = np.full(301, -INF)
    logits[place] = -3.0
    assert set(draws(logits, 50)) == {place}


def test_adding_a_constant_or_very_large_logits_change_nothing() -> None:
    logits = np.linspace(-4, 4, 64)
    assert (draws(logits, 50) == draws(logits + 1024, 50)).all()
    assert set(draws(np.array([1e30, -1e30, 0.0]), 20)) == {0}


@pytest.mark.parametrize(
    ("weights", "sums"),
    [
        ([1.0, 0.0, 0.0, 1.0, 0.0], [1.0, 1.0 - 2**-24, 1.0 + 2**-23, 2.0, 2.0]),  # a rounding up before a weight
        ([1.0, 0.0, 1.0, 0.0, 0.0], [1.0, 1.0, 2.0, 2.0 - 2**-23, 2.0 + 2**-22]),  # a rounding up after the last
        ([0.0, 1.0, 1.0, 0.0, 0.0], [2**-24, 1.0, 2.0, 2.0 - 2**-23, 2.0 - 2**-23]),  # the last is not the largest
    ],
)
def test_sums_that_fall_by_a_rounding_never_draw_a_weight_of_0(weights: list[float], sums: list[float]) -> None:
    draws = mx.array([0.0, 0.25, 0.5 - 2**-25, 0.5, 0.5 + 2**-24, 0.75, 1 - 2**-23, LARGEST_DRAW])
    rows = (mx.broadcast_to(mx.array(row), (draws.size, len(row))) for row in (sums, weights))
    found = _first_above(*rows, draws).tolist()
    likely = [place for place, weight in enumerate(weights) if weight > 0]
    assert set(found) == set(likely)
    assert found == sorted(found)


def test_logits_that_are_nan_still_give_a_token_of_the_vocabulary() -> None:
    """The loss reports them; an index beyond the vocabulary would read foreign memory."""
    drawn = sample_tokens(mx.full((3, 700), math.nan), mx.random.split(mx.random.key(0), 3), RolloutConfig())
    assert drawn.tokens.max().item() < 700


LENGTHS = [(3, 4), (5, 1), (2, 6), (4, 2)]  # of prompt and response


def filled() -> Experience:
    batch = random_batch(LENGTHS)
    arrays = mx.random.normal((7, *batch.mask.shape), key=mx.random.key(0))
    names = ("logprobs", "ref_logprobs", "kl", "rewards", "values", "td_errors", "advantages")
    return batch._replace(**dict(zip(names, arrays, strict=True)), scores=mx.arange(4.0))


# Taking rows


def test_taken_rows_keep_their_order_and_are_cut_to_the_longest_of_them() -> None:
    batch = filled()
    part = batch.take([3, 1])
    assert part.sequences.shape == (2, 6)
    assert part.responses.shape == part.mask.shape == part.values.shape == (2, 2)
    assert part.texts == [batch.texts[3], batch.texts[1]]
    assert part.prompt_indices == [3, 1]
    assert part.scores.tolist() == [3.0, 1.0]
    assert part.entropy is None
    assert batch.take(range(1, 3)).texts == batch.take([1, 2]).texts


def test_cutting_loses_no_real_token() -> None:
    batch = filled()
    for rows in ([0], [2, 0], [1, 3, 2]):
        part = batch.take(rows)
        for place, row in enumerate(rows):
            start, count = LENGTHS[row]
            assert part.sequences[place, : start + count].tolist() == batch.sequences[row, : start + count].tolist()
            assert part.values[place, :count].tolist() == batch.values[row, :count].tolist()
            assert part.mask[place].sum().item() == count


def test_one_token_is_one_column_and_a_response_without_any_keeps_one() -> None:
    batch = random_batch([(3, 1), (2, 0), (2, 5)])
    for rows in ([0], [1], [1, 0]):
        part = batch.take(rows)
        assert part.responses.shape == part.mask.shape == (len(rows), 1)
        assert part.mask[:, 0].tolist() == [1.0 if row == 0 else 0.0 for row in rows]


# Putting together


@given(st.permutations(range(4)), st.integers(1, 4), st.integers(0, 1), st.booleans())
def test_fields_computed_for_parts_in_any_order_join_to_those_of_the_batch(
    order: list[int], size: int, extra: int, deep: bool
) -> None:
    batch = random_batch(LENGTHS)
    shape = (4, 6 + extra, 3) if deep else (4, 6 + extra)
    wanted = mx.arange(4 * (6 + extra) * (3 if deep else 1), dtype=mx.int32).reshape(shape) + 1
    groups = [order[start : start + size] for start in range(0, 4, size)]
    widths = [max(LENGTHS[row][1] for row in group) + extra for group in groups]
    parts = [wanted[mx.array(group), :width] for group, width in zip(groups, widths, strict=True)]
    together = batch.gathered(parts, order, extra=extra)
    assert (together.shape, together.dtype) == (wanted.shape, wanted.dtype)
    for row, (_, count) in enumerate(LENGTHS):
        assert together[row, : count + extra].tolist() == wanted[row, : count + extra].tolist()
        assert not together[row, count + extra :].any()


# Cuts


@given(st.lists(st.integers(1, 30), max_size=12), st.integers(1, 100))
def test_micro_batches_hold_every_row_once_within_the_budget_longest_first(lengths: list[int], budget: int) -> None:
    groups = list(micro_batch_rows(lengths, budget))
    assert sorted(row for group in groups for row in group) == list(range(len(lengths)))
    for group in groups:
        assert len(group) == 1 or len(group) * max(lengths[row] for row in group) <= budget
    flat = [lengths[row] for group in groups for row in group]
    assert flat == sorted(flat, reverse=True)
    for group in groups[:-1]:
        assert (len(group) + 1) * lengths[group[0]] > budget  # not even one more would have fitted
