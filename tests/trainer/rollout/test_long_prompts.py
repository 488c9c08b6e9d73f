"""Prompts that are read in several chunks, and past the windows and steps of mlx-lm, continue as scoring says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import pytest
from tiny import make_tokenizer

from benchmarks.family_values import MUST_TRAIN
from trainer.config.schema import RolloutConfig
from trainer.data import Prompt
from trainer.rollout import generation
from trainer.rollout.generation import Response, generate_responses

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
OF_256 = ["mamba2"]  # a padded row of its batch needs chunks of 256, mlx-lm's step
LONG = ["mamba2", "nemotron_h", "qwen3_5"]


@pytest.fixture(autouse=True)
def _benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def backbone_of(family: str) -> nn.Module:
    from families import tiny_backbone

    backbone: nn.Module = tiny_backbone(family, mx.float32)
    return backbone


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
    backbone, prompts = backbone_of(family), prompts_of(lengths)
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
    backbone = backbone_of(family)
    prompts = [prompt for prompt in prompts_of((20, 9, 1)) for _ in range(4)]
    at_once = responses_to(prompts, backbone)
    for slots in (3, 6):
        for one, other in zip(responses_to(prompts, backbone, slots), at_once, strict=True):
            assert one.tokens == other.tokens
            assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
