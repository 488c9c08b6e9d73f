"""Rewards for programs: right ones pass, hostile ones get nothing and leave nothing."""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from trainer.config.schema import RewardConfig
from trainer.errors import RewardError, UntrustedCodeError
from trainer.rewards import RewardInput, Rewards, build_rewards
from trainer.rewards.code import trust_none

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="programs are run apart on Linux only")
PRINTS = [{"input": "2 3\n", "output": "5\n"}]
HOSTILE = Path(__file__).parents[2] / "support" / "hostile_programs.txt"
CALLS = ["assert add(2, 3) == 5", "assert add(-1, 1) == 0"]


def reward(**settings: Any) -> Rewards:
    return build_rewards(RewardConfig(sources=[{"kind": "code", **settings}]))


def checked(program: str, tests: Any, **settings: Any) -> tuple[float, str]:
    """Return score and reason of a response with a program."""
    row = RewardInput("Prompt", f"Here it is:\n```python\n{program}\n```\n", [], {"tests": tests}, False)
    result = reward(**settings)([row])
    return result.scores[0], result.extra["code"][0]


@pytest.mark.parametrize(
    ("program", "tests", "score", "reason"),
    [
        ("def add(a, b):\n    return a + b", CALLS, 1, "passed 2 tests"),
        ("def add(a, b):\n    return a + b", json.dumps(CALLS), 1, "passed 2 tests"),
        ("def add(a, b):\n    return 5", CALLS, 0, "passed 1 of 2 tests: assert add(-1, 1) == 0; found 5"),
        ("def add(a, b):\n    return a / 0", CALLS, 0, "ZeroDivisionError: division by zero"),
        ("def add(a, b)\n    return 5", CALLS, 0, "SyntaxError"),
        ("def sub(a, b):\n    return 5", CALLS, 0, "NameError: name 'add' is not defined"),
        ("print(sum(map(int, input().split())))", PRINTS, 1, "passed 1 test"),
        ("import sys\nsys.stdout.write('5')", PRINTS, 1, "passed 1 test"),  # no newline at the end
        ("print(6)", PRINTS, 0, "line 1 of the output: expected '5', found '6'"),
        ("print('5\\n5')", PRINTS, 0, "line 2 of the output: expected the end, found '5'"),
        ("raise ValueError('no')", PRINTS, 0, "ValueError: no"),
        ("def add(a, b):\n    return a + b", None, math.nan, "no tests in 'tests'"),
        ("def add(a, b):\n    return a + b", [1], math.nan, "no tests in 'tests'"),
        # As HumanEval and LeetCode write tests: a function of checks, methods, in-place changes, errors, iterators.
        ("def f(x):\n    return x", "def check(c):\n    assert c([1, (2,)]) == [1, (2,)]\ncheck(f)", 1, "passed"),
        ("class A:\n    def two(self, x):\n        return x * 2", "assert A().two(x=2) == 4", 1, "passed"),
        ("def f(x):\n    x.sort()", "a = [2, 1]\nf(a)\nassert a == [1, 2]", 1, "passed"),
        ("def f(x):\n    raise KeyError(x)", "try:\n    f(1)\n    assert 0\nexcept KeyError:\n    pass", 1, "passed"),
        ("def f():\n    yield from 'ab'", "assert list(f()) == ['a', 'b']", 1, "passed"),
        ("import collections\ndef f(x):\n    return collections.Counter(x)", "assert f('aa') == {'a': 2}", 1, "passed"),
        ("def f():\n    return float('nan'), {1}, 2j, b'x'", "assert f()[1:] == ({1}, 2j, b'x')", 1, "passed"),
        ("import os\nopen('a', 'w').write('x')\nfiles = os.listdir()", "assert files == ['a']", 1, "passed"),
        ("import subprocess\nout = subprocess.check_output(['echo', 'hi'])", "assert out == b'hi\\n'", 1, "passed"),
        (
            "import threading\nt = threading.Thread(target=print)\nt.start()\nt.join()\nn = 1",
            "assert n == 1",
            1,
            "passed",
        ),
    ],
)
def test_a_program_counts_if_it_passes_all_tests(program: str, tests: Any, score: float, reason: str) -> None:
    found = checked(program, tests)
    assert found[0] == pytest.approx(score, nan_ok=True), found
    assert reason in found[1]


def test_a_program_can_earn_the_share_of_the_tests_that_it_passes() -> None:
    assert checked("def add(a, b):\n    return 5", CALLS, partial=True)[0] == 0.5


IMPORTS = "import os, sys, time, signal, socket, subprocess, threading\n"
ADD = "def add(a, b):\n    return a + b\n"


@pytest.mark.parametrize(("right", "timeout"), [("0", 3.0), ("1", 60.0)])  # the right ones have time on a busy machine
def test_hostile_programs_get_what_they_earn_and_leave_nothing(
    right: str, timeout: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret, outside = tmp_path / "secret", tmp_path / "outside"
    secret.write_text("SECRET")
    outside.mkdir()
    (outside / "kept").touch()
    monkeypatch.setenv("SECRET", "SECRET")
    names, batch, before = [], [], set(psutil.Process().children(recursive=True))
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        facts = {"pid": os.getpid(), "outside": outside, "secret": secret, "port": server.getsockname()[1]}
        for section in HOSTILE.read_text().split("\n### ")[1:]:
            head, _, program = section.partition("\n")
            score, tests, name = head.split(" ", 2)
            for key, value in facts.items():
                program = program.replace(f"{{{key}}}", str(value))
            if score == right:
                names.append(name)
                program = f"```python\n# {tmp_path}\n{IMPORTS}{ADD}{program}\n```"
                columns = {"tests": {"calls": CALLS, "prints": PRINTS}[tests]}
                batch.append(RewardInput("", program, [], columns, False))
        assert len(batch) > 10
        result = reward(timeout=timeout)(batch)
        with pytest.raises(BlockingIOError):
            server.accept()
    found = zip(names, result.scores, result.extra["code"], strict=True)
    assert [one for one in found if one[1] != float(right)] == []
    running = []
    for process in psutil.process_iter():
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            if str(tmp_path) in Path("/proc", str(process.pid), "root", "program.py").read_text(errors="replace"):
                running.append(process)
    assert running == []
    assert set(psutil.Process().children(recursive=True)) <= before
    assert [path.name for path in outside.iterdir()] == ["kept"]
    assert list(Path.home().iterdir()) == []
    assert not any(Path(place, "written").exists() for place in ("/", "/tmp", "/etc", "/usr", "/root", "/dev/shm"))


def test_code_runs_only_if_it_is_trusted_and_where_its_limits_can_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    config = RewardConfig(sources=[{"kind": "code"}])
    with pytest.raises(UntrustedCodeError, match="programs that the model writes"):
        build_rewards(config, trust=trust_none)
    with pytest.raises(RewardError, match="'code' needs 'tests', which is not a column of the data; columns: answer"):
        build_rewards(config, columns=["answer"])
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(RewardError, match="cannot limit what a program does: it needs Linux"):
        build_rewards(config)


def test_a_stop_ends_the_scoring_between_programs() -> None:
    class StopError(Exception):
        pass

    def stop() -> None:
        raise StopError

    rewards = build_rewards(RewardConfig(sources=[{"kind": "code"}]), between_passes=stop)
    with pytest.raises(StopError):
        rewards([RewardInput("", "a = 1", [], {"tests": "assert a == 1"}, False)] * 50)
