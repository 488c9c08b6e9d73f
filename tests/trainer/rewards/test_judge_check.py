"""A judge held against labels: agreement and bias by hand, and the disputed pairs in the Label pane."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from judge_labels import choose, grade, made
from judge_server import JudgeServer, write_rubric

from trainer.confidence import wilson_interval
from trainer.config.reward_sources import JudgeSource
from trainer.errors import UsageError
from trainer.preferences.queues import CHECKED, disputed_keys
from trainer.preferences.records import Judgement, Preference
from trainer.preferences.store import PreferenceStore
from trainer.rewards.judge_check import JudgeReport, check_judge_against


@pytest.fixture
def server() -> Iterator[JudgeServer]:
    with JudgeServer() as found:
        yield found


def share(count: float, total: int) -> Any:
    return pytest.approx((count / total, *wilson_interval(count, total)))


def checked(server: JudgeServer, store: Path, most: int = 100, **changes: Any) -> JudgeReport:
    source = JudgeSource.model_validate(server.source(write_rubric(store.parent), output_price=1e6, **changes))
    return check_judge_against(source, store, most=most)


def test_agreement_and_bias_of_a_judge_that_compares(server: JudgeServer, tmp_path: Path) -> None:
    server.answer = choose
    store = made(tmp_path)
    report = checked(server, store, mode="pairwise")
    assert (report.pairs, report.no_answer, report.ties) == (6, 1, 2)
    assert report.agreement == share(2 + 2 * 0.5, 5)  # the two good ones; fine, and what the side decides, are ties
    assert report.left == share(3 + 2, 8)  # each decided pair gives one left and one right, the last one two left
    assert report.swayed == share(1, 5)
    assert report.longer == share(2, 3)  # "good and long" over "bad", "good" not over "bad and long", "good" over "bad"
    assert report.people_longer == share(1, 3)
    assert (report.tokens, report.cost) == (12 * 120, 12 * 20)
    with PreferenceStore(store) as opened:
        (key,) = disputed_keys(opened)
        assert opened.comparison(key).prompt == "Question 2?"
        asked = len(server.requests)
        assert checked(server, store, mode="pairwise") == report
        assert len(server.requests) == asked, "what it said is kept beside the store"
        newer = Judgement.chosen("a", labeller="bob", time=4e9)
        opened.add_many([Preference(comparison=opened.comparison(key), judgement=newer)], source="test")
        assert disputed_keys(opened) == [], "a newer label settles it"


def test_agreement_and_bias_of_a_judge_that_grades(server: JudgeServer, tmp_path: Path) -> None:
    server.answer = grade
    store = made(tmp_path)
    report = checked(server, store)
    assert (report.pairs, report.no_answer, report.ties) == (6, 1, 2)
    assert (report.agreement, report.longer) == (share(3, 5), share(2, 3))
    assert math.isnan(report.left.value)
    assert math.isnan(report.swayed.value)
    assert len(report.disputed) == 1
    assert checked(server, store, most=4).pairs == 4


@pytest.mark.parametrize("content", ["", "[]", '{"time": "x"}', '{"time": 1, "disputed": 3}', '{"judge-check": 9}'])
def test_a_file_of_disputed_pairs_that_is_damaged_disputes_none(content: str, tmp_path: Path) -> None:
    path = made(tmp_path)
    path.with_name(CHECKED).write_text(content)
    with PreferenceStore(path) as store:
        assert disputed_keys(store) == []


def test_a_store_without_decided_pairs_says_so(server: JudgeServer, tmp_path: Path) -> None:
    PreferenceStore(tmp_path / "preferences.db").close()
    with pytest.raises(UsageError, match=r"no pair in .* has a better completion"):
        checked(server, tmp_path / "preferences.db")
