"""Policy, reference and critic of one backbone; models that cannot be used, refused in one line; the hub; precision."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import mlx.core as mx
import mlx.nn as nn
import mlx_lm
import numpy as np
import pytest
from batches import moved
from huggingface_hub.utils import filter_repo_objects
from tiny import FAMILIES, load_tiny, make_checkpoint, make_prompts, make_tokenizer

from trainer.arrays import filled
from trainer.config.schema import BackboneConfig, ModelConfig, RolloutConfig
from trainer.errors import ModelError
from trainer.models.actor_critic import ActorCriticLLM
from trainer.models.backbone import LoadedModel, cast_backbone, load_backbone, load_tokenizer, quantize_backbone
from trainer.models.forward import Forward
from trainer.models.kernels import own_kernel_folder
from trainer.ppo import steps
from trainer.rollout.experience import Experience
from trainer.rollout.generation import generate_responses, lay_out

TEXTS = ["a prompt longer than the sliding window of gemma", "a", "some text"]
LENGTHS = [(20, 3), (1, 5), (4, 1)]  # of prompt and response; 20 is past gemma's sliding window


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def every_model(family: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp(family) / "model", family)


def all_logits(forward: Forward) -> mx.array:
    return forward.head(filled(forward.states))


def make_actor(every_model: Path, *, fresh: bool = False, **settings: Any) -> tuple[ActorCriticLLM, LoadedModel]:
    model = load_tiny(every_model)
    config = ModelConfig(**{"value_model": "head", **settings})
    actor = ActorCriticLLM(model.backbone, config, key=mx.random.key(1))
    if not fresh:
        actor.update_policy(moved(actor.policy_parameters(), seed=2, scale=0.3))
        actor.update_value(moved(actor.value_parameters(), seed=3, scale=0.3))
    return actor, model


def sequences(pad: int = 0) -> tuple[mx.array, mx.array, int]:
    """Return random ids of LENGTHS, prompt lengths and T. Responses hold token 0 and the end token, too."""
    draws = np.random.default_rng(0)
    ids = np.full((len(LENGTHS), max(map(sum, LENGTHS))), pad)
    for row, (start, count) in enumerate(LENGTHS):
        ids[row, : start + count] = draws.integers(0, 256, start + count)
        ids[row, start : start + 2] = [0, 256][:count]
    return mx.array(ids), mx.array([start for start, _ in LENGTHS]), max(count for _, count in LENGTHS)


def rollout(actor: ActorCriticLLM, model: LoadedModel, temperature: float) -> Experience:
    sampling = RolloutConfig(max_new_tokens=10, temperature=temperature)
    prompts = make_prompts(model.tokenizer, TEXTS)
    found = generate_responses(actor.backbone, model.tokenizer, prompts, sampling, key=mx.random.key(5))
    return lay_out(prompts, found)


@pytest.mark.parametrize("tied", [True, False])
def test_logits_are_the_models_own_whether_its_head_is_tied_or_not(family: str, tied: bool, tmp_path: Path) -> None:
    """Up to rounding: a BLAS may sum a row in another order where the product has other rows beside it."""
    actor, model = make_actor(make_checkpoint(tmp_path / "model", family, tied=tied))
    ids, starts, width = sequences()
    logits, whole = all_logits(actor(ids, starts, width)), model.backbone(ids)
    for row, (start, count) in enumerate(LENGTHS):
        np.testing.assert_allclose(logits[row, :count], whole[row, start - 1 : start - 1 + count], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("value_model", ["head", "adapter"])
def test_values_are_the_head_on_the_state_before_each_token_and_after_the_last(
    every_model: Path, value_model: str
) -> None:
    actor, model = make_actor(every_model, value_model=value_model)
    ids, starts, width = sequences()
    before = filled(actor(ids, starts, width, want="values").values)
    if value_model == "head":
        head, states = actor.value_parameters(), np.array(model.backbone.model(ids))
        expected = states @ np.array(head["head.weight"]) + head["head.bias"].item()
        for row, (start, count) in enumerate(LENGTHS):
            np.testing.assert_allclose(before[row, : count + 1], expected[row, start - 1 : start + count], atol=1e-5)
    ids[1, 1 + 2] = 77  # another token 2 of the response of row 1
    after = filled(actor(ids, starts, width).values)
    np.testing.assert_array_equal(before[1, :3], after[1, :3])
    assert all(mx.abs(before[1, 3:] - after[1, 3:]) > 1e-4)


def test_a_padded_batch_scores_as_its_rows_alone_whatever_the_padding(every_model: Path) -> None:
    actor, _ = make_actor(every_model)
    ids, starts, width = sequences()
    batch, repadded = actor(ids, starts, width), actor(sequences(pad=257)[0], starts, width)
    for row, (start, count) in enumerate(LENGTHS):
        alone = actor(ids[row : row + 1, : start + count], starts[row : row + 1], count)
        np.testing.assert_allclose(all_logits(batch)[row, :count], all_logits(alone)[0], atol=1e-4)
        np.testing.assert_allclose(batch.values[row, : count + 1], alone.values[0], atol=1e-4)
        assert mx.array_equal(all_logits(batch)[row, :count], all_logits(repadded)[row, :count])
        assert mx.array_equal(batch.values[row, : count + 1], repadded.values[row, : count + 1])


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.3])
def test_the_samplers_log_probs_are_the_teacher_forced_ones_at_its_temperature(
    every_model: Path, temperature: float
) -> None:
    actor, model = make_actor(every_model)
    batch = rollout(actor, model, temperature)
    scored = steps.add_policy_logprobs_and_values(actor, batch, temperature=temperature, micro_batch_tokens=200)
    assert scored.logprobs is not None
    np.testing.assert_allclose(scored.logprobs * batch.mask, batch.sampler_logprobs * batch.mask, atol=1e-4)
    assert mx.all((batch.sampler_logprobs < 0) == (batch.mask > 0))


def test_a_fresh_adapter_has_a_kl_of_exactly_zero_and_a_trained_one_does_not(every_model: Path) -> None:
    for fresh in (True, False):
        actor, model = make_actor(every_model, fresh=fresh)
        batch = rollout(actor, model, 1.0)
        batch = steps.add_policy_logprobs_and_values(actor, batch, temperature=1.0, micro_batch_tokens=200)
        scored = steps.add_kl_to_sa_pairs(actor, batch, temperature=1.0, estimator="k1", micro_batch_tokens=200)
        assert scored.kl is not None
        assert (mx.abs(scored.kl).max().item() == 0) == fresh


def test_the_reference_is_the_base_model_bit_for_bit_and_the_policy_returns_after_an_error(every_model: Path) -> None:
    base, (actor, model) = load_tiny(every_model).backbone, make_actor(every_model)
    ids = sequences()[0]
    with actor.reference():
        assert mx.array_equal(model.backbone(ids), base(ids))
    policy = model.backbone(ids)
    assert not mx.allclose(policy, base(ids), atol=0.1)
    with pytest.raises(KeyError), actor.reference():
        raise KeyError("anything")
    assert mx.array_equal(model.backbone(ids), policy)


@pytest.mark.parametrize("change", ["missing", "extra", "another shape"])
def test_arrays_of_another_model_are_refused_by_name(every_model: Path, change: str) -> None:
    actor, _ = make_actor(every_model)
    for update, own in (
        (actor.update_policy, actor.policy_parameters()),
        (actor.update_value, actor.value_parameters()),
    ):
        name = max(own)
        others = {
            "missing": {other: array for other, array in own.items() if other != name},
            "extra": {**own, "model.layers.99.lora_a": mx.zeros((2, 2))},
            "another shape": {**own, name: mx.zeros((3, 3, 3))},
        }[change]
        with pytest.raises(ModelError, match=r"trained on another model: '(.*)' is .*, this model has .*model\.path"):
            update(others)
    assert actor.policy_parameters().keys() == make_actor(every_model)[0].policy_parameters().keys()


def test_the_critics_adapter_is_independent_of_the_policys(every_model: Path) -> None:
    actor, model = make_actor(every_model, value_model="adapter")
    ids, starts, width = sequences()
    policy, logits = actor.policy_parameters(), model.backbone(ids)
    values = actor(ids, starts, width).values
    assert all(mx.array_equal(array, policy[name]) for name, array in actor.policy_parameters().items())
    with pytest.raises(ValueError, match=r"."):
        actor(ids, starts[:2], width, want="values")  # fails inside, with the critic's adapter on
    assert mx.array_equal(model.backbone(ids), logits)
    actor.update_policy(moved(policy, seed=9, scale=0.3))
    assert mx.array_equal(actor(ids, starts, width, want="values").values, values)


@pytest.mark.parametrize("value_model", ["head", "adapter"])
def test_only_requested_outputs_are_computed_and_an_untrained_critic_gives_zero(
    every_model: Path, value_model: str
) -> None:
    actor, _ = make_actor(every_model, fresh=True, value_model=value_model)
    ids, starts, width = sequences()
    assert actor(ids, starts, width, want="logits").values is None
    forward = actor(ids, starts, width, want="values")
    assert forward.states is None
    assert forward.values is not None
    assert forward.values.tolist() == [[0.0] * (width + 1)] * len(LENGTHS)


@pytest.mark.parametrize("problem", ["", "[metal_kernel] No Metal back-end."])
def test_a_family_without_a_trunk_or_that_mlx_lm_cannot_compute_here_is_refused_with_the_reason(problem: str) -> None:
    class Odd(nn.Module):
        __module__ = "mlx_lm.models.odd"

        def __call__(self, tokens: mx.array) -> mx.array:
            if problem:
                raise ValueError(problem)
            return tokens

    with pytest.raises(ModelError, match=r"family odd cannot be trained here .*: choose another") as raised:
        ActorCriticLLM(Odd(), ModelConfig(), key=mx.random.key(1))
    assert "\n" not in str(raised.value)
    assert not problem or f"mlx-lm fails on a pass over two tokens: {problem}" in str(raised.value)


def test_a_family_that_scales_states_between_trunk_and_head_is_refused(every_model: Path) -> None:
    backbone = load_tiny(every_model).backbone
    plain, trunk = type(backbone), type(backbone.model)

    class Scaled(plain):  # type: ignore[misc, valid-type]
        def __call__(self, tokens: mx.array, cache: Any = None) -> mx.array:
            return super().__call__(tokens, cache) * (2.0 if isinstance(self.model, trunk) else 1.0)

    backbone.__class__ = Scaled
    with pytest.raises(ModelError, match="cannot separate its head from its trunk: alone, the head gives other logits"):
        ActorCriticLLM(backbone, ModelConfig(), key=mx.random.key(1))


IDS = mx.array([[1, 2, 3, 250, 0, 256, 7, 8]])


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("models") / "model")


@pytest.fixture
def folder(llama: Path, tmp_path: Path) -> Path:
    """Make a checkpoint to damage."""
    return Path(shutil.copytree(llama, tmp_path / "model"))


def load_tokenizer_first(config: ModelConfig) -> None:
    load_backbone(config, tokenizer=load_tokenizer(config))


def refusal(path: Path | str, load: Callable[[ModelConfig], object] = load_backbone, **settings: Any) -> str:
    with pytest.raises(ModelError) as raised:
        load(ModelConfig(path=str(path), **settings))
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 450
    return str(raised.value)


def edit(file: Path, **changes: Any) -> None:
    """Change keys of a JSON file; None takes the key out."""
    content = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


def cut(file: Path, share: float) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: int(len(content) * share)])


def config(**changes: Any) -> Callable[[Path], None]:
    return lambda folder: edit(folder / "config.json", **changes)


def write(name: str, content: bytes) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (folder / name).write_bytes(content)

    return damage


def without(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def without_end(folder: Path) -> None:
    edit(folder / "config.json", eos_token_id=None)
    edit(folder / "tokenizer_config.json", eos_token=None)


def pipe(name: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)

    return damage


def add_tokens(folder: Path, *tokens: str) -> None:
    """Add tokens to the tokenizer without rows for them in the embedding."""
    tokenizer = make_tokenizer()
    tokenizer.add_tokens(list(tokens))
    tokenizer.save_pretrained(folder)


DEEP = b'{"model_type": "llama", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
DAMAGES: dict[str, tuple[Callable[[Path], None], str, str]] = {  # what is done, what is said, the way out
    "no config": (without("config.json"), "has no config.json", "name a folder"),
    "config cut short": (lambda f: cut(f / "config.json", 0.5), "config.json is not JSON", "fetch the model"),
    "no family": (config(model_type=None), "has no model_type", "name a folder"),
    "unknown family": (config(model_type="nosuch"), "Model type nosuch not supported", "a family that mlx-lm supports"),
    "a field missing": (config(hidden_size=None), "'hidden_size'", "fetch the model again, or choose"),
    "a field of another type": (config(hidden_size="x"), "cannot be loaded", "fetch the model again"),
    "no weights": (without("model.safetensors"), "has no model*.safetensors", "`mlx_lm.convert"),
    "half the weights": (lambda f: cut(f / "model.safetensors", 0.5), "incomplete download", "fetch the model again"),
    "weights no safetensors": (write("model.safetensors", b"<html>" * 90), "header", "fetch the model again"),
    "other shapes": (config(hidden_size=64), "Expected shape (264, 64) but received shape (264, 32)", "fetch"),
    "too few layers": (config(num_hidden_layers=3), "Missing 9 parameters: model.layers.2.", "fetch the model again"),
    "too many layers": (config(num_hidden_layers=1), "not in model: model.layers.1.", "fetch the model again"),
    "no tokenizer_config": (without("tokenizer_config.json"), "has no tokenizer_config.json", "name a folder"),
    "no tokenizer": (without("tokenizer.json"), "its tokenizer cannot be loaded", "fetch the model again"),
    "tokenizer cut short": (lambda f: cut(f / "tokenizer.json", 0.5), "tokenizer.json is not JSON", "fetch the model"),
    "tokenizer of nothing": (write("tokenizer.json", b"{}"), "its tokenizer cannot be loaded", "fetch the model"),
    "settings of generation a list": (write("generation_config.json", b"[]"), "cannot be loaded", "fetch the model"),
    "config nested deeply": (write("config.json", DEEP), "is not JSON (nested too deeply)", "fetch the model"),
    "2^40 tokens": (config(vocab_size=2**40), "cannot be loaded (Integer value", "fetch the model again"),
    "a billion layers": (config(num_hidden_layers=10**9), "= 1000000000, but there are only 20 weights", "fetch"),
    "a rotation in words": (config(rope_theta="x"), "cannot be loaded", "fetch the model again"),
    "weights a pipe": (pipe("model.safetensors"), "model.safetensors is not a file", "fetch the model again"),
    "index a pipe": (pipe("model.safetensors.index.json"), "index.json is not a file", "fetch the model again"),
    "template a pipe": (pipe("chat_template.jinja"), "chat_template.jinja is not a file", "fetch the model again"),
    "tokens without rows": (
        lambda f: add_tokens(f, "<a>", "<b>"),
        "its tokenizer has ids up to 265 ('<b>'), but its embedding has 264 rows",
        "resize the embedding",
    ),
    "an end token without a row": (
        lambda f: (without_end(f), edit(f / "config.json", eos_token_id=9999)),  # type: ignore[func-returns-value]
        "its tokenizer has no end token",
        "set eos_token_id",
    ),
    "no end token": (without_end, "its tokenizer has no end token", "set eos_token_id"),
}


@pytest.mark.parametrize("load", [load_backbone, load_tokenizer_first])
@pytest.mark.parametrize(("damage", "said", "way_out"), DAMAGES.values(), ids=list(DAMAGES))
def test_a_damaged_model_is_refused_in_one_line(
    damage: Callable[[Path], None], said: str, way_out: str, load: Callable[[ModelConfig], object], folder: Path
) -> None:
    damage(folder)
    message = refusal(folder, load)
    assert str(folder) in message
    assert said in message
    assert way_out in message


@pytest.mark.parametrize("load", [load_backbone, load_tokenizer])
def test_a_marker_of_images_without_a_row_is_encoded_as_text(load: Callable[[ModelConfig], Any], folder: Path) -> None:
    plain = load(ModelConfig(path=str(folder))).tokenizer.encode("a<image_soft_token>b")
    add_tokens(folder, "<image_soft_token>")
    assert make_tokenizer().encode("<image_soft_token>") == plain[1:-1]
    assert load(ModelConfig(path=str(folder))).tokenizer.encode("a<image_soft_token>b") == plain


def test_a_token_that_only_the_tokenizers_class_adds_is_encoded_as_text(folder: Path) -> None:
    plain = load_tiny(folder).tokenizer.encode("a<|endoftext|>b")
    edit(folder / "tokenizer_config.json", tokenizer_class="Qwen2Tokenizer")
    assert load_tiny(folder).tokenizer.encode("a<|endoftext|>b") == plain
    edit(folder / "tokenizer_config.json", pad_token="<|endoftext|>")
    assert "ids up to 264 ('<|endoftext|>'), but its embedding has 264 rows" in refusal(folder)


def test_a_model_loads_from_links_with_more_rows_than_tokens_and_one_end_token_of_several(
    folder: Path, tmp_path: Path
) -> None:
    edit(folder / "config.json", eos_token_id=[7, 9999])
    tokens = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
    edit(folder / "tokenizer.json", added_tokens=tokens[:2])
    (tmp_path / "snapshot").mkdir()
    for file in folder.iterdir():
        (tmp_path / "snapshot" / file.name).symlink_to(file)  # as the hub keeps it
    loaded = load_tiny(tmp_path / "snapshot")
    assert (loaded.context, len(loaded.tokenizer.get_vocab())) == (256, 258)
    assert loaded.tokenizer.eos_token_ids == {7, 256}, "one without a row does not count beside others"


def test_a_path_that_is_not_a_folder_is_refused(llama: Path) -> None:
    assert "no such folder; use 'starter'" in refusal(llama / "missing")
    assert "no such folder; use 'starter'" in refusal("smollm")
    assert "is a file: name the folder" in refusal(llama / "config.json")


def test_code_that_comes_with_a_model_is_not_run(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = tmp_path / "ran"
    (folder / "own.py").write_text(
        f"open({str(ran)!r}, 'w')\nclass Own: pass\nclass Model: pass\nclass ModelArgs: pass"
    )

    def asked(prompt: str = "") -> str:
        pytest.fail(f"a question on the terminal: {prompt}")

    monkeypatch.setattr("builtins.input", asked)
    edit(folder / "config.json", model_file="own.py")
    assert "wants to run its own code (own.py), which is never done: choose" in refusal(folder)
    edit(folder / "config.json", model_file=None)
    edit(folder / "tokenizer_config.json", tokenizer_class="Own", auto_map={"AutoTokenizer": ["own.Own", "own.Own"]})
    assert "its tokenizer cannot be loaded" in refusal(folder)
    assert not ran.exists()


def test_a_name_of_the_hub_is_fetched_without_code_and_at_the_revision(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[dict[str, Any]] = []

    def snapshot_download(name: str, **options: Any) -> str:
        calls.append({"name": name, **options})
        return str(llama)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    for revision, asked in (("", None), ("v2", "v2")):
        model = load_backbone(ModelConfig(path="someone/model", revision=revision))
        assert model.folder == llama
        assert (calls[-1]["name"], calls[-1]["revision"]) == ("someone/model", asked)
    repository = ["config.json", "model-00001-of-00002.safetensors", "tokenizer.json", "model.py", "sub/x.py", "a.bin"]
    assert list(filter_repo_objects(repository, allow_patterns=calls[0]["allow_patterns"])) == repository[:3]


def test_a_fetched_model_is_checked_like_a_local_one_and_an_unreachable_hub_is_reported(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    message = refusal("someone/no-such-model")
    assert message.startswith("model.path = 'someone/no-such-model' could not be fetched from the hub (")
    assert message.endswith("check the name and the connection, or give the path of a local folder")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name, **_: str(folder))
    edit(folder / "config.json", model_file="own.py")
    assert "model.path = 'someone/model' wants to run its own code" in refusal("someone/model")
    (folder / "config.json").unlink()
    assert "model.path = 'someone/model' has no config.json" in refusal("someone/model")


@pytest.mark.parametrize(
    ("mode", "bits", "error"), [("affine", 4, 0.2), ("affine", 8, 0.01), ("mxfp4", 4, 0.4), ("mxfp8", 8, 0.1)]
)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_quantised_model_loads_and_generates(family: str, mode: str, bits: int, error: float, tmp_path: Path) -> None:
    plain = make_checkpoint(tmp_path / "plain", family)
    folder = tmp_path / "quantised"
    mlx_lm.convert(str(plain), str(folder), quantize=True, q_bits=bits, q_group_size=32, q_mode=mode)
    model = load_tiny(folder)
    assert model.dtype == mx.float32
    quantised = (nn.QuantizedLinear, nn.QuantizedEmbedding)
    assert [m for m in model.backbone.modules() if isinstance(m, quantised)] == []  # on a CPU they are slow
    first, second = (np.array(m.backbone.model.embed_tokens.weight) for m in (model, load_tiny(plain)))
    assert 0 < np.abs(first - second).mean() / np.abs(second).mean() < error
    responses = generate_responses(
        model.backbone,
        model.tokenizer,
        make_prompts(model.tokenizer, ["some text"] * 2),
        RolloutConfig(max_new_tokens=4, ignore_stop=True),
        key=mx.random.key(0),
    )
    assert [len(response.tokens) for response in responses] == [4, 4]


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("scales", [mx.bfloat16, mx.float16])
def test_on_a_cpu_quantised_weights_are_exactly_what_the_file_says(bits: int, scales: mx.Dtype, llama: Path) -> None:
    backbone = load_tiny(llama).backbone
    backbone.set_dtype(scales)
    quantize_backbone(backbone, bits)
    packed = backbone.layers[0].mlp.up_proj
    words = np.array(packed.weight)[..., None] >> np.arange(0, 32, bits, dtype=np.uint32) & (2**bits - 1)
    groups = words.reshape(len(words), -1, 32).astype(np.float64)
    scale, bias = (np.array(packed[name].astype(mx.float32), np.float64)[..., None] for name in ("scales", "biases"))
    cast_backbone(backbone, "float32")
    found = np.array(backbone.layers[0].mlp.up_proj.weight).reshape(groups.shape)
    np.testing.assert_allclose(found, groups * scale + bias, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("wanted", "dtype"),
    [("auto", mx.float32), ("float32", mx.float32), ("bfloat16", mx.bfloat16)],
)
def test_weights_are_held_in_the_wanted_precision_and_auto_is_float32_on_a_cpu(
    wanted: str, dtype: mx.Dtype, llama: Path
) -> None:
    model = load_tiny(llama, dtype=wanted)
    assert model.dtype == model.backbone.layers[0].self_attn.q_proj.weight.dtype == dtype
    np.testing.assert_allclose(
        model.backbone(IDS).astype(mx.float32), load_tiny(llama).backbone(IDS), atol=0.3 if dtype != mx.float32 else 0
    )


def test_the_context_and_the_end_tokens_come_from_the_models_configuration(folder: Path) -> None:
    assert (load_tiny(folder).context, load_tiny(folder).tokenizer.eos_token_ids) == (256, {256})
    edit(folder / "config.json", max_position_embeddings=None, text_config={"max_position_embeddings": 99})
    edit(folder / "config.json", eos_token_id=[7, 256])
    assert (load_tiny(folder).context, load_tiny(folder).tokenizer.eos_token_ids) == (99, {7, 256})
    (folder / "generation_config.json").write_text('{"eos_token_id": 9}')
    assert load_tiny(folder).tokenizer.eos_token_ids == {9, 256}


# The folder that MLX loads compiled code from


@pytest.mark.parametrize("mode", [None, 0o777, 0o755])
def test_nobody_else_can_write_to_the_folder_of_kernels(
    mode: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    if mode is not None:
        (tmp_path / "mlx").mkdir()
        (tmp_path / "mlx").chmod(mode)
    own_kernel_folder()
    assert stat.S_IMODE((tmp_path / "mlx").stat().st_mode) == 0o700


@pytest.mark.parametrize("make", [Path.touch, lambda path: path.symlink_to(path.parent), Path.mkdir])
def test_another_users_folder_and_anything_but_a_folder_are_refused_before_a_model_is_loaded(
    make: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    make(tmp_path / "mlx")
    user = os.geteuid()
    if make is Path.mkdir:
        monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    with pytest.raises(ModelError, match="set TMPDIR"):
        load_backbone(BackboneConfig(path=str(tmp_path / "nowhere")))


@pytest.mark.skipif(mx.default_device() != mx.Device(mx.cpu), reason="a GPU has no kernels of ours to compile")
@pytest.mark.parametrize(
    ("compiler", "reason"),
    [
        (
            'echo "cc1plus: error writing to k.s: No space left on device"; exit 1',
            r"cc1plus: .* No space left on device",
        ),
        ("exit 1", r"Failed to execute command with return code 1"),
    ],
)
def test_a_compiler_that_fails_is_blamed_and_not_the_model(compiler: str, reason: str, tmp_path: Path) -> None:
    """MLX asks for g++ once, when a process first compiles: hence a process of its own."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "g++").write_text(f'#!/bin/sh\n[ "$1" = --version ] && exit\n{compiler}\n')
    (tools / "g++").chmod(0o755)
    make_checkpoint(tmp_path / "model")
    environment = os.environ | {"PATH": f"{tools}:{os.environ['PATH']}", "TMPDIR": str(tmp_path)}
    script = f"""
import mlx.core as mx
from trainer.config.schema import ModelConfig
from trainer.errors import ModelError
from trainer.models.actor_critic import ActorCriticLLM
from trainer.models.backbone import load_backbone
try:
    config = ModelConfig(path={str(tmp_path / "model")!r})
    ActorCriticLLM(load_backbone(config).backbone, config, key=mx.random.key(0))
except ModelError as error:
    print(error)
"""
    command = [sys.executable, "-c", script]
    reported = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    expected = rf"MLX could not compile a kernel \({reason}.*\): check that g\+\+ runs and that '.*/mlx' has space"
    assert re.match(expected, reported)
    assert len(reported.splitlines()) == 1
    assert len(reported) < 450
