"""The timeline of what happened to a run."""

from __future__ import annotations

import pytest
from charts import roles, texts
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from styles_helper import styles_path
from textual.app import App, ComposeResult
from themed_app import ThemedApp

from workbench.run.view import Mark
from workbench.training.timeline import ERROR, SIGNS, Timeline, checkpoints_text, lines_wanted, timeline

MARKS = [Mark(number, "evaluation", f"score {number}") for number in range(1, 31)]


class Bench(ThemedApp[None]):
    CSS_PATH = styles_path("training.tcss")

    def compose(self) -> ComposeResult:
        yield Timeline()


def shown(app: App[None]) -> list[str]:
    widget = app.query_one(Timeline)
    return [widget.render_line(y).text.rstrip() for y in range(widget.size.height)]


def test_errors_and_warnings_come_first_and_the_newest_of_a_kind_on_top():
    marks = [
        Mark(1, "alarm", "old error", "error"),
        Mark(2, "alert", "warning", "warning"),
        Mark(3, "alarm", "error", "error"),
        Mark(4, "setting", "setting"),
        Mark(5, "alert", "note", "info"),
    ]
    lines = texts(timeline(marks, 50, 6))
    assert lines[0].startswith(" events · 5 ─")
    assert lines[1:] == [" ✖ 3 error", " ✖ 1 old error", " ⚠ 2 warning", " ⚠ 5 note", " → 4 setting"]
    few = texts(timeline(marks, 50, 3))
    assert few[0].startswith(" events · 2 of 5")
    assert few[1:] == lines[1:3], "what is severe is not pushed out by what is new"
    assert texts(timeline(marks, 50, 3, top=1))[1:] == lines[2:4]


def test_checkpoints_are_folded_into_the_heading():
    assert checkpoints_text([]) == ""
    assert checkpoints_text([Mark(12, "checkpoint", "step-12")]) == "checkpoint 12"
    assert checkpoints_text([Mark(number, "checkpoint", "x") for number in range(1, 13)]) == (
        "checkpoints 1 to 12, newest 12"
    )
    rolled_back = [Mark(number, "checkpoint", "x") for number in (10, 20, 15)]
    assert checkpoints_text(rolled_back) == "checkpoints 10 to 20, newest 15"
    both = [*rolled_back, Mark(16, "setting", "kl_coef 0.05 -> 0.1")]
    assert texts(timeline(both, 70, 5))[0].startswith(" events · 1 · checkpoints 10 to 20, newest 15 ─")
    assert texts(timeline(both, 40, 5))[0].startswith(" 1 · checkpoints 10 to 20 ─"), "shorter, not cut"
    assert len(timeline(both, 70, 5)) == lines_wanted(both, 70) == 2
    assert len(timeline(rolled_back, 70, 5)) == lines_wanted(rolled_back, 70) == 1


@given(
    marks=st.lists(st.sampled_from(["checkpoint", "setting", "evaluation"]), max_size=40),
    width=st.integers(20, 220),
    height=st.integers(1, 20),
)
def test_events_that_do_not_fit_below_each_other_are_in_columns(marks, width, height):
    lines = texts(timeline([Mark(n, kind, f"<{n}>") for n, kind in enumerate(marks)], width, height))
    assert len(lines) <= height
    assert all(cell_len(line) <= width for line in lines)
    wanted = lines_wanted([Mark(n, kind, "") for n, kind in enumerate(marks)], width)
    assert len(lines) >= min(wanted, height)
    shown, others = "".join(lines[1:]).count("<"), sum(kind != "checkpoint" for kind in marks)
    assert shown == min(others, (height - 1) * max(width // 66, 1))


def test_every_kind_of_mark_has_a_sign_of_its_own_one_column_wide():
    assert len({*SIGNS.values(), ERROR}) == len(SIGNS) + 1
    assert all(cell_len(sign) == 1 for sign in SIGNS.values())


@pytest.mark.parametrize("kind", ["alert", "alarm"])
def test_an_error_is_drawn_as_an_error_and_a_warning_as_a_warning(kind):
    error, warning = timeline([Mark(7, kind, "x", "error")], 40, 2), timeline([Mark(7, kind, "x", "warning")], 40, 2)
    assert texts(error)[1] == " ✖ 7 x"
    assert (roles(error, "missing"), roles(error, "alert")) == (" ✖ x", "")
    assert texts(warning)[1] == f" {SIGNS[kind]} 7 x"
    assert (roles(warning, "missing"), roles(warning, "alert")) == ("", f" {SIGNS[kind]} x")


def test_a_note_is_not_drawn_as_a_warning():
    assert roles(timeline([Mark(7, "alert", "x", "info")], 40, 2), "alert") == ""


def test_messages_are_cut_to_the_width_shown_and_not_obeyed():
    mark = Mark(7, "alert", "\x1b]0;x\x07[@click=app.quit]\u202e" + "日本" * 50)
    lines = timeline([mark], 40, 3)
    assert cell_len(texts(lines)[1]) <= 40
    assert texts(lines)[1].startswith(" ⚠ 7 ␛]0;x␇[@click=app.quit]\\u202e")
    assert texts(lines)[1].endswith("…")
    assert "⚠" in roles(lines, "alert")


def test_nothing_is_drawn_without_marks_or_room():
    assert timeline([], 40, 3) == []
    assert timeline(MARKS, 40, 0) == []
    (alone,) = texts(timeline(MARKS, 40, 1))
    assert alone.startswith(" events · 30 ─")


async def test_keys_scroll_to_the_last_mark_and_back_and_a_new_one_does_not_move_what_is_shown():
    app = Bench()
    async with app.run_test(size=(50, 20)) as pilot:
        widget = app.query_one(Timeline)
        widget.styles.height = 6
        marks = list(MARKS)
        widget.show(marks)
        widget.focus()
        await pilot.pause()
        assert shown(app)[1] == " ◇ 30 score 30"
        await pilot.press("down", "down")
        assert shown(app)[1] == " ◇ 28 score 28"
        before = shown(app)[1:]
        marks.append(Mark(32, "alert", "newer"))
        widget.show(marks)
        assert shown(app)[1:] == before
        await pilot.press(*["pagedown"] * 20)
        assert shown(app)[-1] == " ◇  1 score 1"
        await pilot.press(*["pageup"] * 20)
        assert shown(app)[1:3] == [" ⚠ 32 newer", " ◇ 30 score 30"]
        marks.append(Mark(33, "alert", "newest"))
        widget.show(marks)
        assert shown(app)[1] == " ⚠ 33 newest", "at the top it is followed"
