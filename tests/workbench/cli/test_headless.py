"""A headless run for its user: what it is given, what it prints where, how it ends, what it loads."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import scripted_run
from apart import ROOT
from scripted_run import ERROR, Script, complete_run, lines, make_run

from workbench.cli import main as cli
from workbench.cli.config import RESUMABLE


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch) -> Script:
    """Put the scripted trainer in place of the real one; a test may change its script."""
    script = Script(scripted_run.done)
    monkeypatch.setitem(sys.modules, "trainer.engine.training", scripted_run.training_module(script))
    return script


def test_a_run_gets_the_configuration_its_name_and_that_of_the_preset_or_file(trainer: Script) -> None:
    argv = ["--no-ui", "--config", "qwen3-0.6b", "--name", "7", "--set", "ppo.epochs=2", "--display", "json"]
    assert cli.main(argv) == 0
    config = trainer.received["config"]
    assert (config.model.lora_rank, config.ppo.epochs, config.run.name) == (16, 2, "7")
    assert (trainer.received["preset"], trainer.received["resume"]) == ("qwen3-0.6b", None)
    Path("my-study.toml").write_text("[ppo]\nepochs = 3\n")
    assert cli.main(["--no-ui", "--config", "./my-study.toml", "--display", "json"]) == 0
    assert (trainer.received["preset"], trainer.received["config"].ppo.epochs) == ("./my-study.toml", 3)


def test_a_run_resumes_by_name_with_its_own_configuration_and_what_may_change(trainer: Script) -> None:
    folder = make_run("a-0001")
    changes = ["--set", "ppo.iterations=200", "--set", "ppo.kl_coef=0.5"]
    assert cli.main(["--no-ui", "--resume", "a-0001", *changes, "--display", "json"]) == 0
    assert trainer.received["resume"] == folder.resolve()
    assert (trainer.received["config"].ppo.iterations, trainer.received["config"].ppo.kl_coef) == (200, 0.5)


def test_a_complete_run_is_not_loaded_and_the_way_to_extend_it_is_shown(
    trainer: Script, capsys: pytest.CaptureFixture[str]
) -> None:
    complete_run("a-0001")
    assert cli.main(["--no-ui", "--resume", "a-0001"]) == 0
    assert trainer.received == {}
    _, (message,) = lines(capsys)
    assert "a-0001 is complete after 12 iterations" in message
    assert message.endswith("ppo-workbench --no-ui --resume a-0001 --set ppo.iterations=24")
    assert cli.main(["--no-ui", "--resume", "a-0001", "--set", "ppo.iterations=6"]) == 0
    assert lines(capsys) == ([], [message]), "what the run has done counts"
    assert cli.main(["--no-ui", "--resume", "a-0001", "--set", "ppo.iterations=24"]) == 0
    assert trainer.received["config"].ppo.iterations == 24


def test_a_complete_run_whose_last_checkpoint_is_damaged_is_continued(trainer: Script) -> None:
    folder = complete_run("a-0001")
    (folder / "checkpoints" / "step-000012" / "state.json").write_text("{")
    assert cli.main(["--no-ui", "--resume", "a-0001"]) == 0
    assert trainer.received["resume"] == folder.resolve()


def test_a_resumed_run_refuses_what_shapes_it_and_lists_what_may_change(
    trainer: Script, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_run("a-0001")
    assert cli.main(["--no-ui", "--resume", str(folder), "--set", "model.lora_rank=4"]) == 2
    _, (message,) = lines(capsys)
    assert "model.lora_rank" in message
    assert all(key in message for key in (*RESUMABLE, "ppo.kl_coef", "optim.policy_lr"))
    assert "model.path" not in message
    assert trainer.received == {}


def test_a_bug_leaves_its_traceback_in_the_runs_folder_if_there_is_one_and_one_line_on_stderr(
    trainer: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer.play = scripted_run.unhurt
    assert cli.main(["--no-ui"]) == 1
    _, err = lines(capsys)
    assert (err[0].partition(" ")[0], err[-1].startswith(ERROR)) == ("Traceback", True)
    trainer.play = scripted_run.bug
    monkeypatch.setenv("RUN_FOLDER", str(tmp_path))
    assert cli.main(["--no-ui"]) == 1
    _, err = lines(capsys)
    assert err[-1].startswith(f"{ERROR}unexpected ZeroDivisionError: a bug of ours: ")
    assert not any("Traceback" in line for line in err)
    assert "in bug\n" in (tmp_path / "crash.log").read_text()


def test_a_full_disk_under_the_output_ends_the_run_with_one_line(
    trainer: Script, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer.play = scripted_run.flood
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        code = cli.main(["--no-ui", "--display", "plain"])
        monkeypatch.undo()
        os.dup2(os.open(os.devnull, os.O_WRONLY), full.fileno())
    _, err = lines(capsys)
    assert (code, err[-1]) == (
        3,
        f"{ERROR}cannot write to the output: No space left on device: redirect it",
    )


# processes


def command(*argv: str) -> list[str]:
    return [sys.executable, str(ROOT / "tests" / "support" / "scripted_run.py"), *argv]


def environment(**changes: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), **changes}


def start(script: str, *first: str) -> subprocess.Popen[str]:
    """Start a run and wait until it has printed these events."""
    process = subprocess.Popen(
        command("--no-ui", "--display", "json"),
        env=environment(SCRIPT=script),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    for event in first or ("run", "iteration"):
        assert event in process.stdout.readline()
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_run_with_a_checkpoint_and_130(number: signal.Signals) -> None:
    process = start("wait")
    process.send_signal(number)
    out, err = process.communicate(timeout=300)
    events = [json.loads(line)["event"] for line in out.splitlines()]
    assert (process.returncode, events) == (130, ["checkpoint", "end"])
    assert number.name in err
    assert "Traceback" not in err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_run_that_hangs_before_it_has_begun(number: signal.Signals) -> None:
    process = start("loading", "loading")
    process.send_signal(number)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 130
    assert err.splitlines()[-1] == "ppo-workbench: the run had not begun, and nothing of it is kept"


def test_a_reader_that_goes_away_ends_the_run_quietly() -> None:
    process = start("flood")
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None
    _, err = process.communicate(timeout=300)
    assert (process.returncode, err) == (130, "")


def test_a_reader_of_data_that_goes_away_is_not_an_error() -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    listing = subprocess.run(command("config", "schema"), env=environment(), stdout=theirs, stderr=subprocess.PIPE)
    os.close(theirs)
    assert (listing.returncode, listing.stderr) == (0, b"")


def start_on_terminal(script: str) -> tuple[subprocess.Popen[bytes], int]:
    """Start a run whose output is a terminal; return it and our end of the terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command("--no-ui"),
        env=environment(SCRIPT=script, TERM="xterm"),
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    read_until(ours, "/12")
    return process, ours


def read_until(terminal: int, text: str) -> str:
    """Return what the terminal shows until `text` appears, or until it is closed."""
    shown = ""
    while text not in shown:
        try:
            shown += os.read(terminal, 65536).decode(errors="replace")  # it may end within a character
        except OSError:  # EIO: the other end was closed
            break
    return shown


def test_a_second_interrupt_gives_the_terminal_its_cursor_back() -> None:
    process, terminal = start_on_terminal("stuck")
    process.send_signal(signal.SIGINT)
    read_until(terminal, "Ctrl+C ends at once")
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130
    assert "\x1b[?25l" not in read_until(terminal, "never shown").rpartition("\x1b[?25h")[2]
    os.close(terminal)


def test_a_run_whose_terminal_is_closed_ends_quietly() -> None:
    process, terminal = start_on_terminal("flood")
    os.close(terminal)
    assert process.wait(timeout=60) == 130


def test_a_headless_run_loads_neither_textual_nor_mlx() -> None:
    """MLX is loaded only by the trainer, which is a scripted one here."""
    done = subprocess.run(
        command("--no-ui"), env=environment(LIST_MODULES="1"), capture_output=True, text=True, check=True
    )
    loaded = {name.partition(".")[0] for name in done.stderr.splitlines()}
    assert "trainer" in loaded
    assert not loaded & {"textual", "mlx", "mlx_lm", "transformers", "datasets"}
