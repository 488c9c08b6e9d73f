"""The timeline of what happened to a run."""

from __future__ import annotations

import pytest
from charts import roles, texts
from rich.cells import cell_len
from styles_helper import styles_path
from textual.app import App, ComposeResult
from themed_app import ThemedApp

from workbench.run.view import Mark
from workbench.training.timeline import ERROR, SIGNS, Timeline, timeline

MARKS = [Mark(number, "checkpoint", f"step-{number}") for number in range(1, 31)]


class Bench(ThemedApp[None]):
    CSS_PATH = styles_path("training.tcss")

    def compose(self) -> ComposeResult:
        yield Timeline()


def shown(app: App[None]) -> list[str]:
    widget = app.query_one(Timeline)
    return [widget.render_line(y).text.rstrip() for y in range(widget.size.height)]


def test_the_newest_marks_are_last_and_the_heading_counts_them():
    lines = texts(timeline(MARKS, 60, 4))
    assert lines[0].startswith(" events · 3 of 30")
    assert lines[1:] == [" ✓ 28 step-28", " ✓ 29 step-29", " ✓ 30 step-30"]
    assert texts(timeline(MARKS[:2], 60, 10))[0].startswith(" events · 2 ─")


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
    assert len(timeline(MARKS, 40, 1)) == 1


async def test_keys_and_the_wheel_scroll_to_the_first_mark_and_back():
    app = Bench()
    async with app.run_test(size=(60, 20)) as pilot:
        widget = app.query_one(Timeline)
        widget.styles.height = 6
        widget.show(MARKS)
        widget.focus()
        await pilot.pause()
        assert shown(app)[-1] == " ✓ 30 step-30"
        await pilot.press("up", "up")
        assert shown(app)[-1] == " ✓ 28 step-28"
        await pilot.press(*["pageup"] * 20)
        assert shown(app)[1] == " ✓  1 step-1"
        await pilot.press(*["pagedown"] * 20)
        assert shown(app)[-1] == " ✓ 30 step-30"


async def test_a_new_mark_is_followed_at_the_end_and_does_not_move_what_was_scrolled_to():
    app = Bench()
    async with app.run_test(size=(60, 20)) as pilot:
        widget = app.query_one(Timeline)
        widget.styles.height = 6
        marks = list(MARKS)
        widget.show(marks)
        widget.focus()
        await pilot.pause()
        marks.append(Mark(31, "alert", "new"))
        widget.show(marks)
        assert shown(app)[-1] == " ⚠ 31 new"
        await pilot.press("up", "up", "up")
        before = shown(app)[1:]
        marks.append(Mark(32, "alert", "newer"))
        widget.show(marks)
        assert shown(app)[1:] == before
