"""The command line for its users: what it prints where, its exit codes, what it loads, and a new workspace."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import resource
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from apart import ROOT
from scripted_run import ERROR, Script, alarm, done, ended, lines, make_run, refused, training_module, write_events
from token_samples import sample_row

from trainer import errors
from trainer.config import Config, load_config
from trainer.config.pairs import DPOConfig, RewardModelConfig
from trainer.config.reward_sources import LexiconSource, ModelSource, PythonSource
from trainer.distributed.ranks import HUNG
from trainer.errors import TrainerError
from trainer.runs.folder import RunFolder
from trainer.runs.samples import write_samples
from workbench.cli import main as cli
from workbench.cli import train, ui
from workbench.cli.config import configuration
from workbench.cli.ui import opening

# usage


@pytest.mark.parametrize(
    ("argv", "names"),
    [
        (["--set", "ppo.klcoef=0.1"], "ppo.kl_coef"),
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
        ["reward-model", "eval", "x"],
        ["reward-model", "train", "--resume", "x"],
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
        (["config", "schema", "--format", "xx"], "--format 'xx': invalid choice; choose from json, markdown, text:"),
        (["samples", "x", "--sort", "scores"], "--sort 'scores': invalid choice; did you mean 'score'?"),
        (["--dispaly", "json"], "unknown option '--dispaly'; did you mean '--display'?"),
        (["samples", "x", "--fliter=a"], "unknown option '--fliter'; did you mean '--filter'?"),
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
