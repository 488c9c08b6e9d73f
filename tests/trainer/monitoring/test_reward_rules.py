"""A reward that rises while something that is not trained on falls raises an alarm."""

from __future__ import annotations

from collections.abc import Callable

from health_helper import config_of, healthy, one, reported

from trainer.events import (
    Evaluation,
    Event,
    HumanEvaluation,
    Iteration,
    RolledBack,
)
from trainer.monitoring.history import source_parts

TRUTH = {"reward": {"sources": ["a.py:proxy", {"kind": "python", "path": "a.py:truth", "weight": 0.0}]}}


def parts(truth: Callable[[int], float], proxy: Callable[[int], float]) -> Callable[[int], dict[str, float]]:
    def at(number: int) -> dict[str, float]:
        noise = 0.02 * (-1) ** number
        return {"a.py:proxy": proxy(number) + noise, "a.py:proxy.detail": 9.0, "a.py:truth": truth(number) + noise}

    return at


def rising(number: int) -> float:
    return 0.2 + number / 100


def falling(number: int) -> float:
    return 0.8 - number / 100


def test_a_watched_source_that_falls_while_the_trained_one_rises_raises_an_alarm() -> None:
    config = config_of(**TRUTH)
    alarm = one(healthy(40, parts=parts(falling, rising)), config)
    assert (alarm.iteration, alarm.code, alarm.level) == (20, "reward_hacking", "error")
    assert alarm.evidence["a.py:truth"] < alarm.evidence["early_a.py:truth"]
    assert alarm.evidence["score"] > alarm.evidence["early_score"]
    assert reported(healthy(40, parts=parts(rising, rising)), config) == []
    assert reported(healthy(40, parts=parts(falling, falling)), config) == []
    assert reported(healthy(40, parts=parts(falling, lambda n: 0.5)), config) == []


def test_a_watched_source_must_fall_by_a_tenth_and_significantly() -> None:
    """In 40 iterations, of which the first and the last ten are compared, n / 500 falls by 0.06."""
    config = config_of(**TRUTH)
    assert reported(healthy(40, parts=parts(lambda n: 0.7 - n / 500, rising)), config) == []
    assert one(healthy(40, parts=parts(lambda n: 0.5 - n / 500, rising)), config).code == "reward_hacking"
    noise = [0.5, -0.5, 0.3, -0.4, 0.2]
    assert reported(healthy(40, parts=parts(lambda n: 0.5 - n / 100 + noise[n % 5], rising)), config) == []


def evaluated(rows: list[Iteration], held_out: Callable[[int], float]) -> list[Event]:
    """Return `rows` with an evaluation of 100 prompts after every fifth, whose scores deviate by 0.5."""
    events: list[Event] = []
    for row in rows:
        events.append(row)
        if row.iteration % 5 == 0:
            events.append(
                Evaluation(
                    iteration=row.iteration,
                    prompts=100,
                    score_mean=held_out(row.iteration),
                    score_std=0.5,
                    kl=1.0,
                    response_length=30.0,
                    truncated=0.0,
                    seconds=1.0,
                )
            )
    return events


def test_held_out_scores_that_fall_while_training_rises_raise_an_alarm() -> None:
    rows = healthy(60, score_mean=rising)
    peak = evaluated(rows, lambda n: 0.5 if n < 30 else 0.2)
    assert [(code, level) for _, code, level in reported(peak)] == [("reward_hacking", "error")]
    assert reported(peak)[0][0] == 35  # the second in a row
    assert reported(evaluated(rows, lambda n: 0.5 if n != 30 else 0.2)) == []
    assert reported(evaluated(rows, lambda n: 0.5 if n < 30 else 0.4)) == []
    back = RolledBack(iteration=30, to=20, reason="")  # and the fall at 30 with it
    at_30 = next(place for place, event in enumerate(peak) if isinstance(event, Evaluation) and event.iteration == 30)
    again = [event for event in peak[at_30 + 1 :] if event.iteration < 40]
    assert reported([*peak[: at_30 + 1], back, *again]) == []
    fallen = evaluated(healthy(60, score_mean=falling, kl=lambda n: 0.1), lambda n: 0.5 if n < 30 else 0.2)
    assert "reward_hacking" not in [code for _, code, _ in reported(fallen)]


def judged(iteration: int, comparisons: int, rate: float) -> HumanEvaluation:
    wins, margin = round(rate * comparisons), 0.1
    return HumanEvaluation(
        iteration=iteration,
        comparisons=comparisons,
        wins=wins,
        ties=0,
        losses=comparisons - wins,
        win_rate=rate,
        low=rate - margin,
        high=rate + margin,
        labellers=1,
    )


def test_people_preferring_the_reference_to_a_higher_scoring_policy_raise_an_alarm() -> None:
    rows = healthy(40, parts=lambda n: {"lexicon": rising(n) + 0.02 * (-1) ** n})
    assert one([*rows, judged(40, 30, 0.3)]).code == "reward_hacking"
    assert reported([*rows, judged(40, 30, 0.6)]) == []
    assert reported([*rows, judged(40, 19, 0.3)]) == []
    assert one([*rows, judged(40, 20, 0.3)]).code == "reward_hacking"
    assert one([*rows, judged(20, 30, 0.9), judged(40, 60, 0.65)]).code == "reward_hacking"
    assert reported([*healthy(40, parts=lambda n: {"lexicon": 0.3 + 0.02 * (-1) ** n}), judged(40, 30, 0.3)]) == []


def test_parts_of_the_sources_are_distinguished_from_their_details() -> None:
    names = ["lexicon", "a.py:f", "a.py:f.disagreement", "regex", "regex#2"]
    assert source_parts(names, 4) == ["lexicon", "a.py:f", "regex", "regex#2"]
    assert source_parts(names, 3) == []
