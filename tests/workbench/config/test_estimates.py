"""Costs of an iteration, the files that a run would lack, and both below the form."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from config_app import opened
from textual.widgets import Input, OptionList
from tiny import make_checkpoint
from waiting import until

from trainer.config import Config, load_config, parse_overrides, validate
from trainer.config.pairs import DPOConfig, PreferenceDataConfig, RewardModelConfig
from trainer.data import load_prompts
from trainer.errors import TrainerError
from trainer.memory.footprint import Footprint
from trainer.preferences.formats import write_preferences
from trainer.preferences.records import Comparison, Judgement, Preference
from trainer.preferences.store import PreferenceStore
from workbench.config import estimates, pane
from workbench.config.document import ConfigDocument
from workbench.config.estimates import Estimate, estimate, file_problems, longest_tokens


@pytest.fixture(autouse=True)
def on_a_cpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(estimates, "has_gpu", lambda: False)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))


def tables(**sections: Any) -> Config:
    return validate(sections)


def test_the_quickstart_is_estimated_near_what_was_measured() -> None:
    e = estimate(load_config("quickstart"))
    assert e.tokens_per_iteration == 8 * 32
    assert e.memory_bytes is not None
    assert 1.0e9 < e.memory_bytes < 1.7e9  # a run of it reports a peak of 1.2 to 1.3 GB
    assert e.basis.startswith("134M parameters in float32, prompts of up to ")


def test_every_pass_of_every_sequence_counts(tmp_path: Path) -> None:
    prompts = tmp_path / "p.txt"
    prompts.write_text("x" * 40 + "\nshort\n")
    config = tables(
        data={"prompts": str(prompts)},
        rollout={"batch_size": 4, "max_new_tokens": 6},
        ppo={"epochs": 3},
    )
    # 10 tokens of prompt and 6 of response; written once, scored twice, trained on three times.
    assert estimate(config).forward_tokens == 4 * 16 * (1 + 2 + 3)
    apart = config.model_copy(update={"model": config.model.model_copy(update={"value_model": "adapter"})})
    assert estimate(apart).forward_tokens == 4 * 16 * (1 + 3 + 6)


def test_half_precision_takes_half_the_weights_and_is_the_default_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    full, half = (estimate(tables(model={"dtype": d}, rollout={"batch_size": 1})) for d in ("float32", "bfloat16"))
    assert full.memory is not None
    assert half.memory is not None
    assert full.memory.parts["weights"] == 2 * half.memory.parts["weights"] == pytest.approx(134e6 * 4, rel=0.01)
    assert full.memory.peak > half.memory.peak
    assert "bfloat16" in half.basis
    monkeypatch.setattr(estimates, "has_gpu", lambda: True)
    assert "in bfloat16" in estimate(Config()).basis


QWEN3 = {  # Qwen3-0.6B: 596M parameters by its model card
    "model_type": "qwen3",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
}


QWEN3_MOE = QWEN3 | {  # Qwen3-30B-A3B: 30.5B parameters by its model card
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "tie_word_embeddings": False,
}


@pytest.mark.parametrize(
    ("settings", "size"),
    [
        (QWEN3, "596M parameters in bfloat16, "),
        ({"text_config": QWEN3}, "596M parameters in bfloat16, "),
        (QWEN3 | {"num_experts": 0, "moe_intermediate_size": 64}, "596M parameters in bfloat16, "),
        (QWEN3_MOE, "30.5B parameters in float32, "),  # on a CPU
    ],
)
def test_a_local_model_is_counted_by_its_config(settings: dict[str, Any], size: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(settings))
    assert estimate(tables(model={"path": str(tmp_path), "dtype": "bfloat16"})).basis.startswith(size)


def test_a_hub_model_is_found_once_it_was_fetched(tmp_path: Path) -> None:
    config = tables(model={"path": "some/model"})
    before = estimate(config)
    assert before.memory_bytes is None
    assert "not downloaded" in before.basis
    folder = tmp_path / "hub" / "models--some--model" / "snapshots" / "abc"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(QWEN3))
    after = estimate(config)
    assert after.memory_bytes is not None
    assert after.basis.startswith("596M parameters")


UNCOUNTABLE = [
    json.dumps(QWEN3 | own)
    for own in (
        {"n_routed_experts": 64},
        {"num_experts": 8},  # not said how many of them a token passes
        {"quantization": {"bits": 4, "group_size": 0}},
    )
]
HUGE = [json.dumps(QWEN3).replace("151936", size) for size in ("1e999", "1" + "0" * 400, "-3")]


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"hidden_size": "x"}', '{"hidden_size": null}', "[" * 5000, *HUGE, *UNCOUNTABLE]
)
def test_a_model_configuration_without_a_size_is_reported(content: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(content)
    e = estimate(tables(model={"path": str(tmp_path)}))
    assert e.memory_bytes is None
    assert "config.json does not state its size" in e.basis


@pytest.mark.parametrize(
    "source", ["absent.jsonl", "absent.db", "a/hub-name", "../../etc", ".", "pipe.jsonl", "broken.jsonl", "empty.jsonl"]
)
def test_data_that_cannot_be_read_counts_as_the_longest_allowed(source: str) -> None:
    os.mkfifo("pipe.jsonl")  # does not hold up the screen
    Path("broken.jsonl").write_text("not json\n")
    Path("empty.jsonl").write_text("")
    assert longest_tokens(tables(data={"prompts": source, "max_prompt_tokens": 100})) == 100
    if source not in ("pipe.jsonl", "../../etc"):
        assert longest_tokens(RewardModelConfig(data=PreferenceDataConfig(preferences=source, max_tokens=77))) == 77


def test_prompts_are_measured_again_when_their_file_changes(tmp_path: Path) -> None:
    prompts = tmp_path / "p.jsonl"
    config = tables(data={"prompts": str(prompts), "column": "text"})
    prompts.write_text('{"text": "' + "a" * 80 + '"}\nnot json\n[1]\n')
    assert "up to 20 tokens" in estimate(config).basis
    prompts.write_text('{"text": "' + "a" * 160 + '"}\n{"text": 3}\n')
    assert "up to 40 tokens" in estimate(config).basis


@pytest.mark.parametrize("name", ["p.jsonl", "p.csv", "p.db"])
def test_comparisons_are_measured_by_the_longest_completion(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    rows = [("a" * 40, "b" * 20, "c" * 60), ("a" * 4, "b", "c")]
    comparisons = [Comparison(prompt=prompt, completions=(one, other)) for prompt, one, other in rows]
    preferences = [Preference(comparison=one, judgement=Judgement.chosen("a")) for one in comparisons]
    if name.endswith(".db"):
        with PreferenceStore(path) as store:
            store.add_many(preferences, source="here")
    else:
        write_preferences(preferences, path, format="columns")
    assert longest_tokens(RewardModelConfig(data=PreferenceDataConfig(preferences=str(path)))) == 25
    assert longest_tokens(RewardModelConfig(data=PreferenceDataConfig(preferences=str(path), max_tokens=20))) == 20


def test_a_step_on_preferences_reads_both_completions_and_dpo_reads_them_twice() -> None:
    tables = {"train": {"batch_size": 4}, "data": {"max_tokens": 50, "preferences": "absent.db"}}
    trained, compared = (estimate(kind.model_validate(tables)) for kind in (RewardModelConfig, DPOConfig))
    assert trained.forward_tokens == trained.tokens_per_iteration == 2 * 4 * 50
    assert compared.forward_tokens == 2 * compared.tokens_per_iteration == 800


GB = 10**9
HELD = {"weights": 4 * GB, "adapters": GB, "optimiser": GB}
MEMORY = Footprint({"generate": HELD | {"KV cache": 2 * GB}, "update": HELD | {"activations": GB}})


UPDATE = MEMORY.phases["update"] | {"activations": 2 * GB, "logits": GB}


@pytest.mark.parametrize(
    ("memory", "words"),
    [
        (MEMORY, ["≈ 8.0 GB of 4.0 GB: does not fit", " · weights 4.0 GB · adapters 2.0 GB · generate 2.0 GB"]),
        (Footprint(MEMORY.phases | {"update": UPDATE}), ["adapters 2.0 GB · update 3.0 GB"]),
        (None, ["memory unknown", " · basis"]),
    ],
)
async def test_the_third_part_is_that_of_the_phase_with_the_highest_peak(
    memory: Footprint | None, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pane, "estimate", lambda config: Estimate(256, 2000, memory, "basis"))
    monkeypatch.setattr(pane, "room_for", lambda model: 4 * GB)
    async with opened("quickstart", (120, 40)) as s:
        await until(s.pilot, lambda: all(part in s.text() for part in ("≤ 256 tokens/iteration", *words)))


@pytest.mark.parametrize("size", [(34, 30), (80, 22)])
async def test_memory_and_problems_stay_in_view_and_move_with_each_edit(
    size: tuple[int, int],
) -> None:
    async with opened("quickstart", size) as s:
        await until(s.pilot, lambda: "≤ 256 tokens/iteration" in s.text())
        before = next(line for line in s.text().split("\n") if " GB of " in line)
        assert ("✓ no problems" if size[0] >= 40 else " ✓") in before
        await s.go_to("rollout.max_new_tokens")
        await s.press("enter")
        await s.write("6400")
        await s.press("enter")
        await until(s.pilot, lambda: "≤ 51,200 tokens/iteration" in s.text())
        assert next(line for line in s.text().split("\n") if " GB of " in line) != before
        await s.go_to("ppo.minibatches")
        await s.press("enter")
        await s.write("3")
        await s.press("enter")
        assert not isinstance(s.app.focused, Input)
        assert ("✖ 1 problem" if size[0] >= 40 else " ✖ 1") in s.text()
        assert "No estimate" in s.text()
        await s.press("u")
        await until(s.pilot, lambda: "≤ 51,200 tokens/iteration" in s.text())
        assert "✖" not in s.text()


@pytest.fixture(autouse=True)
def _in_a_folder() -> None:
    Path("rows.jsonl").write_text('{"text": "Once"}\n')
    Path("empty").mkdir()


@pytest.mark.parametrize(
    ("overrides", "key", "words"),
    [
        (["model.path=./nowhere"], "model.path", "no such folder"),
        (["model.path=empty"], "model.path", "has no config.json"),
        (["model.path=rows.jsonl"], "model.path", "is a file"),
        (["model.adapter=nowhere"], "model.path", "nowhere"),
        (["model.policy_init=nowhere"], "model.policy_init", "nowhere"),
        (["model.value_init=nowhere", "model.value_model=adapter"], "model.value_init", "nowhere"),
        (["data.prompts=nowhere.jsonl"], "data.prompts", "no such file"),
        (["data.prompts=rows.jsonl"], "data.prompts", "no column 'prompt'"),
        (["reward.sources=['nowhere.py:score']"], "reward.sources", "no file 'nowhere.py'"),
        (["reward.sources=[{kind='model', path='nowhere'}]"], "reward.sources", "no such folder"),
    ],
)
def test_missing_material_is_a_problem_of_its_setting(overrides: list[str], key: str, words: str) -> None:
    [problem] = file_problems(load_config("quickstart", parse_overrides(overrides)))
    assert problem.key == key
    assert words in problem.message


def test_what_is_there_or_has_to_be_fetched_is_no_problem() -> None:
    make_checkpoint(Path("model"))
    there = ["model.path=model", "data.prompts=rows.jsonl", "data.column=text"]
    assert file_problems(load_config("quickstart", parse_overrides(there))) == []
    fetched = ["model.path=some/model", "data.prompts=some/prompts"]
    assert file_problems(load_config("quickstart", parse_overrides(fetched))) == []
    config = load_config("quickstart", parse_overrides(["data.prompts=rows.jsonl"]))
    with pytest.raises(TrainerError) as refused:
        load_prompts(config.data)
    assert [problem.message for problem in file_problems(config)] == [str(refused.value)], "in the words of the run"


async def test_the_pane_shows_missing_files_until_they_are_there() -> None:
    document = ConfigDocument.open("quickstart")
    document.set("data.prompts", "later.jsonl")
    async with opened(document) as one:
        listed = one.app.query_one("#config-problems", OptionList)
        await until(one.pilot, lambda: "✖ 1 problem" in one.text())
        assert listed.display
        await one.press("e")
        assert one.pane.form.rows.selected is not None
        assert one.pane.form.rows.selected.key == "data.prompts"
        Path("later.jsonl").write_text('{"prompt": "Once"}\n')
        one.pane.display = False
        await one.pilot.pause()
        one.pane.display = True  # as when the user comes back to it
        await until(one.pilot, lambda: "✓ no problems" in one.text())
        assert not listed.display
