"""Isolation: no test sees or changes the user's runs and labels, inherits ignored signals, or hangs for ever."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import apart
import platformdirs
import pytest
from conftest import RUN, WATCH
from runs_helper import run_python

SUPPORT = apart.ROOT / "tests" / "support"
LEFT = ["runs/quickstart-0001/events.jsonl", "preferences.db", "~/.config/ppo-workbench/screen.toml"]


@pytest.mark.parametrize("visit", [1, 2])
def test_files_that_one_test_leaves_in_its_folder_or_home_are_gone_in_the_next(visit: int) -> None:
    assert [path for path in LEFT if Path(path).expanduser().exists()] == []
    for path in (Path(path).expanduser() for path in LEFT):
        apart.make(path.parent)
        path.write_text(str(visit))


def test_a_test_works_in_an_empty_folder_outside_the_checkout_and_so_do_its_children() -> None:
    assert list(Path().iterdir()) == []
    assert not Path.cwd().is_relative_to(apart.ROOT)
    assert run_python("-c", "import os; print(os.getcwd())").stdout.strip() == str(Path.cwd())


def test_settings_and_state_belong_to_the_tests_home_and_the_cache_to_the_whole_run() -> None:
    folders = [Path.home(), platformdirs.user_config_path("x"), platformdirs.user_state_path("x")]
    assert [folder for folder in folders if not folder.is_relative_to(os.environ["HOME"])] == []
    assert Path(os.environ["HOME"]).parent == Path.cwd().parent
    assert Path(os.environ["PPO_WORKBENCH_CACHE"]).is_relative_to(RUN)


def test_work_in_the_checkout_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.chdir(apart.ROOT / "docs")
    subprocess.run([sys.executable, "-c", ""], cwd=apart.ROOT, check=True)
    subprocess.run([sys.executable, "-c", ""], cwd=Path.cwd(), check=True)
    noticed, WATCH.seen = WATCH.seen, []
    assert len(noticed) == 2
    assert noticed[0] == f"went into {apart.ROOT / 'docs'}"
    assert noticed[1].endswith(f" in {apart.ROOT}")


def test_signals_that_the_test_run_was_started_with_ignored_are_not_ignored_in_children() -> None:
    numbers = [signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2]
    child = f"import signal; print([signal.getsignal(n) == signal.SIG_IGN for n in {[int(n) for n in numbers]}])"
    code = (
        "import apart, os, signal, subprocess, sys\n"
        "apart.give_children_default_signals()\n"
        "os.kill(os.getpid(), signal.SIGHUP)\n"  # as when the terminal is closed under nohup
        f"subprocess.run([sys.executable, '-c', {child!r}], check=True)"
    )

    def ignore() -> None:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)

    command = [sys.executable, "-c", code]
    environment = os.environ | {"PYTHONPATH": str(SUPPORT)}
    done = subprocess.run(command, env=environment, preexec_fn=ignore, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{[False] * len(numbers)}\n", "")


def test_a_test_that_hangs_ends_at_the_time_limit_and_says_where(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    assert 0 < float(pytestconfig.getini("faulthandler_timeout")) <= 600
    hanging = tmp_path / "test_hanging.py"
    hanging.write_text("import threading\ndef test_that_hangs():\n    threading.Event().wait()\n")
    settings = ["-c", str(apart.ROOT / "pyproject.toml"), "--rootdir", str(tmp_path), "-p", "no:cacheprovider"]
    done = run_python("-m", "pytest", *settings, "-o", "faulthandler_timeout=1", str(hanging))
    assert done.returncode == 1
    assert "test_that_hangs" in done.stderr
