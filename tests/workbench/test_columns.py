"""Texts in the columns of a terminal."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from workbench.columns import packed

PIECES = st.lists(st.text("ab日", min_size=1, max_size=9), max_size=8)


@given(PIECES, st.integers(0, 40), st.integers(0, 3))
def test_pieces_are_packed_in_order_into_lines_that_could_take_no_more(pieces: list[str], width: int, gap: int) -> None:
    lines = packed(pieces, width, gap)
    assert [piece for line in lines for piece in line] == pieces
    texts = [(" " * gap).join(line) for line in lines]
    assert all(cell_len(text) <= width or len(line) == 1 for text, line in zip(texts, lines, strict=True))
    assert all(cell_len(text) + gap + cell_len(lines[1:][n][0]) > width for n, text in enumerate(texts[:-1]))


def test_the_first_line_holds_as_many_of_the_first_pieces_as_fit() -> None:
    assert packed(["one", "two", "three"], 3, 3)[0] == ["one"]
    assert packed(["one", "two", "three"], 9, 3)[0] == ["one", "two"]
    assert packed(["one", "two", "three"], 17, 3) == [["one", "two", "three"]]
    assert packed(["日本"], 3, 3) == [["日本"]]
    assert packed([], 3, 3) == [[]]
