"""Rewards for mathematical answers: the last box of a response against a reference, by math-verify."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from trainer.config.reward_sources import MathSource
from trainer.errors import RewardError
from trainer.reward_types import RewardInput, Verdict
from trainer.rewards.math_child import SECONDS

_LONGEST = 1000  # characters of an answer
_BOX = "\\boxed{"
_lock = threading.Lock()
_child: subprocess.Popen[str] | None = None  # shared by all sources, because it takes seconds to start


def math_verdict(source: MathSource) -> Callable[[RewardInput], Verdict]:
    """Return the check of a response. Raises RewardError if math-verify is not installed."""
    if importlib.util.find_spec("math_verify") is None:
        raise RewardError(
            "reward source 'math': math-verify is not installed: pip install 'ppo-workbench[verify]', or leave it out"
        )

    def verdict(row: RewardInput) -> Verdict:
        given = row.columns.get(source.answer)
        # A worked solution, as in MATH and GSM8K, ends with the answer.
        text = "" if given is None else str(given).rpartition("####")[2].strip()
        reference = text if (boxed := last_box(text)) is None else boxed
        if not reference or len(reference) > _LONGEST:
            return Verdict(None, f"no reference in '{source.answer}'")
        answer = last_box(row.completion)
        if answer is None:
            return Verdict(0.0, f"expected {reference}, found no \\boxed{{}}")
        if len(answer) > _LONGEST:
            return Verdict(0.0, f"expected {reference}, found {len(answer):,} characters")
        match _compare(reference, answer):
            case "ended":
                return Verdict(0.0, f"expected {reference}, cannot compare in {SECONDS} s: {answer}")
            case None:
                return Verdict(None, f"'{source.answer}' cannot be read as an answer: {reference}")
            case right:
                return Verdict(float(right is True), f"expected {reference}, found {answer}")

    return verdict


def last_box(text: str) -> str | None:
    r"""Return what is in the last \boxed{} of `text`, braces matched; None without one, or if it is not closed."""
    _, found, rest = text.rpartition(_BOX)
    depth = 1
    for place, character in enumerate(rest if found else ""):
        if character in "{}" and rest[place - 1 : place] != "\\":
            depth += 1 if character == "{" else -1
        if not depth:
            return rest[:place].strip()
    return None


@lru_cache(4096)
def _compare(reference: str, answer: str) -> bool | str | None:
    """Return whether the answers are equal, None if the reference cannot be read, 'ended' if comparing took too long.

    Raises RewardError if the child process does not start.
    """
    global _child
    with _lock:
        if _child is None:
            # -P: beside the script is a code.py, which is also a name of the standard library.
            script = str(Path(__file__).with_name("math_child.py"))
            pipe = subprocess.PIPE
            _child = subprocess.Popen(
                [sys.executable, "-P", script], stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True
            )
            assert _child.stdout is not None
            if _child.stdout.readline() != "ready\n":
                _stop()
                raise RewardError("reward source 'math': math-verify does not load: try `import math_verify` in Python")
        assert _child.stdin is not None
        assert _child.stdout is not None
        try:
            _child.stdin.write(json.dumps([reference, answer]) + "\n")
            _child.stdin.flush()
            found = _child.stdout.readline()
        except BrokenPipeError:
            found = ""
        if not found:
            _stop()
            return "ended"
        return json.loads(found)  # type: ignore[no-any-return]


def _stop() -> None:
    global _child
    if _child is not None:
        _child.kill()
        with _child:  # closes its pipes and waits
            _child = None
