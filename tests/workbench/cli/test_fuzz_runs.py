"""Run folders damaged at random: whatever reads them ends well or with an error for the user, in time.

Reading changes nothing: neither the run nor what a link in it leads to.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from random import Random
from typing import Any

import pytest
from dpo_helper import dpo_config
from fuzzing import damaged, outcome, randoms, within
from preference_samples import reward_config
from rich.console import Console
from runs_helper import record, tiny_config

from trainer.config import Config
from trainer.engine.training import train
from trainer.errors import TrainerError
from trainer.events import EVENT_TYPES, Alarm, Event
from trainer.monitoring import Monitor
from trainer.policy_checkpoint import load_checkpoint
from trainer.reward_model.loaded import load_reward_model
from trainer.reward_model.predictions import HELD_OUT, read_predictions
from trainer.reward_model.snapshot import load_snapshot
from trainer.runs.checkpoint_files import write_state
from trainer.runs.folder import RunFolder
from trainer.runs.journal import read_journal
from workbench.cli.main import main
from workbench.compare.compared_run import read_configs
from workbench.config.document import ConfigDocument
from workbench.headless import dashboard, summary
from workbench.kit.pane_strip import status_pieces
from workbench.run.run_listing import read_runs
from workbench.run.run_on_disk import RunOnDisk, whole_run
from workbench.run.sentences import sentences
from workbench.run.supervisor import Supervisor
from workbench.run.view import RunView
from workbench.runs.details import read_detail
from workbench.runs.table import COLUMNS
from workbench.training.alarms import alarm_line
from workbench.training.timeline import timeline

KINDS = ("ppo", "reward-model", "dpo")  # and the names of the runs
VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 1.5, 2**31, 2**63, 10**400, -1e308, 1e400, float("nan"), "", "quantum", "a\x1b[2J\n\u202e",
    "\ud800", "x" * 5000, [], {}, [[]], [{}], {"a": None}, {"a": "b"}, {"kl": 1e308}, ["a"], [None],
    "../../outside/thesis.txt", "runs/../..", "1e400",
)  # fmt: skip
OF_EVENTS: dict[str, Any] = {  # a valid value for each type of event field
    "float": 0.5,
    "int": 2,
    "int | None": 1,
    "bool": False,
    "str": "words",
    "dict[str, str]": {"mlx": "1"},
    "dict[str, float]": {"generate": 1.0},
    "list[str]": ["a warning"],
    "list[SamplePreview]": [{"prompt": "a", "completion": "b", "score": 0.5, "kl": 0.1, "truncated": False}],
    "list[Fix]": [{"label": "lower it", "action": "set", "key": "optim.policy_lr", "value": 1e-5}],
    "State": "training",
    "EndState": "done",
    "Phase": "generate",
    "Any": 0.1,
}
JSON = ("state.json", "reward_model.json", "best.json", "progress.json", "bookmarks.json", "adapter_config.json")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a workspace with a run of each kind, whose journals have every event, and a file that is in none of them."""
    folder = tmp_path_factory.mktemp("whole")
    record(tiny_config(folder, "run.name=ppo", "ppo.iterations=2", "rollout.batch_size=2", "optim.ema_decay=0.5"))
    pairs = folder / "pairs.jsonl"
    pairs.write_text("".join(f'{{"prompt": "{n}", "chosen": "aa{n}", "rejected": "b{n}"}}\n' for n in range(24)))
    both = (f"data.preferences={pairs}", "checkpoint.every=2")
    train(reward_config(folder, "run.name=reward-model", *both))
    train(dpo_config(folder, "run.name=dpo", "reward.sources=['lexicon']", *both))
    progress = {"event": "phase", "phase": "update", "iteration": 1, "done": 1, "total": 2}
    for name in KINDS:
        run = folder / "runs" / name
        with (run / "events.jsonl").open("a") as journal:
            for number, cls in enumerate(EVENT_TYPES.values()):
                values = {field.name: OF_EVENTS.get(str(field.type), "info") for field in fields(cls)}
                journal.write(json.dumps({"time": 1.7e9 + number, "event": cls.kind, **values}) + "\n")
        (run / "progress.json").write_text(json.dumps(progress))
    (folder / "outside").mkdir()
    (folder / "outside/thesis.txt").write_text("years of work")
    shutil.copytree(folder / "runs/ppo", folder / "runs/b")
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_is_in_the_folder_of_a_run_its_readers_end_well_and_change_nothing(
    whole: Path, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(whole)
    run, kept = whole / "runs" / kind, tmp_path / "kept"
    shutil.copytree(run, kept)
    for random in randoms(f"{kind} runs", 40):
        shutil.rmtree(run)
        shutil.copytree(kept, run)
        done = [_harm(run, random) for _ in range(random.choice((1, 1, 2, 5)))]
        before = _state(whole)
        with within(20, done):
            try:
                _use(run, tmp_path, random)
            except Exception as error:
                raise AssertionError(f"after {done}") from error
        assert _state(whole) == before, done


def _use(run: Path, elsewhere: Path, random: Random) -> None:
    """Read the run as the commands and the screen do."""
    export = random.choice(("--jsonl", "--markdown"))
    commands: list[list[str]] = [
        ["runs", "--dir", str(run.parent)],
        ["runs", "--dir", str(run.parent), "--json"],
        ["samples", str(run), "--iteration", random.choice(("all", "newest", "1")), "--sort", "score"],
        ["samples", str(run), "--iteration", "all", export, str(elsewhere / "out.txt")],
        ["compare", str(run), str(run.with_name("b"))],
        ["compare", str(run.with_name("b")), str(run), "--json"],
    ]
    (elsewhere / "out.txt").unlink(missing_ok=True)
    for words in random.sample(commands, 3):
        outcome(main, words)
    if random.random() < 0.1:
        outcome(main, ["evaluate", str(run), "--samples", "1", "--prompts", "1"])
    if run.name == "reward-model" and random.random() < 0.4:
        outcome(main, ["reward-model", "eval", str(run)])
    folder = RunFolder(run)
    for path in folder.checkpoints.glob("step-*"):
        with contextlib.suppress(TrainerError):
            load_reward_model(path) if run.name == "reward-model" else load_checkpoint(path, {})
        with contextlib.suppress(TrainerError):
            load_snapshot(path)
    with contextlib.suppress(TrainerError):
        read_predictions(run / HELD_OUT)
    read_detail(folder)
    Supervisor().watch(run)
    read_configs([folder, RunFolder(run.with_name("b"))])
    with contextlib.suppress(TrainerError):
        assert ConfigDocument.of_run(run).problems is not None
    with contextlib.suppress(TrainerError):
        whole_run(run)
    with contextlib.suppress(TrainerError):
        Monitor(Config, read_journal(folder.events).events)
    listing = read_runs(run.parent)
    assert listing is not None
    assert [[column.text(one, 1.8e9) for column in COLUMNS] for one in listing.runs if one.name == run.name]
    with contextlib.suppress(TrainerError):
        _draw(RunOnDisk(run).take())


def _draw(events: Sequence[Event]) -> None:
    """Show the events as `watch` and the headless displays do."""
    view, console = RunView(), Console(file=io.StringIO(), width=80, force_terminal=True)
    for event in events:
        view.take(event)
        assert all(isinstance(line, str) for line in sentences(event))
        if isinstance(event, Alarm):
            alarm_line(view.alarms, 60, "A")
    assert status_pieces(view)
    timeline(view.marks, 60)
    summary(view)
    console.print(dashboard(view, 80))


def _harm(run: Path, random: Random) -> str:
    """Damage a file of the run, or put something else in its place; returns what was done."""
    path = random.choice(sorted(path for path in run.rglob("*") if path.is_file() and not path.is_symlink()))
    if random.random() < 0.4:
        often = [run / name for name in ("events.jsonl", "events.jsonl", "config.toml")]
        if run.name != "ppo":  # the journal's lines are those of a PPO run
            often = [run / "config.toml", run / "pairs.sha256", *sorted(run.glob("checkpoints/*/*.json"))]
        path = random.choice(often)
    if not path.is_file() or path.is_symlink():
        return "nothing"
    if random.random() < 0.15:
        return f"{path.name}: {_replace(path, random)}"
    content = path.read_bytes()
    if path.name == "events.jsonl" and random.random() < 0.8:
        lines = content.splitlines()
        for _ in range(random.choice((1, 1, 3))):
            at = random.choice((-1, random.randrange(len(lines)), random.randrange(len(lines)))) if lines else 0
            lines[at:] = [_edited(lines[at], random), *lines[at:][1:]] if lines else []
        if random.random() < 0.2:
            random.shuffle(lines)
        content = b"\n".join(lines) + random.choice((b"\n", b"\n", b"", b"\n\n", b'\n{"event": "it'))
    elif path.name in JSON and random.random() < 0.8:
        content = _edited(content, random)
    else:
        content = damaged(content, random)
    path.write_bytes(content)
    if path.parent.parent.name == "checkpoints" and random.random() < 0.5:
        _sign(path.parent)
    return f"{path.name}: {content[-300:]!r}"


def _sign(checkpoint: Path) -> None:
    """Write the sums again, as a stranger would, so that what is read does not rely on them."""
    with contextlib.suppress(OSError, ValueError):
        state = json.loads((checkpoint / "state.json").read_bytes())
        if isinstance(state, dict):
            write_state(checkpoint, state)


def _replace(path: Path, random: Random) -> str:
    outside = next(parent / "outside" for parent in path.parents if (parent / "outside").is_dir())
    path.unlink()
    what = random.choice(("missing", "empty", "pipe", "folder", "zero", "thesis", "loop", "holes"))
    match what:
        case "empty":
            path.touch()
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "zero":
            path.symlink_to("/dev/zero")
        case "thesis":
            path.symlink_to(outside / "thesis.txt")
        case "loop":
            path.symlink_to(path.name)
        case "holes":
            with path.open("wb") as file:
                file.truncate(1 << 20)
    return what


def _edited(line: bytes, random: Random) -> bytes:
    """Return a JSON object with other values in some fields, at any depth; broken JSON if it is none."""
    try:
        values = json.loads(line)
    except ValueError:
        return damaged(line, random)
    for _ in range(random.choice((1, 1, 2, 4))):
        node = values
        while isinstance(node, dict) and node:
            key = random.choice(list(node))
            if isinstance(node[key], dict) and node[key] and random.random() < 0.7:
                node = node[key]
                continue
            if random.random() < 0.1:
                del node[key]
            else:
                alike = [value for value in VALUES if type(value) is type(node[key])]
                node[key] = random.choice(alike if alike and random.random() < 0.6 else VALUES)
            break
    return json.dumps(values).encode(errors="surrogatepass")


def _state(folder: Path) -> dict[str, Any]:
    """Return every name in `folder` with what reveals a change."""
    found = {}
    for path in folder.rglob("*"):
        status = path.lstat()
        found[str(path.relative_to(folder))] = (status.st_ino, status.st_mode, status.st_size, status.st_mtime_ns)
    return {name: state for name, state in found.items() if not name.endswith("/lock")}
