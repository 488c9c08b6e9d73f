"""`ppo-workbench estimate` and `doctor`: the memory of a run, what makes it fit, and what this machine lacks."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from scripted_run import ERROR, lines

from trainer import doctor
from trainer.config import load_config, parse_overrides
from trainer.doctor import Check
from workbench.cli import main as cli
from workbench.config import estimates
from workbench.config.estimates import estimate


@pytest.fixture(autouse=True)
def _on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimates, "has_gpu", lambda: False)


def test_parts_and_phases_are_a_table_whose_columns_add_up(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["estimate", "--memory", "16"]) == 0
    out, _ = lines(capsys)
    assert out[0].startswith("134M parameters in float32, prompts of up to ")
    table = [line for line in out if re.search(r"\d\.\d{3}", line)]
    sums = [0.0] * 3
    for line in table[:-1]:
        for column, cell in enumerate(line.split()[-3:]):
            sums[column] += 0.0 if cell == "-" else float(cell)
    assert table[-1].startswith("total")
    assert [float(cell) for cell in table[-1].split()[-3:]] == pytest.approx(sums, abs=0.004)
    assert out[-1].endswith("of 16.0 GB: fits")


def test_what_does_not_fit_fails_and_names_what_would(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["estimate", "--memory", "1"]) == 3
    out, _ = lines(capsys)
    assert out[-2].endswith("of 1.0 GB: does not fit")
    proposal = out[-1].split()[1]
    assert proposal.startswith("optim.micro_batch_tokens=")
    needed = estimate(load_config("quickstart", parse_overrides([proposal]))).memory_bytes
    assert needed is not None
    assert needed <= 1e9
    assert cli.main(["estimate", "--memory", "0.1"]) == 3
    assert lines(capsys)[0][-1] == "no single setting makes it fit"


@pytest.mark.parametrize("memory", ["0", "-1", "nan", "inf"])
def test_a_memory_that_no_machine_has_is_refused(memory: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["estimate", "--memory", memory]) == 2
    assert lines(capsys) == ([], [f"{ERROR}--memory {memory}: must be a number of GB above 0"])


def test_json_has_the_same_in_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["estimate", "--memory", "1", "--json"]) == 3
    found = json.loads(capsys.readouterr().out)
    needed = estimate(load_config("quickstart"))
    assert found["peak"] == needed.memory_bytes
    assert found["phases"][found["phase"]]["weights"] == 4 * 134_479_872
    assert found["room"] == 10**9
    assert not found["fits"]
    assert found["saving"]["key"] == "optim.micro_batch_tokens"


@pytest.mark.parametrize("kind", ["reward-model", "dpo"])
def test_a_run_on_preferences_is_estimated_from_its_file_or_by_its_kind(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.toml").write_text(f'kind = "{kind}"\n')
    assert cli.main(["estimate", "--config", f"{tmp_path}/run.toml", "--memory", "16"]) == 0
    from_file = capsys.readouterr().out
    assert cli.main(["estimate", "--kind", kind, "--memory", "16"]) == 0
    assert capsys.readouterr().out == from_file
    assert from_file.startswith("134M parameters in float32, comparisons of up to 512 tokens")
    assert from_file.split("\n")[2].split() == ["GB", "update", "evaluate"]
    assert cli.main(["estimate", "--kind", kind, "--memory", "1.3"]) == 3
    out, _ = lines(capsys)
    changes = [argument for line in out for argument in line.split() if "=" in argument]
    overrides = [word for change in changes for word in ("--set", change)]
    assert overrides, "what makes it fit are settings that it has"
    assert cli.main(["estimate", "--kind", kind, "--memory", "1.3", *overrides]) == 0


def test_a_model_that_is_not_here_has_no_estimate(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["estimate", "--set", "model.path=some/model"]) == 3
    out, _ = lines(capsys)
    assert out == [out[0]]
    assert out[0].startswith("Memory unknown: ")
    assert out[0].endswith("not downloaded, so its size is unknown")


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
