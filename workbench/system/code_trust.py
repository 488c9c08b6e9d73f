"""The user's consent to Python code that a configuration runs as its reward: given, asked for, or refused."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from trainer.config import parse_overrides
from trainer.config.fields import Section
from trainer.config.reward_sources import CodeSource, JudgeSource, PythonSource
from trainer.config.schema import Config, RewardConfig
from trainer.errors import StorageError
from trainer.rewards.code import Code, TrustedCode, code_of, endpoint_code
from trainer.rewards.code_reward import runner_code
from workbench.system import output
from workbench.system.environment import state_dir
from workbench.text import visible

FILE = "trusted-code.jsonl"  # in the user's state folder
PASSED_ON = "PPO_WORKBENCH_TRUSTED_CODE"  # in the environment of processes that continue runs: this process's trust


def trusted_code() -> TrustedCode:
    """Return the code that this user has trusted."""
    return _trusted_code(state_dir() / FILE)


@cache
def _trusted_code(file: Path) -> TrustedCode:
    # One object for the whole process: it also keeps what could not be saved.
    return TrustedCode(file, os.environ.get(PASSED_ON, ""))


def untrusted_code(reward: RewardConfig) -> list[Code]:
    """Return the code that `reward` would run and the user has not trusted. Raises RewardError, StorageError."""
    codes: list[Code] = []
    for source in reward.sources:
        if isinstance(source, PythonSource):
            codes += code_of(source.path)
        elif isinstance(source, CodeSource):
            codes.append(runner_code())
        elif isinstance(source, JudgeSource):
            codes += endpoint_code(source)
    return trusted_code().untrusted(codes)


def require_trust(reward: RewardConfig, *, given: bool) -> None:
    """Check that the user trusts the code of `reward`: already, by the command line, or when asked on the terminal.

    given: the command line names the code itself, or has --trust-code. Raises UntrustedCodeError, RewardError.
    """
    codes = untrusted_code(reward)
    if codes and (given or _agreed(codes)):
        remember(codes)
    trusted_code().check(codes)


def remember(codes: Sequence[Code]) -> None:
    """Trust `codes` from now on. If that cannot be saved, trust them in this process only and warn."""
    try:
        trusted_code().remember(codes)
    except StorageError as error:
        output.warning(str(error))


def is_given(args: argparse.Namespace, schema: type[Section] = Config) -> bool:
    """Return whether the command line has --trust-code or names the sources itself, which counts as consent."""
    reward = parse_overrides(args.overrides, schema).get("reward")
    return bool(args.trust_code) or (isinstance(reward, dict) and "sources" in reward)


def code_text(code: Code) -> str:
    """Return code to read before trusting it: lines are numbered and control characters are visible."""
    lines = code.source.expandtabs(4).splitlines() or ["(source not available)"]
    width = len(str(len(lines)))
    return "\n".join(f"{number:{width}}  {visible(line)}" for number, line in enumerate(lines, 1))


def _agreed(codes: Sequence[Code]) -> bool:
    """Show `codes` on the terminal and ask whether to run them; without a terminal the answer is no."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    for code in codes:
        output.note(f"you have not trusted this version of what the reward uses yet: {code.name}")
        output.note(f"SHA-256 {code.sha256 or 'unknown'}")
        sys.stderr.write(f"{code_text(code)}\n")
    sys.stderr.write(f"{output.PROGRAM}: give this all your permissions, now and later? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")
