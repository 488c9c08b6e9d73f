"""A stranger's run: none of its code runs until the user trusts it, whatever is done with the run."""

from __future__ import annotations

import io
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import scripted_run
from config_files import save_config
from runs_helper import Recorder, record, tiny_config, within
from scripted_run import Script
from waiting import until
from workbench_app import press_when_asked, start_run, workbench

from trainer.config import Config
from trainer.engine.answers import SavedPolicy
from trainer.engine.inbox import send
from trainer.engine.training import train
from trainer.errors import StorageError
from trainer.events import Alert, Event, Iteration
from trainer.questions import Question
from trainer.rewards.code import code_of
from trainer.runs.folder import RunFolder
from workbench.cli import main as cli
from workbench.config.form import ConfigForm
from workbench.opening import Opening
from workbench.run.threads import PolicyThread
from workbench.screen.dialogs import TrustScreen
from workbench.system.children import continue_headless
from workbench.system.code_trust import trusted_code

EVIL = "open({marker!r}, 'w').close()\n# \x1b[2J\ndef score(completions, **_):\n    return [0.5 for _ in completions]\n"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("PPO_WORKBENCH_CONFIG_DIR", str(tmp_path / "config"))


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """Return the file that the code makes when it is run."""
    return tmp_path / "executed"


@pytest.fixture
def evil(tmp_path: Path, marker: Path) -> str:
    """Return a reward source."""
    file = tmp_path / "evil.py"
    file.write_text(EVIL.format(marker=str(marker)))
    return f"{file}:score"


@pytest.fixture
def config(tmp_path: Path, evil: str) -> Path:
    """Write a configuration file."""
    file = tmp_path / "evil.toml"
    file.write_text(f"[reward]\nsources = [{evil!r}]\n")
    return file


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch) -> Script:
    """Put the scripted trainer in place of the real one."""
    script = Script(scripted_run.done)
    monkeypatch.setitem(sys.modules, "trainer.engine.training", scripted_run.training_module(script))
    return script


class Keyboard(io.StringIO):
    """Terminal that somebody types at, or reads from."""

    def isatty(self) -> bool:
        return True


# the command line


def test_a_configuration_in_a_file_runs_no_code_that_is_not_trusted(
    trainer: Script, config: Path, evil: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["--no-ui", "--config", str(config)]) == 3
    reported = capsys.readouterr().err
    assert evil.removesuffix(":score") in reported
    assert code_of(evil)[0].sha256[:12] in reported
    assert "--trust-code" in reported
    assert trainer.received == {}


def test_the_flag_trusts_it_for_later_runs_as_it_is_now(trainer: Script, config: Path, evil: str) -> None:
    argv = ["--no-ui", "--config", str(config)]
    assert [cli.main([*argv, "--trust-code"]), cli.main(argv)] == [0, 0]
    file = Path(evil.removesuffix(":score"))
    file.write_text(file.read_text() + "\n")
    assert cli.main(argv) == 3


def test_code_named_on_the_command_line_is_trusted(trainer: Script, config: Path, evil: str) -> None:
    assert cli.main(["--no-ui", "--set", f"reward.sources=[{evil!r}]"]) == 0
    assert cli.main(["--no-ui", "--config", str(config)]) == 0
    assert cli.main(["--no-ui", "--config", str(config), "--set", "ppo.epochs=2"]) == 0


@pytest.mark.parametrize(("typed", "code"), [("y\n", 0), ("yes\n", 0), ("n\n", 3), ("\n", 3), ("", 3)])
def test_on_a_terminal_the_code_is_shown_and_asked_for(
    typed: str, code: int, trainer: Script, config: Path, evil: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", Keyboard(typed))
    monkeypatch.setattr(sys, "stderr", shown := Keyboard())
    assert cli.main(["--no-ui", "--config", str(config), "--display", "json"]) == code
    assert bool(trainer.received) == (code == 0)
    (found,) = code_of(evil)
    assert all(part in shown.getvalue() for part in (found.name, found.sha256, "2  # ␛[2J", "3  def score", "[y/N]"))
    assert "\x1b" not in shown.getvalue()


def test_a_trust_list_that_cannot_be_written_causes_a_warning(
    trainer: Script, config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "state").write_text("a file")
    assert cli.main(["--no-ui", "--config", str(config), "--trust-code"]) == 0
    assert "warning: cannot" in capsys.readouterr().err


def test_a_process_that_continues_a_run_gets_the_trust_that_could_not_be_saved_and_no_more(
    evil: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "state").write_text("a file")
    codes = code_of(evil)
    with pytest.raises(StorageError):
        trusted_code().remember(codes)
    given: dict[str, Any] = {}
    monkeypatch.setattr(
        "workbench.system.children.started", lambda command, *_, **more: given.update(more, its=command)
    )
    continue_headless(tmp_path, environment={"OMP_NUM_THREADS": "1"})
    assert not any(word.startswith("--trust") for word in given["its"])
    ask = "from workbench.system.code_trust import trusted_code; from trainer.rewards.code import code_of; import sys; "
    ask += "print(len(trusted_code().untrusted(code_of(sys.argv[1]))))"
    environment = {**os.environ, **given["environment"]}

    def untrusted() -> str:
        return subprocess.run([sys.executable, "-c", ask, evil], env=environment, capture_output=True, text=True).stdout

    assert untrusted() == "0\n"
    with Path(codes[0].name).open("a") as file:
        file.write("# changed\n")
    assert untrusted() == "1\n"


def test_preferences_without_a_trusted_reward_train_nothing(config: Path, marker: Path, tmp_path: Path) -> None:
    config.write_text('kind = "dpo"\n' + config.read_text())
    assert cli.main(["dpo", "--config", str(config), "--data", str(tmp_path / "pairs.jsonl")]) == 3
    assert not marker.exists()


# a run


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a workspace with a run that a stranger trained."""
    folder = tmp_path_factory.mktemp("stranger")
    (folder / "evil.py").write_text(EVIL.format(marker=str(folder / "executed")))
    record(tiny_config(folder, "run.name=a", "ppo.iterations=1", f"reward.sources=['{folder}/evil.py:score']"))
    (folder / "executed").unlink()
    return folder


@pytest.mark.parametrize("argv", [["evaluate", "{run}"], ["--no-ui", "--resume", "{run}", "--set", "ppo.iterations=2"]])
def test_a_strangers_run_runs_no_code(argv: list[str], trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([part.format(run=trained / "runs/a") for part in argv]) == 3
    assert "--trust-code" in capsys.readouterr().err
    assert not (trained / "executed").exists()


def test_a_strangers_model_answers_without_a_score_until_its_code_is_trusted(trained: Path) -> None:
    answers = []
    for _ in range(2):
        policies = PolicyThread(trained / "runs/a")
        answers.append(policies.ask(Question(prompt="one", max_new_tokens=3)).result(60))
        policies.close()
        policies.join()
        assert (trained / "executed").exists() == (len(answers) == 2)
        trusted_code().remember(code_of(f"{trained}/evil.py:score"))
    (trained / "executed").unlink()
    unscored, scored = answers
    assert unscored.problem.startswith("not scored: ")
    assert [math.isnan(one.score) for one in unscored.completions] == [True]
    assert (scored.problem, [one.score for one in scored.completions]) == ("", [0.5])
    assert scored.completions[0].tokens == unscored.completions[0].tokens


def test_the_library_runs_no_code_of_a_folder_that_it_is_handed(trained: Path) -> None:
    answer = SavedPolicy(RunFolder(trained / "runs/a")).answer(Question(prompt="one", max_new_tokens=3), lambda: None)
    assert answer.problem.startswith("not scored: ")
    assert not (trained / "executed").exists()


def test_a_request_for_code_that_is_not_trusted_is_refused_and_the_run_goes_on(
    tmp_path: Path, evil: str, marker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.engine.control.INBOX_SECONDS", 0.0)  # otherwise the run may end before it looks again
    folder = tmp_path / "runs/a"

    def ask(event: Event) -> None:
        if within(event, "generate", 1) and not asked:
            asked.append(True)
            send(folder, "set", key="reward.sources", value=[evil])

    asked: list[bool] = []
    recorder = Recorder(ask)
    ended = train(tiny_config(tmp_path, "run.name=a"), sinks=[recorder], trust=trusted_code().check)
    (refused,) = [alert for alert in recorder.of(Alert) if alert.code == "setting_refused"]
    assert all(part in refused.message for part in ("evil.py", "--trust-code", "the reward is unchanged"))
    assert (ended.state, len(recorder.of(Iteration)), marker.exists()) == ("done", 3, False)


# the workbench


async def test_the_workbench_asks_before_it_starts_and_remembers(config: Path, evil: str) -> None:
    script = Script(scripted_run.done)
    async with workbench(script, source=str(config)) as (screen, pilot):
        for answer in ("n", "escape", "y"):
            await start_run(pilot)
            await until(pilot, lambda: isinstance(screen.app.screen, TrustScreen))
            assert script.received == {}
            await press_when_asked(pilot, answer)
            await until(pilot, lambda: screen.app.screen is screen)
        await until(pilot, lambda: screen.supervisor.view.ended is not None)
    assert trusted_code().untrusted(code_of(evil)) == []


async def test_the_workbench_shows_all_of_the_code_and_obeys_none_of_it(config: Path, evil: str) -> None:
    async with workbench(Script(scripted_run.done), source=str(config)) as (screen, pilot):
        await start_run(pilot)
        await until(pilot, lambda: isinstance(screen.app.screen, TrustScreen) and screen.app.screen.is_mounted)
        shown = "\n".join(str(static.render()) for static in screen.app.screen.query("Static"))
        (found,) = code_of(evil)
        assert all(part in shown for part in (found.name, found.sha256, "2  # ␛[2J", "3  def score"))
        await press_when_asked(pilot, "pagedown", "pageup", "n")


async def test_code_of_a_run_resumed_in_the_workbench_is_asked_about(evil: str, tmp_path: Path) -> None:
    folder = scripted_run.make_run("past")
    save_config(Config.model_validate({"reward": {"sources": [evil]}}), folder / "config.toml")
    script = Script(scripted_run.done)
    async with workbench(script, resume=folder) as (screen, pilot):
        await until(pilot, lambda: isinstance(screen.app.screen, TrustScreen))
        assert script.received == {}
        await press_when_asked(pilot, "y")
        await until(pilot, lambda: screen.supervisor.view.ended is not None)
    assert script.received["resume"] == folder


async def test_a_live_reward_of_code_is_asked_about_before_the_run_hears_of_it(evil: str) -> None:
    heard: list[tuple[str, object]] = []
    async with workbench(scripted_run.steered) as (screen, pilot):
        await start_run(pilot)
        await until(pilot, lambda: screen.supervisor.view.started is not None)
        screen.supervisor.set = lambda key, value: heard.append((key, value))  # type: ignore[method-assign]
        screen.post_message(ConfigForm.LiveSettingChanged("ppo.kl_coef", 0.5))
        screen.post_message(ConfigForm.LiveSettingChanged("reward.sources", [evil]))
        await until(pilot, lambda: isinstance(screen.app.screen, TrustScreen))
        assert heard == [("ppo.kl_coef", 0.5)]
        await press_when_asked(pilot, "y")
        await until(pilot, lambda: len(heard) == 2)
    assert heard[1] == ("reward.sources", [evil])


@pytest.mark.parametrize(
    ("more", "trusted"),
    [
        ([], False),
        (["--trust-code"], True),
        (["--set", "reward.sources=['{evil}']"], True),
        (["--set", "ppo.epochs=1"], False),
    ],
)
def test_the_command_line_of_the_workbench_trusts_what_it_names(
    more: list[str], trusted: bool, config: Path, evil: str
) -> None:
    from workbench.cli.ui import opening

    argv = ["--config", str(config), *(part.format(evil=evil) for part in more)]
    assert isinstance(opening(cli.parse(argv)), Opening)
    assert (trusted_code().untrusted(code_of(evil)) == []) == trusted
