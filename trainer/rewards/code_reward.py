"""Rewards for programs: the code in a response against the tests of its row, in a process apart."""

from __future__ import annotations

import contextlib
import hashlib
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from trainer.config.reward_sources import CodeSource
from trainer.errors import RewardError, counted
from trainer.reward_types import RewardInput, Verdict
from trainer.rewards.code import Code, Trust
from trainer.rewards.json_reward import last_block

_LONGEST = 100_000  # characters of a program
_REPORT = 1 << 20  # bytes of all that is said about one program
_MEBIBYTE = 1 << 20
_REMEDY = "it needs Linux with user namespaces, as docs/rewards.md says: allow them, or leave the source out"


@cache
def runner_code() -> Code:
    """Return the code that runs programs: to trust it is to let programs of a model run."""
    file = Path(__file__).with_name("program_runner.py")
    content = file.read_bytes()
    return Code(f"programs that the model writes, run by {file}", hashlib.sha256(content).hexdigest(), content.decode())


def code_verdict(source: CodeSource, trust: Trust) -> Callable[[RewardInput], Verdict]:
    """Return the check of a response. Raises RewardError where programs cannot be run apart, or are not trusted."""
    trust([runner_code()])
    if sys.platform != "linux":
        raise RewardError(f"reward source 'code': this system cannot limit what a program does: {_REMEDY}")
    patient = source.model_copy(update={"timeout": 60.0})  # a machine may be busy
    probe = _run(patient, "answer = 6 * 7", ["assert answer == 42"])
    if not probe or not probe[0].get("passed"):
        found = probe[0].get("error") or probe[0].get("reason") if probe else "no answer in 60 s"
        raise RewardError(f"reward source 'code': this system cannot limit what a program does ({found}): {_REMEDY}")

    def verdict(row: RewardInput) -> Verdict:
        tests = _tests(row.columns.get(source.tests))
        if not tests:
            return Verdict(None, f"no tests in '{source.tests}'")
        program = last_block(row.completion)
        if len(program) > _LONGEST:
            return Verdict(0.0, f"a program of {len(program):,} characters")
        found = _run(source, program, tests)
        passed = sum(one.get("passed", False) for one in found)
        if passed == len(tests):
            return Verdict(1.0, f"passed {counted(passed, 'test')}")
        if problem := next((one["error"] for one in found if "error" in one), ""):
            return Verdict(None, f"not run: {problem}")
        late = f"no answer in {source.timeout:g} s"
        reason = next((one["reason"] for one in found if not one["passed"]), late)
        share = passed / len(tests) if source.partial else 0.0
        return Verdict(share, reason if len(tests) == 1 else f"passed {passed} of {len(tests)} tests: {reason}")

    return verdict


def _tests(column: Any) -> list[str | dict[str, str]]:
    """Return the tests that a column holds, also as JSON; none if it holds anything else."""
    if isinstance(column, str) and column.lstrip().startswith("["):
        try:
            column = json.loads(column)
        except (ValueError, RecursionError):
            return []
    tests = [column] if isinstance(column, str) and column.strip() else column
    if not isinstance(tests, list):
        return []
    for test in tests:
        texts = [test.get("input"), test.get("output")] if isinstance(test, dict) else [test]
        if not all(isinstance(text, str) for text in texts):
            return []
    return tests


def _run(source: CodeSource, program: str, tests: Sequence[str | dict[str, str]]) -> list[dict[str, Any]]:
    """Return what the runner says about each test that it came to the end of."""
    request = {
        "runner": runner_code().source,
        "program": program,
        "tests": tests,
        "partial": source.partial,
        "timeout": source.timeout,
        "memory": source.memory * _MEBIBYTE,
        "processes": source.processes,
        "files": source.files * _MEBIBYTE,
    }
    report = b""
    # The runner ends itself, and all that it has started, when the time is over. Its own session, so that Ctrl+C on the
    # terminal leaves it to the trainer.
    with (
        contextlib.suppress(BrokenPipeError),
        subprocess.Popen(
            [sys.executable, "-ISc", runner_code().source],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={},
            cwd="/",
            start_new_session=True,
        ) as child,
    ):
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            child.stdin.write(json.dumps(request).encode() + b"\n")
            child.stdin.close()
            report = child.stdout.read(_REPORT)
        finally:
            child.kill()
    return [json.loads(line) for line in report.splitlines()] if len(report) < _REPORT else []
