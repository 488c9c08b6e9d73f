"""A run keeps its best checkpoint, and goes back to an older one when a rule, a thread or another process says so."""

from __future__ import annotations

import dataclasses
import json
import math
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from run_folders import checkpoint, config
from runs_helper import Killed, Recorder, acting, comparable, outcome, record, same_training, tiny_config, within

from trainer.config import Config, load_config
from trainer.engine.artifacts import keep_best, older_checkpoint
from trainer.engine.control import Control
from trainer.engine.training import train
from trainer.errors import UsageError
from trainer.events import (
    Alert,
    CheckpointSaved,
    Decision,
    Evaluation,
    Event,
    Iteration,
    RolledBack,
    RunEnded,
    RunStarted,
    SettingChanged,
)
from trainer.models.adapters import read_arrays
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
from trainer.runs.journal import read_journal
from trainer.runs.samples import read_samples
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
    assert read_detail(folder).text.endswith(", best step-000002")
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


BY_RULE = (
    *("convergence.window=2", "convergence.on_target=rollback", "convergence.target_score=-1"),
    *("ppo.iterations=5", "eval.every=0", "checkpoint.keep=0", "optim.schedule=linear", "optim.warmup_steps=3"),
)
"""A rule that always holds: it rolls back after iterations 2 and 4."""
STATES = ("policy/adapters.safetensors", "value/value.safetensors", "optimizer/optimizer.safetensors")


def rolled_back(folder: Path, to: int | None, *settings: str, iteration: int = 3, name: str = "a") -> Recorder:
    """Run a tiny run of five iterations that another thread asks to roll back in one of them."""

    def ask() -> None:
        thread = threading.Thread(target=control.rollback, args=(to, "because"))
        thread.start()
        thread.join()

    recorder = acting("update", iteration, ask)
    how = ("ppo.iterations=5", "checkpoint.keep=0", "checkpoint.best=off", *settings)
    train(tiny_config(folder, f"run.name={name}", *how), sinks=[recorder], control=(control := Control()))
    return recorder


def states(run: Path, iteration: int) -> list[bytes]:
    return [(RunFolder(run).checkpoint(iteration) / name).read_bytes() for name in STATES]


def prompts_of(run: Path, iteration: int) -> list[int]:
    return [row["prompt_index"] for row in read_samples(RunFolder(run).samples_file(iteration)).to_pylist()]


def state(run: Path, iteration: int) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((RunFolder(run).checkpoint(iteration) / "state.json").read_text())
    return values


def test_a_rule_rolls_back_and_the_run_counts_on_from_the_older_state(tmp_path: Path) -> None:
    recorder = record(tiny_config(tmp_path, "run.name=a", "convergence.max_rollbacks=1", *BY_RULE))
    run = tmp_path / "runs/a"
    (back,) = recorder.of(RolledBack)
    decisions = recorder.of(Decision)
    assert [(d.iteration, d.rule, d.action) for d in decisions] == [(2, "target", "rollback"), (4, "target", "stop")]
    assert back == RolledBack(iteration=2, to=1, reason=decisions[0].message)
    assert [i.iteration for i in recorder.of(Iteration)] == [1, 2, 3, 4], "nothing is redone"
    assert states(run, 2) == states(run, 1)
    assert states(run, 3) != states(run, 1)
    tokens = [i.tokens for i in recorder.of(Iteration)]
    now = state(run, 2)
    assert (now["iteration"], now["tokens"], now["optimizer_steps"]) == (2, tokens[1], 4)
    assert now["rewards"] == state(run, 1)["rewards"]
    assert (recorder.events[-1].state, recorder.events[-1].iteration) == ("done", 4)  # type: ignore[attr-defined]
    assert recorder.events[-1].reason == decisions[1].message  # type: ignore[attr-defined]


def test_a_rollback_lowers_both_learning_rates_and_visits_the_prompts_that_come_next(tmp_path: Path) -> None:
    recorder = rolled_back(tmp_path, 1, "convergence.rollback_lr=0.25", "model.value_model=head")
    record(tiny_config(tmp_path, "run.name=plain", "ppo.iterations=5"))
    changes = [(change.iteration, change.key, change.value) for change in recorder.of(SettingChanged)]
    assert changes == [(4, "optim.policy_lr", 0.00025), (4, "optim.value_lr", pytest.approx(changes[1][2]))]
    assert [i.policy_lr for i in recorder.of(Iteration)] == [0.001] * 3 + [0.00025] * 2
    assert load_config(tmp_path / "runs/a/config.toml").optim.policy_lr == 0.00025
    for number in range(1, 6):
        assert prompts_of(tmp_path / "runs/a", number) == prompts_of(tmp_path / "runs/plain", number)
    reported = [type(event) for event in recorder.of(CheckpointSaved, SettingChanged, RolledBack, Iteration)]
    at = reported.index(RolledBack)
    assert reported[at - 4 : at] == [CheckpointSaved, CheckpointSaved, SettingChanged, SettingChanged]
    assert recorder.of(RolledBack) == [RolledBack(iteration=3, to=1, reason="because")]
    assert recorder.of(RolledBack)[0] in read_journal(tmp_path / "runs/a/events.jsonl").events


def kill_when(condition: Callable[[list[Event]], bool]) -> Recorder:
    """Return a recorder that ends the run as a kill would, once the events so far meet `condition`."""

    def watch(event: Event) -> None:
        if condition(recorder.events):
            raise Killed

    recorder = Recorder(watch)
    return recorder


def saved_over(events: list[Event]) -> bool:
    """Return whether a checkpoint has just replaced another of its iteration."""
    saved = [event.iteration for event in events if isinstance(event, CheckpointSaved)]
    return isinstance(events[-1], CheckpointSaved) and saved[-2:] == [saved[-1]] * 2


def changed(events: list[Event], key: str) -> bool:
    return isinstance(events[-1], SettingChanged) and events[-1].key == key


KILLED_AT: dict[str, Callable[[list[Event]], bool]] = {
    "decided": lambda events: isinstance(events[-1], Decision),
    "saved": lambda events: isinstance(events[-1], CheckpointSaved) and events[-1].iteration == 2,
    "saved over": saved_over,
    "one rate told": lambda events: changed(events, "optim.policy_lr"),
    "rates told": lambda events: changed(events, "optim.value_lr"),
    "reported": lambda events: isinstance(events[-1], RolledBack),
    "next": lambda events: within(events[-1], "update", 3),
    "decided again": lambda events: isinstance(events[-1], Decision) and events[-1].iteration == 4,
    "later": lambda events: within(events[-1], "score", 5),
}
EVERYTHING = (
    *("ppo.kl_controller=adaptive", "ppo.kl_target=0.001", "ppo.kl_horizon=10"),
    *("optim.ema_decay=0.9", "reward.normalize=running"),
)
"""All that a checkpoint may hold."""


@pytest.mark.parametrize(
    ("settings", "rollbacks"),
    [
        ((*EVERYTHING, "checkpoint.every=1", "convergence.window=2", "model.value_model=head"), [(2, 1), (4, 1)]),
        (("checkpoint.every=2", "convergence.window=4"), [(4, 2)]),
    ],
    ids=["each checkpoint", "every other"],
)
def test_a_run_that_is_killed_around_a_rollback_resumes_exactly(
    settings: tuple[str, ...], rollbacks: list[tuple[int, int]], tmp_path: Path
) -> None:
    settings = (*BY_RULE, *settings, "ppo.iterations=6")
    whole = record(tiny_config(tmp_path, "run.name=whole", *settings))
    rates = {change.key for change in whole.of(SettingChanged)}
    assert [(back.iteration, back.to) for back in whole.of(RolledBack)] == rollbacks
    for moment, condition in KILLED_AT.items():
        if moment == "rates told" and "optim.value_lr" not in rates:
            continue  # a fitted critic has no rate
        name = f"killed-{moment.replace(' ', '-')}"
        with pytest.raises(Killed):
            train(tiny_config(tmp_path, f"run.name={name}", *settings), sinks=[kill_when(condition)])
        run = tmp_path / "runs" / name
        record(load_config(run / "config.toml"), resume=run)
        assert outcome(run) == outcome(tmp_path / "runs/whole"), moment
        reported = [
            [comparable(e) for e in read_journal(path / "events.jsonl").events if isinstance(e, RolledBack)]
            for path in (run, tmp_path / "runs/whole")
        ]
        assert reported[0] == reported[1], moment


def test_an_impossible_rollback_is_reported_and_changes_nothing(tmp_path: Path) -> None:
    recorder = rolled_back(tmp_path, 7)
    (alert,) = recorder.of(Alert)
    assert (alert.iteration, alert.level, alert.code) == (4, "warning", "rollback_refused")
    assert (
        alert.message == "no checkpoint of iteration 7 to roll back to; choose from 1, 2; the run continues unchanged"
    )
    refused = rolled_back(tmp_path, None, "checkpoint.every=0", name="b")
    assert refused.of(Alert)[0].message == (
        "no checkpoint from before iteration 3 is kept: raise checkpoint.keep, or set eval.every and checkpoint.best; "
        "the run continues unchanged"
    )
    record(tiny_config(tmp_path, "run.name=plain", "ppo.iterations=5", "checkpoint.best=off"))
    assert same_training(tmp_path / "runs/a", tmp_path / "runs/plain")
    assert same_training(tmp_path / "runs/b", tmp_path / "runs/plain")


def test_a_rollback_that_comes_too_late_is_reported(tmp_path: Path) -> None:
    recorder = rolled_back(tmp_path, 1, iteration=5)
    (alert,) = recorder.of(Alert)
    assert (alert.code, alert.message) == (
        "rollback_refused",
        "rollback ignored: the run is in its last iteration",
    )
    assert recorder.of(RolledBack) == []


def test_a_run_that_is_stopped_before_it_rolls_back_is_rolled_back_when_it_is_resumed(tmp_path: Path) -> None:
    def ask() -> None:
        control.rollback(1, "because")
        control.stop()

    settings = ("ppo.iterations=5", "checkpoint.keep=0", "checkpoint.best=off")
    recorder = acting("update", 4, ask)
    train(tiny_config(tmp_path, "run.name=a", *settings), sinks=[recorder], control=(control := Control()))
    assert [type(event) for event in recorder.events[-2:]] == [RolledBack, RunEnded]
    resumed = record(load_config(tmp_path / "runs/a/config.toml"), resume=tmp_path / "runs/a")
    assert (resumed.of(RunStarted)[0].resumed_at, resumed.of(RolledBack)) == (3, [])
    rolled_back(tmp_path, 1, name="b")
    mine, other = (outcome(tmp_path / "runs" / name) for name in "ab")
    assert mine == other


@pytest.fixture
def kept(tmp_path: Path) -> RunFolder:
    """Make a run with checkpoints after iterations 2, 4 and 6."""
    folder = RunFolder(tmp_path / "run")
    folder.checkpoints.mkdir(parents=True)
    for number in (2, 4, 6):
        save_checkpoint(folder.checkpoint(number), Snapshot(number, {}, {}, {"policy": {}, "value": {}}, 0, {}, 0, {}))
    return folder


def test_a_run_goes_back_to_its_best_checkpoint_or_else_to_the_oldest(kept: RunFolder) -> None:
    assert older_checkpoint(kept, None, before=6) == kept.checkpoint(2)
    assert older_checkpoint(kept, 4, before=6) == kept.checkpoint(4)
    write_best(kept, Best(4, "score", 0.5))
    assert older_checkpoint(kept, None, before=6) == kept.checkpoint(4)
    assert older_checkpoint(kept, None, before=4) == kept.checkpoint(2), "what is the best now is no way back"
    for to, message in ((6, "choose from 2, 4"), (0, "choose from 2, 4"), (3, "choose from 2, 4")):
        with pytest.raises(UsageError, match=message):
            older_checkpoint(kept, to, before=6)
    with pytest.raises(UsageError, match="no checkpoint from before iteration 2 is kept"):
        older_checkpoint(kept, None, before=2)


def test_a_rollback_past_the_best_leaves_no_best_that_names_another_state(tmp_path: Path) -> None:
    best: list[Best | None] = []

    def look(event: Event) -> None:
        if isinstance(event, RolledBack):
            best.append(read_best(RunFolder(tmp_path / "runs/a")))

    def ask() -> None:
        write_best(RunFolder(tmp_path / "runs/a"), Best(3, "score", 9.0))
        control.rollback(1)

    recorder = acting("update", 3, ask)
    settings = ("ppo.iterations=4", "checkpoint.keep=0", "eval.every=4")
    train(
        tiny_config(tmp_path, "run.name=a", *settings),
        sinks=[recorder, Recorder(look)],
        control=(control := Control()),
    )
    assert best == [None]
    assert read_best(RunFolder(tmp_path / "runs/a")).iteration == 4  # type: ignore[union-attr]


def test_the_average_and_the_kl_coefficient_go_back_too(tmp_path: Path) -> None:
    how = ("ppo.kl_controller=adaptive", "ppo.kl_target=0.001", "ppo.kl_horizon=10", "optim.ema_decay=0.9")
    recorder = rolled_back(tmp_path, 1, *how)
    run = tmp_path / "runs/a"
    averages = [read_arrays(RunFolder(run).checkpoint(n) / "average/adapters.safetensors") for n in (1, 2, 3)]
    same = [all((averages[0][k] == other[k]).all().item() for k in averages[0]) for other in averages]
    assert same == [True, False, True]
    kl_coefs = [i.kl_coef for i in recorder.of(Iteration)]
    assert kl_coefs[0] != kl_coefs[1] != kl_coefs[2]
    assert kl_coefs[3] == kl_coefs[1], "that after iteration 1"


def test_settings_changed_since_stay_after_a_rollback(tmp_path: Path) -> None:
    for controller in ("fixed", "adaptive"):
        control = Control()

        def ask(control: Control = control) -> None:
            control.set("ppo.kl_coef", 0.4)

        first = acting("update", 2, ask)
        then = acting("update", 3, lambda control=control: control.rollback(1))  # type: ignore[misc]
        how = (f"ppo.kl_controller={controller}", "ppo.kl_horizon=1000000", "ppo.iterations=4", "checkpoint.keep=0")
        name = f"run.name={controller}"
        train(tiny_config(tmp_path, name, "checkpoint.best=off", *how), sinks=[first, then], control=control)
        kl_coefs = [i.kl_coef for i in first.of(Iteration)]
        assert kl_coefs == pytest.approx([0.05, 0.05, 0.4, 0.4], rel=1e-4)
