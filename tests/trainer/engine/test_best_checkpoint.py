"""The best checkpoint of a run stays, whatever comes after it and whoever resumes or prunes."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
from run_folders import checkpoint, config
from runs_helper import Recorder, record, tiny_config

from trainer.config import Config
from trainer.engine.artifacts import keep_best
from trainer.errors import StorageError
from trainer.events import CheckpointSaved, Evaluation
from trainer.policy_checkpoint import Snapshot, load_checkpoint, save_checkpoint
from trainer.runs.checkpoint_files import (
    Best,
    CheckpointWriter,
    best_checkpoint,
    checkpoints,
    prune_checkpoints,
    read_best,
    write_best,
)
from trainer.runs.folder import RunFolder, create_run
from workbench.runs.details import read_detail

SOURCES = [{"kind": "lexicon", "weight": 1.0}]
SNAPSHOT = Snapshot(0, {}, {}, {"policy": {}, "value": {}}, 0, {"sources": SOURCES}, 0, {})


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return create_run(config(tmp_path, "alpha"), "quickstart")


def evaluation(score: float, reward: float = math.nan) -> Evaluation:
    values: dict[str, Any] = {f.name: 0.0 for f in dataclasses.fields(Evaluation) if f.type == "float"}
    return Evaluation(**values | {"iteration": 0, "prompts": 3, "score_mean": score, "reward_mean": reward})


@pytest.fixture
def writer(folder: RunFolder) -> CheckpointWriter:
    keep = config(folder.root.parent).checkpoint.keep
    return CheckpointWriter(folder, keep, lambda event: None)


def keep(
    writer: CheckpointWriter,
    scores: list[float],
    metric: str = "score",
    *,
    rewards: list[float] | None = None,
    statistics: Any = None,
) -> Best | None:
    """Report an evaluation after each of some iterations; return what the best is then."""
    for number, score in enumerate(scores, 1):
        snapshot = SNAPSHOT._replace(iteration=number)
        if statistics:
            snapshot = snapshot._replace(rewards=statistics[number - 1])
        found = evaluation(score, rewards[number - 1] if rewards else math.nan)
        keep_best(writer, snapshot, found, metric)
    return read_best(writer.folder)


def numbers(folder: RunFolder) -> list[int]:
    return [int(path.name[-6:]) for path in checkpoints(folder).paths]


def test_the_first_of_the_best_is_kept_and_nothing_else(folder: RunFolder, writer: CheckpointWriter) -> None:
    assert keep(writer, [0.1, 0.5, 0.5, 0.3]) == Best(2, "score", 0.5, SOURCES)
    assert best_checkpoint(folder) == folder.checkpoint(2)
    assert read_detail(folder).best == "step-000002"
    assert numbers(folder) == [1, 2]
    assert json.loads(folder.best.read_text()) == {"iteration": 2, "metric": "score", "value": 0.5, "sources": SOURCES}


OTHER = {"sources": [{"kind": "length", "target": 3}]}
MOMENTS = [
    {"sources": SOURCES, "count": 4, "mean": mean, "m2": 4 * std**2}
    for mean, std in ((0.0, 1.0), (3.0, 2.0), (3.0, 2.0))
]
"""Sources give 1.0, 3.0, 2.0 on average, while the mean and the deviation of the run so far grow."""


@pytest.mark.parametrize(
    ("scores", "metric", "how", "best"),
    [
        ([0.1, 0.5, 0.9], "reward", {"rewards": [0.1, 0.4, 0.2]}, Best(2, "reward", 0.4, SOURCES)),
        (
            [0.9, 0.2, 0.1],
            "score",
            {"statistics": [SNAPSHOT.rewards, OTHER, OTHER]},
            Best(2, "score", 0.2, OTHER["sources"]),
        ),
        ([1.0, 0.0, -0.5], "score", {"statistics": MOMENTS}, Best(2, "score", 3.0, SOURCES)),
    ],
    ids=["by reward the KL penalty counts", "another reward is no score to beat", "as before they were normalised"],
)
def test_what_is_compared(writer: CheckpointWriter, scores: list[float], metric: Any, how: Any, best: Best) -> None:
    assert keep(writer, scores, metric, **how) == best


def test_off_keeps_none_and_nan_is_never_the_best(folder: RunFolder, writer: CheckpointWriter) -> None:
    assert keep(writer, [0.1], "off") is None
    assert keep(writer, [math.nan, -math.inf]) is None
    assert numbers(folder) == []


def test_pruning_spares_the_best_until_it_is_no_longer_the_best(folder: RunFolder, writer: CheckpointWriter) -> None:
    writer.keep = 2
    for number, score in enumerate([0.2, 0.9, 0.1, 0.1, 0.1, 0.1], 1):
        snapshot = SNAPSHOT._replace(iteration=number)
        writer.save(number, lambda path, snapshot=snapshot: save_checkpoint(path, snapshot))
        keep_best(writer, SNAPSHOT._replace(iteration=number), evaluation(score), "score")
    assert numbers(folder) == [2, 5, 6]
    assert prune_checkpoints(folder, 1) == [folder.checkpoint(5)]
    keep_best(writer, SNAPSHOT._replace(iteration=7), evaluation(1.0), "score")
    assert numbers(folder) == [6, 7]


def test_a_damaged_or_missing_best_counts_as_none_and_the_next_evaluation_is_better(
    folder: RunFolder, writer: CheckpointWriter
) -> None:
    keep(writer, [0.9])
    (folder.checkpoint(1) / "policy/adapters.safetensors").write_bytes(b"cut")
    assert best_checkpoint(folder) is None
    keep_best(writer, SNAPSHOT._replace(iteration=2), evaluation(0.1), "score")
    assert best_checkpoint(folder) == folder.checkpoint(2)


@pytest.mark.parametrize(
    "content",
    [
        *("", "[]", "{}", '{"iteration": "two"}', '{"iteration": 1, "metric": "score"}', "[" * 100_000),
        '{"iteration": Infinity, "metric": "x", "value": 1, "sources": []}',
    ],
    ids=str.__len__,
)
def test_an_unreadable_best_counts_as_none(folder: RunFolder, content: str) -> None:
    checkpoint(folder, 1)
    folder.best.write_text(content)
    assert read_best(folder) is None
    assert best_checkpoint(folder) is None
    assert prune_checkpoints(folder, 1) == []


def test_the_best_is_written_whole_or_not_at_all(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    write_best(folder, Best(1, "score", 0.5))

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(StorageError, match="No space left on device; free space"):
        write_best(folder, Best(2, "score", 0.7))
    assert read_best(folder) == Best(1, "score", 0.5)


def tiny(folder: Path, *settings: str) -> Config:
    """Configure six iterations of a reward that the policy learns to lose: it is trained on its negative."""
    sources = f"reward.sources=[{{kind='python', path='{folder}/rewards.py:score', weight=-1.0}}]"
    sizes = ("ppo.iterations=6", "checkpoint.keep=1", "checkpoint.every=3", "eval.every=1", "run.name=a")
    return tiny_config(folder, *sizes, sources, *settings)


def test_a_run_keeps_the_checkpoint_of_its_best_evaluation_also_when_it_is_resumed(tmp_path: Path) -> None:
    def best_of(recorder: Recorder) -> Evaluation:
        after = [event for event in recorder.of(Evaluation) if event.iteration]
        return max(after, key=lambda event: (event.score_mean, -event.iteration))  # type: ignore[no-any-return]

    whole = record(tiny(tmp_path))
    run = RunFolder(tmp_path / "runs/a")
    best = best_of(whole)
    assert read_best(run) is not None
    assert (read_best(run) or SNAPSHOT).iteration == best.iteration
    assert numbers(run) == sorted({best.iteration, 6})
    path = best_checkpoint(run)
    assert path is not None
    assert load_checkpoint(path, {}).iteration == best.iteration
    assert str(path.relative_to(run.root)) in {event.path for event in whole.of(CheckpointSaved)}

    halted = tmp_path / "halted"
    record(tiny(halted, "ppo.iterations=3"))
    resumed = record(tiny(halted), resume=halted / "runs/a")
    found = read_best(RunFolder(halted / "runs/a"))
    assert found is not None
    assert [event.score_mean for event in resumed.of(Evaluation)] == [e.score_mean for e in whole.of(Evaluation)][4:]
    assert (found.iteration, found.value) == (best.iteration, best.score_mean)
