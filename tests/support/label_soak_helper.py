"""A scripted labeller in a process that is killed and started again until the session is done.

`label_soak_helper.py STORE SEED` prints what each process reported as saved, and `killed` where one was killed.
Decisions depend on the position; on the way there are slips, which are undone, and rash labels, which are changed.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import NoReturn

from trainer.preferences.records import Choice, Comparison, Item, Judgement, Origin, SessionPlan
from workbench.labelling.session_worker import SessionState, SessionWorker

ITEMS = 500
GUIDELINES = "Prefer what is true."
_CHOICES: tuple[Choice, ...] = ("a", "b", "tie", "both_bad", "skip")
_BACK = 30  # a repeat asks again what was judged this many items earlier
MOST = 60  # steps of a process, which then waits to be killed, however late that is on a busy machine


def decision(position: int) -> Judgement:
    """Return the labeller's final decision on the item at `position`."""
    rng = random.Random(position)
    choice = rng.choice(_CHOICES)
    return Judgement.chosen(choice, strength=rng.choice((1, 3)), note=rng.choice(("", "\x1b[2J naïve\n")), seconds=1.5)


def is_repeat(position: int) -> bool:
    return position > _BACK and position % 20 == 0


def prompt(position: int) -> str:
    return f"Prompt {position - _BACK if is_repeat(position) else position}"


def _item(position: int, session: SessionWorker) -> Item:
    origins = tuple(Origin(source="run", run="r", row=row) for row in (0, 1))
    comparison = Comparison(prompt=prompt(position), completions=("wind", "rain"), origins=origins)
    order = random.Random(-position).choice(((0, 1), (1, 0)))
    if not is_repeat(position):
        return Item(comparison=comparison, queue="samples", order=order)
    label = session.item(position - _BACK).result().label
    assert label is not None
    return Item(comparison=comparison, queue="repeat", order=order, repeats=label.id)


def _label(session: SessionWorker, rng: random.Random, output: int) -> None:
    found = session.kept().result()[0]
    plan = SessionPlan(queues=(), limit=ITEMS)
    state = (session.resume(found[0].id) if found else session.begin("ann", plan, GUIDELINES)).result()
    for _ in range(MOST):
        last, current = state.last, state.current
        doubt = last.label.judgement.note if last is not None and last.label is not None else ""
        if last is not None and doubt == "slip":
            state = session.undo().result()
            reported = f"undo 0 {last.position}"
        elif last is not None and doubt == "rash":
            state = session.label(last, decision(last.position)).result()
            reported = _reported(state, last.position)
        elif state.ahead < 5 and state.record.items < ITEMS:
            items = range(state.record.items, min(state.record.items + 12, ITEMS))
            state = session.put([_item(position, session) for position in items]).result()
            continue
        elif current is not None:
            note = rng.choices(("", "slip", "rash"), (8, 1, 1))[0]
            given = Judgement.chosen("tie", note=note) if note else decision(current.position)
            state = session.label(current, given).result()
            reported = _reported(state, current.position)
        else:
            return
        os.write(output, f"{reported}\n".encode())
    signal.pause()


def _reported(state: SessionState, position: int) -> str:
    assert state.last is not None
    assert state.last.label is not None
    assert state.last.position == position
    return f"label {state.last.label.id} {position}"


def _work(path: Path, rng: random.Random, output: int) -> NoReturn:
    session, status = SessionWorker(path), 1
    try:
        _label(session, rng, output)
        session.close()
        session.join()
        status = 0
    except BaseException:  # noqa: BLE001  it must not reach what the parent would do next
        traceback.print_exc()
    finally:
        os._exit(status)  # whatever the session's thread does


def _run(path: Path, rng: random.Random) -> None:
    for start in itertools.count():
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            _work(path, random.Random(start), writing)
        os.close(writing)
        with os.fdopen(reading) as lines:
            reported = list(itertools.islice(lines, rng.randrange(40)))
            time.sleep(rng.random() / 200)  # so that the kill falls anywhere in a label, or in opening the store
            os.kill(child, signal.SIGKILL)
            reported += lines
        _, status = os.waitpid(child, 0)
        print("".join(reported), end="")
        if status == 0:
            return
        assert os.WIFSIGNALED(status), "it was killed, and did not fail"
        print("killed")


if __name__ == "__main__":
    _run(Path(sys.argv[1]), random.Random(int(sys.argv[2])))
