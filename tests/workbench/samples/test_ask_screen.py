"""Asking the models: what is sent, what is shown while waiting and after, and the list of answers."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest
from completions import HOSTILE, completion
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from styles_helper import styles_path
from textual import events
from textual.pilot import Pilot
from textual.widgets import Input, OptionList, Select, Static
from token_samples import token_sample
from waiting import until
from workbench_app import screen_text as text_of

from trainer.errors import ModelError, UsageError
from trainer.questions import Answer, Question, Writer, WrittenResponse
from workbench.kit.dialog import PlainArea
from workbench.kit.theming import ThemedApp
from workbench.run.sample_table import TokenSample
from workbench.samples.ask_screen import KEPT, AnswerList, AskedRequest, AskScreen, response_facts
from workbench.samples.ask_screen import request_lines as lines_of
from workbench.text import Line, as_sent, plain, typed, visible

NO_TOP = ("top_tokens", "top_texts", "top_logprobs", "top_ref_logprobs")
SIZES = [(80, 24), (120, 36), (200, 60)]
SAMPLE = token_sample(texts=[" so", " much", " joy", "!"], prompt="Once upon a time", score=0.25)
PLACE = token_sample(
    texts=[" so", " much", " joy", "!"],
    score=0.25,
    top_tokens=[[101, 7]] * 4,
    top_texts=[[" much", " [/x]\x1b"]] * 4,
    top_logprobs=[[math.log(0.5), math.log(0.25)]] * 4,
    top_ref_logprobs=[[math.log(0.1), math.nan]] * 4,
)


Place = tuple[TokenSample | None, int | None]


class Sent(NamedTuple):
    question: Question
    checkpoint: str
    future: Future[Answer]


class Trainer:
    """Trainer that takes questions, which stay open until the test answers."""

    def __init__(self) -> None:
        self.sent: list[Sent] = []
        self.refusal: Exception | None = None

    def ask(self, question: Question, checkpoint: str) -> Future[Answer]:
        if self.refusal is not None:
            raise self.refusal
        self.sent.append(Sent(question, checkpoint, Future()))
        return self.sent[-1].future

    def answer(self, index: int = -1, text: str = "what was written", problem: str = "", **changes: Any) -> None:
        question, _, future = self.sent[index]
        completions = [completion(text, **changes)] * question.count if text else []
        future.set_result(
            Answer(
                writer=question.writer,
                iteration=40,
                prompt="",
                completions=completions,
                seconds=1.0,
                problem=problem,
            )
        )


class Asking(ThemedApp[None]):
    CSS_PATH = styles_path("app.tcss", "ask.tcss")

    def on_mount(self) -> None:
        self.animation_level = "none"


@asynccontextmanager
async def asking(
    *place: Any, size: tuple[int, int] = (120, 36), **options: Any
) -> AsyncIterator[tuple[Trainer, AskScreen, Pilot[None]]]:
    """Show the screen for a place, by default the prompt of SAMPLE, and the trainer that it asks."""
    app, trainer = Asking(), Trainer()
    async with app.run_test(size=size) as pilot:
        screen = AskScreen(
            trainer.ask, *(place or (SAMPLE, None)), **{"temperature": 1.0, "max_new_tokens": 48} | options
        )
        await app.push_screen(screen)
        await pilot.pause()
        yield trainer, screen, pilot


def status(screen: AskScreen) -> str:
    return str(screen.query_one("#ask-status", Static).render())


async def seen(pilot: Pilot[None], screen: AskScreen, text: str) -> None:
    await until(pilot, lambda: text in text_of(screen))


# What is sent


async def test_an_unchanged_prompt_is_sent_as_its_tokens_to_both_with_one_seed() -> None:
    async with asking() as (trainer, screen, pilot):
        assert "unchanged: sent as its original tokens" in text_of(screen)
        assert "the policy in training" in text_of(screen)
        assert not screen.query("#ask-checkpoint"), "none is saved"
        await pilot.press("ctrl+r")
        policy, reference = (sent.question for sent in trainer.sent)
    assert (policy.prompt, policy.prompt_tokens, policy.prefix) == (None, [1, 2, 3], [])
    assert (policy.count, policy.temperature, policy.max_new_tokens) == (1, 1.0, 48)
    assert policy.columns == {"mood": "warm"}
    assert (policy.writer, reference.writer) == ("policy", "reference")
    assert policy.seed == reference.seed
    assert [sent.checkpoint for sent in trainer.sent] == ["", ""]


async def test_an_edited_prompt_is_sent_as_text_and_compared_with_nothing_until_it_is_taken_back() -> None:
    messages = [{"role": "user", "content": "Why?"}]
    async with asking(token_sample(source_prompt=json.dumps(messages), score=0.25), None) as (trainer, screen, pilot):
        await pilot.press("d", "o", "q", "1", "space", "ctrl+r")
        assert "edited" in text_of(screen)
        trainer.answer(0, score=2.0)
        await seen(pilot, screen, "score +2.00")
        await pilot.press(*["backspace"] * 5, "ctrl+r")
        trainer.answer(2, score=1.0)
        await seen(pilot, screen, "▲ +0.75 better")
        assert text_of(screen).count("better") == 1
    edited, unchanged = trainer.sent[0].question, trainer.sent[2].question
    assert (edited.prompt, edited.prompt_tokens) == ("Prompt 0: once upon a timedoq1 ", None)
    assert (unchanged.prompt, unchanged.prompt_tokens) == (messages, [1, 2, 3]), "as the rewards got it"


async def test_any_prompt_may_be_typed_where_there_is_no_sample() -> None:
    async with asking(None, None) as (trainer, screen, pilot):
        await pilot.press("ctrl+r")
        assert status(screen) == "✖ the prompt is empty; type one"
        await pilot.press("h", "i")
        assert "✖" not in status(screen)
        await pilot.press("ctrl+r")
        assert (trainer.sent[0].question.prompt, trainer.sent[0].question.prompt_tokens) == ("hi", None)


async def test_the_same_request_again_takes_another_seed_and_another_temperature_the_first_one() -> None:
    async with asking() as (trainer, screen, pilot):
        screen.query_one("#ask-writer", Select).value = ("policy",)
        await pilot.press("ctrl+r", "ctrl+r")
        screen.query_one("#ask-temperature", Input).focus().value = "0.5"
        await pilot.press("enter")
        await pilot.click("#ask-write")
    sent = [(one.question.temperature, one.question.seed) for one in trainer.sent]
    assert sent == [(1.0, 0), (1.0, 1), (0.5, 0), (0.5, 1)], "by key, by enter in a field, by the button"


async def test_an_impossible_number_is_reported_and_nothing_is_sent() -> None:
    async with asking() as (trainer, screen, pilot):
        for name, values, problem in (
            ("count", ("0", "17", ""), "use a whole number from 1 to 16"),
            ("tokens", ("-1", "²"), "use a whole number from 1 to 100,000"),
            ("temperature", ("0", "nan", "inf", "1e"), "use a number from 0.01 to 10"),
        ):
            entry = screen.query_one(f"#ask-{name}", Input)
            before = entry.value
            for value in values:
                entry.value = value
                await pilot.press("ctrl+r")
                assert status(screen) == f"✖ {name} = {value or 'nothing'}; {problem}"
            entry.value = before
        assert trainer.sent == []


async def test_a_saved_policy_can_be_chosen_where_there_are_some() -> None:
    names = ["step-000040", "step-[/x]\x1b"]
    async with asking(checkpoints=names) as (trainer, screen, pilot):
        await pilot.press("ctrl+r")
        screen.query_one("#ask-checkpoint", Select).value = names[1]
        await pilot.press("ctrl+r")
        await pilot.pause()
        assert "loading the model" in status(screen)
        assert "step-[/x]␛" in text_of(screen)
    assert [sent.checkpoint for sent in trainer.sent] == [names[0]] * 2 + [names[1]] * 2


# From a token on


async def test_a_place_without_alternatives_or_numbers_still_has_two_choices() -> None:
    bare = token_sample(texts=["a", "b"], columns="not JSON", **dict.fromkeys(NO_TOP, ()))
    async with asking(bare, 1) as (trainer, screen, pilot):
        assert screen.query_one("#ask-choices OptionList", OptionList).option_count == 2
        await pilot.press("down", "enter")
    assert (trainer.sent[0].question.prefix, trainer.sent[0].question.columns) == ([100, 101], {})


async def test_the_chosen_token_is_appended_to_the_response_up_to_the_place() -> None:
    async with asking(PLACE, 2) as (trainer, _, pilot):
        await pilot.press("enter", "down", "down", "enter")
    own, chosen = (sent.question for sent in trainer.sent)
    assert (own.prompt, own.prompt_tokens, own.prefix) == (None, [1, 2, 3], [100, 101])
    assert chosen.prefix == [100, 101, 7]
    assert (own.writer, own.count) == ("policy", 4)


@pytest.mark.parametrize("size", [(60, 20), *SIZES])
@pytest.mark.parametrize("asked", [(SAMPLE, None), (PLACE, 2)], ids=["prompt", "token"])
async def test_every_control_is_visible_and_says_what_it_does(asked: Place, size: tuple[int, int]) -> None:
    async with asking(*asked, size=size, checkpoints=["step-000040"]) as (_trainer, screen, _):
        for widget in screen.query("Input, Button, Select, #ask-choices OptionList, AnswerList"):
            assert screen.region.contains_region(widget.region), widget
            assert widget.tooltip or isinstance(widget, AnswerList), widget


@pytest.mark.parametrize("size", SIZES)
async def test_the_place_its_choices_and_the_answers_are_visible(size: tuple[int, int]) -> None:
    async with asking(PLACE, 2, size=size) as (trainer, screen, pilot):
        await pilot.press("down", "down", "enter")
        trainer.answer(0, " so much [/x]\x1b and more", score=0.75)
        await seen(pilot, screen, "[/x]␛ and more")
        shown = text_of(screen)
        for text in ("Try from token 3", "so much [/x]␛", "'·[/x]␛'", "50%", "10%", "25%", "← original"):
            assert text in shown
        for text in ("original: score +0.25", "▲ +0.50 better", "Generate"):
            assert text in shown
        assert all(len(line) <= size[0] for line in shown.splitlines())


# Waiting, and the answers


async def test_while_waiting_a_line_says_so_and_the_keys_keep_working() -> None:
    async with asking() as (trainer, screen, pilot):
        await pilot.press("ctrl+r")
        assert status(screen).startswith("waiting for 2 answers, ")
        assert status(screen).endswith("the trainer answers between two micro-batches")
        await pilot.press("x")
        assert screen.query_one(PlainArea).text.endswith("x")
        trainer.answer(0)
        await until(pilot, lambda: status(screen).startswith("waiting for 1 answer, "))
        trainer.answer(1)
        await until(pilot, lambda: "waiting" not in status(screen))


async def test_requests_queue_and_are_listed_newest_first() -> None:
    async with asking(PLACE, 2) as (trainer, screen, pilot):
        await pilot.press("enter", "down", "enter")
        trainer.answer(1, "came first")
        await seen(pilot, screen, "came first")
        trainer.answer(0, "came second")
        await seen(pilot, screen, "came second")
        assert text_of(screen).index("came first") < text_of(screen).index("came second")
        screen.set_focus(screen.query_one(AnswerList))
        await pilot.press("y")
        assert pilot.app.clipboard.startswith("2  ")
        assert "came first" in pilot.app.clipboard
        assert "came second" not in pilot.app.clipboard


async def test_the_oldest_request_is_forgotten_with_its_pending_answers() -> None:
    async with asking(PLACE, 2) as (trainer, screen, pilot):
        await pilot.press(*["enter"] * (KEPT + 1))
        assert [sent.future.cancelled() for sent in trainer.sent] == [True] + [False] * KEPT
        await until(pilot, lambda: f"waiting for {KEPT} answers" in status(screen))


@pytest.mark.parametrize(
    ("failure", "reported"),
    [
        (
            ModelError("checkpoint '[/x]\x1b' is\ndamaged: choose another"),
            "✖ checkpoint '[/x]␛' is damaged: choose another",
        ),
        (OSError("disk"), "✖ OSError: disk"),
        (None, "✖ no answer"),  # dropped elsewhere
    ],
)
async def test_a_failure_is_reported_in_its_place(failure: Exception | None, reported: str) -> None:
    async with asking(PLACE, 2) as (trainer, screen, pilot):
        await pilot.press("enter")
        future = trainer.sent[0].future
        future.cancel() if failure is None else future.set_exception(failure)
        await seen(pilot, screen, reported)
        assert "waiting" not in text_of(screen)


async def test_a_refusal_and_a_problem_are_reported_and_the_next_request_is_accepted() -> None:
    async with asking(PLACE, 2) as (trainer, screen, pilot):
        trainer.refusal = UsageError("no run yet: start one")
        await pilot.press("enter")
        await seen(pilot, screen, "✖ no run yet: start one")
        trainer.refusal = None
        await pilot.press("enter")
        trainer.answer(0, "", problem="the prefix ends the response already")
        await seen(pilot, screen, "✖ the prefix ends the response already")


async def test_escape_closes_at_once_cancels_open_requests_and_drops_answers_under_way() -> None:
    for under_way in (False, True):
        async with asking() as (trainer, screen, pilot):
            await pilot.press("ctrl+r")
            assert not under_way or all(sent.future.set_running_or_notify_cancel() for sent in trainer.sent)
            await pilot.press("escape")
            await pilot.pause()
            assert not screen.is_attached
            assert under_way or all(sent.future.cancelled() for sent in trainer.sent)
            if under_way:
                trainer.answer(1)
                await pilot.pause()


# Text that is not to be trusted


async def test_hostile_texts_are_shown_and_not_obeyed() -> None:
    sample = token_sample(texts=[HOSTILE, HOSTILE], prompt=HOSTILE)
    for asked in ((sample, None), (sample, 1)):
        async with asking(*asked, size=(80, 24)) as (trainer, screen, pilot):
            await pilot.press("ctrl+r")
            trainer.answer(-1, HOSTILE, parts={HOSTILE: math.nan, "b": 1.0}, score=math.nan)
            await seen(pilot, screen, "not scored")
            shown = text_of(screen)
            assert not {"\x1b", "\x9b", "\u202e", "\r"} & set(shown)
            assert "[/x] ␛[31m [@click" in shown


async def test_the_control_characters_of_a_prompt_are_sent_as_they_were_and_pasted_ones_as_they_are_shown() -> None:
    sample = token_sample(prompt="one\r\ntwo\x1b\tthree ␡")
    async with asking(sample, None) as (trainer, screen, pilot):
        pilot.app.post_message(events.Paste("!\x1b[31m"))
        await pilot.pause()
        await pilot.press("ctrl+r")
        assert "\x1b" not in text_of(screen)
    assert trainer.sent[0].question.prompt == "one\r\ntwo\x1b\tthree ␡!\x1b[31m"
    assert as_sent(typed("a\x7f"), "a\x7f") == "a\x7f"
    assert as_sent("␡", "b") == "␡"


async def test_a_prompt_and_an_answer_of_10_000_tokens_leave_room_for_each_other() -> None:
    long = " ".join(f"word{number}" for number in range(10_000))
    for asked in ((token_sample(prompt=long), None), (token_sample(texts=[long, "!"], prompt=long), 1)):
        async with asking(*asked, size=(80, 24)) as (trainer, screen, pilot):
            assert "word9999" in text_of(screen)
            await pilot.press("ctrl+r")
            for index in range(len(trainer.sent)):
                trainer.answer(index, long)
            await until(pilot, lambda: "waiting" not in status(screen))
            assert screen.query_one(AnswerList).size.height >= 6


async def test_the_best_come_first_and_differing_words_are_marked_on_request() -> None:
    async with asking() as (trainer, screen, pilot):
        await pilot.press("ctrl+r")
        scores = {"an unscored day": math.nan, "a warm day": -1.0, "a good day": 2.0}
        completions = [completion(text, score=score) for text, score in scores.items()]
        policy = Answer(writer="policy", iteration=1, prompt="", completions=completions, seconds=0.1)
        trainer.sent[0].future.set_result(policy)
        trainer.answer(1, "a cold day")
        await seen(pilot, screen, "cold")
        assert text_of(screen).index("warm") < text_of(screen).index("good")
        screen.query_one(AnswerList).focus()
        await pilot.press("o", "d")
        await pilot.pause()
        assert text_of(screen).index("good") < text_of(screen).index("warm") < text_of(screen).index("unscored")
        assert status(screen) == "sorted by score   underlined: only the policy; struck: only the reference"
        drawn = [segment for strip in screen._compositor.render_strips() for segment in strip]
        (new,), (gone,) = ([one.style for one in drawn if one.text == word] for word in ("good", "cold"))
        assert (getattr(new, "underline", None), getattr(gone, "strike", None)) == (True, True)


def reply(*completions: WrittenResponse, writer: Writer = "policy", problem: str = "") -> Answer:
    return Answer(writer=writer, iteration=40, prompt="", completions=[*completions], seconds=3.2, problem=problem)


def request(*answers: Answer, **changes: Any) -> AskedRequest:
    known: dict[str, Any] = {"number": 1, "title": "sample freely", "answers": {one.writer: one for one in answers}}
    return AskedRequest(**known | changes)


def request_lines(of: AskedRequest, width: int, **more: bool) -> list[Line]:
    return lines_of(of, width, side_by_side=width >= 96, **more)


def facts_of(one: WrittenResponse, writer: Writer = "policy", compared: float = math.nan) -> str:
    return "  ".join(text for text, _ in response_facts(one, writer, compared))


def joined(lines: Sequence[Line]) -> str:
    return "\n".join(plain(line) for line in lines)


def words_in(lines: Sequence[Line], role: str) -> str:
    return "".join(text for line in lines for text, own in line if own == role)


@pytest.mark.parametrize(
    ("one", "shown"),
    [
        (completion(), "score +0.50  KL 1.2 nats  3 tokens, stop"),
        (completion(tokens=[1], truncated=True), "score +0.50  KL 1.2 nats  1 token ✂ cut short"),
        (completion(logprobs=[math.inf, -math.inf, 0.0]), "score +0.50  KL - nats  3 tokens, stop"),
        (completion(tokens=[], logprobs=[], ref_logprobs=[]), "score +0.50  KL 0.0 nats  0 tokens, stop"),
        (completion(parts={"lexicon": 0.9}), "score +0.50  KL 1.2 nats  3 tokens, stop  lexicon +0.90"),
        (
            completion(parts={"lexicon": 0.5, "a\x1b.py:f": -2.0}),
            "score +0.50  KL 1.2 nats  3 tokens, stop  lexicon +0.50  a␛.py:f -2.00",
        ),
    ],
)
def test_a_completion_is_shown_with_its_numbers_and_with_parts_that_say_more_than_the_score(
    one: WrittenResponse, shown: str
) -> None:
    assert facts_of(one) == shown
    assert "log π/ref" in facts_of(one, "reference")


@pytest.mark.parametrize(
    ("score", "compared", "reported"),
    [
        (0.5, 0.25, "▲ +0.25 better"),
        (0.5, 1.5, "▼ -1.00 worse"),
        (0.5, 0.5, "= same score"),
        (math.nan, 0.5, "not scored  KL"),
        (0.5, math.nan, "score +0.50  KL"),
        (math.inf, 0.5, "  KL"),
    ],
)
def test_a_score_is_better_or_worse_than_the_number_it_is_compared_with(
    score: float, compared: float, reported: str
) -> None:
    shown = facts_of(completion(score=score), compared=compared)
    assert reported in shown
    assert ("better" in shown or "worse" in shown) == (reported[0] in "▲▼")


def test_policy_and_reference_are_side_by_side_where_there_is_room() -> None:
    both = request(reply(completion("by the policy")), reply(completion("by the reference"), writer="reference"))
    wide, narrow = (joined(request_lines(both, width)).splitlines() for width in (98, 78))
    assert wide[1].split("│")[0].strip().startswith("policy")
    assert wide[1].split("│")[1].strip().startswith("reference")
    (left,), (right,) = ([line for line in wide if text in line] for text in ("by the policy", "by the reference"))
    assert (left.index("by the policy"), right.index("by the reference")) == (0, 47 + len(" │ "))
    assert "│" not in "".join(narrow)
    assert narrow.index("by the policy") < narrow.index("by the reference")


def test_a_column_is_headed_by_writer_and_score() -> None:
    lines = request_lines(request(reply(completion(score=0.5), completion(score=math.nan), completion(score=1.0))), 80)
    assert plain(lines[0]).strip() == "1  sample freely"
    assert plain(lines[1]).strip() == "policy · after 40 iterations · mean score +0.75 · 3.2s"


def test_the_begun_text_is_not_shown_again_and_an_empty_completion_says_so() -> None:
    lines = request_lines(request(reply(completion("once upon a time"), completion("")), begun="once upon"), 80)
    assert words_in(lines, "text") == " a time"
    assert "empty response" in joined(lines)


def test_the_diff_waits_until_both_have_answered() -> None:
    half = request(answers={"policy": reply(completion("a warm day")), "reference": None})
    lines = request_lines(half, 120, diff=True)
    assert words_in(lines, "new") == ""
    assert "waiting" in joined(lines)


def test_a_problem_is_shown_beside_an_answer_without_a_score() -> None:
    unscored = request_lines(request(reply(completion(score=math.nan), problem="rewards.py raised")), 80)
    assert "✖ rewards.py raised" in joined(unscored)
    assert "so much joy" in joined(unscored)


@given(st.text(max_size=300), st.integers(4, 130), st.booleans(), st.booleans())
def test_no_line_is_wider_than_the_list_and_none_is_obeyed(text: str, width: int, by_score: bool, diff: bool) -> None:
    long = completion(text + HOSTILE, score=1e300, parts={text: 1.0, "b": 2.0})
    both = request(
        reply(long, problem=text),
        reply(completion(HOSTILE), writer="reference"),
        title=text + HOSTILE,
        compared=0.0,
    )
    for line in request_lines(both, width, by_score=by_score, diff=diff):
        assert cell_len(plain(line)) <= width
        assert visible(plain(line)) == plain(line)
