"""The starter model, judged by its answers."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.models import starter
from trainer.models.starter import starter_model

ENGLISH = (
    "The sun rose over the quiet village, and the people began their day. Farmers walked to the fields, "
    "children went to school, and the baker opened his shop. It was a warm morning in early spring, and the "
    "birds were singing in the trees."
)


@pytest.fixture(scope="session")
def folder() -> Path:
    """Return the real conversion, shared by all tests."""
    return starter_model()


@pytest.fixture(scope="session")
def loaded(folder: Path) -> tuple[Any, Any]:
    """Return model and tokenizer, loaded by mlx-lm."""
    from mlx_lm import load

    model, tokenizer, *_ = load(str(folder))
    return model, tokenizer


@pytest.fixture(scope="session")
def tokenizer(loaded: tuple[Any, Any]) -> Any:
    return loaded[1]


def continuation(loaded: tuple[Any, Any], prompt: str | list[int], tokens: int) -> str:
    from mlx_lm import generate

    text: str = generate(*loaded, prompt=prompt, max_tokens=tokens)
    return text


# What the model says


@pytest.mark.starter
def test_a_chat_prompt_gets_an_answer_that_ends(loaded: tuple[Any, Any]) -> None:
    tokenizer = loaded[1]
    question = [{"role": "user", "content": "What is 2+2?"}]
    prompt = tokenizer.apply_chat_template(question, add_generation_prompt=True)
    assert tokenizer.decode(prompt) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nWhat is 2+2?<|im_end|>\n<|im_start|>assistant\n"
    )
    answer = continuation(loaded, prompt, 40)
    assert "4" in answer
    assert len(tokenizer.encode(answer)) < 40


@pytest.mark.starter
def test_plain_english_has_the_perplexity_that_transformers_finds(loaded: tuple[Any, Any]) -> None:
    model, tokenizer = loaded
    tokens = mx.array(tokenizer.encode(ENGLISH))[None]
    log_probs = -mx.fast.cross_entropy(model(tokens[:, :-1]), tokens[:, 1:])
    # LlamaForCausalLM of transformers 5.23 in float32, from this very folder, gives 16.156.
    assert mx.exp(-log_probs.mean()).item() == pytest.approx(16.156, rel=1e-3)


# Its tokenizer


@pytest.mark.starter
def test_digits_are_split_one_by_one_in_mlx_lm_and_in_transformers(folder: Path, tokenizer: Any) -> None:
    from transformers import AutoTokenizer

    for each in (tokenizer, AutoTokenizer.from_pretrained(folder)):
        assert [each.decode([token]) for token in each.encode("in 2048 ²")] == ["in", " ", *"2048", " ", "²"]


@pytest.mark.starter
@given(text=st.text(st.characters(exclude_categories=["Cc", "Cn", "Cs"])))
def test_any_text_comes_back_from_its_tokens(tokenizer: Any, text: str) -> None:
    """The vocabulary lacks some bytes: those of six control characters and of unassigned planes."""
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.starter
def test_control_tokens_are_single_and_end_a_reply(tokenizer: Any) -> None:
    assert tokenizer.encode("<|endoftext|><|im_start|><|im_end|>") == [0, 1, 2]
    assert set(tokenizer.eos_token_ids) == {0, 2}
    assert (tokenizer.bos_token_id, tokenizer.pad_token_id) == (1, 2)


# The conversion


def test_undoing_the_rope_permutation_inverts_llama_cpps() -> None:
    heads, head_dim, hidden = 3, 8, 5
    weight = np.arange(heads * head_dim * hidden, dtype=np.float32).reshape(heads * head_dim, hidden)
    permuted = np.empty_like(weight)  # llama.cpp's: row 2 i + half of a head holds row half d/2 + i
    for head in range(heads):
        for half in range(2):
            for i in range(head_dim // 2):
                source = head * head_dim + half * head_dim // 2 + i
                permuted[head * head_dim + 2 * i + half] = weight[source]
    assert np.array_equal(starter.without_rope_permutation(mx.array(permuted), heads), weight)


@pytest.mark.starter
def test_the_weights_are_the_exact_values_of_the_four_bit_blocks(folder: Path) -> None:
    """A Q4_1 block is a half-precision scale d and minimum m, then 32 nibbles q: w = d q + m."""
    tensors: Any = mx.load(str(starter.installed_gguf()), format="gguf")
    stored: Any = mx.load(str(folder / "model.safetensors"))
    name = "blk.7.ffn_down"
    words = np.array(tensors[f"{name}.weight"])[:, :, None]
    nibbles = (words >> np.arange(0, 32, 4, dtype=np.uint32)) & 15
    nibbles = nibbles.reshape(words.shape[0], -1, 32).astype(np.float64)
    scale, minimum = (
        np.array(tensors[f"{name}.{part}"]).astype(np.float64)[:, :, None] for part in ("scales", "biases")
    )
    exact = (nibbles * scale + minimum).reshape(words.shape[0], -1)
    assert np.array_equal(np.array(stored["model.layers.7.mlp.down_proj.weight"]), exact.astype(np.float32))


@pytest.mark.starter
def test_the_configuration_is_complete_for_transformers(folder: Path) -> None:
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder)
    assert config.architectures == ["LlamaForCausalLM"]
    assert (config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (9, 3, 64)
    assert (config.hidden_size, config.intermediate_size, config.num_hidden_layers) == (576, 1536, 30)
    assert config.rope_parameters["rope_theta"] == 100_000
    assert config.rms_norm_eps == 1e-5
    assert config.tie_word_embeddings
    assert config.vocab_size == len(json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"])
