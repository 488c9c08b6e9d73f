"""`ppo-workbench estimate`: its table, its verdict and exit code, and the changes that it proposes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from scripted_run import ERROR, lines

from trainer.config import load_config, parse_overrides
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
