"""The process of a reward model that scores completions."""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

from trainer.control.control import Interrupted
from trainer.errors import ModelError, cannot_write
from trainer.preferences.records import Text
from workbench.system.children import last_error, started
from workbench.system.environment import own_command

_SCORING_NICENESS = 15  # training and the screen go first
_LOOK = 0.2  # seconds between checks whether scoring should end
_WAY_OUT = "look at it with ppo-workbench reward-model eval"


def score(model: str, rows: Sequence[tuple[Text, Text]], *, closing: threading.Event) -> list[float]:
    """Return the score of the reward model in the folder `model` for each (prompt, completion).

    Runs `ppo-workbench reward-model score`, and blocks while it loads the model and scores. Raises ModelError if the
    model cannot be used, StorageError if the rows cannot be written, Interrupted once `closing` is set.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="ppo-workbench-") as folder:
            return _scores(model, rows, Path(folder), closing)
    except OSError as error:
        raise cannot_write("to the temporary folder", error) from None


def _scores(model: str, rows: Sequence[tuple[Text, Text]], folder: Path, closing: threading.Event) -> list[float]:
    data, answers = folder / "rows.jsonl", folder / "scores.jsonl"
    lines = (json.dumps({"prompt": prompt, "completion": completion}) for prompt, completion in rows)
    data.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    command = own_command("reward-model", "score", model, "--data", str(data))
    with answers.open("wb") as stdout, tempfile.TemporaryFile() as stderr:
        code = _ended(started(command, stdout, stderr, niceness=_SCORING_NICENESS), closing)
        if code:
            reason = last_error(stderr) or f"its process ended with code {code}; {_WAY_OUT}"
            raise ModelError(f"reward model '{model}' cannot score: {reason}")
    try:
        with answers.open(encoding="utf-8") as found:
            scores = [float(json.loads(line)["score"]) for line in found]
    except (ValueError, KeyError, TypeError):
        scores = []
    if len(scores) != len(rows):
        raise ModelError(f"reward model '{model}' did not return {len(rows)} scores: {_WAY_OUT}")
    return scores


def _ended(child: subprocess.Popen[bytes], closing: threading.Event) -> int:
    """Wait for `child` and return its exit code. Raises Interrupted, and kills it, once `closing` is set."""
    try:
        while not closing.is_set():
            with contextlib.suppress(subprocess.TimeoutExpired):
                return child.wait(_LOOK)
        raise Interrupted("scoring has ended", save=False)
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()
