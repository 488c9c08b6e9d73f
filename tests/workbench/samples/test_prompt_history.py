"""One prompt through training: listed while its files are read, and compared word by word with any earlier time."""

from __future__ import annotations

import math
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from rich.cells import cell_len
from styles_helper import styles_path
from textual.pilot import Pilot
from textual.widgets import Static
from token_samples import sample_row
from waiting import until

from trainer.runs.folder import RunFolder
from trainer.runs.samples import write_samples
from workbench.kit.theming import ThemedApp
from workbench.kit.word_diff import Part, word_diff
from workbench.run.sample_reader import RunPart
from workbench.run.sample_table import Sample, SampleKey, SampleTable, table_schema
from workbench.samples import prompt_history
from workbench.samples.prompt_history import (
    DiffText,
    PromptHistoryScreen,
    ResponseList,
    changes_line,
    diff_lines,
    scores_line,
)
from workbench.text import plain

NOTHING = object()
PROMPT = "Once upon a time"
HOSTILE = "[/x] [@click=app.quit]x[/] \x1b[31m \x9b \u202e \t日本語 🎉\n\n e\u0301"


def sample(iteration: int = 12, row: int = 0, **changes: Any) -> Sample:
    values: dict[str, Any] = {
        "prompt": PROMPT,
        "completion": " there was joy.",
        "score": 0.5,
        "kl": 8.0,
        "length": 20,
        "truncated": False,
        "prompt_index": 3,
    }
    return Sample(key=SampleKey(iteration, row), **values | changes)


class Showing(ThemedApp[None]):
    CSS_PATH = styles_path("dialogs.tcss", "history.tcss")
    answer: object = NOTHING

    def take(self, answer: object) -> None:
        self.answer = answer

    @property
    def rows(self) -> list[str]:
        rows = self.screen.query_one(ResponseList)
        return [text for place in range(1, rows.virtual_size.height) for text, _ in [rows.text_of_line(place)]]

    @property
    def shown(self) -> str:
        return self.screen.query_one(DiffText).text.rstrip("\n")

    def line(self, name: str) -> str:
        return str(self.screen.query_one(f"#history-{name}", Static).render())


@asynccontextmanager
async def showing(
    folder: Path, opened: Sample, size: tuple[int, int] = (120, 36)
) -> AsyncIterator[tuple[Showing, Pilot[None]]]:
    app = Showing()
    async with app.run_test(size=size) as pilot:
        app.push_screen(PromptHistoryScreen(RunFolder(folder), opened), app.take)
        await pilot.pause()
        await until(pilot, lambda: "reading" not in app.line("scores"))
        yield app, pilot


def write(folder: Path, iteration: int, *completions: str, prompt: str = PROMPT, score: float = 0.5) -> None:
    """Write an iteration in which the prompt has these completions; row 0 is another prompt's."""
    rows = [sample_row(0, prompt="another", prompt_index=0)]
    for row, completion in enumerate(completions, 1):
        row_score = score + row / 100
        rows.append(
            sample_row(row, prompt=prompt, prompt_index=3, completion=completion, score=row_score, truncated=False)
        )
    write_samples(RunFolder(folder).samples_file(iteration), rows, iteration)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Make three iterations, the middle one without the prompt."""
    write(tmp_path, 1, " there was a sad band.", score=0.1)
    write(tmp_path, 2)
    write(tmp_path, 3, " there was a glad band!", " there was none.", score=0.7)
    return tmp_path


async def test_the_samples_of_the_prompt_are_listed_newest_first_and_the_oldest_is_the_base(run: Path) -> None:
    async with showing(run, sample(3, 2)) as (app, _):
        assert [row.split()[:2] for row in app.rows] == [["3·2", "+0.71"], ["3·3", "+0.72"], ["1·2", "+0.11"]]
        assert ["base" in row for row in app.rows] == [False, False, True]
        assert "3 samples of 2 iterations" in app.line("scores")
        assert PROMPT in app.line("prompt")
        assert not app.screen.query_one("#history-problem").display


async def test_the_open_sample_is_compared_with_the_oldest_or_with_another_base(run: Path) -> None:
    async with showing(run, sample(3, 1)) as (app, pilot):
        assert app.screen.query_one(ResponseList).cursor == 0
        await until(pilot, lambda: app.shown == " there was a −sad+glad band−.+!")
        assert "score +0.71 (+0.60)" in app.line("changes")
        assert "compared with iteration 1, sample 2" in app.line("changes")
        await pilot.press("d")
        assert app.shown == " there was a glad band!", "the text without its changes"
        await pilot.press("d", "b", "end")
        await pilot.pause()
        assert ["base" in row for row in app.rows] == [True, False, False]
        assert app.shown == " there was a −glad+sad band−!+."
        assert "score +0.11 (-0.60)" in app.line("changes")
        await pilot.press("b")
        await pilot.pause()
        assert ["base" in row for row in app.rows] == [False, False, True]
        assert app.shown == " there was a sad band."
        assert "base of the comparison" in app.line("changes")


@pytest.mark.parametrize(("keys", "answer"), [(["end", "enter"], SampleKey(1, 1)), (["escape"], None)])
async def test_enter_gives_the_sample_to_open_and_escape_none(run: Path, keys: list[str], answer: object) -> None:
    async with showing(run, sample(3, 1)) as (app, pilot):
        await pilot.press(*keys)
        await pilot.pause()
        assert app.answer == answer


async def test_a_prompt_that_came_up_once_is_marked_so(tmp_path: Path) -> None:
    write(tmp_path, 4, " once only")
    async with showing(tmp_path, sample(4, 1)) as (app, _):
        assert "the only response to this prompt" in app.line("changes")
        assert app.shown == " once only"


async def test_without_saved_samples_it_says_so_and_no_key_fails(tmp_path: Path) -> None:
    async with showing(tmp_path, sample(4, 1)) as (app, pilot):
        assert "no saved samples of this prompt" in app.line("changes")
        await pilot.press("b", "d", "down", "enter")
        await pilot.pause()
        assert app.answer is NOTHING


async def test_damaged_files_are_reported_in_one_line_and_other_prompts_of_the_index_skipped(run: Path) -> None:
    for iteration in (4, 5):
        RunFolder(run).samples_file(iteration).write_bytes(b"[/x] damaged")
    write(run, 6, " of other data", prompt="Another with this index")
    async with showing(run, sample(3, 1)) as (app, _):
        assert [row.split()[0] for row in app.rows] == ["3·2", "3·3", "1·2"]
        problem = app.line("problem")
        assert "step-000005.parquet" in problem
        assert problem.endswith("(and 1 more)")


async def test_hostile_text_is_shown_and_not_obeyed(tmp_path: Path) -> None:
    write(tmp_path, 1, HOSTILE, prompt=HOSTILE)
    write(tmp_path, 2, f"{HOSTILE} [b]", prompt=HOSTILE)
    async with showing(tmp_path, sample(2, 1, prompt=HOSTILE)) as (app, _):
        assert "[/x] [@click=app.quit]x[/] ␛[31m" in app.shown
        assert "+[b]" in app.shown
        assert all(line.isprintable() for line in app.shown.split("\n"))
        assert app.line("prompt").isprintable()


class Slow:
    """Parts of a run that come on request: the newest at once, each other one when `gate` is released."""

    def __init__(self, *samples: Sample) -> None:
        self.samples = samples
        self.gate = threading.Semaphore(0)

    def __call__(self, folder: RunFolder, iterations: object, stop: Callable[[], bool]) -> Iterator[RunPart]:
        for done, one in enumerate(self.samples):
            while done and not self.gate.acquire(timeout=0.01):
                if stop():
                    return
            values = {name: [getattr(one, name)] for name in table_schema().names if name not in ("iteration", "row")}
            table = pa.table({"iteration": [one.key.iteration], "row": [one.key.row], **values}, table_schema())
            yield RunPart(folder, SampleTable(table), done + 1, len(self.samples), [])


async def test_results_are_shown_before_everything_is_read_and_a_moved_cursor_stays(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    slow = Slow(sample(9), sample(8), sample(7, completion=" there was pain."), sample(6))
    monkeypatch.setattr(prompt_history, "scan", slow)
    app = Showing()
    async with app.run_test(size=(120, 36)) as pilot:
        app.push_screen(PromptHistoryScreen(RunFolder(tmp_path), sample(8)), app.take)
        await pilot.pause()
        await until(pilot, lambda: len(app.rows) == 1)
        assert "the only response so far" in app.line("changes")
        assert app.screen.query_one(ResponseList).cursor == 0
        slow.gate.release(2)
        await until(pilot, lambda: app.shown == " there was −pain+joy.")
        assert app.screen.query_one(ResponseList).cursor == 1
        await pilot.press("down")
        slow.gate.release()
        await until(pilot, lambda: len(app.rows) == 4)
        assert app.screen.query_one(ResponseList).cursor == 2
        await until(pilot, lambda: "reading" not in app.line("scores"))


@pytest.mark.parametrize(
    ("size", "beside"), [((120, 36), True), ((100, 30), True), ((99, 30), False), ((60, 20), False)]
)
async def test_list_and_text_are_side_by_side_where_there_is_room(
    size: tuple[int, int], beside: bool, run: Path
) -> None:
    async with showing(run, sample(3, 1), size) as (app, _):
        rows, text = app.screen.query_one(ResponseList).region, app.screen.query_one(DiffText).region
        assert (rows.right <= text.x) is beside
        assert (rows.bottom <= text.y) is not beside
        for region in (rows, text):
            assert region.height >= 2
            assert app.screen.region.contains_region(region)


async def test_without_colour_changes_begin_and_end_with_marks(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with showing(run, sample(3, 1)) as (app, _):
        assert app.shown == " there was a [-sad-]{+glad+} band[-.-]{+!+}"


def test_changes_against_the_base_have_their_sign_and_unknown_numbers_are_dashes() -> None:
    line = changes_line(sample(score=0.8, kl=7.5, length=29), sample(score=0.5, kl=8.0, length=20))
    assert line == "score +0.80 (+0.30)   KL 7.5 nats (-0.5)   29 tokens (+9)"
    unknown = sample(score=math.nan, kl=math.nan, length=None)
    assert changes_line(unknown, sample()) == "not scored (-)   KL - nats (-)"


def test_scores_go_from_the_oldest_to_the_newest_and_fit_the_width() -> None:
    samples = [sample(number, score=number / 100) for number in range(100, 0, -1)]
    line = scores_line(samples, 118, reading=True)
    assert line.startswith("100 samples of 100 iterations, reading…   score +0.01 ▁")
    assert line.endswith("█ +1.00")
    assert all(cell_len(scores_line(samples, width, reading=True)) <= width for width in range(56, 200))
    assert "score" not in scores_line(samples[:1], 118, reading=False)


@pytest.mark.parametrize("colorless", [False, True])
@pytest.mark.parametrize("width", [1, 7, 30])
def test_lines_of_a_diff_fit_the_width_and_hold_every_word(width: int, colorless: bool) -> None:
    parts = word_diff("one two\n\nthree 日本 four", "one 2\nthree 日語 four five")
    lines = diff_lines(parts, width, colorless=colorless)
    assert all(cell_len(plain(line)) <= max(width, 2) for line in lines)
    shown = "".join(text for line in lines for text, kind in line if kind in ("same", "new"))
    for word in ("one", "2", "three", "日", "語", "four", "five"):
        assert word in shown or width < 7


def test_changed_words_are_marked_and_changed_spaces_are_symbols() -> None:
    parts: list[Part] = [("new", " a\n"), ("same", "b"), ("gone", " \n"), ("new", "\n\n")]
    assert [plain(line) for line in diff_lines(parts, 40)] == [" +a", "b−␣␊+␊␊", "", ""]
    assert plain(diff_lines(parts, 40, colorless=True)[0]) == " {+a+}"
