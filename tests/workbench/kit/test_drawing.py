"""Texts that wrap, and that end with … where they are longer than their room."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.app import App, ComposeResult
from textual.content import Content

from workbench.config.fields import fields_by_key
from workbench.config.rows import FieldRow, help_content
from workbench.kit.drawing import CutText, cut, rule
from workbench.text import plain

WORDS = st.lists(st.text("abc日é", min_size=1, max_size=12), max_size=40).map(" ".join)


@given(text=WORDS, width=st.integers(1, 50), height=st.integers(1, 8))
def test_a_text_fits_its_space_and_shows_where_it_was_cut(text: str, width: int, height: int) -> None:
    lines = cut(Content(text), width, height).plain.split("\n")
    assert len(lines) <= height
    assert all(Content(line).cell_length <= width for line in lines)
    whole = "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert whole or lines[-1].endswith("…")


def test_colours_and_empty_lines_stay() -> None:
    shown = cut(Content.assemble("one\n\n", ("two three", "bold")), 5, 9)
    assert shown.plain == "one\n\ntwo\nthree"
    assert [shown.plain[span.start : span.end] for span in shown.spans] == ["two", "three"]


@pytest.mark.parametrize(
    ("width", "drawn"),
    [(0, ""), (8, " accura…"), (9, " accuracy"), (20, " accuracy · × 2 not…"), (29, " accuracy · × 2 not finite ─")],
)
def test_a_heading_shows_where_it_was_cut(width: int, drawn: str) -> None:
    assert plain(rule("accuracy", width, missing=2)) == drawn


class Bench(App[None]):
    CSS = "#help { height: 3; } #auto { height: auto; max-height: 2; }"

    def compose(self) -> ComposeResult:
        yield CutText(id="help")
        yield CutText(most=2, id="auto")


def drawn(text: CutText) -> list[str]:
    return [text.render_line(y).text.rstrip() for y in range(text.size.height)]


@pytest.mark.parametrize("width", [34])
async def test_the_help_of_every_setting_is_whole_or_ends_with_an_ellipsis(width: int) -> None:
    app = Bench()
    async with app.run_test(size=(width, 10)) as pilot:
        seen = app.query_one("#help", CutText)
        cuts = 0
        for field in fields_by_key().values():
            row = FieldRow(field, field.schema["default"])
            seen.update(help_content(row))
            await pilot.pause()
            lines = drawn(seen)
            is_whole = " ".join(lines).split() == help_content(row).plain.split()
            assert is_whole or lines[-1].endswith("…"), field.key
            cuts += not is_whole
        assert cuts, "some are longer than three lines"


async def test_a_text_is_cut_again_for_another_width() -> None:
    app = Bench()
    async with app.run_test(size=(20, 10)) as pilot:
        text = app.query_one("#auto", CutText)
        text.update("score 0.52, -0.80 to 0.97   KL 9.3 nats   by score")
        await pilot.pause()
        assert drawn(text) == ["score 0.52, -0.80 to", "0.97   KL 9.3 nats …"]
        await pilot.resize_terminal(80, 10)
        await pilot.pause()
        assert drawn(text) == ["score 0.52, -0.80 to 0.97   KL 9.3 nats   by score"]
