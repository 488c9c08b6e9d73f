"""Sequence-classification checkpoints of others as reward models, against a reference in NumPy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest
from preference_samples import labelled, reward_config
from tiny import make_checkpoint, make_tokenizer

from trainer.arrays import pad
from trainer.config.schema import ModelConfig, RewardConfig
from trainer.engine.training import train
from trainer.errors import ModelError, RewardError
from trainer.models.adapters import linear_places, lora_parameters, new_adapter, only_adapter, update_lora
from trainer.models.backbone import load_backbone
from trainer.models.forward import hidden_states
from trainer.models.peft_adapters import read_peft, write_peft
from trainer.reward_model.loaded import load_reward_model
from trainer.reward_model.network import RewardModel
from trainer.rewards import RewardInput, build_rewards
from trainer.rewards.model_reward import ClassifierModel

Weights = dict[str, npt.NDArray[np.float64]]
SEQUENCES = [[72, 101, 108, 108, 111], [1, 2], [256, 5, 6, 7, 8, 9, 10, 11], [50, 256, 256]]
TEMPLATE = "{% for m in messages %}<special0>{{ m['role'] }}: {{ m['content'] }}<end>\n{% endfor %}"
ARCHITECTURES = {
    "llama": "LlamaForSequenceClassification",
    "qwen2": "Qwen2ForSequenceClassification",
    "qwen3": "Qwen3ForSequenceClassification",
}


def make_classifier(folder: Path, family: str = "llama", *, labels: int = 1, template: str = "") -> Path:
    """Write a random classifier as transformers saves one: the trunk, `score.weight`, no head of a language model."""
    make_checkpoint(folder, "llama" if family == "qwen2" else family, scale=0.5, tied=False)
    file, card = folder / "model.safetensors", folder / "config.json"
    weights: dict[str, mx.array] = dict(mx.load(str(file)))  # type: ignore[arg-type]
    weights.pop("lm_head.weight", None)
    if family == "qwen2":  # llama with biases on the way into attention
        for name in [name for name in weights if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight"))]:
            bias = 0.1 * mx.random.normal((weights[name].shape[0],), key=mx.random.key(len(name)))
            weights[name.replace(".weight", ".bias")] = bias
    weights["score.weight"] = mx.random.normal((labels, 32), key=mx.random.key(9))
    mx.save_safetensors(str(file), weights, metadata={"format": "pt"})
    config = json.loads(card.read_text()) | {"model_type": family, "architectures": [ARCHITECTURES[family]]}
    config["id2label"] = {str(number): f"LABEL_{number}" for number in range(labels)}
    card.write_text(json.dumps(config))
    if template:
        tokenizer = make_tokenizer()
        tokenizer.chat_template = template
        tokenizer.save_pretrained(folder)
    return folder


def reference_score(folder: Path, tokens: list[int]) -> float:
    """Compute score.weight on the last token's state of one unpadded sequence, by published equations in float64."""
    config = json.loads((folder / "config.json").read_text())
    arrays = mx.load(str(folder / "model.safetensors"))
    w: Weights = {name: np.array(array, dtype=np.float64) for name, array in arrays.items()}  # type: ignore[union-attr]
    heads, kv_heads, eps = config["num_attention_heads"], config["num_key_value_heads"], config["rms_norm_eps"]
    size, length = config.get("head_dim") or config["hidden_size"] // heads, len(tokens)

    def norm(x: Any, weight: Any) -> Any:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * weight

    def linear(x: Any, name: str) -> Any:
        return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0.0)

    def rotated(x: Any) -> Any:  # [heads, L, size]; the two halves are the parts of the complex numbers
        angles = np.arange(length)[:, None] * config["rope_theta"] ** (-np.arange(0, size, 2) / size)
        a, b = x[..., : size // 2], x[..., size // 2 :]
        return np.concatenate([a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)], -1)

    x = w["model.embed_tokens.weight"][tokens]
    for number in range(config["num_hidden_layers"]):
        layer = f"model.layers.{number}"
        h = norm(x, w[f"{layer}.input_layernorm.weight"])
        q, k, v = (
            linear(h, f"{layer}.self_attn.{part}_proj").reshape(length, -1, size).transpose(1, 0, 2) for part in "qkv"
        )
        if f"{layer}.self_attn.q_norm.weight" in w:
            q, k = (norm(y, w[f"{layer}.self_attn.{part}_norm.weight"]) for y, part in ((q, "q"), (k, "k")))
        q, k = rotated(q), rotated(k)
        k, v = (np.repeat(y, heads // kv_heads, axis=0) for y in (k, v))
        logits = q @ k.transpose(0, 2, 1) / np.sqrt(size) + np.triu(np.full((length, length), -np.inf), 1)
        weights = np.exp(logits - logits.max(-1, keepdims=True))
        attended = (weights / weights.sum(-1, keepdims=True)) @ v
        x = x + linear(attended.transpose(1, 0, 2).reshape(length, -1), f"{layer}.self_attn.o_proj")
        h = norm(x, w[f"{layer}.post_attention_layernorm.weight"])
        gate = linear(h, f"{layer}.mlp.gate_proj")
        x = x + linear(gate / (1 + np.exp(-gate)) * linear(h, f"{layer}.mlp.up_proj"), f"{layer}.mlp.down_proj")
    return float(norm(x, w["model.norm.weight"])[-1] @ w["score.weight"][0])


def scores(model: ClassifierModel, sequences: list[list[int]]) -> npt.NDArray[np.float32]:
    return np.array(model.scores(mx.array(pad(sequences)), mx.array([len(one) for one in sequences])))


@pytest.mark.parametrize("family", ARCHITECTURES)
def test_a_padded_batch_has_the_scores_of_the_reference_one_sequence_at_a_time(family: str, tmp_path: Path) -> None:
    folder = make_classifier(tmp_path / family, family)
    expected = [reference_score(folder, sequence) for sequence in SEQUENCES]
    model = ClassifierModel(folder)
    np.testing.assert_allclose(scores(model, SEQUENCES), expected, atol=2e-4)
    assert np.std(expected) > 0.1
    rows, lengths = pad(SEQUENCES), mx.array([len(one) for one in SEQUENCES])
    for row, sequence in zip(rows, SEQUENCES, strict=True):
        row[len(sequence) :] = 256  # a real token
    np.testing.assert_allclose(np.array(model.scores(mx.array(rows), lengths)), expected, atol=2e-4)


def test_only_a_checkpoint_with_a_head_of_one_label_is_taken(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="has 3 labels: a reward model has 1"):
        ClassifierModel(make_classifier(tmp_path / "three", labels=3))
    with pytest.raises(ModelError, match=r"has no score\.weight, so it is not a sequence classifier"):
        ClassifierModel(make_checkpoint(tmp_path / "language"))
    broken = make_classifier(tmp_path / "broken")
    weights: dict[str, mx.array] = dict(mx.load(str(broken / "model.safetensors")))  # type: ignore[arg-type]
    weights.pop("model.layers.1.mlp.up_proj.weight")
    mx.save_safetensors(str(broken / "model.safetensors"), weights)
    with pytest.raises(ModelError, match=r"Missing 1 parameters.*up_proj"):
        ClassifierModel(broken)
    sources: list[Any] = [{"kind": "model", "path": str(tmp_path / "language")}]
    with pytest.raises(RewardError, match=rf"reward source '{tmp_path}/language': the model has no score\.weight"):
        build_rewards(RewardConfig(sources=sources))


def test_a_language_model_still_loads_with_its_own_head_afterwards(tmp_path: Path) -> None:
    ClassifierModel(make_classifier(tmp_path / "model"))
    model = load_backbone(ModelConfig(path=str(make_checkpoint(tmp_path / "language", tied=False))))
    assert "lm_head" in model.backbone
    assert "score" not in model.backbone


def reward_of(folder: Path, **more: Any) -> Any:
    sources: list[Any] = [{"kind": "model", "path": str(folder), **more}]
    return build_rewards(RewardConfig(sources=sources))


def row(prompt: Any, completion: str) -> RewardInput:
    return RewardInput(prompt, completion, [1, 2], {}, False)


def test_plain_text_is_read_as_it_is_and_a_conversation_to_the_end_of_the_template(tmp_path: Path) -> None:
    folder = make_classifier(tmp_path / "clf", template=TEMPLATE)
    tokenizer = make_tokenizer()
    chat = [{"role": "user", "content": "Hello?"}]
    rendered = "<special0>user: Hello?<end>\n<special0>assistant: Yes.<end>\n"
    plain, talk = reward_of(folder)([row("Hello?", " Yes."), row(chat, "Yes.")]).parts["model:clf"]
    assert plain == pytest.approx(reference_score(folder, tokenizer.encode("Hello? Yes.")), abs=2e-4)
    assert talk == pytest.approx(reference_score(folder, tokenizer.encode(rendered)), abs=2e-4)
    (always,) = reward_of(folder, chat="always")([row("Hello?", "Yes.")]).scores
    assert always == pytest.approx(talk, abs=1e-5)
    with pytest.raises(RewardError, match=r"cannot read sample 0 \('Hello\?'\): it is a list of messages"):
        reward_of(folder, chat="never")([row(chat, "Yes.")])


def test_messages_without_a_template_and_an_empty_text_are_reported(tmp_path: Path) -> None:
    rewards = reward_of(make_classifier(tmp_path / "model"))
    with pytest.raises(RewardError, match="the chat template rejects the roles user, assistant: "):
        rewards([row([{"role": "user", "content": "Hello?"}], "Yes.")])
    with pytest.raises(RewardError, match="it has no tokens: remove empty prompts"):
        rewards([row("", "")])


def test_a_text_longer_than_the_context_is_read_by_its_last_tokens(tmp_path: Path) -> None:
    model = ClassifierModel(make_classifier(tmp_path / "model"))
    text = "ab" * 200
    assert model.encode(text, "c").tokens == make_tokenizer().encode(text + "c")[-256:]


def adapter_of(folder: Path, base: Path, *, head: mx.array | None, **more: Any) -> Path:
    """Write a PEFT adapter on the model in `base` that changes something."""
    config = ModelConfig(path=str(base), lora_rank=2, lora_scale=4.0)
    loaded = load_backbone(config, classifier=True)
    layers, _ = new_adapter(loaded.backbone, config, mx.random.key(3))
    for number, layer in enumerate(layers.values()):
        layer.lora_b = 0.5 * mx.random.normal(layer.lora_b.shape, key=mx.random.key(number))
    given: dict[str, Any] = {"family": "llama", "rank": 2, "scale": 4.0, "base": str(base)}
    write_peft(folder, lora_parameters(layers), head=head, **given | more)
    return folder


def test_a_score_is_scaled_by_the_numbers_in_the_models_config(tmp_path: Path) -> None:
    folder = make_classifier(tmp_path / "clf")
    raw = scores(ClassifierModel(folder), SEQUENCES)
    card = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(card | {"mean": 0.5, "std": 2.0}))
    np.testing.assert_allclose(scores(ClassifierModel(folder), SEQUENCES), (raw - 0.5) / 2, atol=1e-6)


def test_an_adapter_of_a_classifier_is_a_reward(tmp_path: Path) -> None:
    base = make_classifier(tmp_path / "clf")
    plain = scores(ClassifierModel(base), SEQUENCES)
    own = mx.random.normal((32,), key=mx.random.key(11))
    both = adapter_of(tmp_path / "both", base, head=own)
    found = ClassifierModel(both)
    with_own = np.array(own) @ hidden_of(base, both)
    np.testing.assert_allclose(scores(found, SEQUENCES), with_own, atol=1e-5)
    assert np.abs(scores(found, SEQUENCES) - plain).max() > 0.1
    bare = adapter_of(tmp_path / "bare", base, head=None)  # the head of its base
    weight: dict[str, mx.array] = dict(mx.load(str(base / "model.safetensors")))  # type: ignore[arg-type]
    expected = np.array(weight["score.weight"])[0] @ hidden_of(base, bare)
    np.testing.assert_allclose(scores(ClassifierModel(bare), SEQUENCES), expected, atol=1e-5)
    (one,) = reward_of(both)([row("Hello", " you")]).parts["model:both"]
    assert one == pytest.approx(float(scores(found, [make_tokenizer().encode("Hello you")])[0]), abs=1e-5)


def hidden_of(base: Path, adapter: Path) -> np.ndarray:
    """Return the last hidden state of each of SEQUENCES, by the model with the adapter as mlx-lm applies it; [D, N]."""
    config = ModelConfig(path=str(base), lora_rank=2, lora_scale=4.0)
    backbone = load_backbone(config, classifier=True).backbone
    layers, _ = new_adapter(backbone, config, mx.random.key(3))
    update_lora(layers, read_peft(adapter, "llama").parameters)
    with only_adapter(linear_places(backbone), layers):
        states = [hidden_states(backbone, mx.array([one]))[0, -1] for one in SEQUENCES]
    return np.stack([np.array(one) for one in states], axis=1)


def test_an_adapter_without_a_head_or_a_base_is_refused(tmp_path: Path) -> None:
    base = make_checkpoint(tmp_path / "language")
    with pytest.raises(ModelError, match=r"has no score\.weight"):
        ClassifierModel(adapter_of(tmp_path / "adapter", base, head=None))
    nameless = adapter_of(tmp_path / "nameless", base, head=mx.ones((32,)))
    card = json.loads((nameless / "adapter_config.json").read_text())
    (nameless / "adapter_config.json").write_text(json.dumps(card | {"base_model_name_or_path": None}))
    with pytest.raises(ModelError, match="does not name the base model"):
        ClassifierModel(nameless)


def test_a_policy_cannot_be_a_classifier(tmp_path: Path) -> None:
    folder = make_classifier(tmp_path / "clf")
    with pytest.raises(ModelError, match="is a sequence classifier, which writes no text"):
        load_backbone(ModelConfig(path=str(folder)))


def test_a_reward_model_begins_as_a_classifier_and_loads_again(tmp_path: Path) -> None:
    folder = make_classifier(tmp_path / "clf")
    card = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(card | {"mean": 0.5, "std": 2.0}))
    expected = scores(ClassifierModel(folder), SEQUENCES)
    config = reward_config(tmp_path, f'model.path="{folder}"', "run.name=rm")
    loaded = load_backbone(config.model, classifier=True)
    began = RewardModel(loaded.backbone, config, key=mx.random.key(0), head=loaded.head)
    raw = began.scores(mx.array(pad(SEQUENCES)), mx.array([len(one) for one in SEQUENCES]))
    np.testing.assert_allclose(np.array(raw), expected, atol=1e-5)
    train(config, preferences=labelled(24))
    trained = load_reward_model(tmp_path / "runs" / "rm")
    assert not mx.array_equal(trained.model.parameters()["head.weight"], began.parameters()["head.weight"])
    assert mx.array_equal(trained.untrained["head.weight"], began.parameters()["head.weight"])
