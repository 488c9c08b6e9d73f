"""Pictures of coloured text: well-formed, with every character, and nothing that a browser would obey."""

from __future__ import annotations

import html
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.style import Style

from trainer.errors import StorageError
from workbench.samples.export import save_picture

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "<script>alert('x')</script> &amp; {brace} ]]> \x1b[31m \x00 \ufffe \u202e"
RED = Style(color="#ff0000", bgcolor="#00ff00", underline=True)


def saved(path: Path, *texts: str, title: str = "a title", width: int = 40) -> str:
    return save_picture(path, [[(text, RED)] for text in texts], title, width).read_text("utf-8")


def svg_text(svg: str) -> list[tuple[float, float, str, float]]:
    """Return position, text and length of every stretch but the title's."""
    texts = [one for one in ET.fromstring(svg).iter(f"{SVG}text") if "textLength" in one.attrib]
    return [
        (float(one.get("y", "")), float(one.get("x", "")), text, float(one.get("textLength", "")))
        for one in texts
        if (text := (one.text or "").replace("\xa0", " ")) != "\n"
    ]


class Shown(HTMLParser):
    """The text of a page, its tags and its attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.text, self.tags, self.attributes = "", [], []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]

    def handle_data(self, data: str) -> None:
        self.text += data


def test_an_svg_holds_the_text_with_its_colours(tmp_path: Path) -> None:
    svg = saved(tmp_path / "a.svg", "hello world", "second")
    assert [text for _, _, text, _ in svg_text(svg)] == ["hello world", "second"]
    assert {one.get("fill") for one in ET.fromstring(svg).iter(f"{SVG}rect")} >= {"#00ff00"}
    assert "fill: #ff0000" in svg
    assert "text-decoration: underline" in svg


def test_a_page_holds_the_text_with_its_colours(tmp_path: Path) -> None:
    page = saved(tmp_path / "a.html", "hello world", "second")
    assert "hello world\nsecond\n" in Shown(page).text
    assert "color: #ff0000" in page
    assert "background-color: #00ff00" in page


@pytest.mark.parametrize("suffix", [".svg", ".html"])
def test_a_picture_has_colours_where_no_color_is_set(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    assert "#ff0000" in saved(tmp_path / f"a{suffix}", "hello")


def test_hostile_text_in_an_svg_is_text(tmp_path: Path) -> None:
    svg = saved(tmp_path / "a.svg", HOSTILE, title=HOSTILE)
    assert not list(ET.fromstring(svg).iter(f"{SVG}script"))
    shown = "".join(text for _, _, text, _ in svg_text(svg))
    assert shown == "<script>alert('x')</script> &amp; {brace} ]]> ␛[31m ␀ \ufffd \\u202e"


def test_hostile_text_in_a_page_is_text(tmp_path: Path) -> None:
    page = Shown(saved(tmp_path / "a.html", HOSTILE, title=HOSTILE))
    assert set(page.tags) <= {"html", "head", "meta", "title", "style", "body", "pre", "code", "span"}
    assert set(page.attributes) <= {"lang", "charset", "class"}
    assert page.text.count("<script>alert('x')</script> &amp; {brace} ]]> ␛[31m ␀ \ufffd \\u202e") == 2


@pytest.mark.parametrize("suffix", [".svg", ".html"])
def test_a_picture_loads_nothing_and_links_nowhere(suffix: str, tmp_path: Path) -> None:
    style = Style(link="javascript:alert(1)")
    picture = save_picture(tmp_path / f"a{suffix}", [[("x", style)]], "", 10).read_text("utf-8")
    assert set(re.findall(r"https?://[^\s\"'<]+", picture)) <= {
        "http://www.w3.org/2000/svg",
        "https://www.textualize.io",
    }
    assert "javascript" not in picture
    assert "@font-face" not in picture


def test_double_width_characters_are_placed_as_in_the_terminal(tmp_path: Path) -> None:
    svg = saved(tmp_path / "a.svg", "ab日本c", "e\u0301x", "👨‍👩‍👧y")
    column = svg_text(saved(tmp_path / "b.svg", "x"))[0][3]
    rows: dict[float, list[tuple[int, str]]] = {}
    for y, x, text, _ in svg_text(svg):
        rows.setdefault(y, []).append((round(x / column), text))
    assert list(rows.values()) == [
        [(0, "ab"), (2, "日"), (4, "本"), (6, "c")],
        [(0, "e\u0301"), (1, "x")],
        [(0, "👨"), (2, "👩"), (4, "👧"), (6, "y")],
    ]


@pytest.mark.parametrize("suffix", [".svg", ".html"])
def test_a_line_that_is_wider_than_asked_for_is_shown_whole_and_on_one_line(suffix: str, tmp_path: Path) -> None:
    picture = saved(tmp_path / f"a{suffix}", "w" * 90, width=10)
    assert "w" * 90 in html.unescape(picture)


def test_empty_lines_keep_their_place(tmp_path: Path) -> None:
    page = save_picture(tmp_path / "a.html", [[("x", RED)], [], [("y", RED)]], "", 10).read_text("utf-8")
    assert "x\n\ny\n" in Shown(page).text


def test_a_name_that_is_taken_gets_a_number(tmp_path: Path) -> None:
    paths = [save_picture(tmp_path / "a.svg", [], "", 10) for _ in range(2)]
    assert [path.name for path in paths] == ["a.svg", "a-2.svg"]


def test_another_format_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"a\.png.*\.svg or \.html"):
        save_picture(tmp_path / "a.png", [], "", 10)
