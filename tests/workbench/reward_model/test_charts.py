"""Reward models: what is read of their runs, and the charts and pairs that are drawn of any numbers and texts."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from charts import any_values, roles, texts
from hypothesis import given
from hypothesis import strategies as st
from reward_pane_app import REPORT, Run, evaluation, pair, some_pairs, step
from rich.cells import cell_len
from scripted_run import ended, make_run, started

from trainer.confidence import Interval, wilson_interval
from trainer.events import StateChanged
from trainer.reward_model.pair_evaluation import paired_difference
from trainer.reward_model.predictions import (
    HELD_OUT,
    Accuracy,
    Baseline,
    CalibrationBin,
    Predictions,
    sorted_predictions,
    write_predictions,
)
from workbench.reward_model.charts import accuracy_lines, calibration_lines, curve_lines, reward_histogram
from workbench.reward_model.pairs import pair_facts, pair_lines, pair_text_lines, pairs_heading, plain_text
from workbench.reward_model.pane import run_heading
from workbench.reward_model.run_reader import RunReader
from workbench.reward_model.verdict import NONE_YET, read_newest, report_of, verdict
from workbench.run.view import RunView
from workbench.text import plain

BARS = " ▁▂▃▄▅▆▇█"
shares = st.floats(0, 1) | st.sampled_from([math.nan, math.inf, -1e308, 7.0])


def course(losses: list[float], accuracies: list[float], *more: Any) -> RunView:
    made = RunView()
    made.take(started(run_kind="reward-model", iterations=100))
    for number, (loss, accuracy) in enumerate(zip(losses, accuracies, strict=False), 1):
        made.take(step(number, loss=loss, accuracy=accuracy))
    for event in more:
        made.take(event)
    return made


@given(
    ends=st.tuples(shares, shares, shares, shares),
    bins=st.lists(st.builds(CalibrationBin, shares, shares, st.integers(0, 10**7), shares, shares), max_size=10),
    values=any_values,
    others=any_values,
    width=st.integers(12, 140),
    height=st.integers(1, 16),
)
def test_any_numbers_are_drawn_within_the_size(ends, bins, values, others, width, height):
    names = "accuracy", "accuracy_low", "accuracy_high", "length_accuracy"
    odd = evaluation(3, **dict(zip(names, ends, strict=True)))
    view = course(values, others, evaluation(-4, log_loss=math.nan), evaluation(4, accuracy=-1e308), evaluation(120))
    for lines in (
        accuracy_lines(report_of(odd), 3, width, height),
        accuracy_lines(REPORT, 3, width, height),
        curve_lines(view, width, height),
        calibration_lines(bins, width, height),
        reward_histogram(values, others, width, height),
    ):
        assert len(lines) <= height
        assert all(cell_len(text) <= width for text in texts(lines))


def test_bars_and_interval_are_drawn_to_scale_from_0_to_100_percent_on_one_axis():
    event = evaluation(9, accuracy=0.75, accuracy_low=0.6, accuracy_high=0.9, untrained_accuracy=math.nan)
    axis, model, length, more = texts(accuracy_lines(report_of(event), 9, 145, 9))
    assert axis.startswith(" held-out accuracy, step 9")
    assert " 75.0%  60 to 90%" in model
    start, room = axis.index("0%"), 100
    for line, signs in (
        (model, (("┣", 0.6), ("●", 0.75), ("┤", 0.9), ("┿", 0.5))),
        (length, (("●", 0.548), ("┿", 0.5))),
    ):
        for sign, share in signs:
            assert abs(line.index(sign) - start - share * (room - 1)) <= 1, sign
        filled = line[start : line.index("●")]
        assert not set(filled) - set("━┿┣"), "a bar from 0"
    assert abs(axis.index("50%") + 1 - start - 0.5 * (room - 1)) <= 1
    assert axis.endswith("100%")
    assert len(axis) == start + room
    assert not set(length[length.index("●") + 1 :].strip()), "there is no interval of length alone"
    assert more.split("   ") == [" untrained -", "log-loss 0.657 nats", "calibration error 0.100"]
    low = texts(accuracy_lines(report_of(replace(event, accuracy=0.3, accuracy_low=0.2, accuracy_high=0.4)), 9, 145, 9))
    assert abs(low[1].index("┊") - start - 0.5 * (room - 1)) <= 1


def test_before_the_first_evaluation_the_frame_is_there_and_no_bar():
    lines, later = (texts(accuracy_lines(report, 0, 120, 9)) for report in (NONE_YET, report_of(evaluation(0))))
    assert [line[:20] for line in lines[:3]] == [line[:20] for line in later[:3]]
    assert lines[0] == later[0]
    assert not any(sign in line for line in lines for sign in "●━├")


def test_the_lead_over_length_and_the_parts_are_below_the_bars_where_all_of_a_part_fits():
    lines = texts(accuracy_lines(replace(REPORT, over_length=Interval(0.05, -0.01, 0.11)), 9, 120, 20))
    assert " over length alone +5.0 points (-1.0 to +11.0)   untrained 59.0%" in lines[3]
    assert [line.split()[0] for line in lines[4:]] == ["if", "shorter", "longer"], "all are of one source"
    assert len(texts(accuracy_lines(REPORT, 9, 120, 6))) == 4
    assert len(texts(accuracy_lines(REPORT, 9, 120, 7))) == 7


def judged(
    pairs: int, accuracy: float, length: float = 0.5, gains: list[int] | None = None
) -> tuple[RunView, Predictions]:
    """Return an evaluation of a run that has held out a tenth of its labels. gains: over length, pair by pair."""
    low, high = wilson_interval(accuracy * pairs, pairs)
    report = replace(REPORT, accuracy=Accuracy("all", pairs, accuracy, low, high), length=Baseline(length, 0.69))
    if gains:
        report = replace(report, over_length=paired_difference(np.array(gains)))
    view = RunView()
    view.take(started(run_kind="reward-model", prompts=9 * pairs, eval_prompts=pairs))
    return view, sorted_predictions([], report, 9)


def test_the_verdict_says_what_is_clear_and_else_what_is_not():
    clear, even, worse = [1] * 40 + [0] * 160, [1, -1] * 100, [-1] * 40 + [0] * 160
    right = "Right on 70% of 200 held-out pairs (63 to 76%)"
    assert verdict(*judged(200, 0.7, gains=clear)) == f"✓ {right}, better than length alone."
    assert verdict(*judged(200, 0.7, gains=worse)) == f"⚠ {right}, worse than length alone."
    assert verdict(*judged(200, 0.7, gains=even)).startswith(f"⚠ {right}: too few to tell it from length alone. Label ")
    assert verdict(*judged(200, 0.5)) == "⚠ Right on 50% of 200 held-out pairs (43 to 57%), no better than guessing."
    assert verdict(*judged(200, 0.3)) == "⚠ Right on 30% of 200 held-out pairs (24 to 37%), worse than guessing."
    assert verdict(*judged(4, 0.75)).startswith("⚠ 4 held-out pairs: too few to tell. Label ")
    assert verdict(*judged(200, 0.7, length=0.55)) == f"✓ {right}, better than length alone.", "without pairs"
    assert verdict(*judged(0, math.nan)) == verdict(RunView(), None)
    before = RunView()
    before.take(started(run_kind="reward-model", eval_prompts=9))
    assert verdict(before, None) == "No verdict before the first evaluation."
    before.take(ended("done", 9))
    assert verdict(before, None) == verdict(RunView(), None)


def test_home_and_the_question_before_its_use_judge_a_model_by_its_pairs_as_its_pane_does(tmp_path: Path) -> None:
    view, predictions = judged(200, 0.7, gains=[1, -1] * 100)
    sure = replace(evaluation(9), accuracy=0.7, accuracy_low=0.63, accuracy_high=0.76, pairs=200, length_accuracy=0.5)
    view.held_out = [sure]
    assert read_newest(tmp_path) is None
    write_predictions(tmp_path / HELD_OUT, predictions)
    assert verdict(view, read_newest(tmp_path)) == verdict(view, predictions) != verdict(view, None)


def asked(words: str) -> int:
    return int(words.split("Label ")[1].split()[0].replace(",", ""))


@pytest.mark.parametrize("accuracy", [0.625, 0.65, 0.7])
def test_as_many_labels_as_the_verdict_asks_for_tell_the_same_accuracy_from_guessing(accuracy: float):
    enough = 8 + asked(verdict(*judged(8, accuracy))) // 10  # a tenth is held out
    assert wilson_interval(accuracy * enough, enough)[0] > 0.5
    assert wilson_interval(accuracy * (enough - 2), enough - 2)[0] < 0.5, "and no more than that"


def test_as_many_labels_as_the_verdict_asks_for_tell_the_same_lead_from_length():
    gains = [1] * 12 + [-1] * 5 + [0] * 43  # 12 points ahead
    times = (60 + asked(verdict(*judged(60, 0.7, gains=gains))) / 10) / 60
    assert 1 < times < 2
    for by, is_clear in ((times + 0.05, True), (times - 0.1, False)):
        more = [gain for gain in (1, -1, 0) for _ in range(round(gains.count(gain) * by))]
        assert (paired_difference(np.array(more)).low > 0) is is_clear


def test_a_lead_by_luck_or_of_nothing_asks_for_a_number_within_reason():
    most, least = asked(verdict(*judged(4, 0.5))), asked(verdict(*judged(4, 0.75)))
    assert (most, least) == (930, 210), "97 and 25 pairs, as for leads of 10 and 20 points"


def test_a_falling_loss_falls_and_held_out_pairs_are_at_their_step():
    made = course([1.0] * 10 + [0.2] * 90, [0.5] * 100, evaluation(0, log_loss=1.0), evaluation(100, log_loss=0.2))
    made.take(ended("done", 100))
    title, *lines = texts(curve_lines(made, 61, 12))
    assert "loss 0.2" in title
    assert "accuracy 50%" in title
    assert lines[0].startswith("   1.000┤")
    assert [line[:8].strip() for line in lines if line[8:9] == "┤"] == [
        "1.000",
        "loss",
        "0.200",
        "69%",
        "accuracy",
        "50%",
    ]
    first, last = lines[0][9:], lines[4][9:]
    assert (first[0], last[-1]) == ("◆", "◆")
    assert lines[4].startswith("   0.200┤")
    assert first.strip("◆ ")
    assert not first[30:].strip(), "high at the start alone"
    assert lines[-1].split()[-1] == "100"


def test_the_accuracy_on_held_out_pairs_stands_on_its_interval():
    lone = evaluation(100, accuracy=0.6, accuracy_low=0.4, accuracy_high=0.8)
    lines = texts(curve_lines(course([0.5] * 100, [0.6] * 100, lone), 61, 24))
    column = [line[-1:] for line in lines[13:-1]]
    assert column[0] == column[-1] == "│", "the ends of the scale are those of the interval"
    assert column.index("◆") == pytest.approx(len(column) / 2, abs=1)
    assert not set(column) - {"│", "◆"}
    unknown = evaluation(100, accuracy=0.6, accuracy_low=math.nan, accuracy_high=math.nan)
    lines = texts(curve_lines(course([0.5] * 100, [0.6] * 100, unknown), 61, 24))
    assert "│" not in "".join(line[9:] for line in lines)


def test_a_run_under_way_has_room_for_the_steps_to_come_and_one_that_ended_early_has_none():
    going = course([0.5] * 25, [0.5] * 25)
    width = max(len(line.rstrip()) for line in texts(curve_lines(going, 109, 10))[1:-1])
    assert abs(width - 9 - 25) <= 2
    assert texts(curve_lines(going, 109, 10))[-1].split()[-1] == "100"
    going.take(ended("done", 25))
    assert texts(curve_lines(going, 109, 10))[-1].split()[-1] == "25"
    assert "no steps yet" in texts(curve_lines(RunView(), 80, 5))[1]


def test_a_bar_ends_at_the_accuracy_and_the_mark_is_at_the_predicted_one():
    bins = [CalibrationBin(0.5, 0.55, 40, 0.53, 1.0), CalibrationBin(0.95, 1.0, 7, 0.99, 0.5)]
    lines = texts(calibration_lines(bins, 67, 13))
    assert "█ right  ◂ predicted" in lines[0], "a legend"
    plot = [line[7:].ljust(60) for line in lines[1:11]]
    assert sum(row[0] != " " for row in plot) == 10
    assert sum(row[54] != " " for row in plot) == 5
    assert not any(row[30] != " " for row in plot), "an empty bin has no bar"
    assert [place for place, row in enumerate(plot) if row[5] == "◂"] == [4]
    assert [place for place, row in enumerate(plot) if row[59] == "◂"] == [0]
    assert lines[11].split() == ["pairs", "40", "7"]
    assert "no decided held-out pairs yet" in texts(calibration_lines([], 60, 5))[1]


def test_chosen_and_rejected_are_counted_on_one_axis():
    chosen, rejected = [1.0] * 30 + [0.0] * 10, [-1.0] * 40 + [math.nan]
    lines = reward_histogram(chosen, rejected, 80, 4)
    title, above, below, axis = texts(lines)
    assert "chosen 0.75  rejected -1.00" in title
    assert "× 1 not finite" in title
    for role, name, bars in (("better", "chosen 0.75", above), ("worse", "rejected -1.00", below)):
        assert roles(lines, role) == f"  {name}{bars[10:]}", "a legend in the colours of the bars"
    heights = [[BARS.index(cell) for cell in line[10:]] for line in (above, below)]
    assert above.split()[0] == "chosen"
    assert below.split()[0] == "rejected"
    assert not any(heights[0][: len(heights[0]) // 3])
    assert heights[0][-1] == round((8 - 2) * 30 / 40) + 1
    assert heights[1][0] == 7, "most of all"
    assert not any(heights[1][len(heights[1]) // 2 :])
    assert axis.split()[0] == "-1.00"
    assert axis.split()[-1] == "1.00"


# Pairs

HOSTILE = "a\x1b[31m\r\n[bold]b[/x] \u202e\x9b 你好 \ud800"


@given(text=st.text(max_size=400) | st.just(HOSTILE), width=st.integers(1, 130))
def test_any_text_is_shown_whole_within_the_width_and_obeyed_nowhere(text, width):
    shown = pair(1, -1.0, prompt=text, chosen=text, rejected=[{"role": "assistant", "content": text}])
    listed = pair_lines(shown, 3, width, marked=True)
    whole = [plain(line) for line in pair_text_lines(shown, width)]
    assert len(listed) == 5
    for line in (*listed[1:], *whole):
        assert not {unicodedata.category(character) for character in line} & {"Cc", "Cs", "Zl", "Zp"}
        assert "\u202e" not in line
    if width >= 30:
        assert all(cell_len(line) <= width for line in (*listed, *whole))


def test_both_texts_are_side_by_side_where_there_is_room():
    shown = pair(1, -1.0, chosen="one\n\n[b]two[/b]", rejected="three")
    wide = [plain(line).rstrip() for line in pair_text_lines(shown, 100)]
    heading = next(line for line in wide if " │ " in line)
    assert heading.startswith("chosen   reward -0.20   11 tokens")
    assert heading.split(" │ ")[1] == "rejected   reward +0.80   8 tokens"
    assert [line.split(" │")[0].rstrip() for line in wide[-3:]] == ["one", "", "[b]two[/b]"]
    assert wide[-3].endswith(" │ three")
    narrow = [plain(line) for line in pair_text_lines(shown, 60)]
    assert narrow.index("one") < narrow.index("three")


def test_a_listed_text_has_no_marks_for_line_ends_and_an_open_one_no_blank_lines_before_it():
    shown = pair(1, -1.0, prompt="\n\nHuman: Why?\n\nAssistant:", chosen="One.\r\n\n Two.")
    _, prompt, chosen, *_ = pair_lines(shown, 1, 80)
    assert prompt.split(maxsplit=1)[1] == "Human: Why? Assistant:"
    assert chosen.split(maxsplit=2)[2] == "One. Two."
    assert prompt.index("Human") == chosen.index("One."), "texts are aligned"
    whole = [plain(line) for line in pair_text_lines(shown, 80)]
    assert whole[whole.index("prompt") + 1] == "Human: Why?"


def test_neither_side_of_a_tie_is_called_chosen():
    lines = pair_lines(pair(1, 0.5, is_tie=True), 1, 100)
    assert [line.split()[0] for line in lines[2:4]] == ["one", "other"]
    whole = "\n".join(map(plain, pair_text_lines(pair(1, 0.5, is_tie=True), 100)))
    assert "rejected" not in whole.replace("rejected -", "").replace("rejected +", "")


@pytest.fixture
def held_run() -> Iterator[Run]:
    """Return a run that some process trains, here this one."""
    run = Run("live", 3)
    with run.folder.lock():
        yield run


def nothing() -> None:
    pass


async def read(reader: RunReader) -> RunReader:
    """Read what there is now."""
    await reader.read_runs()
    await reader.read_run()
    return reader


# The listing


async def test_reward_models_are_found_among_other_runs_newest_first(held_run: Run) -> None:
    Run("old", 1), Run("new", 4), Run("middle", 2)
    make_run("ppo")
    Path("runs", "no-config").mkdir()
    Path("runs", "broken").mkdir()
    Path("runs", "broken", "config.toml").write_text("kind = ")
    beginning = Path("runs", "beginning")
    beginning.mkdir()
    (beginning / "config.toml").write_text('kind = "reward-model"\n[model]\npath = "starter"\n')
    reader = await read(RunReader(Path("runs"), nothing))
    assert [(run.name, run.state) for run in reader.runs] == [
        ("new", "interrupted"),
        ("live", "training"),
        ("middle", "interrupted"),
        ("old", "interrupted"),
        ("beginning", "interrupted"),
    ]
    assert (reader.problem, reader.place) == ("", 0)
    assert (await read(RunReader(Path("nowhere"), nothing))).runs == []
    reader = await read(RunReader(held_run.folder.events, nothing))
    assert reader.runs == []
    assert "cannot list runs" in reader.problem


# Following a run


async def test_the_end_of_a_process_is_seen_without_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workbench.run.run_on_disk._LOOK_AGAIN", 0.0)
    run = Run("killed")
    reader = RunReader(Path("runs"), nothing)
    for held, heading in ((True, "● training  "), (False, "! interrupted  ")):
        if held:
            with run.folder.lock():
                run.report(StateChanged(state="training"))
                await read(reader)
        else:
            await reader.read_run()
        assert heading in run_heading(reader, 120).plain


# Numbers and words


def test_a_report_and_an_event_give_the_same_rows() -> None:
    kept, reported = (texts(accuracy_lines(one, 75, 90, 20)) for one in (REPORT, report_of(evaluation(75))))
    assert reported == kept[: len(reported)]
    rows = [line.split("%")[0].split() for line in reported[1:4]]
    assert rows == [["reward", "model", "63.0"], ["length", "alone", "54.8"], ["untrained", "59.0"]]


def test_a_pair_is_described_in_words_as_far_as_there_is_room() -> None:
    for lead, words in ((1.5, "✓ right by 1.50"), (-0.25, "✗ wrong by 0.25"), (0.0, "= even")):
        assert pair_facts(pair(1, lead), 80).startswith(f"{words}   11 and 8 tokens")
    normalised = pair(1, -0.36, chosen_reward=0.58, rejected_reward=0.65)  # a lead in logits beside them would mislead
    assert pair_facts(normalised, 80).startswith("✗ wrong by 0.07   ")
    assert [line.split()[1] for line in pair_lines(normalised, 1, 80)[2:4]] == ["+0.58", "+0.65"]
    assert pair_facts(pair(1, -2.0, is_tie=True), 80).startswith("~ tie, rewards 2.00 apart   ")
    assert pair_facts(pair(1, -2.0, strength=3, source="a\x1b"), 200) == (
        "✗ wrong by 2.00   11 and 8 tokens   labelled strongly better   a␛"
    )
    assert pair_facts(pair(1, -2.0), 40) == "✗ wrong by 2.00   11 and 8 tokens"
    assert pair_facts(pair(1), 3) == "✓ …"
    assert plain_text([{"role": "assistant", "content": "x"}]) == "x"
    assert plain_text([{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]) == (
        "user: x\nassistant: y"
    )


async def test_the_pairs_are_counted_in_the_heading_of_their_list() -> None:
    run = Run("a")
    run.keep([pair(1, -1.0), pair(2, 1.0), pair(3, -1.0), pair(4, 1.0, is_tie=True), *some_pairs(1000)])
    predictions = (await read(RunReader(Path("runs"), nothing))).predictions
    assert predictions is not None
    wrong = 2 + sum(one.lead < 0 for one in some_pairs(1000))
    assert pairs_heading(predictions, 2) == (
        f"held-out pairs, most wrong first: ✗ {wrong} of 1,003   ~ 1 tie   first 1,000 listed   ◆ 2 marked"
    )
