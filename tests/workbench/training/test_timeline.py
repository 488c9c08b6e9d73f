"""The timeline of what happened to a run."""

from __future__ import annotations

import pytest
from charts import roles, texts
from rich.cells import cell_len
from styles_helper import styles_path
from textual.app import ComposeResult

from workbench.kit.theming import ThemedApp
from workbench.run.view import Mark
from workbench.training.timeline import ERROR, SIGNS, Timeline, timeline

MARKS = [Mark(number, "evaluation", f"score {number}") for number in range(1, 31)]


class Bench(ThemedApp[None]):
    CSS_PATH = styles_path("training.tcss")

    def compose(self) -> ComposeResult:
        yield Timeline()


def test_errors_and_warnings_come_first_and_the_newest_of_a_kind_on_top():
    marks = [
        Mark(1, "alarm", "old error", "error"),
        Mark(2, "alert", "warning", "warning"),
        Mark(3, "alarm", "error", "error"),
        Mark(4, "setting", "setting"),
        Mark(5, "alert", "note", "info"),
    ]
    lines = texts(timeline(marks, 50, [Mark(20, "evaluation", "score 1")]))
    assert lines[0] == " ◇ 20 score 1"
    assert lines[1].startswith(" events · 5 ─")
    assert lines[2:] == [" ✖ 3 error", " ✖ 1 old error", " ⚠ 2 warning", " ⚠ 5 note", " → 4 setting"]


@pytest.mark.parametrize(
    ("saved", "width", "heading"),
    [
        ([12], 70, " events · 1 · checkpoint 12 ─"),
        ([10, 20, 15], 70, " events · 1 · checkpoints 10 to 20, newest 15 ─"),
        ([10, 20, 15], 40, " 1 · checkpoints 10 to 20 ─"),  # shorter, not cut
    ],
)
def test_checkpoints_are_folded_into_the_heading(saved: list[int], width: int, heading: str):
    marks = [Mark(number, "checkpoint", "x") for number in saved]
    first, event = texts(timeline([*marks, Mark(16, "setting", "kl_coef 0.05 -> 0.1")], width))
    assert first.startswith(heading)
    assert event == " → 16 kl_coef 0.05 -> 0.1"
    assert len(timeline(marks, width)) == 1
    assert timeline([], width) == []


def test_every_kind_of_mark_has_a_sign_of_its_own_one_column_wide():
    assert len({*SIGNS.values(), ERROR}) == len(SIGNS) + 1
    assert all(cell_len(sign) == 1 for sign in SIGNS.values())


@pytest.mark.parametrize("kind", ["alert", "alarm"])
def test_an_error_is_drawn_as_an_error_a_warning_as_a_warning_and_a_note_as_neither(kind):
    error, warning, note = (timeline([Mark(7, kind, "x", level)], 40)[1:] for level in ("error", "warning", "info"))
    assert (texts(error), roles(error, "missing"), roles(error, "alert")) == ([" ✖ 7 x"], " ✖ x", "")
    signed = f" {SIGNS[kind]} x"
    assert (roles(warning, "missing"), roles(warning, "alert")) == ("", signed)
    assert (roles(note, "missing"), roles(note, "alert")) == ("", "")


def test_messages_are_cut_to_the_width_shown_and_not_obeyed():
    lines = timeline([Mark(7, "alert", "\x1b]0;x\x07[@click=app.quit]\u202e" + "日本" * 50)], 40)
    assert cell_len(texts(lines)[1]) <= 40
    assert texts(lines)[1].startswith(" ⚠ 7 ␛]0;x␇[@click=app.quit]\\u202e")
    assert texts(lines)[1].endswith("…")


async def test_keys_scroll_to_the_last_mark_and_back_and_a_new_one_does_not_move_what_is_shown():
    app = Bench()
    async with app.run_test(size=(50, 20)) as pilot:
        widget = app.query_one(Timeline)
        widget.styles.height = 6

        def shown() -> list[str]:
            return [widget.render_line(y).text.rstrip() for y in range(widget.size.height)]

        await pilot.pause()
        assert widget.show(MARKS, ()) == 31
        widget.focus()
        await pilot.pause()
        assert shown()[1] == " ◇ 30 score 30"
        await pilot.press("down", "down")
        assert shown()[0] == " ◇ 29 score 29"
        before = shown()
        widget.show([*MARKS, Mark(32, "alert", "newer")], ())
        await pilot.pause()
        assert shown() == before
        await pilot.press(*["pagedown"] * 20)
        assert shown()[-1] == " ◇  1 score 1"
        await pilot.press(*["pageup"] * 20)
        assert shown()[1:3] == [" ⚠ 32 newer", " ◇ 30 score 30"]
        widget.show([*MARKS, Mark(32, "alert", "newer"), Mark(33, "alert", "newest")], ())
        await pilot.pause()
        assert shown()[1] == " ⚠ 33 newest", "at the top it is followed"
