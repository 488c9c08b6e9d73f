"""The samples pane shows what the policy wrote, follows the newest iteration, and obeys no text of a model."""

from __future__ import annotations

import math
import threading
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from scripted_run import samples, started
from textual.app import App, ComposeResult
from textual.pilot import Pilot
from textual.widgets import Static

from trainer.events import SamplesWritten
from trainer.runs import RunFolder
from trainer.samples import write_samples
from workbench.panes import samples as samples_pane
from workbench.panes import styles_path
from workbench.panes.samples import SamplesPane
from workbench.run_view import RunView
from workbench.samples_reader import Sample
from workbench.theming import EXTRA_VARIABLES
from workbench.widgets.sample_list import SampleList, sample_facts, sample_lines
from workbench.widgets.sample_text import SampleText, sample_text

WIDTHS = range(38, 201)
HOSTILE = "[/x] [@click=app.quit]x[/] \x1b[31m \x9b \u202eabc \u2028 שלום 🎉👨‍👩‍👧 e\u0301 日本語\t\n"


def sample(**changes: Any) -> Sample:
    values: dict[str, Any] = {
        "prompt": "Once upon a time",
        "completion": " there was joy.",
        "score": 0.81,
        "kl": 7.94,
        "length": 29,
        "truncated": False,
    }
    return Sample(**values | changes)


class Run:
    """A run whose samples are written as the trainer does it."""

    def __init__(self, root: Path) -> None:
        self.folder = RunFolder(root)
        self.view = RunView()
        self.view.take(started(folder=str(root)))

    def write(self, number: int, *completions: str) -> None:
        """The samples of an iteration: their scores are 0.1, 0.2..."""
        rows = [
            {
                "row": row,
                "prompt": f"prompt {row}",
                "completion": text,
                "score": (row + 1) / 10,
                "truncated": False,
                "tokens": [1, 2],
                "logprobs": [-1.0, -1.0],
                "ref_logprobs": [-2.0, -1.5],
            }
            for row, text in enumerate(completions)
        ]
        write_samples(self.folder.samples_file(number), rows, number)
        self.announce(number, len(rows))

    def announce(self, number: int, rows: int = 1) -> None:
        path = str(self.folder.samples_file(number).relative_to(self.folder.root))
        self.view.take(SamplesWritten(iteration=number, path=path, rows=rows, previews=[]))


class Workbench(App[None]):
    CSS_PATH = styles_path("samples.tcss")

    def __init__(self) -> None:
        super().__init__()
        self.pane = SamplesPane()
        self.heard: list[tuple[int, list[float]]] = []

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return EXTRA_VARIABLES

    def compose(self) -> ComposeResult:
        yield self.pane

    def on_samples_pane_scores_read(self, message: SamplesPane.ScoresRead) -> None:
        self.heard.append((message.iteration, message.scores))

    @property
    def heading(self) -> str:
        return str(self.query_one("#samples-heading", Static).render())

    @property
    def drawn(self) -> str:
        """What the list or the open sample shows."""
        widget = next(w for w in self.query("SampleList, SampleText").results() if w.display)
        return "\n".join(widget.render_line(y).text.rstrip() for y in range(widget.size.height))


async def settle(pilot: Pilot[None]) -> None:
    """Until the threads under way, and those that their results start, are done and shown."""
    for _ in range(3):
        await pilot.pause()
        await pilot.app.workers.wait_for_complete()
    await pilot.pause()


async def show(pilot: Pilot[None], run: Run) -> None:
    app = pilot.app
    assert isinstance(app, Workbench)
    app.pane.show_run(run.view)
    await settle(pilot)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path / "run")


@pytest.fixture(autouse=True)
def no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples_pane, "_REST", 0.0)


# Parts without an application


def test_facts_are_in_full_where_they_fit_and_short_where_not() -> None:
    cut = sample(truncated=True)
    assert sample_facts(3, cut, 80) == "  3   score +0.81   KL 7.9 nats   29 tokens   ✂ cut short"
    assert sample_facts(3, cut, 36) == "  3  +0.81  KL 7.9  29 tok  ✂"
    assert sample_facts(3, sample(score=math.nan, kl=math.inf, length=None), 80) == "  3   score -   KL - nats"


def test_a_sample_takes_the_same_lines_whatever_is_in_it() -> None:
    for one in (sample(), sample(prompt="", completion=""), sample(prompt=HOSTILE * 50, completion=HOSTILE * 50)):
        for width in WIDTHS:
            lines = sample_lines(1, one, width)
            assert len(lines) == 5
            assert lines[4] == ""
            assert max(map(cell_len, lines)) <= width


def test_the_end_of_a_prompt_is_shown_without_its_template_and_the_start_of_a_completion() -> None:
    prompt = "<|im_start|>user\n" + "x" * 200 + " sky is blue?<|im_end|>\n<|im_start|>assistant\n"
    _, shown, first, second, _ = sample_lines(1, sample(prompt=prompt, completion="word " * 100), 40)
    assert shown.endswith("x sky is blue?")
    assert shown.startswith("…")
    assert cell_len(shown) == 40
    assert first == " ".join(["word"] * 8)
    assert second.endswith("…")
    llama = "Why?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
    assert sample_lines(1, sample(prompt=llama), 40)[1] == "Why?"


def test_a_prompt_and_a_completion_that_fit_are_whole() -> None:
    _, prompt, completion, second, _ = sample_lines(1, sample(), 40)
    assert (prompt, completion.strip(), second) == ("Once upon a time", "there was joy.", "")


def test_only_what_can_be_seen_of_a_megabyte_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[int] = []
    for module in ("sample_list", "sample_text"):
        target = f"workbench.widgets.{module}.visible"
        monkeypatch.setattr(target, lambda text, **_: looked_at.append(len(text)) or text)
    huge = sample(prompt="p" * 1_000_000, completion="c" * 1_000_000)
    lines = sample_lines(1, huge, 80)
    assert max(looked_at) < 1000
    assert lines[3].endswith("…")
    text = sample_text(1, huge, 80)
    assert max(looked_at) <= 32_000
    assert "968,000 more characters" in text[-1].text


def test_an_open_sample_is_whole_with_its_lines_and_paragraphs() -> None:
    text = sample_text(2, sample(prompt="One\n\nTwo\n", completion="word " * 30), 40)
    assert [line.text for line in text if line.part == "prompt"][1:] == ["One", "", "Two", ""]
    completion = [line.text for line in text if line.part == "completion"]
    assert " ".join(completion).split() == ["word"] * 30
    assert max(map(cell_len, completion)) <= 40
    assert text[0] == ("facts", "2  +0.81  KL 7.9  29 tok")


def test_hostile_text_is_shown_and_not_obeyed() -> None:
    one = sample(prompt=HOSTILE, completion=HOSTILE)
    listed = "\n".join(sample_lines(1, one, 120))
    opened = "\n".join(line.text for line in sample_text(1, one, 120))
    for shown in (listed, opened):
        assert shown.count("[@click=app.quit]x[/] ␛[31m \\x9b \\u202eabc \\u2028 שלום 🎉") == 2
        assert not {"\x1b", "\x9b", "\u202e", "\u2028", "\t"} & set(shown)


# In an application


async def test_the_newest_iteration_is_followed_and_its_scores_are_told(run: Run) -> None:
    app = Workbench()
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        assert "no samples yet" in app.drawn
        run.write(1, "first of one", "second of one")
        await show(pilot, run)
        assert "first of one" in app.drawn
        assert "score +0.20   KL 1.5 nats   2 tokens" in app.drawn
        assert app.heading == "iteration 1 · newest   2 samples   score 0.15, 0.10 to 0.20"
        run.write(2, "first of two")
        await show(pilot, run)
        assert "first of two" in app.drawn
        assert app.heard == [(1, [0.1, 0.2]), (2, [0.1])]
        await show(pilot, run)
        assert len(app.heard) == 2, "nothing changed, so nothing is read"


async def test_earlier_and_later_iterations_are_those_with_samples(run: Run) -> None:
    app = Workbench()
    async with app.run_test(size=(80, 24)) as pilot:
        for number in (2, 5, 9):
            run.write(number, f"of {number}")
        write_samples(run.folder.samples_file(12), [], 12)  # left behind by a run that was resumed from before
        await show(pilot, run)
        seen = []
        for key in ("left", "[", "left", "right", "right", "]", "left", "end"):
            await pilot.press(key)
            await settle(pilot)
            seen.append(app.heading.split()[1])
            assert f"of {seen[-1]}" in app.drawn
        assert seen == ["5", "2", "2", "5", "9", "9", "5", "9"]
        assert "newest" in app.heading.split()


async def test_a_chosen_iteration_stays_until_the_newest_is_followed_again(run: Run) -> None:
    app = Workbench()
    async with app.run_test(size=(80, 24)) as pilot:
        run.write(1, "of 1")
        run.write(2, "of 2")
        await show(pilot, run)
        app.pane.show_iteration(1)
        await settle(pilot)
        run.write(3, "of 3")
        await show(pilot, run)
        assert "of 1" in app.drawn
        assert app.heading.startswith("iteration 1 · newest is 3")
        app.pane.show_iteration(None)
        await settle(pilot)
        assert "of 3" in app.drawn


async def test_going_on_to_the_newest_follows_it(run: Run) -> None:
    app = Workbench()
    async with app.run_test(size=(80, 24)) as pilot:
        run.write(1, "of 1")
        run.write(2, "of 2")
        await show(pilot, run)
        await pilot.press("left", "right")
        await settle(pilot)
        run.write(3, "of 3")
        await show(pilot, run)
        assert "of 3" in app.drawn


async def test_a_run_that_keeps_no_files_shows_previews_and_tells_no_scores() -> None:
    app = Workbench()
    view = RunView()
    view.take(started())
    view.take(samples(4, ("Once upon", " a preview")))
    async with app.run_test(size=(80, 24)) as pilot:
        app.pane.show_run(view)
        await pilot.pause()
        assert "a preview" in app.drawn
        assert "tokens" not in app.drawn
        assert "no files are kept" in app.heading
        app.pane.show_iteration(2)
        await settle(pilot)
        assert "run.save_samples" in " ".join(app.drawn.split())
        await pilot.press("end")
        await settle(pilot)
        assert "a preview" in app.drawn
        assert app.heard == []


async def test_a_missing_file_and_a_damaged_one_are_sentences_in_the_pane(run: Run) -> None:
    app = Workbench()
    async with app.run_test(size=(60, 24)) as pilot:
        run.announce(1)
        await show(pilot, run)
        assert "a run keeps them with" in app.drawn
        run.write(2, "of 2")
        run.folder.samples_file(2).write_bytes(b"PAR1 and nothing of use PAR1")
        await show(pilot, run)
        assert "damaged" in app.drawn
        assert app.heard == []
        await pilot.press("enter")
        assert not app.query_one(SampleText).display
        run.write(3, "of 3")
        await show(pilot, run)
        assert "of 3" in app.drawn


async def test_enter_shows_one_whole_and_escape_the_list_again(run: Run) -> None:
    app = Workbench()
    async with app.run_test(size=(60, 20)) as pilot:
        run.write(1, "short", "long " * 500 + "END")
        await show(pilot, run)
        app.pane.take_focus()
        await pilot.press("down", "enter")
        await pilot.pause()
        text = app.query_one(SampleText)
        assert text.has_focus
        assert app.drawn.startswith("2   score +0.20")
        assert "END" not in app.drawn
        for _ in range(20):
            await pilot.press("pagedown")
        assert "END" in app.drawn
        await pilot.press("escape")
        assert app.query_one(SampleList).has_focus
        assert app.query_one(SampleList).cursor == 1


async def test_a_sample_that_is_read_stays_while_training_goes_on(run: Run) -> None:
    app = Workbench()
    async with app.run_test(size=(60, 20)) as pilot:
        run.write(1, "of 1")
        await show(pilot, run)
        app.pane.take_focus()
        await pilot.press("enter")
        run.write(2, "of 2")
        await show(pilot, run)
        assert "of 1" in app.drawn
        assert "newest is 2" in app.heading
        await pilot.press("escape")
        await settle(pilot)
        assert "of 2" in app.drawn, "closed, the newest is followed as before"


async def test_the_same_place_in_other_iterations_can_be_read(run: Run) -> None:
    app = Workbench()
    async with app.run_test(size=(60, 20)) as pilot:
        run.write(1, "a of 1", "b of 1")
        run.write(2, "a of 2", "b of 2")
        await show(pilot, run)
        app.pane.take_focus()
        await pilot.press("down", "enter", "left")
        await settle(pilot)
        assert app.query_one(SampleText).display
        assert "b of 1" in app.drawn
        await pilot.press("escape")
        await settle(pilot)
        assert "b of 1" in app.drawn, "asked for, so it stays"


async def test_another_run_starts_from_nothing(run: Run, tmp_path: Path) -> None:
    app = Workbench()
    async with app.run_test(size=(60, 20)) as pilot:
        run.write(1, "of 1")
        await show(pilot, run)
        app.pane.take_focus()
        await pilot.press("enter")
        other = Run(tmp_path / "other")
        await show(pilot, other)
        assert "no samples yet" in app.drawn
        assert app.heading == ""
        other.write(1, "of the other")
        await show(pilot, other)
        assert "of the other" in app.drawn


async def test_an_iteration_that_a_resumed_run_did_anew_is_read_anew(run: Run) -> None:
    app = Workbench()
    async with app.run_test(size=(60, 20)) as pilot:
        run.write(1, "before")
        await show(pilot, run)
        run.write(1, "anew")
        await show(pilot, run)
        assert "anew" in app.drawn


async def test_the_screen_answers_while_a_file_is_read_and_only_what_is_wanted_is_read_next(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, go_on, original = list[int](), threading.Event(), samples_pane.read_iteration

    def slow(folder: RunFolder, iteration: int) -> list[Sample]:
        read.append(iteration)
        go_on.wait(timeout=60)
        return original(folder, iteration)

    monkeypatch.setattr(samples_pane, "read_iteration", slow)
    app = Workbench()
    async with app.run_test(size=(60, 20)) as pilot:
        for number in range(1, 6):
            run.write(number, f"of {number}")
            app.pane.show_run(run.view)
            await pilot.pause()
        assert app.heading == "iteration 5 · newest"
        go_on.set()
        await settle(pilot)
        assert "of 5" in app.drawn
        assert read == [1, 5]


async def test_following_makes_up_for_what_a_reading_cost_and_a_key_does_not_wait(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samples_pane, "_REST", 1e6)
    app = Workbench()
    async with app.run_test(size=(60, 20)) as pilot:
        for number in (1, 2):
            run.write(number, f"of {number}")
            await show(pilot, run)
        assert "of 1" in app.drawn
        assert app.heading.startswith("iteration 1 · newest is 2")
        app.pane.show_iteration(2)
        await settle(pilot)
        assert "of 2" in app.drawn


@pytest.mark.parametrize("size", [(38, 20), (60, 20), (80, 24), (120, 36), (200, 60)])
async def test_hostile_samples_are_drawn_within_the_pane_at_every_size(run: Run, size: tuple[int, int]) -> None:
    app = Workbench()
    async with app.run_test(size=size) as pilot:
        run.write(1, HOSTILE, "x" * 1_000_000, "", "\n\n\n", "🎉" * 500)
        await show(pilot, run)
        app.pane.take_focus()
        for keys in ([], ["down", "enter"], ["escape", "up", "enter"]):
            await pilot.press(*keys)
            await pilot.pause()
            widget = next(w for w in app.query("SampleList, SampleText").results() if w.display)
            width = widget.scrollable_content_region.width
            assert {cell_len(widget.render_line(y).text) for y in range(widget.size.height)} == {width}
        assert "[@click=app.quit]x[/] ␛[31m" in app.drawn
        assert app.is_running


async def test_only_samples_that_are_seen_are_laid_out(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    laid_out: list[int] = []
    original = sample_lines

    def counted(number: int, one: Sample, width: int) -> list[str]:
        laid_out.append(number)
        return original(number, one, width)

    monkeypatch.setattr("workbench.widgets.sample_list.sample_lines", counted)
    app = Workbench()
    async with app.run_test(size=(60, 20)) as pilot:
        run.write(1, *(f"sample {i}" for i in range(1000)))
        await show(pilot, run)
        assert len(set(laid_out)) <= 6
        app.pane.take_focus()
        await pilot.press("pagedown", "pagedown", "home", "up")
        assert app.query_one(SampleList).cursor == 0
        app.query_one(SampleList).cursor = 5000
        await pilot.pause()
        assert "sample 999" in app.drawn
        assert len(set(laid_out)) <= 40


async def test_a_double_click_opens_a_sample(run: Run) -> None:
    app = Workbench()
    async with app.run_test(size=(60, 20)) as pilot:
        run.write(1, "zero", "one")
        await show(pilot, run)
        await pilot.click(SampleList, offset=(5, 6), times=2)
        await pilot.pause()
        assert app.query_one(SampleText).display
        assert "one" in app.drawn


def test_every_key_of_the_pane_has_an_id_and_a_tooltip() -> None:
    for bindings in (SamplesPane.BINDINGS, SampleList.BINDINGS, SampleText.BINDINGS):
        assert all(binding.id and binding.tooltip for binding in bindings)  # type: ignore[union-attr]
