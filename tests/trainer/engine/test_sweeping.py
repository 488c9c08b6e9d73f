"""Plans of sweeps: their runs, what is refused before anything trains, and the file that a later command reads."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from trainer.config import Config, split_seed
from trainer.config.loading import differences
from trainer.engine.sweeping import (
    Sweep,
    check_folders,
    check_same,
    held,
    plan_sweep,
    save_sweep,
    saved_sweep,
    sweep_names,
)
from trainer.errors import ConfigError, StorageError, UsageError
from trainer.runs.folder import create_run, run_folders

KL, LR = "ppo.kl_coef=0.02,0.05", "optim.policy_lr=1e-4,1e+0"


def plan(*vary: str, overrides: tuple[str, ...] = (), seeds: int = 1, name: str = "s") -> Sweep:
    return plan_sweep("quickstart", overrides, vary, seeds=seeds, name=name)


def test_every_combination_gets_its_first_seed_before_any_gets_its_second() -> None:
    sweep = plan(KL, LR, overrides=("run.seed=7",), seeds=2)
    assert [run.name for run in sweep.runs] == [
        f"s_kl_coef-{kl}_policy_lr-{lr}_seed-{seed}"
        for seed in (7, 8)
        for kl in ("0.02", "0.05")
        for lr in ("1e-4", "1e0")
    ]
    configs = [run.config for run in sweep.runs]
    assert [(c.ppo.kl_coef, c.optim.policy_lr, c.run.seed) for c in configs[1:5]] == [
        (0.02, 1.0, 7),
        (0.05, 1e-4, 7),
        (0.05, 1.0, 7),
        (0.02, 1e-4, 8),
    ]
    assert {split_seed(config) for config in configs} == {7}, "all hold out the same prompts"
    assert {config.run.dir for config in configs} == {str(Path.cwd() / "runs")}
    differ = {key for config in configs[1:] for key, _ in differences(configs[0], config)}
    assert differ == {"ppo.kl_coef", "optim.policy_lr", "run.seed", "run.name"}
    assert next(iter(sweep.combinations)) == "kl_coef-0.02_policy_lr-1e-4"
    assert not Path("runs").exists(), "a plan writes nothing"


@pytest.mark.parametrize(
    ("vary", "names"),
    [
        (
            "model.lora_targets=[['q_proj'], ['q_proj', 'v_proj']]",
            ["lora_targets-q_proj", "lora_targets-q_proj-v_proj"],
        ),
        ("rollout.stop=[[], ['END']]", ["stop-empty", "stop-END"]),
        ("data.chat=auto, never", ["chat-auto", "chat-never"]),
        ("data.shuffle=true,false", ["shuffle-true", "shuffle-false"]),
        ("data.eval_fraction=0,1e-1", ["eval_fraction-0", "eval_fraction-1e-1"]),
        ("data.prompts=a b/c.txt,../d.txt", ["prompts-c.txt", "prompts-d.txt"]),
        ("data.prompts=a/c.txt,b/c.txt", ["prompts-a-c.txt", "prompts-b-c.txt"]),
        ("reward.sources=[['/x/r.py:a'], ['/x/r.py:b', 'lexicon']]", ["sources-r.py-a", "sources-r.py-b-lexicon"]),
    ],
)
def test_values_are_split_at_commas_or_an_array_and_names_fit_a_folder(vary: str, names: list[str]) -> None:
    assert list(plan(vary).combinations) == names


def test_names_have_what_they_need_and_the_configurations_own_without_another() -> None:
    (first, *_) = plan("eval.every=1,2", "checkpoint.every=1,2").combinations
    assert first == "eval.every-1_checkpoint.every-1", "two settings share the end of their keys"
    assert plan(KL, name="").name == "quickstart"
    assert plan(KL, name="", overrides=("run.name=mine",)).name == "mine"


@pytest.mark.parametrize(
    ("vary", "overrides", "message"),
    [
        ([], [], "give --vary KEY=VALUE,VALUE"),
        (["kl_coef=1,2"], [], "--vary kl_coef=1,2: must be table.key=value,value"),
        (["ppo.kl_coef="], [], "must be table.key=value,value"),
        (["ppo.kl_coef=0.1"], [], "fewer than two values vary nothing; use --set"),
        (["ppo.kl_coef=0.1,,0.2"], [], "has an empty value"),
        (["ppo.kl_coef=[0.1, 0.2"], [], "not an array in TOML"),
        (["ppo.kl_coef=0.1,0.2,1e-1"], [], "0.1 and 1e-1 are the same value"),
        (["data.chat=auto,auto"], [], "auto and auto are the same value"),
        ([KL, "ppo.kl_coef=1,2"], [], "--vary ppo.kl_coef is given twice"),
        ([KL], ["ppo.kl_coef=1"], "--set ppo.kl_coef and --vary ppo.kl_coef: give only one"),
        (["run.seed=1,2"], [], "--vary run.seed cannot vary: use --seeds"),
        (["run.name=a,b"], [], "--vary run.name cannot vary: each run is named"),
        (["run.dir=a,b"], [], "--vary run.dir cannot vary"),
        (["data.eval_seed=1,2"], [], "--vary data.eval_seed cannot vary: all runs of a sweep hold out the same"),
        ([KL], ["run.seed=-1"], "run.seed = -1 draws a seed"),
        (["data.prompts=a b,a  b"], [], "would both be named 'prompts-a-b'"),
        (["data.prompts=Up,up"], [], "would both be named 'prompts-up'"),
        ([f"ppo.kl_coef={','.join(map(str, range(1025)))}"], [], "1,025 runs, and the most are 1,024"),
    ],
)  # fmt: skip
def test_mistakes_are_refused(vary: list[str], overrides: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        plan(*vary, overrides=tuple(overrides))


def test_a_name_that_no_folder_can_have_is_refused() -> None:
    with pytest.raises(UsageError, match="must be letters, digits"):
        plan(KL, name="../s")
    with pytest.raises(UsageError, match="is longer than 200 bytes: use a shorter --name"):
        plan(KL, name="s" * 190)


def test_a_broken_rule_names_the_combinations_that_break_it() -> None:
    with pytest.raises(ConfigError) as found:
        plan("ppo.minibatches=2,3", "ppo.kl_coef=0.1,-1", overrides=("rollout.batch_size=8", "ppo.kl_coeff=1"))
    unknown = "unknown key 'ppo.kl_coeff': did you mean 'ppo.kl_coef'?"  # it is about none of them
    assert unknown in found.value.problems
    negative, indivisible = sorted(problem for problem in found.value.problems if problem != unknown)
    assert negative.startswith(
        "combination ppo.minibatches = 2, ppo.kl_coef = -1: ppo.kl_coef = -1: must be at least 0"
    )
    assert negative.endswith("(and in 1 other combination)")
    assert indivisible.startswith(
        "combination ppo.minibatches = 3, ppo.kl_coef = 0.1: ppo.minibatches = 3 does not div"
    )
    assert str(found.value).startswith("quickstart: ")


# the file


def test_a_saved_plan_is_read_back_whole(tmp_path: Path) -> None:
    sweep = plan(KL, "model.lora_targets=[['q_proj'], ['v_proj']]", seeds=3)
    save_sweep(sweep)
    assert saved_sweep("s", tmp_path / "runs") == sweep
    assert saved_sweep("t", tmp_path / "runs") is None
    assert (sweep_names(sweep.runs_dir), run_folders(sweep.runs_dir)) == (["s"], []), "it is not listed as a run"
    check_same(plan("model.lora_targets=[['v_proj'], ['q_proj']]", "ppo.kl_coef=0.05,2e-2", seeds=3), sweep)


def test_a_plan_moves_with_its_folder(tmp_path: Path) -> None:
    save_sweep(plan(KL))
    (tmp_path / "runs").rename(tmp_path / "moved")
    moved = saved_sweep("s", tmp_path / "moved")
    assert moved is not None
    assert {run.config.run.dir for run in moved.runs} == {str(tmp_path / "moved")}
    check_same(plan(KL), moved)


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (lambda: plan(LR), "ppo.kl_coef is 0.045, not 0.02, 0.05"),
        (lambda: plan("ppo.kl_coef=0.02,0.06"), "ppo.kl_coef is 0.02, 0.06, not 0.02, 0.05"),
        (lambda: plan(KL, seeds=2), "--seeds is 2 seeds from 0, not 1 seed from 0"),
        (lambda: plan(KL, overrides=("run.seed=3",)), "--seeds is 1 seed from 3, not 1 seed from 0"),
        (lambda: plan(KL, overrides=("ppo.epochs=9",)), "ppo.epochs is 9, not "),
    ],
)
def test_another_plan_of_the_name_is_refused_with_the_difference(other: object, difference: str) -> None:
    assert callable(other)
    with pytest.raises(UsageError, match="finish that one with --resume s") as found:
        check_same(plan(KL), other())
    assert difference in str(found.value)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "cannot read the plan"),
        ("[]", "not a table"),
        ('{"sweep": 99}', "written by a newer version"),
        ('{"sweep": 1, "jobs": 1, "seeds": 1, "vary": {}, "config": {}}', r"cannot read the plan '.*': vary: Dict"),
        (
            '{"sweep": 1, "jobs": 1, "seeds": 1, "vary": {"ppo.kl_coef": {"../x": 1}}, "config": {}}',
            r"vary\.ppo\.kl_coef\..*: String should match",
        ),
    ],
)
def test_a_damaged_plan_is_a_clear_error(tmp_path: Path, content: str, reason: str) -> None:
    (tmp_path / "s.sweep.json").write_text(content)
    with pytest.raises(StorageError, match=reason):
        saved_sweep("s", tmp_path)


def test_a_plan_that_breaks_a_rule_names_its_file(tmp_path: Path) -> None:
    save_sweep(plan(KL))
    path = tmp_path / "runs/s.sweep.json"
    content = json.loads(path.read_text())
    content["vary"]["ppo.kl_coef"]["0.02"] = -1
    path.write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=r"s\.sweep\.json: combination .*ppo\.kl_coef = -1"):
        saved_sweep("s", tmp_path / "runs")


def test_a_run_of_that_name_with_other_settings_is_in_the_way() -> None:
    sweep = plan(KL)
    first, second = sweep.runs
    live = first.config.ppo.model_copy(update={"kl_coef": 0.5, "iterations": 99})
    create_run(first.config.model_copy(update={"ppo": live}), "")
    check_folders(sweep)  # settings that may change during a run, or when it is resumed
    create_run(second.config.model_copy(update={"model": Config().model.model_copy(update={"lora_rank": 3})}), "")
    with pytest.raises(UsageError, match=r"not of this sweep: model.lora_rank = 3, not \d+; use another --name"):
        check_folders(sweep)


def test_a_folder_that_is_no_run_is_in_the_way() -> None:
    sweep = plan(KL)
    sweep.folder(sweep.runs[0]).root.mkdir(parents=True)
    check_folders(sweep)  # as a start leaves it that was killed
    (sweep.folder(sweep.runs[0]).root / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="is in use"):
        check_folders(sweep)


def test_only_one_process_trains_a_sweep() -> None:
    sweep = plan(KL)
    save_sweep(sweep)
    with held(sweep), pytest.raises(UsageError, match="is being trained by another process"), held(sweep):
        pass
    with held(sweep):
        pass
