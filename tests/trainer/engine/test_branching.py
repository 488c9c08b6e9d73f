"""A branch begins exactly where its run was, and differs from what the run did next only by what was changed."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from runs_helper import Recorder, flip, outcome, record, tiny_config

from trainer.config import load_config
from trainer.config.loading import config_text
from trainer.config.pairs import DPOConfig
from trainer.engine.branching import BranchPlan, BranchRequest, plan_branches
from trainer.engine.control import Control
from trainer.engine.training import train
from trainer.errors import ConfigError, StorageError, UsageError
from trainer.events import (
    BranchedFrom,
    CheckpointSaved,
    DataChanged,
    Evaluation,
    Iteration,
    RolledBack,
    RunEnded,
    RunStarted,
    SettingChanged,
)
from trainer.runs.checkpoint_files import checkpoints, read_best
from trainer.runs.folder import RunFolder
from trainer.runs.journal import read_journal
from trainer.runs.listing import list_runs, summary_of

SETTINGS = (
    "run.name=a",
    "ppo.iterations=4",
    "checkpoint.keep=0",
    "reward.normalize=running",
    "ppo.kl_controller=adaptive",
    "optim.ema_decay=0.5",
    "eval.every=1",
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the workspace of a run `a` of four iterations, with all its checkpoints."""
    folder = tmp_path_factory.mktemp("run")
    record(tiny_config(folder, *SETTINGS))
    return folder


@pytest.fixture
def parent(finished: Path, tmp_path: Path) -> RunFolder:
    """Return a copy of the run in a folder of runs of its own."""
    return RunFolder(shutil.copytree(finished / "runs/a", tmp_path / "runs/a"))


def trained(plan: BranchPlan) -> list[RunFolder]:
    """Create and train all branches of `plan`."""
    folders = [plan.create(branch) for branch in plan.branches]
    for folder in folders:
        record(load_config(folder.config), resume=folder.root)
    return folders


def content(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Return every file below `folder` with its time of modification."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "lock")
    return {str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def late(found: dict[str, Any], after: int) -> dict[str, Any]:
    """Return an outcome without the samples up to iteration `after`, which a branch does not have."""
    samples = {name: rows for name, rows in found["samples"].items() if name > f"step-{after:06d}.parquet"}
    return {**found, "samples": samples, "events": [e for e in found["events"] if e["event"] != "samples"]}


def test_a_branch_without_changes_equals_what_its_run_did_next(parent: RunFolder) -> None:
    before = content(parent.root)
    [branch] = trained(plan_branches(parent, BranchRequest(at=2)))
    assert late(outcome(branch.root), 2) == late(outcome(parent.root), 2)
    assert sorted(branch.samples.glob("*.parquet")) == [branch.samples_file(number) for number in (3, 4)]
    assert read_best(branch) == read_best(parent)
    assert content(parent.root) == before


def test_pairs_have_the_same_seeds_and_differ_by_the_change_alone(parent: RunFolder) -> None:
    plan = plan_branches(parent, BranchRequest(at=2, overrides=["ppo.epochs=1"], seeds=2, control=True, iterations=1))
    folders = trained(plan)
    assert [folder.name for folder in folders] == ["a-branch-1", "a-control-1", "a-branch-2", "a-control-2"]
    configs = [load_config(folder.config) for folder in folders]
    seed = load_config(parent.config).run.seed
    assert [config.run.seed for config in configs] == [seed, seed, seed + 1, seed + 1]
    assert [config.ppo.epochs for config in configs] == [1, 2, 1, 2]
    assert {config.ppo.iterations for config in configs} == {3}
    since = BranchedFrom(run="a", iteration=2, checkpoint=plan.branches[1].branched_from.checkpoint)
    assert [summary_of(folder).branched_from for folder in folders] == [
        replace(since, changes={"ppo.epochs": 1}),
        since,
    ] * 2
    third = [_iteration(folder, 3) for folder in folders]
    own = _iteration(parent, 3)
    assert third[1].score_mean == own.score_mean == third[0].score_mean, "the batch is sampled before the change acts"
    assert third[1].approx_kl == own.approx_kl != third[0].approx_kl
    assert third[2].response_length != own.response_length or third[2].score_mean != own.score_mean
    prompts = {row["prompt"] for found in outcome(parent.root)["samples"].values() for row in found}
    for folder in folders:  # those that the run held out stay held out, with any seed
        assert {row["prompt"] for found in outcome(folder.root)["samples"].values() for row in found} <= prompts


def _iteration(folder: RunFolder, number: int) -> Iteration:
    events = read_journal(folder.events).events
    return next(event for event in events if isinstance(event, Iteration) and event.iteration == number)


def test_the_journal_has_the_history_of_the_run_and_says_where_the_branch_is_from(parent: RunFolder) -> None:
    [branch] = trained(
        plan_branches(parent, BranchRequest(at=2, overrides=["ppo.kl_coef=0.3", "rollout.batch_size=6"]))
    )
    events = read_journal(branch.events).events
    starts = [event for event in events if isinstance(event, RunStarted)]
    assert [start.resumed_at for start in starts] == [None, 2]
    assert [start.branched_from and start.branched_from.changes for start in starts] == [
        {"ppo.kl_coef": 0.3, "rollout.batch_size": 6}
    ] * 2
    assert {(start.name, start.folder) for start in starts} == {(branch.name, str(branch.root))}
    assert [event.iteration for event in events if isinstance(event, Iteration)] == [1, 2, 3, 4]
    assert [event.iteration for event in events if isinstance(event, Evaluation)] == [0, 1, 2, 3, 4]
    changed = [(event.iteration, event.key, event.value) for event in events if isinstance(event, SettingChanged)]
    assert sorted(changed) == [(3, "ppo.kl_coef", 0.3), (3, "rollout.batch_size", 6)]
    saved = [event.path for event in events if isinstance(event, CheckpointSaved)]
    assert saved == [str(path.relative_to(branch.root)) for path in checkpoints(branch).paths], "not those left behind"
    summaries = {run.name: run for run in list_runs(parent.root.parent)}
    assert summaries["a"].branched_from is None
    assert summaries[branch.name].branched_from == starts[0].branched_from
    assert (summaries[branch.name].state, summaries[branch.name].iteration) == ("done", 4)


def test_a_change_that_came_later_in_the_run_is_not_in_a_branch_from_before(finished: Path, tmp_path: Path) -> None:
    parent = RunFolder(shutil.copytree(finished / "runs/a", tmp_path / "runs/a"))
    old = load_config(parent.config).ppo.kl_coef
    record(load_config(parent.config, {"ppo": {"iterations": 5, "kl_coef": 0.4}}), resume=parent.root)
    at_two, at_four = (plan_branches(parent, BranchRequest(at=at)).branches[0].config.ppo.kl_coef for at in (2, 4))
    assert (at_two, at_four) == (old, 0.4)


def test_a_branch_that_exists_is_found_again_and_only_what_is_missing_is_new(parent: RunFolder) -> None:
    plan = plan_branches(parent, BranchRequest(at=2, overrides=["ppo.kl_coef=0.3"], control=True))
    for branch in plan.branches:
        plan.create(branch)

    def found(**wanted: Any) -> list[tuple[str, bool]]:
        return [(branch.name, branch.is_new) for branch in plan_branches(parent, BranchRequest(**wanted)).branches]

    same = found(at=2, overrides=["ppo.kl_coef=0.3"], control=True, seeds=2)
    assert same == [("a-branch-1", False), ("a-control-1", False), ("a-branch-2", True), ("a-control-2", True)]
    other = found(at=2, overrides=["ppo.kl_coef=0.2"], control=True)
    assert other == [("a-branch-2", True), ("a-control-1", False)], "a control belongs to every change"
    assert found(at=1, overrides=["ppo.kl_coef=0.3"]) == [("a-branch-2", True)]
    assert found(at=2, overrides=["ppo.kl_coef=0.3"], iterations=1) == [("a-branch-2", True)]
    assert found(at=2, overrides=["ppo.kl_coef=0.3"], name="b") == [("a-branch-1", False)]


@pytest.mark.parametrize(
    "changes",
    [
        ["ppo.estimator=rloo", "rollout.samples_per_prompt=2"],
        ["optim.ema_decay=0"],
        ["reward.normalize=off", "rollout.max_new_tokens=6"],
        ["optim.weight_decay=0.1", "optim.beta2=0.9", "optim.schedule=cosine"],
        ["rollout.batch_size=6", "ppo.minibatches=2"],
    ],
)
def test_settings_that_do_not_shape_the_saved_state_may_change(parent: RunFolder, changes: list[str]) -> None:
    [branch] = trained(plan_branches(parent, BranchRequest(at=3, overrides=changes)))
    assert [event.state for event in read_journal(branch.events).events if isinstance(event, RunEnded)] == ["done"]
    assert _iteration(branch, 4).steps > 0
    assert outcome(branch.root)["checkpoint"] != outcome(parent.root)["checkpoint"]


def test_a_critic_can_begin_in_a_branch_of_a_run_without_one(tmp_path: Path) -> None:
    record(tiny_config(tmp_path, "run.name=a", "ppo.iterations=2", "ppo.estimator=reinforce"))
    [branch] = trained(
        plan_branches(RunFolder(tmp_path / "runs/a"), BranchRequest(at=1, overrides=["ppo.estimator=gae"]))
    )
    assert _iteration(branch, 2).value_loss > 0


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("model.lora_rank=4", "model.lora_rank cannot change in a branch: the checkpoint is of this model"),
        ("model.value_model=adapter", "model.policy_init = '.*step-000002/policy' to begin as this policy"),
        ("data.eval_fraction=0.5", "it would hold out prompts that the run has trained on"),
        ("run.seed=3", "--seeds adds others"),
        ("run.name=b", "use --name"),
        ("ppo.iterations=2", "nothing is left to train after iteration 2"),
    ],
)
def test_settings_that_cannot_change_are_refused(parent: RunFolder, setting: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        plan_branches(parent, BranchRequest(at=2, overrides=[setting]))


def test_mistakes_are_reported_before_anything_is_written(parent: RunFolder) -> None:
    with pytest.raises(ConfigError, match=r"ppo\.minibatches = 3 does not divide"):
        plan_branches(parent, BranchRequest(at=2, overrides=["ppo.minibatches=3"]))
    with pytest.raises(UsageError, match=r"run 'a' has no checkpoint of iteration 9: choose from 0?,? ?1, 2, 3, 4 "):
        plan_branches(parent, BranchRequest(at=9))
    with pytest.raises(UsageError, match=r"--control trains without the changes, and there are none"):
        plan_branches(parent, BranchRequest(at=2, control=True))
    with pytest.raises(UsageError, match=r"--name a: .* exists and is not this branch"):
        plan_branches(parent, BranchRequest(at=2, name="a"))
    with pytest.raises(UsageError, match=r"give only one of them"):
        plan_branches(parent, BranchRequest(at=2, iterations=3, overrides=["ppo.iterations=5"]))
    parent.config.write_text(config_text(DPOConfig()))
    with pytest.raises(UsageError, match=r"run 'a' is of kind 'dpo': only PPO runs can be branched"):
        plan_branches(parent, BranchRequest(at=2))
    assert [path.name for path in parent.root.parent.iterdir()] == ["a"]


@pytest.mark.parametrize("how", ["flipped", "cut", "replaced"])
def test_a_damaged_checkpoint_gives_no_branch(parent: RunFolder, how: str) -> None:
    weights = parent.checkpoint(2) / "optimizer/optimizer.safetensors"
    plan = plan_branches(parent, BranchRequest(at=2))
    if how == "flipped":
        flip(weights, 8 * weights.stat().st_size - 1)
    elif how == "cut":
        weights.write_bytes(weights.read_bytes()[:-1])
    else:
        shutil.rmtree(parent.checkpoint(2))
        shutil.copytree(parent.checkpoint(3), parent.checkpoint(2))
    if how != "replaced":
        with pytest.raises((StorageError, UsageError), match="step-000002"):
            plan_branches(parent, BranchRequest(at=2))
    with pytest.raises(StorageError, match=r"damaged|replaced"):
        plan.create(plan.branches[0])
    assert [run.name for run in list_runs(parent.root.parent)] == ["a"]


@pytest.mark.parametrize("what", ["file", "folder", "list", "device", "loop"])
def test_a_branch_copies_no_link_and_leaves_nothing_behind(parent: RunFolder, tmp_path: Path, what: str) -> None:
    saved, private = parent.checkpoint(2), tmp_path / "private"
    plan = plan_branches(parent, BranchRequest(at=2))
    shutil.copytree(saved / "policy", private)
    match what:
        case "file":
            (saved / "policy" / "adapters.safetensors").unlink()
            (saved / "policy" / "adapters.safetensors").symlink_to(private / "adapters.safetensors")
        case "folder":
            shutil.rmtree(saved / "policy")
            (saved / "policy").symlink_to(private)
        case "list":
            state = json.loads((saved / "state.json").read_text())
            state["files"] = {"../../../../private/adapters.safetensors": {"bytes": 1, "sha256": ""}}
            (saved / "state.json").write_text(json.dumps(state))
        case "device":
            (saved / "zero").symlink_to("/dev/zero")  # not listed: it is left out
        case "loop":
            (saved / "loop").symlink_to(saved)
    if what in ("device", "loop"):
        copy = plan.create(plan.branches[0]).checkpoint(2)
        assert not {"zero", "loop"} & {path.name for path in copy.iterdir()}
        return
    with pytest.raises(StorageError, match="damaged"):
        plan.create(plan.branches[0])
    assert [path.name for path in parent.root.parent.iterdir()] == ["a"]


def test_a_branch_keeps_the_best_policy_of_its_run_unless_it_is_measured_otherwise(parent: RunFolder) -> None:
    best = read_best(parent)
    assert best is not None
    at = max(best.iteration, 1)
    plan = plan_branches(parent, BranchRequest(at=at if at < 4 else 3))
    folder = plan.create(plan.branches[0])
    expected = best if best.iteration <= plan.branches[0].branched_from.iteration else None
    assert read_best(folder) == expected
    assert folder.checkpoint(plan.branches[0].branched_from.iteration) == checkpoints(folder).paths[-1]
    plan = plan_branches(parent, BranchRequest(at=3, overrides=["eval.prompts=1"]))
    assert read_best(plan.create(plan.branches[0])) is None


def test_a_branch_holds_out_what_its_run_did_unless_it_changes_the_data(parent: RunFolder) -> None:
    other = plan_branches(parent, BranchRequest(at=2, overrides=["data.limit=5"], iterations=1))
    [branch] = other.branches
    folder = other.create(branch)
    assert [event.iteration for event in record(load_config(folder.config), resume=folder.root).of(Iteration)] == [3]
    assert len([event for event in read_journal(folder.events).events if isinstance(event, DataChanged)]) == 1
    unchanged = plan_branches(parent, BranchRequest(at=2, iterations=1))
    folder = unchanged.create(unchanged.branches[0])
    assert folder.prompts.read_text() == parent.prompts.read_text()


def test_a_branch_can_be_branched_also_where_its_run_was(parent: RunFolder) -> None:
    [branch] = trained(plan_branches(parent, BranchRequest(at=2, overrides=["ppo.kl_coef=0.3"])))
    again = plan_branches(branch, BranchRequest(at=3))
    [second] = trained(again)
    assert late(outcome(second.root), 3)["checkpoint"] == outcome(branch.root)["checkpoint"]
    assert [start and start.run for start in (summary_of(one).branched_from for one in (branch, second))] == [
        "a",
        branch.name,
    ]
    assert plan_branches(branch, BranchRequest(at=2)).branches[0].config.ppo.kl_coef == 0.3


def test_a_branch_after_a_rollback_goes_on_from_what_was_rolled_back_to(tmp_path: Path) -> None:
    control = Control()
    settings = ["run.name=a", "ppo.iterations=4", "checkpoint.keep=0"]
    recorder = Recorder(
        lambda event: control.rollback(1) if isinstance(event, Iteration) and event.iteration == 2 else None
    )
    train(tiny_config(tmp_path, *settings), sinks=[recorder], control=control)
    parent = RunFolder(tmp_path / "runs/a")
    [rolled_back] = recorder.of(RolledBack)
    [branch] = trained(plan_branches(parent, BranchRequest(at=rolled_back.iteration)))
    assert late(outcome(branch.root), rolled_back.iteration) == late(outcome(parent.root), rolled_back.iteration)
    assert load_config(branch.config).optim == load_config(parent.config).optim
    assert [event for event in read_journal(branch.events).events if isinstance(event, RolledBack)] == [rolled_back]
