"""Each rule of the convergence check decides when its numbers say so, once, and never on a healthy run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from scripted_run import evaluation, iteration, started

from trainer.config import Config, parse_overrides, validate
from trainer.events import Decision, Event, RolledBack, SettingChanged
from trainer.monitoring import Monitor

ALL = ("target", "plateau", "collapse", "degradation", "kl")


def config(*overrides: str) -> Config:
    return validate(parse_overrides(list(overrides)))


class Run:
    """Events of a run and the decisions about them, which are fed back as a run does it."""

    def __init__(self, *overrides: str) -> None:
        self.config = config("convergence.window=4", *overrides)
        self.monitor = Monitor(lambda: self.config)
        self.events: list[Event] = []
        self.decisions: list[Decision] = []
        self.number = 0

    def report(self, event: Event) -> None:
        self.events.append(event)
        for alert in self.monitor.take(event):
            if isinstance(alert, Decision):
                self.decisions.append(alert)
            self.report(alert)

    def go(self, **numbers: Sequence[float]) -> Run:
        """Play iterations with series for some metrics; the others stay at those of a healthy run."""
        for row in zip(*numbers.values(), strict=True):
            self.number += 1
            healthy = {"score_mean": 0.05 * self.number, "kl": 0.1, "entropy": 2.0}
            self.report(iteration(self.number, **healthy | dict(zip(numbers, row, strict=True))))
        return self

    @property
    def reported(self) -> list[tuple[int, str, str]]:
        return [(decision.iteration, decision.rule, decision.action) for decision in self.decisions]


# PPO on the starter model by the quickstart's settings, seed 0: what a healthy run looks like.
KL = (
    "0 .66 1.11 2.44 1.35 2.16 3.69 3.57 3.25 3.78 4.85 5.57 8.04 7.24 6.65 7.42 7.4 7.88 8.58 9.38 9.09 6.85 8.42 "
    "6.95 5.35 5.44 7.07 5.69 6.86 6.52 6.36 5.47 5.83 7.39 10.09 8.26 7.5 8.21 9.02 7.43"
)
SCORE = (
    ".1 -.1 .14 .31 .06 .35 -.03 -.01 -.02 .31 .26 .16 .41 .45 .51 -.03 .33 .43 .47 .38 .35 .4 .64 .35 .34 .29 .47 "
    ".44 .54 .6 .69 .4 .35 .33 .59 .53 .69 .59 .61 .67"
)


def test_nothing_is_decided_about_a_run_that_was_healthy() -> None:
    run = Run("convergence.window=10")
    kl, scores = (list(map(float, series.split())) for series in (KL, SCORE))
    run.go(kl=kl, score_mean=scores, score_std=[0.4] * 40, entropy=[3.5 - 0.02 * n for n in range(40)])
    assert run.reported == []


WINDOWS = [  # settings; a series, whose last value decides, and its deviation; the decision, and its evidence
    (
        "convergence.on_target=stop convergence.target_score=0.5",
        ("score_mean", [0.9, 0.1, 0.1, 0.1, 0.4, 0.6, 0.8, 0.6], 0.4),
        (8, "target", "stop"),
        {"score": 0.6, "target": 0.5},
    ),
    (  # the window of 0.5 is not whole before the last
        "convergence.on_plateau=stop convergence.plateau=0.1",
        ("score_mean", [0.1, 0.2, 0.3, 0.4, 0.5, 0.5, 0.5, 0.5, 0.52, 0.54, 0.54, 0.49], 0.25),
        (12, "plateau", "stop"),
        {"score": 0.5225, "score_before": 0.5, "score_std": 0.25},
    ),
    (
        "convergence.on_plateau=continue",
        ("score_mean", [1.0] * 8, 0.0),
        (8, "plateau", "continue"),
        {"score": 1.0, "score_before": 1.0, "score_std": 0.0},
    ),
    (
        "",
        ("entropy", [3.0, 1.0, 0.6, 0.6, 0.61, 0.6, 0.6, 0.5], 0.4),
        (8, "collapse", "continue"),
        {"entropy": 0.5775, "entropy_start": 3.0},
    ),
    (  # 0.425 is less than 0.2 below the best window, 0.6
        "convergence.degradation=1.0",
        ("score_mean", [0.5, 0.6, 0.7, 0.6, 0.4, 0.4, 0.3, 0.3], 0.2),
        (8, "degradation", "continue"),
        {"score": 0.35, "score_best": 0.6, "score_std": 0.2},
    ),
    (
        "",
        ("kl", [1.0] * 4 + [2.0, 6.0, 12.0, 14.0], 0.4),
        (8, "kl", "continue"),
        {"kl": 8.5, "kl_before": 1.0},
    ),
]


@pytest.mark.parametrize(("settings", "series", "reported", "evidence"), WINDOWS)
def test_a_rule_decides_when_its_window_says_so_and_not_before(
    settings: str, series: tuple[str, list[float], float], reported: tuple[int, str, str], evidence: dict[str, float]
) -> None:
    run, (name, values, std) = Run(*settings.split()), series
    run.go(**{name: values[:-1], "score_std": [std] * (len(values) - 1)})
    assert run.reported == []
    run.go(**{name: values[-1:], "score_std": [std]})
    assert run.reported == [reported]
    (decision,) = run.decisions
    assert (decision.code, decision.evidence) == (f"convergence_{decision.rule}", pytest.approx(evidence))
    if decision.rule == "target":
        assert decision.message == (
            "the mean score is 0.6 and has reached convergence.target_score = 0.5: the run stops; to continue, "
            "--resume it with convergence.on_target = 'off'"
        )


def test_where_there_are_evaluations_the_target_is_reached_by_one_of_them() -> None:
    run = Run("convergence.on_target=stop", "convergence.target_score=0.5")
    run.report(evaluation(0, score_mean=0.1))
    run.go(score_mean=[0.9] * 6)
    run.report(evaluation(6, score_mean=0.49))
    assert run.reported == []
    run.report(RolledBack(iteration=6, to=2, reason=""))
    run.go(score_mean=[0.9] * 6)
    assert run.reported == [], "no score of training stands in for those of evaluations"
    run.report(evaluation(12, score_mean=0.5))
    assert run.reported == [(12, "target", "stop")]


@pytest.mark.parametrize("stds", [(0.4, 0.0), (0.0, 0.4)])
def test_a_small_fall_after_equal_scores_is_not_a_degradation(stds: tuple[float, float]) -> None:
    run = Run().go(score_mean=[1.0] * 4 + [0.9] * 4, score_std=[stds[0]] * 4 + [stds[1]] * 4)
    assert run.reported == []


def test_a_fall_on_held_out_prompts_counts_where_their_intervals_are_apart() -> None:
    run = Run()
    run.report(evaluation(0, score_mean=0.6, score_std=0.2, score_low=0.5, score_high=0.7))
    run.report(evaluation(1, score_mean=0.3, score_std=0.2, score_low=0.1, score_high=0.5))
    assert run.reported == []
    run.report(evaluation(3, score_mean=0.3, score_std=0.2, score_low=0.2, score_high=0.4))
    assert run.reported == [(3, "degradation", "continue")]


@pytest.mark.parametrize(
    ("settings", "limit"),
    [
        (["convergence.kl_limit=5"], 5.0),
        (["ppo.kl_controller=adaptive", "ppo.kl_target=3"], 9.0),
        (["ppo.kl_controller=adaptive", "convergence.kl_limit=5"], 5.0),
    ],
    ids=["its own", "three targets", "its own before the target's"],
)
def test_a_kl_above_its_limit_over_a_window_causes_a_decision(settings: list[str], limit: float) -> None:
    run = Run("convergence.on_kl=stop", *settings).go(kl=[limit - 1] * 4 + [limit + 1, limit, limit])
    assert run.reported == [], "not above it on average"
    run.go(kl=[limit])
    assert run.reported == [(8, "kl", "stop")]
    assert run.decisions[0].evidence == {"kl": limit + 0.25, "kl_limit": limit}
    assert run.decisions[0].level == "error"


def test_without_a_limit_a_kl_may_be_large_but_not_run_away() -> None:
    assert Run().go(kl=[20.0] * 4 + [60.0] * 4 + [100.0] * 4).reported == []
    assert Run().go(kl=[0.01] * 4 + [1.0, 2.0, 4.0, 5.0]).reported == [], "under what a controller would aim at"
    assert Run().go(kl=[1.0] * 4 + [12.0, 12.0, 6.0, 6.0]).reported == [], "it falls again"


def test_a_rule_decides_once_until_it_no_longer_holds() -> None:
    run = Run("convergence.kl_limit=5").go(kl=[9.0] * 8)
    assert run.reported == [(4, "kl", "continue")]
    run.go(kl=[1.0] * 4)
    run.go(kl=[9.0] * 8)
    assert run.reported == [(4, "kl", "continue"), (15, "kl", "continue")]


def test_a_rule_that_is_off_decides_nothing() -> None:
    off = [f"convergence.on_{rule}=off" for rule in ALL]
    run = Run(*off, "convergence.kl_limit=1")
    run.go(kl=[9.0] * 12, score_mean=[1.0] * 8 + [-1.0] * 4, entropy=[3.0] + [0.1] * 11)
    assert run.reported == []


def test_while_the_critic_warms_up_neither_score_nor_kl_is_checked() -> None:
    run = Run("convergence.on_plateau=stop", "convergence.kl_limit=1", "ppo.critic_warmup=6")
    run.go(score_mean=[0.3] * 9, kl=[9.0] * 9)
    assert run.reported == []
    run.go(score_mean=[0.3], kl=[9.0])
    assert run.reported == [(10, "kl", "continue")]
    run.go(score_mean=[0.3] * 4, kl=[9.0] * 4)
    assert run.reported == [(10, "kl", "continue"), (14, "plateau", "stop")]


def test_scores_of_another_reward_are_not_compared() -> None:
    run = Run("convergence.on_plateau=stop").go(score_mean=[5.0, 6.0, 7.0, 8.0])
    run.report(SettingChanged(iteration=5, key="reward.sources", old=[], value=[]))
    run.go(score_mean=[0.1, 0.2, 0.3, 0.4, 0.6, 0.7, 0.8])
    assert run.reported == []


def test_after_a_rollback_a_rule_waits_for_a_whole_new_window_and_may_decide_again() -> None:
    run = Run("convergence.kl_limit=5", "convergence.on_kl=rollback", "convergence.max_rollbacks=1")
    run.go(kl=[9.0] * 5)
    assert run.reported == [(4, "kl", "rollback")]
    run.report(RolledBack(iteration=5, to=1, reason="by hand"))  # of another iteration: not by the rule
    run.go(kl=[9.0] * 3)
    assert len(run.reported) == 1
    run.go(kl=[9.0])
    assert run.reported[1:] == [(9, "kl", "rollback")]


def test_a_rule_that_has_rolled_back_often_enough_stops() -> None:
    run = Run("convergence.kl_limit=5", "convergence.on_kl=rollback", "convergence.max_rollbacks=2")
    for end in (4, 8):
        run.go(kl=[9.0] * 4)
        assert run.reported[-1] == (end, "kl", "rollback")
        assert run.monitor.due(end) == run.decisions[-1]
        run.report(RolledBack(iteration=end, to=1, reason=run.decisions[-1].message))
        assert run.monitor.due(end) is None, "it is done"
    run.go(kl=[9.0] * 4)
    assert run.reported[-1] == (12, "kl", "stop")
    assert run.decisions[-1].message.endswith("the run stops after convergence.max_rollbacks = 2 rollbacks")


def test_due_actions_are_those_of_the_iteration_alone_and_stopping_comes_first() -> None:
    run = Run("convergence.kl_limit=5", "convergence.on_kl=rollback", "convergence.on_collapse=stop")
    run.go(kl=[9.0] * 4, entropy=[3.0, 0.1, 0.1, 0.1])
    (rollback,) = run.decisions
    assert (run.monitor.due(3), run.monitor.due(4), run.monitor.due(5)) == (None, rollback, None)
    run = Run("convergence.kl_limit=5", "convergence.on_kl=rollback", "convergence.on_collapse=stop")
    run.go(kl=[9.0, 1.0, 1.0, 1.0, 16.0], entropy=[3.0, 0.1, 0.1, 0.1, 0.1])
    assert run.reported == [(5, "collapse", "stop")]
    run = Run("convergence.kl_limit=5", "convergence.on_kl=rollback", "convergence.on_collapse=stop")
    run.go(kl=[9.0, 1.0, 1.0, 1.0, 18.0], entropy=[3.0, 0.1, 0.1, 0.1, 0.1])
    assert run.reported == [(5, "collapse", "stop"), (5, "kl", "rollback")]
    assert run.monitor.due(5) == run.decisions[0]
    reported = Run("convergence.kl_limit=5").go(kl=[9.0] * 4)
    assert (reported.reported, reported.monitor.due(4)) == ([(4, "kl", "continue")], None)


def test_a_check_fed_with_a_journal_has_the_state_of_the_one_that_wrote_it() -> None:
    settings = ["convergence.kl_limit=5", "convergence.on_kl=rollback", "convergence.on_plateau=continue"]
    run = Run(*settings).go(kl=[9.0] * 4)
    run.report(RolledBack(iteration=4, to=1, reason=""))
    run.go(kl=[1.0] * 5, score_mean=[0.5] * 5).go(kl=[9.0] * 3, score_mean=[0.5] * 3)
    resumed = Run(*settings)
    for event in run.events:
        resumed.monitor.take(event)
    resumed.number = run.number
    assert [resumed.monitor.due(number) for number in range(14)] == [run.monitor.due(number) for number in range(14)]
    before = len(run.reported)
    assert before >= 3
    for again in (run, resumed):
        again.go(kl=[9.0] * 6, score_mean=[0.5, 0.5, 0.9, 0.9, 0.1, 0.1])
    assert run.reported[before:] == resumed.reported


def test_a_resumed_run_counts_an_iteration_that_it_repeats_once() -> None:
    run = Run("convergence.kl_limit=5").go(kl=[1.0] * 5 + [8.0] * 2)
    run.report(started(resumed_at=5))
    run.number = 5
    assert run.go(kl=[8.0] * 2).reported == [], "the mean of 1, 1, 8 and 8"
    assert run.go(kl=[8.0]).reported == [(8, "kl", "continue")]


def test_a_rule_whose_action_changed_at_a_resume_decides_again() -> None:
    run = Run("convergence.kl_limit=5").go(kl=[9.0] * 6)
    resumed = Run("convergence.kl_limit=5", "convergence.on_kl=stop")
    for event in run.events:
        resumed.monitor.take(event)
    resumed.number = run.number
    assert resumed.go(kl=[9.0] * 2).reported == [(7, "kl", "stop")]


def test_every_rule_names_its_setting_and_says_what_is_done() -> None:
    run = Run(*(f"convergence.on_{rule}=rollback" for rule in ALL), "convergence.target_score=-9")
    run.go(score_mean=[1.0] * 8 + [-1.0] * 4, kl=[1.0] * 8 + [90.0, 91.0, 92.0, 93.0], entropy=[3.0] + [0.1] * 11)
    messages: dict[str, Any] = {decision.rule: decision.message for decision in run.decisions}
    assert set(messages) == set(ALL)
    for rule, message in messages.items():
        assert message.endswith(f": the run is rolled back (convergence.on_{rule})")
        assert "\n" not in message
