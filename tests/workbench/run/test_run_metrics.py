"""Reward model and DPO runs are shown like PPO's: columns, folding, words, tables and charts by kind."""

from __future__ import annotations

from typing import Any

import pytest
from rich.cells import cell_len
from run_kinds_helper import (
    dpo_evaluation,
    dpo_step,
    human,
    other_run,
    reward_evaluation,
    reward_step,
)
from scripted_run import ended, iteration, started
from views import drawn, view_of

from trainer.events import CheckpointSaved, Evaluation, Event, StateChanged
from workbench.headless import summary
from workbench.kit.pane_strip import fitted, status_pieces
from workbench.run.history import MetricHistory, kind_of
from workbench.run.metrics import METRICS_OF_KIND
from workbench.run.sentences import sentences
from workbench.run.view import Mark

STEPS: dict[str, Any] = {"ppo": iteration, "reward-model": reward_step, "dpo": dpo_step}
OTHERS = ("reward-model", "dpo")


def evaluation(number: int, **changes: Any) -> Evaluation:
    numbers = dict.fromkeys(("score_std", "kl", "response_length", "truncated", "seconds"), 0.5)
    return Evaluation(**{"iteration": number, "prompts": 4, "score_mean": 0.25, **numbers, **changes})


# Columns


@pytest.mark.parametrize("kind", METRICS_OF_KIND)
def test_every_metric_of_a_kind_is_a_column_of_its_history_with_the_value_of_its_events(kind: str) -> None:
    history, event = MetricHistory(kind), STEPS[kind](3)
    history.append(event)
    assert kind_of(event) == history.kind == kind
    for metric in METRICS_OF_KIND[kind]:
        if not metric.field.startswith("eval/"):
            value = history.column(metric.field)[0] * metric.factor
            assert value == pytest.approx(metric.of(event), rel=0, nan_ok=True), metric.field
        assert len(f"{metric.label} {metric.unit}".rstrip()) <= 16, f"{metric.field} does not fit its column"


def test_earlier_events_of_another_kind_are_left_out() -> None:
    history, other = MetricHistory("dpo"), MetricHistory()
    history.append(dpo_step(5))
    other.append(iteration(1))
    history.prepend(other)
    assert list(history.numbers) == [5]
    assert all(len(history.column(name)) == 1 for name in history.names)


def test_a_kind_that_only_a_newer_version_knows_has_the_columns_of_ppo() -> None:
    assert MetricHistory("grpo").names == MetricHistory().names
    assert view_of(started(run_kind="grpo"), iteration(1)).history.kind == "ppo"


# Folding


@pytest.mark.parametrize("kind", OTHERS)
def test_steps_are_folded_as_iterations_are(kind: str) -> None:
    step = STEPS[kind]
    view = view_of(other_run(kind, iterations=20), *(step(n) for n in range(1, 9)))
    assert (view.iteration, view.total, view.last, view.previous) == (8, 20, step(8), step(7))
    assert view.history.kind == kind
    assert view.seconds_left() == 12 * 2.5
    view.take(other_run(kind, resumed_at=7))
    assert (view.last, view.iteration) == (step(7), 7)


@pytest.mark.parametrize("kind", OTHERS)
def test_a_run_that_was_resumed_before_its_first_known_step_has_the_columns_of_its_kind(kind: str) -> None:
    view = view_of(other_run(kind, resumed_at=5))
    assert view.history.kind == kind
    view.take(STEPS[kind](6))
    assert list(view.history.numbers) == [6]


def test_steps_without_a_start_decide_the_kind_and_those_of_another_kind_are_left_out() -> None:
    view = view_of(dpo_step(1), iteration(2), reward_step(2), dpo_step(2))
    assert (view.history.kind, list(view.history.numbers), view.last) == ("dpo", [1, 2], dpo_step(2))


def test_the_newest_evaluation_of_each_sort_is_kept_and_each_is_marked() -> None:
    view = view_of(other_run("dpo"), dpo_evaluation(0), evaluation(0), dpo_evaluation(5), evaluation(5), human(5))
    assert view.newest_evaluations == [human(5), dpo_evaluation(5), evaluation(5)]
    assert view.held_out == [dpo_evaluation(0), dpo_evaluation(5)]
    assert [mark.kind for mark in view.marks] == ["evaluation"] * 5
    assert view.marks[-1] == Mark(5, "evaluation", "human win rate 61% (52 to 70) of 80")


def test_a_resumption_drops_the_evaluations_of_repeated_steps() -> None:
    view = view_of(other_run("dpo"), dpo_evaluation(0), dpo_evaluation(5), human(5), other_run("dpo", resumed_at=4))
    assert view.newest_evaluations == [dpo_evaluation(0)]
    kept = view_of(started(), human(3), started(resumed_at=4))
    assert kept.judged == human(3)
    assert view_of(started(), human(3), dpo_evaluation(1), started()).newest_evaluations == []


def test_a_win_rate_that_grows_label_by_label_has_one_mark_until_something_else_happens() -> None:
    saved = CheckpointSaved(iteration=6, path="checkpoints/step-000006", seconds=0.1)
    labels = [human(5, comparisons=count) for count in (1, 2, 3)]
    view = view_of(started(), *labels, saved, human(5, comparisons=4), human(6, comparisons=5))
    assert [(mark.iteration, mark.text[-4:]) for mark in view.marks] == [
        (5, "of 3"),
        (6, "0006"),
        (5, "of 4"),
        (6, "of 5"),
    ]
    assert view.judged == human(6, comparisons=5)


# Words


@pytest.mark.parametrize(
    ("reported", "words"),
    [
        (
            reward_evaluation(5),
            "iteration 5: held-out accuracy 0.710 (0.644 to 0.769) of 200 pairs, log-loss 0.561; "
            "by length alone 0.550, untrained 0.490, 4.2s",
        ),
        (
            dpo_evaluation(5),
            "iteration 5: held-out accuracy 0.710 (0.644 to 0.769) of 200 pairs, log-loss 0.561, lead 0.320, "
            "KL 0.013 nats a token; by length alone 0.550, untrained 0.490, 4.2s",
        ),
        (
            human(5),
            "iteration 5: human win rate 61% (52 to 70) of 80 comparisons by 2 people: "
            "45 for the policy, 8 ties, 27 for the reference",
        ),
        (
            evaluation(5, parts={"likes": 0.5, "length": 0.125}),
            "iteration 5: evaluation on 4 prompts: score 0.250 (likes 0.500, length 0.125), deviation 0.500, "
            "KL 0.500 nats a sequence, 0.5s",
        ),
    ],
)
def test_an_evaluation_is_described_in_one_sentence(reported: Event, words: str) -> None:
    assert sentences(reported) == [words]


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (started(prompts=1, eval_prompts=1, iterations=1), "1 prompt, 1 held out, 1 iteration"),
        (started(prompts=1, run_kind="dpo"), "1 comparison, "),
        (reward_evaluation(5, pairs=1), "of 1 pair, "),
        (human(5, comparisons=1, ties=1, labellers=1), "of 1 comparison by 1 person: 45 for the policy, 1 tie, "),
        (evaluation(5, prompts=1), "evaluation on 1 prompt: "),
    ],
)
def test_a_single_one_is_singular(event: Event, words: str) -> None:
    assert any(words in sentence for sentence in sentences(event))


def test_the_summary_shows_the_main_numbers_of_a_run_of_each_kind() -> None:
    steps = [dpo_step(n, loss=0.7 - 0.01 * n) for n in range(1, 11)]
    lines = dict(summary(view_of(other_run("dpo"), dpo_evaluation(0), *steps, dpo_evaluation(10), ended("stopped"))))
    assert lines["loss"] == "0.670 -> 0.620, first and last five iterations"
    assert lines["held out"] == "accuracy 0.490 -> 0.710 (0.644 to 0.769) of 200 pairs, by length alone 0.550"
    assert lines["KL"] == "0.013 nats a token"
    assert "score" not in lines
    lines = dict(summary(view_of(other_run("reward-model"), reward_step(1), reward_evaluation(1))))
    assert "KL" not in lines
    lines = dict(summary(view_of(started(), iteration(1), human(1))))
    assert lines["people"] == "human win rate 61% (52 to 70) of 80"
    assert lines["score"].startswith("0.100 -> 0.100 (+0.000)")


# Headless displays


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_rich_display_draws_the_metrics_and_the_newest_evaluations_of_every_kind(width: int) -> None:
    steps = [dpo_step(1), dpo_step(2, loss=0.5)]
    parts = {"[bold]x[/x]\x1b[2J": 1.0, "b": 2.0}
    shown = drawn(
        view_of(other_run("dpo"), *steps, dpo_evaluation(0), dpo_evaluation(2), evaluation(2, parts=parts)), width
    )
    assert max(cell_len(line) for line in shown.splitlines()) <= width
    loss = next(line for line in shown.splitlines() if line.startswith("loss"))
    assert loss.split() == ["loss", "0.500", "-0.112", "█▁"]
    assert "812 tok/s" in shown
    assert "◇ iteration 2: held-out accuracy 0.71 (0.64 to 0.77)" in shown
    assert "iteration 0" not in shown
    assert "score 0.250 ([bold]x[/x]␛[2J 1.000" in shown


@pytest.mark.parametrize("kind", OTHERS)
def test_the_status_line_shows_step_speed_memory_and_time_left_of_every_kind(kind: str) -> None:
    view = view_of(other_run(kind), StateChanged(state="training"), STEPS[kind](3))
    assert fitted(status_pieces(view), 200).plain == (
        f"{kind}-0001  ● training   iteration 3/12   ETA 22s   812 tok/s   1.6 GB"
    )
