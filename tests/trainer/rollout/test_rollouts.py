"""Sampling: from which distribution, by which keys, and until where, compared with a loop without a cache."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx_lm.models.cache import KVCache
from tiny import FAMILIES, load_tiny, make_checkpoint, make_prompts, make_tokenizer

from trainer.config.schema import RolloutConfig
from trainer.data import Prompt
from trainer.models.backbone import LoadedModel
from trainer.rollout.generation import Response, generate_responses, lay_out, sample_tokens

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


def roll(model: LoadedModel, texts: list[str] | None = None, *, seed: int = 3, **sampling: Any) -> list[Response]:
    prompts = make_prompts(model.tokenizer, TEXTS if texts is None else texts)
    settings = RolloutConfig(**{"max_new_tokens": 12} | sampling)
    return generate_responses(model.backbone, model.tokenizer, prompts, settings, key=mx.random.key(seed))


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
    prompts = make_prompts(ending.tokenizer, TEXTS * 3)
    sampling = RolloutConfig(max_new_tokens=24, slots=2)
    responses = generate_responses(
        ending.backbone,
        ending.tokenizer,
        prompts,
        sampling,
        key=mx.random.key(3),
        progress=lambda done, total: steps.append(done - sum(steps)),
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


@pytest.mark.parametrize("temperature", [0.7, 1.3])
def test_top_k_leaves_the_k_likeliest(model: LoadedModel, temperature: float) -> None:
    for text, response in zip(TEXTS, roll(model, top_k=3, temperature=temperature), strict=True):
        for context, token in zip(contexts(model, response, text), response.tokens, strict=True):
            assert token in np.argsort(next_logprobs(model, context))[-3:]


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


def test_samples_of_a_prompt_of_many_tokens_share_its_prefill(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.rollout.generation.PREFILL_TOKENS", 3)
    model, sampling = Recorded(), RolloutConfig(max_new_tokens=1, ignore_stop=True)
    prompts = [Prompt(0, "", "", [5, 6, 7, 8], {})] * 6
    generate_responses(model, make_tokenizer(), prompts, sampling, key=mx.random.key(0))
    assert model.shapes == [(1, 3), (6, 1)]


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
    prompts = make_prompts(model.tokenizer, TEXTS)
    with pytest.raises(Stopped):
        generate_responses(
            model.backbone,
            model.tokenizer,
            prompts,
            RolloutConfig(max_new_tokens=12),
            key=mx.random.key(3),
            progress=stop,
        )
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
