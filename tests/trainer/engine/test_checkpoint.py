"""A checkpoint is whole or it is not there, whatever happens to the disk or to its files."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from run_folders import largest_file
from runs_helper import Recorder, flip, flips, outcome, record, tiny_config

from trainer import policy_checkpoint as checkpoint
from trainer.engine.training import train
from trainer.errors import ModelError, RewardError, StorageError
from trainer.events import Alert, CheckpointSaved, Evaluation, Event, Iteration, RunEnded, RunStarted
from trainer.policy_checkpoint import Rollback, Snapshot, load_checkpoint, save_checkpoint
from trainer.runs.checkpoint_files import DamagedCheckpointError, checkpoints, load_newest, write_state
from trainer.runs.folder import RunFolder
from trainer.runs.journal import read_journal


@pytest.fixture
def snapshot() -> Snapshot:
    """Return a snapshot with every kind of leaf, and parameter names with dots."""
    lora, head = mx.random.normal((8, 4), key=mx.random.key(0)), mx.array([1.5, -0.0, 3e-45])
    scalars = {"step": mx.array(7, dtype=mx.uint64), "learning_rate": mx.array(1e-5)}
    moment = {"m": lora * 2, "v": mx.square(lora)}
    return Snapshot(
        iteration=12,
        policy={"model.layers.0.self_attn.q_proj.lora_a": lora},
        value={"head.weight": head, "head.bias": mx.array(0.25)},
        optimizer={
            "policy": {**scalars, "model.layers.0.self_attn.q_proj.lora_a": moment},
            "value": {
                **scalars,
                "head.weight": {"m": head, "v": head},
                "head.bias": {"m": mx.array(0.5), "v": mx.array(0.25)},
            },
        },
        optimizer_steps=24,
        rewards={"count": 96, "mean": 0.1 + 0.2, "m2": 1e-17},
        tokens=1234,
        adapter_config={"fine_tune_type": "lora"},
        kl_coef=0.1 + 0.2,
        kl_coef_start=0.05,
        average={"model.layers.0.self_attn.q_proj.lora_a": lora * 0.5},
        value_scale=0.1 + 0.2,
        walk={"further": 7, "resting": [[3, 1, 2]]},
        rollback=Rollback(7, "because", 1e-5, 0.1),
    )


def same(a: Any, b: Any) -> bool:
    """Return whether two trees are equal to the bit, types included."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, mx.array):
        return a.dtype == b.dtype and a.shape == b.shape and bytes(memoryview(a)) == bytes(memoryview(b))
    return bool(a == b)


def test_a_loaded_checkpoint_equals_what_was_saved_to_the_bit(tmp_path: Path, snapshot: Snapshot) -> None:
    save_checkpoint(tmp_path / "step-000012", snapshot)
    loaded = load_checkpoint(tmp_path / "step-000012", snapshot.adapter_config)
    for name, expected, found in zip(Snapshot._fields, snapshot, loaded, strict=True):
        assert same(expected, found), name


def test_a_run_resumes_from_an_older_checkpoint_with_the_policy_as_its_average(tmp_path: Path) -> None:
    record(tiny_config(tmp_path, "run.name=a", "ppo.iterations=2"))
    kl_coefs: list[float] = []
    averages: list[bool] = []

    def look(event: Event) -> None:
        if isinstance(event, Iteration):
            kl_coefs.append(event.kl_coef)
        elif isinstance(event, Evaluation):
            averages.append(event.averaged)

    settings = ("optim.ema_decay=0.9", "ppo.kl_controller=adaptive", "optim.policy_lr=0", "ppo.kl_coef=0.3")
    train(tiny_config(tmp_path, *settings), resume=tmp_path / "runs/a", sinks=[Recorder(look)])
    assert (kl_coefs, averages) == ([0.3], [True])
    average, policy = (
        mx.load(str(tmp_path / f"runs/a/checkpoints/step-000003/{name}/adapters.safetensors"))
        for name in ("average", "policy")
    )
    assert average.keys() == policy.keys()
    assert all(mx.allclose(average[name], policy[name], atol=1e-7).item() for name in policy)


def test_a_loaded_checkpoint_outlives_its_folder(tmp_path: Path, snapshot: Snapshot) -> None:
    save_checkpoint(tmp_path / "step-000012", snapshot)
    loaded = load_checkpoint(tmp_path / "step-000012", snapshot.adapter_config)
    for file in (tmp_path / "step-000012").rglob("*.safetensors"):
        os.truncate(file, 0)
    assert same(loaded.policy, snapshot.policy)


def test_a_checkpoint_replaces_an_existing_one_and_leftovers_of_killed_processes(
    tmp_path: Path, snapshot: Snapshot
) -> None:
    for name in (".step-000011.tmp", ".step-000012.tmp", "step-000012"):
        (tmp_path / name / "policy").mkdir(parents=True)
        (tmp_path / name / "old").write_text("old")
    save_checkpoint(tmp_path / "step-000012", snapshot)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000012"]
    assert not (tmp_path / "step-000012" / "old").exists()


@pytest.mark.parametrize("size", [0, 100, 220, 320])
def test_a_disk_that_fills_up_anywhere_leaves_nothing_half_written(
    size: int, tmp_path: Path, snapshot: Snapshot
) -> None:
    save_checkpoint(tmp_path / "step-000011", snapshot)
    with largest_file(size), pytest.raises(StorageError) as failure:
        save_checkpoint(tmp_path / "step-000012", snapshot)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000011"]
    assert str(failure.value).startswith(f"cannot write checkpoint '{tmp_path}/step-000012': ")
    assert "\n" not in str(failure.value)


def full_disk(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def full_at_iteration(number: int, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """Fill the disk from the checkpoint or the samples of an iteration on."""
    from trainer.engine import artifacts, trainable

    home = trainable if where == "save_checkpoint" else artifacts

    original: Callable[..., None] = getattr(home, where)

    def writing(path: Path, *args: Any, **kwargs: Any) -> None:
        if path.stem == f"step-{number:06d}":
            monkeypatch.setattr("trainer.policy_checkpoint.save_adapter", full_disk)
            monkeypatch.setattr("pyarrow.parquet.write_table", full_disk)
        original(path, *args, **kwargs)

    monkeypatch.setattr(home, where, writing)


@pytest.mark.parametrize("where", ["save_checkpoint", "write_samples"])
@pytest.mark.parametrize("every", [1, 0], ids=["each iteration", "at the end only"])
def test_a_run_on_a_full_disk_ends_in_one_line_and_resumes_when_there_is_room(
    where: str, every: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full_at_iteration(3, monkeypatch, where)
    with pytest.raises(StorageError, match=r"No space left on device.*free space") as failure:
        record(tiny_config(tmp_path, "run.name=full", f"checkpoint.every={every}"))
    ended = read_journal(tmp_path / "runs/full/events.jsonl").events[-1]
    assert isinstance(ended, RunEnded)
    assert (ended.state, ended.exit_code, ended.reason) == ("failed", 3, str(failure.value))
    assert checkpoints(RunFolder(tmp_path / "runs/full")).problems == {}
    assert not list((tmp_path / "runs/full").rglob(".*"))
    monkeypatch.undo()
    record(tiny_config(tmp_path, f"checkpoint.every={every}"), resume=tmp_path / "runs/full")
    record(tiny_config(tmp_path, "run.name=roomy", f"checkpoint.every={every}"))
    assert outcome(tmp_path / "runs/full") == outcome(tmp_path / "runs/roomy")


def test_a_full_disk_does_not_hide_why_the_run_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = tiny_config(tmp_path, "run.name=a")
    (tmp_path / "rewards.py").write_text("def score(completions, **_):\n    return None\n")
    monkeypatch.setattr(checkpoint, "save_adapter", full_disk)
    with pytest.raises(RewardError) as failure:
        record(settings)
    ended = read_journal(tmp_path / "runs/a/events.jsonl").events[-1]
    assert isinstance(ended, RunEnded)
    assert (ended.exit_code, ended.reason) == (3, str(failure.value))


def damaged(run: Path, how: Callable[[Path], Any]) -> Recorder:
    """Resume the run in `run` after damaging its newest checkpoint, step-000003, by `how`."""
    how(run / "checkpoints/step-000003")
    return record(tiny_config(run.parents[1]), resume=run)


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        (lambda folder: os.truncate(folder / "value/value.safetensors", 3), "value/value.safetensors has 3 bytes"),
        (lambda folder: (folder / "policy/adapters.safetensors").unlink(), "policy/adapters.safetensors is missing"),
        (lambda folder: (folder / "state.json").unlink(), "state.json is missing"),
        (lambda folder: os.truncate(folder / "state.json", 20), "state.json cannot be read"),
    ],
    ids=["cut", "missing", "no state", "cut state"],
)
def test_a_damaged_checkpoint_is_reported_and_the_run_resumes_from_the_one_before(
    how: Callable[[Path], Any], reason: str, tmp_path: Path
) -> None:
    record(tiny_config(tmp_path, "run.name=a"))
    before = outcome(tmp_path / "runs/a")
    recorder = damaged(tmp_path / "runs/a", how)
    assert [started.resumed_at for started in recorder.of(RunStarted)] == [2]
    (alert,) = recorder.of(Alert)
    assert (alert.level, alert.code, alert.iteration) == ("warning", "checkpoint_damaged", 2)
    assert alert.message.startswith(f"checkpoint 'step-000003' ignored: {reason}")
    assert alert.message.endswith("resumed after iteration 2 instead")
    assert [saved.iteration for saved in recorder.of(CheckpointSaved)] == [3]
    assert outcome(tmp_path / "runs/a")["checkpoint"] == before["checkpoint"]


def overwritten(folder: Path) -> None:
    file = folder / "value/value.safetensors"
    file.write_bytes(b"\xff" * file.stat().st_size)


def renamed(folder: Path) -> None:
    """Give an array of the optimiser another name of the same length."""
    file = folder / "optimizer/optimizer.safetensors"
    content = file.read_bytes()
    assert b"lora_a.m" in content
    file.write_bytes(content.replace(b"lora_a.m", b"lora_x.m", 1))


def with_state(**values: Any) -> Callable[[Path], None]:
    """Return a change that sets fields of state.json."""

    def change(folder: Path) -> None:
        state = json.loads((folder / "state.json").read_text())
        (folder / "state.json").write_text(json.dumps(state | values))

    return change


CONTENTS: dict[str, tuple[Callable[[Path], None], str]] = {
    "critic overwritten": (overwritten, ".*"),
    "a moment under another name": (renamed, r"the optimiser lacks the moments \[32, 8\] of 'policy\..*lora_a'"),
    "an iteration in words": (with_state(iteration="three"), "iteration: Input should be a valid integer"),
    "a list of rewards": (with_state(rewards=[]), "rewards: "),
    "moments in words": (with_state(rewards={"count": "a"}), "rewards.count: "),
    "tokens below zero": (with_state(tokens=-1), "tokens: "),
    "a coefficient that is a table": (with_state(kl_coef={}), "kl_coef: "),
    "half a rollback": (with_state(rollback={"to": 1}), "rollback"),
    "no format": (with_state(format=None), "format = None"),
}


@pytest.fixture(scope="module")
def two_iterations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run with a checkpoint after each of two iterations."""
    folder = tmp_path_factory.mktemp("two")
    record(tiny_config(folder, "run.name=a", "ppo.iterations=2", "eval.every=0"))
    return folder


@pytest.mark.parametrize(("damage", "reason"), CONTENTS.values(), ids=CONTENTS)
def test_a_checkpoint_whose_content_is_damaged_is_not_loaded(
    damage: Callable[[Path], None], reason: str, two_iterations: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "step-000002"
    shutil.copytree(two_iterations / "runs/a/checkpoints/step-000002", folder)
    assert load_checkpoint(folder, {}).iteration == 2
    damage(folder)
    state = json.loads((folder / "state.json").read_text())
    del state["files"], state["sha256"]
    write_state(folder, state)  # otherwise only the hashes would be checked
    with pytest.raises(DamagedCheckpointError, match=rf"step-000002' is damaged \({reason}"):
        load_checkpoint(folder, {})


def test_a_checkpoint_of_a_newer_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    def renew(folder: Path) -> None:
        state = json.loads((folder / "state.json").read_text())
        (folder / "state.json").write_text(json.dumps(state | {"format": 2}))

    record(tiny_config(tmp_path, "run.name=a"))
    with pytest.raises(StorageError, match=r"written by a newer version .*: update ppo-workbench"):
        damaged(tmp_path / "runs/a", renew)
    assert sorted(path.name for path in (tmp_path / "runs/a/checkpoints").iterdir())[-1] == "step-000003"


# Content that differs from what was written


def test_one_flipped_bit_anywhere_in_a_checkpoint_is_noticed_and_the_file_named(tmp_path: Path) -> None:
    record(tiny_config(tmp_path, "run.name=a", "ppo.iterations=1", "optim.ema_decay=0.9"))
    whole = tmp_path / "runs/a/checkpoints/step-000001"
    damaged, seen = tmp_path / "step-000001", set()
    shutil.copytree(whole, damaged)
    adapter_config = json.loads((whole / "policy/adapter_config.json").read_text())
    load_checkpoint(damaged, adapter_config)
    for name, bit in flips(whole, a_file=6):
        flip(damaged / name, bit)
        with pytest.raises(StorageError) as failure:
            load_checkpoint(damaged, adapter_config)
        named = re.fullmatch(
            r"checkpoint '.*' (is damaged \((.*?)( .*)?\): .*|was written by a newer .*)", str(failure.value)
        )
        assert named, str(failure.value)
        assert name == "state.json" or named[2] == name, (name, bit, str(failure.value))
        seen.add(name)
        shutil.copy(whole / name, damaged / name)
    load_checkpoint(damaged, adapter_config)
    assert seen == {str(path.relative_to(whole)) for path in whole.rglob("*") if path.is_file()}
    assert len(seen) == 7


def test_a_run_skips_a_checkpoint_with_a_flipped_bit_and_sets_it_aside(tmp_path: Path) -> None:
    """It does not count as a kept one: with `checkpoint.keep = 1` it would be the only one."""
    record(tiny_config(tmp_path, "run.name=a", "checkpoint.best=off"))
    run = tmp_path / "runs/a"
    before = outcome(run)
    flip(run / "checkpoints/step-000003/policy/adapters.safetensors", 5000)
    flip(run / "checkpoints/step-000002/optimizer/optimizer.safetensors", 5000)
    recorder = record(tiny_config(tmp_path, "checkpoint.keep=1", "checkpoint.best=off"), resume=run)
    assert [started.resumed_at for started in recorder.of(RunStarted)] == [1]
    assert [alert.message for alert in recorder.of(Alert)] == [
        f"checkpoint 'step-00000{number}' ignored: {name} is not what was written; it is kept as "
        f"'.step-00000{number}.damaged': resumed after iteration 1 instead"
        for number, name in ((3, "policy/adapters.safetensors"), (2, "optimizer/optimizer.safetensors"))
    ]
    assert {alert.code for alert in recorder.of(Alert)} == {"checkpoint_damaged"}
    names = sorted(path.name for path in (run / "checkpoints").iterdir())
    assert names == [".step-000002.damaged", ".step-000003.damaged", "step-000003"]
    assert outcome(run)["checkpoint"] == before["checkpoint"]


def test_a_temporarily_unreadable_checkpoint_is_not_treated_as_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(tiny_config(tmp_path, "run.name=a"))

    def unreadable(*_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("hashlib.file_digest", unreadable)
    with pytest.raises(StorageError, match=r"cannot read '.*step-000003/.*': Permission denied; check the disk and"):
        record(tiny_config(tmp_path), resume=tmp_path / "runs/a")
    assert len(checkpoints(RunFolder(tmp_path / "runs/a")).paths) == 3


def test_a_checkpoint_that_a_killed_process_was_replacing_is_put_back(tmp_path: Path, snapshot: Snapshot) -> None:
    run = RunFolder(tmp_path)
    run.checkpoints.mkdir()
    save_checkpoint(run.checkpoint(12), snapshot)
    run.checkpoint(12).rename(run.checkpoints / ".step-000012.replaced")
    loaded, problems = load_newest(run, lambda path: load_checkpoint(path, snapshot.adapter_config))
    assert loaded is not None
    assert (loaded.iteration, problems) == (snapshot.iteration, [])
    shutil.copytree(run.checkpoint(12), run.checkpoints / ".step-000012.replaced")  # killed after the second rename
    assert load_newest(run, lambda path: load_checkpoint(path, snapshot.adapter_config))[0] is not None
    assert [path.name for path in run.checkpoints.iterdir()] == ["step-000012"]


def test_a_refused_resume_leaves_every_checkpoint_as_it_was(tmp_path: Path) -> None:
    record(tiny_config(tmp_path, "run.name=a", "ppo.iterations=1"))
    run = RunFolder(tmp_path / "runs/a")
    before = {path: path.read_bytes() for path in run.checkpoints.rglob("*") if path.is_file()}
    with pytest.raises(ModelError, match="lora_rank"):
        train(tiny_config(tmp_path, "ppo.iterations=2", "model.lora_rank=3"), resume=run.root)
    assert {path: path.read_bytes() for path in run.checkpoints.rglob("*") if path.is_file()} == before
