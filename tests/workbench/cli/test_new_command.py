"""`ppo-workbench new`: the workspace that it makes, what it refuses, and that the program uses it."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from scripted_run import ERROR, Script, done, lines, training_module

from trainer.config import load_config
from trainer.config.reward_sources import LexiconSource, ModelSource, PythonSource
from workbench.cli import main as cli
from workbench.cli.ui import opening

MADE = ("config.toml", "prompts.jsonl", "reward.py", "README.md", "runs")


def test_a_workspace_is_whole_and_prints_how_to_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["new", "a place/mine"]) == 0
    folder = Path("a place/mine")
    assert {path.name for path in folder.iterdir()} == {*MADE}
    out, err = lines(capsys)
    assert out == [
        f"made {folder / name}" for name in ("config.toml", "prompts.jsonl", "reward.py", "README.md", "runs")
    ]
    assert err[-1].endswith("go on with: cd 'a place/mine' && ppo-workbench")
    config = load_config(folder / "config.toml")
    assert config.model.path == "starter"
    assert config.reward.sources == [LexiconSource()]
    rows = [json.loads(line) for line in (folder / "prompts.jsonl").read_text().splitlines()]
    assert len(rows) == len({row["prompt"] for row in rows}) >= 8
    commands = [line for line in (folder / "README.md").read_text().splitlines() if line.startswith("ppo-workbench")]
    assert len(commands) == 3


def test_the_example_of_a_reward_can_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli.main(["new", "mine", "--reward", "reward.py:score", "--model", "someone/some-model"]) == 0
    config = load_config("mine/config.toml")
    assert config.reward.sources == [PythonSource(path="reward.py:score")]
    assert config.model.path == "someone/some-model"
    spec = importlib.util.spec_from_file_location("example_of_a_reward", "mine/reward.py")
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(module := importlib.util.module_from_spec(spec))
    assert module.score(["a", "b"], ["none", "one, two, three, four"], mood=["x", "y"]) == [0, 1]


def test_folders_are_written_out_so_that_they_are_found_from_the_workspace(tmp_path: Path) -> None:
    for name in ("weights", 'a "reward" model'):
        Path(name).mkdir()
    assert cli.main(["new", "mine", "--model", "weights", "--reward", 'a "reward" model']) == 0
    config = load_config("mine/config.toml")
    assert config.model.path == str(tmp_path / "weights")
    assert config.reward.sources == [ModelSource(path=str(tmp_path / 'a "reward" model'))]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["full"], "'full' has files in it: name a folder that is new or empty"),
        (["full/file"], "'full/file' is a file: name a folder that is new or empty"),
        (["fresh", "--reward", "lexikon"], "lexikon"),
        (["fresh", "--model", ""], "model.path"),
    ],
)
def test_what_cannot_be_made_is_refused_and_nothing_is_left(
    argv: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("full").mkdir()
    Path("full/file").write_text("mine")
    assert cli.main(["new", *argv]) == 2
    out, err = lines(capsys)
    assert out == []
    assert err[0].startswith(ERROR)
    assert words in "\n".join(err)
    assert [path.name for path in Path("full").iterdir()] == ["file"]
    assert Path("full/file").read_text() == "mine"
    assert not Path("fresh").exists()


def test_an_empty_folder_is_used_and_one_that_cannot_be_written_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    Path("empty").mkdir()
    assert cli.main(["new", "empty"]) == 0
    Path("file").write_text("")
    assert cli.main(["new", "file/inside"]) == 3
    assert "cannot write 'file/inside'" in lines(capsys)[1][-1]


def test_the_program_uses_the_workspace_that_it_is_started_in(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert opening(cli.parse([])).source == "quickstart"
    cli.main(["new", "mine"])
    monkeypatch.chdir("mine")
    assert opening(cli.parse([])).source == "config.toml"
    assert opening(cli.parse(["--config", "quickstart"])).source == "quickstart"
    script = Script(done)
    monkeypatch.setitem(__import__("sys").modules, "trainer.engine.training", training_module(script))
    assert cli.main(["--no-ui", "--display", "plain"]) == 0
    assert script.received["config"].data.prompts == "prompts.jsonl"
    monkeypatch.chdir("runs")
    Path("config.toml").write_text("")
    assert opening(cli.parse([])).source == "quickstart", "the folder of a run is no workspace"
