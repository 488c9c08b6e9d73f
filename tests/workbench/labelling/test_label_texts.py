"""Texts of items and of judgements: in the order shown, long, hostile, in Markdown, compared, and at any size."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from completions import HOSTILE
from hypothesis import given
from hypothesis import strategies as st
from label_session import FakeSession, Labelling, item, items, labelling
from rich.cells import cell_len

from trainer.confidence import wilson_interval
from trainer.preferences.records import Judgement, Origin, Progress, SessionItem, Share
from workbench.labelling.item_view import LONGEST, lay_out, markdown_lines
from workbench.labelling.texts import (
    Draft,
    ItemTexts,
    Turn,
    completion_facts,
    copy_text,
    figures,
    hints,
    judgement_text,
    progress_text,
    texts_of,
)
from workbench.text import Line, plain, visible


def turn(text: str) -> tuple[Turn, ...]:
    return (Turn("", text),)


def test_texts_are_in_the_order_of_the_item_with_their_roles_unless_they_are_obvious() -> None:
    assert texts_of(item("a", "b", "c", order=(2, 0, 1))).completions == (turn("c"), turn("a"), turn("b"))
    chat = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hi"}]
    one, two = ([{"role": "assistant", "content": text}] for text in ("one", "two"))
    assert texts_of(item(one, two)).completions == (turn("one"), turn("two"))
    for other in ("two", [*two, {"role": "user", "content": "more"}]):
        seen = texts_of(item(one, other, prompt=chat))
        assert seen.prompt == (Turn("system", "be kind"), Turn("user", "hi"))
        assert seen.completions[0] == (Turn("assistant", "one"),)
    assert seen.completions[1] == (Turn("assistant", "two"), Turn("user", "more"))


KEYS = defaultdict(lambda: "K")


@pytest.mark.parametrize(
    ("completions", "hint"),
    [
        (("a b", "a b"), "identical texts"),
        (("a b", "a  b"), "only white space differs"),
        (("a b\n", "a b"), "only white space differs"),
        (("", " "), "only white space differs"),
        (("a b", "a c"), ""),
        (("a", "a", "b"), "type the digits"),
        (("a", "a", "a"), "identical texts"),
    ],
)
def test_identical_completions_are_recognised(completions: tuple[str, ...], hint: str) -> None:
    one = item(*completions)
    shown = hints(SessionItem(position=0, item=one), texts_of(one), Draft(), KEYS)
    assert hint in shown
    assert bool(hint) == bool(shown)


@pytest.mark.parametrize(
    ("ranking", "text"), [("213", "2 > 1 > 3"), ("2=13", "2 = 1 > 3"), ("2=1=3", "2 = 1 = 3"), ("2=", "2 ="), ("", "")]
)
def test_a_ranking_is_shown_as_it_is_typed(ranking: str, text: str) -> None:
    one = item("a", "b", "c")
    shown = hints(SessionItem(position=0, item=one), texts_of(one), Draft(ranking), KEYS)
    assert shown == (f"ranking: {text}" if text else "type the digits, best first, K between equals")


@pytest.mark.parametrize(
    ("order", "judgement", "text"),
    [
        ((1, 0), Judgement(ranking=((1,), (0,))), "1 is better"),
        ((1, 0), Judgement(ranking=((0,), (1,)), strength=3), "2 is strongly better"),
        ((1, 0), Judgement(ranking=((0, 1),)), "tie"),
        ((1, 0), Judgement(verdict="both_bad"), "both bad"),
        ((2, 0, 1), Judgement(verdict="both_bad"), "all bad"),
        ((2, 0, 1), Judgement(verdict="skip"), "skipped"),
        ((2, 0, 1), Judgement(ranking=((1,), (0, 2))), "3 > 1 = 2"),
    ],
)
def test_a_judgement_is_described_in_the_numbers_that_were_shown(
    order: tuple[int, ...], judgement: Judgement, text: str
) -> None:
    assert judgement_text(item(*"abc"[: len(order)], order=order), judgement) == text


def test_facts_are_shown_on_the_side_that_they_belong_to() -> None:
    origins = (
        Origin(source="run", run="quickstart-0001", iteration=3, writer="policy", checkpoint="step-000002"),
        Origin(source="pairs.jsonl", writer="reference"),
    )
    columns = {"scores": [0.5, None], "lengths": [30, 4], "subject": "sky", "other": [1, 2, 3]}
    one = item("aaaaa", "bbb", order=(1, 0), origins=origins, columns=columns)
    assert completion_facts(one) == [
        "reference, 3 chars, pairs.jsonl",
        "policy, iteration 3, score 0.50, 5 chars, quickstart-0001",
    ]
    assert completion_facts(item("a", "b")) == ["", ""]
    assert completion_facts(item("a", "b", columns={"lengths": [30, 4]})) == ["length 30", "length 4"], (
        "as a file has them"
    )
    both = [Origin(source="run", run="quickstart-0001", writer="policy", checkpoint=f"step-{n}") for n in (1, 2)]
    assert completion_facts(item("a", "b", origins=tuple(both))) == ["policy, step-1", "policy, step-2"], "of one run"


STYLES: list[dict[str, bool]] = [{}, {"markdown": True}, {"diff": True}]
TEXTS = st.text(st.sampled_from("jx *_`#>-|[]()\n\t日é\u0301\x1b\u202e\u200b🎉"), max_size=60)


def one(*completions: Any, prompt: Any = "Why?") -> ItemTexts:
    return texts_of(item(*completions, prompt=prompt))


def drawn(lines: list[Line]) -> list[str]:
    return [plain(line) for line in lines]


def laid_out(texts: ItemTexts, width: int, height: int = 0, **style: bool) -> list[Line]:
    lines, _, end = lay_out(texts, width, height, **style)
    return [*lines, end]


def marked(lines: list[Line], role: str) -> str:
    return "".join(text for line in lines for text, own in line if own == role)


@pytest.mark.parametrize("style", STYLES)
@given(texts=st.lists(TEXTS, min_size=2, max_size=4), prompt=TEXTS, width=st.integers(12, 130))
def test_no_line_is_wider_than_its_place_and_no_character_is_obeyed(
    style: dict[str, bool], texts: list[str], prompt: str, width: int
) -> None:
    for line in drawn(laid_out(one(*texts, prompt=prompt), width, **style)):
        assert cell_len(line) <= width
        assert visible(line) == line


@pytest.mark.parametrize("style", STYLES)
@given(texts=st.lists(TEXTS, min_size=2, max_size=4), width=st.integers(12, 130))
def test_every_letter_of_every_text_is_seen(style: dict[str, bool], texts: list[str], width: int) -> None:
    texts = [text.replace("`", "") for text in texts]  # except for the language of a block of code
    lines = drawn(laid_out(one(*texts, prompt="q"), width, **style))
    for letter in "xj日é":
        assert sum(line.count(letter) for line in lines) == sum(text.count(letter) for text in texts)


def test_completions_are_side_by_side_with_the_same_width_where_there_is_room_and_otherwise_stacked() -> None:
    for width in (98, 99, 118, 119):
        lines = drawn(laid_out(one("word " * 60, "word " * 60), width))
        sides = [line.split("│") for line in lines if "│" in line]
        assert sides
        assert all(left == right for left, right in sides)
    narrow = drawn(laid_out(one("left text", "right text"), 97))
    assert narrow.index(" left text".ljust(97)) < narrow.index(" right text".ljust(97))


def test_in_a_narrow_pane_completions_are_side_by_side_only_if_both_fit() -> None:
    def is_beside(texts: ItemTexts, width: int, height: int) -> bool:
        return len(lay_out(texts, width, height)[1]) == 1

    short, long = one("left text", "right text"), one("word " * 40, "word " * 60)
    assert is_beside(short, 78, 14)
    assert not is_beside(short, 50, 14)
    assert not is_beside(long, 78, 9)
    assert is_beside(long, 98, 9)
    assert is_beside(one("left", "right", prompt="long\n" * 90), 78, 14), "a long prompt leaves room"


@pytest.mark.parametrize(("width", "height"), [(78, 14), (118, 30)])
def test_an_item_has_all_the_lines_there_are(width: int, height: int) -> None:
    for texts in (one("a", "b"), one("a", "b", "c")):
        assert len(laid_out(texts, width, height)) == height


TRANSCRIPT = "\n\nHuman: Hi there.\n\nAssistant: Yes?\n\nHuman: What is 10+19?\n\nAssistant:"


def test_a_transcript_is_shown_as_turns_with_their_roles_and_copied_as_it_is() -> None:
    texts = one(" Eleven.", " Good question.\n\nHuman: Well?", prompt=TRANSCRIPT)
    lines = laid_out(texts, 120)
    assert [line.strip() for line in drawn(lines)[1:4]] == [
        "user       Hi there.",
        "assistant  Yes?",
        "user       What is 10+19?",
    ]
    assert marked(lines, "quiet") == "Yes?Well?", "what goes before the answers, and what is none"
    sides = [tuple(map(str.strip, line.split("│"))) for line in drawn(lines) if "│" in line]
    assert sides[0] == ("assistant  Eleven.", "assistant  Good question.")
    assert sides[1] == ("", "user       Well?"), "a turn that the model has written for the user"
    assert TRANSCRIPT in copy_text(texts)
    narrow = [line.strip() for line in drawn(laid_out(texts, 40))]
    assert narrow[1:5] == ["user", "Hi there.", "assistant", "Yes?"]


def test_blank_lines_around_texts_are_not_shown_unless_only_they_differ() -> None:
    lines = drawn(laid_out(one("\n \n  one\n\n", "\ntwo", prompt="\n\nWhy?"), 120))
    assert lines[1].strip() == "Why?"
    assert [part.rstrip() for part in lines[3].split("│")] == ["   one", " two"], "its indent stays"
    assert marked(laid_out(one("\nsame", "same"), 120, diff=True), "differs") == "␊"


def test_words_that_the_other_side_does_not_have_are_marked_message_by_message() -> None:
    def chat(*texts: str) -> list[dict[str, str]]:
        return [{"role": "user", "content": text} for text in texts]

    for left, right, differs in (
        ("the cat sat down", "the dog sat down", "catdog"),
        (chat("same", "one"), chat("same", "two", "three"), "onetwothree"),
        ("a b\n", "a  b", "␣␊␣␣"),  # white space can be seen
    ):
        assert marked(laid_out(one(left, right), 120, diff=True), "differs") == differs


def test_an_empty_text_says_so_and_an_endless_one_by_how_much_it_is_cut() -> None:
    lines = drawn(laid_out(one("", " \n ", "x" * (LONGEST + 1234)), 80))
    for note in ("empty", "only white space", "✂ 1,234 more characters not shown"):
        assert note in map(str.strip, lines)
    assert sum(line.count("x") for line in lines) == LONGEST


def test_markdown_is_drawn_and_no_letter_of_it_is_lost() -> None:
    text = "# Title\n\nsome *weak* and **strong** `code` [link](http://x.y)\n\n- first\n\n```python\nprint(1)\n```"
    lines = markdown_lines(text, 40)
    assert lines is not None
    assert marked(lines, "strong").split() == ["Titlestrong", "•"]
    assert marked(lines, "emphasis") == "weak"
    assert "code" in marked(lines, "code")
    assert "print(1)" in marked(lines, "code")
    assert "http://x.y" in "".join(drawn(lines))


@pytest.mark.parametrize(
    "text",
    [
        "<b>bold</b> &amp; &#27;[31m",
        "[hidden]: http://example.com",
        "<!-- a comment -->",
        "![picture](http://x.y/z.png)",
        HOSTILE,
    ],
)
def test_text_that_markdown_would_hide_or_decode_is_shown_literally(text: str) -> None:
    lines = drawn(laid_out(one(text, "other"), 80, markdown=True))
    words = (
        visible(text, keep_newlines=True).replace("![picture](http://x.y/z.png)", "picture http://x.y/z.png").split()
    )
    assert all(any(word in line for line in lines) for word in words)


@pytest.mark.parametrize(
    "text", [">" * 40 + " deep", "|a" * 50 + "\n" + "|-" * 50 + "\n" + "|word" * 50, "7. one\n7. two"]
)
def test_text_that_markdown_cannot_show_whole_is_shown_literally(text: str) -> None:
    assert markdown_lines(text, 40) is None
    as_markdown, as_it_is = (laid_out(one(text, "b"), 42, markdown=markdown) for markdown in (True, False))
    assert drawn(as_markdown) == drawn(as_it_is)


async def test_hostile_texts_are_shown_and_change_nothing_else() -> None:
    session = FakeSession([item(HOSTILE, HOSTILE + "!", prompt=[{"role": HOSTILE, "content": HOSTILE}]), *items(1)])
    async with labelling(session) as (app, pilot):
        for key in ("d", "v", "d"):
            assert "[/x] ␛[31m [@click=app.quit]go[/]\\x9b\\u202e␍" in app.text
            assert "\x1b" not in app.text
            await pilot.press(key)
        await pilot.press("2")
        assert session.judgements[0].choice == "b"


def rows(app: Labelling) -> list[str]:
    return [line.strip("│").strip() for line in app.text.splitlines()]


@pytest.mark.parametrize("size", [(80, 24), (120, 36)])
async def test_every_line_of_an_item_longer_than_the_screen_can_be_scrolled_to(size: tuple[int, int]) -> None:
    def lines(name: str) -> str:
        return "\n".join(f"{name} {n}." for n in range(60))

    session = FakeSession([item(lines("one"), lines("two"), prompt=lines("prompt")), item(lines("one"), lines("two"))])
    async with labelling(session, size=size) as (app, pilot):
        assert "prompt 59." in app.text
        assert "one 0." in app.text
        await pilot.press("home")
        seen = [app.text]
        while "more lines" in seen[-1]:
            await pilot.press("pagedown")
            seen.append(app.text)
            assert len(seen) < 30
        for name in ("prompt", "one", "two"):
            assert all(f"{name} {n}." in "".join(seen) for n in range(60))
        await pilot.press("up")
        assert "↓ 2 more lines" in app.text
        await pilot.press("down")
        assert app.text == seen[-1]
        await pilot.press("end", "1")
        assert "Why is the sky blue?" in app.text, "the next item begins at its start"


async def test_a_terminal_that_changes_its_size_keeps_the_item_and_the_begun_judgement() -> None:
    long = "\n".join(f"line {n}." for n in range(100))
    session = FakeSession([item("first text", "second text", "third text"), item(long, long)])
    async with labelling(session) as (app, pilot):
        await pilot.press("f", "2", "1")
        for size in ((60, 20), (200, 60), (80, 24), (20, 5), (120, 40)):
            await pilot.resize_terminal(*size)
            await pilot.pause()
        assert "first text" in app.text
        assert "ranking: 2 > 1   ⚑ flagged" in app.reported("hint")
        await pilot.press("3")
        assert session.judgements[0].ranking == ((1,), (0,), (2,))
        assert session.judgements[0].flags == ("flagged",)
        await pilot.press("pagedown", "pagedown")
        first = app.text.splitlines()[4]
        await pilot.resize_terminal(130, 44)
        await pilot.pause()
        assert app.text.splitlines()[4].split() == first.split(), "the reading position stays"


async def test_differences_are_underlined_without_a_key_where_the_texts_are_much_alike() -> None:
    texts = "the cat sat down on the red mat", "the cat sat down on the blue mat"
    session = FakeSession([item(*texts), item("nothing", "in common"), item(*texts)])
    async with labelling(session) as (app, pilot):
        for shown in (True, False, True):
            assert ("underlined" in app.reported("hint")) == shown
            await pilot.press("1")
        await pilot.press("u", "d")
        assert "underlined" not in app.reported("hint")


async def test_markdown_and_diff_stay_for_the_items_that_follow() -> None:
    session = FakeSession([item("**one** a", "**one** b", prompt="p"), item("**two** a", "**two** b", prompt="q")])
    async with labelling(session) as (app, pilot):
        await pilot.press("v")
        assert "**" not in app.text
        await pilot.press("1")
        assert "two a" in app.text
        assert "**" not in app.text
        await pilot.press("d")
        assert "**two** a" in app.text
        assert "underlined: not in the other one" in app.reported("hint")
        await pilot.press("d", "v")
        assert app.reported("hint") == ""


def progress(**changes: Any) -> Progress:
    values: dict[str, Any] = {
        "done": 31,
        "left": 169,
        "per_hour": 212.4,
        "median_seconds": 9.0,
        "eta_seconds": 2880.0,
        "streak": 31,
        "left_side": Share(14, 28, 0.5, 0.33, 0.67),
        "longer": Share(18, 25, 0.72, 0.52, 0.86),
        "same": Share(3.5, 4, 0.875, 0.4, 0.98),
        "kappa": 0.75,
    }
    return Progress(**values | changes)


def test_figures_are_shown_with_their_units_and_intervals() -> None:
    assert figures("ann\x1b", progress()) == [
        "ann␛",
        "━━────────────── 31 of 200",
        "212/h",
        "own agreement 3.5/4",
        "left 50% (33 to 67)",
        "longer 72% (52 to 86)",
        "ETA 48m 00s",
        "κ 0.75",
        "median 9.0s",
        "31 in a row",
    ]


def test_unknown_figures_are_left_out_and_so_are_shares_of_few_labels() -> None:
    nan, nothing = float("nan"), Share(0, 0, *[float("nan")] * 3)
    rates = dict.fromkeys(("per_hour", "median_seconds", "eta_seconds", "kappa"), nan)
    shares = dict.fromkeys(("left_side", "longer", "same"), nothing)
    unknown = progress(done=0, left=None, streak=0, **rates, **shares)
    assert figures("ann", unknown) == ["ann", f"{'─' * 16} 0 done, next goal 50"]
    assert not any("κ" in figure for figure in figures("ann", progress(kappa=nan)))
    for count in (1, 11, 12):
        share = Share(count, count, 1.0, *wilson_interval(count, count))
        assert ("longer 100% (76 to 100)" in figures("ann", progress(longer=share))) == (count == 12)
    goals = [figures("ann", progress(done=done, left=None))[1] for done in (0, 49, 50, 199, 200, 999, 2000)]
    assert [goal.rsplit(" ", 1)[1] for goal in goals] == ["50", "50", "100", "200", "500", "1,000", "5,000"]
    assert goals[2].startswith("━" * 8 + "─")


@given(st.lists(st.text("ab日", min_size=1, max_size=9), min_size=1, max_size=8), st.integers(4, 60))
def test_figures_fit_their_line_and_all_of_them_their_lines(reported: list[str], width: int) -> None:
    line = progress_text(reported, width, "p")
    assert cell_len(line) <= width
    if (shown := line.split("   "))[-1].startswith("p "):
        assert [*shown[:-1]] == reported[: len(shown) - 1]
        assert shown[-1] == f"p {len(reported) - len(shown) + 1} more"
    lines = progress_text(reported, width, "p", whole=True).splitlines()
    assert all(cell_len(line) <= width for line in lines)
    if all(cell_len(text) <= width for text in reported):
        assert [text for line in lines for text in line.split("   ")] == reported


async def test_figures_that_do_not_fit_on_a_line_are_one_key_away() -> None:
    session = FakeSession(items(3))
    session.figures = {name: getattr(progress(), name) for name in Progress.__slots__}
    async with labelling(session, size=(80, 24)) as (app, pilot):
        assert app.reported("progress") == "ann   ━━────────────── 31 of 200   212/h   own agreement 3.5/4   p 6 more"
        await pilot.press("p")
        assert "longer 72% (52 to 86)" in app.text
        await pilot.press("1")
        assert "longer 72% (52 to 86)" in app.text
        await pilot.press("p")
        assert "longer" not in app.text


async def test_a_turn_without_a_role_or_text_is_marked() -> None:
    broken: Any = [{"content": "no role"}, {"role": "user"}]
    async with labelling(FakeSession([item("a", "b", prompt=broken)])) as (app, _):
        assert rows(app)[3:5] == ["?     no role", "user  empty"]
