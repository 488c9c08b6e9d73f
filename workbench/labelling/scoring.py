"""Scores of a reward model, from a separate process."""

from __future__ import annotations

import json
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

from trainer.errors import Interrupted, ModelError, cannot_write
from trainer.preferences.records import Text
from workbench.system.children import last_error, own_command, started

_NICENESS = 15  # training and the screen go first
_WAY_OUT = "look at it with ppo-workbench reward-model eval"


def score(model: str, rows: Sequence[tuple[Text, Text]], *, closing: threading.Event) -> list[float]:
    """Return the score of the reward model in the folder `model` for each (prompt, completion).

    Runs `ppo-workbench reward-model score`, and blocks while it loads the model and scores. Raises ModelError if the
    model cannot be used, StorageError if the rows cannot be written, Interrupted once `closing` is set.
    """
    lines = [json.dumps({"prompt": prompt, "completion": completion}) + "\n" for prompt, completion in rows]
    try:
        with tempfile.TemporaryDirectory(prefix="ppo-workbench-") as folder:
            data, answers = Path(folder, "rows.jsonl"), Path(folder, "scores.jsonl")
            data.write_text("".join(lines), encoding="utf-8")
            command = own_command("reward-model", "score", model, "--data", str(data))
            with answers.open("wb") as stdout, tempfile.TemporaryFile() as stderr:
                process = started(command, stdout, stderr, niceness=_NICENESS)
                while process.poll() is None and not closing.wait(0.1):
                    pass
                if process.poll() is None:
                    process.kill()
                    process.wait()
                if closing.is_set():
                    raise Interrupted("scoring has ended", save=False)
                if code := process.returncode:
                    reason = last_error(stderr) or f"its process ended with code {code}; {_WAY_OUT}"
                    raise ModelError(f"reward model '{model}' cannot score: {reason}")
            with answers.open(encoding="utf-8") as found:
                scores = [float(json.loads(line)["score"]) for line in found]
    except OSError as error:
        raise cannot_write("to the temporary folder", error) from None
    except (ValueError, KeyError, TypeError):
        scores = []
    if len(scores) != len(rows):
        raise ModelError(f"reward model '{model}' did not return {len(rows)} scores: {_WAY_OUT}")
    return scores
