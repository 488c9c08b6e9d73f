"""Pictures of the docs: rows keep their cells, lines meet, and each moment of the recording shows the frame due."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from rich.segment import Segment
from rich.style import Style

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def recording(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "docs"))
    import recording

    return recording


def is_shown(group: ElementTree.Element, moment: float) -> bool:
    """Return whether a row of the animation is visible at `moment`, by SVG's rules of discrete animation."""
    animate = group.find(f"{SVG}animate")
    if animate is None:
        return group.get("visibility") != "hidden"
    part = moment / float(animate.attrib["dur"].removesuffix("s"))
    times = [float(time) for time in animate.attrib["keyTimes"].split(";")]
    values = animate.attrib["values"].split(";")
    assert len(times) == len(values)
    assert times[0] == 0
    return [value for time, value in zip(times, values, strict=True) if time <= part][-1] == "visible"


def screen_at(root: ElementTree.Element, moment: float) -> list[str]:
    rows: dict[float, str] = {}
    for group in root.findall(f"{SVG}g"):
        place = re.fullmatch(r"translate\(0 ([\d.]+)\)", group.attrib["transform"])
        assert place is not None
        if is_shown(group, moment):
            assert float(place[1]) not in rows, "two rows lie over each other"
            rows[float(place[1])] = "".join(text.text or "" for text in group.iter(f"{SVG}text"))
    return [rows[y] for y in sorted(rows)]


def test_each_frame_is_shown_for_its_time_and_equal_rows_are_drawn_once(recording: Any) -> None:
    texts = [["home", "a"], ["home", "b"], ["home", "b"], ["last", "a"]]
    seconds = [1.0, 0.25, 0.5, 2.0]
    frames = [
        recording.Frame([recording.row([Segment(text)]) for text in rows], shown)
        for rows, shown in zip(texts, seconds, strict=True)
    ]
    root = ElementTree.fromstring(recording.animation(frames, 10))
    start = 0.0
    for rows, shown in zip(texts, seconds, strict=True):
        assert screen_at(root, start + shown / 2) == rows
        start += shown
    assert len(root.findall(f"{SVG}g")) == 2 + 3  # home, last; a, b, a


def test_a_row_keeps_columns_colours_and_hostile_text(recording: Any) -> None:
    drawn = recording.row(
        [Segment("漢<&>", Style(color="#112233", bgcolor="#445566")), Segment("  "), Segment("b", Style(bold=True))]
    )
    row = ElementTree.fromstring(f"<g>{drawn}</g>")
    wide, hostile, last = row.findall("text")
    assert (wide.text, hostile.text, hostile.get("fill")) == ("漢", "<&>", "#112233")
    assert [int(text.attrib["textLength"]) for text in (wide, hostile)] == [2 * recording.CELL, 3 * recording.CELL]
    assert [int(text.attrib["x"]) for text in (hostile, last)] == [2 * recording.CELL, 7 * recording.CELL]
    assert last.get("font-weight") == "bold"
    (ground,) = row.findall("rect")
    assert (ground.get("fill"), int(ground.attrib["width"])) == ("#445566", 5 * recording.CELL)


@pytest.mark.parametrize(
    ("char", "sides"),
    [("│", "UD"), ("─", "LR"), ("┼", "LRUD"), ("╭", "RD"), ("╯", "LU"), ("┿", "LRUD"), ("╸", "L"), ("█", "LRUD")],
)
def test_lines_reach_the_sides_where_the_next_character_goes_on(recording: Any, char: str, sides: str) -> None:
    reached = set()
    for left, top, width, height in recording.shape(char):
        reached |= {side for side, at in (("L", left), ("U", top)) if at == 0}
        reached |= {"R"} if left + width == recording.CELL else set()
        reached |= {"D"} if top + height == recording.LINE else set()
    assert reached == set(sides)


def test_lines_blocks_and_braille_are_drawn_in_their_cells(recording: Any) -> None:
    row = ElementTree.fromstring(f"<g>{recording.row([Segment('a───⣿▂'), Segment('b')])}</g>")
    (path,) = row.findall("path")
    outline = path.attrib["d"].split("z")[:-1]
    assert len(outline) == 1 + 8 + 1  # one line for all three, eight dots, a block
    assert outline[0].startswith(f"M{recording.CELL} ")
    assert f"h{3 * recording.CELL}v" in outline[0]
    assert [(text.text, int(text.attrib["x"])) for text in row.findall("text")] == [("a", 0), ("b", 6 * recording.CELL)]


def test_a_picture_does_not_show_the_folder_it_was_made_in(
    recording: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path.with_name("a" * len(tmp_path.name))
    other.mkdir()
    shown = []
    for folder in (tmp_path, other):
        monkeypatch.chdir(folder)
        shown.append(recording.row([Segment(f" {folder}/runs "), Segment("next")]))
    assert shown[0] == shown[1]
    assert "/home/anna" in shown[0]
