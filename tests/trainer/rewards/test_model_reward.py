"""Reward models as PPO's reward, one or several, ours or classifiers: what they share and read, and wrong paths."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest
from preference_samples import labelled, reward_config
from reward_model_runs import copy_workspace, foreign_model, inputs, train_tiny, two_reward_models
from runs_helper import Killed, acting, die, outcome, record, tiny_config
from tiny import make_checkpoint, make_tokenizer

from trainer.arrays import pad
from trainer.config import Config, load_config
from trainer.config.loading import resolve_paths
from trainer.config.reward_sources import ModelSource
from trainer.config.schema import BackboneConfig, ModelConfig, RewardConfig
from trainer.engine.answers import SavedPolicy
from trainer.engine.training import train
from trainer.errors import DataError, Interrupted, ModelError, RewardError
from trainer.events import RunStarted
from trainer.models import backbone
from trainer.models.actor_critic import ActorCriticLLM
from trainer.models.adapters import linear_places, lora_parameters, new_adapter, only_adapter, update_lora
from trainer.models.backbone import LoadedModel, load_backbone
from trainer.models.forward import hidden_states
from trainer.models.peft_adapters import read_peft, write_peft
from trainer.questions import Question
from trainer.reward_model import loaded
from trainer.reward_model.loaded import load_reward_model
from trainer.reward_model.network import RewardModel
from trainer.rewards import RewardInput, build_rewards
from trainer.rewards.model_reward import ClassifierModel, ModelReward, load_model_reward
from trainer.runs.checkpoint_files import checkpoints, prune_checkpoints
from trainer.runs.folder import RunFolder
from trainer.runs.samples import read_samples

TEXTS = ["aaaa", "bcd", "a fox, and a hen", "", "eeeee"]
BATCH = inputs(*TEXTS)


THREE = inputs("aaaa", "bcd", "a fox")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return two_reward_models(tmp_path_factory.mktemp("made"))


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """Copy the workspace to change it; the reward model still names the model in `made`."""
    return copy_workspace(made, tmp_path)


def source(path: Path | str, **more: Any) -> dict[str, Any]:
    return {"kind": "model", "path": str(path), **more}


def rewards_of(*sources: Any, backbone: LoadedModel | None = None, **how: Any) -> Any:
    return build_rewards(RewardConfig(sources=list(sources)), backbone=backbone, **how)


def policy_on(model: LoadedModel) -> ActorCriticLLM:
    """Return a policy with an adapter that changes its output."""
    actor = ActorCriticLLM(model.backbone, ModelConfig(lora_targets=["q_proj", "up_proj"]), key=mx.random.key(5))
    noise = {name: mx.random.normal(a.shape, key=mx.random.key(1)) for name, a in actor.policy_parameters().items()}
    actor.update_policy(noise)
    return actor


def what_it_is(actor: ActorCriticLLM) -> dict[str, np.ndarray]:
    """Return every array of the policy, its logits and the reference's."""
    tokens = mx.array([[1, 2, 3, 4]])
    with actor.reference():
        reference = np.array(actor.backbone(tokens))
    arrays = {name: np.array(array) for name, array in actor.policy_parameters().items()}
    return arrays | {"logits": np.array(actor.backbone(tokens)), "reference": reference}


def assert_same(left: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> None:
    assert left.keys() == right.keys()
    for name, array in left.items():
        np.testing.assert_array_equal(array, right[name], name)


def arrays_in_memory() -> int:
    mx.clear_cache()
    return int(mx.get_active_memory())


def test_on_the_policys_backbone_no_second_one_is_loaded_and_the_scores_are_those_of_the_model_alone(
    made: Path,
) -> None:
    alone = rewards_of(source(made / "runs/rm"))(BATCH).scores
    model = load_backbone(ModelConfig(path=str(made / "model")))
    policy_on(model)
    weights = sum(array.nbytes for _, array in _tree(model))
    before = arrays_in_memory()
    rewards = rewards_of(source(made / "runs/rm"), backbone=model)
    assert arrays_in_memory() - before < weights / 2, "an adapter and a head"
    assert rewards(BATCH).scores == alone
    loaded = load_reward_model(made / "runs/rm")
    expected = loaded.score([loaded.encode("one ", text) for text in TEXTS])
    np.testing.assert_allclose(alone, expected, atol=1e-6)
    assert len(set(alone)) == len(TEXTS)


@pytest.mark.parametrize("other", [{"dtype": "bfloat16"}, {"quantize": "8-bit"}])
def test_a_policy_on_other_weights_leaves_the_model_its_own(made: Path, other: dict[str, Any]) -> None:
    model = load_backbone(ModelConfig.model_validate({"path": str(made / "model"), **other}))
    sources = [source(made / "runs/rm")]
    assert rewards_of(*sources, backbone=model)(BATCH).scores == rewards_of(*sources)(BATCH).scores
    backbones = [model]
    for _ in range(2):
        load_model_reward(ModelSource(path=str(made / "runs/rm")), backbones, micro_batch_tokens=64)
    assert len(backbones) == 2, "one more, for both"


def _tree(model: LoadedModel) -> Any:
    from mlx.utils import tree_flatten

    return tree_flatten(model.backbone.parameters())


def test_scoring_leaves_the_policy_the_same_to_the_bit(made: Path) -> None:
    model = load_backbone(ModelConfig(path=str(made / "model")))
    early = rewards_of(source(made / "runs/rm"), backbone=model)  # loaded before the policy's adapter is there
    actor = policy_on(model)
    before = what_it_is(actor)
    late = rewards_of(source(made / "runs/rm"), backbone=model)
    assert_same(what_it_is(actor), before)
    assert early(BATCH).scores == late(BATCH).scores
    assert_same(what_it_is(actor), before)
    with actor.reference():
        assert late(BATCH).scores == early(BATCH).scores, "also while the adapter is off"
    assert_same(what_it_is(actor), before)


def test_scoring_that_fails_or_is_stopped_leaves_the_policy_the_same_too(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_backbone(ModelConfig(path=str(made / "model")))
    actor = policy_on(model)
    before = what_it_is(actor)

    def stop() -> None:
        raise Interrupted("enough", save=True)

    with pytest.raises(Interrupted):
        rewards_of(source(made / "runs/rm"), backbone=model, between_passes=stop)(BATCH)
    assert_same(what_it_is(actor), before)

    rewards = rewards_of(source(made / "runs/rm"), backbone=model)
    with monkeypatch.context() as patched:
        # Called with the reward model's adapter in place.
        patched.setattr("trainer.reward_model.network.hidden_states", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            rewards(BATCH)
    assert_same(what_it_is(actor), before)


def test_scoring_goes_in_micro_batches(made: Path) -> None:
    heeded: list[int] = []
    whole = rewards_of(source(made / "runs/rm"))(BATCH).scores
    singly = rewards_of(source(made / "runs/rm"), micro_batch_tokens=1, between_passes=lambda: heeded.append(1))
    np.testing.assert_allclose(singly(BATCH).scores, whole, atol=1e-5)
    assert len(heeded) == len(TEXTS) - 1  # the empty one is read at the beginning of another


def newest(run: Path) -> Path:
    return checkpoints(RunFolder(run)).paths[-1]


def mixed(folder: Path, sources: list[dict[str, Any]], *overrides: str) -> Config:
    config = tiny_config(folder, *overrides)
    return config.model_copy(update={"reward": RewardConfig(sources=sources)})


def test_a_checkpoint_that_another_run_uses_stays_when_its_own_run_continues(folder: Path) -> None:
    run = RunFolder(folder / "runs/rm")
    used = newest(run.root)
    config = tiny_config(folder, f"reward.sources=[{{kind='model', path='{run.root}'}}]", "ppo.iterations=1")
    train(config, preset="used")
    later = [run.checkpoint(900), run.checkpoint(901)]
    for checkpoint in later:
        shutil.copytree(used, checkpoint)
    prune_checkpoints(run, 1)
    assert checkpoints(run).paths == [used, later[1]]


def test_a_killed_run_resumes_exactly_with_the_checkpoint_that_it_began_with(made: Path, folder: Path) -> None:
    sources = [source(folder / "runs/rm"), {"kind": "length", "target": 4}]
    record(mixed(folder, sources, "run.name=whole"))

    with pytest.raises(Killed):
        train(mixed(folder, sources, "run.name=killed"), sinks=[acting("reward", 2, die)])
    saved = load_config(folder / "runs/killed/config.toml")
    found = newest(folder / "runs/rm")
    assert saved.reward.sources[0].path == str(found)  # type: ignore[union-attr]
    newer = shutil.copytree(newest(made / "runs/second"), found.with_name("step-000099"))
    assert rewards_of(source(folder / "runs/rm"))(BATCH).scores == rewards_of(source(newer))(BATCH).scores
    resumed = record(saved, resume=folder / "runs/killed")
    assert [started.resumed_at for started in resumed.of(RunStarted)] == [1]
    assert outcome(folder / "runs/killed") == outcome(folder / "runs/whole")


def test_a_saved_policy_whose_reward_model_is_gone_says_so_and_writes(folder: Path) -> None:
    record(mixed(folder, [source(folder / "runs/rm")], "run.name=a", "ppo.iterations=1"))
    shutil.rmtree(folder / "runs/rm")
    answer = SavedPolicy(RunFolder(folder / "runs/a")).answer(Question(prompt="one", max_new_tokens=3), lambda: None)
    assert answer.completions
    assert "no such folder" in answer.problem


def test_a_relative_path_is_made_absolute_so_that_the_run_can_be_resumed_from_anywhere(folder: Path) -> None:
    config = mixed(folder, [source("runs/rm", ensemble=["runs/second"])])
    found = resolve_paths(config, folder).reward.sources[0]
    assert found.paths == [str(folder / "runs/rm"), str(folder / "runs/second")]  # type: ignore[union-attr]


def wrong_path(folder: Path, path: str) -> str:
    with pytest.raises(RewardError) as caught:
        train(mixed(folder, [source(path)], "run.name=a"))
    assert not (folder / "runs/a").exists()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_path_that_names_no_reward_model_is_reported_with_a_way_out(folder: Path) -> None:
    assert f"did you mean '{folder}/runs/second'?" in wrong_path(folder, f"{folder}/runs/secnd")
    assert "no such folder; paths are relative to" in wrong_path(folder, "nowhere/at/all")
    record(tiny_config(folder, "run.name=ppo", "ppo.iterations=1"))
    reported = wrong_path(folder, f"{folder}/runs/ppo")
    assert (
        "is a run of PPO or DPO, which has no reward model: name a run of `ppo-workbench reward-model train`"
        in reported
    )
    assert "is a run of PPO" in wrong_path(folder, f"{folder}/runs/ppo/checkpoints/step-000001")
    assert "holds no reward model" in wrong_path(folder, f"{folder}/runs")
    card = newest(folder / "runs/rm") / "reward_model.json"
    whole = card.read_text()
    card.write_text(json.dumps({**json.loads(whole), "format": 99}))
    assert "newer version (format 99" in wrong_path(folder, str(card.parent))
    card.write_text(whole[:40])
    damaged = wrong_path(folder, str(card.parent))
    assert "damaged" in damaged
    assert damaged.count("reward source") == 1


class Fixed:
    """Model with fixed scores, whatever it reads."""

    def __init__(self, *scores: float) -> None:
        self._scores = list(scores)

    def encode(self, prompt: Any, completion: Any, columns: Any) -> list[int]:
        if completion == "unreadable":
            raise DataError("it has no tokens")
        return list(completion.encode())

    def score(self, sequences: Sequence[Sequence[int]], **_: Any) -> list[float]:
        return self._scores[: len(sequences)]


def test_the_mean_or_the_least_of_the_members_is_the_score_and_their_deviation_a_detail() -> None:
    members = [Fixed(1.0, 0.0, -2.0), Fixed(3.0, 0.0, 1.0), Fixed(5.0, 0.0, 4.0)]
    mean = ModelReward("m", members, combine="mean")(THREE)
    assert mean.scores == [3.0, 0.0, 1.0]
    assert mean.details["disagreement"] == pytest.approx([(8 / 3) ** 0.5, 0.0, 6**0.5])
    least = ModelReward("m", members, combine="min")(THREE)
    assert least.scores == [1.0, 0.0, -2.0]
    assert least.details == mean.details


def test_a_non_finite_score_and_an_unreadable_text_are_reported_with_the_sample() -> None:
    with pytest.raises(RewardError, match=r"'m': sample 1 \('one'\) has score nan: must be finite"):
        ModelReward("m", [Fixed(1.0, 1.0, 1.0), Fixed(1.0, float("nan"), 1.0)])(THREE)
    with pytest.raises(RewardError, match=r"'m' cannot read sample 1 \('one'\): it has no tokens"):
        ModelReward("m", [Fixed(1.0, 1.0)])(inputs("a", "unreadable"))


def ensemble_of(first: Path, *others: Path, **more: Any) -> dict[str, Any]:
    return source(first, ensemble=[str(other) for other in others], **more)


def test_members_keep_their_adapters_apart_on_one_backbone_and_each_model_is_loaded_once(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign_model(tmp_path / "model")
    train_tiny(tmp_path, "third")
    train_tiny(tmp_path, "fourth", "run.seed=5")
    runs = [made / "runs/rm", tmp_path / "runs/third", made / "runs/second", tmp_path / "runs/fourth"]
    texts = [[row.prompt, row.completion] for row in THREE]
    alone = []
    for run in runs:
        model = load_reward_model(run)
        alone.append(model.score([model.encode(*text) for text in texts]))
    policy = load_backbone(ModelConfig(path=str(made / "model")))
    fetched: list[str] = []

    def counted(config: Any, **options: Any) -> Any:
        fetched.append(config.path)
        return backbone.load_backbone(config, **options)

    monkeypatch.setattr(loaded, "load_backbone", counted)
    sources: list[Any] = [ensemble_of(*runs)]
    parts = build_rewards(RewardConfig(sources=sources), backbone=policy)(THREE).parts
    assert fetched == [str(tmp_path / "model")]
    name = "model:rm+third+second+fourth"
    np.testing.assert_allclose(parts[name], np.mean(alone, axis=0), atol=1e-5)
    np.testing.assert_allclose(parts[f"{name}.disagreement"], np.std(alone, axis=0), atol=1e-5)
    assert min(parts[f"{name}.disagreement"]) > 0.01


def test_a_run_mixes_models_with_rules_and_python_by_weight_and_its_samples_hold_the_disagreement(
    made: Path, folder: Path
) -> None:
    config = tiny_config(folder, "run.name=a", "ppo.iterations=1", "eval.every=0")
    (folder / "rewards.py").write_text("def score(completions, **_): return [len(text) % 3 for text in completions]")
    sources: list[Any] = [
        ensemble_of(made / "runs/rm", made / "runs/second", combine="min", weight=2.0),
        {"kind": "length", "target": 4, "weight": 0.5},
        {"kind": "python", "path": f"{folder}/rewards.py:score"},
    ]
    record(config.model_copy(update={"reward": RewardConfig(sources=sources)}))
    models = [load_reward_model(made / name) for name in ("runs/rm", "runs/second")]
    for row in read_samples(RunFolder(folder / "runs/a").samples_file(1)).to_pylist():
        parts = {part["source"]: part["score"] for part in row["parts"]}
        scores = [model.score([model.encode(row["prompt"], row["completion"])])[0] for model in models]
        spread = abs(scores[0] - scores[1]) / 2
        length, own = parts.pop("length"), parts.pop("rewards.py:score")
        assert parts == pytest.approx(
            {"model:rm+second": min(scores), "model:rm+second.disagreement": spread}, abs=1e-4
        )
        assert own == len(row["completion"]) % 3
        assert row["score"] == pytest.approx(2 * min(scores) + 0.5 * length + own, abs=1e-4)


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
    """Return score.weight on the last token's state of one unpadded sequence, by mlx-lm's own model."""
    weights: dict[str, mx.array] = dict(mx.load(str(folder / "model.safetensors")))  # type: ignore[arg-type]
    backbone = load_backbone(BackboneConfig(path=str(folder)), classifier=True).backbone
    return float(backbone.model(mx.array([tokens]))[0, -1] @ weights["score.weight"][0])


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
