"""`ppo-workbench judge check`, and the labelling of what it disputes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from judge_labels import choose, made
from judge_server import JudgeServer, write_rubric

from workbench.cli.label import opening
from workbench.cli.main import main, parse
from workbench.labelling.plans import planned


@pytest.fixture
def server() -> Iterator[JudgeServer]:
    with JudgeServer(choose) as found:
        yield found


def test_the_command_shows_the_report_and_label_asks_for_what_is_disputed(
    server: JudgeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    source = server.source(write_rubric(tmp_path), mode="pairwise") | {"rubric": "rubric.toml"}
    table = ", ".join(f"{key} = {json.dumps(value)}" for key, value in source.items())
    Path("my.toml").write_text(f"rollout.samples_per_prompt = 2\nreward.sources = [{{{table}}}]\n")
    command = ["judge", "check", "--config", "my.toml"]
    assert main(command) == 2
    assert "no labels in" in capsys.readouterr().err
    made(tmp_path)
    assert main(command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "tiny, pairwise: 6 labelled pairs"
    assert "60.0%" in next(line for line in lines if line.startswith("prefers what the person preferred"))
    assert lines[-1] == "1 pair disputed: look at them again with ppo-workbench label --queue disputed"
    assert main([*command, "--json", "--limit", "5"]) == 0
    assert json.loads(capsys.readouterr().out)["pairs"] == 5
    assert main(["judge", "check"]) == 2
    assert "'quickstart' has no judge: add one to reward.sources" in capsys.readouterr().err
    main(command)
    options = opening(parse(["label", "--queue", "disputed", "--labeller", "ann"])).label
    assert options is not None
    assert len(options.disputed) == 1
    plan = planned(options).plan
    assert plan is not None
    assert plan.queues[0].keys == options.disputed
