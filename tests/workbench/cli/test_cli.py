"""The command line for its users: what it prints where, its exit codes, its signals, and what it loads."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from apart import ROOT
from scripted_run import ERROR, alarm, ended, lines, make_run, refused, write_events
from token_samples import sample_row

from trainer import doctor, errors
from trainer.config import Config
from trainer.config.pairs import DPOConfig, RewardModelConfig
from trainer.distributed.ranks import HUNG
from trainer.doctor import Check
from trainer.errors import TrainerError
from trainer.runs.folder import RunFolder
from trainer.runs.samples import write_samples
from workbench.cli import main as cli
from workbench.cli import train, ui
from workbench.cli.config import configuration

# usage


@pytest.mark.parametrize(
    ("argv", "names"),
    [
        (["--set", "ppo.klcoef=0.1"], "ppo.kl_coef"),
        (["--set", "ppo.kl_coef=-1"], "ppo.kl_coef"),
        (["--set", "kl_coef"], "table.key=value"),
        (["--config", "nope"], "no preset or file 'nope'"),
        (["--config", "bad.toml"], "not TOML"),
        (["--config", "."], "cannot read configuration"),
        (["--name", "a/b"], "run.name"),
        (["--name", "taken"], "taken"),
    ],
)
def test_what_is_wrong_with_the_command_line_is_said_before_the_screen_opens_as_without_it(
    argv: list[str], names: str
) -> None:
    Path("bad.toml").write_text("[ppo\n")
    make_run("taken")
    said = []
    for open_or_train, args in ((ui.opening, cli.parse(argv)), (train.train, cli.parse(["--no-ui", *argv]))):
        with pytest.raises(TrainerError) as refused:
            open_or_train(args)
        said.append((str(refused.value), refused.value.exit_code))
    assert said[0] == said[1]
    assert names in said[0][0]
    assert said[0][1] == 2


def test_the_configuration_of_a_workspace_opens_with_its_problems() -> None:
    Path("runs").mkdir()
    Path("config.toml").write_text("[ppo]\nkl_coef = -1\n")
    [problem] = ui.opening(cli.parse([])).document().problems
    assert problem.key == "ppo.kl_coef"


def test_every_problem_of_a_configuration_is_a_line_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["config", "validate", "--set", "ppo.epochs=0", "--set", "ppo.klcoef=1"]
    assert cli.main(argv) == 2
    out, err = lines(capsys)
    assert out == []
    assert [line.startswith(ERROR) for line in err] == [True, True]
    assert "ppo.epochs = 0" in err[0]
    assert "did you mean 'ppo.kl_coef'" in err[1]


def test_help_lists_every_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    shown = capsys.readouterr().out
    found = [error for error in vars(errors).values() if isinstance(error, type) and issubclass(error, TrainerError)]
    of_errors = {error.exit_code for error in found}
    assert {int(code) for code in re.findall(r"^ +(\d+)  ", shown, re.MULTILINE)} == {0, 1, 130, HUNG} | of_errors


# config


def test_config_show_prints_toml_that_gives_the_same_configuration_back(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["config", "show", "--config", "qwen3-0.6b", "--set", "rollout.top_k=5"]) == 0
    captured = capsys.readouterr()
    Path("shown.toml").write_text(captured.out)
    assert tomllib.loads(captured.out)["rollout"]["top_k"] == 5
    assert captured.err.startswith("ppo-workbench: warning: rollout.top_p or rollout.top_k")
    cli.main(["config", "show", "--config", "shown.toml"])
    assert capsys.readouterr().out == captured.out


def test_options_before_and_after_the_command_add_up(capsys: pytest.CaptureFixture[str]) -> None:
    before = ["--config", "qwen3-0.6b", "--set", "ppo.epochs=7"]
    assert cli.main([*before, "config", "show", "--set", "ppo.clip=0.3"]) == 0
    shown = tomllib.loads(capsys.readouterr().out)
    assert (shown["model"]["lora_rank"], shown["ppo"]["epochs"], shown["ppo"]["clip"]) == (16, 7, 0.3)


def test_config_schema_explains_every_key_in_each_format(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["config", "schema"])
    text = capsys.readouterr().out
    cli.main(["config", "schema", "--format", "markdown"])
    markdown = capsys.readouterr().out
    cli.main(["config", "schema", "--kind", "dpo"])
    assert "train.beta" in capsys.readouterr().out
    cli.main(["config", "schema", "--format", "json"])
    schema = json.loads(capsys.readouterr().out)
    for table, values in Config().model_dump().items():
        assert table in schema["properties"]
        for key in values:
            assert f"{table}.{key}  " in text
            assert f"`{table}.{key}`" in markdown
    assert re.search(r"^ppo\.kl_coef  .*default 0\.05 score per nat  live$", text, re.MULTILINE)


# runs


def test_runs_are_listed_with_state_progress_score_and_kl_and_a_damaged_one_with_its_problem(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["runs"]) == 0
    out, (err,) = lines(capsys)
    assert out == []
    assert "ppo-workbench --no-ui" in err, "the way to start one"
    make_run("a-0001")
    (make_run("b\x1b[2J") / "config.toml").write_text("[ppo")
    assert cli.main(["runs"]) == 0
    out, err = lines(capsys)
    assert out[0].split() == ["run", "state", "iteration", "score", "KL", "started", "model"]
    assert out[2].split()[:5] == ["a-0001", "stopped", "2/100", "0.150", "0.75"]
    assert out[3].startswith("b␛[2J")
    assert [line.partition(": cannot read")[0] for line in err] == ["ppo-workbench: warning: b␛[2J"]


def test_a_run_that_ended_with_an_error_says_which_and_json_has_one_object_a_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    left = ended("done", 4, alarms={"step_nan": "error"})
    write_events(folder := make_run("a-0001"), alarm(3, code="truncation"), alarm(4, level="error"), left)
    assert cli.main(["runs"]) == 0
    out, _ = lines(capsys)
    assert "  done, step NaN +1  " in out[2]
    assert cli.main(["runs", "--json", "--dir", "runs"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    run = json.loads(line)
    assert (run["name"], run["state"], run["iteration"], run["kl"]) == ("a-0001", "done", 2, 0.75)
    assert run["alarms"] == {"step_nan": "error", "kl_high": "error", "truncation": "warning"}
    assert Path(run["folder"]).samefile(folder)


# doctor


def found() -> dict[str, Check]:
    return {check.name: check for check in doctor.checks()}


def test_doctor_names_the_folder_of_the_starter_for_other_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.starter, "starter_is_cached", lambda: True)
    assert found()["starter"].detail == f"converted, in {doctor.starter.starter_folder()}"


@pytest.mark.parametrize(("status", "code"), [("ok", 0), ("warn", 0), ("fail", 3)])
def test_doctor_prints_a_line_a_check_and_fails_when_one_does(
    status: Any, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = [Check("mlx", "ok", "runs"), Check("compiler", status, "no g++", "apt install g++")]
    monkeypatch.setattr(doctor, "checks", lambda: iter(printed))
    assert cli.main(["doctor"]) == code
    out, _ = lines(capsys)
    assert [line.split()[:2] for line in out] == [["ok", "mlx"], [status, "compiler"]]
    assert out[1].endswith("no g++: apt install g++")


def test_the_checks_name_what_is_missing_and_a_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PPO_WORKBENCH_CACHE", str(tmp_path))
    monkeypatch.setattr(doctor.starter, "PACKAGE", "no_such_package")
    monkeypatch.setattr("mlx.core.metal.is_available", lambda: False)
    monkeypatch.setattr(doctor, "QUICKSTART_BYTES", 10**18)
    checks = found()
    assert list(checks) == ["packages", "mlx", "limits", "matmul", "compiler", "starter", "cache", "memory"]
    assert checks["mlx"].status == "ok"
    assert re.match(r"MLX uses up to \d+\.\d GB; beyond that it swaps or fails", checks["limits"].detail)
    assert checks["compiler"].status == "warn"
    assert "which MLX needs to compile its CPU kernels (without it, log-probs" in checks["compiler"].detail
    assert (checks["starter"].status, checks["memory"].status) == ("warn", "warn")
    assert all(check.advice for check in checks.values() if check.status != "ok")


def test_the_memory_of_a_gpu_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    about = {"device_name": "M9", "memory_size": 64 * 10**9, "max_recommended_working_set_size": 48 * 10**9}
    monkeypatch.setattr("mlx.core.device_info", lambda device=None: about)
    monkeypatch.setattr("mlx.core.metal.is_available", lambda: True)
    monkeypatch.setattr("mlx.core.get_memory_limit", lambda: 72 * 10**9)
    monkeypatch.setattr("mlx.core.set_cache_limit", lambda limit: 70 * 10**9)
    checks = found()
    assert checks["mlx"].detail.endswith(", M9, 64.0 GB of memory")
    assert checks["limits"].detail == (
        "MLX uses up to 72.0 GB; beyond that it swaps or fails. It keeps up to 70,000 MB of what it frees; "
        "48.0 GB stay wired while it trains: the rest may be paged out, which is slow"
    )
    assert "compiler" not in checks  # Metal's kernels are in the package


@pytest.mark.parametrize("device", ["nvidia0", "dxg"])
def test_an_nvidia_gpu_that_the_installed_mlx_cannot_use_is_reported(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / device).touch()
    monkeypatch.setattr(doctor.blas, "DEVICES", tmp_path)
    monkeypatch.setattr(doctor, "version_of", {"mlx": "0.32.4", "mlx-cpu": "0.32.4"}.get)
    packages = next(doctor.checks())
    assert packages.status == "warn"
    assert f"an NVIDIA GPU ({tmp_path / device}), but mlx-cpu trains on the CPU" in packages.detail
    assert packages.advice.endswith("pip install 'ppo-workbench[cuda]'")
    (tmp_path / device).unlink()
    assert next(doctor.checks()).status == "ok"


def test_a_cuda_build_without_a_usable_gpu_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mx, "default_device", lambda: mx.Device(mx.cpu))
    monkeypatch.setattr(doctor, "version_of", {"mlx": "0.32.4", "mlx-cuda-13": "0.32.4"}.get)
    checks = found()
    assert checks["packages"].status == "ok"
    assert checks["mlx"].status == "warn"
    assert "mlx-cuda-13 finds no NVIDIA GPU that it can use" in checks["mlx"].detail
    assert "nvidia-smi" in checks["mlx"].advice


def test_a_machine_without_a_working_mlx_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlx.core", None)  # an import that fails
    checks = found()
    assert checks["mlx"].status == "fail"
    assert "ppo-workbench[cpu]" in checks["mlx"].advice
    assert "matmul" not in checks


# version


def loaded_by(*commands: list[str]) -> tuple[str, set[str], float]:
    """Run the commands in a process of its own; return what it prints, its modules, and its seconds of processor."""
    code = (
        "import sys; from workbench.cli.main import main\n"
        f"codes = [main(words) for words in {commands!r}]\n"
        "print(*codes, *sys.modules, file=sys.stderr)"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    *_, last = done.stderr.splitlines()
    codes, modules = last.split()[: len(commands)], {*last.split()[len(commands) :]}
    assert codes == ["0"] * len(commands), done.stderr
    return done.stdout, modules, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.parametrize(("option", "first"), [("--version", "ppo-workbench "), ("--help", "usage: ppo-workbench ")])
def test_version_and_help_come_without_loading_the_schema_and_at_once(option: str, first: str) -> None:
    out, modules, seconds = loaded_by([option])
    assert seconds < 1  # CPU time, whatever else the machine does; 0.1 s
    assert out.startswith(first)
    assert not modules & {"pydantic", "rich.console", "trainer"}


def test_commands_that_only_read_load_neither_a_tensor_library_nor_a_screen() -> None:
    for name in ("a", "b"):
        write_samples(RunFolder(make_run(name)).samples_file(2), [sample_row(0)], 2)
    Path("rows.jsonl").write_text(json.dumps({"prompt": "p", "chosen": "good", "rejected": "bad"}))
    of_preferences = [["preferences", "import", "rows.jsonl"], ["preferences", "list"]]
    _, modules, _ = loaded_by(["runs"], ["samples", "a", "--jsonl", "x.jsonl"], ["compare", "a", "b"], *of_preferences)
    assert not modules & {"mlx", "mlx_lm", "transformers", "datasets", "textual"}


@pytest.mark.parametrize(
    "argv",
    [
        ["watch", "x"],
        ["samples", "x"],
        ["evaluate", "x"],
        ["compare", "x", "y"],
        ["label", "--run", "x"],
        ["label", "--model", "x"],
        ["reward-model", "eval", "x"],
        ["reward-model", "score", "x", "--completion", "a"],
        ["reward-model", "train", "--resume", "x"],
        ["dpo", "--resume", "x"],
        ["--no-ui", "--resume", "x"],
        ["--resume", "x"],
    ],
    ids=" ".join,
)
def test_runs_are_looked_up_by_name_in_the_folder_of_dir(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    Path("elsewhere").mkdir()
    for command in ([*argv, "--dir", "elsewhere"], ["--dir", "elsewhere", *argv]):
        assert cli.main(command) == 2
        _, err = lines(capsys)
        assert err == [f"{ERROR}no run 'x' in 'elsewhere': no run was started there yet"]
    assert cli.main([*argv, "--dir", "nowhere"]) == 2
    assert "--dir nowhere: no such folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "schema"), [("--no-ui", Config), ("reward-model train", RewardModelConfig), ("dpo", DPOConfig)]
)
def test_a_new_run_goes_into_the_folder_of_dir(command: str, schema: Any) -> None:
    assert configuration(cli.parse(["--dir", "new 'runs'", *command.split()]), schema).run.dir == "new 'runs'"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["wach"], "unknown command 'wach'; did you mean 'watch'? See 'ppo-workbench --help'"),
        (
            ["zzz"],
            "unknown command 'zzz'; choose from branch, compare, config, doctor, dpo, estimate, evaluate, export",
        ),
        (["config", "valdate"], "unknown command 'valdate'; did you mean 'validate'? See 'ppo-workbench config"),
        (["config"], "a command is missing; choose from show, validate, schema: see 'ppo-workbench config --help'"),
        (["estimate", "--memory", "x"], "--memory: invalid float value: 'x': see 'ppo-workbench estimate --help'"),
        (["--display", "jsn"], "--display 'jsn': invalid choice; did you mean 'json'?"),
        (["config", "schema", "--format", "xx"], "--format 'xx': invalid choice; choose from json, markdown, text:"),
        (["samples", "x", "--sort", "scores"], "--sort 'scores': invalid choice; did you mean 'score'?"),
        (["--dispaly", "json"], "unknown option '--dispaly'; did you mean '--display'?"),
        (["sampels", "x", "--sort", "score"], "unknown command 'sampels'; did you mean 'samples'?"),
        (["samples", "x", "--fliter=a"], "unknown option '--fliter'; did you mean '--filter'?"),
        (["x" * 5000], f"unknown command '{'x' * 60}'; choose from"),
        (["--" + "x" * 5000], f"unknown option '--{'x' * 58}'; choose from --accept-data, "),
    ],
)
def test_a_mistyped_word_is_named_with_what_was_probably_meant(
    words: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, error = refused(capsys, *words)
    assert (code, error.startswith(problem)) == (2, True)


@pytest.mark.parametrize("words", [["config", "schema"], ["config", "validate"]])
def test_a_full_disk_under_the_output_is_an_error_in_one_line(words: list[str]) -> None:
    command = [sys.executable, "-m", "workbench", *words]
    with Path("/dev/full").open("w") as full:
        end = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert (end.returncode, end.stderr) == (3, "ppo-workbench: error: cannot write: No space left on device\n")


def test_words_after_two_dashes_are_not_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["watch", "--", "--gone"]) == 2
    assert "no run '--gone'" in capsys.readouterr().err
