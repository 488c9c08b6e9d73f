"""Weights of the reward models that a configuration names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tiny import FAMILIES

from trainer.config import Config, validate
from trainer.memory.estimate import reward_models
from trainer.memory.footprint import RewardModels, footprint
from trainer.memory.shape import STARTER, decoder_shape

LLAMA = FAMILIES["llama"]


def config(*paths: Path, **model: Any) -> Config:
    first, *others = map(str, paths)
    return validate({"reward": {"sources": [{"kind": "model", "path": first, "ensemble": others}]}, "model": model})


def run(folder: Path, text: str) -> Path:
    folder.mkdir()
    (folder / "config.toml").write_text(text)
    return folder


def held(config: Config, *, gpu: bool) -> int:
    return reward_models(config, gpu=gpu).held


def test_a_model_on_the_policys_backbone_costs_its_adapter_and_another_one_its_weights_once(tmp_path: Path) -> None:
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny/config.json").write_text(json.dumps(LLAMA))
    shared = run(tmp_path / "shared", "[run]\nseed = 1\n[model]\nlora_layers = 1\n")
    apart = [run(tmp_path / name, f"[model]\npath = '{tmp_path / 'tiny'}'\nlora_layers = 1\n") for name in "ab"]
    starter = 2 * 4 * (8 * (576 + 576 + 576 + 192) + 576)  # rank 8 on queries and values, a head; as trained and before
    tiny = 2 * 4 * (8 * (32 + 32 + 32 + 16) + 32)
    assert held(config(shared), gpu=False) == starter
    size = 4 * decoder_shape(LLAMA).parameters
    assert held(config(*apart, shared), gpu=False) == size + 2 * tiny + starter
    assert held(config(*apart), gpu=True) == size / 2 + 2 * tiny, "bfloat16 is what auto means there"
    assert held(config(apart[0] / "checkpoints" / "step-000001"), gpu=False) == size + tiny
    elsewhere = config(shared, dtype="bfloat16")
    assert held(elsewhere, gpu=False) == 4 * decoder_shape(STARTER).parameters + starter


def test_each_reward_model_has_a_pass_over_what_it_reads(tmp_path: Path) -> None:
    short = run(tmp_path / "short", "[data]\nmax_tokens = 7\n")
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"max_position_embeddings": 99}))
    passes = reward_models(config(short, tmp_path), gpu=False).passes
    assert [(one.model.shape.hidden, one.most) for one in passes] == [(576, 7), (32, 99)]


def test_a_classifier_has_no_head_for_the_vocabulary_and_its_adapter_holds_its_base_model(tmp_path: Path) -> None:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"tie_word_embeddings": False}))
    tied = decoder_shape(LLAMA | {"tie_word_embeddings": True}).parameters
    assert held(config(tmp_path), gpu=False) == 4 * tied
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    about = {"peft_type": "LORA", "base_model_name_or_path": str(tmp_path)}
    (adapter / "adapter_config.json").write_text(json.dumps(about))
    assert held(config(adapter), gpu=False) == 4 * decoder_shape(LLAMA).parameters
    (adapter / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA"}))
    assert held(config(adapter), gpu=False) == 0  # the run refuses it


def test_what_cannot_be_read_counts_nothing(tmp_path: Path) -> None:
    broken = [run(tmp_path / str(place), text) for place, text in enumerate(("[model", "model = 3\n", ""))]
    broken[-1].joinpath("config.toml").unlink()
    assert held(config(*broken, tmp_path / "absent"), gpu=False) == 0


def test_reward_models_are_held_in_every_phase() -> None:
    found = footprint(Config(), decoder_shape(STARTER), 20, gpu=False, reward_models=RewardModels(7))
    assert [parts["reward model"] for parts in found.phases.values()] == [7, 7, 7]
