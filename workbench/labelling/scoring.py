"""Scores of completions by reward models, computed in separate processes so that labelling continues meanwhile."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

from trainer.control.control import Interrupted
from trainer.errors import ModelError, cannot_write
from trainer.preferences.records import Text
from workbench.system.processes import own_command

_NICENESS = 15  # training and the screen go first
_LOOK = 0.2  # seconds between checks whether it was closed
_WAY_OUT = "look at it with ppo-workbench reward-model eval"


class Scoring:
    """Callable that runs `ppo-workbench reward-model score`. Several threads may call it; `close` ends all calls."""

    def __init__(self) -> None:
        self._closed = threading.Event()

    def __call__(self, model: str, rows: Sequence[tuple[Text, Text]]) -> list[float]:
        """Return the score of the reward model in the folder `model` for each (prompt, completion).

        Blocks while the model is loaded and scores. Raises ModelError if the model cannot be used, StorageError if the
        rows cannot be written, Interrupted once it is closed.
        """
        try:
            with tempfile.TemporaryDirectory(prefix="ppo-workbench-") as folder:
                return self._scores(model, rows, Path(folder))
        except OSError as error:
            raise cannot_write("the samples to score into the folder for temporary files", error) from None

    def close(self) -> None:
        """End the running processes and refuse further calls; returns at once."""
        self._closed.set()

    def _scores(self, model: str, rows: Sequence[tuple[Text, Text]], folder: Path) -> list[float]:
        data, answers, errors = (folder / name for name in ("rows.jsonl", "scores.jsonl", "errors"))
        lines = (json.dumps({"prompt": prompt, "completion": completion}) for prompt, completion in rows)
        data.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        command = own_command("reward-model", "score", model, "--data", str(data))
        with answers.open("wb") as stdout, errors.open("wb") as stderr:
            child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr)
            with contextlib.suppress(OSError):  # it has ended already
                os.setpriority(os.PRIO_PROCESS, child.pid, _NICENESS)
            code = self._ended(child)
        if code:
            raise ModelError(f"reward model '{model}' scores nothing: {_reason(errors, code)}")
        try:
            with answers.open(encoding="utf-8") as found:
                scores = [float(json.loads(line)["score"]) for line in found]
        except (ValueError, KeyError, TypeError):
            scores = []
        if len(scores) != len(rows):
            raise ModelError(f"reward model '{model}' did not answer with {len(rows)} scores: {_WAY_OUT}")
        return scores

    def _ended(self, child: subprocess.Popen[bytes]) -> int:
        """Wait for `child` and return its exit code. Raises Interrupted, and kills it, once this is closed."""
        try:
            while not self._closed.is_set():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    return child.wait(_LOOK)
            raise Interrupted("scoring was ended", save=False)
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()


def _reason(errors: Path, code: int) -> str:
    """Return the last line in the file `errors`, without the program's prefix; the exit code if the file is blank."""
    lines = errors.read_text(encoding="utf-8", errors="backslashreplace").splitlines()
    told = [line.removeprefix("ppo-workbench: ").removeprefix("error: ") for line in lines if line.strip()]
    return told[-1] if told else f"its process ended with code {code}; {_WAY_OUT}"
