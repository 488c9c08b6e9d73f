"""Items ahead of the labeller, drawn from the queues of a session; and the scores that order them."""

from __future__ import annotations

import json
import math
import tempfile
import threading
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from trainer.errors import DataError, Interrupted, ModelError, StorageError, TrainerError, cannot_write
from trainer.preferences.queues import QueueContext
from trainer.preferences.records import Item, SessionPlan, SessionRecord, Text
from workbench.system.children import last_error, own_command, started

if TYPE_CHECKING:
    from trainer.preferences.queues.mixture import Mixture

AHEAD = 12  # items ahead of the labeller; with fewer, a quick queue fills in for a slow one
_FULL = 24  # most items ahead
_LOOK = 1.0  # seconds between checks whether a queue has more
_RETRY = 5.0  # seconds until items that could not be saved are put again
_SCORING_NICENESS = 15  # training and the screen go first


class SupplyReport(NamedTuple):
    """Report on the supply. The fields are those of `SessionState`.

    ended: no more items will come. left: how many may still come; None if that is not known.
    """

    ended: bool = False
    waiting: str = ""
    problem: str = ""
    left_out: tuple[str, ...] = ()
    left: int | None = None


class ItemSupply:
    """Items of `plan`, drawn a step at a time and put into the session before they are needed.

    report: changes only to another one.
    """

    def __init__(self, plan: SessionPlan, context: QueueContext) -> None:
        self.report = SupplyReport()
        self._plan = plan
        self._context = context
        self._mixture: Mixture | None = None
        self._filling = True  # until there are enough items ahead
        self._drawn: list[Item] = []  # not put yet
        self._singly = False  # put them one by one: the store rejects one of them
        self._refused: tuple[str, ...] = ()  # by the store

    def step(self, record: SessionRecord, ahead: int, put: Callable[[Sequence[Item]], object]) -> float:
        """Draw an item, or put those drawn; return the seconds until the next step, infinite if there are enough."""
        if ahead >= AHEAD and not self._filling and self.report.left is not None:
            return math.inf
        ended, waiting, problem, wait = False, "", "", 0.0
        try:
            ended, waiting, problem, wait = self._step(record, ahead, put)
        except StorageError as error:
            problem, wait = str(error), _RETRY
        except Interrupted:
            ended = True
        except TrainerError as error:
            ended, problem = True, str(error)
        except Exception as bug:  # noqa: BLE001  the labeller keeps the items so far and sees the error
            print("".join(traceback.format_exception(bug)))  # noqa: T201  captured by the log pane
            ended = True
            problem = f"unexpected {type(bug).__name__}: {bug}: this is a bug, its traceback is in the log"
        left = self._mixture.left if self._mixture is not None else None
        left = None if left is None else left + len(self._drawn)
        report = SupplyReport(ended, waiting, problem, self._left_out, left)
        if report != self.report:
            self.report = report
        return math.inf if ended else wait

    @property
    def _left_out(self) -> tuple[str, ...]:
        return (*(self._mixture.problems if self._mixture is not None else ()), *self._refused)

    def close(self) -> None:
        """Close the store that the queues read."""
        if self._mixture is not None:
            self._mixture.close()

    def _step(
        self, record: SessionRecord, ahead: int, put: Callable[[Sequence[Item]], object]
    ) -> tuple[bool, str, str, float]:
        """Return whether this was the last step, what the next one waits for, a problem, and the seconds until then."""
        if self._mixture is None:
            from trainer.preferences.queues.mixture import Mixture  # here, because it imports NumPy

            self._mixture = Mixture(self._plan, self._context)
        mixture, drawn, waiting = self._mixture, self._drawn, self.report.waiting
        items, limit = record.items - record.elsewhere, self._plan.limit
        if not drawn:
            if limit and items >= limit:
                return True, "", "", 0.0
            if mixture.exhausted:
                nothing = "" if items else f"{self._context.labeller} has judged everything: add another queue"
                return True, "", "; ".join(self._left_out) or nothing, 0.0
            self._filling = ahead < AHEAD or (self._filling and ahead < _FULL)
            if not self._filling:
                return False, "", "", math.inf
        # The first item alone, so that it is shown at once.
        batch = min(max(ahead, 1), max(_FULL - ahead, 1), limit - items if limit else _FULL)
        if len(drawn) < batch:
            item = mixture.draw(hurry=ahead + len(drawn) < AHEAD)
            waiting = mixture.waiting if item is None else ""
            drawn += [item] if item is not None else []
            if item is not None and len(drawn) < batch:
                return False, "", "", 0.0
        if not drawn and not mixture.exhausted:
            return False, waiting, "", _LOOK
        self._save(put)
        return False, waiting, "", 0.0

    def _save(self, put: Callable[[Sequence[Item]], object]) -> None:
        """Put what is drawn, without the items that the store rejects. Raises StorageError, and keeps them."""
        while self._drawn:
            items = self._drawn[:1] if self._singly else self._drawn.copy()
            try:
                put(items)
            except DataError as error:
                if len(items) > 1:
                    self._singly = True
                    continue
                self._refused += (str(error),)
            del self._drawn[: len(items)]
        self._singly = False


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
    data, answers, way_out = (
        folder / "rows.jsonl",
        folder / "scores.jsonl",
        "look at it with ppo-workbench reward-model eval",
    )
    lines = (json.dumps({"prompt": prompt, "completion": completion}) for prompt, completion in rows)
    data.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    command = own_command("reward-model", "score", model, "--data", str(data))
    with answers.open("wb") as stdout, tempfile.TemporaryFile() as stderr:
        process = started(command, stdout, stderr, niceness=_SCORING_NICENESS)
        while process.poll() is None and not closing.wait(0.1):
            pass
        if process.poll() is None:
            process.kill()
            process.wait()
        if closing.is_set():
            raise Interrupted("scoring has ended", save=False)
        if code := process.returncode:
            reason = last_error(stderr) or f"its process ended with code {code}; {way_out}"
            raise ModelError(f"reward model '{model}' cannot score: {reason}")
    try:
        with answers.open(encoding="utf-8") as found:
            scores = [float(json.loads(line)["score"]) for line in found]
    except (ValueError, KeyError, TypeError):
        scores = []
    if len(scores) != len(rows):
        raise ModelError(f"reward model '{model}' did not return {len(rows)} scores: {way_out}")
    return scores
